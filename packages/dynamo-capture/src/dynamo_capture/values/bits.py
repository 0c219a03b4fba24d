"""``& | ^ << >> ~`` of symbolic integers, written as arithmetic that a graph has: all values share one graph.

Python's integers are two's complements of any length, and its ``//`` and ``%`` round down, so that the identities
below hold for negative numbers too: bits ``i`` to ``j`` of ``x`` are ``x // 2**i % 2**(j - i)``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.constant import ConstantValue, fold
from dynamo_capture.values.tensor import SymValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["BITWISE", "decided", "inverted", "of_bits"]

BITWISE = frozenset((operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift))
#: Sizes and ints are 64 bits wide in a graph.
_WIDTH = 63


def of_bits(tx: Capture, fn: Callable[..., Any], a: Value, b: Value) -> Value:
    """``fn(a, b)`` for numbers of which at least one is symbolic, and ``fn`` of :data:`BITWISE`.

    Raises:
        GraphBreak: which bits there are only the running program knows.
    """
    a, b = decided(tx, a), decided(tx, b)
    if not isinstance(a, SymValue) and not isinstance(b, SymValue):
        return fold(tx, fn, [a, b], {})
    if isinstance(a, SymValue) and isinstance(b, SymValue) and not _is_open(tx, b):
        b = ConstantValue(b.const())  # of two numbers one is known, which is guarded
    if fn not in (operator.lshift, operator.rshift) and isinstance(b, SymValue):
        a, b = b, a  # the others may change places
    if a.pytype is not int or not isinstance(a, SymValue) or not _is_narrow(fn, b):
        if _is_open(tx, a) or _is_open(tx, b):
            raise GraphBreak("QB06", f"{fn.__name__} of {display(a)} and {display(b)}")
        return fold(tx, fn, [ConstantValue(a.const()), ConstantValue(b.const())], {})
    x, number = a, int(b.const())
    if fn is operator.lshift:
        return _calculate(tx, operator.mul, x, 1 << number)
    if fn is operator.rshift:
        return _calculate(tx, operator.floordiv, x, 1 << number)
    common = _masked(tx, x, number)
    if fn is operator.and_:
        return common
    both = _calculate(tx, operator.add, x, number)
    if fn is operator.xor:
        common = _calculate(tx, operator.mul, common, 2)
    return _calculate(tx, operator.sub, both, common)


def _is_open(tx: Capture, value: Value) -> bool:
    """Whether only the data tells the number."""
    if not isinstance(value, SymValue):
        return False
    return any(tx.symbols.is_unbacked(name) for name in value.example.node.expr.free_symbols())


def inverted(tx: Capture, x: SymValue) -> Value:
    """``~x`` of an int."""
    return _calculate(tx, operator.sub, ConstantValue(-1), x)


def is_truth(value: Value) -> bool:
    """Is it a symbolic truth value?"""
    return isinstance(value, SymValue) and value.pytype is bool


def decided(tx: Capture, value: Value) -> Value:
    """A truth value as the one that it is now (guarded)."""
    return ConstantValue(value.truth(tx)) if is_truth(value) else value


def _is_narrow(fn: Callable[..., Any], number: Value) -> bool:
    if type(number) is not ConstantValue or type(number.value) not in (int, bool):
        return False
    if fn in (operator.lshift, operator.rshift):
        return 0 <= number.value < _WIDTH
    return bool(number.value.bit_length() < _WIDTH)


def _calculate(tx: Capture, fn: Callable[..., Any], a: Value, b: Value | int) -> Value:
    from dynamo_capture.values.arith import binary

    return binary(tx, fn, a, b if isinstance(b, Value) else ConstantValue(b))


def _masked(tx: Capture, x: Value, mask: int) -> Value:
    """``x & mask``."""
    if mask < 0:
        return _calculate(tx, operator.sub, x, _masked(tx, x, ~mask))
    total: Value = ConstantValue(0)
    for low, high in _runs(mask):
        part = _calculate(tx, operator.floordiv, x, 1 << low) if low else x
        part = _calculate(tx, operator.mod, part, 1 << (high - low))
        total = _calculate(tx, operator.add, total, _calculate(tx, operator.mul, part, 1 << low) if low else part)
    return total


def _runs(mask: int) -> Iterator[tuple[int, int]]:
    """The runs of ones in a number, as (first bit, bit behind the last)."""
    low = 0
    while mask >> low:
        if mask >> low & 1:
            high = low
            while mask >> high & 1:
                high += 1
            yield low, high
            low = high
        low += 1
