"""Identity and hash of values: what tells one object from another, and the guards that make it so.

A key of a dict or an element of a set is known by a stand-in, a hashable Python object that is equal to another
stand-in exactly when the program's keys are:

* a constant is its own stand-in: its value is guarded;
* an existing object that is told from others by identity is its own stand-in too. That it is not another of the keys
  is guarded; where it is looked up among objects that no guard names (the keys of an existing dict), so is that it is
  this very object (:func:`pin`);
* an object that the region makes is equal to itself alone (:class:`IdentityKey`);
* an object of a class with ``__hash__`` and ``__eq__`` in Python is a :class:`HashedKey`, which asks them.
"""

from __future__ import annotations

import collections
import datetime
import enum
import re
import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.rules import is_c_enumeration, is_library_class
from dynamo_capture.sources import Source
from dynamo_capture.values.base import IdentityKey, ObservedError, Value, display
from dynamo_capture.values.classes import bind_attribute, find, full_name, lookup, qualified_name

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["HashedKey", "builtin_kind", "hash_of", "identity_key", "is_real_key", "keyed", "object_key", "pin"]

#: C classes whose objects never change, so that a question about one of them has one answer.
_UNCHANGING = (types.GenericAlias, types.UnionType, datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo,
               re.Pattern)  # fmt: skip
_ENUM_HASH = enum.Enum.__dict__["__hash__"]
_OBJECT_HASH = object.__dict__["__hash__"]
_OBJECT_EQ = object.__dict__["__eq__"]


def object_of(tx: Capture, value: Value) -> Any:
    """The existing object behind a value, or None for one that the region makes.

    Of a tuple or a method that need not be the very same one, an equal one.
    """
    from dynamo_capture.values.compare import existing
    from dynamo_capture.values.containers import TupleValue
    from dynamo_capture.values.functions import MethodValue
    from dynamo_capture.values.tensor import SymValue

    value = value.realize()
    if isinstance(value, TupleValue):
        items = [object_of(tx, item) for item in value.items]
        missing = any(x is None and not _is_none(item) for x, item in zip(items, value.items, strict=True))
        return None if missing else value.make_real(items)
    if isinstance(value, MethodValue):
        func, owner = object_of(tx, value.func), object_of(tx, value.owner)
        return None if func is None or owner is None else types.MethodType(func, owner)
    if value.is_const or isinstance(value, SymValue):
        return value.const()
    obj = existing(value)
    return tx.object_behind(value) if obj is None and value.source is not None else obj


def _is_none(value: Value) -> bool:
    value = value.realize()
    return value.is_const and value.const() is None


def never_changes(value: Value) -> bool:
    """Whether it is an existing object of a C class whose objects never change."""
    from dynamo_capture.values.compare import existing

    fixed = isinstance(existing(value), _UNCHANGING) and is_library_class(value.pytype)
    return fixed or is_c_enumeration(value.pytype)


def source_of_existing(value: Value) -> Source | None:
    """Where an object comes from that may be another one in another call; None where the code fixes it."""
    source = value.source
    return None if source is None or source.is_fixed else source


def pin(tx: Capture, value: Value) -> None:
    """In every call the value is the object that it is in this one."""
    from dynamo_capture.values.containers import TupleValue
    from dynamo_capture.values.functions import MethodValue

    value = value.realize()
    if isinstance(value, TupleValue):
        for item in value.items:
            pin(tx, item)
    elif isinstance(value, MethodValue):
        pin(tx, value.owner)
        pin(tx, value.func)
    elif not value.is_const and (source := source_of_existing(value)) is not None:
        tx.guards.is_object(source, object_of(tx, value))


def compares_by_identity(tx: Capture, cls: type) -> bool:
    """Whether objects of a class are equal to themselves alone."""
    return find(tx, cls, "__eq__")[0] is _OBJECT_EQ


def identity_key(tx: Capture, value: Value) -> Any:
    """The stand-in of an object that hashes and compares by identity."""
    obj = object_of(tx, value)
    if obj is None:
        return IdentityKey(value)
    source = value.source
    if source is not None:
        tx.guards.keyed(source)
    return obj


def keyed(tx: Capture, value: Value, place: str | None) -> Any:
    """The stand-in of an object that is looked up, or put in, as a ``"dict key"`` or a ``"set element"``.

    From Python 3.14 on the TypeError of one that cannot be hashed says so; None: of this operation it does not.
    """
    value = value.realize()
    if place is None or not _ERRORS_NAME_PLACES:
        return value.key(tx)
    try:
        return value.key(tx)
    except ObservedError as error:
        raised: Any = error.value
        if raised.pytype is not TypeError:
            raise
    if not all(arg.is_const for arg in raised.args):
        raise GraphBreak("QB19", f"an error of the hash of {display(value)}")
    reason = TypeError(*[arg.const() for arg in raised.args])
    raise tx.observed(TypeError(f"cannot use '{qualified_name(value.pytype)}' as a {place} ({reason})"))


_ERRORS_NAME_PLACES = sys.version_info >= (3, 14)


def object_key(tx: Capture, value: Value, cls: type) -> Any:
    """The stand-in of an instance of ``cls``.

    Raises:
        ObservedError: it is unhashable.
        GraphBreak: its hash is C code that capture does not know.
    """
    hashed = find(tx, cls, "__hash__")[0]
    if hashed is _ENUM_HASH and compares_by_identity(tx, cls):
        return object_of(tx, value)  # its identity is guarded
    if hashed is _OBJECT_HASH and compares_by_identity(tx, cls):
        return identity_key(tx, value)
    if hashed is None:
        raise tx.observed(TypeError(f"unhashable type: {full_name(cls)!r}"))
    payload = getattr(value, "payload", None)
    if payload is not None and lookup(cls, "__eq__")[1] is lookup(cls, "__hash__")[1] is payload.pytype:
        return payload.key(tx)
    if isinstance(hashed, types.FunctionType) or hashed is _OBJECT_HASH:
        return HashedKey(tx, value, hash_of(tx, value))
    if never_changes(value):
        pin(tx, value)
        return object_of(tx, value)
    raise GraphBreak("QB06", f"the hash of {display(value)}")


#: Builtin types by what their ``==`` takes for one of theirs; it declines objects of the other kinds.
_KINDS: tuple[tuple[type, ...], ...] = (
    (bool, int, float, complex), (str,), (bytes, bytearray), (list,), (tuple,), (dict,), (set, frozenset),
    (collections.deque,), (type(None),), (slice,), (range,), (types.MethodType,), (types.BuiltinFunctionType,),
    (torch.Tensor, torch._C.TensorBase),
)  # fmt: skip


def builtin_kind(cls: type) -> tuple[type, ...] | None:
    """The builtin types that objects of ``cls`` may equal, one of which gives it its ``==``; None for another class."""
    owner = lookup(cls, "__eq__")[1]
    return next((kind for kind in _KINDS if owner in kind), (object,) if owner is object else None)


class HashedKey:
    """The stand-in of an object whose class says in Python how it hashes and compares."""

    __slots__ = ("hash", "tx", "value")

    def __init__(self, tx: Capture, value: Value, hashed: int) -> None:
        self.tx = tx
        self.value = value
        self.hash = hashed

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        from dynamo_capture.values.compare import equals

        if isinstance(other, IdentityKey):
            return equals(self.tx, self.value, other.value)
        return equals(self.tx, self.value, other.value if isinstance(other, HashedKey) else self.tx.from_python(other))


def is_real_key(stand_in: Any) -> bool:
    """Whether a stand-in is the real key, that is, whether Python's own dict can be asked for it."""
    if type(stand_in) in (tuple, frozenset):
        return all(map(is_real_key, stand_in))
    return not isinstance(stand_in, (IdentityKey, HashedKey))


class _Hashed:
    """An element of a tuple whose hash is known."""

    __slots__ = ("hash",)

    def __init__(self, hashed: int) -> None:
        self.hash = hashed

    def __hash__(self) -> int:
        return self.hash


def hash_of(tx: Capture, value: Value) -> int:
    """``hash(value)``.

    Raises:
        ObservedError: what the program's ``__hash__`` raises, or that the object has none.
        GraphBreak: the hash of an object that the region makes and that hashes by its address.
    """
    from dynamo_capture.values.containers import TupleValue

    value = value.realize()
    if isinstance(value, TupleValue) and lookup(value.pytype, "__hash__")[1] in (tuple, torch.Size):
        return hash(tuple(_Hashed(hash_of(tx, item)) for item in value.items))
    if value.is_const:
        return hash(value.key(tx))
    hashed, owner = find(tx, value.pytype, "__hash__")
    if isinstance(hashed, types.FunctionType) and hashed is not _ENUM_HASH and not _hashes_itself(value):
        result = bind_attribute(tx, value, value.pytype, "__hash__", hashed, owner).call(tx, [], {}).realize()  # type: ignore[arg-type]
        if not issubclass(result.pytype, int):
            raise tx.observed(TypeError("__hash__ method should return an integer"))
        return _as_hash(result.const())
    payload = getattr(value, "payload", None)
    if payload is not None and owner is payload.pytype:
        return hash_of(tx, payload)
    stand_in = value.key(tx)
    if isinstance(stand_in, IdentityKey):
        raise GraphBreak("QB06", f"the hash of {display(value)}, which the region makes")
    pin(tx, value)
    obj = object_of(tx, value)
    return hash(stand_in if obj is None else obj)  # of a weak reference that is made here an equal one stands in


def _as_hash(number: int) -> int:
    """What ``hash`` makes of the number that a ``__hash__`` in Python gives."""
    fits = -(1 << sys.hash_info.width - 1) <= number < 1 << sys.hash_info.width - 1
    return (-2 if number == -1 else int(number)) if fits else hash(number)


def _hashes_itself(value: Value) -> bool:
    """Whether it is a tensor, a module or another thing whose hash is its identity, though Python code says so."""
    from dynamo_capture.values.tensor import TensorValue

    return isinstance(value, TensorValue)
