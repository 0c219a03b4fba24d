"""Equality and identity of values."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.tensor import SymValue, TensorValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["equals", "identical"]


def identical(tx: Capture, a: Value, b: Value) -> bool:
    """``a is b``."""
    a, b = a.realize(), b.realize()
    if a is b:
        return True
    if isinstance(a, SymValue) or isinstance(b, SymValue):
        return False
    if isinstance(a, ConstantValue) and isinstance(b, ConstantValue):
        x, y = a.value, b.value
        return x is y or (type(x) is type(y) and type(x) in (int, str, bytes, float) and x == y)
    if isinstance(a, TensorValue) or isinstance(b, TensorValue):
        same = isinstance(a, TensorValue) and isinstance(b, TensorValue) and a.example is b.example
    else:
        same = same_object(tx, a, b)
    if not same and a.mutable and b.mutable and a.source is not None and b.source is not None:
        tx.guards.distinct([a.source, b.source])
    return same


def same_object(tx: Capture, a: Value, b: Value) -> bool:
    """Whether both stand for one existing object."""
    x, y = _existing(a), _existing(b)
    return x is not _NONE and x is y


_NONE = object()


def _existing(value: Value) -> Any:
    try:
        return value.real()
    except GraphBreak:
        return _NONE


def equals(tx: Capture, a: Value, b: Value) -> bool:
    """``bool(a == b)``."""
    a, b = a.realize(), b.realize()
    if a is b and not isinstance(a, TensorValue):
        return True
    from dynamo_capture.values.arith import compare

    result = compare(tx, operator.eq, a, b).realize()
    if isinstance(result, TensorValue):
        raise GraphBreak("QB01", f"comparison of {display(a)} as a truth value")
    return result.truth(tx)
