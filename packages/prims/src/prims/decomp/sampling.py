"""Sampling at given places: grid_sample, searchsorted, and maxima of adaptive windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prims.decomp.common import (
    Size,
    Value,
    along,
    expand,
    full_like,
    is_integral,
    is_value,
    number,
    numel,
    opmath,
    result_dtype,
    select,
    to_dtype,
    unsupported,
    whole,
)
from prims.decomp.elementwise import choose
from prims.decomp.factory import linspace
from prims.decomp.indexing import index as indexed
from prims.decomp.indexing import index_put
from prims.decomp.padding import taken_last
from prims.decomp.pooling import MAX_WINDOW, max_pool_backward
from prims.decomp.registry import decomposition
from prims.decomp.views import permuted, reshaped

BILINEAR, NEAREST = 0, 1
ZEROS, BORDER = 0, 1


def _unnormalised(p: Any, x: Value, size: int, align_corners: bool) -> Value:
    """From [-1, 1] to pixels."""
    if align_corners:
        return p.mul(p.add(x, 1.0), (size - 1) / 2)
    return p.mul(p.sub(p.mul(p.add(x, 1.0), float(size)), 1.0), 0.5)


def _reflected(p: Any, x: Value, size: int, align_corners: bool) -> Value:
    """Reflected about the outer pixels' centres (align_corners) or outer edges."""
    low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
    if span <= 0:
        return full_like(p, x, 0.0)
    gap = p.abs(p.sub(x, low))
    extra = p.fmod(gap, span)
    odd = p.eq(p.fmod(p.floor(p.div(gap, span)), 2.0), 1.0)
    return p.add(p.where(odd, p.sub(span, extra), extra), low)


def _source(p: Any, x: Value, size: Size, padding_mode: int, align_corners: bool) -> Value:
    if not isinstance(size, int):
        raise whole("grid_sample of a dynamic size")
    x = _unnormalised(p, x, size, align_corners)
    if padding_mode == ZEROS:
        return x
    if padding_mode != BORDER:
        x = _reflected(p, x, size, align_corners)
    return p.minimum(p.maximum(x, 0.0), size - 1.0)


@decomposition("aten.grid_sampler_2d.default")
def grid_sampler_2d(
    p: Any, input: Value, grid: Value, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Value:
    """input [n, c, h, w] at the places grid [n, oh, ow, (x, y)], to [n, c, oh, ow]."""
    if interpolation_mode not in (BILINEAR, NEAREST):
        raise whole("bicubic grid_sample")
    n, c, h, w = input.shape
    compute = opmath(input.dtype)
    image, places = to_dtype(p, input, compute), to_dtype(p, grid, compute)
    shape = (n, *grid.shape[1:3])
    x, y = (reshaped(p, p.slice(places, (0, 0, 0, i), (*shape, i + 1), (1, 1, 1, 1)), shape) for i in (0, 1))
    x, y = _source(p, x, w, padding_mode, align_corners), _source(p, y, h, padding_mode, align_corners)
    batch = along(p, p.iota(n, 0, 1, torch.int64, input.device), shape, 0)
    out_shape = (n, c, *shape[1:])

    def pixel(column: Value, row: Value) -> Value:
        """The pixels at whole places, 0 outside."""
        inside = p.logical_and(
            p.logical_and(p.ge(column, 0.0), p.le(column, w - 1.0)), p.logical_and(p.ge(row, 0.0), p.le(row, h - 1.0))
        )
        at = (p.convert(p.where(inside, v, 0.0), torch.int64) for v in (row, column))
        taken = permuted(p, p.index(image, (batch, *at), (0, 2, 3)), (0, 3, 1, 2))
        return p.where(p.broadcast(inside, out_shape, (0, 2, 3)), taken, 0.0)

    if interpolation_mode == NEAREST:
        return to_dtype(p, pixel(p.round(x), p.round(y)), input.dtype)
    left, top = p.floor(x), p.floor(y)
    right, bottom = p.add(left, 1.0), p.add(top, 1.0)
    total: Value = None
    for column, row, weight in (
        (left, top, p.mul(p.sub(right, x), p.sub(bottom, y))),
        (right, top, p.mul(p.sub(x, left), p.sub(bottom, y))),
        (left, bottom, p.mul(p.sub(right, x), p.sub(y, top))),
        (right, bottom, p.mul(p.sub(x, left), p.sub(y, top))),
    ):
        part = p.mul(pixel(column, row), p.broadcast(weight, out_shape, (0, 2, 3)))
        total = part if total is None else p.add(total, part)
    return to_dtype(p, total, input.dtype)


# ---- sorted boundaries ----------------------------------------------------------------------------------

MAX_BOUNDARIES = 4096
"""More boundaries than this are worth a binary search: eager's kernel."""


@decomposition("aten.affine_grid_generator.default")
def affine_grid_generator(p: Any, theta: Value, size: Sequence[Size], align_corners: bool) -> Value:
    """Where an affine map of [-1, 1] takes each place of an output of that size: (N, *spatial, d), x first."""
    spatial = tuple(size[2:])
    if not all(isinstance(extent, int) for extent in spatial):
        raise whole("affine_grid of symbolic sizes")
    shape, dtype = (size[0], *spatial, len(spatial)), theta.dtype
    theta = to_dtype(p, theta, opmath(dtype))
    out = p.broadcast(select(p, theta, 2, len(spatial)), shape, (0, len(shape) - 1))
    for j, extent in enumerate(reversed(spatial)):
        if extent == 1:
            continue  # its only place is 0
        end = 1.0 if align_corners else (extent - 1) / extent
        at = along(p, linspace(p, -end, end, extent, dtype=theta.dtype, device=theta.device), shape, len(spatial) - j)
        out = p.add(out, p.mul(p.broadcast(select(p, theta, 2, j), shape, (0, len(shape) - 1)), at))
    return to_dtype(p, out, dtype)


def _count_below(p: Any, x: Value, boundaries: Value, right: bool, out_int32: bool) -> Value:
    """How many sorted boundaries are below x (at most x where `right`); all of them for NaN."""
    size = boundaries.shape[0]
    if not isinstance(size, int) or size > MAX_BOUNDARIES:
        raise whole("a search among many or a dynamic number of boundaries")
    dtype = result_dtype(x, boundaries)
    shape = (*x.shape, size)
    wide = p.broadcast(to_dtype(p, x, dtype), shape, tuple(range(x.ndim)))
    edges = p.broadcast(to_dtype(p, boundaries, dtype), shape, (x.ndim,))
    above = p.gt(edges, wide) if right else p.ge(edges, wide)
    below = p.convert(p.logical_not(above), torch.int64)
    return to_dtype(p, p.sum(below, (x.ndim,)), torch.int32 if out_int32 else torch.int64)


@decomposition("aten.bucketize.Tensor")
def bucketize(p: Any, self: Value, boundaries: Value, *, out_int32: bool = False, right: bool = False) -> Value:
    """The bucket of each element."""
    return _count_below(p, self, boundaries, right, out_int32)


@decomposition("aten.searchsorted.Tensor")
def searchsorted(
    p: Any,
    sorted_sequence: Value,
    self: Value,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    """Where each element would be inserted into a one-dimensional sorted sequence."""
    if sorted_sequence.ndim != 1 or sorter is not None:
        raise whole("searchsorted in many sequences or with a sorter")
    return _count_below(p, self, sorted_sequence, right or side == "right", out_int32)


# ---- maxima of adaptive windows -------------------------------------------------------------------------


def _intervals(p: Any, size: Size, out: Size, device: torch.device) -> tuple[Value, Value, int]:
    """First and one past the last position of each interval, and the longest interval's length."""
    if not (isinstance(size, int) and isinstance(out, int)):
        raise whole("adaptive pooling of a dynamic size")
    start = p.trunc_div(p.iota(out, 0, size, torch.int64, device), out)
    end = p.trunc_div(p.iota(out, size + out - 1, size, torch.int64, device), out)
    return start, end, max((-(-(i + 1) * size // out) - i * size // out for i in range(out)), default=0)


@decomposition("aten.adaptive_max_pool2d.default")
def adaptive_max_pool2d(p: Any, self: Value, output_size: Sequence[Size]) -> tuple[Value, Value]:
    """Largest element of each of a given number of nearly equal windows, and its index in the plane."""
    w = self.shape[-1]
    rows, columns = (_intervals(p, s, o, self.device) for s, o in zip(self.shape[-2:], output_size, strict=True))
    if rows[2] * columns[2] > MAX_WINDOW:
        raise whole(f"adaptive pooling over windows of {rows[2] * columns[2]} elements")
    shape = (*self.shape[:-2], *output_size)
    best: Value = None
    place: Value = None
    for i in range(rows[2]):
        # Past its end an interval repeats its last element, which changes no maximum.
        row = along(p, p.minimum(p.add(rows[0], i), p.sub(rows[1], 1)), output_size, 0)
        for j in range(columns[2]):
            column = along(p, p.minimum(p.add(columns[0], j), p.sub(columns[1], 1)), output_size, 1)
            element = taken_last(p, self, (row, column))
            at = expand(p, p.add(p.mul(row, w), column), shape)
            if best is None:
                best, place = element, at
                continue
            better = p.gt(element, best)
            if not is_integral(self.dtype):
                better = p.logical_or(better, p.isnan(element))
            best, place = p.where(better, element, best), p.where(better, at, place)
    return best, place


@decomposition("aten.adaptive_max_pool2d_backward.default")
def adaptive_max_pool2d_backward(p: Any, grad_output: Value, self: Value, indices: Value) -> Value:
    """Each window's gradient, added at its largest element."""
    return max_pool_backward(p, grad_output, self, 2, indices)


# ---- flat places ----------------------------------------------------------------------------------------


@decomposition("aten.put.default")
def put(p: Any, self: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    """self with its elements at flat places set to (or increased by) source."""
    if self.dtype == torch.bool and accumulate:
        raise unsupported("put that accumulates bool")
    n = numel(index)
    flat = reshaped(p, self, (numel(self),))
    values = reshaped(p, to_dtype(p, source, self.dtype), (n,))
    at = reshaped(p, to_dtype(p, index, torch.int64), (n,))
    compute = opmath(self.dtype) if accumulate else self.dtype
    out = p.index_put(to_dtype(p, flat, compute), (at,), (0,), to_dtype(p, values, compute), accumulate)
    return reshaped(p, to_dtype(p, out, self.dtype), self.shape)


@decomposition("aten._unsafe_masked_index.default")
def unsafe_masked_index(p: Any, self: Value, mask: Value, indices: Sequence[Value | None], fill: Any) -> Value:
    """self[indices] where the mask is true, `fill` elsewhere."""
    safe = [None if i is None else choose(p, mask, i, 0) for i in indices]
    value = fill if is_value(fill) else number(fill, self.dtype)
    return choose(p, mask, indexed(p, self, safe), value)


@decomposition("aten._unsafe_masked_index_put_accumulate.default")
def unsafe_masked_index_put_accumulate(
    p: Any, self: Value, mask: Value, indices: Sequence[Value | None], values: Value
) -> Value:
    """self with values added at the indices where the mask is true."""
    safe = [None if i is None else choose(p, mask, i, 0) for i in indices]
    return index_put(p, self, safe, choose(p, mask, values, number(0, values.dtype)), True)
