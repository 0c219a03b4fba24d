"""Elementwise ATen ops that are a primitive, or a short formula of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from prims.decomp.common import (
    REDUCED,
    Value,
    broadcast_shapes,
    element,
    expand,
    float_dtype,
    full_like,
    in_opmath,
    is_float,
    is_integral,
    is_value,
    number,
    operands,
    opmath,
    result_dtype,
    rounded,
    to_dtype,
    unsupported,
)
from prims.decomp.registry import decomposition
from prims.spec.layout import is_surely_less

# ---- one operand ----------------------------------------------------------------------------------------

# Integers are promoted to the default float dtype.
FLOAT_UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh tanh "
    "asinh acosh atanh erf erfc erfinv lgamma digamma sigmoid"
).split()
# Integers stay what they are.
ROUNDING = "ceil floor trunc round".split()


def _float_unary(name: str) -> Callable[..., Value]:
    def fn(p: Any, self: Value) -> Value:
        return getattr(p, name)(to_dtype(p, self, float_dtype(self.dtype)))

    return fn


def _rounding(name: str) -> Callable[..., Value]:
    def fn(p: Any, self: Value) -> Value:
        return self if is_integral(self.dtype) else getattr(p, name)(self)

    return fn


for _name in FLOAT_UNARY:
    decomposition(f"aten.{_name}.default")(_float_unary(_name))
for _name in ROUNDING:
    decomposition(f"aten.{_name}.default")(_rounding(_name))


def _real(x: Value) -> Value:
    if x.dtype.is_complex:
        raise unsupported("complex tensors")
    return x


@decomposition("aten.neg.default")
def neg(p: Any, self: Value) -> Value:
    """-x"""
    return p.neg(_real(self))


@decomposition("aten.abs.default")
def abs_(p: Any, self: Value) -> Value:
    """|x|"""
    return _real(self) if self.dtype in (torch.bool, torch.uint8) else p.abs(_real(self))


@decomposition("aten.sign.default", "aten.sgn.default")
def sign(p: Any, self: Value) -> Value:
    """-1, 0 or 1"""
    return self if self.dtype == torch.bool else p.sign(_real(self))


@decomposition("aten.positive.default")
def positive(p: Any, self: Value) -> Value:
    """x"""
    return self


@decomposition("aten.square.default")
def square(p: Any, self: Value) -> Value:
    """x * x"""
    x = to_dtype(p, self, torch.int64) if self.dtype == torch.bool else _real(self)
    return p.mul(x, x)


@decomposition("aten.frac.default")
def frac(p: Any, self: Value) -> Value:
    """x - trunc(x)"""
    return p.sub(self, p.trunc(self))


@decomposition("aten.signbit.default")
def signbit(p: Any, self: Value) -> Value:
    """Is the sign bit set? -0.0 counts, so copy the sign to 1 before comparing."""
    if self.dtype == torch.bool:
        return full_like(p, self, False)
    if is_integral(self.dtype):
        return p.lt(self, 0)
    return p.lt(p.copysign(full_like(p, self, 1.0), self), 0.0)


@decomposition("aten.deg2rad.default")
@in_opmath
def deg2rad(p: Any, self: Value) -> Value:
    """Degrees to radians."""
    return p.mul(self, math.pi / 180.0)


@decomposition("aten.rad2deg.default")
@in_opmath
def rad2deg(p: Any, self: Value) -> Value:
    """Radians to degrees."""
    return p.mul(self, 180.0 / math.pi)


@decomposition("aten.sinc.default")
@in_opmath
def sinc(p: Any, self: Value) -> Value:
    """sin(pi x) / (pi x), 1 at 0."""
    scaled = p.mul(self, math.pi)
    return p.where(p.eq(self, 0.0), full_like(p, self, 1.0), p.div(p.sin(scaled), scaled))


@decomposition("aten.round.decimals")
def round_decimals(p: Any, self: Value, *, decimals: int) -> Value:
    """Round to a number of decimal places."""
    if decimals == 0 or is_integral(self.dtype):
        return p.round(self) if is_float(self.dtype) else self
    if self.dtype in REDUCED:
        raise unsupported("round to decimals in reduced precision")
    scale = 10.0 ** abs(decimals)
    if decimals > 0:
        return p.div(p.round(p.mul(self, scale)), scale)
    return p.mul(p.round(p.div(self, scale)), scale)


@decomposition("aten.isnan.default")
def isnan(p: Any, self: Value) -> Value:
    """Is it not a number?"""
    return full_like(p, self, False, torch.bool) if is_integral(self.dtype) else p.isnan(_real(self))


@decomposition("aten.isinf.default")
def isinf(p: Any, self: Value) -> Value:
    """Is it infinite?"""
    return full_like(p, self, False, torch.bool) if is_integral(self.dtype) else p.isinf(_real(self))


@decomposition("aten.isfinite.default")
def isfinite(p: Any, self: Value) -> Value:
    """Is it neither infinite nor NaN?"""
    if is_integral(self.dtype):
        return full_like(p, self, True, torch.bool)
    return p.lt(p.abs(_real(self)), math.inf)


@decomposition("aten.isposinf.default")
def isposinf(p: Any, self: Value) -> Value:
    """Is it +inf?"""
    return full_like(p, self, False, torch.bool) if is_integral(self.dtype) else p.eq(self, math.inf)


@decomposition("aten.isneginf.default")
def isneginf(p: Any, self: Value) -> Value:
    """Is it -inf?"""
    return full_like(p, self, False, torch.bool) if is_integral(self.dtype) else p.eq(self, -math.inf)


@decomposition("aten.nan_to_num.default")
def nan_to_num(
    p: Any, self: Value, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Value:
    """Replace NaN and infinities by numbers (by 0 and the dtype's extremes)."""
    if is_integral(self.dtype):
        return self
    limits = torch.finfo(self.dtype)
    out = p.where(p.isnan(self), 0.0 if nan is None else nan, self)
    out = p.where(p.eq(self, math.inf), limits.max if posinf is None else posinf, out)
    return p.where(p.eq(self, -math.inf), limits.min if neginf is None else neginf, out)


@decomposition("aten.bitwise_not.default")
def bitwise_not(p: Any, self: Value) -> Value:
    """~x"""
    return p.logical_not(self) if self.dtype == torch.bool else p.bitwise_not(self)


def as_bool(p: Any, x: Any) -> Any:
    """x != 0"""
    if not is_value(x):
        return bool(x)
    return x if x.dtype == torch.bool else p.ne(x, number(0, x.dtype))


@decomposition("aten.logical_not.default")
def logical_not(p: Any, self: Value) -> Value:
    """not x"""
    return p.logical_not(as_bool(p, self))


# ---- two operands ---------------------------------------------------------------------------------------


def _is_precise(scalar: Any, dtype: torch.dtype, other: Any = None) -> bool:
    """Is this an operand that eager takes, for a result of reduced precision, in the precision in which it computes?

    So it takes 0-dimensional tensors on the CPU: the second one of products and quotients; and where `other`, the other
    operand, is on a GPU, either one of products and sums too.
    """
    if dtype not in REDUCED or not is_value(scalar) or scalar.ndim or scalar.dtype in REDUCED:
        return False
    beside = other is None or (is_value(other) and other.device.type != "cpu")
    return is_float(scalar.dtype) and scalar.device.type == "cpu" and beside


def _sum(p: Any, self: Any, other: Any, alpha: Any, combine: str) -> Value:
    dtype = result_dtype(self, other)
    if dtype == torch.bool:
        if combine == "sub":
            raise TypeError("subtraction of bool tensors is not supported: use ^ or logical_xor")
        x, y = operands(p, self, other)
        return p.logical_or(x, y) if alpha else expand(p, to_dtype(p, self, dtype), x.shape)
    plain = isinstance(alpha, (int, float)) and alpha == 1
    wide = _is_precise(self, dtype, other) or _is_precise(other, dtype, self)
    compute = dtype if plain and not wide else opmath(dtype)
    if dtype in REDUCED:
        both = self, other
        self, other, alpha = (_as_added(p, x, dtype, *both) for x in (*both, alpha))
    x, y = operands(p, self, other, dtype=compute)
    if not plain and is_value(alpha):
        y = p.mul(*operands(p, y, alpha, dtype=compute))
    elif not plain:
        alpha = number(alpha, compute)
        y = p.mul(y, alpha) if is_value(y) else y * alpha
    return to_dtype(p, getattr(p, combine)(x, y), dtype)


def _as_added(p: Any, x: Any, dtype: torch.dtype, *both: Any) -> Any:
    """A number as eager adds it: on a CPU in the 16-bit dtype itself (products take a second one as it is)."""
    device = next((v.device for v in both if is_value(v) and v.device.type == "cpu"), None)
    if device is None or is_value(x) or isinstance(x, (bool, complex)):
        return x
    return rounded(x, dtype) if isinstance(x, (int, float)) else p.full((), x, dtype, device)


@decomposition("aten.add.Tensor", "aten.add.Scalar")
def add(p: Any, self: Any, other: Any, alpha: Any = 1) -> Value:
    """self + alpha * other"""
    return _sum(p, self, other, alpha, "add")


@decomposition("aten.sub.Tensor", "aten.sub.Scalar")
def sub(p: Any, self: Any, other: Any, alpha: Any = 1) -> Value:
    """self - alpha * other"""
    return _sum(p, self, other, alpha, "sub")


@decomposition("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(p: Any, self: Any, other: Any, alpha: Any = 1) -> Value:
    """other - alpha * self"""
    return _sum(p, other, self, alpha, "sub")


@decomposition("aten.mul.Tensor", "aten.mul.Scalar")
def mul(p: Any, self: Any, other: Any) -> Value:
    """self * other"""
    dtype = result_dtype(self, other)
    compute = torch.float32 if _is_precise(other, dtype) or _is_precise(self, dtype, other) else dtype
    self = _as_added(p, self, dtype, other) if dtype in REDUCED else self  # as a first operand it is no scalar
    x, y = operands(p, self, other, dtype=compute)
    return p.logical_and(x, y) if dtype == torch.bool else to_dtype(p, p.mul(x, y), dtype)


def _true_div(p: Any, self: Any, other: Any) -> Value:
    dtype = float_dtype(result_dtype(self, other))
    self = rounded(self, dtype) if isinstance(self, (int, float)) else self
    x, y = operands(p, self, other, dtype=torch.float32 if _is_precise(other, dtype) else dtype)
    if type(y) in (int, float) and x.device.type == "cuda":
        # As eager does on a GPU, to its last bit, and without a division in every element.
        return p.mul(x, torch.ones((), dtype=opmath(dtype)).div(torch.tensor(y, dtype=opmath(dtype))).item())
    return to_dtype(p, p.div(x, y), dtype)


@decomposition("aten.div.Tensor", "aten.div.Scalar")
def div(p: Any, self: Any, other: Any) -> Value:
    """self / other, in floating point."""
    return _true_div(p, self, other)


@decomposition("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(p: Any, self: Any, other: Any, *, rounding_mode: str | None) -> Value:
    """self / other, rounded towards zero ("trunc") or down ("floor"), or true division (None)."""
    if rounding_mode is None:
        return _true_div(p, self, other)
    return _rounded_div(p, self, other, "trunc_div" if rounding_mode == "trunc" else "floor_div")


def _rounded_div(p: Any, self: Any, other: Any, divide: str) -> Value:
    dtype = result_dtype(self, other)
    self = rounded(self, dtype) if isinstance(self, (int, float)) else self
    x, y = operands(p, self, other, dtype=torch.float32 if _is_precise(other, dtype) else dtype)
    return to_dtype(p, getattr(p, divide)(x, y), dtype)


@decomposition("aten.floor_divide.default", "aten.floor_divide.Scalar")
def floor_divide(p: Any, self: Any, other: Any) -> Value:
    """self / other, rounded down."""
    return _rounded_div(p, self, other, "floor_div")


def _rounded_numbers(p: Any, self: Any, other: Any) -> list[Any]:
    """Operands of a remainder, of which eager rounds numbers to the result's type: the rest jumps with the divisor."""
    dtype = result_dtype(self, other)
    return operands(p, *(rounded(x, dtype) if isinstance(x, (int, float)) else x for x in (self, other)))


@decomposition("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")
def remainder(p: Any, self: Any, other: Any) -> Value:
    """Modulus with the divisor's sign."""
    return p.remainder(*_rounded_numbers(p, self, other))


@decomposition("aten.fmod.Tensor", "aten.fmod.Scalar")
def fmod(p: Any, self: Any, other: Any) -> Value:
    """Modulus with the dividend's sign."""
    return p.fmod(*_rounded_numbers(p, self, other))


_SMALL_POWERS = {
    0.5: lambda p, x: p.sqrt(x),
    -0.5: lambda p, x: p.rsqrt(x),
    1.0: lambda p, x: x,
    2.0: lambda p, x: p.mul(x, x),
    3.0: lambda p, x: p.mul(p.mul(x, x), x),
    -1.0: lambda p, x: p.reciprocal(x),
    -2.0: lambda p, x: p.reciprocal(p.mul(x, x)),
}


@decomposition("aten.pow.Tensor_Scalar")
def pow_scalar(p: Any, self: Value, exponent: Any) -> Value:
    """self ** exponent; small powers are products, as in eager's kernel."""
    dtype = result_dtype(self, exponent)
    if isinstance(exponent, (int, float)):
        exponent = rounded(exponent, dtype) if is_float(dtype) else exponent
        if exponent == 0:
            return full_like(p, self, 1, dtype)
        small = _SMALL_POWERS.get(float(exponent))
        if small is not None and (is_float(dtype) or exponent in (1, 2, 3)) and dtype != torch.bool:
            return to_dtype(p, small(p, to_dtype(p, self, opmath(dtype))), dtype)
    if is_integral(dtype) and exponent < 0:
        raise RuntimeError("integers to negative integer powers are not allowed")
    if dtype == torch.float32 and not _is_exact_in_single(exponent):
        return to_dtype(p, p.pow(to_dtype(p, self, torch.float64), number(exponent, torch.float64)), dtype)
    return p.pow(to_dtype(p, self, dtype), number(exponent, dtype))


# The integers up to here are float32 numbers. Of those beyond it only the even ones are: an odd exponent would lose the
# sign of a power of a negative number.
_WHOLE_IN_SINGLE = 2**24


def _is_exact_in_single(exponent: Any) -> bool:
    """Whether a power's sign is right with the exponent rounded to float32. Asked, and guarded, of a symbol."""
    if isinstance(exponent, (int, float)):
        return not abs(exponent) > _WHOLE_IN_SINGLE or exponent % 2 != 1
    return is_surely_less(-_WHOLE_IN_SINGLE - 1, exponent) and is_surely_less(exponent, _WHOLE_IN_SINGLE + 1)


@decomposition("aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def pow_tensor(p: Any, self: Any, exponent: Any) -> Value:
    """self ** exponent"""
    if isinstance(self, (int, float)) and self == 1:
        return full_like(p, exponent, 1, result_dtype(self, exponent))
    return p.pow(*operands(p, self, exponent))


def _binary(name: str, for_bool: str | None = None) -> Callable[..., Value]:
    def fn(p: Any, self: Any, other: Any) -> Value:
        x, y = operands(p, self, other)
        is_bool = for_bool is not None and (x if is_value(x) else y).dtype == torch.bool
        return getattr(p, for_bool if is_bool and for_bool else name)(x, y)

    return fn


def _float_binary(name: str) -> Callable[..., Value]:
    def fn(p: Any, self: Any, other: Any) -> Value:
        return getattr(p, name)(*operands(p, self, other, dtype=float_dtype(result_dtype(self, other))))

    return fn


for _name, _bool in {"maximum": "logical_or", "minimum": "logical_and", "hypot": None}.items():
    decomposition(f"aten.{_name}.default")(_binary(_name, _bool))


def _nan_losing(name: str, plain: str, for_bool: str) -> Callable[..., Value]:
    """fmax and fmin: the same as maximum and minimum where there is no NaN."""

    def fn(p: Any, self: Value, other: Value) -> Value:
        x, y = operands(p, self, other)
        if x.dtype == torch.bool:
            return getattr(p, for_bool)(x, y)
        return getattr(p, plain if is_integral(x.dtype) else name)(x, y)

    return fn


decomposition("aten.fmax.default")(_nan_losing("fmax", "maximum", "logical_or"))
decomposition("aten.fmin.default")(_nan_losing("fmin", "minimum", "logical_and"))


@decomposition("aten.nextafter.default")
def nextafter(p: Any, self: Value, other: Value) -> Value:
    """The next number towards `other`."""
    x, y = operands(p, self, other)
    if x.dtype in REDUCED:
        raise unsupported("nextafter in reduced precision")
    return p.nextafter(x, y)


for _name in ("atan2",):
    decomposition(f"aten.{_name}.default")(_float_binary(_name))
decomposition("aten.copysign.Tensor", "aten.copysign.Scalar")(_float_binary("copysign"))
for _name, _bool in {
    "bitwise_and": "logical_and",
    "bitwise_or": "logical_or",
    "bitwise_xor": "logical_xor",
}.items():
    decomposition(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar", f"aten.{_name}.Scalar_Tensor")(_binary(_name, _bool))
for _aten, _name in {
    "bitwise_left_shift": "shift_left",
    "bitwise_right_shift": "shift_right",
}.items():
    decomposition(f"aten.{_aten}.Tensor", f"aten.{_aten}.Tensor_Scalar", f"aten.{_aten}.Scalar_Tensor")(_binary(_name))
for _aten, _name in {"__lshift__": "shift_left", "__rshift__": "shift_right"}.items():
    decomposition(f"aten.{_aten}.Tensor", f"aten.{_aten}.Scalar")(_binary(_name))


def _comparison(name: str) -> Callable[..., Value]:
    def fn(p: Any, self: Any, other: Any) -> Value:
        dtype = result_dtype(self, other)
        x, y = operands(p, self, other, dtype=dtype)
        if dtype in REDUCED:
            x, y = rounded(x, dtype), rounded(y, dtype)
        return getattr(p, name)(x, y)

    return fn


for _name in "eq ne lt le gt ge".split():
    decomposition(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")(_comparison(_name))


def _logical(name: str) -> Callable[..., Value]:
    def fn(p: Any, self: Value, other: Value) -> Value:
        dtype = result_dtype(self, other)
        # In the common type, in which a number without dimensions may be zero that was none: 256 is, as uint8.
        self, other = (x if x.shape or dtype.is_complex else to_dtype(p, x, dtype) for x in (self, other))
        return getattr(p, name)(*operands(p, as_bool(p, self), as_bool(p, other), dtype=torch.bool))

    return fn


for _name in ("logical_and", "logical_or", "logical_xor"):
    decomposition(f"aten.{_name}.default")(_logical(_name))


def _widened(p: Any, xs: Sequence[Any], dtype: torch.dtype) -> list[Any]:
    """Operands in their common type, numbers too, in the type that eager computes in: it rounds a number without
    dimensions of a wider type to the common type before."""

    def widened(x: Any) -> Any:
        if is_value(x):
            return to_dtype(p, x, opmath(dtype))
        return float(torch.tensor(x, dtype=dtype)) if isinstance(x, (int, float)) else x

    return [widened(x) for x in xs]


@decomposition("aten.heaviside.default")
def heaviside(p: Any, self: Value, values: Value) -> Value:
    """0 below zero, 1 above, `values` at zero."""
    x, v = operands(p, self, values)
    one, zero = full_like(p, x, 1), full_like(p, x, 0)
    return p.where(p.eq(x, number(0, x.dtype)), v, p.where(p.gt(x, number(0, x.dtype)), one, zero))


@decomposition("aten.xlogy.Tensor", "aten.xlogy.Scalar_Self", "aten.xlogy.Scalar_Other")
def xlogy(p: Any, self: Any, other: Any) -> Value:
    """self * log(other), 0 where self is 0."""
    dtype = float_dtype(result_dtype(self, other))
    x, y = _widened(p, operands(p, self, other, dtype=dtype), dtype)
    if not is_value(x):
        x = full_like(p, y, x)
    log = p.log(y) if is_value(y) else math.log(y) if y > 0 else -math.inf if y == 0 else math.nan
    out = p.where(p.eq(x, 0.0), 0.0, p.mul(x, log))
    if is_value(y):
        out = p.where(p.isnan(y), math.nan, out)
    elif math.isnan(y):
        out = full_like(p, out, math.nan)
    return to_dtype(p, out, dtype)


@decomposition("aten.logaddexp.default")
@in_opmath
def logaddexp(p: Any, self: Value, other: Value) -> Value:
    """log(exp(x) + exp(y)), shifted by the larger one so that it does not overflow."""
    x, y = operands(p, self, other)
    top = p.maximum(x, y)
    both = p.logical_and(p.eq(x, y), p.isinf(x))
    gap = p.neg(p.abs(p.sub(x, y)))
    return p.where(both, x, p.add(top, p.log1p(p.exp(gap))))


@decomposition("aten.logaddexp2.default")
@in_opmath
def logaddexp2(p: Any, self: Value, other: Value) -> Value:
    """log2(2**x + 2**y)"""
    x, y = operands(p, self, other)
    top = p.maximum(x, y)
    both = p.logical_and(p.eq(x, y), p.isinf(x))
    gap = p.neg(p.abs(p.sub(x, y)))
    return p.where(both, x, p.add(top, p.mul(p.log1p(p.exp2(gap)), 1.0 / math.log(2.0))))


# ---- clamping -------------------------------------------------------------------------------------------


@decomposition("aten.clamp.default", "aten.clamp.Tensor", "aten.clip.default", "aten.clip.Tensor")
def clamp(p: Any, self: Value, min: Any = None, max: Any = None) -> Value:
    """min(max(x, lo), hi); NaN stays NaN, `max` wins where the bounds cross, and a zero is x's own among equal ones."""
    dtype = result_dtype(self, min, max)
    bounds = [b for b in (min, max) if b is not None]
    fitted = operands(p, self, *bounds, dtype=dtype)
    x = fitted[0]
    rest = iter(fitted[1:])
    if min is not None:
        x = p.maximum(*_bound_first(x, rounded(next(rest), dtype)))
    if max is not None:
        x = p.minimum(*_bound_first(x, rounded(next(rest), dtype)))
    return x


def _bound_first(x: Value, bound: Any) -> tuple[Any, Any]:
    """Of two equal operands an extremum is the second one."""
    return (x, bound) if is_value(bound) else (bound, x)


@decomposition("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(p: Any, self: Value, min: Any) -> Value:
    """max(x, lo)"""
    return clamp(p, self, min, None)


@decomposition("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(p: Any, self: Value, max: Any) -> Value:
    """min(x, hi)"""
    return clamp(p, self, None, max)


# ---- three operands -------------------------------------------------------------------------------------


def choose(p: Any, condition: Value, x: Any, y: Any) -> Value:
    """where() with promotion and broadcasting of all three."""
    dtype = result_dtype(x, y)
    condition = as_bool(p, condition)
    if not is_value(x) and not is_value(y):
        x = full_like(p, condition, x, dtype)
    x, y = (to_dtype(p, v, dtype) if is_value(v) else number(v, dtype) for v in (x, y))
    shape = broadcast_shapes(*(v.shape for v in (condition, x, y) if is_value(v)))
    return p.where(*(expand(p, v, shape) if is_value(v) else v for v in (condition, x, y)))


@decomposition("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
def where(p: Any, condition: Value, self: Any, other: Any) -> Value:
    """condition ? self : other"""
    return choose(p, condition, self, other)


@decomposition("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(p: Any, self: Value, mask: Value, value: Any) -> Value:
    """`value` where the mask is true; the result has self's dtype."""
    fill = to_dtype(p, value, self.dtype) if is_value(value) else element(value, self.dtype)
    return choose(p, mask, fill, self)


def _fused(p: Any, self: Any, t1: Any, t2: Any, value: Any, inner: str) -> Value:
    dtype = result_dtype(self, t1, t2)
    x, a, b = _widened(p, operands(p, self, t1, t2, dtype=dtype), dtype)
    if inner == "div" and is_integral(dtype):
        raise unsupported("addcdiv of integers")
    value = number(value, dtype)
    # Eager's CPU kernel multiplies by the value first.
    scaled = a if value == 1 else p.mul(a, value)
    return to_dtype(p, p.add(x, getattr(p, inner)(scaled, b)), dtype)


@decomposition("aten.addcmul.default")
def addcmul(p: Any, self: Value, tensor1: Value, tensor2: Value, *, value: Any = 1) -> Value:
    """self + value * tensor1 * tensor2"""
    return _fused(p, self, tensor1, tensor2, value, "mul")


@decomposition("aten.addcdiv.default")
def addcdiv(p: Any, self: Value, tensor1: Value, tensor2: Value, *, value: Any = 1) -> Value:
    """self + value * tensor1 / tensor2"""
    return _fused(p, self, tensor1, tensor2, value, "div")


@decomposition("aten.lerp.Scalar", "aten.lerp.Tensor")
def lerp(p: Any, self: Value, end: Value, weight: Any) -> Value:
    """self + weight * (end - self), from the nearer end so that weight 1 gives `end` exactly.

    Source: the formula in eager's kernel (two branches on |weight| < 0.5).
    """
    dtype = result_dtype(self, end)
    x, y, w = operands(p, self, end, weight, dtype=opmath(dtype))
    gap = p.sub(y, x)
    if not is_value(w):
        out = p.add(x, p.mul(gap, w)) if abs(w) < 0.5 else p.sub(y, p.mul(gap, 1.0 - w))
    else:
        near = p.add(x, p.mul(gap, w))
        far = p.sub(y, p.mul(gap, p.sub(1.0, w)))
        out = p.where(p.lt(p.abs(w), 0.5), near, far)
    return to_dtype(p, out, dtype)
