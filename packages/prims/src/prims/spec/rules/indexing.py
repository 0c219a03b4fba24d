"""Gathering, scattering and advanced indexing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prims.errors import DataDependentError, Unsupported
from prims.registry import define_operator, keeps_leading_dimensions
from prims.spec import layout, unbacked
from prims.spec.infer import meta_rule
from prims.spec.iterator import broadcast_shapes, broadcast_strides, dense_in_order
from prims.spec.promote import result_dtype
from prims.spec.rules.creation import with_format
from prims.spec.rules.views import as_strided, diagonal, expand, numel, reshape, select, slice_, wrap_dim
from prims.spec.tensorspec import TensorSpec

Size = Any  # int | Sym


def _positions(index: TensorSpec, *types: torch.dtype, empty: bool = False) -> None:
    """Leave it to eager to refuse indices of other types; ``empty``: an operator that does not look at none.

    Raises:
        Unsupported: they are.
    """
    if empty and any(isinstance(s, int) and s == 0 for s in index.shape):
        return
    if index.dtype not in (torch.int64, *types):
        raise Unsupported(f"an index of {index.dtype}")


def _check_along(x: TensorSpec, dim: int, index: TensorSpec) -> int:
    """The dimension that positions are in, where they may be."""
    d = wrap_dim(dim, x.ndim)
    _check_reached(x.shape[d] if x.ndim else 1, index)
    return d


def _check_same(call: str, x: TensorSpec, source: TensorSpec) -> None:
    if x.dtype != source.dtype:
        raise RuntimeError(f"{call}: a source of {source.dtype} for a tensor of {x.dtype}")


def _check_reached(size: Size, index: TensorSpec) -> None:
    """Raise IndexError where there is a position, and nothing to stand at. Where there is something, data decide."""
    if layout.is_surely_less(size, 1) and layout.is_surely_less(0, numel(index.shape)):
        raise IndexError("index is out of bounds for dimension with size 0")


def _check_unread(x: TensorSpec, dims: Sequence[int], indices: Sequence[TensorSpec]) -> None:
    """As :func:`_check_reached`, where other dimensions leave nothing to read: a kernel looks at what it reads."""
    if any(layout.is_surely_less(size, 1) for d, size in enumerate(x.shape) if d not in dims):
        for d, index in zip(dims, indices, strict=True):
            _check_reached(x.shape[d], index)


@meta_rule("aten.gather.default")
def gather(x: TensorSpec, dim: int, index: TensorSpec, *, sparse_grad: bool = False) -> TensorSpec:
    _positions(index, torch.int32, empty=True)
    wrap_dim(dim, x.ndim)
    return TensorSpec(index.shape, x.dtype, x.device)


define_operator("one_hot(Tensor self, SymInt num_classes) -> Tensor", torch.nn.functional.one_hot)
keeps_leading_dimensions("one_hot")


@meta_rule("quintet.one_hot.default")
def one_hot(x: TensorSpec, num_classes: Size) -> TensorSpec:
    return TensorSpec((*x.shape, num_classes), torch.int64, x.device)


@meta_rule("aten.take.default")
def take(x: TensorSpec, index: TensorSpec) -> TensorSpec:
    _positions(index)
    return TensorSpec(index.shape, x.dtype, x.device)


@meta_rule(
    "aten.scatter.src",
    "aten.scatter.value",
    "aten.scatter.reduce",
    "aten.scatter.value_reduce",
    "aten.scatter_add.default",
    "aten.scatter_reduce.two",
    "aten.index_reduce.default",
)
def scatter(x: TensorSpec, dim: int, index: TensorSpec, *args: Any, **kwargs: Any) -> TensorSpec:
    _positions(index, torch.int32, empty=True)
    _check_along(x, dim, index)
    source = args[0] if args else kwargs.get("src")
    if isinstance(source, TensorSpec) and source.dtype != x.dtype:
        raise RuntimeError(f"scatter(): Expected self.dtype to be equal to src.dtype, not {x.dtype} and {source.dtype}")
    return TensorSpec(x.shape, x.dtype, x.device)


@meta_rule(
    "aten.index_copy.default",
)
def index_copy(x: TensorSpec, dim: int, index: TensorSpec, source: TensorSpec) -> TensorSpec:
    _positions(index)
    d = _check_along(x, dim, index)
    _check_same("index_copy()", x, source)
    if index.ndim > 1 or (source.ndim != x.ndim and source.ndim and x.ndim):
        raise IndexError(f"index_copy(): an index and a source of shapes {list(index.shape)} and {list(source.shape)}")
    if not source.ndim and numel(index.shape) != 1:
        raise IndexError(f"index_copy(): {list(index.shape)} places for one number")
    if source.ndim and x.ndim:
        if any(a is not b and a != b for i, (a, b) in enumerate(zip(x.shape, source.shape, strict=True)) if i != d):
            raise RuntimeError(f"index_copy(): a source of shape {list(source.shape)} for {list(x.shape)}")
    if source.ndim and numel(index.shape) != source.shape[d if x.ndim else 0]:
        raise IndexError(f"index_copy(): {list(index.shape)} places for a source of shape {list(source.shape)}")
    return TensorSpec(x.shape, x.dtype, x.device)


@meta_rule("aten.index_add.default")
def index_add(x: TensorSpec, dim: int, index: TensorSpec, source: TensorSpec, *, alpha: Any = 1) -> TensorSpec:
    _positions(index, torch.int32)
    d = _check_along(x, dim, index)
    _check_same("index_add()", x, source)
    if source.ndim != x.ndim:
        raise RuntimeError(f"index_add(): self has {x.ndim} dimensions and source {source.ndim}")
    if numel(index.shape) != (source.shape[d] if source.ndim else 1):
        raise IndexError(f"index_add(): {list(index.shape)} places for a source of shape {list(source.shape)}")
    if any(a != b for i, (a, b) in enumerate(zip(x.shape, source.shape, strict=False)) if i != d):
        raise RuntimeError(f"index_add(): source of shape {list(source.shape)} for self of shape {list(x.shape)}")
    return TensorSpec(x.shape, x.dtype, x.device)


@meta_rule("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def index_fill(x: TensorSpec, dim: int, index: TensorSpec, value: Any) -> TensorSpec:
    _positions(index)
    d = wrap_dim(dim, x.ndim)
    if all(layout.is_surely_less(0, size) for k, size in enumerate(x.shape) if k != d):  # eager looks at what it fills
        _check_along(x, dim, index)
    if isinstance(value, TensorSpec) and value.ndim:
        raise RuntimeError(f"index_fill_ only supports a 0-dimensional value tensor, not one of {list(value.shape)}")
    return with_format(x, None, x.dtype, x.device)


@meta_rule("aten.masked_scatter.default")
def masked_scatter(x: TensorSpec, mask: TensorSpec, source: TensorSpec) -> TensorSpec:
    return TensorSpec(broadcast_shapes((x.shape, mask.shape)), x.dtype, x.device)


@meta_rule("aten.put.default")
def put(x: TensorSpec, index: TensorSpec, source: TensorSpec, accumulate: bool = False) -> TensorSpec:
    _positions(index)
    _check_reached(numel(x.shape), index)
    _check_same("put()", x, source)
    return with_format(x, None, x.dtype, x.device)


@meta_rule("aten.select_scatter.default")
def select_scatter(x: TensorSpec, src: TensorSpec, dim: int, index: Size) -> TensorSpec:
    return _view_scatter(x, src, select(x, dim, index))


@meta_rule("aten.slice_scatter.default")
def slice_scatter(x: TensorSpec, src: TensorSpec, *args: Any, **kwargs: Any) -> TensorSpec:
    return _view_scatter(x, src, slice_(x, *args, **kwargs))


@meta_rule("aten.diagonal_scatter.default")
def diagonal_scatter(x: TensorSpec, src: TensorSpec, *args: Any, **kwargs: Any) -> TensorSpec:
    return _view_scatter(x, src, diagonal(x, *args, **kwargs))


def _view_scatter(x: TensorSpec, src: TensorSpec, part: TensorSpec) -> TensorSpec:
    """A copy with the very strides, gaps included, unless elements share memory.

    Raises:
        RuntimeError: ``src`` has other sizes than the part that it takes the place of.
        Unsupported: they share it otherwise than by expansion; the copy then shares it in the same way.
    """
    if src.ndim != part.ndim or any(a is not b and a != b for a, b in zip(src.shape, part.shape, strict=True)):
        raise RuntimeError(f"expected src to have a size equal to the slice of self, got {src.shape}, {part.shape}")
    if any(isinstance(s, int) and s == 0 and n != 1 for s, n in zip(x.strides, x.shape, strict=True)):
        return with_format(x, None, x.dtype, x.device)
    if layout.may_overlap(x.shape, x.strides):
        raise Unsupported("a write into a copy of a tensor whose elements share memory")
    return x


@meta_rule("aten.as_strided_scatter.default")
def as_strided_scatter(
    x: TensorSpec, src: TensorSpec, size: Any, stride: Any, storage_offset: Size | None = None
) -> TensorSpec:
    as_strided(x, size, stride, storage_offset)
    if any(type(s) is int and s == 0 and not (type(n) is int and n <= 1) for n, s in zip(size, stride, strict=True)):
        raise RuntimeError("unsupported operation: more than one element of the written-to tensor refers to one place")
    return with_format(x, None, x.dtype, x.device)


@meta_rule("aten.index_select.default")
def index_select(x: TensorSpec, dim: int, index: TensorSpec) -> TensorSpec:
    _positions(index, torch.int32)
    d = wrap_dim(dim, x.ndim)
    if index.ndim > 1:
        raise IndexError("index_select(): Index is supposed to be a vector")
    if not x.shape:
        return TensorSpec((), x.dtype, x.device)
    _check_unread(x, [d], [index])
    return TensorSpec((*x.shape[:d], numel(index.shape), *x.shape[d + 1 :]), x.dtype, x.device)


_INDICES = (torch.int64, torch.int32, torch.uint8, torch.bool)


def _check_indices(indices: Sequence[TensorSpec | None]) -> None:
    if any(i is not None and i.dtype not in _INDICES for i in indices):
        raise IndexError("tensors used as indices must be long, int, byte or bool tensors")


def _check_masks(x: TensorSpec, indices: Sequence[TensorSpec | None]) -> None:
    """Raise IndexError where a mask has other sizes than the dimensions that it goes over, and positions none."""
    at = 0
    for i in indices:
        is_mask = i is not None and i.dtype in (torch.bool, torch.uint8)
        end = at + (i.ndim if i is not None and is_mask else 1)
        if end > x.ndim:
            raise IndexError(f"too many indices for tensor of dimension {x.ndim}")
        if i is not None and is_mask:
            if any(a is not b and a != b for a, b in zip(i.shape, x.shape[at:end], strict=True)):
                raise IndexError(f"a mask of sizes {list(i.shape)} over {list(x.shape[at:end])}")
        elif i is not None:
            _check_reached(x.shape[at], i)
        at = end


@meta_rule("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(x: TensorSpec, indices: Sequence[TensorSpec | None]) -> TensorSpec:
    """Advanced indexing: adjacent indices give their common shape in place, others in front.

    ATen moves the indexed dimensions to the front where they are not adjacent, restrides the source so that
    they have stride zero, views the expanded indices with a dimension of one for each that is not indexed, and lets
    the iterator lay out the result over all of them. Where the result too has size one, its stride has a say.
    """
    _check_indices(indices)
    for i in indices:
        if i is not None and i.dtype in (torch.bool, torch.uint8):
            # With masks it is asked about tensors, not about metadata: see ``unbacked.of_tensors``.
            raise DataDependentError("indexing with a mask gives a result whose size depends on the mask's values")
    if len(indices) > x.ndim:
        raise IndexError(f"too many indices for tensor of dimension {x.ndim}")
    given = [d for d, i in enumerate(indices) if i is not None]
    if not given:
        return with_format(x, None, x.dtype, x.device)
    _check_unread(x, given, [i for i in indices if i is not None])
    common = broadcast_shapes([i.shape for i in indices if i is not None])
    dims = list(range(x.ndim))
    adjacent = given == list(range(given[0], given[-1] + 1))
    if not adjacent:
        dims = given + [d for d in dims if d not in given]
        at = 0
    else:
        at = given[0]
    rest = [d for d in dims if d not in given]
    before, after = rest[:at], rest[at:]
    shape = (*(x.shape[d] for d in before), *common, *(x.shape[d] for d in after))
    source = (*(x.strides[d] for d in before), *(0,) * len(common), *(x.strides[d] for d in after))
    ones = ((1,) * len(before), (1,) * len(after))
    spread = []
    for i in indices:
        if i is not None:
            whole = i if layout.known_same(i.shape, common) else expand(i, common)
            spread.append(broadcast_strides(reshape(whole, (*ones[0], *common, *ones[1])), shape))
    order = layout.permutation(shape, [source, *spread])
    return TensorSpec(shape, x.dtype, x.device, dense_in_order(shape, order))


@meta_rule("aten.index_put.default", "aten._unsafe_index_put.default", "aten._index_put_impl.default")
def index_put(
    x: TensorSpec, indices: Any, values: TensorSpec, accumulate: bool = False, *args: Any, **kwargs: Any
) -> TensorSpec:
    _check_indices(indices)
    _check_masks(x, indices)
    given = [i for i in indices if i is not None]
    if len(given) == 1 and given[0].dtype == torch.uint8 and not accumulate:
        if values.device.type == "cpu" and all(type(n) is int and n == 1 for n in values.shape):
            raise RuntimeError("masked_fill_ only supports boolean masks, but got mask with dtype unsigned char")
    masks = [i for i in given if i.dtype in (torch.bool, torch.uint8)]
    one = values.device.type == "cpu" and all(type(n) is int and n == 1 for n in values.shape)
    if one and masks and len(given) == 1 and not accumulate:
        return with_format(x, None, x.dtype, x.device)  # masked_fill(), which takes another type
    _check_same("index_put()", x, values)
    places = [i.ndim for i in given if i.dtype not in (torch.bool, torch.uint8)]
    rest = x.ndim - len(places) - sum(i.ndim for i in masks)
    if values.ndim > rest + max([*places, *([1] if masks else [])], default=0):
        raise RuntimeError(f"shape mismatch: values of shape {list(values.shape)} for fewer dimensions")
    return with_format(x, None, x.dtype, x.device)


@meta_rule("aten.embedding.default")
def embedding(weight: TensorSpec, indices: TensorSpec, *args: Any, **kwargs: Any) -> TensorSpec:
    _positions(indices, torch.int32)
    if weight.ndim != 2:
        raise RuntimeError("'weight' must be 2-D")
    _check_unread(weight, [0], [indices])
    return TensorSpec((*indices.shape, *weight.shape[1:]), weight.dtype, weight.device)


@meta_rule("aten.embedding_dense_backward.default")
def embedding_dense_backward(
    grad: TensorSpec, indices: TensorSpec, num_weights: Size, padding_idx: Any, scale: bool
) -> TensorSpec:
    return TensorSpec((num_weights, grad.shape[-1]), grad.dtype, grad.device)


_SUMMED = (torch.float32, torch.bfloat16, torch.float16)


@meta_rule("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def embedding_bag(
    weight: TensorSpec,
    indices: TensorSpec,
    offsets: TensorSpec,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: TensorSpec | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[TensorSpec, TensorSpec, TensorSpec, TensorSpec]:
    bags = offsets.shape[0] - 1 if include_last_offset else offsets.shape[0]
    out = TensorSpec((bags, weight.shape[1]), weight.dtype, weight.device)
    integer = indices.dtype
    counts = TensorSpec((bags,), integer, weight.device)
    cpu = weight.device.type == "cpu"
    # A kernel for sums of rows asks for no positions (``is_fast_path`` of ATen's ``EmbeddingBag.cpp``).
    scales = per_sample_weights is None or layout.known_equal(per_sample_weights.strides[0], 1)
    summed = mode == 0 and padding_idx < 0 and weight.dtype in _SUMMED and scales
    none = cpu and summed and layout.known_equal(weight.strides[1], 1)
    if mode == 2:
        maxima = TensorSpec((bags, weight.shape[1]), integer, weight.device)
    else:
        maxima = TensorSpec((0,) if not cpu else (bags,), integer, weight.device)
    positions = TensorSpec((0,) if none else (indices.shape[0],), integer, weight.device)
    return out, positions, counts, maxima


@meta_rule("aten.nonzero.default")
def nonzero(x: TensorSpec) -> TensorSpec:
    return unbacked.positions(x)


@meta_rule("aten.masked_select.default")
def masked_select(x: TensorSpec, mask: TensorSpec) -> TensorSpec:
    most = numel(broadcast_shapes([x.shape, mask.shape]))
    return TensorSpec((unbacked.count(0, most, "masked_select"),), x.dtype, x.device)


@meta_rule("aten.repeat_interleave.Tensor")
def repeat_interleave(repeats: TensorSpec, *, output_size: Size | None = None) -> TensorSpec:
    if isinstance(output_size, int) and output_size == 0 and repeats.shape[0] != 0:
        raise Unsupported("repeat_interleave with output_size=0, which is right for some counts alone")
    size = unbacked.count(0, None, "repeat_interleave") if output_size is None else output_size
    return TensorSpec((size,), repeats.dtype, repeats.device)


@meta_rule("aten._local_scalar_dense.default", "aten.item.default")
def local_scalar(x: TensorSpec) -> Any:
    return unbacked.number(x)


@meta_rule("aten.is_nonzero.default")
def is_nonzero(x: TensorSpec) -> Any:
    raise DataDependentError("a tensor's truth value is read into Python")


@meta_rule("aten._unique2.default")
def unique(
    x: TensorSpec, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    size = unbacked.count(0, numel(x.shape), "unique")
    return (
        TensorSpec((size,), x.dtype, x.device),
        TensorSpec(x.shape if return_inverse else (0,), torch.int64, x.device),
        TensorSpec((size if return_counts else 0,), torch.int64, x.device),
    )


@meta_rule("aten.unique_consecutive.default")
def unique_consecutive(
    x: TensorSpec, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    if dim is not None:
        raise DataDependentError("unique_consecutive along a dimension")
    return unique(x, True, return_inverse, return_counts)


@meta_rule("aten.unique_dim.default", "aten._unique.default")
def unique_dim(x: TensorSpec, *args: Any, **kwargs: Any) -> Any:
    raise DataDependentError("the size of the result depends on the values of a tensor")


@meta_rule("aten.bincount.default")
def bincount(x: TensorSpec, weights: TensorSpec | None = None, minlength: Size = 0) -> TensorSpec:
    dtype = torch.int64
    if weights is not None:
        dtype = torch.float32 if weights.dtype == torch.float32 else torch.float64
    return TensorSpec((unbacked.count(minlength if type(minlength) is int else 0, None, "bincount"),), dtype, x.device)


@meta_rule("aten.searchsorted.Tensor")
def searchsorted(sequence: TensorSpec, x: TensorSpec, *, out_int32: bool = False, **kwargs: Any) -> TensorSpec:
    if sequence.ndim != 1 and (sequence.ndim != x.ndim or sequence.shape[:-1] != x.shape[:-1]):
        raise RuntimeError(
            "torch.searchsorted(): boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries "
            f"tensor and input value tensor must match, but we got {list(sequence.shape)} and {list(x.shape)}"
        )
    return TensorSpec(x.shape, torch.int32 if out_int32 else torch.int64, x.device)


@meta_rule("aten.searchsorted.Scalar")
def searchsorted_scalar(sequence: TensorSpec, x: Any, *, out_int32: bool = False, **kwargs: Any) -> TensorSpec:
    return TensorSpec((), torch.int32 if out_int32 else torch.int64, sequence.device)


@meta_rule("aten.bucketize.Tensor")
def bucketize(x: TensorSpec, boundaries: TensorSpec, *, out_int32: bool = False, right: bool = False) -> TensorSpec:
    return TensorSpec(x.shape, torch.int32 if out_int32 else torch.int64, x.device)


@meta_rule("aten.isin.Tensor_Tensor")
def isin(x: TensorSpec, test: TensorSpec, **kwargs: Any) -> TensorSpec:
    return TensorSpec(x.shape, torch.bool, x.device)


@meta_rule("aten.isin.Tensor_Scalar")
def isin_scalar(x: TensorSpec, test: Any, **kwargs: Any) -> TensorSpec:
    return TensorSpec(x.shape, torch.bool, x.device)


@meta_rule("aten.isin.Scalar_Tensor")
def isin_of_scalar(x: Any, test: TensorSpec, **kwargs: Any) -> TensorSpec:
    return TensorSpec((), torch.bool, test.device)


@meta_rule("aten.select_backward.default")
def select_backward(grad: TensorSpec, sizes: Sequence[Size], dim: int, index: Size) -> TensorSpec:
    return TensorSpec(sizes, grad.dtype, grad.device)


@meta_rule("aten.slice_backward.default", "aten.diagonal_backward.default", "aten.index_select_backward.default")
def slice_backward(grad: TensorSpec, sizes: Sequence[Size], *args: Any) -> TensorSpec:
    return TensorSpec(sizes, grad.dtype, grad.device)


@meta_rule("aten.unfold_backward.default")
def unfold_backward(grad: TensorSpec, sizes: Sequence[Size], *args: Any) -> TensorSpec:
    return TensorSpec(sizes, grad.dtype, grad.device)


@meta_rule("aten.value_selecting_reduction_backward.default")
def value_selecting_reduction_backward(
    grad: TensorSpec, dim: int, indices: TensorSpec, sizes: Sequence[Size], keepdim: bool
) -> TensorSpec:
    return TensorSpec(sizes, result_dtype((grad,)), grad.device)
