"""Python's ``math`` functions of symbolic numbers: what stands for each in a graph, and where it has a value."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.values import arith
from dynamo_capture.values.base import Value
from dynamo_capture.values.bits import decided
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.tensor import SymValue
from prims.spec import elementary

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["elementary_function", "is_finite"]

#: Up to which exponentials are floats.
_LARGEST = 709.0

#: Of one number: what stands for it, and for which finite numbers it raises nothing.
_OF_ONE: dict[Any, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    math.sqrt: (torch._sym_sqrt, lambda x: x >= 0),
    math.sin: (torch._sym_sin, lambda x: True),
    math.cos: (torch._sym_cos, lambda x: True),
    math.tan: (torch._sym_tan, lambda x: True),
    math.tanh: (torch._sym_tanh, lambda x: True),
    math.atan: (torch._sym_atan, lambda x: True),
    math.sinh: (torch._sym_sinh, lambda x: abs(x) <= _LARGEST),
    math.cosh: (torch._sym_cosh, lambda x: abs(x) <= _LARGEST),
    math.asin: (torch._sym_asin, lambda x: abs(x) <= 1),
    math.acos: (torch._sym_acos, lambda x: abs(x) <= 1),
    math.log2: (torch._sym_log2, lambda x: x > 0),
    math.log: (elementary.log, lambda x: x > 0),
    math.log1p: (elementary.log1p, lambda x: x > -1),
    math.exp: (elementary.exp, lambda x: x <= _LARGEST),
    math.expm1: (elementary.expm1, lambda x: x <= _LARGEST),
}
#: Of two numbers, likewise.
_OF_TWO: dict[Any, tuple[Callable[..., Any], Callable[[Any, Any], Any]]] = {
    math.atan2: (elementary.atan2, lambda y, x: True),
    math.pow: (elementary.power, lambda x, y: x > 0),
}
#: What they say of a finite number.
_QUESTIONS = {math.isfinite: True, math.isinf: False, math.isnan: False}


def is_finite(number: SymValue) -> bool:
    """Whether a symbolic number is neither infinite nor NaN, of which Python makes no ints (guarded)."""
    return number.pytype is not float or bool(abs(number.example) < math.inf)


def _logarithm(number: Value) -> Value | None:
    positive = type(number) is ConstantValue and number.value > 0
    return ConstantValue(math.log(number.value)) if positive else None  # type: ignore[attr-defined]


def elementary_function(tx: Capture, fn: Any, numbers: list[Value]) -> Value | None:
    """A function of ``math`` of numbers of which some are symbols, where it has a value (guarded); else None."""
    if fn not in _OF_ONE and fn not in _OF_TWO and fn not in _QUESTIONS:
        return None
    numbers = [decided(tx, number) for number in numbers]
    symbols = [n for n in numbers if isinstance(n, SymValue)]
    plain = [n for n in numbers if type(n) is ConstantValue and type(n.value) in (bool, int, float)]
    if not symbols or len(symbols) + len(plain) < len(numbers):
        return None
    if fn is math.log and len(numbers) == 2 and all(n.pytype is not bool for n in numbers):
        parts = [elementary_function(tx, fn, [n]) or _logarithm(n) for n in numbers]  # as CPython does
        return None if None in parts else arith.binary(tx, operator.truediv, *parts)  # type: ignore[arg-type]
    if fn in _QUESTIONS and len(numbers) == 1 and is_finite(symbols[0]):
        return ConstantValue(_QUESTIONS[fn])
    known: Any = (_OF_ONE if len(numbers) == 1 else _OF_TWO).get(fn)
    if known is None or not all(map(is_finite, symbols)):
        return None
    stand_in, has_value = known
    values = [n.example if isinstance(n, SymValue) else n.const() for n in numbers]
    if len(numbers) > 2 or not bool(has_value(*values)):
        return None
    return tx.graph_call(stand_in, numbers, {})
