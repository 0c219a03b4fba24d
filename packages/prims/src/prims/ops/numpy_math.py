"""NumPy meanings of the elementwise primitives that NumPy has no function for, written independently."""

from __future__ import annotations

import math
from typing import Any

from prims.ops.lazy import np

__all__ = [
    "digamma",
    "erf",
    "erfc",
    "erfinv",
    "floor_div",
    "lgamma",
    "power",
    "remainder",
    "shift_left",
    "shift_right",
    "trunc_div",
]


def _each(fn: Any, x: Any) -> Any:
    """A function of one Python float at every element."""
    return np.array([fn(float(v)) for v in x.ravel()], dtype=x.dtype).reshape(x.shape)


def erf(x: Any) -> Any:
    """Error function."""
    return _each(math.erf, x)


def erfc(x: Any) -> Any:
    """Complementary error function."""
    return _each(math.erfc, x)


def _erfinv(y: float) -> float:
    if math.isnan(y) or abs(y) > 1:
        return math.nan
    if abs(y) == 1:
        return math.copysign(math.inf, y)
    # Bisection on the side of zero where erfc keeps its relative accuracy.
    lo, hi = 0.0, 6.0
    target = 1 - abs(y)
    for _ in range(200):
        mid = 0.5 * (lo + hi)
        if (math.erf(mid) < abs(y)) if abs(y) < 0.5 else (math.erfc(mid) > target):
            lo = mid
        else:
            hi = mid
    return math.copysign(0.5 * (lo + hi), y) if y != 0 else y


def erfinv(x: Any) -> Any:
    """Inverse error function, by bisection."""
    return _each(_erfinv, x)


def _lgamma(v: float) -> float:
    if math.isinf(v) or (v <= 0 and v == math.floor(v)):
        return math.inf
    return math.lgamma(v)


def lgamma(x: Any) -> Any:
    """log |gamma(x)|; +inf at the poles."""
    return _each(_lgamma, x)


def _digamma(v: float) -> float:
    if v == 0:
        return math.copysign(math.inf, -v)
    if v == -math.inf or (v < 0 and v == math.floor(v)):
        return math.nan
    if v < 0:
        return _digamma(1 - v) - math.pi / math.tan(math.pi * math.fmod(v, 1.0))
    shift = 0.0
    while v < 20:
        shift -= 1 / v
        v += 1
    if math.isinf(v) or math.isnan(v):
        return v
    # Asymptotic series, Abramowitz & Stegun 6.3.18.
    inv = 1 / (v * v)
    series = inv * (1 / 12 - inv * (1 / 120 - inv * (1 / 252 - inv * (1 / 240 - inv / 132))))
    return shift + math.log(v) - 0.5 / v - series


def digamma(x: Any) -> Any:
    """Derivative of lgamma: recurrence (A&S 6.3.5), reflection (6.3.7) and asymptotic series (6.3.18)."""
    return _each(_digamma, x)


def trunc_div(x: Any, y: Any) -> Any:
    """Quotient rounded toward zero."""
    if x.dtype.kind == "f":
        return np.trunc(x / y)
    quotient, rest = np.floor_divide(x, y), np.remainder(x, y)
    return quotient + ((rest != 0) & ((x < 0) != (y < 0))).astype(x.dtype)


def floor_div(x: Any, y: Any) -> Any:
    """Quotient rounded down."""
    if x.dtype.kind != "f":
        return np.floor_divide(x, y)
    rest = np.fmod(x, y)
    quotient = (x - rest) / y
    quotient = np.where((rest != 0) & ((y < 0) != (rest < 0)), quotient - 1, quotient)
    whole = np.floor(quotient)
    whole = np.where(quotient - whole > 0.5, whole + 1, whole)
    whole = np.where(quotient == 0, np.copysign(np.zeros_like(x), x / y), whole)
    return np.where(y == 0, x / y, whole).astype(x.dtype)


def remainder(x: Any, y: Any) -> Any:
    """Remainder with the divisor's sign."""
    if x.dtype.kind != "f":
        return np.remainder(x, y)
    rest = np.fmod(x, y)
    return np.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest).astype(x.dtype)


def _int_pow(base: int, exponent: int, bits: int, signed: bool) -> int:
    if exponent < 0:
        if base in (1, -1):
            return base if exponent % 2 else 1
        return 0
    value = pow(base, exponent, 1 << bits)
    return value - (1 << bits) if signed and value >= 1 << (bits - 1) else value


def power(x: Any, y: Any) -> Any:
    """x ** y; integers wrap, and a negative power of an integer is 0 except for 1 and -1."""
    if x.dtype.kind == "f":
        return np.power(x, y)
    x, y = np.broadcast_arrays(x, y)
    bits, signed = x.dtype.itemsize * 8, x.dtype.kind == "i"
    values = [_int_pow(int(a), int(b), bits, signed) for a, b in zip(x.ravel(), y.ravel(), strict=True)]
    return np.array(values, dtype=x.dtype).reshape(x.shape)


def shift_left(x: Any, y: Any) -> Any:
    """Left shift; 0 when the count is out of range."""
    bits = x.dtype.itemsize * 8
    valid = (y >= 0) & (y < bits)
    return np.where(valid, np.left_shift(x, np.where(valid, y, 0)), 0).astype(x.dtype)


def shift_right(x: Any, y: Any) -> Any:
    """Arithmetic right shift; all sign bits when the count is out of range."""
    bits = x.dtype.itemsize * 8
    valid = (y >= 0) & (y < bits)
    sign = np.where(x < 0, -1, 0).astype(x.dtype) if x.dtype.kind == "i" else np.zeros_like(x)
    return np.where(valid, np.right_shift(x, np.where(valid, y, 0)), sign).astype(x.dtype)
