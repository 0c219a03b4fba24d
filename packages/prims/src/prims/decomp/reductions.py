"""Reductions, scans and what is made of them (mean, variance, norms, logsumexp)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from prims.decomp.common import (
    Size,
    Value,
    full_like,
    is_float,
    is_integral,
    keep,
    norm_dim,
    norm_dims,
    number,
    opmath,
    prod,
    spread,
    to_dtype,
    unsupported,
    widened,
)
from prims.decomp.elementwise import as_bool, sub
from prims.decomp.registry import decomposition
from prims.decomp.views import reshaped
from prims.spec.expr import float_op
from prims.spec.sym import Sym, SymFloat, sym_max

Dims = int | Sequence[int] | None


def count(shape: Sequence[Size], dims: Sequence[int]) -> Size:
    """Number of elements reduced."""
    return prod([shape[d] for d in dims])


def _finish(p: Any, out: Value, x: Value, dims: Sequence[int], keepdim: bool) -> Value:
    return keep(p, out, x.shape, dims) if keepdim and x.ndim else out


def _bool_result(p: Any, self: Value, name: str, dims: Sequence[int]) -> Value:
    """A sum or product asked for in bool."""
    return reduced(p, "any" if name == "sum" else "all", as_bool(p, self), dims)


def _accumulated(p: Any, self: Value, dtype: torch.dtype | None) -> tuple[Value, torch.dtype]:
    """The input in its accumulation dtype, and the result's dtype: integers sum in int64, reduced
    precision in float32."""
    if dtype is None:
        dtype = torch.int64 if is_integral(self.dtype) else self.dtype
    if dtype.is_complex or self.dtype.is_complex:
        raise unsupported("complex tensors")
    return to_dtype(p, self, opmath(dtype)), dtype


def reduced(p: Any, name: str, x: Value, dims: Sequence[int]) -> Value:
    """One reduction primitive over some dimensions (none: the value itself)."""
    return getattr(p, name)(x, tuple(dims)) if dims else x


@decomposition("aten.sum.dim_IntList")
def sum_dims(
    p: Any, self: Value, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Value:
    """Sum over dimensions."""
    if dtype == torch.bool:
        dims = norm_dims(dim, self.ndim)
        return _finish(p, _bool_result(p, self, "sum", dims), self, dims, keepdim)
    x, out = _accumulated(p, self, dtype)
    dims = norm_dims(dim, x.ndim)
    total = reduced(p, "sum", x, dims) if dims else _sum_of_one(p, x)
    return _finish(p, to_dtype(p, total, out), x, dims, keepdim)


def _sum_of_one(p: Any, x: Value) -> Value:
    """The sum of a single number, which begins with 0, so that it is never -0.0, of each element."""
    return p.add(x, 0.0) if is_float(x.dtype) else x


@decomposition("aten.sum.default")
def sum_all(p: Any, self: Value, *, dtype: torch.dtype | None = None) -> Value:
    """Sum of everything."""
    return sum_dims(p, self, None, dtype=dtype)


@decomposition("aten.prod.dim_int")
def prod_dim(p: Any, self: Value, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Value:
    """Product over one dimension."""
    if dtype == torch.bool:
        dims = norm_dims(dim, self.ndim)
        return _finish(p, _bool_result(p, self, "prod", dims), self, dims, keepdim)
    x, out = _accumulated(p, self, dtype)
    dims = norm_dims(dim, x.ndim)
    return _finish(p, to_dtype(p, reduced(p, "prod", x, dims), out), x, dims, keepdim)


@decomposition("aten.prod.default")
def prod_all(p: Any, self: Value, *, dtype: torch.dtype | None = None) -> Value:
    """Product of everything."""
    x, out = _accumulated(p, self, dtype)
    return to_dtype(p, reduced(p, "prod", x, tuple(range(x.ndim))), out)


@decomposition("aten.mean.dim")
def mean_dims(
    p: Any, self: Value, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Value:
    """Mean over dimensions."""
    if dtype is None and is_integral(self.dtype):
        raise TypeError(f"mean: a floating-point dtype is needed, not {self.dtype}")
    x, out = _accumulated(p, self, dtype)
    dims = norm_dims(dim, x.ndim)
    return _finish(p, to_dtype(p, mean_of(p, x, dims), out), x, dims, keepdim)


def mean_of(p: Any, x: Value, dims: Sequence[int]) -> Value:
    """Mean of a float value, the dimensions dropped."""
    if not dims:
        return _sum_of_one(p, x)
    return p.div(p.sum(x, tuple(dims)), number(count(x.shape, dims), x.dtype))


@decomposition("aten.mean.default")
def mean_all(p: Any, self: Value, *, dtype: torch.dtype | None = None) -> Value:
    """Mean of everything."""
    return mean_dims(p, self, None, dtype=dtype)


def var_mean_of(p: Any, x: Value, dims: Sequence[int], correction: float) -> tuple[Value, Value]:
    """Variance and mean in two passes: the mean first, then the mean square of the centred values.

    Source: the "corrected two-pass" scheme without its correction term, Chan, Golub, LeVeque 1983.
    """
    mean = mean_of(p, x, dims)
    return var_about(p, x, mean, dims, correction), mean


def var_about(p: Any, x: Value, mean: Value, dims: Sequence[int], correction: float) -> Value:
    """The variance, of which the mean is known."""
    n = count(x.shape, dims)
    # Of one number exactly 0, however a kernel computes the number twice: 0 / 0 is no infinity.
    middle = x if n == 1 else spread(p, mean, x.shape, dims) if dims else mean
    centred = p.sub(x, middle)
    total = reduced(p, "sum", p.mul(centred, centred), dims)
    left = n - correction if correction else n
    if isinstance(left, (int, float)):
        left = max(float(left), 0.0)
        if left == 0.0:
            return p.div(total, full_like(p, total, 0.0))
    elif isinstance(left, Sym):
        left = sym_max(left, 0)
    else:
        left = SymFloat(float_op("fmax", left.expr, 0.0), left.ctx)
    return p.div(total, left)


def _var_mean(
    p: Any, self: Value, dim: Dims, correction: float | None, keepdim: bool
) -> tuple[Value, Value, Sequence[int]]:
    if not self.dtype.is_floating_point:
        raise unsupported("variance of a tensor that is not real floating point")
    x = widened(p, to_dtype(p, self, opmath(self.dtype)))
    dims = norm_dims(dim, x.ndim)
    var, mean = var_mean_of(p, x, dims, 1 if correction is None else correction)
    return var, mean, dims


@decomposition("aten.var.correction")
def var(p: Any, self: Value, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Value:
    """Variance over dimensions."""
    v, _, dims = _var_mean(p, self, dim, correction, keepdim)
    return _finish(p, to_dtype(p, v, self.dtype), self, dims, keepdim)


@decomposition("aten.std.correction")
def std(p: Any, self: Value, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Value:
    """Standard deviation over dimensions."""
    v, _, dims = _var_mean(p, self, dim, correction, keepdim)
    return _finish(p, to_dtype(p, p.sqrt(v), self.dtype), self, dims, keepdim)


@decomposition("aten.var_mean.correction")
def var_mean(
    p: Any, self: Value, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    """Variance and mean over dimensions."""
    v, m, dims = _var_mean(p, self, dim, correction, keepdim)
    v, m = to_dtype(p, v, self.dtype), to_dtype(p, m, self.dtype)
    return _finish(p, v, self, dims, keepdim), _finish(p, m, self, dims, keepdim)


@decomposition("aten.std_mean.correction")
def std_mean(
    p: Any, self: Value, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Value, Value]:
    """Standard deviation and mean over dimensions."""
    v, m, dims = _var_mean(p, self, dim, correction, keepdim)
    v, m = to_dtype(p, p.sqrt(v), self.dtype), to_dtype(p, m, self.dtype)
    return _finish(p, v, self, dims, keepdim), _finish(p, m, self, dims, keepdim)


# ---- extremes -------------------------------------------------------------------------------------------


def _extreme(p: Any, self: Value, name: str, dims: Sequence[int], keepdim: bool) -> Value:
    if self.dtype == torch.bool:
        out = reduced(p, "any" if name == "amax" else "all", self, dims)
    else:
        out = reduced(p, name, self, dims)
    return _finish(p, out, self, dims, keepdim)


@decomposition("aten.amax.default")
def amax(p: Any, self: Value, dim: Dims = (), keepdim: bool = False) -> Value:
    """Largest element over dimensions (NaN wins)."""
    return _extreme(p, self, "amax", norm_dims(dim, self.ndim), keepdim)


@decomposition("aten.amin.default")
def amin(p: Any, self: Value, dim: Dims = (), keepdim: bool = False) -> Value:
    """Smallest element over dimensions (NaN wins)."""
    return _extreme(p, self, "amin", norm_dims(dim, self.ndim), keepdim)


@decomposition("aten.aminmax.default")
def aminmax(p: Any, self: Value, *, dim: int | None = None, keepdim: bool = False) -> tuple[Value, Value]:
    """Smallest and largest element."""
    return amin(p, self, dim, keepdim), amax(p, self, dim, keepdim)


@decomposition("aten.max.default")
def max_all(p: Any, self: Value) -> Value:
    """Largest element of all."""
    return amax(p, self)


@decomposition("aten.min.default")
def min_all(p: Any, self: Value) -> Value:
    """Smallest element of all."""
    return amin(p, self)


def _arg_of(p: Any, self: Value, name: str, dim: int, keepdim: bool) -> Value:
    if self.ndim == 0:
        return p.full((), 0, torch.int64, self.device)
    x = to_dtype(p, self, torch.uint8) if self.dtype == torch.bool else self
    return _finish(p, getattr(p, name)(x, dim), self, (dim,), keepdim)


def _extreme_with_index(p: Any, self: Value, kind: str, dim: int, keepdim: bool) -> tuple[Value, Value]:
    dim = norm_dim(dim, self.ndim)
    values = _extreme(p, self, f"a{kind}", (dim,) if self.ndim else (), keepdim)
    return values, _arg_of(p, self, f"arg{kind}", dim, keepdim)


@decomposition("aten.max.dim")
def max_dim(p: Any, self: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """Largest element along a dimension and its (first) index."""
    return _extreme_with_index(p, self, "max", dim, keepdim)


@decomposition("aten.min.dim")
def min_dim(p: Any, self: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """Smallest element along a dimension and its (first) index."""
    return _extreme_with_index(p, self, "min", dim, keepdim)


def _arg(p: Any, self: Value, name: str, dim: int | None, keepdim: bool) -> Value:
    if dim is None:
        out = _arg_of(p, reshaped(p, self, (prod(self.shape),)), name, 0, False)
        return keep(p, out, self.shape, range(self.ndim)) if keepdim else out
    return _arg_of(p, self, name, norm_dim(dim, self.ndim), keepdim)


@decomposition("aten.argmax.default")
def argmax(p: Any, self: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """Index of the largest element (of the flattened tensor when no dimension is given)."""
    return _arg(p, self, "argmax", dim, keepdim)


@decomposition("aten.argmin.default")
def argmin(p: Any, self: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """Index of the smallest element (of the flattened tensor when no dimension is given)."""
    return _arg(p, self, "argmin", dim, keepdim)


def _logical(p: Any, self: Value, name: str, dim: Dims, keepdim: bool) -> Value:
    dims = norm_dims(dim, self.ndim)
    out = _finish(p, reduced(p, name, as_bool(p, self), dims), self, dims, keepdim)
    # uint8 is the one dtype for which eager keeps the input's dtype.
    return to_dtype(p, out, torch.uint8) if self.dtype == torch.uint8 else out


@decomposition("aten.any.default", "aten.any.dim", "aten.any.dims", "aten._is_any_true.default")
def any_(p: Any, self: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    """Is any element non-zero?"""
    return _logical(p, self, "any", dim, keepdim)


@decomposition("aten.all.default", "aten.all.dim", "aten.all.dims", "aten._is_all_true.default")
def all_(p: Any, self: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    """Are all elements non-zero?"""
    return _logical(p, self, "all", dim, keepdim)


@decomposition("aten.count_nonzero.dim_IntList", "aten.count_nonzero.default")
def count_nonzero(p: Any, self: Value, dim: Dims = None) -> Value:
    """Number of non-zero elements."""
    return reduced(p, "sum", to_dtype(p, as_bool(p, self), torch.int64), norm_dims(dim, self.ndim))


# ---- norms ----------------------------------------------------------------------------------------------


@decomposition("aten.logsumexp.default")
def logsumexp(p: Any, self: Value, dim: Dims, keepdim: bool = False) -> Value:
    """log(sum(exp(x))), shifted by the largest finite element."""
    dtype = torch.get_default_dtype() if is_integral(self.dtype) else self.dtype
    x = to_dtype(p, self, opmath(dtype))
    dims = norm_dims(dim, x.ndim)
    top = reduced(p, "amax", x, dims)
    top = p.where(p.eq(p.abs(top), math.inf), 0.0, top)
    shifted = p.sub(x, spread(p, top, x.shape, dims) if dims else top)
    out = p.add(p.log(reduced(p, "sum", p.exp(shifted), dims)), top)
    return _finish(p, to_dtype(p, out, dtype), x, dims, keepdim)


def _power_sum(p: Any, x: Value, order: float, dims: Sequence[int]) -> Value:
    if order == 2:
        return reduced(p, "sum", p.mul(x, x), dims)
    size = p.abs(x)
    return reduced(p, "sum", size if order == 1 else p.pow(size, float(order)), dims)


def _vector_norm(p: Any, x: Value, order: float, dims: Sequence[int]) -> Value:
    size = p.abs(x)
    if order == math.inf:
        return reduced(p, "amax", size, dims)
    if order == -math.inf:
        return reduced(p, "amin", size, dims)
    if order == 0:
        return reduced(p, "sum", to_dtype(p, p.ne(x, 0.0), x.dtype), dims)
    total = _power_sum(p, x, order, dims)
    return p.sqrt(total) if order == 2 else total if order == 1 else p.pow(total, 1.0 / float(order))


def _real(p: Any, self: Value, dtype: torch.dtype | None) -> tuple[Value, torch.dtype]:
    """The numbers of which a norm is taken, and the type of the norm."""
    out = dtype or self.dtype
    if not (self.dtype.is_floating_point and out.is_floating_point):  # eager refuses integers, whatever the dtype
        raise unsupported("norm of a tensor that is not real floating point")
    return to_dtype(p, to_dtype(p, self, out), opmath(out)), out


def power_sum(p: Any, self: Value, order: float, dtype: torch.dtype | None = None) -> Value:
    """The sum of all sizes to a power."""
    x, out = _real(p, self, dtype)
    return to_dtype(p, _power_sum(p, x, order, tuple(range(x.ndim))), out)


@decomposition("aten.linalg_vector_norm.default")
def linalg_vector_norm(
    p: Any,
    self: Value,
    ord: Any = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    """The p-norm over dimensions."""
    x, out = _real(p, self, dtype)
    dims = norm_dims(dim, x.ndim)
    if ord != 0 and all(isinstance(x.shape[d], int) and x.shape[d] == 1 for d in dims):
        # As eager, without a power that could overflow.
        norm = p.reshape(p.abs(x), tuple(s for d, s in enumerate(x.shape) if d not in dims))
    else:
        norm = _vector_norm(p, x, ord, dims)
    return _finish(p, to_dtype(p, norm, out), x, dims, keepdim)


@decomposition("aten.norm.ScalarOpt_dim", "aten.norm.ScalarOpt_dim_dtype")
def norm_dim_(
    p: Any, self: Value, p_: Any, dim: Dims, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Value:
    """The p-norm over dimensions."""
    return linalg_vector_norm(p, self, 2 if p_ is None else p_, dim, keepdim, dtype=dtype)


@decomposition("aten.norm.Scalar")
def norm_all(p: Any, self: Value, p_: Any = 2) -> Value:
    """The p-norm of everything."""
    return linalg_vector_norm(p, self, p_)


# ---- scans ----------------------------------------------------------------------------------------------


def _scan(p: Any, self: Value, name: str, dim: int, dtype: torch.dtype | None) -> Value:
    x, out = _accumulated(p, self, dtype)
    if x.ndim == 0:
        return to_dtype(p, x, out)
    return to_dtype(p, getattr(p, name)(x, norm_dim(dim, x.ndim)), out)


@decomposition("aten.cumsum.default")
def cumsum(p: Any, self: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
    """Running sum along a dimension.

    A GPU's kernels for several sequences begin each with a zero, so that none of their sums is -0.0; the one for a
    single sequence begins with its first number (``ATen/native/cuda/ScanKernels.cpp`` of PyTorch 2.11).
    """
    sums = _scan(p, self, "cumsum", dim, dtype)
    if self.device.type != "cuda" or _is_one_sequence(self, dim):
        return sums
    return _sum_of_one(p, sums)


def _is_one_sequence(x: Value, dim: int) -> bool:
    along = norm_dim(dim, x.ndim) if x.ndim else 0
    return all(isinstance(s, int) and s == 1 for d, s in enumerate(x.shape) if d != along)


@decomposition("aten.cumprod.default")
def cumprod(p: Any, self: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
    """Running product along a dimension."""
    return _scan(p, self, "cumprod", dim, dtype)


@decomposition("aten.dist.default")
def dist(p: Any, self: Value, other: Value, p_: Any = 2) -> Value:
    """The p-norm of the difference."""
    return linalg_vector_norm(p, sub(p, self, other), p_)
