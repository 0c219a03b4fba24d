"""Rows of the primitives that create and rearrange elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from compile_api.deploy.interchange.onnx.builder import Builder, T
from prims.ir.symbols import expr_of

__all__ = ["ROWS", "whole"]

ROWS: dict[str, Callable[..., Any]] = {}

F32, I32, I64 = torch.float32, torch.int32, torch.int64
#: What `Pad` runs on where it does not run on the dtype itself.
_PADDED = {torch.bfloat16: F32, torch.int16: I32}


def row(fn: Callable[..., T]) -> Callable[..., T]:
    """Register ``fn(b, *arguments)`` under its name, less a final underscore."""
    ROWS[fn.__name__.rstrip("_")] = fn
    return fn


def whole(b: Builder, x: T, at: int = 0) -> T:
    """An operand with all its elements: of argument ``at`` of the node that is being written."""
    return b.operand(x, at)


@row
def full(b: Builder, shape: Any, value: Any, dtype: torch.dtype, device: torch.device) -> T:
    return b.const(value, dtype)._replace(narrow=bool(shape))


@row
def iota(b: Builder, length: Any, start: Any, step: Any, dtype: torch.dtype, device: torch.device) -> T:
    compute = torch.float64 if dtype.is_floating_point else I64
    counted = b.op("Range", b.const(0, I64), b.const(length, I64), b.const(1, I64))
    line = b.cast(counted, compute)
    if step != 1:
        line = b.op("Mul", line, b.const(step, compute))
    if start != 0:
        line = b.op("Add", line, b.const(start, compute))
    return b.cast(line, dtype)


@row
def broadcast(b: Builder, x: T, shape: Sequence[Any], dims: Sequence[int]) -> T:
    x = whole(b, x)
    first = dims[0] if dims else len(shape)
    added = [d for d in range(len(shape)) if d not in dims and d > first]  # those in front come by themselves
    out = b.op("Unsqueeze", x, b.ints([d - first for d in added])) if added else x
    return out._replace(narrow=True)


@row
def reshape(b: Builder, x: T, shape: Sequence[Any]) -> T:
    return b.reshaped(whole(b, x), shape)


@row
def permute(b: Builder, x: T, dims: Sequence[int]) -> T:
    return b.permuted(whole(b, x), dims)


@row
def slice_(b: Builder, x: T, starts: Sequence[Any], stops: Sequence[Any], steps: Sequence[Any]) -> T:
    x = whole(b, x)
    sizes = b.operand_spec(0).shape
    cut = [d for d in range(len(sizes))
           if not (_is(starts[d], 0) and _is(stops[d], sizes[d]) and _is(steps[d], 1))]  # fmt: skip
    if not cut:
        return x
    ends = (b.shape([values[d] for d in cut]) for values in (starts, stops))
    return b.op("Slice", x, *ends, b.ints(cut), b.shape([steps[d] for d in cut]))


def _is(a: Any, n: Any) -> bool:
    e, f = expr_of(a), expr_of(n)
    return e is f if e is not None or f is not None else bool(a == n)


@row
def pad(b: Builder, x: T, value: Any, low: Sequence[Any], high: Sequence[Any]) -> T:
    x = whole(b, x)
    if not low:
        return x
    wide = b.cast(x, _PADDED.get(x.dtype, x.dtype))
    return b.cast(b.op("Pad", wide, b.shape([*low, *high]), b.const(value, wide.dtype)), x.dtype)


@row
def concat(b: Builder, xs: Sequence[T], dim: int) -> T:
    return b.op("Concat", *(whole(b, x, at) for at, x in enumerate(xs)), axis=dim)


@row
def flip(b: Builder, x: T, dims: Sequence[int]) -> T:
    x = whole(b, x)
    if not dims:
        return x
    count = len(dims)
    least = -(2**63) + 1
    return b.op("Slice", x, b.ints([-1] * count), b.ints([least] * count), b.ints(list(dims)), b.ints([-1] * count))
