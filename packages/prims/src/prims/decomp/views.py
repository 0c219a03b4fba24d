"""Shape ops. Aliasing has been removed before: a view here is a new logical array."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from prims.decomp.common import (
    Size,
    Value,
    broadcast_shapes,
    expand,
    iota_along,
    norm_dim,
    number,
    numel,
    prod,
    result_dtype,
    select,
    slice_dim,
    surely_same,
    to_dtype,
    whole,
)
from prims.decomp.registry import decomposition
from prims.spec.rules.views import is_told_by_data
from prims.spec.rules.views import slice_bounds as positions

_END = sys.maxsize


def reshaped(p: Any, x: Value, shape: Sequence[Size]) -> Value:
    """Reshape, one size of -1 inferred; itself when nothing changes."""
    shape = tuple(shape)
    hole = next((i for i, s in enumerate(shape) if isinstance(s, int) and s == -1), None)
    if hole is not None:
        known = prod([s for i, s in enumerate(shape) if i != hole])
        shape = (*shape[:hole], numel(x) // known, *shape[hole + 1 :])
    return x if surely_same(x.shape, shape) else p.reshape(x, shape)


@decomposition(
    "aten.view.default",
    "aten.view_copy.default",
    "aten._unsafe_view.default",
    "aten.reshape.default",
    "aten._reshape_copy.default",
)
def view(p: Any, self: Value, size: Sequence[Size]) -> Value:
    """The same elements in another shape."""
    return reshaped(p, self, size)


@decomposition("aten._reshape_alias.default")
def reshape_alias(p: Any, self: Value, size: Sequence[Size], stride: Sequence[Size]) -> Value:
    """The same elements in another shape (the strides are a layout, which values do not have)."""
    return reshaped(p, self, size)


@decomposition("aten.flatten.using_ints")
def flatten(p: Any, self: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    """Dimensions start_dim..end_dim as one."""
    if self.ndim == 0:
        return p.reshape(self, (1,))
    start, end = norm_dim(start_dim, self.ndim), norm_dim(end_dim, self.ndim)
    shape = (*self.shape[:start], prod(self.shape[start : end + 1]), *self.shape[end + 1 :])
    return reshaped(p, self, shape)


@decomposition("aten.expand.default", "aten.expand_copy.default")
def expand_to(p: Any, self: Value, size: Sequence[Size], *, implicit: bool = False) -> Value:
    """Broadcast to a shape, -1 keeping a size."""
    lead = len(size) - self.ndim
    shape = tuple(self.shape[i - lead] if isinstance(s, int) and s == -1 else s for i, s in enumerate(size))
    return expand(p, self, shape)


@decomposition("aten.expand_as.default")
def expand_as(p: Any, self: Value, other: Value) -> Value:
    """Broadcast to another tensor's shape."""
    return expand(p, self, other.shape)


@decomposition("aten.broadcast_tensors.default")
def broadcast_tensors(p: Any, tensors: Sequence[Value]) -> tuple[Value, ...]:
    """All tensors in their common shape."""
    shape = broadcast_shapes(*(t.shape for t in tensors))
    return tuple(expand(p, t, shape) for t in tensors)


def permuted(p: Any, x: Value, dims: Sequence[int]) -> Value:
    """Permute; itself when the order stays."""
    dims = tuple(norm_dim(d, x.ndim) for d in dims)
    return x if dims == tuple(range(x.ndim)) else p.permute(x, dims)


@decomposition("aten.permute.default", "aten.permute_copy.default")
def permute(p: Any, self: Value, dims: Sequence[int]) -> Value:
    """Reorder the dimensions."""
    return permuted(p, self, dims)


def swapped(p: Any, x: Value, a: int, b: int) -> Value:
    """Two dimensions exchanged."""
    if x.ndim == 0:
        return x
    order = list(range(x.ndim))
    a, b = norm_dim(a, x.ndim), norm_dim(b, x.ndim)
    order[a], order[b] = order[b], order[a]
    return permuted(p, x, order)


@decomposition("aten.transpose.int", "aten.transpose_copy.int")
def transpose(p: Any, self: Value, dim0: int, dim1: int) -> Value:
    """Exchange two dimensions."""
    return swapped(p, self, dim0, dim1)


@decomposition("aten.t.default", "aten.t_copy.default", "aten.numpy_T.default")
def t(p: Any, self: Value) -> Value:
    """Transpose of a matrix (vectors and 0-dim tensors stay)."""
    return permuted(p, self, tuple(reversed(range(self.ndim))))


@decomposition("aten.movedim.int")
def movedim(p: Any, self: Value, source: int, destination: int) -> Value:
    """Move one dimension to another place."""
    order = [d for d in range(self.ndim) if d != norm_dim(source, self.ndim)]
    order.insert(norm_dim(destination, self.ndim), norm_dim(source, self.ndim))
    return permuted(p, self, order)


@decomposition("aten.unsqueeze.default", "aten.unsqueeze_copy.default")
def unsqueeze(p: Any, self: Value, dim: int) -> Value:
    """Insert a dimension of size 1."""
    at = norm_dim(dim, self.ndim + 1)
    return p.reshape(self, (*self.shape[:at], 1, *self.shape[at:]))


def _squeezed(p: Any, x: Value, dims: Sequence[int]) -> Value:
    drop = {norm_dim(d, x.ndim) for d in dims}
    shape = tuple(s for i, s in enumerate(x.shape) if i not in drop or s != 1)
    return p.reshape(x, shape) if len(shape) != x.ndim else x


@decomposition("aten.squeeze.default", "aten.squeeze_copy.default")
def squeeze(p: Any, self: Value) -> Value:
    """Drop all dimensions of size 1."""
    return _squeezed(p, self, range(self.ndim))


@decomposition("aten.squeeze.dim", "aten.squeeze_copy.dim")
def squeeze_dim(p: Any, self: Value, dim: int) -> Value:
    """Drop a dimension if its size is 1."""
    return _squeezed(p, self, (dim,))


@decomposition("aten.squeeze.dims", "aten.squeeze_copy.dims")
def squeeze_dims(p: Any, self: Value, dim: Sequence[int]) -> Value:
    """Drop those of the dimensions whose size is 1."""
    return _squeezed(p, self, dim)


# ---- parts ----------------------------------------------------------------------------------------------


@decomposition("aten.select.int", "aten.select_copy.int")
def select_int(p: Any, self: Value, dim: int, index: Size) -> Value:
    """One index along a dimension, which is dropped."""
    dim = norm_dim(dim, self.ndim)
    size = self.shape[dim]
    at = index + size if index < 0 else index
    if not (at >= 0 and at < size):
        raise IndexError(f"select: index {index} is out of range for dimension {dim} of size {size}")
    return select(p, self, dim, at)


def slice_bounds(size: Size, start: Size | None, end: Size | None) -> tuple[Size, Size]:
    """Python's slice bounds, clamped to [0, size] with start <= end."""
    if any(map(is_told_by_data, (size, start, end))):
        return positions(size, start, end)

    def clamp(x: Size) -> Size:
        if isinstance(x, int) and x == 0:
            return 0
        if x is size or (isinstance(x, int) and x >= _END):
            return size
        if x < 0:
            x = x + size
            return 0 if x < 0 else x
        return size if x > size else x

    low = 0 if start is None else clamp(start)
    high = size if end is None else clamp(end)
    return low, (low if high < low else high)


@decomposition("aten.slice.Tensor", "aten.slice_copy.Tensor")
def slice_tensor(
    p: Any, self: Value, dim: int = 0, start: Size | None = None, end: Size | None = None, step: int = 1
) -> Value:
    """self[..., start:end:step, ...]"""
    dim = norm_dim(dim, self.ndim)
    low, high = slice_bounds(self.shape[dim], start, end)
    return slice_dim(p, self, dim, low, high, step)


@decomposition("aten.narrow.default", "aten.narrow_copy.default")
def narrow(p: Any, self: Value, dim: int, start: Size, length: Size) -> Value:
    """`length` entries from `start` along a dimension."""
    dim = norm_dim(dim, self.ndim)
    start = start + self.shape[dim] if start < 0 else start
    return slice_dim(p, self, dim, start, start + length)


def _pieces(p: Any, x: Value, sizes: Sequence[Size], dim: int) -> tuple[Value, ...]:
    out, at = [], 0
    for size in sizes:
        out.append(slice_dim(p, x, dim, at, at + size))
        at = at + size
    return tuple(out)


def _even_sizes(size: Size, each: Size) -> list[Size]:
    if size == 0 or each == 0:
        return [size]
    count = int((size + each - 1) // each)
    return [each] * (count - 1) + [size - each * (count - 1)]


@decomposition("aten.split.Tensor", "aten.split_copy.Tensor", "aten.unsafe_split.Tensor")
def split(p: Any, self: Value, split_size: Size, dim: int = 0) -> tuple[Value, ...]:
    """Pieces of one size along a dimension, the last one smaller where it does not divide."""
    dim = norm_dim(dim, self.ndim)
    return _pieces(p, self, _even_sizes(self.shape[dim], split_size), dim)


@decomposition(
    "aten.split_with_sizes.default",
    "aten.split_with_sizes_copy.default",
    "aten.unsafe_split_with_sizes.default",
)
def split_with_sizes(p: Any, self: Value, split_sizes: Sequence[Size], dim: int = 0) -> tuple[Value, ...]:
    """Pieces of the given sizes along a dimension."""
    return _pieces(p, self, split_sizes, norm_dim(dim, self.ndim))


@decomposition("aten.chunk.default", "aten.unsafe_chunk.default")
def chunk(p: Any, self: Value, chunks: int, dim: int = 0) -> tuple[Value, ...]:
    """At most `chunks` pieces of one size along a dimension."""
    dim = norm_dim(dim, self.ndim)
    size = self.shape[dim]
    each = (size + chunks - 1) // chunks
    sizes = [each] * chunks if size == 0 else _even_sizes(size, each)
    return _pieces(p, self, sizes, dim)


@decomposition("aten.unbind.int", "aten.unbind_copy.int")
def unbind(p: Any, self: Value, dim: int = 0) -> tuple[Value, ...]:
    """Every index along a dimension, which is dropped."""
    dim = norm_dim(dim, self.ndim)
    return tuple(select(p, self, dim, i) for i in range(int(self.shape[dim])))


@decomposition("aten.diagonal.default", "aten.diagonal_copy.default")
def diagonal(p: Any, self: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """The diagonal of two dimensions, as the last dimension."""
    d1, d2 = norm_dim(dim1, self.ndim), norm_dim(dim2, self.ndim)
    length, down, right = diagonal_extent(self.shape[d1], self.shape[d2], offset)
    rows = p.iota(length, down, 1, torch.int64, self.device)
    cols = p.iota(length, right, 1, torch.int64, self.device)
    pairs = sorted(((d1, rows), (d2, cols)), key=lambda pair: pair[0])
    out = p.index(self, tuple(i for _, i in pairs), tuple(d for d, _ in pairs))
    return permuted(p, out, (*range(1, out.ndim), 0))


def diagonal_extent(rows: Size, cols: Size, offset: int) -> tuple[Size, int, int]:
    """Length of a diagonal, and its first row and column."""
    down, right = (0, offset) if offset >= 0 else (-offset, 0)
    height, width = rows - down, cols - right
    length = height if height < width else width
    return (0 if length < 0 else length), down, right


@decomposition("aten.unfold.default", "aten.unfold_copy.default")
def unfold(p: Any, self: Value, dimension: int, size: int, step: int) -> Value:
    """Windows along a dimension: their number stays there, their elements are the last dimension."""
    if self.ndim == 0:
        return p.reshape(slice_dim(p, p.reshape(self, (1,)), 0, 0, size), (size,))
    dim = norm_dim(dimension, self.ndim)
    count = (self.shape[dim] - size) // step + 1
    if size == step:
        whole = slice_dim(p, self, dim, 0, count * size)
        split_ = p.reshape(whole, (*self.shape[:dim], count, size, *self.shape[dim + 1 :]))
        return permuted(p, split_, (*range(dim + 1), *range(dim + 2, self.ndim + 1), dim + 1))
    shape = (count, size)
    first = p.broadcast(p.iota(count, 0, step, torch.int64, self.device), shape, (0,))
    at = p.add(first, iota_along(p, shape, 1, self.device))
    out = p.index(self, (at,), (dim,))
    # index puts (count, size) first.
    rest = range(2, self.ndim + 1)
    return permuted(p, out, (*rest[:dim], 0, *rest[dim:], 1))


# ---- joining --------------------------------------------------------------------------------------------


#: The most pieces of a concatenation that is not left to PyTorch: a kernel that finds each place's piece has as many
#: branches, each with the conditions of those before it.
MANY = 256


@decomposition("aten.cat.default", "aten.concat.default", "aten.concatenate.default")
def cat(p: Any, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Join along a dimension. Empty one-dimensional tensors are skipped, as in eager."""
    if len(tensors) > MANY:
        raise whole(f"a concatenation of {len(tensors)} tensors")
    dtype = result_dtype(*tensors)
    parts = [x for x in tensors if not (x.ndim == 1 and isinstance(x.shape[0], int) and x.shape[0] == 0)]
    if not parts:
        return to_dtype(p, tensors[0], dtype)
    parts = [to_dtype(p, x, dtype) for x in parts]
    return parts[0] if len(parts) == 1 else p.concat(tuple(parts), norm_dim(dim, parts[0].ndim))


@decomposition("aten.block_diag.default")
def block_diag(p: Any, tensors: Sequence[Value]) -> Value:
    """Matrices along the diagonal, 0 elsewhere; a vector is a row."""
    dtype = result_dtype(*tensors)
    blocks = [p.reshape(to_dtype(p, x, dtype), (1,) * (2 - x.ndim) + tuple(x.shape)) for x in tensors]
    columns = sum(block.shape[1] for block in blocks)
    zero = number(0, dtype)
    left: Size = 0
    rows = []
    for block in blocks:
        width = block.shape[1]
        rows.append(p.pad(block, zero, (0, left), (0, columns - left - width)))
        left = left + width
    return rows[0] if len(rows) == 1 else p.concat(tuple(rows), 0)


@decomposition("aten.stack.default")
def stack(p: Any, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Join along a new dimension."""
    at = norm_dim(dim, tensors[0].ndim + 1)
    return cat(p, [unsqueeze(p, x, at) for x in tensors], at)


@decomposition("aten.repeat.default")
def repeat(p: Any, self: Value, repeats: Sequence[Size]) -> Value:
    """The whole tensor repeated along each dimension."""
    lead = len(repeats) - self.ndim
    shape = (1,) * lead + tuple(self.shape)
    wide: list[Size] = []
    dims: list[int] = []
    for i, (times, size) in enumerate(zip(repeats, shape, strict=True)):
        wide += [times, size]
        if i >= lead:
            dims.append(2 * i + 1)
    out = p.broadcast(self, tuple(wide), tuple(dims))
    return reshaped(p, out, tuple(n * s for n, s in zip(repeats, shape, strict=True)))


@decomposition("aten.repeat_interleave.self_int")
def repeat_interleave(
    p: Any, self: Value, repeats: Size, dim: int | None = None, *, output_size: Size | None = None
) -> Value:
    """Each element repeated in place along a dimension."""
    x = reshaped(p, self, (numel(self),)) if dim is None or self.ndim == 0 else self
    at = norm_dim(0 if dim is None else dim, x.ndim)
    wide = (*x.shape[: at + 1], repeats, *x.shape[at + 1 :])
    out = p.broadcast(x, wide, tuple(i for i in range(x.ndim + 1) if i != at + 1))
    return reshaped(p, out, (*x.shape[:at], x.shape[at] * repeats, *x.shape[at + 1 :]))


@decomposition("aten.flip.default")
def flip(p: Any, self: Value, dims: Sequence[int]) -> Value:
    """Reverse the order along dimensions."""
    if self.ndim == 0 or not dims:
        return self
    return p.flip(self, tuple(sorted(norm_dim(d, self.ndim) for d in dims)))


@decomposition("aten.roll.default")
def roll(p: Any, self: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Value:
    """Shift cyclically along dimensions (of the flattened tensor when none is given)."""
    if any(isinstance(size, int) and size == 0 for size in self.shape):
        return self  # eager looks at the dimensions only where there is something to shift
    if not dims:
        return reshaped(p, roll(p, reshaped(p, self, (-1,)), shifts, (0,)), self.shape)
    x = self
    for shift, d in zip(shifts, dims, strict=True):
        dim = norm_dim(d, x.ndim)
        size = x.shape[dim]
        if isinstance(size, int) and size == 0:
            continue
        at = (size - shift) % size
        if isinstance(at, int) and at == 0:
            continue
        x = p.concat((slice_dim(p, x, dim, at, size), slice_dim(p, x, dim, 0, at)), dim)
    return x


@decomposition("aten.rot90.default")
def rot90(p: Any, self: Value, k: int = 1, dims: Sequence[int] = (0, 1)) -> Value:
    """Rotate by k quarter turns in a plane."""
    a, b = (norm_dim(d, self.ndim) for d in dims)
    turns = k % 4
    if turns == 0:
        return self
    if turns == 2:
        return flip(p, self, (a, b))
    return swapped(p, flip(p, self, (b if turns == 1 else a,)), a, b)


# ---- writing into a part --------------------------------------------------------------------------------


@decomposition("aten.slice_scatter.default")
def slice_scatter(
    p: Any,
    self: Value,
    src: Value,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: int = 1,
) -> Value:
    """self with self[..., start:end:step, ...] replaced by src."""
    dim = norm_dim(dim, self.ndim)
    size = self.shape[dim]
    low, high = slice_bounds(size, start, end)
    src = to_dtype(p, src, self.dtype)
    if step == 1:
        src = expand(p, src, (*self.shape[:dim], high - low, *self.shape[dim + 1 :]))
        if isinstance(low, int) and low == 0 and (high is size or high == size):
            return src
        if all(isinstance(v, int) for v in (size, low, high)):
            parts = [slice_dim(p, self, dim, 0, low), src, slice_dim(p, self, dim, high, size)]
            return p.concat(tuple(part for part in parts if part.shape[dim] != 0), dim) if low < high else self
        pads_low, pads_high = [0] * self.ndim, [0] * self.ndim
        pads_low[dim], pads_high[dim] = low, size - high
        wide = p.pad(src, _zero(self.dtype), tuple(pads_low), tuple(pads_high))
        at = iota_along(p, self.shape, dim, self.device)
        return p.where(p.logical_and(p.ge(at, low), p.lt(at, high)), wide, self)
    count = (high - low + step - 1) // step
    src = expand(p, src, (*self.shape[:dim], count, *self.shape[dim + 1 :]))
    return _every(p, self, src, dim, low, step)


def _every(p: Any, x: Value, src: Value, dim: int, low: Size, step: int) -> Value:
    """x with each `step`-th element along a dimension, from `low` on, replaced by src's: rows of `step` elements, each
    with one of them in the same column."""
    size, count = x.shape[dim], src.shape[dim]
    rows = (size + step - 1) // step
    before, column = low // step, low % step

    def padded(v: Value, low: Size, high: Size) -> Value:
        around = (0,) * x.ndim
        lows, highs = ((*around[:dim], n, *around[dim + 1 :]) for n in (low, high))
        return p.pad(v, _zero(v.dtype), lows, highs)

    shape = (*x.shape[:dim], rows, step, *x.shape[dim + 1 :])
    wide = reshaped(p, padded(x, 0, rows * step - size), shape)
    kept = tuple(d for d in range(len(shape)) if d != dim + 1)
    given = p.broadcast(padded(src, before, rows - before - count), shape, kept)
    row, at = iota_along(p, shape, dim, x.device), iota_along(p, shape, dim + 1, x.device)
    hit = p.logical_and(p.eq(at, column), p.logical_and(p.ge(row, before), p.lt(row, before + count)))
    flat = reshaped(p, p.where(hit, given, wide), (*x.shape[:dim], rows * step, *x.shape[dim + 1 :]))
    return slice_dim(p, flat, dim, 0, size)


def _zero(dtype: torch.dtype) -> Any:
    return 0.0 if dtype.is_floating_point else False if dtype == torch.bool else 0


def index_along(p: Any, x: Value, at: Value, dim: int) -> Value:
    """x[..., at, ...]: a one-dimensional index along one dimension, which stays in its place."""
    out = p.index(x, (at,), (dim,))
    return permuted(p, out, (*range(1, dim + 1), 0, *range(dim + 1, x.ndim)))


@decomposition("aten.select_scatter.default")
def select_scatter(p: Any, self: Value, src: Value, dim: int, index: Size) -> Value:
    """self with self[..., index, ...] replaced by src."""
    dim = norm_dim(dim, self.ndim)
    at = index + self.shape[dim] if index < 0 else index
    wide = expand(p, unsqueeze(p, to_dtype(p, src, self.dtype), dim), self.shape)
    return p.where(p.eq(iota_along(p, self.shape, dim, self.device), at), wide, self)


@decomposition("aten.diagonal_scatter.default")
def diagonal_scatter(p: Any, self: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """self with a diagonal replaced by src."""
    d1, d2 = norm_dim(dim1, self.ndim), norm_dim(dim2, self.ndim)
    length, down, right = diagonal_extent(self.shape[d1], self.shape[d2], offset)
    rows = p.iota(length, down, 1, torch.int64, self.device)
    cols = p.iota(length, right, 1, torch.int64, self.device)
    pairs = sorted(((d1, rows), (d2, cols)), key=lambda pair: pair[0])
    values = permuted(p, to_dtype(p, src, self.dtype), (src.ndim - 1, *range(src.ndim - 1)))
    return p.index_put(self, tuple(i for _, i in pairs), tuple(d for d, _ in pairs), values, False)


@decomposition("aten.diag_embed.default")
def diag_embed(p: Any, self: Value, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Value:
    """A tensor whose diagonals of two new dimensions are self's last dimension, 0 elsewhere."""
    ndim = self.ndim + 1
    d1, d2 = norm_dim(dim1, ndim), norm_dim(dim2, ndim)
    n = self.shape[-1] + abs(offset)
    at_row = (offset < 0) or offset == 0
    low = abs(offset)
    pads = [0] * self.ndim
    pads[-1] = low
    zeros = (0,) * self.ndim
    # Element (i, j) of the diagonal takes self[i] or self[j], whichever runs from 0.
    line = p.pad(self, _zero(self.dtype), zeros, tuple(pads))
    shape = (*self.shape[:-1], n, n)
    lead = tuple(range(self.ndim - 1))
    spread_ = p.broadcast(line, shape, (*lead, self.ndim if at_row and offset < 0 else self.ndim - 1))
    rows = iota_along(p, shape, self.ndim - 1, self.device)
    cols = iota_along(p, shape, self.ndim, self.device)
    out = p.where(p.eq(p.sub(cols, rows), offset), spread_, _zero(self.dtype))
    order: list[int] = list(lead)
    for place, dim in sorted(((d1, self.ndim - 1), (d2, self.ndim))):
        order.insert(place, dim)
    return permuted(p, out, order)
