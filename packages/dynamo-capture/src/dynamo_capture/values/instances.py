"""Instances of subclasses of ``int``, ``float``, ``complex``, ``str`` and ``bytes``, and members of enums.

Their number or text never changes, and it is guarded; their attributes and methods are those of any object. One whose
operators are the builtin type's or a library's is a constant as far as operators go (:class:`InstanceConstant`); one
whose class says in Python what an operator does is an object whose methods are inlined.
"""

from __future__ import annotations

import enum
import types
from typing import TYPE_CHECKING, Any

from dynamo_capture.rules import is_library_class
from dynamo_capture.sources import Source
from dynamo_capture.values.base import Value
from dynamo_capture.values.classes import guard_lookup, lookup
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.objects import ObjectValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["InstanceConstant", "instance"]

_BASES = (int, float, complex, str, bytes)
#: What operators, builtin functions and formatting ask a class for.
_SPECIAL = tuple(
    f"__{name}__"
    for name in (
        *("eq ne lt le gt ge hash bool len str repr format index int float complex iter contains getitem abs neg pos "
          "invert round trunc floor ceil divmod rdivmod call").split(),
        *(prefix + name for name in "add sub mul truediv floordiv mod pow lshift rshift and or xor matmul".split()
          for prefix in ("", "r")),
    )
)  # fmt: skip


def instance(tx: Capture, obj: Any, source: Source) -> Value:
    """The value of an existing instance; its type is guarded, and its number or text, or that it is this member."""
    cls = type(obj)
    base = next((b for b in _BASES if isinstance(obj, b)), None)
    if isinstance(obj, enum.Enum):
        tx.guards.is_object(source, obj)
    else:
        tx.guards.type_is(source, cls)
        tx.guards.equals(source, obj)
    payload = None if base is None else ConstantValue(_plain(base, obj))
    inner = ObjectValue(cls, obj, source, payload)
    if any(isinstance(lookup(cls, name)[0], types.FunctionType) and not is_library_class(lookup(cls, name)[1])  # type: ignore[arg-type]
           for name in _SPECIAL):  # fmt: skip
        return inner
    for name in _SPECIAL:
        guard_lookup(tx, cls, name, lookup(cls, name)[1])
    return InstanceConstant(obj, source, inner)


def _plain(base: Any, obj: Any) -> Any:
    """The number or text itself, whatever conversions the class defines."""
    if base is complex:
        return complex(complex.real.__get__(obj), complex.imag.__get__(obj))  # type: ignore[attr-defined]
    if base is str:
        return str.__str__(obj)
    return bytes.__getitem__(obj, slice(None)) if base is bytes else base.__pos__(obj)


class InstanceConstant(ConstantValue):
    """An instance whose operators are those of its builtin base or of a library."""

    __slots__ = ("inner",)

    mutable = True

    def __init__(self, value: Any, source: Any, inner: ObjectValue) -> None:
        super().__init__(value, source)
        self.inner = inner

    def getattr(self, tx: Capture, name: str) -> Value:
        return self.inner.getattr(tx, name)

    def setattr(self, tx: Capture, name: str, value: Value) -> None:
        self.inner.setattr(tx, name, value)

    def delattr(self, tx: Capture, name: str) -> None:
        self.inner.delattr(tx, name)

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        found, owner = lookup(type(self.value), name)
        if owner is not None and (isinstance(found, types.FunctionType) or not is_library_class(owner)):
            return self.inner.call_method(tx, name, args, kwargs)
        return super().call_method(tx, name, args, kwargs)
