"""What Python's builtin functions do on values."""

from __future__ import annotations

import collections
import functools
import math
import operator
import os
import posix
import random
import sys
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.breaks import GraphBreak, SkipFrame
from dynamo_capture.sources import Source
from dynamo_capture.values import arith
from dynamo_capture.values.base import ObservedError, Value, display
from dynamo_capture.values.bits import decided
from dynamo_capture.values.cached_functions import call_cached
from dynamo_capture.values.callables import BuiltinValue, ClassValue, PyModuleValue
from dynamo_capture.values.class_tests import is_instance, is_subclass
from dynamo_capture.values.classes import find, lookup
from dynamo_capture.values.compare import identical
from dynamo_capture.values.constant import ConstantValue, fold
from dynamo_capture.values.containers import ListValue, TupleValue, is_plain_namedtuple
from dynamo_capture.values.elementary import elementary_function, is_finite
from dynamo_capture.values.exact import type_error
from dynamo_capture.values.functions import FunctionValue, MethodValue, SuperValue
from dynamo_capture.values.identity import hash_of
from dynamo_capture.values.ids import id_of
from dynamo_capture.values.iterating import FUNCTIONS
from dynamo_capture.values.made_arrays import NumpyArray, call_numpy, is_numpy_function
from dynamo_capture.values.numpy_scalars import function_of_number
from dynamo_capture.values.objects import ObjectValue
from dynamo_capture.values.ordered_lists import ORDERED_LISTS
from dynamo_capture.values.reductions import REDUCTIONS
from dynamo_capture.values.signatures import check_arguments
from dynamo_capture.values.tensor import SymValue, TensorValue
from dynamo_capture.values.torch_calls import call_torch, is_torch_callable, substituted

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["BUILTINS", "call_builtin"]

Handler = Callable[[Any, list[Value], dict[str, Value]], Value]

#: Builtin function -> handler(tx, args, kwargs).
BUILTINS: dict[Any, Handler] = {**FUNCTIONS, **REDUCTIONS, **ORDERED_LISTS}

#: What pathlib asks of a path's text; later versions of Python have more of them.
_OF_PATHS = [
    getattr(posix, name) for name in ("_path_splitroot", "_path_splitroot_ex", "_path_normpath") if hasattr(posix, name)
]
_PURE = frozenset(
    (len, abs, round, divmod, pow, ord, chr, hex, oct, bin, repr, ascii, hash, format, callable, operator.index,
     math.prod, sys.intern, str.maketrans, bytes.maketrans, *_OF_PATHS)
)  # fmt: skip
_PURE_MODULES = frozenset(("math", "_operator", "operator", "_struct"))
_INPUT_OUTPUT = frozenset((open, input, breakpoint))
_NONE = ConstantValue(None)


def builtin(*fns: Any) -> Callable[[Handler], Handler]:
    """Register a handler."""

    def register(handler: Handler) -> Handler:
        for fn in fns:
            BUILTINS[fn] = handler
        return handler

    return register


def call_builtin(tx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call a C function (or a torch operator)."""
    if (polyfill := substituted(fn)) is not None:
        return polyfill(tx, args, kwargs)
    handler = BUILTINS.get(fn) if fn.__hash__ else None
    if handler is not None:
        check_arguments(fn, args, kwargs)
        return handler(tx, args, kwargs)
    if is_torch_callable(fn):
        return call_torch(tx, fn, args, kwargs)
    if fn in _OPERATORS:
        return _operator_call(tx, fn, args)
    if isinstance(fn, (types.MethodDescriptorType, types.WrapperDescriptorType)) and args:
        return _unbound_method(tx, fn, args, kwargs)
    if isinstance(fn, types.MethodWrapperType) and isinstance(fn.__self__, types.GetSetDescriptorType) and args:
        if fn.__name__ == "__get__" and fn.__self__.__objclass__ in torch.Tensor.__mro__:
            return args[0].realize().getattr(tx, fn.__self__.__name__)  # as __torch_function__ gets it
    if isinstance(fn, functools._lru_cache_wrapper):
        return call_cached(tx, fn, args, kwargs)
    if fn in _INPUT_OUTPUT:
        raise GraphBreak("QB11", fn.__name__)
    module = getattr(fn, "__module__", None) or ""
    if fn in _PURE or module in _PURE_MODULES:
        return _pure(tx, fn, args, kwargs)
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, type) and getattr(fn, "__name__", "") in ("fromkeys", "maketrans", "fromhex", "from_bytes"):
        return _class_function(tx, owner, fn, args, kwargs)
    if isinstance(owner, type) and getattr(fn, "__name__", "") == "__subclasses__" and not args and not kwargs:
        return _subclasses(tx, owner)
    if type(fn).__name__ == "ufunc":
        if len(args) == 1 and not kwargs and (found := function_of_number(tx, fn, args[0].realize())) is not None:
            return found
    if is_numpy_function(fn):
        return call_numpy(tx, fn, args, kwargs)
    number = "QB09" if module.partition(".")[0] in ("numpy", "scipy") else "QB03"
    if module in ("random", "_random") or isinstance(owner, random.Random):
        number = "QB16"
    raise GraphBreak(number, BuiltinValue(fn).describe())


def _pure(tx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    realized = [arg.realize() for arg in args]
    if any(isinstance(arg, TensorValue) for arg in realized):
        raise GraphBreak("QB02", f"{fn.__name__}() of a tensor")
    if fn in (divmod, round, pow) and any(isinstance(arg, NumpyArray) for arg in realized):
        return call_numpy(tx, fn, args, kwargs)
    if "key" in kwargs:
        raise GraphBreak("QB07", f"{fn.__name__}() by a key")
    if not kwargs and (found := elementary_function(tx, fn, realized)) is not None:
        return found
    if fn is divmod and not kwargs and len(args) == 2 and any(isinstance(arg, SymValue) for arg in realized):
        a, b = realized
        return TupleValue([arith.binary(tx, part, a, b) for part in (operator.floordiv, operator.mod)])
    if len(realized) == 1 and isinstance(number := decided(tx, realized[0]), SymValue) and not kwargs:
        if fn in _SYM_SAFE and is_finite(number):
            return tx.graph_call(fn, realized, kwargs)
    return fold(tx, fn, list(realized), kwargs)


_SYM_SAFE = frozenset((math.ceil, math.floor, math.trunc, abs, round))

_OPERATORS: dict[Any, Any] = dict.fromkeys(arith.BINARY, "binary")
_OPERATORS.update(dict.fromkeys(arith.INPLACE, "inplace"))
_COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
_OPERATORS.update(dict.fromkeys(_COMPARISONS, "compare"))
_OPERATORS.update(dict.fromkeys((operator.neg, operator.pos, operator.invert, abs), "unary"))


def _operator_call(tx: Capture, fn: Any, args: list[Value]) -> Value:
    return getattr(arith, _OPERATORS[fn])(tx, fn, *[a.realize() for a in args])  # type: ignore[no-any-return]


def _unbound_method(tx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``list.append(xs, x)``, ``object.__setattr__(obj, name, value)``, ``torch.Tensor.add(a, b)``."""
    owner = args[0].realize()
    if isinstance(owner, ObjectValue):
        return owner.call_c_method(tx, fn.__name__, fn, args[1:], kwargs)
    if tx.overriding and issubclass(owner.pytype, torch.Tensor) and not isinstance(owner, TensorValue):
        return owner.call_c_method(tx, fn.__name__, fn, args[1:], kwargs)  # type: ignore[attr-defined, no-any-return]
    if type(owner) is ConstantValue:
        return fold(tx, fn, args, kwargs)
    if fn.__objclass__ not in owner.pytype.__mro__:
        type_error(tx, fn, *args)
    if isinstance(owner, BuiltinValue):
        raise GraphBreak("QB07", f"{fn.__qualname__} of {display(owner)}")
    if lookup(owner.pytype, fn.__name__)[0] is not fn and issubclass(owner.pytype, _OVERRIDDEN):
        raise GraphBreak("QB07", f"{fn.__qualname__} of {display(owner)}")
    return owner.call_method(tx, fn.__name__, args[1:], kwargs)


#: Builtin classes whose own methods are not those of ``object``.
_OVERRIDDEN = (list, tuple, dict, set, frozenset, collections.deque)


def _subclasses(tx: Capture, cls: type) -> Value:
    """``cls.__subclasses__()``: those that there are, as long as there are no others."""
    if tx.made_classes:
        raise GraphBreak("QB15", f"{cls.__qualname__}.__subclasses__(), where a class has been made")
    text = f"{cls.__qualname__}.__subclasses__()"
    there_are = _references(cls)
    source = Source("constant", None, (cls,))
    tx.guards.predicate(source, lambda asked: _references(asked) == there_are, f"{text} gives the same classes")
    tx.guards.of_this_process(text)
    children: list[Any] = type.__subclasses__(cls)
    return ListValue([tx.from_python(each) for each in children])


def _references(cls: type) -> tuple[Any, ...]:
    """The subclasses, which nothing keeps alive."""
    return tuple(map(weakref.ref, type.__subclasses__(cls)))


def _class_function(tx: Capture, owner: type, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    from dynamo_capture.values.dicts import DictValue

    if fn.__name__ == "fromkeys" and issubclass(owner, dict):
        if kwargs or len(args) not in (1, 2) or owner not in (dict, collections.OrderedDict):
            raise GraphBreak("QB07", f"{owner.__name__}.fromkeys with these arguments")
        value = args[1] if len(args) > 1 else _NONE
        return DictValue.of(tx, ((key, value) for key in args[0].realize().unpack(tx)), owner)
    return fold(tx, fn, args, kwargs)


# --- attributes and types -------------------------------------------------------------------------------------------


@builtin(getattr)
def _getattr(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    owner, name = args[0].realize(), _name(args[1])
    if len(args) == 2:
        return owner.getattr(tx, name)
    try:
        return owner.getattr(tx, name).realize()
    except ObservedError as error:
        if issubclass(error.value.pytype, AttributeError):
            return args[2]
        raise


def _name(value: Value) -> str:
    """The name of an attribute, of which the builtin functions want a string."""
    name = value.realize().const()
    if not isinstance(name, str):
        raise GraphBreak("QB07", f"an attribute named {name!r:.60}")
    return name


@builtin(hasattr)
def _hasattr(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    try:
        args[0].realize().getattr(tx, _name(args[1])).realize()
    except ObservedError as error:
        if issubclass(error.value.pytype, AttributeError):
            return ConstantValue(False)
        raise
    return ConstantValue(True)


@builtin(setattr)
def _setattr(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    args[0].realize().setattr(tx, _name(args[1]), args[2])
    return _NONE


@builtin(delattr)
def _delattr(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    args[0].realize().delattr(tx, _name(args[1]))
    return _NONE


@builtin(isinstance)
def _isinstance(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(is_instance(tx, args[0].realize(), args[1]))


@builtin(issubclass)
def _issubclass(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls = args[0].realize().const()
    if not isinstance(cls, type):
        tx.exact(issubclass, cls, object)
    return ConstantValue(is_subclass(tx, cls, args[1]))


if hasattr(operator, "call"):

    @builtin(operator.call)
    def _call(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not args:
            raise GraphBreak("QB07", "operator.call() without arguments")
        return args[0].realize().call(tx, args[1:], kwargs)


@builtin(callable)
def _callable(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = args[0].realize()
    if isinstance(value, (FunctionValue, MethodValue, BuiltinValue, ClassValue)):
        return ConstantValue(True)
    if isinstance(value, TensorValue):
        return ConstantValue(False)
    return ConstantValue(find(tx, value.pytype, "__call__")[1] is not None)


@builtin(id)
def _id(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return id_of(tx, args[0].realize())


@builtin(vars)
def _vars(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        raise GraphBreak("QB21", "vars() without an argument", leaves="frame")
    owner = args[0].realize()
    if not (isinstance(owner, (ClassValue, FunctionValue, ObjectValue, PyModuleValue))):
        raise GraphBreak("QB07", f"vars() of {display(owner)}")
    try:
        return owner.getattr(tx, "__dict__")
    except ObservedError as error:
        if issubclass(error.value.pytype, AttributeError):
            raise tx.observed(TypeError("vars() argument must have __dict__ attribute")) from None
        raise


@builtin(globals)
def _globals(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = tx.frames[-1].globals
    if tx.side.stores_into(names):
        raise GraphBreak("QB06", "globals() after a global was set")
    return tx.from_python(names)


@builtin(dir)
def _dir(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise GraphBreak("QB21" if not args else "QB07", "dir()", leaves=None if args else "frame")


# --- numbers --------------------------------------------------------------------------------------------------------


@builtin(len)
def _len(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return args[0].realize().length(tx)


@builtin(abs)
def _abs(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return arith.unary(tx, abs, args[0].realize())


@builtin(pow)
def _pow(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 2:
        return arith.binary(tx, operator.pow, args[0].realize(), args[1].realize())
    return fold(tx, pow, args, kwargs)


@builtin(repr)
def _repr(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    from dynamo_capture.values.texts import text_from

    return text_from(tx, repr, args[0].realize())


@builtin(os.fspath)
def _fspath(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    path = args[0].realize()
    if isinstance(path, ObjectValue):
        path = path.call_method(tx, "__fspath__", [], {}).realize()
    if path.pytype not in (str, bytes):
        raise GraphBreak("QB07", f"os.fspath() of {display(path)}")
    return path


@builtin(hash)
def _hash(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    tx.guards.hashed()
    if not args[0].realize().is_const:
        tx.guards.addressed()
    return ConstantValue(hash_of(tx, args[0]))


# --- iteration ------------------------------------------------------------------------------------------------------


@builtin(next)
def _next(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    iterator: Any = args[0].realize()
    if isinstance(iterator, (ConstantValue, SymValue)):
        type_error(tx, next, iterator)
    if not hasattr(iterator, "next"):
        raise GraphBreak("QB07", f"next() of {display(iterator)}")
    if isinstance(iterator, ObjectValue) and find(tx, iterator.cls, "__next__")[1] is None:
        type_error(tx, next, iterator)
    if len(args) == 1:
        return iterator.call_method(tx, "__next__", [], {})  # type: ignore[no-any-return]
    item = iterator.next(tx)
    return args[1] if item is None else item


# --- operator module ------------------------------------------------------------------------------------------------


@builtin(operator.getitem)
def _getitem(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return args[0].realize().getitem(tx, args[1].realize())


@builtin(operator.setitem)
def _setitem(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    args[0].realize().setitem(tx, args[1].realize(), args[2])
    return _NONE


@builtin(operator.delitem)
def _delitem(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    args[0].realize().delitem(tx, args[1].realize())
    return _NONE


@builtin(operator.iconcat)
def _iconcat(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = [arg.realize() for arg in args]
    if all(isinstance(arg, ListValue) for arg in given):
        return arith.inplace(tx, operator.iadd, *given)
    return fold(tx, operator.iconcat, args, kwargs)


@builtin(operator.contains)
def _contains(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(args[0].realize().contains(tx, args[1]))


@builtin(operator.is_)
def _is(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(identical(tx, args[0], args[1]))


@builtin(operator.is_not)
def _is_not(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(not identical(tx, args[0], args[1]))


@builtin(operator.not_)
def _not(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(not args[0].realize().truth(tx))


@builtin(operator.truth)
def _truth(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(args[0].realize().truth(tx))


@builtin(operator.index)
def _index(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = args[0].realize()
    return value if isinstance(value, SymValue) else fold(tx, operator.index, [value], {})


@builtin(collections._count_elements)  # type: ignore[attr-defined]
def _count(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What counts for ``collections.Counter``: ``mapping[element] += 1``, by the class's ``get`` if it has its own."""
    mapping = args[0].realize()
    payload = getattr(mapping, "payload", mapping)
    kind: Any = mapping.pytype
    plain = getattr(kind, "get", None) is dict.get and kind.__setitem__ is dict.__setitem__
    if kwargs or len(args) != 2 or not plain or payload is None:
        raise GraphBreak("QB07", "counting elements into a mapping of another kind")
    for element in args[1].realize().iterate(tx):
        count = payload.call_method(tx, "get", [element, ConstantValue(0)], {}).realize()
        payload.setitem(tx, element, arith.binary(tx, operator.add, count, ConstantValue(1)))
    return _NONE


# --- object ---------------------------------------------------------------------------------------------------------


@builtin(object.__new__)
def _object_new(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    from dynamo_capture.values.construct import empty_instance

    if len(args) != 1 or kwargs:
        raise GraphBreak("QB07", "object.__new__() with more than the class")
    cls = args[0].realize().const()
    if not isinstance(cls, type):
        raise GraphBreak("QB07", "object.__new__() of what is no class")
    return empty_instance(tx, cls, [])


@builtin(tuple.__new__)
def _tuple_new(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls = args[0].realize().const()
    if cls is not tuple and not is_plain_namedtuple(cls):
        from dynamo_capture.values.construct import empty_instance

        return empty_instance(tx, cls, args[1:])
    return TupleValue(args[1].realize().unpack(tx) if len(args) > 1 else [], cls)


def make_super(tx: Capture, args: list[Value]) -> Value:
    """``super()`` or ``super(cls, obj)``."""
    try:
        return _super(tx, args)
    except GraphBreak as brk:
        if not args:
            brk.leaves = "frame"  # which has the first argument and the cell of the class
        raise


def _super(tx: Capture, args: list[Value]) -> Value:
    if len(args) == 1:
        raise GraphBreak("QB07", "super() with one argument")
    if args:
        cls, owner = args[0].realize().const(), args[1]
    else:
        frame = tx.frames[-1]
        cell = frame.cells.get("__class__")
        name = frame.code.co_varnames[0] if frame.code.co_argcount else None
        if name is None:
            raise tx.observed(RuntimeError("super(): no arguments"))
        if cell is None:
            raise tx.observed(RuntimeError("super(): __class__ cell not found"))
        content = cell.get(tx)
        owner_value = frame.locals.get(name)
        if owner_value is None and name in frame.cells:
            owner_value = frame.cells[name].get(tx)
        if content is None or owner_value is None:
            raise GraphBreak("QB07", "super() where the class or the first argument is gone")
        cls, owner = content.realize().const(), owner_value
    try:
        owner = owner.realize()
    except GraphBreak as brk:
        if args or len(tx.frames) > 1:
            raise
        # The code that goes on at a break is another function, in which super() finds nothing.
        raise SkipFrame.at_break(brk, "in super()", where=tx.location()) from None
    if not issubclass(owner.pytype, cls) and not (isinstance(owner, ClassValue) and issubclass(owner.obj, cls)):
        raise GraphBreak("QB07", f"super() of {display(owner)}, which is no {cls.__name__}")
    if isinstance(owner, ClassValue):
        # In a class method the class itself is looked up; in a method of its metaclass it is the instance.
        return SuperValue(cls, owner, owner.obj if issubclass(owner.obj, cls) else type(owner.obj))
    return SuperValue(cls, owner, owner.pytype)
