"""Rarer elementwise functions, and small ops made of common ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from prims.decomp.common import (
    Size,
    Value,
    broadcast_shapes,
    chosen_device,
    expand,
    float_dtype,
    full_like,
    in_opmath,
    is_float,
    is_integral,
    is_value,
    norm_dim,
    number,
    numel,
    operands,
    opmath,
    result_dtype,
    scalar_dtype,
    to_dtype,
    unsupported,
    whole,
)
from prims.decomp.elementwise import mul
from prims.decomp.reductions import linalg_vector_norm, sum_dims
from prims.decomp.registry import decomposition
from prims.decomp.views import diagonal, reshaped, swapped


@decomposition("aten.special_entr.default")
@in_opmath
def special_entr(p: Any, self: Value) -> Value:
    """-x log(x) for x > 0, 0 at 0, -inf below."""
    inside = p.neg(p.mul(self, p.log(self)))
    low = p.where(p.eq(self, 0.0), 0.0, full_like(p, self, -math.inf))
    return p.where(p.isnan(self), self, p.where(p.gt(self, 0.0), inside, low))


@decomposition(
    "aten.special_xlog1py.default", "aten.special_xlog1py.self_scalar", "aten.special_xlog1py.other_scalar"
)
def special_xlog1py(p: Any, self: Any, other: Any) -> Value:
    """self * log1p(other), 0 where self is 0 (NaN of other stays)."""
    dtype = float_dtype(result_dtype(self, other))
    x, y = operands(p, self, other, dtype=opmath(dtype))
    x, y = x if is_value(x) else full_like(p, y, x), y if is_value(y) else full_like(p, x, y)
    out = p.where(p.eq(x, 0.0), 0.0, p.mul(x, p.log1p(y)))
    return to_dtype(p, p.where(p.isnan(y), math.nan, out), dtype)


@decomposition("aten.angle.default")
def angle(p: Any, self: Value) -> Value:
    """pi for negative numbers, 0 for others, NaN for NaN."""
    x = to_dtype(p, self, float_dtype(self.dtype))
    half_turn = p.where(p.lt(x, 0.0), math.pi, full_like(p, x, 0.0))
    return p.where(p.isnan(x), x, half_turn)


@decomposition("aten.ldexp.Tensor")
def ldexp(p: Any, self: Value, other: Value) -> Value:
    """self * 2 ** other; exactly, for integers `other`."""
    if is_float(self.dtype) and is_integral(other.dtype):
        return _scaled(p, self, other)
    power_dtype = float_dtype(other.dtype)
    power = p.exp2(to_dtype(p, other, power_dtype))
    return mul(p, self, power)


def _scaled(p: Any, self: Value, exponent: Value) -> Value:
    """A float times a power of two, in three steps of which none overflows where the result does not.

    The power is C's ``int``: of 64 bits eager's kernels take the lower half.
    """
    compute = opmath(self.dtype)
    bits, integer, bias, reach = (
        (52, torch.int64, 1023, 2200) if compute == torch.float64 else (23, torch.int32, 127, 280)
    )
    shape = broadcast_shapes(self.shape, exponent.shape)
    x = expand(p, to_dtype(p, self, compute), shape)
    power = to_dtype(p, exponent, torch.int32) if exponent.dtype == torch.int64 else exponent
    steps = p.maximum(-reach, p.minimum(reach, expand(p, to_dtype(p, power, torch.int64), shape)))
    third = p.trunc_div(steps, 3)
    for part in (third, third, p.sub(steps, p.mul(third, 2))):
        raised = p.convert(p.mul(p.add(part, bias), 1 << bits), integer)
        x = p.mul(x, p.bitcast(raised, compute))
    return to_dtype(p, x, self.dtype)


@decomposition("aten.nansum.default")
def nansum(
    p: Any,
    self: Value,
    dim: Sequence[int] | int | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    """Sum that counts NaN as 0."""
    x = p.where(p.isnan(self), 0.0, self) if is_float(self.dtype) else self
    return sum_dims(p, x, dim, keepdim, dtype=dtype)


@decomposition("aten.trace.default")
def trace(p: Any, self: Value) -> Value:
    """Sum of the diagonal."""
    return sum_dims(p, diagonal(p, self), (0,))


@decomposition("aten.isin.Tensor_Tensor", "aten.isin.Tensor_Scalar", "aten.isin.Scalar_Tensor")
def isin(p: Any, elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Value:
    """Is each element among the test elements? A number stands for a tensor of one element."""
    elements, test_elements = (
        x if is_value(x) else p.full((), x, scalar_dtype(x), y.device)
        for x, y in ((elements, test_elements), (test_elements, elements))
    )
    dtype = result_dtype(elements, test_elements)
    tests = reshaped(p, to_dtype(p, test_elements, dtype), (numel(test_elements),))
    shape = (*elements.shape, tests.shape[0])
    x = p.broadcast(to_dtype(p, elements, dtype), shape, tuple(range(elements.ndim)))
    same = p.eq(x, p.broadcast(tests, shape, (elements.ndim,)))
    found = p.any(same, (elements.ndim,))
    return p.logical_not(found) if invert else found


@decomposition("aten.channel_shuffle.default")
def channel_shuffle(p: Any, self: Value, groups: int) -> Value:
    """Channels [g, c / g] as [c / g, g]."""
    n, c, *rest = self.shape
    split = p.reshape(self, (n, groups, c // groups, *rest))
    return p.reshape(swapped(p, split, 1, 2), tuple(self.shape))


@decomposition("aten.linalg_cross.default")
def linalg_cross(p: Any, self: Value, other: Value, *, dim: int = -1) -> Value:
    """Vector product along a dimension of size 3."""
    shape = broadcast_shapes(self.shape, other.shape)
    x, y = operands(p, expand(p, self, shape), expand(p, other, shape))
    at = norm_dim(dim, x.ndim)

    def turned(v: Value, by: int) -> Value:
        def piece(low: int, high: int) -> Value:
            starts, stops = [0] * v.ndim, list(v.shape)
            starts[at], stops[at] = low, high
            return p.slice(v, tuple(starts), tuple(stops), (1,) * v.ndim)

        return p.concat((piece(by, 3), piece(0, by)), at)

    return p.sub(p.mul(turned(x, 1), turned(y, 2)), p.mul(turned(x, 2), turned(y, 1)))


@decomposition("aten.renorm.default")
def renorm(p: Any, self: Value, p_: Any, dim: int, maxnorm: Any) -> Value:
    """Slices along a dimension scaled down to a norm of at most `maxnorm`."""
    at = norm_dim(dim, self.ndim)
    x = to_dtype(p, self, opmath(self.dtype))
    norm = linalg_vector_norm(p, x, p_, tuple(d for d in range(x.ndim) if d != at))
    limit = float(maxnorm)
    factor = p.where(p.gt(norm, limit), p.div(limit, p.add(norm, 1e-7)), 1.0)
    return to_dtype(p, p.mul(x, p.broadcast(factor, tuple(x.shape), (at,))), self.dtype)


@decomposition("aten._efficientzerotensor.default")
def efficient_zeros(p: Any, size: Sequence[Size], **kw: Any) -> Value:
    """0 everywhere."""
    dtype = kw.get("dtype") or torch.get_default_dtype()
    if dtype.is_complex:
        raise unsupported("complex tensors")
    return p.full(tuple(size), number(0, dtype), dtype, chosen_device(kw.get("device")))


@decomposition("aten.logspace.default")
def logspace(p: Any, start: Any, end: Any, steps: Size, base: float = 10.0, **kw: Any) -> Value:
    """base ** linspace(start, end, steps), in float64 where the result is float32, as accurate as eager."""
    dtype = kw.get("dtype") or torch.get_default_dtype()
    if is_integral(dtype) or dtype.is_complex or is_value(start) or is_value(end):
        raise whole("logspace of integers or between tensors")
    device = chosen_device(kw.get("device"))
    if steps == 1:
        return p.full((1,), float(base) ** float(start), dtype, device)
    gap = (float(end) - float(start)) / (steps - 1)
    line = p.iota(steps, float(start), gap, torch.float64, device)
    return to_dtype(p, p.pow(float(base), line), dtype)


@decomposition("aten.masked_scatter_backward.default")
def masked_scatter_backward(p: Any, grad_output: Value, mask: Value, sizes: Sequence[Size]) -> Value:
    """The masked gradients, in order, as the first elements of the source's gradient."""
    shape = tuple(grad_output.shape)
    n, count = numel(grad_output), _product(sizes)
    grad = reshaped(p, grad_output, (n,))
    hit = reshaped(p, expand(p, mask, shape), (n,))
    # The k-th masked element goes to place k; the others go to one extra place that is cut off.
    rank = p.sub(p.cumsum(to_dtype(p, hit, torch.int64), 0), 1)
    place = p.where(hit, rank, count)
    zeros = p.full((count + 1,), number(0, grad.dtype), grad.dtype, grad.device)
    filled = p.scatter(zeros, place, grad, 0, "set")
    return reshaped(p, p.slice(filled, (0,), (count,), (1,)), sizes)


def _product(sizes: Sequence[Size]) -> Size:
    total: Size = 1
    for size in sizes:
        total = total * size
    return total
