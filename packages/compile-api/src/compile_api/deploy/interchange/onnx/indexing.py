"""Rows of the primitives that read and write at positions given by integer tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from compile_api.deploy.interchange.onnx.builder import Builder, T
from compile_api.deploy.interchange.onnx.elementwise import is_nan
from compile_api.deploy.interchange.onnx.structure import whole

__all__ = ["ROWS"]

ROWS: dict[str, Callable[..., Any]] = {}

F32, I32, I64 = torch.float32, torch.int32, torch.int64

#: What is combined with what is there in another dtype: rounded, or wrapped, once.
_COMBINED = {
    torch.float16: F32, torch.bfloat16: F32, torch.int16: I32, torch.int8: I32, torch.uint8: I32, torch.bool: I32,
}  # fmt: skip
_REDUCTIONS = {"set": "none", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def gather(b: Builder, x: T, index: T, dim: int) -> T:
    return b.op("GatherElements", whole(b, x, 0), b.cast(whole(b, index, 1), I64), axis=dim)


def scatter(b: Builder, x: T, index: T, src: T, dim: int, reduce: str) -> T:
    x, index, src = whole(b, x, 0), b.cast(whole(b, index, 1), I64), whole(b, src, 2)
    if reduce == "set":
        return b.op("ScatterElements", x, index, src, axis=dim)
    compute = _COMBINED.get(x.dtype, x.dtype)
    wide = b.cast(x, compute), index, b.cast(src, compute)
    out = b.op("ScatterElements", *wide, axis=dim, reduction=_REDUCTIONS[reduce])
    if reduce in ("max", "min") and compute.is_floating_point:  # comparisons lose NaN
        marks = (b.cast(is_nan(b, t), I32) for t in (wide[0], wide[2]))
        old, new = marks
        nan = b.op("ScatterElements", old, index, new, axis=dim, reduction="max")
        out = b.op("Where", b.cast(nan, torch.bool), b.const(math.nan, compute), out, dtype=compute)
    return b.cast(out, x.dtype)


def index(b: Builder, x: T, indices: Sequence[T], dims: Sequence[int]) -> T:
    ndim = b.operand_spec(0).ndim
    front = b.permuted(whole(b, x, 0), [*dims, *(d for d in range(ndim) if d not in dims)])
    if len(dims) == 1:
        return b.op("Gather", front, b.cast(whole(b, indices[0], 1), I64), axis=0)
    return b.op("GatherND", front, _places(b, indices))


def _places(b: Builder, indices: Sequence[T]) -> T:
    """Positions along a new last dimension."""
    lines = [
        b.op("Unsqueeze", b.cast(whole(b, i, 1 + at), I64), b.ints([-1])) for at, i in enumerate(indices)
    ]  # fmt: skip
    return lines[0] if len(lines) == 1 else b.op("Concat", *lines, axis=-1)


def index_put(
    b: Builder, x: T, indices: Sequence[T], dims: Sequence[int], values: T, accumulate: bool
) -> T:
    ndim = b.operand_spec(0).ndim
    order = [*dims, *(d for d in range(ndim) if d not in dims)]
    front = b.permuted(whole(b, x, 0), order)
    values = whole(b, values, 1 + len(indices))
    places = _places(b, indices)
    if accumulate:
        compute = _COMBINED.get(x.dtype, x.dtype)
        out = b.op("ScatterND", b.cast(front, compute), places, b.cast(values, compute), reduction="add")
        out = b.cast(out, x.dtype)
    else:
        out = b.op("ScatterND", front, places, values)
    return b.permuted(out, [order.index(d) for d in range(ndim)])


for _fn in (gather, scatter, index, index_put):
    ROWS[_fn.__name__] = _fn
