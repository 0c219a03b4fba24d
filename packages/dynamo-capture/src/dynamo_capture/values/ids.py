"""``id()``: the address of an existing object is a number; that of a new one is known by what it is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import IdentityKey, Value, display
from dynamo_capture.values.compare import existing
from dynamo_capture.values.constant import ConstantValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["NewId", "id_of"]

_UNIQUE = (type(None), bool, type(Ellipsis), type(NotImplemented))


def id_of(tx: Capture, value: Value) -> Value:
    """``id(value)``.

    Raises:
        GraphBreak: nothing tells which object it is (a number or a text, a tuple).
    """
    value = value.realize()
    obj = existing(value)
    if value.is_const and not value.mutable:
        if type(obj) not in _UNIQUE and not isinstance(obj, type) and value.source is None:
            raise GraphBreak("QB06", f"the id of {display(value)}")
        if value.source is not None:
            tx.guards.is_object(value.source, obj)
        return ConstantValue(id(obj))
    if obj is None and value.source is not None:
        obj = tx.object_behind(value)
    if obj is not None:
        if value.source is not None and not value.source.is_fixed:
            tx.guards.is_object(value.source, obj)
        return ConstantValue(id(obj))
    if not value.mutable or value.source is not None:
        raise GraphBreak("QB06", f"the id of {display(value)}")
    tx.keep(value)
    return NewId(value)


class NewId(Value):
    """The id of an object that the region makes: another than those of all objects that live beside it."""

    __slots__ = ("owner",)

    def __init__(self, owner: Value) -> None:
        self.source = None
        self.owner = owner

    @property
    def pytype(self) -> type:
        return int

    def key(self, tx: Capture) -> Any:
        return _IdKey(self.owner)

    def truth(self, tx: Capture) -> bool:
        return True

    def children(self) -> Iterator[Value]:
        raise GraphBreak("QB10", "the result of id()")

    def reconstruct(self, cg: Any) -> None:
        raise GraphBreak("QB10", "the result of id()")

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise GraphBreak("QB06", f"{name} of {self.describe()}")

    def describe(self) -> str:
        return "the id of an object that the region makes"


class _IdKey(IdentityKey):
    """The stand-in of such an id as a key: equal to that of the same object alone."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _IdKey) and other.value is self.value

    __hash__ = IdentityKey.__hash__
