"""``id()``: the address of an existing object is a number; that of a new one is known by what it is compared with."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import IdentityKey, Value, display
from dynamo_capture.values.compare import existing, identical
from dynamo_capture.values.constant import ConstantValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["UnknownId", "id_of"]

_UNIQUE = (type(None), bool, type(Ellipsis), type(NotImplemented), torch.dtype, torch.layout, torch.memory_format,
           types.CodeType)  # fmt: skip


def id_of(tx: Capture, value: Value) -> Value:
    """``id(value)``.

    Raises:
        GraphBreak: nothing tells which object it is (a number or a text, a tuple).
    """
    from dynamo_capture.values.weak import WeakReferenceValue

    value = value.realize()
    if value.is_const and id(value.const()) in tx.made_classes:
        raise GraphBreak("QB15", f"the id of {display(value)}, which is made here")
    if isinstance(value, WeakReferenceValue) and value.original is None:
        raise GraphBreak("QB06", "the id of a weak reference made here")
    obj = existing(value)
    if isinstance(value, ConstantValue) and not value.mutable:
        if type(obj) in _UNIQUE:
            tx.guards.addressed()
            return ConstantValue(id(obj))  # there is one, and the guards say which
        if value.source is None:
            raise GraphBreak("QB06", f"the id of {display(value)}")  # equal ones may be one object or two
    if obj is None and value.source is not None:
        obj = tx.object_behind(value)
    if obj is not None:
        if value.source is not None and not value.source.is_fixed:
            tx.guards.is_object(value.source, obj)
        tx.guards.addressed()
        return ConstantValue(id(obj))
    if value.source is not None:
        raise GraphBreak("QB06", f"the id of {display(value)}")
    tx.keep(value)
    return UnknownId(tx, value)


class UnknownId(Value):
    """The id of an object that the region makes: another than those of all other objects."""

    __slots__ = ("owner", "tx")

    def __init__(self, tx: Capture, owner: Value) -> None:
        self.source = None
        self.owner = owner
        self.tx = tx

    @property
    def pytype(self) -> type:
        return int

    def key(self, tx: Capture) -> Any:
        return _IdKey(tx, self.owner)

    def truth(self, tx: Capture) -> bool:
        return True

    def children(self) -> Iterator[Value]:
        raise GraphBreak("QB10", "the result of id()")

    def reconstruct(self, cg: Any) -> None:
        raise GraphBreak("QB10", "the result of id()")

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise GraphBreak("QB06", f"{name} of {self.describe()}")

    def describe(self) -> str:
        return f"the id of {self.owner.describe()}"

    def equals(self, other: UnknownId) -> bool:
        """Whether both are ids of one object.

        Raises:
            GraphBreak: they may be (two tuples with the same elements).
        """
        return identical(self.tx, self.owner, other.owner)


class _IdKey(IdentityKey):
    """The stand-in of such an id as a key: equal to that of the same object alone."""

    __slots__ = ("tx",)

    def __init__(self, tx: Capture, owner: Value) -> None:
        super().__init__(owner)
        self.tx = tx

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _IdKey) and UnknownId(self.tx, self.value).equals(UnknownId(self.tx, other.value))

    def __hash__(self) -> int:
        # Objects without an identity of their own must meet, for the question to be asked.
        return id(self.value) if self.value.mutable else hash(self.value.pytype)
