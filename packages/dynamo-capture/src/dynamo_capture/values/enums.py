"""Classes of enumerations: their members by name and by value, and the guards that these stay.

``EnumType`` keeps the members in containers of the class, which a program may change (``extend_enum`` of ``aenum``
does). So what capture tells of a class's members it reads from those containers.
"""

from __future__ import annotations

import contextlib
import enum
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.rules import is_library_class
from dynamo_capture.values.base import Value
from dynamo_capture.values.classes import class_source, find, lookup
from dynamo_capture.values.constant import ConstantValue, fold

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["guard_member_text", "iterate_members", "member_by_name", "member_by_value", "members"]


def _kept(tx: Capture, cls: enum.EnumMeta, name: str) -> Value:
    return tx.from_python(cls.__dict__[name], class_source(cls, name)).realize()


def members(tx: Capture, cls: enum.EnumMeta) -> Any:
    """The dict from a class's names, aliases too, to its members."""
    return _kept(tx, cls, "_member_map_")


def member_by_name(tx: Capture, cls: enum.EnumMeta, name: str) -> Value | None:
    """``cls.name`` where that is a member: the class's own attribute, or found by the metaclass (before 3.12)."""
    found, owner = lookup(cls, name)
    if owner is None and lookup(type(cls), "__getattr__")[1] is enum.EnumMeta:
        return members(tx, cls).find(tx, ConstantValue(name))  # type: ignore[no-any-return]
    if isinstance(found, cls) or (isinstance(found, enum.property) and name in cls.__members__):
        find(tx, cls, name)
        return tx.from_python(getattr(cls, name))
    return None


def iterate_members(tx: Capture, cls: enum.EnumMeta) -> Iterator[Value]:
    """The members in their order, without aliases.

    Raises:
        GraphBreak: the metaclass says in another way what they are.
    """
    if isinstance(find(tx, type(cls), "__iter__")[0], types.FunctionType) and not is_library_class(type(cls)):
        raise GraphBreak("QB06", f"iteration over the class {cls.__name__}")
    by_name = members(tx, cls)
    return iter([by_name.getitem(tx, name.realize()) for name in _kept(tx, cls, "_member_names_").iterate(tx)])


def member_by_value(tx: Capture, cls: enum.EnumMeta, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``cls(value)``; with more arguments, a new class.

    Raises:
        ObservedError: there is no such member.
        GraphBreak: the program's own ``_missing_`` would be asked.
    """
    if len(args) != 1 or kwargs:
        return fold(tx, cls, args, kwargs)
    value = args[0].realize()
    if value.pytype is cls:
        return value
    maker = lookup(cls, "_missing_")[1]
    if issubclass(cls, enum.Flag) and value.is_const and maker is not None and is_library_class(maker):
        with contextlib.suppress(Exception):  # found below
            cls(value.const())  # a combination's first use adds it to the map: guards then say that it is there
    by_value: Any = _kept(tx, cls, "_value2member_map_")
    if value.is_const and value.const().__hash__ and (found := by_value.find(tx, value)) is not None:
        return found  # type: ignore[no-any-return]
    owner = find(tx, cls, "_missing_")[1]
    if owner is not None and not is_library_class(owner):
        raise GraphBreak("QB03", f"{cls.__qualname__}._missing_")
    return fold(tx, cls, args, kwargs)


def guard_member_text(tx: Capture, value: Value) -> None:
    """A member's name and value, of which the library makes its text, stay."""
    for name in ("_name_", "_value_"):
        value.getattr(tx, name).realize()
