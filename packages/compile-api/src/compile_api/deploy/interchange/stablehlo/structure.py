"""Rows of the primitives that create and rearrange elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from compile_api.deploy.interchange.stablehlo.builder import Builder, V, static

__all__ = ["ROWS"]

ROWS: dict[str, Callable[..., Any]] = {}


def row(fn: Callable[..., V]) -> Callable[..., V]:
    """Register ``fn(b, *arguments)`` under its name, less a final underscore."""
    ROWS[fn.__name__.rstrip("_")] = fn
    return fn


@row
def full(b: Builder, shape: Any, value: Any, dtype: torch.dtype, device: torch.device) -> V:
    return b.splat(value, dtype, shape)


@row
def iota(b: Builder, length: Any, start: Any, step: Any, dtype: torch.dtype, device: torch.device) -> V:
    compute = torch.float64 if dtype.is_floating_point else torch.int64
    line = b.iota((length,), 0, compute)
    if step != 1:
        line = b.op("multiply", line, b.splat(step, compute, (length,)))
    if start != 0:
        line = b.op("add", line, b.splat(start, compute, (length,)))
    return b.convert(line, dtype)


@row
def broadcast(b: Builder, x: V, shape: Sequence[Any], dims: Sequence[int]) -> V:
    return b.broadcast(x, shape, dims)


@row
def reshape(b: Builder, x: V, shape: Sequence[Any]) -> V:
    return b.reshape(x, shape)


@row
def permute(b: Builder, x: V, dims: Sequence[int]) -> V:
    return b.transpose(x, dims)


@row
def slice_(b: Builder, x: V, starts: Sequence[Any], stops: Sequence[Any], steps: Sequence[Any]) -> V:
    return b.slice(x, starts, stops, steps, b.spec.shape)


@row
def pad(b: Builder, x: V, value: Any, low: Sequence[Any], high: Sequence[Any]) -> V:
    number, inner = b.scalar(value, x.dtype), [0] * len(low)
    if static([*low, *high]):
        amounts = f", low = {list(low)}, high = {list(high)}, interior = {inner}"
        return b.to("pad", [x, number], amounts, x.dtype, b.spec.shape)
    return b.to("dynamic_pad", [x, number, b.shape(low), b.shape(high), b.ints(inner)], "", x.dtype, b.spec.shape)


@row
def concat(b: Builder, xs: Sequence[V], dim: int) -> V:
    return b.concatenate(xs, dim, b.spec.shape)


@row
def flip(b: Builder, x: V, dims: Sequence[int]) -> V:
    return b.emit(f"stablehlo.reverse {x}, dims = {list(dims)} : {b.type(x)}", x.dtype, x.shape)
