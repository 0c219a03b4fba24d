"""Primitives that read and write at positions given by integer tensors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from prims.ops.check import ALL, INTS, array_spec, is_spec, require, require_dim, same_shape
from prims.ops.lazy import np
from prims.ops.row import Sample, define
from prims.ops.structure import ramp

REDUCES = ("set", "add", "mul", "max", "min")


def _require_index(index: Any, x: Any, label: str) -> None:
    integral = is_spec(index) and index.dtype in INTS and index.dtype != torch.uint8
    require(integral, label, f"the index is a signed integer tensor, not {getattr(index, 'dtype', index)}")
    require(index.device == x.device, label, f"the index is on {index.device}, the operand on {x.device}")


def _require_along(x: Any, index: Any, dim: int, label: str) -> None:
    require(index.ndim == x.ndim, label, f"index of {index.ndim} dimensions for {x.ndim}")
    for d in range(x.ndim):
        if d != dim:
            fits = index.shape[d] is x.shape[d] or index.shape[d] <= x.shape[d]
            require(fits, label, f"index size {index.shape[d]} exceeds {x.shape[d]} in dimension {d}")


# ---- gather, scatter ------------------------------------------------------------------------------------


def _gather_meta(x: Any, index: Any, dim: int) -> Any:
    require_dim(x, dim, "GATHER-C1")
    _require_index(index, x, "GATHER-C2")
    _require_along(x, index, dim, "GATHER-C3")
    return array_spec(index.shape, x.dtype, x.device)


def _gather_numpy(x: Any, index: Any, dim: int) -> Any:
    out = np.empty(index.shape, dtype=x.dtype)
    for at in np.ndindex(*index.shape):
        source = list(at)
        source[dim] = index[at]
        out[at] = x[tuple(source)]
    return out


def _gather_samples(dtype: torch.dtype) -> Iterator[Sample]:
    x = ramp((3, 4), dtype)
    yield Sample((x, torch.tensor([[0, 3, 1], [2, 2, 0]]), 1), "columns")
    yield Sample((x, torch.tensor([[2, 0, 1, 1]]), 0), "rows")
    yield Sample((x.t(), torch.zeros((0, 3), dtype=torch.int64), 0), "empty")
    yield Sample((x, torch.tensor([[1, 0]], dtype=torch.int32), 1), "int32 index")


define(
    "gather", "x: T, index: T, dim: dim", "index",
    doc="out[.., i, ..] = x[.., index[.., i, ..], ..], as torch.gather; indices are in range",
    meta=_gather_meta, torch_ref=lambda x, index, dim: torch.gather(x, dim, index.to(torch.int64)),
    numpy_ref=_gather_numpy, samples=_gather_samples, dtypes=ALL,
    constraints={
        "GATHER-C1": "the dimension is in range",
        "GATHER-C2": "the index is a signed integer tensor on the operand's device",
        "GATHER-C3": "the index has the operand's rank and is no larger in the other dimensions",
    },
)  # fmt: skip


def _scatter_meta(x: Any, index: Any, src: Any, dim: int, reduce: str) -> Any:
    require_dim(x, dim, "SCATTER-C1")
    _require_index(index, x, "SCATTER-C2")
    _require_along(x, index, dim, "SCATTER-C3")
    same = is_spec(src) and same_shape(src.shape, index.shape)
    require(same, "SCATTER-C4", "source and index have one shape")
    require(src.dtype == x.dtype, "SCATTER-C5", f"scatter of {src.dtype} into {x.dtype}")
    require(src.device == x.device, "SCATTER-C7", f"scatter of {src.device} into {x.device}")
    require(reduce in REDUCES, "SCATTER-C6", f"reduce {reduce!r} is not one of {REDUCES}")
    return array_spec(x.shape, x.dtype, x.device)


_TORCH_REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scatter_torch(x: torch.Tensor, index: torch.Tensor, src: torch.Tensor, dim: int, reduce: str) -> torch.Tensor:
    index = index.to(torch.int64)
    if reduce == "set":
        return torch.scatter(x, dim, index, src)
    if x.dtype == torch.bool:  # torch has no bool kernel; 0/1 integers mean the same but for add
        wide = torch.scatter_reduce(x.to(torch.int64), dim, index, src.to(torch.int64), _TORCH_REDUCE[reduce])
        return wide != 0
    return torch.scatter_reduce(x, dim, index, src, _TORCH_REDUCE[reduce], include_self=True)


def _combine(old: Any, new: Any, reduce: str) -> Any:
    match reduce:
        case "set":
            return new
        case "add":
            return old + new
        case "mul":
            return old * new
        case "max":
            return np.maximum(old, new)
        case _:
            return np.minimum(old, new)


def _scatter_numpy(x: Any, index: Any, src: Any, dim: int, reduce: str) -> Any:
    out = x.copy()
    for at in np.ndindex(*index.shape):
        target = list(at)
        target[dim] = index[at]
        out[tuple(target)] = _combine(out[tuple(target)], src[at], reduce)
    return out


def _scatter_samples(dtype: torch.dtype) -> Iterator[Sample]:
    x = ramp((3, 4), dtype)
    once = torch.tensor([[0, 3, 1], [2, 1, 0]])
    twice = torch.tensor([[0, 1, 0, 2], [0, 1, 2, 2]])
    src = ramp((2, 3), dtype)
    yield Sample((x, once, src, 1, "set"), "set, no index twice")
    yield Sample((x, once[:0], src[:0], 0, "set"), "empty")
    for reduce in REDUCES[1:]:
        yield Sample((x, twice, ramp((2, 4), dtype), 0, reduce), f"{reduce}, indices repeat")


define(
    "scatter", "x: T, index: T, src: T, dim: dim, reduce: str = set", "index",
    doc="x with src combined into out[.., index[.., i, ..], ..]; a repeated index under 'set' keeps any one of them",
    meta=_scatter_meta, torch_ref=_scatter_torch, numpy_ref=_scatter_numpy, samples=_scatter_samples, dtypes=ALL,
    constraints={
        "SCATTER-C1": "the dimension is in range",
        "SCATTER-C2": "the index is a signed integer tensor on the operand's device",
        "SCATTER-C3": "the index has the operand's rank and is no larger in the other dimensions",
        "SCATTER-C4": "source and index have one shape",
        "SCATTER-C5": "source and operand have one dtype",
        "SCATTER-C6": "reduce is set, add, mul, max or min",
        "SCATTER-C7": "source and operand are on one device",
    },
)  # fmt: skip

# ---- index, index_put -----------------------------------------------------------------------------------


def _indexed_shape(name: str, x: Any, indices: Any, dims: Any) -> tuple[Any, ...]:
    up = name.upper()
    require(len(indices) > 0, f"{up}-C1", "there is no index")
    require(len(indices) == len(dims), f"{up}-C1", f"{len(indices)} indices for {len(dims)} dimensions")
    for d in dims:
        require_dim(x, d, f"{up}-C2")
    rising = all(a < b for a, b in itertools.pairwise(dims))
    require(rising, f"{up}-C2", f"dims {dims} are not ascending")
    for index in indices:
        _require_index(index, x, f"{up}-C3")
        equal = same_shape(index.shape, indices[0].shape)
        require(equal, f"{up}-C4", f"indices of shapes {tuple(indices[0].shape)} and {tuple(index.shape)}")
    return tuple(indices[0].shape) + tuple(s for d, s in enumerate(x.shape) if d not in dims)


def _index_meta(x: Any, indices: Any, dims: Any) -> Any:
    return array_spec(_indexed_shape("index", x, indices, dims), x.dtype, x.device)


def _indexed_first(ndim: int, dims: Sequence[int]) -> list[int]:
    return [*dims, *(d for d in range(ndim) if d not in dims)]


def _index_torch(x: torch.Tensor, indices: Sequence[torch.Tensor], dims: Sequence[int]) -> torch.Tensor:
    front = x.permute(_indexed_first(x.ndim, dims))
    return front[tuple(i.to(torch.int64) for i in indices)].contiguous()


def _index_numpy(x: Any, indices: Sequence[Any], dims: Sequence[int]) -> Any:
    rest = [d for d in range(x.ndim) if d not in dims]
    out = np.empty(indices[0].shape + tuple(x.shape[d] for d in rest), dtype=x.dtype)
    for at in np.ndindex(*indices[0].shape):
        where: list[Any] = [slice(None)] * x.ndim
        for index, d in zip(indices, dims, strict=True):
            where[d] = int(index[at])
        out[at] = x[tuple(where)]
    return out


def _index_cases(dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, tuple[torch.Tensor, ...], tuple[int, ...]]]:
    x = ramp((3, 4, 2), dtype)
    yield x, (torch.tensor([2, 0]),), (0,)
    yield x, (torch.tensor([[1, -1], [0, 3]]),), (1,)
    yield x, (torch.tensor([0, -1, 2]), torch.tensor([1, 0, -2])), (0, 2)
    yield x, (torch.tensor(1),), (2,)
    yield x.permute(2, 0, 1), (torch.tensor([1, 0], dtype=torch.int32), torch.tensor([2, 1])), (0, 1)
    yield x, (torch.zeros((0,), dtype=torch.int64),), (1,)


define(
    "index", "x: T, indices: Ts, dims: ints", "index",
    doc="advanced indexing: indices[i] indexes dimension dims[i]; the result has the indices' shape, then x's other "
    "dimensions; negative indices count from the end",
    meta=_index_meta, torch_ref=_index_torch, numpy_ref=_index_numpy,
    samples=lambda dtype: (Sample(case, f"dims {case[2]}") for case in _index_cases(dtype)), dtypes=ALL,
    constraints={
        "INDEX-C1": "there is one index per named dimension, and at least one",
        "INDEX-C2": "the dimensions are in range and ascending",
        "INDEX-C3": "indices are signed integer tensors on the operand's device",
        "INDEX-C4": "indices have one shape",
    },
)  # fmt: skip


def _index_put_meta(x: Any, indices: Any, dims: Any, values: Any, accumulate: bool) -> Any:
    shape = _indexed_shape("index_put", x, indices, dims)
    same = is_spec(values) and same_shape(values.shape, shape)
    require(same, "INDEX_PUT-C5", f"values have shape {tuple(getattr(values, 'shape', ()))}, not {shape}")
    require(values.dtype == x.dtype, "INDEX_PUT-C6", f"index_put of {values.dtype} into {x.dtype}")
    require(values.device == x.device, "INDEX_PUT-C7", f"index_put of {values.device} into {x.device}")
    return array_spec(x.shape, x.dtype, x.device)


def _index_put_torch(
    x: torch.Tensor, indices: Sequence[torch.Tensor], dims: Sequence[int], values: torch.Tensor, accumulate: bool
) -> torch.Tensor:
    order = _indexed_first(x.ndim, dims)
    front = x.permute(order).contiguous()
    where = tuple(i.to(torch.int64) for i in indices)
    if accumulate and x.dtype == torch.bool:
        written = torch.index_put(front.to(torch.int64), where, values.to(torch.int64), True) != 0
    else:
        written = torch.index_put(front, where, values, accumulate)
    back = [order.index(d) for d in range(x.ndim)]
    return written.permute(back).contiguous()


def _index_put_numpy(x: Any, indices: Sequence[Any], dims: Sequence[int], values: Any, accumulate: bool) -> Any:
    out = x.copy()
    for at in np.ndindex(*indices[0].shape):
        where: list[Any] = [slice(None)] * x.ndim
        for index, d in zip(indices, dims, strict=True):
            where[d] = int(index[at])
        out[tuple(where)] = _combine(out[tuple(where)], values[at], "add" if accumulate else "set")
    return out


def _index_put_samples(dtype: torch.dtype) -> Iterator[Sample]:
    for x, indices, dims in _index_cases(dtype):
        shape = indices[0].shape + tuple(s for d, s in enumerate(x.shape) if d not in dims)
        yield Sample((x, indices, dims, ramp(shape, dtype), False), f"set, dims {dims}")
        yield Sample((x, indices, dims, ramp(shape, dtype), True), f"accumulate, dims {dims}")
    twice = (torch.tensor(list(itertools.repeat(1, 5))),)
    yield Sample((ramp((3, 2), dtype), twice, (0,), ramp((5, 2), dtype), True), "accumulate, repeated")


define(
    "index_put", "x: T, indices: Ts, dims: ints, values: T, accumulate: bool = False", "index",
    doc="x with values written (or added) where `index` would read; a repeated index that is not accumulated keeps "
    "any one value",
    meta=_index_put_meta, torch_ref=_index_put_torch, numpy_ref=_index_put_numpy, samples=_index_put_samples,
    dtypes=ALL,
    constraints={
        "INDEX_PUT-C1": "there is one index per named dimension, and at least one",
        "INDEX_PUT-C2": "the dimensions are in range and ascending",
        "INDEX_PUT-C3": "indices are signed integer tensors on the operand's device",
        "INDEX_PUT-C4": "indices have one shape",
        "INDEX_PUT-C5": "values have the shape that `index` would give",
        "INDEX_PUT-C6": "values and operand have one dtype",
        "INDEX_PUT-C7": "values and operand are on one device",
    },
)  # fmt: skip
