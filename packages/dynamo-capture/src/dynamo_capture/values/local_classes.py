"""Classes that the region makes: ``class`` statements, ``type(name, bases, namespace)`` and ``namedtuple``.

The body of a class is interpreted. From its namespace a real class is made, which capture looks things up on as on any
other; it stands for the class that each call makes anew. Functions in it are stand-ins for the region's own functions
(:meth:`Capture.stands_for`), other objects are held by a :class:`Held`. When such a class, or an instance, leaves the
region, the region ends before the class is made (:func:`leaving_class`), and the program makes its own.

Bases with a metaclass or an ``__init_subclass__`` in Python would see the stand-in: a class of such a base breaks the
graph.
"""

from __future__ import annotations

import builtins
import collections
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.rules import take_as_fixed
from dynamo_capture.values.base import LazyValue, Value
from dynamo_capture.values.builtin_functions import builtin
from dynamo_capture.values.callables import ClassValue
from dynamo_capture.values.classes import Held, find
from dynamo_capture.values.constant import CONST_TYPES, ConstantValue
from dynamo_capture.values.containers import ListValue, TupleValue
from dynamo_capture.values.dicts import DictValue
from dynamo_capture.values.functions import CellValue, FunctionValue
from dynamo_capture.values.sets import SetValue
from dynamo_capture.values.tensor import SymValue, TensorValue
from dynamo_capture.values.torch_calls import special

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = ["DescriptorValue", "leaving_class", "make_class"]

_BREAK = "QB15"
_HELD = (SymValue, TensorValue, ListValue, TupleValue, DictValue, SetValue, ClassValue, ConstantValue)


class DescriptorValue(Value):
    """``property``, ``staticmethod`` or ``classmethod`` of a function that the region has made."""

    __slots__ = ("function", "kind")

    def __init__(self, kind: type, function: FunctionValue) -> None:
        self.source = None
        self.kind = kind
        self.function = function

    @property
    def pytype(self) -> type:
        return self.kind

    def call(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.kind is not staticmethod:
            return super().call(tx, args, kwargs)
        return self.function.call(tx, args, kwargs)

    def children(self) -> Any:
        yield self.function

    def reconstruct(self, cg: CodeGen) -> None:
        cg.call_const(self.kind, [self.function])


@builtin(builtins.__build_class__)
def _build_class(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``__build_class__(body, name, *bases)``."""
    body, name, *bases = [arg.realize() for arg in args]
    if kwargs or not isinstance(body, FunctionValue) or body.fn is not None or type(name) is not ConstantValue:
        raise GraphBreak(_BREAK, "a class definition")
    if not all(isinstance(base, ClassValue) for base in bases):
        raise GraphBreak(_BREAK, "a class definition")
    namespace = tx.class_namespace(body)
    if "__annotate_func__" in namespace:  # from Python 3.14 on; it would be asked about the stand-in
        raise GraphBreak(_BREAK, "the definition of a class with annotations")
    cell = namespace.pop("__classcell__", None)
    made = make_class(tx, name.value, bases, namespace)
    if isinstance(cell, CellValue):
        cell.set(tx, made)
    return made


def make_class(tx: Capture, name: Any, bases: list[Value], namespace: dict[str, Value]) -> Value:
    """The class of that name, those bases and that namespace.

    Raises:
        GraphBreak: its making runs code of the program, or something in it is of an unknown kind.
        ObservedError: there is no such class.
    """
    classes = tuple(base.const() for base in bases)
    for base in classes:
        plain = type(base) is type and not issubclass(base, (torch.Tensor, torch.autograd.Function, BaseException))
        if not plain or find(tx, base, "__init_subclass__")[1] is not object:
            raise GraphBreak(_BREAK, "a class definition")
        tx.guards.mro(base)
    held = {key: _stand_in(tx, key, value) for key, value in namespace.items()}
    return _note(tx, tx.exact(type, name, classes, held))


def _note(tx: Capture, cls: type) -> Value:
    take_as_fixed(cls)
    brk = GraphBreak(_BREAK, f"the class {cls.__qualname__}, which is needed after the region")
    brk.where = tx.location()
    tx.side.epoch += 1
    tx.made_classes[id(cls)] = cls, tx.frames[0].call_step(), brk  # type: ignore[attr-defined]
    return ClassValue(cls)


def _stand_in(tx: Capture, name: str, value: Value) -> Any:
    """What stands in the real class for a value of the namespace."""
    value = value.realize()
    special_name = name.startswith("__") and name.endswith("__")
    if isinstance(value, FunctionValue) and value.fn is None:
        return _function(tx, value)
    if isinstance(value, DescriptorValue) and not special_name:
        return value.kind(_function(tx, value.function))
    if type(value) is ConstantValue and type(value.value) in CONST_TYPES and (value.source is None or special_name):
        return value.value
    if isinstance(value, TupleValue) and value.pytype is tuple and all(type(v) is ConstantValue for v in value.items):
        return tuple(item.const() for item in value.items)
    if isinstance(value, _HELD) and not special_name:
        return Held(value)
    raise GraphBreak(_BREAK, f"a class with {name!r} of an unknown kind")


def _function(tx: Capture, value: FunctionValue) -> types.FunctionType:
    code = value.code
    function = types.FunctionType(
        code, value.globals, value.name, None, tuple(types.CellType() for _ in code.co_freevars) or None
    )
    function.__qualname__ = value.qualname
    tx.stands_for(function, value)
    return function


def leaving_class(tx: Capture, built: Iterable[Value]) -> tuple[int, GraphBreak] | None:
    """The step at which the region ends, and why, where a class that it has made leaves it, or an instance of one."""
    if not tx.made_classes:
        return None
    found = {id(cls) for value in built for cls in _classes_of(value)} & tx.made_classes.keys()
    ends = [tx.made_classes[key][1:] for key in found]
    return min(ends, key=lambda end: end[0], default=None)


def _classes_of(value: Value) -> Iterable[type]:
    if isinstance(value, LazyValue):  # an existing object, which is not to be looked at any more
        return ()
    classes = [value.obj] if isinstance(value, ClassValue) else []
    if isinstance(value, ConstantValue) and isinstance(value.value, type):
        classes.append(value.value)
    try:
        classes.append(value.pytype)
    except GraphBreak:  # an object that only exists in the capture has no class of the program's
        pass
    return [base for cls in classes for base in cls.__mro__]


@special(collections.namedtuple)
def _namedtuple(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A class of named tuples with a text or a list of names for its fields."""
    given = [_names(arg) for arg in args]
    named = {name: _names(value) for name, value in kwargs.items()}
    if named.get("module") is None:
        named["module"] = tx.frames[-1].globals.get("__name__", "__main__")
    return _note(tx, tx.exact(collections.namedtuple, *given, **named))


def _names(value: Value) -> Any:
    value = value.realize()
    if isinstance(value, (TupleValue, ListValue)) and value.pytype in (list, tuple):
        return [_names(item) for item in value.items]
    if type(value) is not ConstantValue:
        raise GraphBreak(_BREAK, "namedtuple()")
    return value.value
