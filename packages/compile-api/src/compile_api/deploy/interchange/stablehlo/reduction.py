"""Rows of reductions, running sums and the matrix product."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from compile_api.deploy.interchange.stablehlo.builder import Builder, V, type_of
from compile_api.deploy.interchange.stablehlo.elementwise import is_nan
from compile_api.deploy.interchange.walk import NotMapped
from prims.dtypes import compute_dtype
from prims.ir.symbols import expr_of

__all__ = ["ROWS"]

ROWS: dict[str, Callable[..., Any]] = {}

I64, BOOL = torch.int64, torch.bool


def _bounds(dtype: torch.dtype) -> tuple[Any, Any]:
    """The least and the greatest number."""
    if dtype == BOOL:
        return False, True
    if dtype.is_floating_point:
        return -math.inf, math.inf
    info = torch.iinfo(dtype)
    return info.min, info.max


def _fold(kind: str, of_bools: str, start: Callable[[torch.dtype], Any]) -> Callable[..., V]:
    def fn(b: Builder, x: V, dims: Sequence[int]) -> V:
        if not dims:
            return x
        wide = b.convert(x, compute_dtype(x.dtype))
        return b.convert(b.reduce(of_bools if x.dtype == BOOL else kind, wide, start(wide.dtype), dims), x.dtype)

    return fn


ROWS["sum"] = _fold("add", "or", lambda dtype: 0)
ROWS["prod"] = _fold("multiply", "and", lambda dtype: 1)
ROWS["amax"] = _fold("maximum", "or", lambda dtype: _bounds(dtype)[0])
ROWS["amin"] = _fold("minimum", "and", lambda dtype: _bounds(dtype)[1])
ROWS["any"] = _fold("or", "or", lambda dtype: False)
ROWS["all"] = _fold("and", "and", lambda dtype: True)


def _place(kind: str, start: int) -> Callable[..., V]:
    def fn(b: Builder, x: V, dim: int) -> V:
        """The least place of what equals the extremum; where that is NaN, of the NaNs."""
        wide = b.convert(x, compute_dtype(x.dtype))
        best = b.reduce(kind, wide, _bounds(wide.dtype)[start], [dim])
        spread = [d for d in range(len(x.shape)) if d != dim]
        hit = b.compare("EQ", wide, b.broadcast(best, x.shape, spread))
        if x.dtype.is_floating_point:
            hit = b.op("or", hit, is_nan(b, wide))
        places = b.select(hit, b.iota(x.shape, dim), b.splat(2**62, I64, x.shape))
        return b.reduce("minimum", places, 2**63 - 1, [dim])

    return fn


ROWS["argmax"] = _place("maximum", 0)
ROWS["argmin"] = _place("minimum", 1)


def _scan(kind: str, start: int) -> Callable[..., V]:
    def fn(b: Builder, x: V, dim: int) -> V:
        """A window that reaches back to the first element."""
        if expr_of(x.shape[dim]) is not None:
            raise NotMapped("its window is as long as a size that may differ, and StableHLO's windows are constants")
        length, ndim = int(x.shape[dim]), len(x.shape)
        if length == 0:
            return x
        wide = b.convert(x, compute_dtype(x.dtype))
        first, element = b.scalar(start, wide.dtype), type_of(wide.dtype, ())
        ones = ", ".join(["1"] * ndim)
        window = ", ".join(str(length if d == dim else 1) for d in range(ndim))
        padding = [[length - 1 if d == dim else 0, 0] for d in range(ndim)]
        attributes = (
            f"base_dilations = array<i64: {ones}>, padding = dense<{padding}> : tensor<{ndim}x2xi64>, "
            f"window_dilations = array<i64: {ones}>, window_dimensions = array<i64: {window}>, "
            f"window_strides = array<i64: {ones}>"
        )
        region = (
            f"{{ ^bb0(%old: {element}, %new: {element}): %combined = stablehlo.{kind} %old, %new : {element} "
            f"stablehlo.return %combined : {element} }}"
        )
        out = b.generic("reduce_window", [wide, first], attributes, wide.dtype, x.shape, region)
        return b.convert(out, x.dtype)

    return fn


ROWS["cumsum"] = _scan("add", 0)
ROWS["cumprod"] = _scan("multiply", 1)


def product(b: Builder, x: V, y: V) -> V:
    """[..., m, k] @ [..., k, n], without the shorter formats that accelerators multiply float32 in by default."""
    batch, rank = list(range(len(x.shape) - 2)), len(x.shape)
    shape = (*x.shape[:-1], y.shape[-1])
    batching = f"batching_dims = {batch} x {batch}, " if batch else ""
    attributes = f", {batching}contracting_dims = [{rank - 1}] x [{rank - 2}], precision = [HIGHEST, HIGHEST]"
    return b.to("dot_general", [x, y], attributes, x.dtype, shape)


def dot(b: Builder, x: V, y: V) -> V:
    compute = compute_dtype(x.dtype)
    return b.convert(product(b, b.convert(x, compute), b.convert(y, compute)), x.dtype)


ROWS["dot"] = dot
