"""Reductions, scans and the batched matrix product.

Reductions drop their dimensions. float16 and bfloat16 accumulate in float32 and round once; the order of
summation is not specified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from prims.dtypes import compute_dtype
from prims.ops.check import BOOL, NUMERIC, REAL, array_spec, require, require_dim, require_dims
from prims.ops.elementwise_rules import edge_values, shaped_samples
from prims.ops.lazy import np
from prims.ops.row import Sample, define

# ---- reductions over a set of dims ----------------------------------------------------------------------


def _reduce_meta(name: str, dtypes: tuple[torch.dtype, ...], needs_elements: bool) -> Callable[..., Any]:
    up = name.upper()

    def meta(x: Any, dims: Any) -> Any:
        require_dims(x, dims, f"{up}-C1")
        require(x.dtype in dtypes, f"{up}-C2", f"{name} is not defined for {x.dtype}")
        if needs_elements:
            for d in dims:
                require(x.shape[d] != 0, f"{up}-C3", f"{name} over dimension {d} of size 0")
        return array_spec(tuple(s for d, s in enumerate(x.shape) if d not in dims), x.dtype, x.device)

    return meta


def _reduce_constraints(name: str, needs_elements: bool) -> dict[str, str]:
    up = name.upper()
    labels = {
        f"{up}-C1": "dims are in range and distinct",
        f"{up}-C2": "the dtype is one the primitive is defined for",
    }
    if needs_elements:
        labels[f"{up}-C3"] = "reduced dimensions are not empty"
    return labels


def _reduce_torch(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Reduce in the compute dtype; torch reads empty dims as "all", here they mean "none"."""

    def reference(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
        if not dims:
            return x.clone(memory_format=torch.contiguous_format)
        return fn(x.to(compute_dtype(x.dtype)), dims).to(x.dtype).contiguous()

    return reference


def _prod(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    for d in reversed(dims):
        x = torch.prod(x, d, dtype=x.dtype)
    return x


def _reduce_samples(needs_elements: bool) -> Callable[[torch.dtype], Iterator[Sample]]:
    def samples(dtype: torch.dtype) -> Iterator[Sample]:
        (x,) = next(iter(shaped_samples(dtype, 1, [(-2.0, 2.0)]))).args
        cube = x.reshape(1, 3, 5).expand(2, 3, 5)
        for dims in ((0,), (1,), (0, 1), ()):
            yield Sample((x, dims), f"dims {dims}")
        yield Sample((x.t(), (1,)), "transposed")
        yield Sample((cube, (0, 2)), "outer and inner")
        yield Sample((x[:0], (1,)), "empty result")
        if not needs_elements:
            yield Sample((x[:0], (0,)), "empty reduction")
        if dtype.is_floating_point:
            edges = torch.tensor(edge_values(dtype), dtype=dtype)
            yield Sample((edges, (0,)), "with NaN")
            yield Sample((edges[:12], (0,)), "edges")
        yield Sample((x.reshape(-1)[:1].expand(1000), (0,)), "long")

    return samples


def _reduction(
    name: str, doc: str, dtypes: tuple[torch.dtype, ...], torch_fn: Callable[..., Any], numpy_fn: str, empty_ok: bool
) -> None:
    def numpy_ref(x: Any, dims: tuple[int, ...]) -> Any:
        if numpy_fn in ("sum", "prod"):
            return np.asarray(getattr(np, numpy_fn)(x, axis=dims, dtype=x.dtype))
        return np.asarray(getattr(np, numpy_fn)(x, axis=dims)) if dims else x.copy()

    define(
        name, "x: T, dims: dims", "reduce", doc=doc,
        meta=_reduce_meta(name, dtypes, not empty_ok), torch_ref=_reduce_torch(torch_fn), numpy_ref=numpy_ref,
        samples=_reduce_samples(not empty_ok), dtypes=dtypes, constraints=_reduce_constraints(name, not empty_ok),
    )  # fmt: skip


_reduction("sum", "sum; integers wrap; 0 for no elements", NUMERIC,
           lambda x, dims: torch.sum(x, dims, dtype=x.dtype), "sum", True)  # fmt: skip
_reduction("prod", "product; integers wrap; 1 for no elements", NUMERIC, _prod, "prod", True)
_reduction("amax", "greatest; NaN if any is NaN", REAL, torch.amax, "amax", False)
_reduction("amin", "least; NaN if any is NaN", REAL, torch.amin, "amin", False)
_reduction("any", "is any true? False for no elements", BOOL, torch.any, "any", True)
_reduction("all", "are all true? True for no elements", BOOL, torch.all, "all", True)

# ---- argmax, argmin -------------------------------------------------------------------------------------


def _arg_meta(name: str) -> Callable[..., Any]:
    up = name.upper()

    def meta(x: Any, dim: int) -> Any:
        require_dim(x, dim, f"{up}-C1")
        require(x.dtype in NUMERIC, f"{up}-C2", f"{name} is not defined for {x.dtype}")
        require(x.shape[dim] != 0, f"{up}-C3", f"{name} over dimension {dim} of size 0")
        return array_spec(tuple(s for d, s in enumerate(x.shape) if d != dim), torch.int64, x.device)

    return meta


def _arg_samples(dtype: torch.dtype) -> Iterator[Sample]:
    (x,) = next(iter(shaped_samples(dtype, 1, [(-2.0, 2.0)]))).args
    for dim in (0, 1):
        yield Sample((x, dim), f"dim {dim}")
    yield Sample((torch.tensor([[1, 3, 3, 1], [2, 2, 2, 2]]).to(dtype), 1), "ties: the first")
    yield Sample((x[:0], 1), "empty result")
    if dtype.is_floating_point:
        yield Sample((torch.tensor([1.0, float("nan"), 5.0, float("nan")], dtype=dtype), 0), "the first NaN")


for _name, _word in (("argmax", "greatest"), ("argmin", "least")):
    define(
        _name, "x: T, dim: dim", "reduce", dtype_rule="int64",
        doc=f"index of the first {_word} element, as int64; a NaN counts as {_word}",
        meta=_arg_meta(_name), torch_ref=lambda x, dim, n=_name: getattr(torch, n)(x, dim),
        numpy_ref=lambda x, dim, n=_name: np.asarray(getattr(np, n)(x, axis=dim)).astype(np.int64),
        samples=_arg_samples, dtypes=NUMERIC,
        constraints={
            f"{_name.upper()}-C1": "the dimension is in range",
            f"{_name.upper()}-C2": "the dtype is numeric",
            f"{_name.upper()}-C3": "the dimension is not empty",
        },
    )  # fmt: skip

# ---- scans ----------------------------------------------------------------------------------------------


def _scan_meta(name: str) -> Callable[..., Any]:
    up = name.upper()

    def meta(x: Any, dim: int) -> Any:
        require_dim(x, dim, f"{up}-C1")
        require(x.dtype in NUMERIC, f"{up}-C2", f"{name} is not defined for {x.dtype}")
        return array_spec(x.shape, x.dtype, x.device)

    return meta


def _scan_samples(dtype: torch.dtype) -> Iterator[Sample]:
    (x,) = next(iter(shaped_samples(dtype, 1, [(-2.0, 2.0)]))).args
    for dim in (0, 1):
        yield Sample((x, dim), f"dim {dim}")
    yield Sample((x.t(), 1), "transposed")
    yield Sample((x[:0], 0), "empty")


for _name, _word in (("cumsum", "sum"), ("cumprod", "product")):
    define(
        _name, "x: T, dim: dim", "scan", doc=f"running {_word} along a dimension, its own element included",
        meta=_scan_meta(_name),
        torch_ref=lambda x, dim, n=_name: getattr(torch, n)(
            x.to(compute_dtype(x.dtype)), dim, dtype=compute_dtype(x.dtype)
        ).to(x.dtype).contiguous(),
        numpy_ref=lambda x, dim, n=_name: getattr(np, n)(x, axis=dim, dtype=x.dtype),
        samples=_scan_samples, dtypes=NUMERIC,
        constraints={
            f"{_name.upper()}-C1": "the dimension is in range",
            f"{_name.upper()}-C2": "the dtype is numeric",
        },
    )  # fmt: skip

# ---- dot ------------------------------------------------------------------------------------------------


def _dot_meta(x: Any, y: Any) -> Any:
    ranks = x.ndim >= 2 and x.ndim == y.ndim
    require(ranks, "DOT-C1", f"dot of {x.ndim} and {y.ndim} dimensions")
    inner = x.shape[-1] is y.shape[-2] or x.shape[-1] == y.shape[-2]
    require(inner, "DOT-C2", f"dot of {tuple(x.shape)} and {tuple(y.shape)}: {x.shape[-1]} != {y.shape[-2]}")
    batch = all(a is b or a == b for a, b in zip(x.shape[:-2], y.shape[:-2], strict=True))
    require(batch, "DOT-C3", f"dot of batches {tuple(x.shape[:-2])} and {tuple(y.shape[:-2])}")
    require(x.dtype == y.dtype, "DOT-C4", f"dot of {x.dtype} and {y.dtype}")
    require(x.dtype in NUMERIC, "DOT-C5", f"dot is not defined for {x.dtype}")
    require(x.device == y.device, "DOT-C6", f"dot of {x.device} and {y.device}")
    return array_spec((*x.shape[:-1], y.shape[-1]), x.dtype, x.device)


def _dot_samples(dtype: torch.dtype) -> Iterator[Sample]:
    shapes = (
        ((3, 4), (4, 5)), ((2, 3, 4), (2, 4, 1)), ((2, 2, 1, 6), (2, 2, 6, 3)), ((3, 0), (0, 2)), ((0, 3), (3, 2)),
    )  # fmt: skip
    for left, right in shapes:
        (x,) = next(iter(shaped_samples(dtype, 1, [(-3.0, 3.0)], seed=3))).args
        values = x.reshape(-1).repeat(10)
        yield Sample((_take(values, left), _take(values.flip(0), right)), f"{left} @ {right}")
    (x,) = next(iter(shaped_samples(dtype, 1, [(-3.0, 3.0)]))).args
    yield Sample((x, x.t()), "transposed")


def _take(values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    count = 1
    for size in shape:
        count *= size
    return values[:count].reshape(shape)


define(
    "dot", "x: T, y: T", "dot", doc="batched matrix product [..., m, k] @ [..., k, n]; halves accumulate in float32",
    meta=_dot_meta,
    torch_ref=lambda x, y: torch.matmul(x.to(compute_dtype(x.dtype)), y.to(compute_dtype(y.dtype))).to(x.dtype),
    numpy_ref=lambda x, y: np.matmul(x, y), samples=_dot_samples, dtypes=NUMERIC,
    constraints={
        "DOT-C1": "both operands have the same number of dimensions, at least 2",
        "DOT-C2": "the left's last size equals the right's last but one",
        "DOT-C3": "the batch sizes are equal",
        "DOT-C4": "the operands have one dtype",
        "DOT-C5": "the dtype is numeric",
        "DOT-C6": "the operands are on one device",
    },
)  # fmt: skip

