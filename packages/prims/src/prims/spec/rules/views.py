"""Views: new sizes, strides and offset over the same storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prims.errors import DataDependentError
from prims.spec import expr as E
from prims.spec import layout
from prims.spec.infer import meta_rule
from prims.spec.promote import complex_dtype, real_dtype
from prims.spec.sym import Sym, sym_max, sym_min
from prims.spec.tensorspec import TensorSpec

Size = Any  # int | Sym


def view_of(x: TensorSpec, shape: Sequence[Size], strides: Sequence[Size], offset: Size | None = None) -> TensorSpec:
    """A view with that layout."""
    return TensorSpec(shape, x.dtype, x.device, strides, x.storage_offset if offset is None else offset)


def wrap_dim(dim: int, ndim: int) -> int:
    """A nonnegative dimension; IndexError as PyTorch's."""
    bound = max(ndim, 1)
    if not -bound <= dim < bound:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-bound}, {bound - 1}], but got {dim})")
    return dim % bound


def numel(shape: Sequence[Size]) -> Size:
    n: Size = 1
    for s in shape:
        n = n * s
    return n


def _told(size: Size) -> Size:
    """A size, as its number where it is a negative one, of which -1 stands for another size."""
    return int(size) if layout.is_surely_less(size, 0) else size


def infer_size(shape: Sequence[Size], count: Size) -> tuple[Size, ...]:
    """``shape`` with its one -1 solved for, which may be the value of a symbol too.

    Raises:
        RuntimeError: a size is negative, or it has other numbers of elements than ``count``.
    """
    shape = [_told(s) for s in shape]
    for s in shape:
        if type(s) is int and s < -1:
            raise RuntimeError(f"invalid shape dimension {s}")
    unknown = [i for i, s in enumerate(shape) if type(s) is int and s == -1]
    if not unknown:
        total = numel(shape)
        if total is not count and total != count:
            raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {count}")
        return tuple(shape)
    if len(unknown) > 1:
        raise RuntimeError("only one dimension can be inferred")
    known = numel([s for i, s in enumerate(shape) if i != unknown[0]])
    if _is_none(known):
        raise RuntimeError(
            f"cannot reshape tensor of 0 elements into shape {list(shape)} because the unspecified dimension size -1 "
            "can be any value and is ambiguous"
        )
    rest = count % known
    if not (type(rest) is int and rest == 0) and rest != 0:
        raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {count}")
    out = list(shape)
    out[unknown[0]] = count // known
    return tuple(out)


def _is_none(s: Size) -> bool:
    """Whether a number of elements is 0: asked, and guarded, where ranges do not tell; only the data may not."""
    try:
        return bool(s == 0)
    except DataDependentError:
        return False


def _is_one(s: Size) -> bool:
    return type(s) is int and s == 1 or type(s) is not int and bool(s == 1)


def view_strides(x: TensorSpec, shape: Sequence[Size]) -> tuple[Size, ...] | None:
    """Strides that read ``x`` as ``shape`` without a copy, or None (``computeStride`` of ATen's TensorUtils).

    The old dimensions are grouped, from the last, into runs that are dense among themselves; each new dimension
    must fall within one run.
    """
    count = numel(x.shape)
    if type(count) is int and count == 0:
        same = layout.known_same(tuple(shape), x.shape)
        return x.strides if same else layout.contiguous_strides(tuple(shape))
    if not x.shape:
        return (1,) * len(shape)
    if layout.known_same(x.strides, layout.contiguous_strides(x.shape)):  # those of dimensions of one as well
        return layout.contiguous_strides(tuple(shape))
    if any(type(n) is not int and (n.hint is None or n.ctx.may_be_one(n.expr)) for n in x.shape):
        found = _runs(x, shape, _Known)
        if found is not None:
            return found
    return _runs(x, shape, _Asked)


def known_view(x: TensorSpec, shape: Sequence[Size]) -> bool:
    """Whether ``x`` has a size that may be one, and is read as ``shape`` without a copy whatever its sizes."""
    if not any(type(n) is not int and n.ctx.may_be_one(n.expr) for n in x.shape):
        return False
    new = infer_size(shape, numel(x.shape))
    if layout.known_same(x.strides, layout.contiguous_strides(x.shape)):
        return True
    return _runs(x, new, _Known) is not None


def _same(a: Size, b: Size) -> bool:
    return a is b or bool(a == b)


class _Asked:
    """Answers about sizes, which may be guards."""

    same = staticmethod(_same)

    @staticmethod
    def takes(taken: Size, size: Size, run: Size) -> bool:
        return not _same(taken, run) and taken < run or _is_one(size)

    is_one = staticmethod(_is_one)


class _Known:
    """What is known about sizes. Strides that follow from it are right also for a size of one, whose own stride may be
    another than PyTorch's, and reaches no element."""

    same = staticmethod(layout.known_equal)

    @staticmethod
    def takes(taken: Size, size: Size, run: Size) -> bool:
        with_it = taken * size
        if type(with_it) is int and with_it == 0:
            return False
        return layout.divides(with_it, run)

    @staticmethod
    def is_one(s: Size) -> bool:
        return layout.known_equal(s, 1)


def _runs(x: TensorSpec, shape: Sequence[Size], ask: type[_Asked] | type[_Known]) -> tuple[Size, ...] | None:
    strides: list[Size] = [1] * len(shape)
    view_dim = len(shape) - 1
    base = x.strides[-1]
    run: Size = 1  # elements in the current run of old dimensions
    taken: Size = 1  # elements in the new dimensions matched to it
    for dim in range(x.ndim - 1, -1, -1):
        run = run * x.shape[dim]
        if dim > 0 and (ask.is_one(x.shape[dim - 1]) or ask.same(x.strides[dim - 1], run * base)):
            continue
        while view_dim >= 0 and ask.takes(taken, shape[view_dim], run):
            strides[view_dim] = taken * base
            taken = taken * shape[view_dim]
            view_dim -= 1
        if not ask.same(taken, run):
            return None
        if dim > 0:
            base = x.strides[dim - 1]
            run, taken = 1, 1
    return tuple(strides) if view_dim < 0 else None


@meta_rule("aten.view.default", "aten._unsafe_view.default")
def view(x: TensorSpec, shape: Sequence[Size]) -> TensorSpec:
    new = infer_size(shape, numel(x.shape))
    strides = view_strides(x, new)
    if strides is None:
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one dimension spans across "
            "two contiguous subspaces). Use .reshape(...) instead."
        )
    return view_of(x, new, strides)


@meta_rule("aten._reshape_alias.default")
def reshape_alias(x: TensorSpec, shape: Sequence[Size], strides: Sequence[Size]) -> TensorSpec:
    return view_of(x, shape, strides)


@meta_rule("aten.reshape.default", "aten._reshape_copy.default")
def reshape(x: TensorSpec, shape: Sequence[Size]) -> TensorSpec:
    new = infer_size(shape, numel(x.shape))
    strides = view_strides(x, new)
    return TensorSpec(new, x.dtype, x.device) if strides is None else view_of(x, new, strides)


@meta_rule("aten.view.dtype")
def view_dtype(x: TensorSpec, dtype: torch.dtype) -> TensorSpec:
    old, new = x.dtype.itemsize, dtype.itemsize
    if old == new:
        return TensorSpec(x.shape, dtype, x.device, x.strides, x.storage_offset)
    if old > new:
        k = old // new
        strides = (*(s * k for s in x.strides[:-1]), 1)
        return TensorSpec((*x.shape[:-1], x.shape[-1] * k), dtype, x.device, strides, x.storage_offset * k)
    k = new // old
    strides = (*(s // k for s in x.strides[:-1]), 1)
    return TensorSpec((*x.shape[:-1], x.shape[-1] // k), dtype, x.device, strides, x.storage_offset // k)


@meta_rule("aten.alias.default", "aten.detach.default", "aten.lift_fresh.default", "aten._fw_primal.default")
def alias(x: TensorSpec, *args: Any) -> TensorSpec:
    return x


@meta_rule("aten._conj.default", "aten._neg_view.default", "aten.conj.default", "aten.resolve_conj.default")
def conj(x: TensorSpec | complex) -> TensorSpec:
    if not isinstance(x, TensorSpec):  # a Python number of the program's, in the derivative of a product with it
        return TensorSpec((), torch.tensor(x).dtype, torch.device("cpu"), ())
    return x


@meta_rule("aten.resolve_neg.default")
def resolve_neg(x: TensorSpec) -> TensorSpec:
    return x


@meta_rule("aten.expand.default")
def expand(x: TensorSpec, shape: Sequence[Size], *, implicit: bool = False) -> TensorSpec:
    offset = len(shape) - x.ndim
    if offset < 0:
        raise RuntimeError(
            f"expand({x}, size={list(shape)}): the number of sizes provided ({len(shape)}) must be greater or equal to "
            f"the number of dimensions in the tensor ({x.ndim})"
        )
    shape = [_told(s) for s in shape]
    if any(type(s) is int and (s < 0 and i < offset or s < -1) for i, s in enumerate(shape)):
        raise RuntimeError(f"expand({x}, size={shape}): a size is negative, or -1 where there is none to be kept")
    sizes, strides = list(shape), list((0,) * offset + x.strides)
    for i, (s, stride) in enumerate(zip(x.shape, x.strides, strict=True)):
        i += offset
        target = shape[i]
        if type(target) is int and target == -1:
            sizes[i] = s
        elif type(s) is int and s == 1 and type(target) is not int and target.ctx.may_be_one(target.expr):
            stride = 0  # whether or not it is one: then no other element is reached
        elif s is not target and s != target:
            if not _is_one(s):
                raise RuntimeError(
                    f"The expanded size of the tensor ({target}) must match the existing size ({s}) at "
                    f"non-singleton dimension {i}.  Target sizes: {list(shape)}.  Tensor sizes: {list(x.shape)}"
                )
            stride = 0
        strides[i] = stride
    for i in reversed(range(offset if x.ndim else 0)):  # as if it had been there: over all that is behind it
        if type(sizes[i]) is int and sizes[i] == 1:
            strides[i] = sizes[i + 1] * strides[i + 1]
    return view_of(x, sizes, strides)


@meta_rule("aten.permute.default")
def permute(x: TensorSpec, dims: Sequence[int]) -> TensorSpec:
    if len(dims) != x.ndim:
        raise RuntimeError(
            f"permute(sparse_coo): number of dimensions in the tensor input does not match the length of the desired "
            f"ordering of dimensions i.e. input.dim() = {x.ndim} is not equal to len(dims) = {len(dims)}"
        )
    order = [wrap_dim(d, x.ndim) for d in dims]
    return view_of(x, [x.shape[d] for d in order], [x.strides[d] for d in order])


@meta_rule("aten.transpose.int", "aten.swapaxes.default", "aten.swapdims.default")
def transpose(x: TensorSpec, dim0: int, dim1: int) -> TensorSpec:
    if not x.shape:
        wrap_dim(dim0, 0), wrap_dim(dim1, 0)
        return x
    a, b = wrap_dim(dim0, x.ndim), wrap_dim(dim1, x.ndim)
    shape, strides = list(x.shape), list(x.strides)
    shape[a], shape[b] = shape[b], shape[a]
    strides[a], strides[b] = strides[b], strides[a]
    return view_of(x, shape, strides)


@meta_rule("aten.numpy_T.default")
def numpy_t(x: TensorSpec) -> TensorSpec:
    return view_of(x, x.shape[::-1], x.strides[::-1])


@meta_rule("aten.t.default")
def t(x: TensorSpec) -> TensorSpec:
    if x.ndim > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {x.ndim}D")
    return view_of(x, x.shape[::-1], x.strides[::-1])


@meta_rule("aten.squeeze.default")
def squeeze(x: TensorSpec) -> TensorSpec:
    return squeeze_dims(x, range(x.ndim))


@meta_rule("aten.squeeze.dim")
def squeeze_dim(x: TensorSpec, dim: int) -> TensorSpec:
    return squeeze_dims(x, (dim,))


@meta_rule("aten.squeeze.dims")
def squeeze_dims(x: TensorSpec, dims: Sequence[int]) -> TensorSpec:
    wanted = {wrap_dim(d, x.ndim) for d in dims}
    keep = [d for d in range(x.ndim) if d not in wanted or not _is_one(x.shape[d])]
    return view_of(x, [x.shape[d] for d in keep], [x.strides[d] for d in keep])


@meta_rule("aten.unsqueeze.default")
def unsqueeze(x: TensorSpec, dim: int) -> TensorSpec:
    d = wrap_dim(dim, x.ndim + 1)
    stride = x.shape[d] * x.strides[d] if d < x.ndim else 1
    return view_of(x, (*x.shape[:d], 1, *x.shape[d:]), (*x.strides[:d], stride, *x.strides[d:]))


@meta_rule("aten.select.int")
def select(x: TensorSpec, dim: int, index: Size) -> TensorSpec:
    if not x.shape:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    d = wrap_dim(dim, x.ndim)
    size = x.shape[d]
    if index >= size or index < -size:
        raise IndexError(f"select(): index {index} out of range for tensor of size {list(x.shape)} at dimension {d}")
    position = index + size if index < 0 else index
    return view_of(
        x,
        x.shape[:d] + x.shape[d + 1 :],
        x.strides[:d] + x.strides[d + 1 :],
        x.storage_offset + position * x.strides[d],
    )


def slice_bounds(size: Size, start: Size | None, stop: Size | None) -> tuple[Size, Size]:
    """``start, stop`` clipped to ``[0, size]`` as Python's slices do."""
    low: Size = 0 if start is None else start
    high: Size = size if stop is None else stop
    if any(map(is_told_by_data, (low, high, size))):
        low = _clipped(low, size)
        return low, size if stop is None else sym_max(_clipped(high, size), low)
    if type(low) is int:
        low = sym_max(low + size, 0) if low < 0 else low
    elif low is not size and low < 0:
        low = low + size if low + size >= 0 else 0
    if type(high) is int and high >= 9223372036854775807:
        high = size
    elif high is not size and high < 0:
        high = sym_max(high + size, 0)
    if not (type(low) is int and low == 0):
        low = size if low > size else low
    if high is not size:
        high = size if high > size else high
    if high is not size and high < low:
        high = low
    return low, high


def is_told_by_data(size: Size | None) -> bool:
    """Does a size depend on an unbacked symbol?"""
    return isinstance(size, Sym) and any(size.ctx.is_unbacked(name) for name in size.expr.free_symbols())


def _clipped(bound: Size, size: Size) -> Size:
    """A bound of a slice as a position, without a question about it."""
    if type(bound) is int and bound == 0 or bound is size:
        return bound
    if type(bound) is int:
        bound = bound if bound >= 0 else bound + size
    elif bound.ctx.statically_known(E.ge(bound.expr, 0)) is not True:
        ahead = bound + size
        ahead = E.const(ahead) if type(ahead) is int else ahead.expr
        bound = bound.ctx.make(E.ite(E.lt(bound.expr, 0), ahead, bound.expr))
    return sym_min(sym_max(bound, 0), size)


@meta_rule("aten.slice.Tensor")
def slice_(x: TensorSpec, dim: int = 0, start: Any = None, end: Any = None, step: Size = 1) -> TensorSpec:
    if not x.shape:
        raise IndexError("slice() cannot be applied to a 0-dim tensor.")
    if step <= 0:
        raise RuntimeError("slice step must be positive")
    d = wrap_dim(dim, x.ndim)
    low, high = slice_bounds(x.shape[d], start, end)
    length = high - low
    if not (type(step) is int and step == 1):
        length = (length + step - 1) // step
    shape, strides = list(x.shape), list(x.strides)
    shape[d] = length
    strides[d] = strides[d] * step
    return view_of(x, shape, strides, x.storage_offset + low * x.strides[d])


def narrow_at(x: TensorSpec, d: int, start: Size, length: Size) -> TensorSpec:
    """The part of dimension ``d`` from ``start``, ``length`` long."""
    shape = (*x.shape[:d], length, *x.shape[d + 1 :])
    return view_of(x, shape, x.strides, x.storage_offset + start * x.strides[d])


@meta_rule("aten.narrow.default")
def narrow(x: TensorSpec, dim: int, start: Size, length: Size) -> TensorSpec:
    d = wrap_dim(dim, x.ndim)
    if layout.is_surely_less(length, 0):
        raise RuntimeError(f"narrow(): the length is {length}, which must not be negative")
    return narrow_at(x, d, start + x.shape[d] if start < 0 else start, length)


@meta_rule("aten.split.Tensor")
def split(x: TensorSpec, split_size: Size, dim: int = 0) -> list[TensorSpec]:
    if x.ndim == 0:
        raise RuntimeError("split expects at least a 1-dimensional tensor")
    d = wrap_dim(dim, x.ndim)
    size = x.shape[d]
    if layout.is_surely_less(split_size, 0):
        raise RuntimeError(f"split expects split_size be non-negative, but got split_size={split_size}")
    if type(split_size) is int and split_size == 0:
        if size != 0:
            raise RuntimeError(f"split_size can only be 0 if dimension size is 0, but got dimension size of {size}")
        return [x]
    count = int(sym_max((size + split_size - 1) // split_size, 1))
    last = size - split_size * (count - 1)
    return [narrow_at(x, d, split_size * i, split_size if i < count - 1 else last) for i in range(count)]


@meta_rule("aten.split_with_sizes.default")
def split_with_sizes(x: TensorSpec, split_sizes: Sequence[Size], dim: int = 0) -> list[TensorSpec]:
    d = wrap_dim(dim, x.ndim)
    total: Size = 0
    parts = []
    for size in split_sizes:
        if layout.is_surely_less(size, 0):
            raise RuntimeError(f"split_with_sizes expects no negative size, but got split_sizes={list(split_sizes)}")
        parts.append(narrow_at(x, d, total, size))
        total = total + size
    if total != x.shape[d]:
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {x.shape[d]} (input tensor's size at dimension "
            f"{d}), but got split_sizes={list(split_sizes)}"
        )
    return parts


@meta_rule("aten.unsafe_split.Tensor")
def unsafe_split(x: TensorSpec, split_size: Size, dim: int = 0) -> list[TensorSpec]:
    return split(x, split_size, dim)


@meta_rule("aten.unsafe_split_with_sizes.default")
def unsafe_split_with_sizes(x: TensorSpec, split_sizes: Sequence[Size], dim: int = 0) -> list[TensorSpec]:
    return split_with_sizes(x, split_sizes, dim)


@meta_rule("aten.unbind.int")
def unbind(x: TensorSpec, dim: int = 0) -> list[TensorSpec]:
    d = wrap_dim(dim, x.ndim)
    return [select(x, d, i) for i in range(int(x.shape[d]))]


@meta_rule("aten.diagonal.default")
def diagonal(x: TensorSpec, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorSpec:
    a, b = wrap_dim(dim1, x.ndim), wrap_dim(dim2, x.ndim)
    if a == b:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    if offset >= 0:
        length = sym_max(sym_min(x.shape[a], x.shape[b] - offset), 0)
    else:
        length = sym_max(sym_min(x.shape[a] + offset, x.shape[b]), 0)
    start = x.storage_offset
    if not (type(length) is int and length == 0):
        start = start + (offset * x.strides[b] if offset >= 0 else -offset * x.strides[a])
    keep = [d for d in range(x.ndim) if d not in (a, b)]
    shape = [*(x.shape[d] for d in keep), length]
    return view_of(x, shape, [*(x.strides[d] for d in keep), x.strides[a] + x.strides[b]], start)


@meta_rule("aten.unfold.default")
def unfold(x: TensorSpec, dimension: int, size: Size, step: Size) -> TensorSpec:
    d = wrap_dim(dimension, x.ndim)
    extent = x.shape[d] if x.shape else 1
    if size > extent or size < 0 or step <= 0:
        raise RuntimeError(f"unfold: windows of {size}, {step} apart, in a dimension of size {extent}")
    if not x.shape:
        return view_of(x, (size,), (1,))
    count = (x.shape[d] - size) // step + 1
    shape = (*x.shape[:d], count, *x.shape[d + 1 :], size)
    strides = (*x.strides[:d], x.strides[d] * step, *x.strides[d + 1 :], x.strides[d])
    return view_of(x, shape, strides)


@meta_rule("aten.as_strided.default")
def as_strided(x: TensorSpec, size: Any, stride: Any, storage_offset: Size | None = None) -> TensorSpec:
    if any(layout.is_surely_less(step, 0) for step in stride):
        raise RuntimeError(f"as_strided: Negative strides are not supported at the moment, got strides: {list(stride)}")
    if type(storage_offset) is int and storage_offset < 0:
        raise RuntimeError(f"Tensor: invalid storage offset {storage_offset}")
    return view_of(x, size, stride, storage_offset)


@meta_rule("aten.view_as_real.default")
def view_as_real(x: TensorSpec) -> TensorSpec:
    strides = (*(s * 2 for s in x.strides), 1)
    return TensorSpec((*x.shape, 2), real_dtype(x.dtype), x.device, strides, x.storage_offset * 2)


@meta_rule("aten.view_as_complex.default")
def view_as_complex(x: TensorSpec) -> TensorSpec:
    if not x.shape or x.shape[-1] != 2:
        raise RuntimeError("Tensor must have a last dimension of size 2")
    strides = tuple(s // 2 for s in x.strides[:-1])
    return TensorSpec(x.shape[:-1], complex_dtype(x.dtype), x.device, strides, x.storage_offset // 2)


@meta_rule("aten.real.default")
def real(x: TensorSpec) -> TensorSpec:
    return select(view_as_real(x), x.ndim, 0) if x.dtype.is_complex else x


@meta_rule("aten.imag.default")
def imag(x: TensorSpec) -> TensorSpec:
    return select(view_as_real(x), x.ndim, 1)


@meta_rule("aten.movedim.intlist")
def movedim(x: TensorSpec, source: Sequence[int], destination: Sequence[int]) -> TensorSpec:
    order: list[int | None] = [None] * x.ndim
    moved = [wrap_dim(d, x.ndim) for d in source]
    for s, d in zip(moved, destination, strict=True):
        order[wrap_dim(d, x.ndim)] = s
    rest = iter(d for d in range(x.ndim) if d not in moved)
    return permute(x, [next(rest) if d is None else d for d in order])


@meta_rule("aten.resize_.default")
def resize_(x: TensorSpec, size: Sequence[Size], *, memory_format: Any = None) -> TensorSpec:
    if len(size) == x.ndim and all(a is b or a == b for a, b in zip(size, x.shape, strict=True)):
        return x
    strides = None
    if memory_format in (torch.channels_last, torch.channels_last_3d):
        strides = layout.channels_last_strides(tuple(size))
    return TensorSpec(size, x.dtype, x.device, strides, x.storage_offset)


@meta_rule("aten.resize_as_.default")
def resize_as_(x: TensorSpec, template: TensorSpec, *, memory_format: Any = None) -> TensorSpec:
    if memory_format is torch.preserve_format:
        return resize_(x, template.shape).replace(shape=template.shape, strides=template.strides)
    return resize_(x, template.shape, memory_format=memory_format)

@meta_rule("aten.set_.source_Tensor")
def set_(x: TensorSpec, source: TensorSpec) -> TensorSpec:
    return source


@meta_rule("aten.set_.default")
def set_empty(x: TensorSpec) -> TensorSpec:
    return TensorSpec((0,), x.dtype, x.device)


# ---- questions of C++ code that cannot handle symbolic sizes ------------------------------------------------


@meta_rule("aten.size.default")
def size(x: TensorSpec) -> tuple[int, ...]:
    """Asked by a C++ function that needs numbers: specialises."""
    return tuple(map(int, x.shape))


@meta_rule("aten.stride.default")
def stride(x: TensorSpec) -> tuple[int, ...]:
    return tuple(map(int, x.strides))


@meta_rule("aten.sym_size.default")
def sym_size(x: TensorSpec) -> tuple[Size, ...]:
    return x.shape


@meta_rule("aten.sym_stride.default")
def sym_stride(x: TensorSpec) -> tuple[Size, ...]:
    return x.strides


@meta_rule("aten.sym_size.int")
def sym_size_int(x: TensorSpec, dim: int) -> Size:
    return x.shape[wrap_dim(dim, x.ndim)]


@meta_rule("aten.sym_stride.int")
def sym_stride_int(x: TensorSpec, dim: int) -> Size:
    return x.strides[wrap_dim(dim, x.ndim)]


@meta_rule("aten.sym_numel.default")
def sym_numel(x: TensorSpec) -> Size:
    return x.numel()


@meta_rule("aten.sym_storage_offset.default")
def sym_storage_offset(x: TensorSpec) -> Size:
    return x.storage_offset


@meta_rule("aten.numel.default")
def numel_(x: TensorSpec) -> int:
    return int(x.numel())


@meta_rule("aten.storage_offset.default")
def storage_offset(x: TensorSpec) -> int:
    return int(x.storage_offset)


@meta_rule("aten.dim.default")
def dim_(x: TensorSpec) -> int:
    return x.ndim


@meta_rule("prim.layout.default")
def layout_(x: TensorSpec) -> Any:
    return torch.strided


@meta_rule("prim.device.default")
def device_(x: TensorSpec) -> Any:
    return x.device


@meta_rule("aten.is_contiguous.default")
def is_contiguous(x: TensorSpec) -> bool:
    return x.is_contiguous()


@meta_rule("aten.is_contiguous.memory_format", "aten.sym_is_contiguous.default")
def is_contiguous_format(x: TensorSpec, memory_format: Any = torch.contiguous_format) -> bool:
    if memory_format in (torch.channels_last, torch.channels_last_3d):
        return layout.is_channels_last_contiguous(x.shape, x.strides)
    return x.is_contiguous()


@meta_rule("aten.is_strides_like_format.default")
def is_strides_like_format(x: TensorSpec, memory_format: Any) -> bool:
    if memory_format in (torch.channels_last, torch.channels_last_3d):
        return layout.is_channels_last_strides(x.shape, x.strides)
    return x.is_contiguous()


@meta_rule("aten.is_non_overlapping_and_dense.default")
def is_non_overlapping_and_dense(x: TensorSpec) -> bool:
    return layout.is_dense(x.shape, x.strides)
