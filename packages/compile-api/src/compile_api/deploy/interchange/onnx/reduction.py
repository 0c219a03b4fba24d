"""Rows of reductions, running sums and the matrix product."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx
import torch

from compile_api.deploy.interchange.onnx.builder import DTYPES, Builder, T
from compile_api.deploy.interchange.onnx.elementwise import is_nan
from compile_api.deploy.interchange.onnx.structure import whole
from prims.dtypes import compute_dtype

__all__ = ["ROWS"]

ROWS: dict[str, Callable[..., Any]] = {}

I32, I64, BOOL = torch.int32, torch.int64, torch.bool


def _wide(b: Builder, x: T, at: int = 0) -> T:
    """An operand in the dtype that ONNX Runtime adds up in; integers wrap to the same bits."""
    small = {torch.int16: I32, torch.int8: I32, torch.uint8: I32, BOOL: I32}
    return b.cast(whole(b, x, at), small.get(x.dtype, compute_dtype(x.dtype)))


def _reduced(b: Builder, kind: str, x: T, dims: Sequence[int]) -> T:
    return b.op(kind, x, b.ints(dims), keepdims=0)


def _fold(kind: str) -> Callable[..., T]:
    def fn(b: Builder, x: T, dims: Sequence[int]) -> T:
        return b.cast(_reduced(b, kind, _wide(b, x), dims), x.dtype) if dims else whole(b, x)

    return fn


ROWS["sum"] = _fold("ReduceSum")
ROWS["prod"] = _fold("ReduceProd")


def _extremum(kind: str) -> Callable[..., T]:
    def fn(b: Builder, x: T, dims: Sequence[int]) -> T:
        """NaN where any is: the operator does not say what it makes of NaN, and ONNX Runtime loses it."""
        if not dims:
            return whole(b, x)
        wide = _wide(b, x)
        out = _reduced(b, kind, wide, dims)
        if x.dtype.is_floating_point:
            nan = b.cast(_reduced(b, "ReduceMax", b.cast(is_nan(b, wide), I32), dims), BOOL)
            out = b.op("Where", nan, b.const(math.nan, wide.dtype), out, dtype=wide.dtype)
        return b.cast(out, x.dtype)

    return fn


ROWS["amax"] = _extremum("ReduceMax")
ROWS["amin"] = _extremum("ReduceMin")


def any_(b: Builder, x: T, dims: Sequence[int]) -> T:
    x = whole(b, x)
    return b.cast(_reduced(b, "ReduceSum", b.cast(x, I64), dims), BOOL) if dims else x


def all_(b: Builder, x: T, dims: Sequence[int]) -> T:
    x = whole(b, x)
    return b.op("Not", any_(b, b.op("Not", x), dims)) if dims else x


ROWS["any"], ROWS["all"] = any_, all_


def _place(kind: str) -> Callable[..., T]:
    def fn(b: Builder, x: T, dim: int) -> T:
        wide = whole(b, x)
        if x.dtype == torch.int16:
            wide = b.cast(wide, I32)
        elif x.dtype.is_floating_point:
            wide = b.cast(wide, compute_dtype(x.dtype))
        out = b.op(kind, wide, dtype=I64, axis=dim, keepdims=0)
        if not x.dtype.is_floating_point:
            return out
        nan = b.cast(is_nan(b, wide), I32)  # the first NaN comes before everything
        first = b.op("ArgMax", nan, dtype=I64, axis=dim, keepdims=0)
        return b.op("Where", b.cast(_reduced(b, "ReduceMax", nan, [dim]), BOOL), first, out, dtype=I64)

    return fn


ROWS["argmax"] = _place("ArgMax")
ROWS["argmin"] = _place("ArgMin")


def cumsum(b: Builder, x: T, dim: int) -> T:
    return b.cast(b.op("CumSum", _wide(b, x), b.const(dim, I64)), x.dtype)


def cumprod(b: Builder, x: T, dim: int) -> T:
    """A loop that carries the product so far: the operator of that name is younger than most runtimes."""
    wide = _wide(b, x)
    if 0 in (n for n in b.operand_spec(0).shape if isinstance(n, int)):
        return whole(b, x)  # ONNX Runtime loops over no empty sequence
    sizes = [n for d, n in enumerate(b.operand_spec(0).shape) if d != dim]
    ones = b.op("Expand", b.const(1, wide.dtype), b.shape(sizes))
    kind = DTYPES[wide.dtype]
    old, new, out, last = (b.free(f"cumprod.{part}") for part in ("before", "element", "product", "state"))
    info = onnx.helper.make_tensor_value_info
    rank = len(sizes)
    body = onnx.helper.make_graph(
        [onnx.helper.make_node("Mul", [old, new], [out]), onnx.helper.make_node("Identity", [out], [last])], "product",
        [info(old, kind, [None] * rank), info(new, kind, [None] * rank)],
        [info(last, kind, [None] * rank), info(out, kind, [None] * rank)],
    )  # fmt: skip
    found = b.several(
        "Scan", ones, wide, dtypes=(wide.dtype, wide.dtype), body=body, num_scan_inputs=1, scan_input_axes=[dim],
        scan_output_axes=[dim],
    )  # fmt: skip
    return b.cast(found[1], x.dtype)


def dot(b: Builder, x: T, y: T) -> T:
    return b.cast(b.op("MatMul", _wide(b, x, 0), _wide(b, y, 1)), x.dtype)


for _fn in (cumsum, cumprod, dot):
    ROWS[_fn.__name__] = _fn
