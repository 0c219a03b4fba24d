"""Rows of the primitives that read and write at positions given by integer tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from compile_api.deploy.interchange.stablehlo.builder import Builder, V, static, type_of
from prims.dtypes import compute_dtype

__all__ = ["ROWS"]

ROWS: dict[str, Callable[..., Any]] = {}

I64 = torch.int64


def _coordinates(b: Builder, index: V, dim: int) -> V:
    """[*index.shape, ndim]: the positions that an index along one dimension means."""
    ndim = len(index.shape)
    line = (*index.shape, 1)
    spread = tuple(range(ndim))
    parts = [
        b.broadcast(b.convert(index, I64) if d == dim else b.iota(index.shape, d), line, spread) for d in range(ndim)
    ]  # fmt: skip
    return b.concatenate(parts, ndim, (*index.shape, ndim))


def _places(b: Builder, x: V, indices: Sequence[V], dims: Sequence[int]) -> V:
    """Positions along a new last dimension, negative ones counted from the end."""
    rank = len(indices[0].shape)
    line = (*indices[0].shape, 1)
    parts = []
    for index, d in zip(indices, dims, strict=True):
        i = b.convert(index, I64)
        wrapped = b.op("add", i, b.splat(x.shape[d], I64, i.shape))
        i = b.select(b.compare("LT", i, b.splat(0, I64, i.shape)), wrapped, i)
        parts.append(b.broadcast(i, line, tuple(range(rank))))
    return b.concatenate(parts, rank, (*indices[0].shape, len(dims)))


def _gathered(b: Builder, x: V, places: V, dims: Sequence[int], shape: Sequence[Any]) -> V:
    if 0 in [n for n in (*shape, *(x.shape[d] for d in dims)) if isinstance(n, int)]:
        return b.splat(0, x.dtype, shape)  # of nothing no slice of one element can be taken
    rank, ndim = len(places.shape) - 1, len(x.shape)
    others = [d for d in range(ndim) if d not in dims]
    numbers = (
        f"dimension_numbers = #stablehlo.gather<offset_dims = {list(range(rank, rank + len(others)))}, "
        f"collapsed_slice_dims = {list(dims)}, start_index_map = {list(dims)}, index_vector_dim = {rank}>, "
        "indices_are_sorted = false"
    )
    sizes = [1 if d in dims else x.shape[d] for d in range(ndim)]
    if static(sizes):
        counts = ", ".join(map(str, sizes))
        return b.generic("gather", [x, places], f"{numbers}, slice_sizes = array<i64: {counts}>", x.dtype, shape)
    return b.generic("dynamic_gather", [x, places, b.shape(sizes)], numbers, x.dtype, shape)


def _scattered(b: Builder, x: V, places: V, values: V, dims: Sequence[int], combine: str | None) -> V:
    rank, ndim = len(places.shape) - 1, len(x.shape)
    others = ndim - len(dims)
    element = type_of(x.dtype, ())
    combined = f"%combined = stablehlo.{combine} %old, %new : {element} " if combine else ""
    region = (
        f"{{ ^bb0(%old: {element}, %new: {element}): {combined}"
        f"stablehlo.return {'%combined' if combine else '%new'} : {element} }}"
    )
    numbers = (
        f"indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = "
        f"{list(range(rank, rank + others))}, inserted_window_dims = {list(dims)}, scatter_dims_to_operand_dims = "
        f"{list(dims)}, index_vector_dim = {rank}>, unique_indices = false"
    )
    return b.generic("scatter", [x, places, values], numbers, x.dtype, x.shape, region)


_COMBINE = {"set": None, "add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}
_OF_BOOLS = {"add": "or", "mul": "and", "max": "or", "min": "and"}


def _combined(b: Builder, x: V, places: V, values: V, dims: Sequence[int], reduce: str) -> V:
    """Scattered in the dtype to compute in, rounded once."""
    dtype, combine = x.dtype, _COMBINE[reduce]
    if dtype == torch.bool:
        return _scattered(b, x, places, values, dims, _OF_BOOLS.get(reduce))
    if combine is not None:
        x, values = (b.convert(t, compute_dtype(dtype)) for t in (x, values))
    return b.convert(_scattered(b, x, places, values, dims, combine), dtype)


def gather(b: Builder, x: V, index: V, dim: int) -> V:
    return _gathered(b, x, _coordinates(b, index, dim), range(len(x.shape)), index.shape)


def index(b: Builder, x: V, indices: Sequence[V], dims: Sequence[int]) -> V:
    return _gathered(b, x, _places(b, x, indices, dims), dims, b.spec.shape)


def scatter(b: Builder, x: V, index: V, src: V, dim: int, reduce: str) -> V:
    return _combined(b, x, _coordinates(b, index, dim), src, range(len(x.shape)), reduce)


def index_put(b: Builder, x: V, indices: Sequence[V], dims: Sequence[int], values: V, accumulate: bool) -> V:
    return _combined(b, x, _places(b, x, indices, dims), values, dims, "add" if accumulate else "set")


for _fn in (gather, scatter, index, index_put):
    ROWS[_fn.__name__] = _fn
