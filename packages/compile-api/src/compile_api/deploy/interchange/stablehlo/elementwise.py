"""Rows of the elementwise primitives.

A row is given its operands in the dtype to compute in, numbers as constants of their shape, and its result is converted
back: float16 and bfloat16 are computed in float32 and rounded once, as the primitives are.

What StableHLO itself lacks (error function, inverse functions, ...) is in CHLO, a dialect of its repository.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from compile_api.deploy.interchange.stablehlo.builder import Builder, V
from prims.dtypes import compute_dtype

__all__ = ["ROWS"]

ROWS: dict[str, Callable[..., Any]] = {}

F32, F64, I64, BOOL = torch.float32, torch.float64, torch.int64, torch.bool


def row(*names: str) -> Callable[[Any], Any]:
    """Register ``fn(b, *operands)`` for primitives."""

    def register(fn: Callable[..., V]) -> Callable[..., V]:
        def emit(b: Builder, *operands: Any) -> V:
            tensors = [x for x in operands if isinstance(x, V)]
            dtype = tensors[-1].dtype  # the condition of a `where` comes first
            compute = compute_dtype(dtype)
            given = [
                (x if x.dtype == BOOL else b.convert(x, compute)) if isinstance(x, V)
                else b.splat(x, compute, tensors[-1].shape) for x in operands
            ]  # fmt: skip
            return b.convert(fn(b, *given), b.spec.dtype)

        for name in names:
            ROWS[name] = emit
        return fn

    return register


def _direct(name: str) -> Callable[..., V]:
    return lambda b, *operands: b.op(name, *operands)


for _name, _op in {
    "neg": "negate", "floor": "floor", "ceil": "ceil", "round": "round_nearest_even", "exp": "exponential",
    "expm1": "exponential_minus_one", "log": "log", "log1p": "log_plus_one", "sqrt": "sqrt", "rsqrt": "rsqrt",
    "sin": "sine", "cos": "cosine", "tan": "chlo.tan", "tanh": "tanh", "sigmoid": "logistic", "asin": "chlo.asin",
    "acos": "chlo.acos", "atan": "chlo.atan", "sinh": "chlo.sinh", "cosh": "chlo.cosh", "asinh": "chlo.asinh",
    "acosh": "chlo.acosh", "atanh": "chlo.atanh", "erf": "chlo.erf", "erfc": "chlo.erfc", "erfinv": "chlo.erf_inv",
    "nextafter": "chlo.next_after", "add": "add",
    "sub": "subtract", "mul": "multiply", "div": "divide", "atan2": "atan2", "maximum": "maximum",
    "minimum": "minimum", "bitwise_not": "not", "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor",
    "fmod": "remainder",
}.items():  # fmt: skip
    row(_name)(_direct(_op))


def _comparison(way: str) -> Callable[..., V]:
    return lambda b, x, y: b.compare(way, x, y)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    row(_name)(_comparison(_name.upper()))


# ---- helpers ---------------------------------------------------------------------------------------------------------


def _like(b: Builder, number: Any, x: V) -> V:
    return b.splat(number, x.dtype, x.shape)


def _with(b: Builder, op: str, x: V, number: Any) -> V:
    return b.op(op, x, _like(b, number, x))


def _than(b: Builder, x: V, way: str, number: Any) -> V:
    return b.compare(way, x, _like(b, number, x))


def is_nan(b: Builder, x: V) -> V:
    """Where a float is NaN."""
    return b.compare("NE", x, x)


def _is_float(x: V) -> bool:
    return x.dtype.is_floating_point


def _negative(b: Builder, x: V) -> V:
    """Has a float a minus sign?"""
    bits = I64 if x.dtype == F64 else torch.int32
    return _than(b, b.to("bitcast_convert", [x], "", bits, x.shape), "LT", 0)


def _signed(b: Builder, magnitude: V, sign: V) -> V:
    return b.select(_negative(b, sign), b.op("negate", magnitude), magnitude)


def _opposed(b: Builder, rest: V, y: V) -> V:
    """Is there a rest, with another sign than the divisor's?"""
    other = b.op("xor", _than(b, rest, "LT", 0), _than(b, y, "LT", 0))
    return b.op("and", _than(b, rest, "NE", 0), other)


# ---- of one operand --------------------------------------------------------------------------------------------------


@row("isnan")
def isnan(b: Builder, x: V) -> V:
    return is_nan(b, x)


@row("isinf")
def isinf(b: Builder, x: V) -> V:
    return _than(b, b.op("abs", x), "EQ", math.inf)


@row("logical_not")
def logical_not(b: Builder, x: V) -> V:
    return b.op("not", x) if x.dtype == BOOL else _than(b, x, "EQ", 0)


@row("trunc")
def trunc(b: Builder, x: V) -> V:
    return b.select(_than(b, x, "LT", 0.0), b.op("ceil", x), b.op("floor", x))


@row("sign")
def sign(b: Builder, x: V) -> V:
    """0 for NaN."""
    above, below = (b.convert(_than(b, x, way, 0), x.dtype) for way in ("GT", "LT"))
    return b.op("subtract", above, below)


@row("abs")
def abs_(b: Builder, x: V) -> V:
    return x if x.dtype == torch.uint8 else b.op("abs", x)


@row("lgamma")
def lgamma(b: Builder, x: V) -> V:
    """In double precision: XLA's expansion in single precision has few digits near its zeros."""
    return b.convert(b.op("chlo.lgamma", b.convert(x, F64)), x.dtype)


@row("digamma")
def digamma(b: Builder, x: V) -> V:
    """As above; infinite at the two zeros."""
    infinite = _signed(b, _like(b, -math.inf, x), x)
    return b.select(_than(b, x, "EQ", 0.0), infinite, b.convert(b.op("chlo.digamma", b.convert(x, F64)), x.dtype))


@row("reciprocal")
def reciprocal(b: Builder, x: V) -> V:
    return b.op("divide", _like(b, 1.0, x), x)


@row("exp2")
def exp2(b: Builder, x: V) -> V:
    return b.op("power", _like(b, 2.0, x), x)


def _log(base: float) -> Callable[..., V]:
    def fn(b: Builder, x: V) -> V:
        """In double precision, so that the logarithm of a power of the base is a whole number."""
        return b.convert(_with(b, "divide", b.op("log", b.convert(x, F64)), math.log(base)), x.dtype)

    return fn


row("log2")(_log(2.0))
row("log10")(_log(10.0))

# ---- of two operands -------------------------------------------------------------------------------------------------


@row("hypot")
def hypot(b: Builder, x: V, y: V) -> V:
    x, y = b.op("abs", x), b.op("abs", y)
    high, low = b.op("maximum", x, y), b.op("minimum", x, y)
    ratio = b.select(_than(b, high, "EQ", 0.0), _like(b, 0.0, x), b.op("divide", low, high))
    root = b.op("sqrt", _with(b, "add", b.op("multiply", ratio, ratio), 1.0))
    infinite = b.op("or", _than(b, x, "EQ", math.inf), _than(b, y, "EQ", math.inf))
    return b.select(infinite, _like(b, math.inf, x), b.op("multiply", high, root))


@row("copysign")
def copysign(b: Builder, x: V, y: V) -> V:
    return _signed(b, b.op("abs", x), y)


@row("trunc_div")
def trunc_div(b: Builder, x: V, y: V) -> V:
    quotient = b.op("divide", x, y)  # which truncates integers
    return trunc(b, quotient) if _is_float(x) else quotient


@row("floor_div")
def floor_div(b: Builder, x: V, y: V) -> V:
    rest = b.op("remainder", x, y)
    if not _is_float(x):
        return b.op("subtract", b.op("divide", x, y), b.convert(_opposed(b, rest, y), x.dtype))
    # As CPython's float_divmod: the quotient of x - fmod(x, y), which is exact but for its last bit, then rounded.
    quotient = b.op("divide", b.op("subtract", x, rest), y)
    quotient = b.op("subtract", quotient, b.convert(_opposed(b, rest, y), x.dtype))
    whole = b.op("floor", quotient)
    above = _than(b, b.op("subtract", quotient, whole), "GT", 0.5)
    whole = b.op("add", whole, b.convert(above, x.dtype))
    plain = b.op("divide", x, y)
    zero = _signed(b, _like(b, 0.0, x), plain)
    whole = b.select(_than(b, quotient, "EQ", 0.0), zero, whole)
    return b.select(_than(b, y, "EQ", 0.0), plain, whole)


@row("remainder")
def remainder(b: Builder, x: V, y: V) -> V:
    rest = b.op("remainder", x, y)
    return b.select(_opposed(b, rest, y), b.op("add", rest, y), rest)


@row("pow")
def power(b: Builder, x: V, y: V) -> V:
    if _is_float(x):
        return b.op("power", x, y)
    # By squaring: what an integer to a negative power is, the specification leaves open.
    one, two, zero = (_like(b, n, x) for n in (1, 2, 0))
    bits = x.dtype.itemsize * 8 - (x.dtype != torch.uint8)
    found, square, left = one, x, y
    for at in range(bits):
        odd = b.compare("NE", b.op("remainder", left, two), zero)
        found = b.select(odd, b.op("multiply", found, square), found)
        if at < bits - 1:
            square, left = b.op("multiply", square, square), b.op("divide", left, two)
    if x.dtype == torch.uint8:
        return found
    inverse = b.select(b.compare("EQ", x, one), one, zero)
    even = b.compare("EQ", b.op("remainder", y, two), zero)
    minus = _like(b, -1, x)
    inverse = b.select(b.compare("EQ", x, minus), b.select(even, one, minus), inverse)
    return b.select(b.compare("LT", y, zero), inverse, found)


def _number_first(way: str) -> Callable[..., V]:
    return lambda b, x, y: b.select(b.op("or", b.compare(way, x, y), is_nan(b, y)), x, y)


row("fmax")(_number_first("GE"))
row("fmin")(_number_first("LE"))


def _logical(op: str) -> Callable[..., V]:
    return lambda b, x, y: b.op(op, b.convert(x, BOOL), b.convert(y, BOOL))


for _name in ("and", "or", "xor"):
    row(f"logical_{_name}")(_logical(_name))


def _shift(op: str, beyond: Callable[[Builder, V], V]) -> Callable[..., V]:
    def fn(b: Builder, x: V, y: V) -> V:
        """What a shift by the number of bits or more gives, the specification leaves open."""
        bits = x.dtype.itemsize * 8
        out = b.op("or", _than(b, y, "LT", 0), _than(b, y, "GE", bits))
        moved = b.op(op if x.dtype != torch.uint8 else op.replace("arithmetic", "logical"), x,
                     b.select(out, _like(b, 0, x), y))  # fmt: skip
        return b.select(out, beyond(b, x), moved)

    return fn


row("shift_left")(_shift("shift_left", lambda b, x: _like(b, 0, x)))
row("shift_right")(
    _shift("shift_right_arithmetic", lambda b, x: b.op("negate", b.convert(_than(b, x, "LT", 0), x.dtype)))
)

# ---- others ----------------------------------------------------------------------------------------------------------


@row("where")
def where(b: Builder, c: V, x: V, y: V) -> V:
    return b.select(c, x, y)


@row("fma")
def fma(b: Builder, x: V, y: V, z: V) -> V:
    return b.op("add", b.op("multiply", x, y), z)


def convert(b: Builder, x: V, dtype: torch.dtype) -> V:
    return b.convert(x, dtype)


def bitcast(b: Builder, x: V, dtype: torch.dtype) -> V:
    return x if x.dtype == dtype else b.to("bitcast_convert", [x], "", dtype, x.shape)


ROWS["convert"] = convert
ROWS["bitcast"] = bitcast
