"""Rows of the elementwise primitives.

A row is given its operands in the dtype to compute in, numbers as constants, and its result is converted back:
float16 and bfloat16 are computed in float32 and rounded once, as the primitives are; small integers in int32, which
wraps to the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from compile_api.deploy.interchange.onnx.builder import DTYPES, Builder, T
from compile_api.deploy.interchange.walk import NotMapped

__all__ = ["ROWS", "is_nan"]

ROWS: dict[str, Callable[..., Any]] = {}

F32, F64, I32, I64, BOOL = torch.float32, torch.float64, torch.int32, torch.int64, torch.bool
_HALVES = {torch.float16: F32, torch.bfloat16: F32}
_SMALL: dict[torch.dtype, torch.dtype] = {torch.int16: I32, torch.int8: I32, torch.uint8: I32}
_WIDE = {**_HALVES, **_SMALL}
_COMPARED = {**_WIDE, BOOL: I32}


def row(*names: str, wide: Mapping[torch.dtype, torch.dtype] = _WIDE) -> Callable[[Any], Any]:
    """Register ``fn(b, *operands in the dtype to compute in)`` for primitives; ``wide`` says where that is another."""

    def register(fn: Callable[..., T]) -> Callable[..., T]:
        def emit(b: Builder, *operands: Any) -> T:
            tensors = [x for x in operands if isinstance(x, T)]
            dtype = tensors[-1].dtype  # the condition of a `where` comes first
            compute = wide.get(dtype, dtype)
            narrow = all(t.narrow for t in tensors)
            # A number is one of the operands' dtype, in which it may wrap, unless that is a half.
            stands = compute if dtype.is_floating_point else dtype
            given = [
                (x if x.dtype == BOOL and dtype != BOOL else b.cast(x, compute)) if isinstance(x, T)
                else b.number(x, stands, compute) for x in operands
            ]  # fmt: skip
            return b.cast(fn(b, *given), b.spec.dtype)._replace(narrow=narrow)

        for name in names:
            ROWS[name] = emit
        return fn

    return register


def _direct(kind: str, result: torch.dtype | None = None) -> Callable[..., T]:
    return lambda b, *operands: b.op(kind, *operands, dtype=result)


for _name, _kind in {
    "neg": "Neg", "abs": "Abs", "floor": "Floor", "ceil": "Ceil", "round": "Round", "reciprocal": "Reciprocal",
    "sqrt": "Sqrt", "exp": "Exp", "log": "Log", "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin",
    "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "tanh": "Tanh", "asinh": "Asinh",
    "acosh": "Acosh", "atanh": "Atanh", "erf": "Erf", "sigmoid": "Sigmoid", "add": "Add", "sub": "Sub", "mul": "Mul",
    "div": "Div",
}.items():  # fmt: skip
    row(_name)(_direct(_kind))
for _name, _kind in {
    "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
}.items():  # fmt: skip
    row(_name, wide=_COMPARED)(_direct(_kind, BOOL))
for _name, _kind in {"isnan": "IsNaN", "isinf": "IsInf"}.items():
    row(_name)(_direct(_kind, BOOL))


# ---- helpers ---------------------------------------------------------------------------------------------------------


def _is_float(x: T) -> bool:
    return x.dtype.is_floating_point


def _where(b: Builder, c: T, x: T, y: T) -> T:
    return b.op("Where", c, x, y, dtype=x.dtype)


def _less(b: Builder, x: T, y: Any) -> T:
    return b.op("Less", x, y if isinstance(y, T) else b.const(y, x.dtype), dtype=BOOL)


def _equal(b: Builder, x: T, y: Any) -> T:
    return b.op("Equal", x, y if isinstance(y, T) else b.const(y, x.dtype), dtype=BOOL)


def _with(b: Builder, kind: str, x: T, number: Any) -> T:
    return b.op(kind, x, b.const(number, x.dtype))


def is_nan(b: Builder, x: T) -> T:
    """Where a float is NaN."""
    return b.op("IsNaN", x, dtype=BOOL)


def _negative(b: Builder, x: T) -> T:
    """Has a float a minus sign? A zero's is that of its reciprocal; a NaN's cannot be told."""
    zero = b.op("And", _equal(b, x, 0.0), _less(b, b.op("Reciprocal", x), 0.0))
    return b.op("Or", _less(b, x, 0.0), zero)


def _signed(b: Builder, magnitude: T, sign: T) -> T:
    return _where(b, _negative(b, sign), b.op("Neg", magnitude), magnitude)


# ---- rounding, exponentials, logarithms ------------------------------------------------------------------------------


@row("trunc")
def trunc(b: Builder, x: T) -> T:
    return _where(b, _less(b, x, 0.0), b.op("Ceil", x), b.op("Floor", x))


@row("sign")
def sign(b: Builder, x: T) -> T:
    found = b.op("Sign", x)
    return _where(b, is_nan(b, x), b.const(0.0, x.dtype), found) if _is_float(x) else found


@row("rsqrt")
def rsqrt(b: Builder, x: T) -> T:
    return b.op("Reciprocal", b.op("Sqrt", x))


@row("exp2")
def exp2(b: Builder, x: T) -> T:
    return b.op("Pow", b.const(2.0, x.dtype), x)


@row("expm1")
def expm1(b: Builder, x: T) -> T:
    """(e^x - 1) x / log(e^x) loses nothing near 0: Kahan, in Higham, Accuracy and Stability (2002), 1.14.1."""
    u = b.op("Exp", x)
    less = _with(b, "Sub", u, 1.0)
    near = b.op("Mul", less, b.op("Div", x, b.op("Log", u)))
    far = b.op("Or", _equal(b, less, -1.0), b.op("IsInf", u, dtype=BOOL))
    return _where(b, _equal(b, u, 1.0), x, _where(b, far, less, near))


@row("log1p")
def log1p(b: Builder, x: T) -> T:
    """log(1 + x) x / ((1 + x) - 1): Kahan, as above."""
    u = _with(b, "Add", x, 1.0)
    near = b.op("Mul", b.op("Log", u), b.op("Div", x, _with(b, "Sub", u, 1.0)))
    near = _where(b, b.op("IsInf", u, dtype=BOOL), b.op("Log", u), near)
    return _where(b, _equal(b, u, 1.0), x, near)


def _log(base: float) -> Callable[..., T]:
    def fn(b: Builder, x: T) -> T:
        """In double precision, so that the logarithm of a power of the base is a whole number."""
        scaled = _with(b, "Div", b.op("Log", b.cast(x, F64)), math.log(base))
        return b.cast(scaled, x.dtype)

    return fn


row("log2")(_log(2.0))
row("log10")(_log(10.0))


@row("hypot")
def hypot(b: Builder, x: T, y: T) -> T:
    x, y = b.op("Abs", x), b.op("Abs", y)
    high, low = b.op("Max", x, y), b.op("Min", x, y)
    ratio = _where(b, _equal(b, high, 0.0), b.const(0.0, x.dtype), b.op("Div", low, high))
    root = b.op("Sqrt", _with(b, "Add", b.op("Mul", ratio, ratio), 1.0))
    infinite = b.op("Or", b.op("IsInf", x, dtype=BOOL), b.op("IsInf", y, dtype=BOOL))
    return _where(b, infinite, b.const(math.inf, x.dtype), b.op("Mul", high, root))


@row("atan2")
def atan2(b: Builder, y: T, x: T) -> T:
    """The angle of (|x|, |y|), then by quadrant; equal magnitudes (infinite ones too) are at 45 degrees."""
    up, right = b.op("Abs", y), b.op("Abs", x)
    angle = b.op("Atan", b.op("Div", up, right))
    diagonal = _where(b, _equal(b, up, 0.0), b.const(0.0, x.dtype), b.const(math.pi / 4, x.dtype))
    angle = _where(b, _equal(b, up, right), diagonal, angle)
    behind = b.op("Sub", b.const(math.pi, x.dtype), angle)
    angle = _signed(b, _where(b, _negative(b, x), behind, angle), y)
    return _where(b, b.op("Or", is_nan(b, x), is_nan(b, y)), b.const(math.nan, x.dtype), angle)


@row("copysign")
def copysign(b: Builder, x: T, y: T) -> T:
    return _signed(b, b.op("Abs", x), y)


# ---- division and powers ---------------------------------------------------------------------------------------------


@row("trunc_div")
def trunc_div(b: Builder, x: T, y: T) -> T:
    quotient = b.op("Div", x, y)  # which truncates integers
    return trunc(b, quotient) if _is_float(x) else quotient


@row("floor_div")
def floor_div(b: Builder, x: T, y: T) -> T:
    if not _is_float(x):
        quotient = b.op("Div", x, y)
        rest = b.op("Sub", x, b.op("Mul", quotient, y))
        return b.op("Sub", quotient, b.cast(_opposed(b, rest, y), x.dtype))
    # As CPython's float_divmod: the quotient of x - fmod(x, y), which is exact but for its last bit, then rounded.
    rest = b.op("Mod", x, y, fmod=1)
    quotient = b.op("Div", b.op("Sub", x, rest), y)
    quotient = b.op("Sub", quotient, b.cast(_opposed(b, rest, y), x.dtype))
    whole = b.op("Floor", quotient)
    above = b.op("Greater", b.op("Sub", quotient, whole), b.const(0.5, x.dtype), dtype=BOOL)
    whole = b.op("Add", whole, b.cast(above, x.dtype))
    plain = b.op("Div", x, y)
    zero = _signed(b, b.const(0.0, x.dtype), plain)
    return _where(b, _equal(b, y, 0.0), plain, _where(b, _equal(b, quotient, 0.0), zero, whole))


def _opposed(b: Builder, rest: T, y: T) -> T:
    """Is there a rest, with another sign than the divisor's?"""
    other = b.op("Xor", _less(b, rest, 0), _less(b, y, 0))
    return b.op("And", b.op("Not", _equal(b, rest, 0)), other)


@row("remainder")
def remainder(b: Builder, x: T, y: T) -> T:
    if not _is_float(x):
        return b.op("Mod", x, y)
    rest = b.op("Mod", x, y, fmod=1)
    return _where(b, _opposed(b, rest, y), b.op("Add", rest, y), rest)


@row("fmod")
def fmod(b: Builder, x: T, y: T) -> T:
    if _is_float(x):
        return b.op("Mod", x, y, fmod=1)
    return b.op("Sub", x, b.op("Mul", b.op("Div", x, y), y))


@row("pow")
def power(b: Builder, x: T, y: T) -> T:
    if _is_float(x):
        return b.op("Pow", x, y)
    # By squaring: Pow computes integers in floating point. Bits of the exponent above those of b.spec.dtype are none.
    bits = b.spec.dtype.itemsize * 8 - (b.spec.dtype != torch.uint8)
    one, two = b.const(1, x.dtype), b.const(2, x.dtype)
    found, square, left = one, x, y
    for at in range(bits):
        odd = _equal(b, b.op("Mod", left, two), 1)
        found = _where(b, odd, b.op("Mul", found, square), found)
        if at < bits - 1:
            square, left = b.op("Mul", square, square), b.op("Div", left, two)
    even = _equal(b, b.op("Mod", y, two), 0)
    inverse = _where(b, _equal(b, x, 1), one, b.const(0, x.dtype))
    inverse = _where(b, _equal(b, x, -1), _where(b, even, one, b.const(-1, x.dtype)), inverse)
    return _where(b, _less(b, y, 0), inverse, found)


# ---- extrema ---------------------------------------------------------------------------------------------------------


def _extremum(kind: str, logical: str) -> Callable[..., T]:
    def fn(b: Builder, x: T, y: T) -> T:
        return b.op(logical if x.dtype == BOOL else kind, x, y)

    return fn


row("maximum")(_extremum("Max", "Or"))
row("minimum")(_extremum("Min", "And"))


def _number_first(compare: str) -> Callable[..., T]:
    def fn(b: Builder, x: T, y: T) -> T:
        return _where(b, b.op("Or", b.op(compare, x, y, dtype=BOOL), is_nan(b, y)), x, y)

    return fn


row("fmax")(_number_first("GreaterOrEqual"))
row("fmin")(_number_first("LessOrEqual"))

# ---- bits and logic --------------------------------------------------------------------------------------------------

_AS_THEY_ARE: dict[torch.dtype, torch.dtype] = {}


@row("bitwise_not", wide=_AS_THEY_ARE)
def bitwise_not(b: Builder, x: T) -> T:
    return b.op("Not" if x.dtype == BOOL else "BitwiseNot", x)


for _name, _kind in {"and": "And", "or": "Or", "xor": "Xor"}.items():

    def _bitwise(b: Builder, x: T, y: T, kind: str = _kind) -> T:
        return b.op(kind if x.dtype == BOOL else f"Bitwise{kind}", x, y)

    def _logical(b: Builder, x: T, y: T, kind: str = _kind) -> T:
        return b.op(kind, b.cast(x, BOOL), b.cast(y, BOOL))

    row(f"bitwise_{_name}", wide=_AS_THEY_ARE)(_bitwise)
    row(f"logical_{_name}", wide=_AS_THEY_ARE)(_logical)


@row("logical_not", wide=_AS_THEY_ARE)
def logical_not(b: Builder, x: T) -> T:
    return b.op("Not", b.cast(x, BOOL))


@row("ne", wide=_COMPARED)
def ne(b: Builder, x: T, y: T) -> T:
    return b.op("Not", _equal(b, x, y))


def _out_of_range(b: Builder, y: T) -> T:
    """Does a shift leave none of the bits?"""
    beyond = b.op("GreaterOrEqual", y, b.const(b.spec.dtype.itemsize * 8, I64), dtype=BOOL)
    return b.op("Or", _less(b, y, 0), beyond)


def _amount(b: Builder, y: T) -> T:
    """A shift in range, as the unsigned number that `BitShift` takes."""
    return b.cast(_where(b, _out_of_range(b, y), b.const(0, I64), y), torch.uint64)


_LONG = {torch.int32: I64, torch.int16: I64, torch.int8: I64, torch.uint8: I64}


@row("shift_left", wide=_LONG)
def shift_left(b: Builder, x: T, y: T) -> T:
    moved = b.op("BitShift", b.cast(x, torch.uint64), _amount(b, y), direction="LEFT")
    return _where(b, _out_of_range(b, y), b.const(0, I64), b.cast(moved, I64))


@row("shift_right", wide=_LONG)
def shift_right(b: Builder, x: T, y: T) -> T:
    """Of a negative number, the complement of its complement shifted."""
    below = _less(b, x, 0)
    positive = _where(b, below, b.op("BitwiseNot", x), x)
    moved = b.cast(b.op("BitShift", b.cast(positive, torch.uint64), _amount(b, y), direction="RIGHT"), I64)
    moved = _where(b, _out_of_range(b, y), b.const(0, I64), moved)
    return _where(b, below, b.op("BitwiseNot", moved), moved)


# ---- choice, products ------------------------------------------------------------------------------------------------


@row("where", wide={torch.bfloat16: F32, torch.int16: I32})
def where(b: Builder, c: T, x: T, y: T) -> T:
    if x.dtype == BOOL:
        return b.op("Or", b.op("And", c, x), b.op("And", b.op("Not", c), y))
    return _where(b, c, x, y)


@row("fma")
def fma(b: Builder, x: T, y: T, z: T) -> T:
    return b.op("Add", b.op("Mul", x, y), z)


# ---- casts -----------------------------------------------------------------------------------------------------------


def convert(b: Builder, x: T, dtype: torch.dtype) -> T:
    return b.cast(x, dtype)


def bitcast(b: Builder, x: T, dtype: torch.dtype) -> T:
    if b.opset < 26:
        raise NotMapped("ONNX reads bits as another dtype from opset 26 on")
    return b.op("BitCast", x, dtype=dtype, to=DTYPES[dtype])._replace(narrow=x.narrow)


ROWS["convert"] = convert
ROWS["bitcast"] = bitcast
