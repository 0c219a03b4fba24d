"""Reductions, scans, sorting and softmax."""

from __future__ import annotations

from typing import Any

import torch

from prims.errors import DataDependentError
from prims.spec import layout
from prims.spec.infer import meta_rule
from prims.spec.iterator import broadcast_shapes, iterate
from prims.spec.promote import real_dtype, result_dtype, softmax_gradient_dtype, sum_dtype, to_float_dtype
from prims.spec.rules.creation import with_format
from prims.spec.rules.views import narrow_at, wrap_dim
from prims.spec.tensorspec import TensorSpec

Size = Any  # int | Sym


def reduced_shape(x: TensorSpec, dims: Any, keepdim: bool) -> tuple[Size, ...]:
    """The shape after reducing ``dims`` (an int, a list; None or empty means all)."""
    if x.ndim > 64:
        raise RuntimeError("only tensors with up to 64 dims are supported")
    if isinstance(dims, int):
        dims = (dims,)
    gone = {wrap_dim(d, x.ndim) for d in dims} if dims else set(range(x.ndim))
    if dims and len(gone) != len(dims):
        raise RuntimeError(f"a dimension appears multiple times in the list of dims {list(dims)}")
    if keepdim:
        return tuple(1 if d in gone else s for d, s in enumerate(x.shape))
    return tuple(s for d, s in enumerate(x.shape) if d not in gone)


def reduced(x: TensorSpec, dims: Any, keepdim: bool, dtype: torch.dtype) -> TensorSpec:
    return TensorSpec(reduced_shape(x, dims, keepdim), dtype, x.device)


@meta_rule("aten.sum.default", "aten.prod.default")
def sum_all(x: TensorSpec, *, dtype: torch.dtype | None = None) -> TensorSpec:
    return TensorSpec((), sum_dtype(x.dtype, dtype), x.device)


@meta_rule("aten.sum.dim_IntList", "aten.prod.dim_int", "aten.nansum.default")
def sum_dim(x: TensorSpec, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> TensorSpec:
    return reduced(x, dim, keepdim, sum_dtype(x.dtype, dtype))


@meta_rule("aten.mean.default")
def mean_all(x: TensorSpec, *, dtype: torch.dtype | None = None) -> TensorSpec:
    return _mean(x, None, False, dtype)


def _mean(x: TensorSpec, dim: Any, keepdim: bool, dtype: torch.dtype | None) -> TensorSpec:
    out = dtype or x.dtype
    if not (out.is_floating_point or out.is_complex):
        raise RuntimeError(
            "mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. "
            f"Got: {out}"
        )
    return reduced(x, dim, keepdim, out)


@meta_rule("aten.mean.dim", "aten.nanmean.default")
def mean_dim(x: TensorSpec, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> TensorSpec:
    return _mean(x, dim, keepdim, dtype)


@meta_rule("aten.amax.default", "aten.amin.default")
def amax(x: TensorSpec, dim: Any = (), keepdim: bool = False) -> TensorSpec:
    return reduced(x, dim, keepdim, x.dtype)


@meta_rule("aten.aminmax.default")
def aminmax(x: TensorSpec, *, dim: Any = None, keepdim: bool = False) -> tuple[TensorSpec, TensorSpec]:
    out = reduced(x, dim, keepdim, x.dtype)
    return out, out


@meta_rule("aten.max.default", "aten.min.default", "aten.median.default", "aten.nanmedian.default")
def max_all(x: TensorSpec) -> TensorSpec:
    return TensorSpec((), x.dtype, x.device)


@meta_rule("aten.max.dim", "aten.min.dim", "aten.median.dim", "aten.nanmedian.dim", "aten.mode.default")
def max_dim(x: TensorSpec, dim: int = -1, keepdim: bool = False) -> tuple[TensorSpec, TensorSpec]:
    return reduced(x, (dim,), keepdim, x.dtype), reduced(x, (dim,), keepdim, torch.int64)


@meta_rule("aten.kthvalue.default")
def kthvalue(x: TensorSpec, k: Size, dim: int = -1, keepdim: bool = False) -> tuple[TensorSpec, TensorSpec]:
    d = wrap_dim(dim, x.ndim)
    if not 1 <= k <= (x.shape[d] if x.ndim else 1):
        raise RuntimeError(f"kthvalue(): selected number k out of range for dimension {d}")
    return max_dim(x, dim, keepdim)


@meta_rule("aten.argmax.default", "aten.argmin.default")
def argmax(x: TensorSpec, dim: int | None = None, keepdim: bool = False) -> TensorSpec:
    return reduced(x, None if dim is None else (dim,), keepdim, torch.int64)


def _truth(x: TensorSpec) -> torch.dtype:
    return torch.uint8 if x.dtype is torch.uint8 else torch.bool


@meta_rule("aten.any.default", "aten.all.default")
def any_all(x: TensorSpec) -> TensorSpec:
    return TensorSpec((), _truth(x), x.device)


@meta_rule("aten._is_any_true.default", "aten._is_all_true.default")
def is_any_all(x: TensorSpec) -> TensorSpec:
    if x.dtype != torch.bool:
        raise RuntimeError(f"expected truth values, got {x.dtype}")
    return TensorSpec((), torch.bool, x.device)


@meta_rule("aten.any.dim", "aten.all.dim", "aten.any.dims", "aten.all.dims")
def any_dim(x: TensorSpec, dim: Any = None, keepdim: bool = False) -> TensorSpec:
    dims = (dim,) if isinstance(dim, int) else dim
    if dims is not None and not dims:
        # An empty list of dimensions reduces nothing.
        return with_format(x, None, _truth(x), x.device)
    return reduced(x, dims, keepdim, _truth(x))


@meta_rule("aten.count_nonzero.dim_IntList")
def count_nonzero_dims(x: TensorSpec, dim: Any) -> TensorSpec:
    return reduced(x, dim, False, torch.int64)


@meta_rule("aten.count_nonzero.default")
def count_nonzero(x: TensorSpec, dim: int | None = None) -> TensorSpec:
    return reduced(x, None if dim is None else (dim,), False, torch.int64)


@meta_rule("aten.logsumexp.default")
def logsumexp(x: TensorSpec, dim: Any, keepdim: bool = False) -> TensorSpec:
    return reduced(x, dim, keepdim, to_float_dtype(x.dtype))


@meta_rule("aten.var.correction", "aten.std.correction")
def var(x: TensorSpec, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> TensorSpec:
    return reduced(x, dim, keepdim, real_dtype(x.dtype))


@meta_rule("aten.var_mean.correction", "aten.std_mean.correction")
def var_mean(
    x: TensorSpec, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[TensorSpec, TensorSpec]:
    return reduced(x, dim, keepdim, real_dtype(x.dtype)), reduced(x, dim, keepdim, x.dtype)


@meta_rule("aten.norm.Scalar")
def norm_all(x: TensorSpec, p: Any = 2) -> TensorSpec:
    return TensorSpec((), real_dtype(x.dtype), x.device)


@meta_rule("aten.norm.ScalarOpt_dim")
def norm_dim(x: TensorSpec, p: Any, dim: Any, keepdim: bool = False) -> TensorSpec:
    return reduced(x, dim, keepdim, real_dtype(x.dtype))


@meta_rule("aten.norm.ScalarOpt_dim_dtype")
def norm_dim_dtype(x: TensorSpec, p: Any, dim: Any, keepdim: bool, *, dtype: torch.dtype) -> TensorSpec:
    return reduced(x, dim, keepdim, real_dtype(dtype))


@meta_rule("aten.norm.ScalarOpt_dtype")
def norm_dtype(x: TensorSpec, p: Any, *, dtype: torch.dtype) -> TensorSpec:
    return TensorSpec((), real_dtype(dtype), x.device)


@meta_rule("aten.linalg_vector_norm.default")
def vector_norm(
    x: TensorSpec, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> TensorSpec:
    return reduced(x, dim, keepdim, real_dtype(dtype or x.dtype))


@meta_rule("aten.dist.default")
def dist(x: TensorSpec, y: TensorSpec, p: Any = 2) -> TensorSpec:
    broadcast_shapes((x.shape, y.shape))
    if torch.bool in (x.dtype, y.dtype):
        raise RuntimeError("Subtraction, the `-` operator, with a bool tensor is not supported")
    return TensorSpec((), real_dtype(result_dtype((x, y))), x.device)


# ---- scans -------------------------------------------------------------------------------------------------


@meta_rule("aten.cumsum.default", "aten.cumprod.default")
def cumsum(x: TensorSpec, dim: int, *, dtype: Any = None) -> TensorSpec:
    wrap_dim(dim, x.ndim)
    return TensorSpec(x.shape, sum_dtype(x.dtype, dtype), x.device)


@meta_rule("aten.cummax.default", "aten.cummin.default")
def cummax(x: TensorSpec, dim: int) -> tuple[TensorSpec, TensorSpec]:
    return TensorSpec(x.shape, x.dtype, x.device), TensorSpec(x.shape, torch.int64, x.device)


@meta_rule("aten.logcumsumexp.default")
def logcumsumexp(x: TensorSpec, dim: int) -> TensorSpec:
    return with_format(x, torch.contiguous_format, x.dtype, x.device)


# ---- sorting -----------------------------------------------------------------------------------------------


@meta_rule("aten.sort.default")
def sort(x: TensorSpec, dim: int = -1, descending: bool = False) -> tuple[TensorSpec, TensorSpec]:
    strides = sort_strides(x)
    return (
        TensorSpec(x.shape, x.dtype, x.device, strides),
        TensorSpec(x.shape, torch.int64, x.device, strides),
    )


def sort_strides(x: TensorSpec) -> tuple[Size, ...]:
    """The values keep dense strides, else become contiguous."""
    return layout.like_strides(x.shape, x.strides)


@meta_rule("aten.sort.stable")
def sort_stable(
    x: TensorSpec, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[TensorSpec, TensorSpec]:
    return sort(x, dim, descending)


@meta_rule("aten.argsort.default")
def argsort(x: TensorSpec, dim: int = -1, descending: bool = False) -> TensorSpec:
    return sort(x, dim, descending)[1]


@meta_rule("aten.argsort.stable")
def argsort_stable(x: TensorSpec, *, stable: bool, dim: int = -1, descending: bool = False) -> TensorSpec:
    return sort(x, dim, descending)[1]


@meta_rule("aten.topk.default")
def topk(
    x: TensorSpec, k: Size, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[TensorSpec, TensorSpec]:
    d = wrap_dim(dim, x.ndim)
    if layout.is_surely_less(x.shape[d] if x.shape else 1, k):  # else the kernel says so
        raise RuntimeError("selected index k out of range")
    shape = (*x.shape[:d], k, *x.shape[d + 1 :]) if x.shape else ()
    return TensorSpec(shape, x.dtype, x.device), TensorSpec(shape, torch.int64, x.device)


@meta_rule("aten.histc.default")
def histc(x: TensorSpec, bins: int = 100, min: Any = 0, max: Any = 0) -> TensorSpec:
    return TensorSpec((bins,), x.dtype, x.device)


# ---- softmax -----------------------------------------------------------------------------------------------


@meta_rule("aten._softmax.default", "aten._log_softmax.default")
def softmax(x: TensorSpec, dim: int, half_to_float: bool) -> TensorSpec:
    wrap_dim(dim, x.ndim)
    return TensorSpec(x.shape, torch.float32 if half_to_float else x.dtype, x.device)


@meta_rule("aten.softmax.int", "aten.log_softmax.int")
def softmax_int(x: TensorSpec, dim: int, dtype: Any = None) -> TensorSpec:
    return TensorSpec(x.shape, dtype or x.dtype, x.device)


@meta_rule("aten._softmax_backward_data.default", "aten._log_softmax_backward_data.default")
def softmax_backward(grad: TensorSpec, out: TensorSpec, dim: int, input_dtype: torch.dtype) -> TensorSpec:
    wrap_dim(dim, grad.ndim)
    dtype = softmax_gradient_dtype(grad.dtype, grad.device, input_dtype)
    empty = any(isinstance(size, int) and size == 0 for size in grad.shape)
    if grad.device.type == "cpu" and not empty:
        if not grad.dtype.is_floating_point:
            raise NotImplementedError(f"the gradient of softmax is not implemented for {grad.dtype}")
        if not grad.dtype == out.dtype == dtype:
            raise RuntimeError(f"expected scalar type {grad.dtype}, but found {out.dtype} and {dtype}")
    return TensorSpec(grad.shape, dtype, grad.device)


@meta_rule("aten._safe_softmax.default")
def safe_softmax(x: TensorSpec, dim: int, dtype: Any = None) -> TensorSpec:
    return TensorSpec(x.shape, dtype or x.dtype, x.device)


@meta_rule("aten.glu.default")
def glu(x: TensorSpec, dim: int = -1) -> TensorSpec:
    d = wrap_dim(dim, x.ndim)
    half = x.shape[d] // 2
    if x.shape[d] % 2 != 0:
        raise RuntimeError(f"Halving dimension must be even, but dimension {d} is size {x.shape[d]}")
    return iterate((narrow_at(x, d, 0, half), narrow_at(x, d, half, half)), x.dtype)


@meta_rule("aten.glu_backward.default")
def glu_backward(grad: TensorSpec, x: TensorSpec, dim: int) -> TensorSpec:
    return TensorSpec(x.shape, x.dtype, x.device)


@meta_rule("aten.trace.default")
def trace(x: TensorSpec) -> TensorSpec:
    return TensorSpec((), sum_dtype(x.dtype, None), x.device)


@meta_rule("aten.equal.default")
def equal(x: TensorSpec, y: TensorSpec) -> Any:
    raise DataDependentError("torch.equal reads the values of tensors, of which only metadata is known here")
