"""Class lookups, and what a class attribute becomes when it is read through an instance."""

from __future__ import annotations

import abc
import collections
import contextlib
import enum
import functools
import sys
import threading
import types
import typing
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.rules import is_library_class
from dynamo_capture.sources import Source
from dynamo_capture.values.base import ObservedError, Value
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.wrappers import is_wrapper

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = [
    "NAMED_FIELD", "Held", "bind_attribute", "class_source", "classes_of_a_region", "find", "full_name", "guard_lookup",
    "is_data", "lookup", "may_be_set", "no_attribute", "qualified_name", "set_for_now",
]  # fmt: skip

_C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType,
              types.ClassMethodDescriptorType)  # fmt: skip


#: Class attributes that are interpreted by their meaning, and so are guarded whole.
_NOT_LOOKED_INTO = (property, staticmethod, classmethod, functools.cached_property, types.DynamicClassAttribute,
                    enum.property)  # fmt: skip


#: Attributes of existing classes that regions being captured have set: by thread, then (identity of the class, name).
_SET: dict[int, dict[tuple[int, str], Held]] = {}


def lookup(cls: type, name: str) -> tuple[Any, type | None]:
    """The raw attribute that ``cls`` or a base defines, and the class that does; (None, None) when none does."""
    if _SET and (written := _SET.get(threading.get_ident())):
        return _lookup_set(cls, name, written)
    for base in cls.__mro__:
        found = base.__dict__.get(name, _MISSING)
        if found is not _MISSING:
            return found, base
    return None, None


def _lookup_set(cls: type, name: str, written: dict[tuple[int, str], Held]) -> tuple[Any, type | None]:
    for base in cls.__mro__:
        found = written.get((id(base), name)) or base.__dict__.get(name, _MISSING)
        if found is not _MISSING:
            return found, base
    return None, None


_MISSING = object()
#: The descriptor of a named tuple's field.
NAMED_FIELD = type(collections.namedtuple("_Named", "field").field)  # type: ignore[attr-defined]


class Held:
    """An attribute that the region has given to a class: of one that it has made, no constant and no function."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value


def set_for_now(cls: type, name: str, value: Value) -> None:
    """The class has this attribute, for all that this thread looks up in it while it interprets the region."""
    _SET.setdefault(threading.get_ident(), {})[id(cls), name] = Held(value)


@contextlib.contextmanager
def classes_of_a_region() -> Iterator[None]:
    """A region is interpreted, to whose thread classes look as the region has made them. One within another (of a
    function that runs while its caller is captured) sees them as they are.
    """
    thread = threading.get_ident()
    outer = _SET.pop(thread, None)
    try:
        yield
    finally:
        _SET.pop(thread, None)
        if outer is not None:
            _SET[thread] = outer


def is_data(kind: type) -> bool:
    """Whether a class attribute of this type is nothing but a value to whoever reads it."""
    return all(lookup(kind, name)[1] is None for name in ("__get__", "__set__", "__delete__"))


def may_be_set(cls: type, name: str) -> bool:
    """Whether setting a class's attribute does nothing else: data of the program's class, of no meaning to Python."""
    found, owner = lookup(cls, name)
    plain = type(cls) in (type, abc.ABCMeta) and not name.startswith("__")
    bases = (base for base in cls.__mro__ if is_library_class(base))
    known = all(base.__module__.startswith("torch.nn.modules.") or base in _BASES for base in bases)
    return plain and known and not is_library_class(cls) and (owner is None or is_data(type(found)))


_BASES = (object, abc.ABC, typing.Generic)


#: Bytes of a class's name in the interpreter's AttributeError: "'%.100s' object has no attribute '%U'".
_NAMED_BYTES = 50 if sys.version_info < (3, 12) else 100
#: What becomes of a character of which only a part is left.
_CUT_CHARACTER = "replace" if sys.version_info < (3, 14) else "ignore"


def no_attribute(kind: str, name: str) -> AttributeError:
    """The interpreter's error of an object, by its class's full name, that lacks an attribute; names are not quoted by
    ``repr``, whatever they hold."""
    kind = kind.encode()[:_NAMED_BYTES].decode(errors=_CUT_CHARACTER)
    return AttributeError(f"'{kind}' object has no attribute '{name}'")


def qualified_name(cls: type) -> str:
    """The name by which the interpreter's newer errors call a class (``%T``): with its module, as it is documented."""
    module = cls.__module__
    within = isinstance(module, str) and module not in ("builtins", "__main__")
    return f"{module}.{cls.__qualname__}" if within else cls.__qualname__


def full_name(cls: type) -> str:
    """The name by which the interpreter's errors call a class: with its module where C code has named it so."""
    other = str if issubclass(cls, int) else int
    before, after = f"{other.__name__}.__new__(", f" is not a subtype of {other.__name__}"
    try:
        other.__new__(cls)  # refused without a look at the class, but for its name
    except TypeError as error:
        twice = str(error).removeprefix(before).removesuffix(after)  # NAME): NAME
        return twice[: (len(twice) - len("): ")) // 2]
    raise AssertionError(f"{cls} is a class of {other.__name__}")


_PLAIN_DATA = frozenset((bool, int, float, str, type(None)))
_HEAP_TYPE = 1 << 9


def class_source(owner: type, name: str) -> Source | None:
    """The source of a user's class attribute; None for the classes of libraries, which are taken as fixed.

    Their ``forward`` is not: it is what those who quantise or instrument a model replace. Nor is what is plain data:
    defaults for all instances, which ``Distribution.set_default_validate_args`` sets, say.
    """
    found = owner.__dict__.get(name)
    may_change = type(found) in _PLAIN_DATA or name == "forward" and isinstance(found, types.FunctionType)
    if is_library_class(owner) and not (may_change and owner.__flags__ & _HEAP_TYPE):
        return None
    return Source("dict_attr", Source("constant", None, (owner,)), name)


def guard_lookup(tx: Capture, cls: type, name: str, owner: type | None = None) -> None:
    """No user's class that is asked for ``name`` before ``owner`` comes to define it (None: no class at all)."""
    known, mark = tx.guards.lookups, (id(cls), name, id(owner))
    if mark in known:
        return
    known.add(mark)
    tx.guards.read_class(cls, name)
    tx.guards.mro(cls)
    for base in cls.__mro__:
        if base is owner:
            return
        if name not in base.__dict__ and not is_library_class(base):
            tx.guards.class_lacks(base, name)


def guard_found(tx: Capture, cls: type, name: str, found: Any, owner: type) -> None:
    """``found`` stays what ``cls`` gives for ``name``, as far as that is not seen where its value is looked at."""
    guard_lookup(tx, cls, name, owner)
    if tx.later is not None:
        tx.later.of_class(owner, name, found)
    if type(found) in _NOT_LOOKED_INTO and not is_library_class(owner):
        tx.guards.class_has(owner, name, found)


def find(tx: Capture, cls: type, name: str) -> tuple[Any, type | None]:
    """Like :func:`lookup`, for what is decided by the answer: it is guarded."""
    found, owner = lookup(cls, name)
    known, mark = tx.guards.lookups, (id(cls), name, ~id(owner))
    if mark not in known:
        known.add(mark)
        guard_lookup(tx, cls, name, owner)
        if owner is not None and not is_library_class(owner) and type(found) is not Held:
            tx.guards.class_has(owner, name, found)
    return found, owner


def bind_attribute(tx: Capture, value: Value, cls: type, name: str, found: Any, owner: type) -> Value:
    """What ``value.name`` gives when the class attribute ``found`` of ``owner`` answers (descriptors called).

    Raises:
        GraphBreak: a descriptor whose ``__get__`` is not Python.
    """
    from dynamo_capture.values.functions import MethodValue

    kind = type(found)
    if kind is types.FunctionType:
        return MethodValue(value, _method(tx, cls, name, found, owner))
    from dynamo_capture.values.callables import ClassValue, CMethodValue
    from dynamo_capture.values.objects import ObjectValue

    guard_found(tx, cls, name, found, owner)
    if kind is Held:
        return found.value  # type: ignore[no-any-return]
    if is_wrapper(found):  # a compiled or disabled function, which binds as a function does
        return MethodValue(value, tx.from_python(found, class_source(owner, name)).realize())
    if kind is property or (issubclass(kind, property) and kind.__get__ is property.__get__):
        if not isinstance(found.fget, types.FunctionType):
            raise GraphBreak("QB06", f"property {name!r} of {cls.__name__}")
        return tx.function(found.fget, None).call(tx, [value], {})
    if issubclass(kind, types.DynamicClassAttribute):
        return _enum_property(tx, value, cls, name, found, owner)
    if kind is staticmethod:
        return tx.from_python(found.__func__)
    if kind is classmethod:
        if isinstance(found.__func__, types.FunctionType):
            return MethodValue(ClassValue(cls), tx.function(found.__func__, None))
        raise GraphBreak("QB06", f"class method {name!r} of {cls.__name__}")
    if kind is functools.cached_property:
        result = tx.function(found.func, None).call(tx, [value], {})
        if not isinstance(value, ObjectValue):
            raise GraphBreak("QB06", f"cached property {name!r} of {cls.__name__}")
        value.write(tx, found.attrname or name, result)
        return result
    if kind is functools._lru_cache_wrapper:
        return MethodValue(value, tx.from_python(found, class_source(owner, name)).realize())
    if isinstance(found, _C_METHODS):
        return CMethodValue(value, found, name)
    if cls is torch._C.ScriptFunction and name == "__call__":
        return _scripted(tx, value)
    if kind is NAMED_FIELD and isinstance(getattr(value, "payload", None), Value):
        return value.payload.items[found.__reduce__()[1][0]]  # type: ignore[attr-defined, no-any-return]
    if kind.__name__ == "instancemethod":  # of a class that pybind has made
        from dynamo_capture.values.collectives import fact_of_group

        fact = fact_of_group(tx, value, cls, name)
        if fact is not None:
            return fact
    get, getter = find(tx, kind, "__get__")
    if get is None or kind in (types.GetSetDescriptorType, types.MemberDescriptorType):
        return tx.from_python(found, class_source(owner, name))
    if isinstance(get, types.FunctionType):
        descriptor = tx.from_python(found, class_source(owner, name))
        called = tx.function(get, class_source(getter, "__get__"))  # type: ignore[arg-type]
        return called.call(tx, [descriptor, value, ClassValue(cls)], {})
    raise GraphBreak("QB06", f"attribute {name!r} of {cls.__name__} through a {kind.__name__}")


def _method(tx: Capture, cls: type, name: str, found: types.FunctionType, owner: type) -> Value:
    """The function ``found`` of ``owner``, as ``cls`` gives it for ``name``, guarded.

    To look at it again would say nothing new, but to the backward that is being captured. It is known by the identity
    of the class (which is kept with it) and the name, for what was found and where.
    """
    known = tx.methods.get((id(cls), name)) if tx.later is None else None
    if known is not None and known[1] is found and known[2] is owner:
        return known[3]
    guard_found(tx, cls, name, found, owner)
    function = tx.function(found, class_source(owner, name))
    tx.methods[id(cls), name] = cls, found, owner, function
    return function


def _scripted(tx: Capture, function: Value) -> Value:
    """The Python function that a scripted function was made of, which computes the same.

    A traced one says what it was made of too, but does not do the same: it has taken one way through it. It has not the
    name that ``torch.jit.script`` gives.
    """
    try:
        function.getattr(tx, "__qualname__")
        return function.getattr(tx, "_torchdynamo_inline").realize()
    except ObservedError:
        raise GraphBreak("QB03", "a function of TorchScript that is not a scripted Python function") from None


def _enum_property(tx: Capture, value: Value, cls: type, name: str, found: Any, owner: type) -> Value:
    """``enum.property``: a member's name or value, one that the program defines, or another member."""
    if is_library_class(owner) and name in ("name", "value"):
        return value.getattr(tx, f"_{name}_")
    if isinstance(found.fget, types.FunctionType):
        return tx.function(found.fget, None).call(tx, [value], {})
    if isinstance(cls, enum.EnumMeta):
        from dynamo_capture.values.enums import members

        if (member := members(tx, cls).find(tx, ConstantValue(name))) is not None:
            return member  # type: ignore[no-any-return]
    raise GraphBreak("QB06", f"attribute {name!r} of {cls.__name__}")
