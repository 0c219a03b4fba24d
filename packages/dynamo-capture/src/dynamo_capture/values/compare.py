"""Equality and identity of values."""

from __future__ import annotations

import operator
import types
from typing import TYPE_CHECKING, Any

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.sources import Source
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.tensor import SymValue, TensorValue
from dynamo_capture.values.tensor_state import GradientFunctionValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["equal_by_default", "equals", "existing", "identical"]


def identical(tx: Capture, a: Value, b: Value) -> bool:
    """``a is b``; that two existing objects are one, or are two, is guarded.

    Raises:
        GraphBreak: nothing tells (two tuples with the same elements).
    """
    from dynamo_capture.values.containers import TupleValue
    from dynamo_capture.values.weak import WeakReferenceValue

    a, b = a.realize(), b.realize()
    if a is b:
        return True
    if isinstance(a, SymValue) or isinstance(b, SymValue):
        return a.pytype is b.pytype and a.const() == b.const()
    if isinstance(a, WeakReferenceValue) and isinstance(b, WeakReferenceValue):
        if a.original is None or b.original is None:  # Python makes one for each object, unless it has a callback
            raise GraphBreak("QB06", "whether two weak references are one")
    for value, other in ((a, b), (b, a)):
        if isinstance(value, GradientFunctionValue) and type(other) is ConstantValue and other.value is None:
            return False
    if type(a) is ConstantValue and type(b) is ConstantValue:
        x, y = a.value, b.value
        return x is y or (type(x) is type(y) and type(x) in (int, str, bytes, float) and x == y)
    x, y = existing(a), existing(b)
    if isinstance(a, TupleValue) and isinstance(b, TupleValue) and (x is None or y is None):
        return _same_tuple(tx, a, b)
    same = x is not None and x is y
    if isinstance(a, TensorValue) and isinstance(b, TensorValue):
        same = same or a.example is b.example
    if same or a.pytype is b.pytype:
        _guard_identity(tx, a, b, same)
    return same


def existing(value: Value) -> Any:
    """The object behind a value, if it existed before the region; None where that is not known by an object."""
    if isinstance(value, ConstantValue):
        return value.value
    if isinstance(value, TensorValue):
        return value.real_tensor
    for name in ("obj", "fn", "original", "kernel"):
        found = getattr(value, name, None)
        if found is not None:
            return found
    return None


def _guard_identity(tx: Capture, a: Value, b: Value, same: bool) -> None:
    """Two existing objects stay the same one, or stay two."""
    from dynamo_capture.values.plain_objects import PlainValue

    sources = []
    for value in (a, b):
        by_equality = isinstance(value, PlainValue) and value.source is not None
        if value.is_const and not value.mutable and not by_equality and getattr(value, "original", None) is None:
            return  # guarded to be what it is
        found = existing(value)
        if value.source is None and found is None:
            return  # made in the region: it is no other object, and the same only with itself
        sources.append(value.source or Source("constant", None, (found,)))
    if same:
        tx.guards.same(*sources)
    else:
        tx.guards.distinct(sources)


def _same_tuple(tx: Capture, a: Any, b: Any) -> bool:
    """Whether two tuples are one; empty ones are."""
    if a.cls is not b.cls or len(a.items) != len(b.items):
        return False
    if not a.items and a.cls is tuple:
        return True
    if all(identical(tx, x, y) for x, y in zip(a.items, b.items, strict=True)):
        raise GraphBreak("QB06", f"whether {display(a)} and {display(b)} are one tuple")
    return False


def equals(tx: Capture, a: Value, b: Value) -> bool:
    """``a is b or bool(a == b)``, as containers compare their elements."""
    a, b = a.realize(), b.realize()
    if a is b:
        return True
    from dynamo_capture.values.arith import compare

    result = compare(tx, operator.eq, a, b).realize()
    if isinstance(result, TensorValue):
        raise GraphBreak("QB01", f"comparison of {display(a)} as a truth value")
    return result.truth(tx)


def equal_by_default(tx: Capture, a: Value, b: Value) -> bool:
    """``a == b`` where no class of the program says otherwise.

    Raises:
        GraphBreak: it is C code that capture does not know.
    """
    from dynamo_capture.values.classes import lookup
    from dynamo_capture.values.functions import MethodValue
    from dynamo_capture.values.ids import UnknownId
    from dynamo_capture.values.objects import ObjectValue

    if a is b:
        return True
    if isinstance(a, MethodValue) and isinstance(b, MethodValue):
        return identical(tx, a.owner, b.owner) and equals(tx, a.func, b.func)
    if isinstance(a, UnknownId) and isinstance(b, UnknownId):
        return a.equals(b)
    if a.is_const and b.is_const:
        return bool(a.const() == b.const())
    for value in (a, b):
        found, owner = lookup(value.pytype, "__eq__")
        asked = owner is object or isinstance(found, types.FunctionType) or isinstance(value, ObjectValue)
        if not asked and not _never_equal(value, b if value is a else a):
            raise GraphBreak("QB06", f"== of {display(a)} and {display(b)}")
    return identical(tx, a, b)


def _never_equal(value: Value, other: Value) -> bool:
    """Whether a builtin type's ``==`` declines an object of the other's type."""
    from dynamo_capture.values.identity import builtin_kind

    mine = builtin_kind(value.pytype)
    return mine is not None and mine is not builtin_kind(other.pytype)
