"""Gathering, scattering and advanced indexing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prims.decomp.common import (
    Size,
    Value,
    broadcast_shapes,
    element,
    expand,
    full_like,
    iota_along,
    is_empty,
    is_integral,
    is_value,
    norm_dim,
    number,
    numel,
    opmath,
    prod,
    required,
    same_shape,
    select,
    to_dtype,
    unsupported,
)
from prims.decomp.registry import decomposition
from prims.decomp.views import index_along, permuted, reshaped


def _integer(p: Any, index: Value) -> Value:
    return to_dtype(p, index, torch.int64)


def _from_the_start(p: Any, index: Value, extent: Size) -> Value:
    """Indices that do not count from the end: a negative one is as wrong as one that is too large."""
    return p.where(p.lt(index, 0), extent, index)


def _at_least_1d(p: Any, x: Value) -> Value:
    return x if x.ndim else p.reshape(x, (1,))


@decomposition("aten.embedding.default")
def embedding(
    p: Any,
    weight: Value,
    indices: Value,
    padding_idx: Size = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:
    """Rows of a table."""
    return p.index(weight, (_from_the_start(p, indices, weight.shape[0]),), (0,))


@decomposition("aten.index_select.default")
def index_select(p: Any, self: Value, dim: int, index: Value) -> Value:
    """self[..., index, ...] along one dimension."""
    index = _at_least_1d(p, index)
    if self.ndim == 0:
        return p.reshape(p.index(p.reshape(self, (1,)), (index,), (0,)), ())
    dim = norm_dim(dim, self.ndim)
    return index_along(p, self, _from_the_start(p, index, self.shape[dim]), dim)


@decomposition("aten.gather.default")
def gather(p: Any, self: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    """out[i][j][k] = self[index[i][j][k]][j][k] (for dim 0)."""
    if is_empty(index):
        return p.full(tuple(index.shape), number(0, self.dtype), self.dtype, self.device)
    if self.ndim == 0 or index.ndim == 0:
        x, at = _at_least_1d(p, self), _at_least_1d(p, index)
        return reshaped(p, p.gather(x, _integer(p, at), 0), index.shape)
    return p.gather(self, _integer(p, index), norm_dim(dim, self.ndim))


@decomposition("aten.take_along_dim.default")
def take_along_dim(p: Any, self: Value, indices: Value, dim: int | None = None) -> Value:
    """gather() with broadcasting."""
    if dim is None:
        return p.gather(reshaped(p, self, (numel(self),)), reshaped(p, indices, (numel(indices),)), 0)
    dim = norm_dim(dim, self.ndim)

    def without(shape: Sequence[Size], size: Size) -> tuple[Size, ...]:
        return (*shape[:dim], size, *shape[dim + 1 :])

    common = broadcast_shapes(without(self.shape, 1), without(indices.shape, 1))
    x = expand(p, self, without(common, self.shape[dim]))
    return p.gather(x, _integer(p, expand(p, indices, without(common, indices.shape[dim]))), dim)


@decomposition("aten.take.default")
def take(p: Any, self: Value, index: Value) -> Value:
    """Elements of the flattened tensor."""
    return p.index(reshaped(p, self, (numel(self),)), (_integer(p, index),), (0,))


# ---- advanced indexing ----------------------------------------------------------------------------------


def _indices(p: Any, self: Value, indices: Sequence[Value | None]) -> tuple[tuple[Value, ...], tuple[int, ...]]:
    """Equal-shaped integer indices, and the dimensions that they index."""
    found = [(d, i) for d, i in enumerate(indices) if i is not None]
    if not found:
        raise unsupported("indexing without an index")
    if any(i.dtype in (torch.bool, torch.uint8) for _, i in found):
        raise unsupported("indexing with a mask: how many elements it takes depends on data")
    shape = broadcast_shapes(*(i.shape for _, i in found))
    return tuple(expand(p, i, shape) for _, i in found), tuple(d for d, _ in found)


def _adjacent(dims: Sequence[int]) -> bool:
    return dims[-1] - dims[0] + 1 == len(dims)


def _index_order(ndim: int, k: int, dims: Sequence[int]) -> tuple[int, ...]:
    """Permutation that puts the k index dimensions (first in a value of rank `ndim`) where torch has them:
    at the first indexed dimension where the indexed ones are adjacent, else first."""
    at = dims[0] if _adjacent(dims) else 0
    rest = range(k, ndim)
    return (*rest[:at], *range(k), *rest[at:])


@decomposition("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(p: Any, self: Value, indices: Sequence[Value | None]) -> Value:
    """self[indices], None standing for a whole dimension."""
    if all(i is None for i in indices):
        return self
    at, dims = _indices(p, self, indices)
    out = p.index(self, at, dims)
    return permuted(p, out, _index_order(out.ndim, at[0].ndim, dims))


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


@decomposition("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(p: Any, self: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False) -> Value:
    """self with self[indices] set to (or increased by) values."""
    found = [i for i in indices if i is not None]
    if len(found) == 1 and found[0].dtype == torch.bool and indices[0] is not None:
        value = _one_row(p, values, self.ndim - found[0].ndim)
        if value is not None:
            return _masked_put(p, self, found[0], value, accumulate)
    # Not on a GPU, where another number of values than eager takes would end the process's use of it.
    in_order = self.device.type == "cpu" and not is_empty(self) and not is_empty(values)
    if len(found) == 1 and found[0].dtype == torch.bool and in_order:
        dim = next(d for d, i in enumerate(indices) if i is not None)
        return _put_in_order(p, self, found[0], dim, values, accumulate)
    at, dims = _indices(p, self, indices)
    k = at[0].ndim
    rest = tuple(s for d, s in enumerate(self.shape) if d not in dims)
    order = _index_order(k + len(rest), k, dims)
    plain = (*at[0].shape, *rest)
    wide = expand(p, to_dtype(p, values, self.dtype), tuple(plain[d] for d in order))
    wide = permuted(p, wide, _inverse(order))
    return _put(p, self, at, dims, wide, accumulate)


def _put(p: Any, x: Value, at: Sequence[Value], dims: Sequence[int], values: Value, accumulate: bool) -> Value:
    if accumulate and x.dtype == torch.bool:
        raise unsupported("index_put that accumulates bool")
    compute = opmath(x.dtype) if accumulate else x.dtype
    x_, v = to_dtype(p, x, compute), to_dtype(p, values, compute)
    return to_dtype(p, p.index_put(x_, tuple(at), tuple(dims), v, accumulate), x.dtype)


def _one_row(p: Any, values: Value, rest: int) -> Value | None:
    """Values that are the same for every index: at most `rest` dimensions, or one more of size 1."""
    if values.ndim <= rest:
        return values
    first = values.shape[0]
    if values.ndim == rest + 1 and isinstance(first, int) and first == 1:
        return p.reshape(values, tuple(values.shape[1:]))
    return None


def _masked_put(p: Any, self: Value, mask: Value, value: Value, accumulate: bool, dim: int = 0) -> Value:
    """index_put with a mask and the same values everywhere has a static shape: it is a where()."""
    lead = p.broadcast(mask, tuple(self.shape), tuple(range(dim, dim + mask.ndim)))
    fill = expand(p, to_dtype(p, value, self.dtype), self.shape)
    if accumulate:
        fill = p.logical_or(self, fill) if self.dtype == torch.bool else p.add(self, fill)
    return p.where(lead, fill, self)


def _put_in_order(p: Any, self: Value, mask: Value, dim: int, values: Value, accumulate: bool) -> Value:
    """index_put with a mask from dimension `dim` on, whose elements take one value after another.

    The number of elements has to be the number of values: other indices are out of range, which stops the kernel.
    """
    rest = self.shape[dim + mask.ndim :]
    count = values.shape[-len(rest) - 1] if values.ndim > len(rest) else 1
    size = prod(mask.shape)
    x = reshaped(p, self, (*self.shape[:dim], size, *rest))
    taken = reshaped(p, mask, (size,))
    if isinstance(count, int) and count == 1:
        return reshaped(p, _masked_put(p, x, taken, values, accumulate, dim), self.shape)
    seen = p.cumsum(p.convert(taken, torch.int64), 0)
    total = p.broadcast(select(p, seen, 0, size - 1), (size,), ())
    at = p.where(p.eq(total, count), p.maximum(p.sub(seen, 1), 0), count)
    wide = expand(p, to_dtype(p, values, self.dtype), (*self.shape[:dim], count, *rest))
    new = index_along(p, wide, at, dim)
    if accumulate:
        new = p.logical_or(x, new) if self.dtype == torch.bool else p.add(x, new)
    out = p.where(p.broadcast(taken, tuple(x.shape), (dim,)), new, x)
    return reshaped(p, out, self.shape)


# ---- scattering -----------------------------------------------------------------------------------------


def scattered(p: Any, self: Value, dim: int, index: Value, src: Any, reduce: str) -> Value:
    """scatter() of a tensor or a number; index may be smaller than src."""
    if is_empty(index):
        return self
    at = _integer(p, index)
    x = self
    if x.ndim == 0:
        x = p.reshape(x, (1,))
    at = _at_least_1d(p, at)
    dim = norm_dim(dim, x.ndim)
    if is_value(src):
        src = to_dtype(p, _at_least_1d(p, src), self.dtype)
        if not same_shape(src.shape, at.shape):
            src = p.slice(src, (0,) * src.ndim, tuple(at.shape), (1,) * src.ndim)
    else:
        src = p.full(tuple(at.shape), number(src, self.dtype), self.dtype, self.device)
    compute = self.dtype if reduce in ("set", "max", "min") else opmath(self.dtype)
    if compute == torch.bool and reduce != "set":
        raise unsupported("scatter that combines bool")
    out = p.scatter(to_dtype(p, x, compute), at, to_dtype(p, src, compute), dim, reduce)
    return reshaped(p, to_dtype(p, out, self.dtype), self.shape)


@decomposition("aten.scatter.src")
def scatter_src(p: Any, self: Value, dim: int, index: Value, src: Value) -> Value:
    """self with self[index[i][j]][j] = src[i][j] (for dim 0)."""
    return scattered(p, self, dim, index, src, "set")


@decomposition("aten.scatter.value")
def scatter_value(p: Any, self: Value, dim: int, index: Value, value: Any) -> Value:
    """The same with one number."""
    return scattered(p, self, dim, index, value, "set")


@decomposition("aten.scatter_add.default")
def scatter_add(p: Any, self: Value, dim: int, index: Value, src: Value) -> Value:
    """self with self[index[i][j]][j] += src[i][j] (for dim 0)."""
    return scattered(p, self, dim, index, src, "add")


_REDUCE = {"add": "add", "multiply": "mul"}


@decomposition("aten.scatter.reduce")
def scatter_src_reduce(p: Any, self: Value, dim: int, index: Value, src: Value, *, reduce: str) -> Value:
    """scatter with "add" or "multiply"."""
    return scattered(p, self, dim, index, src, _REDUCE[reduce])


@decomposition("aten.scatter.value_reduce")
def scatter_value_reduce(p: Any, self: Value, dim: int, index: Value, value: Any, *, reduce: str) -> Value:
    """scatter of a number with "add" or "multiply"."""
    return scattered(p, self, dim, index, value, _REDUCE[reduce])


_START = {"sum": 0, "mean": 0, "prod": 1}
_KIND = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}


def _least(dtype: torch.dtype, reduce: str) -> Any:
    if reduce in _START:
        return _START[reduce]
    if dtype.is_floating_point:
        return float("-inf") if reduce == "amax" else float("inf")
    limits = torch.iinfo(dtype)
    return limits.min if reduce == "amax" else limits.max


@decomposition("aten.scatter_reduce.two")
def scatter_reduce(
    p: Any, self: Value, dim: int, index: Value, src: Value, reduce: str, *, include_self: bool = True
) -> Value:
    """scatter with "sum", "prod", "mean", "amax" or "amin", counting self's own elements or not."""
    if self.dtype == torch.bool:
        raise unsupported("scatter_reduce of bool")
    start = self
    ones = full_like(p, self, 1, torch.int64)
    touched = None
    if not include_self:
        hit = scattered(p, full_like(p, ones, 0), dim, index, 1, "set")
        touched = p.ne(hit, 0)
        start = p.where(touched, number(_least(self.dtype, reduce), self.dtype), self)
    out = scattered(p, start, dim, index, src, _KIND[reduce])
    if reduce == "mean":
        base = ones if touched is None else full_like(p, ones, 0)
        counts = p.maximum(scattered(p, base, dim, index, 1, "add"), 1)
        if is_integral(self.dtype):
            return p.floor_div(out, to_dtype(p, counts, out.dtype))
        compute = opmath(out.dtype)
        out = to_dtype(p, p.div(to_dtype(p, out, compute), to_dtype(p, counts, compute)), out.dtype)
    return out


def _along_index(p: Any, self: Value, dim: int, index: Value) -> tuple[Value, int]:
    """A one-dimensional index over a whole dimension, and that dimension."""
    return _integer(p, _at_least_1d(p, index)), norm_dim(dim, self.ndim)


def _index_update(p: Any, self: Value, dim: int, index: Value, source: Value, accumulate: bool) -> Value:
    if self.ndim == 0:
        out = _index_update(p, p.reshape(self, (1,)), 0, index, _at_least_1d(p, source), accumulate)
        return p.reshape(out, ())
    at, dim = _along_index(p, self, dim, index)
    source = expand(p, source, (*self.shape[:dim], at.shape[0], *self.shape[dim + 1 :]))
    values = permuted(p, source, (dim, *(d for d in range(self.ndim) if d != dim)))
    return _put(p, self, (at,), (dim,), to_dtype(p, values, self.dtype), accumulate)


def _none_from_the_end(p: Any, self: Value, dim: int, index: Value) -> Value:
    """Places along a dimension that the operator counts from the start alone."""
    return _from_the_start(p, index, self.shape[norm_dim(dim, self.ndim)] if self.ndim else 1)


@decomposition("aten.index_add.default")
def index_add(p: Any, self: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1) -> Value:
    """self with self[..., index, ...] += alpha * source"""
    if alpha != 1:
        source = p.mul(source, number(alpha, source.dtype))
    return _index_update(p, self, dim, _none_from_the_end(p, self, dim, index), source, True)


@decomposition("aten.index_copy.default")
def index_copy(p: Any, self: Value, dim: int, index: Value, source: Value) -> Value:
    """self with self[..., index, ...] = source"""
    return _index_update(p, self, dim, _none_from_the_end(p, self, dim, index), source, False)


@decomposition("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def index_fill(p: Any, self: Value, dim: int, index: Value, value: Any) -> Value:
    """self with self[..., index, ...] = value"""
    fill = to_dtype(p, value, self.dtype) if is_value(value) else full_like_0d(p, self, value)
    return _index_update(p, self, dim, index, fill, False)


def full_like_0d(p: Any, x: Value, value: Any) -> Value:
    """A number as a 0-dim value of x's dtype."""
    return p.full((), element(value, x.dtype), x.dtype, x.device)


@decomposition("aten.masked_scatter.default")
def masked_scatter(p: Any, self: Value, mask: Value, source: Value) -> Value:
    """self with its masked elements taken, in order, from source."""
    shape = broadcast_shapes(self.shape, mask.shape)
    x = reshaped(p, expand(p, self, shape), (prod(shape),))
    if is_empty(x):
        return reshaped(p, x, shape)
    m = reshaped(p, expand(p, mask, shape), (prod(shape),))
    if is_empty(source):
        if self.dtype == torch.bool:
            raise unsupported("masked_scatter of no bools, of which the mask may ask for some")
        return reshaped(p, required(p, x, p.logical_not(m)), shape)
    at = p.maximum(p.sub(p.cumsum(to_dtype(p, m, torch.int64), 0), 1), 0)
    taken = p.index(reshaped(p, source, (numel(source),)), (at,), (0,))
    return reshaped(p, p.where(m, taken, x), shape)


@decomposition("aten.one_hot.default", "quintet.one_hot.default")
def one_hot(p: Any, self: Value, num_classes: int = -1) -> Value:
    """1 at each class index."""
    if num_classes < 0:
        raise unsupported("one_hot without a number of classes: its size depends on data")
    shape = (*self.shape, num_classes)
    classes = iota_along(p, shape, self.ndim, self.device)
    chosen = _integer(p, self)
    exists = p.logical_and(p.ge(chosen, 0), p.lt(chosen, num_classes))
    wide = p.broadcast(required(p, chosen, exists), shape, tuple(range(self.ndim)))
    return p.convert(p.eq(wide, classes), torch.int64)


# ---- backward -------------------------------------------------------------------------------------------


@decomposition("aten.embedding_dense_backward.default")
def embedding_dense_backward(
    p: Any, grad_output: Value, indices: Value, num_weights: Size, padding_idx: Size, scale_grad_by_freq: bool
) -> Value:
    """The sum, per table row, of the gradients of its uses; `padding_idx` gets none."""
    width = grad_output.shape[-1]
    n = numel(indices)
    at = reshaped(p, _integer(p, indices), (n,))
    grad = reshaped(p, to_dtype(p, grad_output, opmath(grad_output.dtype)), (n, width))
    if scale_grad_by_freq:
        ones = p.full((n,), 1.0, grad.dtype, grad.device)
        zeros = p.full((num_weights,), 0.0, grad.dtype, grad.device)
        uses = p.index(p.scatter(zeros, at, ones, 0, "add"), (at,), (0,))
        grad = p.div(grad, p.broadcast(uses, (n, width), (0,)))
    if not (isinstance(padding_idx, int) and padding_idx < 0):
        padded = p.broadcast(p.eq(at, padding_idx), (n, width), (0,))
        grad = p.where(padded, 0.0, grad)
    table = p.full((num_weights, width), 0.0, grad.dtype, grad.device)
    return to_dtype(p, p.index_put(table, (at,), (0,), grad, True), grad_output.dtype)


@decomposition("aten.value_selecting_reduction_backward.default")
def value_selecting_backward(
    p: Any, grad: Value, dim: int, indices: Value, sizes: Sequence[Size], keepdim: bool
) -> Value:
    """The gradient of max(dim) and its like: grad at the chosen index, 0 elsewhere."""
    if not sizes:
        return grad
    dim = norm_dim(dim, len(sizes))
    shape = (*sizes[:dim], 1, *sizes[dim + 1 :])
    grad, at = p.reshape(grad, shape), p.reshape(indices, shape)
    chosen = p.eq(iota_along(p, sizes, dim, grad.device), expand(p, at, sizes))
    return p.where(chosen, expand(p, grad, sizes), number(0, grad.dtype))
