"""What a thread or a context holds: attributes of ``threading.local`` and context variables, read as the guards run.

Guards run in the thread, and in the context, of the call. What the region would set breaks the graph.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.sources import Source
from dynamo_capture.values.base import Value
from dynamo_capture.values.callables import MethodHandlerValue
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.identity import identity_key

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["held_by_context", "held_by_thread"]


class _HeldValue(Value):
    """An object of one of the two classes, which exists outside."""

    __slots__ = ("obj",)

    mutable = True

    def __init__(self, obj: Any, source: Source) -> None:
        self.source = source
        self.obj = obj

    @property
    def pytype(self) -> type:
        return type(self.obj)

    def real(self) -> Any:
        return self.obj

    def key(self, tx: Capture) -> Any:
        return identity_key(tx, self)

    def truth(self, tx: Capture) -> bool:
        return True


class ThreadLocalValue(_HeldValue):
    """A ``threading.local``."""

    __slots__ = ()

    def getattr(self, tx: Capture, name: str) -> Value:
        source = self.source
        assert source is not None
        if name.startswith("__"):
            raise GraphBreak("QB06", f"attribute {name!r} of {source}, which each thread has its own of")
        if not hasattr(self.obj, name):
            tx.guards.has_attr(source, name, False)
        return tx.read(tx.exact(getattr, self.obj, name), source.attr(name))

    def setattr(self, tx: Capture, name: str, value: Value) -> None:
        raise GraphBreak("QB06", f"setting attribute {name!r} of {self.source}, which each thread has its own of")


def held_by_thread(tx: Capture, obj: Any, source: Source) -> Value:
    """The value of a ``threading.local``."""
    if type(obj) is not threading.local:
        raise GraphBreak("QB06", f"the attributes that {source} has in this thread")
    tx.guards.type_is(source, type(obj))
    return ThreadLocalValue(obj, source)


class _Unset:
    """Stands for what a context variable has not."""


_UNSET = _Unset()


def _value_of(variable: Any) -> Any:
    """What a context variable holds, whatever its default is (a step of a guard's path, which ends where it raises)."""
    found = variable.get(_UNSET)
    if found is _UNSET:
        raise LookupError(variable)
    return found


def _held_or_default(variable: Any) -> Any:
    """What a context variable holds, or its default (a step of a guard's path, which ends where it raises)."""
    return variable.get()


def _is_unset(variable: Any) -> bool:
    return variable.get(_UNSET) is _UNSET


class ContextVariableValue(_HeldValue):
    """A ``contextvars.ContextVar``."""

    __slots__ = ()

    def getattr(self, tx: Capture, name: str) -> Value:
        if name == "get":
            return MethodHandlerValue(self._get, name, self)
        if name == "name":
            return ConstantValue(self.obj.name)
        raise GraphBreak("QB06", f"attribute {name!r} of the context variable {self.source}")

    def _get(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        source = self.source
        assert source is not None
        if len(args) > 1 or kwargs:
            raise GraphBreak("QB07", "ContextVar.get() with these arguments")
        ask = _value_of if args else _held_or_default
        try:
            found = ask(self.obj)
        except LookupError:
            if not args:
                raise GraphBreak("QB19", f"the context variable {source} holds nothing") from None
            tx.guards.predicate(source, _is_unset, f"the context variable {source} is not set")
            return args[0]
        return tx.read(found, Source("call", source, ask))


def held_by_context(tx: Capture, obj: Any, source: Source | None) -> Value:
    """The value of a context variable."""
    source = source or Source("constant", None, (obj,))
    tx.guards.is_object(source, obj)
    return ContextVariableValue(obj, source)

