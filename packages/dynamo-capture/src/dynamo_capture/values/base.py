"""The interpreter's view of a Python object: what every value can be asked.

A value knows its Python type and how it behaves under attribute access, calls, iteration and rebuilding. What a
class does not support raises :class:`~dynamo_capture.breaks.GraphBreak`; what the program itself would raise is an
:class:`ObservedError`, which the interpreter unwinds as Python does.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from dynamo_capture.breaks import GraphBreak

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen
    from dynamo_capture.sources import Source

__all__ = ["NULL", "PREVIOUS", "LazyValue", "NullValue", "ObservedError", "PreviousError", "Value", "display"]


class ObservedError(Exception):
    """The captured program raises; ``value`` is the exception's value."""

    def __init__(self, value: Value) -> None:
        super().__init__(value)
        self.value = value


class Value:
    """Base of all values. ``source`` says where an object that existed before the frame comes from."""

    __slots__ = ("source",)

    #: Whether the object can change, so that identity and aliasing matter.
    mutable = False

    def __init__(self, source: Source | None = None) -> None:
        self.source = source

    def realize(self) -> Value:
        """The value itself; a lazy one is looked at now (and guarded)."""
        return self

    @property
    def pytype(self) -> type:
        """``type(self)`` in the program."""
        raise GraphBreak("QB06", f"type of {display(self)}")

    @property
    def is_const(self) -> bool:
        """Whether :meth:`const` gives a Python constant."""
        return False

    def const(self) -> Any:
        """The Python object that this stands for, when it is an immutable one known now."""
        raise GraphBreak("QB06", f"the value of {display(self)} is needed")

    def real(self) -> Any:
        """The real object behind the value, when it existed before the frame (or is a constant)."""
        return self.const()

    def key(self, tx: Capture) -> Any:
        """A hashable object that stands for the value as a dict key or set element (guarded to be what it is).

        It is equal to that of another value exactly when the program's objects are (:mod:`.identity`).
        """
        raise GraphBreak("QB06", f"{display(self)} as a key")

    def getattr(self, tx: Capture, name: str) -> Value:
        """``getattr(self, name)``."""
        raise GraphBreak("QB06", f"attribute {name!r} of {display(self)}")

    def setattr(self, tx: Capture, name: str, value: Value) -> None:
        """``setattr(self, name, value)``."""
        raise GraphBreak("QB06", f"setting attribute {name!r} of {display(self)}")

    def delattr(self, tx: Capture, name: str) -> None:
        """``delattr(self, name)``."""
        raise GraphBreak("QB06", f"deleting attribute {name!r} of {display(self)}")

    def call(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """``self(*args, **kwargs)``."""
        raise GraphBreak("QB03", display(self))

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """``self.name(*args, **kwargs)``."""
        return self.getattr(tx, name).realize().call(tx, args, kwargs)

    def truth(self, tx: Capture) -> bool:
        """``bool(self)``."""
        raise GraphBreak("QB06", f"truth value of {display(self)}")

    def iterate(self, tx: Capture) -> Iterator[Value]:
        """The elements, one by one (``iter(self)`` for values that have no state of their own)."""
        raise GraphBreak("QB06", f"iteration over {display(self)}")

    def get_iter(self, tx: Capture) -> Value:
        """``iter(self)``."""
        from dynamo_capture.values.iterators import IteratorValue

        return IteratorValue(self.iterate(tx))

    def unpack(self, tx: Capture) -> list[Value]:
        """``[*self]``."""
        return list(self.iterate(tx))

    def getitem(self, tx: Capture, key: Value) -> Value:
        """``self[key]``."""
        self._must_have(tx, "__getitem__", operator.getitem, key)
        return self.call_method(tx, "__getitem__", [key], {})

    def setitem(self, tx: Capture, key: Value, value: Value) -> None:
        """``self[key] = value``."""
        self._must_have(tx, "__setitem__", operator.setitem, key, value)
        self.call_method(tx, "__setitem__", [key, value], {})

    def delitem(self, tx: Capture, key: Value) -> None:
        """``del self[key]``."""
        self._must_have(tx, "__delitem__", operator.delitem, key)
        self.call_method(tx, "__delitem__", [key], {})

    def _must_have(self, tx: Capture, name: str, operation: Callable[..., Any], *args: Value) -> None:
        """Raise the operation's TypeError where the class lacks the method, as Python does."""
        from dynamo_capture.values.exact import type_error

        if not hasattr(self.pytype, name):
            type_error(tx, operation, self, *args)

    def contains(self, tx: Capture, item: Value) -> bool:
        """``item in self``."""
        from dynamo_capture.values.compare import equals

        return any(equals(tx, item, x.realize()) for x in self.iterate(tx))

    def length(self, tx: Capture) -> Value:
        """``len(self)``."""
        raise GraphBreak("QB06", f"len() of {display(self)}")

    def reconstruct(self, cg: CodeGen) -> None:
        """Emit code that leaves the object on the stack (only called for values without a source)."""
        raise GraphBreak("QB10", display(self))

    def children(self) -> Iterator[Value]:
        """The values that rebuilding this one needs."""
        return iter(())

    def release(self) -> None:
        """Let go of the object and of all other values; the capture has ended."""
        for name in _slots(type(self)):  # type: ignore[arg-type]  # a class is hashable, whatever its instances are
            setattr(self, name, None)

    def describe(self) -> str:
        """How the value is named in a break reason."""
        return type(self).__name__.removesuffix("Value").lower()


@functools.cache
def _slots(cls: type) -> tuple[str, ...]:
    names = (name for base in cls.__mro__ for name in base.__dict__.get("__slots__", ()))
    return tuple(name for name in names if name != "__weakref__")


class IdentityKey:
    """A dict key that is equal only to itself, for objects that hash by identity."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


class NullValue(Value):
    """The NULL that call sequences keep on the stack."""

    __slots__ = ()


NULL = NullValue()


class PreviousError(Value):
    """What ``PUSH_EXC_INFO`` leaves on the stack where a frame handles nothing yet: its caller's error, or nothing."""

    __slots__ = ()


PREVIOUS = PreviousError()


class LazyValue(Value):
    """An object of the frame that nobody has looked at yet: no guard, no graph input."""

    __slots__ = ("_value", "obj", "tx")

    def __init__(self, tx: Capture, obj: Any, source: Source) -> None:
        self.source = source
        self.obj = obj
        self.tx = tx
        self._value: Value | None = None

    def realize(self) -> Value:
        value = self._value
        if value is None:
            value = self._value = self.tx.wrap(self.obj, self.source)
        return value

    @property
    def realized(self) -> Value | None:
        """The value, if it has been looked at."""
        return self._value

    def real(self) -> Any:
        return self.realize().real()

    # Every question that is not about mere passing on looks at the object.
    @property
    def pytype(self) -> type:
        return self.realize().pytype

    @property
    def is_const(self) -> bool:
        return self.realize().is_const

    def const(self) -> Any:
        return self.realize().const()

    def key(self, tx: Capture) -> Any:
        return self.realize().key(tx)

    def truth(self, tx: Capture) -> bool:
        return self.realize().truth(tx)

    def iterate(self, tx: Capture) -> Iterator[Value]:
        return self.realize().iterate(tx)

    def unpack(self, tx: Capture) -> list[Value]:
        return self.realize().unpack(tx)

    def getattr(self, tx: Capture, name: str) -> Value:
        return self.realize().getattr(tx, name)

    def call(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.realize().call(tx, args, kwargs)

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.realize().call_method(tx, name, args, kwargs)

    def describe(self) -> str:
        return f"an object of type {type(self.obj).__name__}"


def display(value: Value) -> str:
    """``value`` as a break reason names it, with its source when it has one."""
    text = value.describe()
    return f"{text} ({value.source})" if value.source is not None else text
