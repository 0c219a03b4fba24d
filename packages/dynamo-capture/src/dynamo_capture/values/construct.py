"""Calling classes: builtin types, iterators, exceptions, named tuples, and classes written in Python."""

from __future__ import annotations

import abc
import collections
import enum
import functools
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.breaks import GraphBreak, SkipFrame
from dynamo_capture.values.base import Value
from dynamo_capture.values.builtin_functions import make_super
from dynamo_capture.values.classes import bind_attribute, find, full_name, lookup
from dynamo_capture.values.constant import ConstantValue, fold
from dynamo_capture.values.containers import (
    DequeValue,
    ListValue,
    TupleValue,
    is_plain_namedtuple,
    make_slice,
    named_fields,
)
from dynamo_capture.values.dicts import DictValue
from dynamo_capture.values.elementary import is_finite
from dynamo_capture.values.enums import member_by_value
from dynamo_capture.values.functions import MethodValue, PartialValue
from dynamo_capture.values.getters import GETTERS, make_getter
from dynamo_capture.values.index_mode import IndexMode, is_index_mode
from dynamo_capture.values.iterating import ITERATORS, Signature
from dynamo_capture.values.known_tensors import as_known_ints, computed_of_known
from dynamo_capture.values.leaves import make_parameter
from dynamo_capture.values.made_arrays import call_numpy
from dynamo_capture.values.numpy_scalars import NumpyNumberValue
from dynamo_capture.values.objects import ExceptionValue, ObjectValue
from dynamo_capture.values.plain_objects import MADE_OF_CONSTANTS
from dynamo_capture.values.scalar_tensors import known_number
from dynamo_capture.values.sets import SetValue, operand_of
from dynamo_capture.values.tensor import SymValue, TensorValue
from dynamo_capture.values.texts import text_from
from prims.sharding import is_placement

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["empty_instance", "instantiate", "user_instance"]

Handler = Callable[[Any, list[Value], dict[str, Value]], Value]

_TYPES: dict[type, Handler] = dict(ITERATORS)
#: The calls that the handlers know; :data:`ITERATORS` check theirs.
_SIGNATURES = {
    **dict.fromkeys((list, tuple, set, frozenset, bool, torch.Size), Signature(0, 1)),
    collections.deque: Signature(0, 2, "maxlen"), type: Signature(1, 3), object: Signature(0, 0),
    int: Signature(0, 2, "base"), float: Signature(0, 1), str: Signature(0, 3, "object", "encoding", "errors"),
    slice: Signature(1, 3), range: Signature(1, 3), types.MethodType: Signature(2, 2),
}  # fmt: skip
_PLAIN_METACLASSES = frozenset((type, abc.ABCMeta))
_FOLDED = frozenset((torch.device, torch.finfo, torch.iinfo, bytes, complex))


def constructor(*classes: type) -> Callable[[Handler], Handler]:
    """Register what calling a class does."""

    def register(handler: Handler) -> Handler:
        for cls in classes:
            _TYPES[cls] = handler
        return handler

    return register


def instantiate(tx: Capture, cls: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``cls(*args, **kwargs)``."""
    handler = _TYPES.get(cls)
    if handler is not None:
        signature = _SIGNATURES.get(cls)
        if signature is not None and not signature.admits(args, kwargs):
            raise GraphBreak("QB07", f"{cls.__qualname__}() with these arguments")
        return handler(tx, args, kwargs)
    if isinstance(cls, enum.EnumMeta):
        return member_by_value(tx, cls, args, kwargs)
    if cls in _FOLDED or cls in MADE_OF_CONSTANTS or is_placement(cls):
        return fold(tx, cls, args, kwargs)
    if is_plain_namedtuple(cls) and _made_by_namedtuple(cls):
        return _named_tuple(tx, cls, args, kwargs)
    if cls.__module__ == "torch.return_types" and len(args) == 1 and not kwargs:
        return TupleValue(list(args[0].realize().unpack(tx)), cls)
    if cls is torch.Tensor or isinstance(cls, _LEGACY):
        return _legacy_tensor(tx, cls, args, kwargs)
    if cls is torch.nn.Parameter:
        return make_parameter(tx, args, kwargs)
    if issubclass(cls, torch.Tensor) and not isinstance(_python_new(cls), types.FunctionType):
        raise GraphBreak("QB17", f"making a {cls.__name__} from its class")
    if is_index_mode(cls) and not args and not kwargs:
        return IndexMode(cls)
    if cls.__module__ == "numpy" and cls.__name__ in ("dtype", "finfo", "iinfo"):
        return call_numpy(tx, cls, args, kwargs)
    if _is_numpy_scalar_class(cls):
        return fold(tx, cls, args, kwargs)
    if type(cls) not in _PLAIN_METACLASSES:
        found, owner = find(tx, type(cls), "__call__")
        if found is not None and not isinstance(found, types.WrapperDescriptorType):  # nor that of ``type`` itself
            from dynamo_capture.values.callables import ClassValue

            called = bind_attribute(tx, ClassValue(cls), type(cls), "__call__", found, owner)  # type: ignore[arg-type]
            return called.call(tx, args, kwargs)
    return user_instance(tx, cls, args, kwargs)


#: The type of ``torch.LongTensor`` and its like.
_LEGACY: Any = type(torch.LongTensor)


def _legacy_tensor(tx: Capture, cls: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``torch.Tensor(...)`` or ``torch.LongTensor(...)``: of sizes, or of numbers in a list or tuple."""
    given = [arg.realize() for arg in args]
    options: dict[str, Value] = {}
    if cls is not torch.Tensor:
        options = {"dtype": ConstantValue(cls.dtype), "device": ConstantValue("cuda" if cls.is_cuda else "cpu")}
    else:
        options = {"dtype": ConstantValue(torch.get_default_dtype())}
    if not kwargs and all(value.pytype is int for value in given):
        return tx.graph_call(torch.empty, [TupleValue(list(given or [ConstantValue(0)]))], options)
    if not kwargs and len(given) == 1 and given[0].pytype is torch.Size:
        return tx.graph_call(torch.empty, given, options)
    if not kwargs and len(given) == 1 and given[0].pytype in (list, tuple):
        return tx.graph_call(torch.tensor, given, options)
    raise GraphBreak("QB17", f"making a {cls.__name__} of these arguments")


def _is_numpy_scalar_class(cls: type) -> bool:
    return cls.__module__ == "numpy" and any(base.__name__ == "generic" for base in cls.__mro__)


def user_instance(tx: Capture, cls: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if find(tx, cls, "__del__")[1] is not None:
        # When that is, only the running program knows, and emitted code would keep a reference of its own.
        text = f"an instance of {cls.__qualname__} is made, whose __del__ runs when it goes out of use"
        raise SkipFrame(text, "Make it outside of the compiled function.", where=tx.location())
    find(tx, cls, "__new__")
    new = _python_new(cls)
    value: Value
    if isinstance(new, types.FunctionType):  # set on the class later, without a decorator, it is not bound either
        from dynamo_capture.values.callables import ClassValue

        value = tx.function(new, None).call(tx, [ClassValue(cls), *args], kwargs).realize()
        if not issubclass(value.pytype, cls):
            return value
    else:
        value = empty_instance(tx, cls, args)
    init, owner = find(tx, cls, "__init__")
    if isinstance(init, types.FunctionType):
        bind_attribute(tx, value, cls, "__init__", init, owner).call(tx, args, kwargs)  # type: ignore[arg-type]
    elif isinstance(value, ObjectValue):
        if owner is not object:
            value.call_c_method(tx, "__init__", init, args, kwargs)
        elif (args or kwargs) and lookup(cls, "__new__")[1] is object:
            # object.__init__ ignores what a __new__ has taken.
            raise tx.observed(TypeError(f"{full_name(cls)}() takes no arguments"))
    return value


def _python_new(cls: type) -> Any:
    """``cls.__new__`` as it stands in its class."""
    new, _ = lookup(cls, "__new__")
    return new.__func__ if isinstance(new, staticmethod) else new


def empty_instance(tx: Capture, cls: type, args: list[Value]) -> Value:
    """What ``cls.__new__`` gives for a class whose C base is one that capture knows."""
    if issubclass(cls, BaseException):
        if issubclass(cls, (OSError, BaseExceptionGroup)) and len(args) > 1:
            raise GraphBreak("QB15", f"an instance of {cls.__qualname__}, which picks its own class")
        return ExceptionValue(cls, list(args))
    if issubclass(cls, (enum.Enum, torch.Tensor, type)):
        raise GraphBreak("QB15", f"an instance of {cls.__qualname__}")
    for base in cls.__mro__:
        if base is object:
            if cls.__flags__ & _ABSTRACT:
                tx.exact(object.__new__, cls)
            return ObjectValue(cls)
        if base in _PAYLOADS:
            return ObjectValue(cls, payload=_PAYLOADS[base]())
        if base is tuple:
            if len(args) > 1:
                raise GraphBreak("QB03", f"tuple.__new__ of {cls.__qualname__} with {len(args)} arguments")
            items = args[0].realize().unpack(tx) if args else []
            return ObjectValue(cls, payload=TupleValue(items))
        if not _is_python_class(base) or isinstance(base.__dict__.get("__new__"), types.BuiltinFunctionType):
            break
    raise GraphBreak("QB03", f"the class {cls.__module__}.{cls.__qualname__}")


#: Py_TPFLAGS_IS_ABSTRACT: the class has abstract methods, and no instances.
_ABSTRACT = 1 << 20
_PAYLOADS: dict[type, Callable[[], Value]] = {
    dict: DictValue,
    collections.OrderedDict: lambda: DictValue(collections.OrderedDict),
    list: lambda: ListValue([]),
    set: SetValue,
}


def _is_python_class(cls: type) -> bool:
    """Whether a class was made by a ``class`` statement (its instances are laid out as plain objects)."""
    return bool(cls.__flags__ & (1 << 9)) or cls.__module__ in ("typing", "abc", "collections.abc")


def _made_by_namedtuple(cls: type) -> bool:
    """Whether instances are made as ``collections.namedtuple`` has it."""
    new, _ = lookup(cls, "__new__")
    made_in = getattr(getattr(new, "__func__", None), "__globals__", {}).get("__name__", "")
    return made_in.startswith("namedtuple_") and not isinstance(lookup(cls, "__init__")[0], types.FunctionType)


def _named_tuple(tx: Capture, cls: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    fields = named_fields(cls)
    new = find(tx, cls, "__new__")[0].__func__
    given = dict(zip(fields, args, strict=False)) | kwargs
    if len(given) < len(fields):
        defaults = tx.function(new, None).default_values(tx)  # type: ignore[attr-defined]
        given = dict(zip(fields[len(fields) - len(defaults) :], defaults, strict=True)) | given
    values = [given[name] for name in fields if name in given]
    if len(values) < len(fields) or len(args) + len(kwargs) > len(given) or given.keys() - set(fields):
        tx.exact(cls.__new__, cls, *[None] * len(args), **dict.fromkeys(kwargs))
        raise GraphBreak("QB03", f"a wrong call of {cls.__qualname__}")
    return TupleValue(values, cls)


# --- builtin types --------------------------------------------------------------------------------------------------


@constructor(type)
def _type(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 3 and not kwargs:
        return _new_class(tx, *[arg.realize() for arg in args])
    if len(args) != 1:
        raise GraphBreak("QB15", "type() with three arguments")
    value = args[0].realize()
    return tx.from_python(value.pytype)


def _new_class(tx: Capture, name: Value, bases: Value, namespace: Value) -> Value:
    """``type(name, bases, namespace)``."""
    from dynamo_capture.values.local_classes import make_class

    known = type(name) is ConstantValue and isinstance(bases, TupleValue) and isinstance(namespace, DictValue)
    entries = list(namespace.whole(tx).values()) if known else []  # type: ignore[attr-defined]
    keys = [key.realize() for key, _ in entries]
    if not known or not all(type(key) is ConstantValue and type(key.value) is str for key in keys):
        raise GraphBreak("QB15", "type() with three arguments")
    classes = [base.realize() for base in bases.unpack(tx)]
    if not all(isinstance(base.const() if base.is_const else None, type) for base in classes):
        raise GraphBreak("QB15", "type() with three arguments")
    own = {key.const(): value for key, (_, value) in zip(keys, entries, strict=True)}
    module = tx.frames[-1].globals.get("__name__")
    if type(module) is str:
        own.setdefault("__module__", ConstantValue(module))
    return make_class(tx, name.const(), classes, own)


@constructor(object)
def _object(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ObjectValue(object)


@constructor(types.SimpleNamespace)
def _namespace(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args:
        raise GraphBreak("QB07", "SimpleNamespace() of a mapping")
    result = ObjectValue(types.SimpleNamespace)
    result.attrs.update(kwargs)
    return result


@constructor(super)
def _super(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return make_super(tx, args)


@constructor(bool)
def _bool(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(args[0].realize().truth(tx) if args else False)


@constructor(int)
def _int(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _number(tx, int, args, kwargs, torch.sym_int)


@constructor(float)
def _float(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _number(tx, float, args, kwargs, torch.sym_float)


def _number(tx: Capture, cls: type, args: list[Value], kwargs: dict[str, Value], sym_fn: Any) -> Value:
    value = args[0].realize() if args else None
    if isinstance(value, TensorValue):
        if cls is int and value.number is not None and len(args) + len(kwargs) == 1:
            return value.number
        if cls is float and len(args) + len(kwargs) == 1 and (number := known_number(tx, value)) is not None:
            return number
        if tx.unbacked and cls is not complex and len(args) + len(kwargs) == 1:
            return _number(tx, cls, [value.call_method(tx, "item", [], {})], {}, sym_fn)
        known = computed_of_known(tx, "item", [value], {}, True) if len(args) + len(kwargs) == 1 else None
        if known is not None:
            return fold(tx, cls, [known], {})
        raise GraphBreak("QB02", f"{cls.__name__}() of a tensor")
    if isinstance(value, NumpyNumberValue):
        value = value.number if value.number.pytype is cls else value.constant()
    if isinstance(value, SymValue) and len(args) + len(kwargs) == 1:
        if value.pytype is cls:
            return value
        if value.pytype is float and not is_finite(value):
            return fold(tx, cls, [value], {})
        return tx.graph_call(sym_fn, [value], {})
    if isinstance(value, ObjectValue):
        name = f"__{cls.__name__}__"
        has_method = lookup(value.cls, name)[1] and len(args) + len(kwargs) == 1
        result = value.call_method(tx, name, [], {}).realize() if has_method else value
        if result.pytype is not cls:
            raise GraphBreak("QB07", f"{cls.__name__}() of {value.describe()}")
        return result
    return fold(tx, cls, args, kwargs)


@constructor(str)
def _str(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args and not kwargs:
        return ConstantValue("")
    if kwargs:
        return fold(tx, str, args, kwargs)
    if len(args) == 1:
        return text_from(tx, str, args[0].realize())
    return fold(tx, str, args, kwargs)


@constructor(list)
def _list(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ListValue(args[0].realize().unpack(tx) if args else [])


@constructor(tuple)
def _tuple(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        return TupleValue([])
    value = args[0].realize()
    if isinstance(value, TupleValue) and value.cls is tuple:
        return value
    return TupleValue(value.unpack(tx))


@constructor(torch.Size)
def _size(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return TupleValue(args[0].realize().unpack(tx) if args else [], torch.Size)


@constructor(set)
def _set(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return SetValue.make(tx, "set", [operand_of(tx, arg.realize()) for arg in args])


@constructor(frozenset)
def _frozenset(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = args[0].realize() if args else None
    if isinstance(value, SetValue) and value.cls is frozenset:
        return value
    return SetValue.make(tx, "frozenset", [operand_of(tx, arg.realize()) for arg in args])


@constructor(dict)
def _dict(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    result = DictValue()
    result.call_method(tx, "update", args, kwargs)
    return result


@constructor(collections.OrderedDict)
def _ordered_dict(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    result = DictValue(collections.OrderedDict)
    result.call_method(tx, "update", args, kwargs)
    return result


@constructor(collections.defaultdict)
def _default_dict(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    factory = args[0].realize() if args else None
    if isinstance(factory, ConstantValue):
        if factory.value is not None:
            raise tx.observed(TypeError("first argument must be callable or None"))
        factory = None
    result = DictValue(collections.defaultdict, default_factory=factory)
    result.call_method(tx, "update", args[1:], kwargs)
    return result


@constructor(collections.deque)
def _deque(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    limit = (args[1] if len(args) > 1 else kwargs.get("maxlen", ConstantValue(None))).realize().const()
    if limit is not None and (type(limit) is not int or limit < 0):
        raise GraphBreak("QB07", "deque() of a length that is no size")
    return DequeValue(args[0].realize().unpack(tx) if args else [], maxlen=limit)


@constructor(slice)
def _slice(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    none = ConstantValue(None)
    return make_slice([none, args[0], none] if len(args) == 1 else [*args, none][:3])


@constructor(range)
def _range(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    bounds = []
    for arg in args:
        value = arg.realize()
        if isinstance(value, TensorValue):
            value = as_known_ints(tx, value)
        if isinstance(value, TensorValue):
            raise GraphBreak("QB02", "range() of a tensor")
        bounds.append(ConstantValue(value.const()))
    return fold(tx, range, bounds, {})  # type: ignore[arg-type]


for _cls in GETTERS:
    constructor(_cls)(functools.partial(make_getter, _cls))


@constructor(functools.partial)
def _partial(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    func = args[0].realize()
    if isinstance(func, PartialValue):
        return PartialValue(func.func, [*func.args, *args[1:]], {**func.keywords_now(tx), **kwargs})
    return PartialValue(func, args[1:], kwargs)


@constructor(types.MethodType)
def _method(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return MethodValue(args[1], args[0].realize())


def _descriptor_of(kind: type) -> Handler:
    def make(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        from dynamo_capture.values.functions import FunctionValue
        from dynamo_capture.values.local_classes import DescriptorValue

        function = args[0].realize() if len(args) == 1 and not kwargs else None
        if not isinstance(function, FunctionValue) or function.fn is not None:
            raise GraphBreak("QB15", "a descriptor made at run time")
        return DescriptorValue(kind, function)

    return make


for _kind in (property, staticmethod, classmethod):
    constructor(_kind)(_descriptor_of(_kind))
