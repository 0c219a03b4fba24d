"""What is asked about functions themselves: their signatures, and wrappers that are made to look like them."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from dynamo_capture import rules
from dynamo_capture.breaks import GraphBreak
from dynamo_capture.sources import Source
from dynamo_capture.stored.making import signature_of
from dynamo_capture.values.base import ObservedError, Value, display
from dynamo_capture.values.callables import BuiltinValue, ClassValue
from dynamo_capture.values.constant import CONST_TYPES
from dynamo_capture.values.dicts import DictValue
from dynamo_capture.values.functions import FunctionValue, MethodValue
from dynamo_capture.values.torch_calls import special

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__: list[str] = []

#: What ``inspect.signature`` looks for among a function's attributes, but for ``__wrapped__``.
_DECLARED = ("__signature__", "__text_signature__", "_partialmethod", "__partialmethod__")


@special(inspect.signature)
def _signature(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The signature of a function or a method; all that it is made of is guarded.

    Raises:
        GraphBreak: of another callable, whose signature its class, its metaclass and its attributes make.
    """
    if len(args) != 1 or kwargs:
        raise GraphBreak("QB07", "inspect.signature() with options")
    value = args[0].realize()
    function = value.func.realize() if isinstance(value, MethodValue) else value
    if isinstance(function, FunctionValue) and function.fn is not None:
        _guard_signature(tx, function)
    elif not isinstance(value, BuiltinValue) and not (
        isinstance(value, ClassValue) and rules.is_library_class(value.obj)
    ):
        raise GraphBreak("QB07", f"inspect.signature() of {display(value)}")
    of = function.real(), isinstance(value, MethodValue)
    signature = tx.exact(signature_of, *of)
    tx.guards.made(signature, signature_of, *of)
    return tx.from_python(signature)


def _guard_signature(tx: Capture, function: FunctionValue) -> None:
    fn: Any = function.fn
    if rules.is_fixed_file(fn.__code__.co_filename):
        return
    for name in _DECLARED:
        if name in fn.__dict__:
            raise GraphBreak("QB07", f"inspect.signature() of {function.describe()}, which has a {name}")
        tx.guards.no_instance_attr(function.root(), name)
    if "__wrapped__" in fn.__dict__:
        wrapped = function.getattr(tx, "__wrapped__").realize()
        if not isinstance(wrapped, FunctionValue) or wrapped.fn is None:
            raise GraphBreak("QB07", f"inspect.signature() of a wrapper of {display(wrapped)}")
        _guard_signature(tx, wrapped)
        return
    tx.guards.no_instance_attr(function.root(), "__wrapped__")
    defaults = Source("func_defaults", function.root())
    if fn.__defaults__ is None:
        tx.guards.is_object(defaults, None)
    else:
        tx.guards.length(defaults, len(fn.__defaults__))
        for i, default in enumerate(fn.__defaults__):
            _guard_same(tx, defaults.item(i), default)
    try:
        annotations = fn.__annotations__  # from Python 3.14 on they are evaluated when they are asked for
    except Exception:
        raise GraphBreak("QB07", f"inspect.signature() of {function.describe()}, with such annotations") from None
    for kind, table in (("func_kwdefaults", fn.__kwdefaults__), (None, annotations)):
        source = Source(kind, function.root()) if kind else function.root().attr("__annotations__")
        if table is None:
            tx.guards.is_object(source, None)
            continue
        tx.guards.dict_keys(source, list(table))
        for name, held in table.items():
            _guard_same(tx, source.item(name), held)


def _guard_same(tx: Capture, source: Source, obj: Any) -> None:
    if type(obj) in CONST_TYPES:
        tx.guards.equals(source, obj)
    else:
        tx.guards.is_object(source, obj)


@special(functools.update_wrapper)
def _update_wrapper(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = dict(zip(("wrapper", "wrapped", "assigned", "updated"), args, strict=False)) | kwargs
    wrapper, wrapped = given["wrapper"].realize(), given["wrapped"].realize()
    options = {name: given[name].realize() for name in ("assigned", "updated") if name in given}
    usual = {"assigned": functools.WRAPPER_ASSIGNMENTS, "updated": functools.WRAPPER_UPDATES}
    if not all(value.is_const and value.const() == usual[name] for name, value in options.items()):
        raise GraphBreak("QB07", "functools.update_wrapper() with options")
    for name in functools.WRAPPER_ASSIGNMENTS:
        if (value := _attribute(tx, wrapped, name)) is not None:
            wrapper.setattr(tx, name, value)
    if isinstance(wrapped, FunctionValue) and wrapped.fn is None:
        attributes: Value | None = DictValue.named(wrapped.own_attributes())
    else:
        attributes = _attribute(tx, wrapped, "__dict__")
    if isinstance(attributes, DictValue):
        for key, value in list(attributes.whole(tx).values()):
            wrapper.setattr(tx, key.realize().const(), value)
    elif attributes is not None:
        raise GraphBreak("QB07", f"functools.update_wrapper() by {display(wrapped)}")
    wrapper.setattr(tx, "__wrapped__", wrapped)
    return wrapper


#: Parts of a function made here that are only taken over where the program has set them.
_MADE_ONLY = ("__annotations__", "__annotate__", "__type_params__")


def _attribute(tx: Capture, value: Value, name: str) -> Value | None:
    if isinstance(value, FunctionValue) and value.fn is None and name in _MADE_ONLY:
        return value.attribute_set(name)
    try:
        return value.getattr(tx, name).realize()
    except ObservedError as error:
        if issubclass(error.value.pytype, AttributeError):
            return None
        raise
