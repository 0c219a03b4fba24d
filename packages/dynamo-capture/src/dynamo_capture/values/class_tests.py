"""``isinstance`` and ``issubclass``, as CPython decides them (``Objects/abstract.c: object_isinstance``).

Plain classes answer by the method resolution order of a type that is guarded. A metaclass with a question of its own
in Python is inlined, so that what it reads is guarded. Abstract base classes keep their positive answers for good; a
negative one is guarded until a class is registered with an abstract one (``abc.get_cache_token``).
"""

from __future__ import annotations

import abc
import types
import typing
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.rules import is_library_class
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.classes import bind_attribute, find, lookup
from dynamo_capture.values.identity import pin

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["is_instance", "is_subclass"]

_ABSTRACT = {name: abc.ABCMeta.__dict__[name] for name in ("__instancecheck__", "__subclasscheck__")}
#: C types whose objects stand for other classes, in the second argument.
_PROXIES = (weakref.ProxyType, weakref.CallableProxyType)
_ALIASES = (type(list), type(typing.Union[int, str]), types.UnionType)


def is_instance(tx: Capture, value: Value, classes: Value) -> bool:
    """``isinstance(value, classes)``.

    Raises:
        ObservedError: what a metaclass of the program raises, or that the second argument is no class.
        GraphBreak: a question that capture does not know.
    """
    return any(_is_instance(tx, value, cls) for cls in _classes(tx, classes, "isinstance"))


def is_subclass(tx: Capture, cls: type, classes: Value) -> bool:
    """``issubclass(cls, classes)``; raises as :func:`is_instance`."""
    return any(_is_subclass(tx, cls, other) for other in _classes(tx, classes, "issubclass"))


def _classes(tx: Capture, value: Value, question: str) -> Iterator[Value]:
    """The classes of the second argument: a class, a union of some, or nested tuples of them."""
    from dynamo_capture.values.callables import ClassValue
    from dynamo_capture.values.containers import TupleValue

    value = value.realize()
    if isinstance(value, TupleValue):
        for item in value.items:
            yield from _classes(tx, item, question)
    elif isinstance(value, ClassValue):
        yield value
    elif value.is_const and value.const() is None:
        yield ClassValue(type(None))
    elif issubclass(value.pytype, _ALIASES):
        pin(tx, value)
        for cls in _behind_alias(value.real()):
            yield ClassValue(type(None) if cls is None else cls)
    elif question == "isinstance" and isinstance(find(tx, value.pytype, "__instancecheck__")[0], types.FunctionType):
        yield value
    else:
        raise GraphBreak("QB06", f"{question} with {display(value)}")


def _behind_alias(alias: Any) -> tuple[type, ...]:
    if isinstance(alias, types.UnionType) or typing.get_origin(alias) is typing.Union:
        found = alias.__args__
    elif getattr(alias, "_nparams", None) is not None:  # typing.Sequence, without parameters of its own
        found = (alias.__origin__,)
    else:
        found = ()
    if not found or not all(isinstance(cls, type) for cls in found):
        raise GraphBreak("QB06", f"a question about the class {alias!r}")
    return found  # type: ignore[no-any-return]


def _is_instance(tx: Capture, value: Value, cls_value: Value) -> bool:
    from dynamo_capture.values.callables import ClassValue
    from dynamo_capture.values.tensor import TensorValue

    if not isinstance(cls_value, ClassValue):
        return _ask(tx, cls_value, "__instancecheck__", value)
    mine, cls = value.pytype, cls_value.obj
    if mine is cls:
        return True
    if isinstance(value, TensorValue) and is_library_class(type(cls)) and not isinstance(cls, abc.ABCMeta):
        # torch's own metaclasses ask for the dtype, the device and marks that are guarded with the tensor.
        return isinstance(value.example if value.real_tensor is None else value.real_tensor, cls)
    question, owner = find(tx, type(cls), "__instancecheck__")
    if question is _ABSTRACT["__instancecheck__"]:
        return _own_class(tx, value) and _is_subclass(tx, mine, cls_value)
    if owner is type or _is_torch_only(type(cls)):
        return cls in mine.__mro__ or (_own_class(tx, value) and False)
    return _ask(tx, cls_value, "__instancecheck__", value)


def _own_class(tx: Capture, value: Value) -> bool:
    """Whether the object's ``__class__`` is its type.

    Raises:
        GraphBreak: its class defines it otherwise.
    """
    owner = find(tx, value.pytype, "__class__")[1]
    if owner is not object and owner is not None and not is_library_class(owner):
        raise GraphBreak("QB06", f"{value.pytype.__name__} defines __class__")
    if issubclass(value.pytype, _PROXIES):
        raise GraphBreak("QB06", f"isinstance() of a {value.pytype.__name__}, which asks what it stands for")
    return True


def _is_torch_only(meta: type) -> bool:
    """Whether a metaclass of torch's asks for tensors, which the value is not."""
    return is_library_class(meta) and meta.__module__.partition(".")[0] == "torch"


def _is_subclass(tx: Capture, mine: type, cls_value: Value) -> bool:
    from dynamo_capture.values.callables import ClassValue

    if not isinstance(cls_value, ClassValue):
        raise GraphBreak("QB06", f"issubclass with {display(cls_value)}")
    cls = cls_value.obj
    question, owner = find(tx, type(cls), "__subclasscheck__")
    if question is _ABSTRACT["__subclasscheck__"]:
        return _abstract(tx, mine, cls)
    if owner is type or _is_torch_only(type(cls)):
        return cls in mine.__mro__
    return _ask(tx, cls_value, "__subclasscheck__", ClassValue(mine))


def _abstract(tx: Capture, mine: type, cls: type) -> bool:
    """What an abstract base class answers, and remembers: asking it now is what the program would do."""
    owner = lookup(cls, "__subclasshook__")[1]
    if owner is not object and not is_library_class(owner) and tx.side:  # type: ignore[arg-type]
        raise GraphBreak("QB06", f"__subclasshook__ of {cls.__name__} after changes that it may look at")
    try:
        answer = issubclass(mine, cls)
    except Exception as error:
        raise GraphBreak("QB06", f"__subclasshook__ of {cls.__name__} raised {type(error).__name__}") from None
    # A positive answer stays in this process; in another one, a hook may find something else in a class of the program.
    if not answer or (cls not in mine.__mro__ and not is_library_class(mine)):
        tx.guards.subclass(mine, cls, bool(answer))
    return bool(answer)


def _ask(tx: Capture, cls_value: Value, name: str, argument: Value) -> bool:
    """Call a question that is defined in Python."""
    meta = cls_value.pytype
    question, owner = find(tx, meta, name)
    if not isinstance(question, types.FunctionType) or issubclass(meta, type(typing.Protocol)):
        raise GraphBreak("QB06", f"{name} of {display(cls_value)}")
    return bind_attribute(tx, cls_value, meta, name, question, owner).call(tx, [argument], {}).realize().truth(tx)  # type: ignore[arg-type]
