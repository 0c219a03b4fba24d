"""What this package has made of the program's callables, told without asking the program's objects.

``getattr(obj, name, None)`` runs the ``__getattr__`` of the program's class, which may answer anything, raise anything
and remember that it was asked; and an attribute set on a wrapper is copied by ``functools.wraps`` to functions that are
no wrappers of ours. So our own wrappers are known by their type and by a weak registry.
"""

from __future__ import annotations

import types
import weakref
from typing import Any

from dynamo_capture import _native

__all__ = ["compiled_from", "is_disabled", "is_wrapper", "module_behind", "own_dict",
           "reason_of", "register_disabled", "register_reason"]  # fmt: skip

_disabled: weakref.WeakSet[types.FunctionType] = weakref.WeakSet()
_reasons: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_MISSING = object()


def is_wrapper(obj: Any) -> bool:
    """Whether the object is a callable that capture has made of another."""
    return type(obj) is _native.activate


def compiled_from(obj: Any) -> Any:
    """The function or method that a compiled one was made from; None where the object is no compiled one."""
    return obj.fn if type(obj) is _native.activate and obj.context is not None else None


def register_disabled(fn: types.FunctionType) -> None:
    """``fn`` is never captured, though its callees are."""
    _disabled.add(fn)


def register_reason(wrapper: Any, reason: str | None) -> None:
    """Why ``disable()`` made the callable."""
    if reason is not None:
        _reasons[wrapper] = reason


def reason_of(obj: Any) -> str:
    """Why a function is under ``disable()``, where that was said."""
    known = obj.__func__ if type(obj) is types.MethodType else obj
    return _reasons.get(known, "") if is_disabled(known) else ""


def is_disabled(obj: Any) -> bool:
    """Whether ``disable()`` made the callable, or the function of the method."""
    if type(obj) is types.MethodType:
        return is_disabled(obj.__func__)
    if type(obj) is _native.activate:
        return obj.context is None
    return type(obj) is types.FunctionType and obj in _disabled


def module_behind(module: Any) -> Any:
    """The module that a compiled one was made from; None where the module is no compiled one."""
    slot = class_lookup(type(module), "_quintet_state")
    return None if slot is _MISSING else slot.__get__(module).original


def class_lookup(cls: type, name: str) -> Any:
    """The raw attribute that a class or a base defines; a marker of this module when none does."""
    for base in cls.__mro__:
        found = base.__dict__.get(name, _MISSING)
        if found is not _MISSING:
            return found
    return _MISSING


def own_dict(obj: Any) -> dict[str, Any] | None:
    """The instance's real ``__dict__``, whatever its class makes of attribute access; None when it has none."""
    for base in type(obj).__mro__:
        found: Any = base.__dict__.get("__dict__")
        # SimpleNamespace has a member for it.
        kinds = (types.GetSetDescriptorType, types.MemberDescriptorType)
        if type(found) in kinds and found.__objclass__ is base:
            return found.__get__(obj)  # type: ignore[no-any-return]
    return None
