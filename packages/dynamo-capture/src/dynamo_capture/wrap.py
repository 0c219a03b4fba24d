"""From a real object of the frame to a value, with the guards that looking at it takes."""

from __future__ import annotations

import collections
import contextvars
import enum
import functools
import threading
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from dynamo_capture.breaks import GraphBreak, SkipFrame
from dynamo_capture.rules import is_c_enumeration, is_library_name
from dynamo_capture.sources import Source
from dynamo_capture.triton_ops import is_triton_kernel
from dynamo_capture.values.arrays import array, is_array
from dynamo_capture.values.base import Value
from dynamo_capture.values.callables import BuiltinValue, ClassValue, DisabledValue, PyModuleValue
from dynamo_capture.values.constant import CONST_TYPES, ConstantValue, is_numpy_constant, is_numpy_scalar
from dynamo_capture.values.containers import (
    TupleValue,
    core_items,
    guard_plain,
    is_namedtuple,
    is_plain_namedtuple,
    is_struct_sequence,
    wrap_items,
)
from dynamo_capture.values.dicts import DictValue, ProxyValue
from dynamo_capture.values.dispatching import wrapper_input
from dynamo_capture.values.functions import MethodValue, PartialValue
from dynamo_capture.values.getters import GETTERS, existing_getter
from dynamo_capture.values.grown import found_list
from dynamo_capture.values.held_by_thread import held_by_context, held_by_thread
from dynamo_capture.values.instances import instance
from dynamo_capture.values.made_arrays import is_numpy_function
from dynamo_capture.values.modules import ModuleValue
from dynamo_capture.values.numpy_scalars import numpy_scalar
from dynamo_capture.values.objects import ExceptionValue, ObjectValue
from dynamo_capture.values.overrides import dispatches, subclass_input
from dynamo_capture.values.plain_objects import PLAIN_CLASSES, plain_object
from dynamo_capture.values.sets import SetValue
from dynamo_capture.values.sharded import awaited_input, is_sharded_class, placement, sharded_input
from dynamo_capture.values.tensor_state import has_names
from dynamo_capture.values.torch_calls import disabled_call
from dynamo_capture.values.torch_generators import torch_generator
from dynamo_capture.values.triton_kernels import TritonKernelValue
from dynamo_capture.values.weak import weak_reference
from dynamo_capture.wrappers import compiled_from, is_disabled, module_behind, reason_of
from prims.errors import Unsupported
from prims.sharding import is_collective_result, is_placement

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["wrap"]

_IDENTITY_CONSTANTS = frozenset((type(None), bool, type(Ellipsis), type(NotImplemented), torch.dtype, torch.layout,
                                 torch.memory_format, types.CodeType))  # fmt: skip
_C_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
                types.ClassMethodDescriptorType, types.MethodWrapperType, torch._ops.OpOverload,
                torch._ops.OpOverloadPacket)  # fmt: skip
_TENSOR_TYPES = frozenset((torch.Tensor, nn.Parameter, nn.Buffer))


def wrap(tx: Capture, obj: Any, source: Source | None) -> Value:
    """The value of an object, seen through ``source`` (None: an object that the code itself fixes)."""
    cls = type(obj)
    if cls in CONST_TYPES:
        return _constant(tx, obj, source)
    known = tx.known.get(id(obj))
    if known is not None:
        return _seen_again(tx, obj, known, source)
    handler = _HANDLERS.get(cls)
    if handler is None:
        handler = _by_base_class(obj, cls)
    value = handler(tx, obj, source)
    if value.mutable and handler is not _compiled:  # that is the value of the original
        if tx.later is not None and not isinstance(obj, (torch.Tensor, tuple)):
            tx.later.of_object(obj, source)
        tx.remember(obj, value)
    return value


def _seen_again(tx: Capture, obj: Any, known: Value, source: Source | None) -> Value:
    if source is not None and source is not known.source:
        if known.source is not None:
            tx.guards.same(source, known.source)
        else:
            tx.guards.is_object(source, obj)
            known.source = source
    elif source is None and known.source is not None and not known.source.is_fixed:
        tx.guards.is_object(known.source, obj)  # the code's own object, met before as one of the frame's
    return known


def _constant(tx: Capture, obj: Any, source: Source | None) -> Value:
    if source is None:
        return ConstantValue(obj)
    cls = type(obj)
    if cls in _IDENTITY_CONSTANTS:
        tx.guards.is_object(source, obj)
    elif cls is int and tx.int_is_dynamic(source, obj):
        return tx.graph.int_input(source, obj)
    elif cls is float and tx.float_is_dynamic(source, obj):
        tx.guards.type_is(source, float)
        return tx.graph.float_input(source, obj)
    elif cls is slice and not all(type(x) in CONST_TYPES for x in (obj.start, obj.stop, obj.step)):
        raise GraphBreak("QB06", f"a slice that holds objects ({source})")
    elif cls is range:
        tx.guards.type_is(source, range)
        for name in ("start", "stop", "step"):
            tx.guards.equals(source.attr(name), getattr(obj, name))
    else:
        tx.guards.equals(source, obj)
    return ConstantValue(obj, source)


def _by_base_class(obj: Any, cls: type) -> Callable[[Any, Any, Any], Value]:
    # By the real type: ``isinstance`` asks the object for its ``__class__`` too, which the program may compute.
    for base, handler in _BASES:
        if issubclass(cls, base):
            return handler
    if is_disabled(obj):
        return _disabled
    if compiled_from(obj) is not None:
        return _compiled
    if cls is functools._lru_cache_wrapper:
        return _lru_cached
    if is_triton_kernel(obj):
        return _triton_kernel
    if is_c_enumeration(cls):
        return _enum
    if is_array(obj):
        return array
    if is_placement(cls):
        return placement
    return _plain if cls in PLAIN_CLASSES else _object


def _guard_type(tx: Capture, source: Source | None, cls: type) -> None:
    if source is not None:
        tx.guards.type_is(source, cls)


def _tensor(tx: Capture, obj: Any, source: Source | None) -> Value:
    if type(obj) not in _TENSOR_TYPES:
        if isinstance(obj, (UninitializedParameter, UninitializedBuffer)):
            text = f"a lazy module is made ready by its first call ({source})"
            raise SkipFrame(text, "The next call is compiled.", where=tx.location(), once=True)
        if is_sharded_class(type(obj)):
            return sharded_input(tx, obj, source)
        if is_collective_result(obj):
            return awaited_input(tx, obj, source)
        return (wrapper_input if dispatches(tx, type(obj)) else subclass_input)(tx, obj, source)
    if obj.is_nested:
        raise _refused(obj, source, f"a nested tensor ({source})")
    if has_names(obj):
        raise _refused(obj, source, f"a tensor with named dimensions ({source})")
    source = source or Source("constant", None, (obj,))
    dynamic, free = tx.dynamic_dims(source, obj), tx.dynamic_strides(source, obj)
    try:
        value = tx.graph.tensor_input(source, obj, dynamic, free)
    except Unsupported as error:
        raise _refused(obj, source, str(error)) from None
    sizes = [None if not isinstance(s, int) else s for s in value.example.spec.shape]
    strides: Any = None
    lowest = tx.sizes.lowest(str(source), obj, dynamic)
    least = min(lowest, min(dynamic.values(), default=2))
    # A dimension of one is contiguous whatever its stride is.
    if free or any(s is None for s in sizes) and (lowest < 2 or not obj.is_contiguous()):
        known = value.example.spec.strides
        strides = [s if isinstance(s, int) else None for s in known]
        tx.guard_symbolic_strides(source, {d: s for d, s in enumerate(known) if not isinstance(s, int)})
    elif all(s is not None for s in sizes):
        strides = list(obj.stride())
    tx.guards.tensor(source, obj, sizes, strides, False, least)
    if least < 2:
        tx.sizes.of_one.append(source)
    return value


def _refused(obj: torch.Tensor, source: Source | None, detail: str) -> GraphBreak:
    """The break at a tensor of a kind that is not captured: at one of another kind the graph goes on."""
    brk = GraphBreak("QB17", detail)
    if source is not None:
        kind = _kind(obj)
        text = f"{source} is a tensor of {kind[0]} and {kind[1]}"
        brk.guard = lambda tx: tx.guards.predicate(source.again(), functools.partial(_is_of_kind, *kind), text)
    return brk


def _kind(obj: torch.Tensor) -> tuple[str, str, str, bool, bool]:
    return str(obj.layout), str(obj.dtype), obj.device.type, obj.is_nested, has_names(obj)


def _is_of_kind(*kind_and_obj: Any) -> bool:
    *kind, obj = kind_and_obj
    return isinstance(obj, torch.Tensor) and _kind(obj) == tuple(kind)


def _module(tx: Capture, obj: Any, source: Source | None) -> Value:
    original = module_behind(obj)
    if original is not None:
        source = source or Source("constant", None, (obj,))
        _guard_type(tx, source, type(obj))
        return wrap(tx, original, Source("constant", None, (original,)))
    _guard_type(tx, source, type(obj))
    return ModuleValue(type(obj), obj, source or Source("constant", None, (obj,)))


def _class(tx: Capture, obj: Any, source: Source | None) -> Value:
    if source is not None:
        tx.guards.is_object(source, obj)
    tx.guards.mro(obj)
    return ClassValue(obj, source)


def _enum(tx: Capture, obj: Any, source: Source | None) -> Value:
    return instance(tx, obj, source or Source("constant", None, (obj,)))


def _c_function(tx: Capture, obj: Any, source: Source | None) -> Value:
    owner = getattr(obj, "__self__", None)
    is_method = isinstance(obj, (types.BuiltinMethodType, types.MethodWrapperType)) and owner is not None
    if type(obj) is types.MethodWrapperType and type(owner) is types.GetSetDescriptorType:  # made anew at each look
        if source is not None:
            tx.guards.equals(source, obj)
        return BuiltinValue(obj, source)
    if is_method and getattr(obj, "__module__", None) is None and not isinstance(owner, (types.ModuleType, type)):
        _guard_type(tx, source, type(obj))
        if source is not None:
            tx.guards.equals(source.attr("__name__"), obj.__name__)
        bound_to = tx.from_python(owner, source and source.attr("__self__")).realize()
        return bound_to.getattr(tx, obj.__name__)
    if source is not None:
        tx.guards.is_object(source, obj)
    return BuiltinValue(obj, source)


def _py_module(tx: Capture, obj: Any, source: Source | None) -> Value:
    if source is not None:
        tx.guards.is_object(source, obj)
        if not is_library_name(obj.__name__):
            tx.guards.type_is(source, type(obj))
    return PyModuleValue(obj, source)


def _function(tx: Capture, obj: Any, source: Source | None) -> Value:
    if is_numpy_function(obj):
        source = source or Source("constant", None, (obj,))
        tx.guards.is_object(source, obj)
        return BuiltinValue(obj, source)
    return tx.function(obj, source)


def _method(tx: Capture, obj: Any, source: Source | None) -> Value:
    _guard_type(tx, source, types.MethodType)
    owner = tx.from_python(obj.__self__, source and Source("method_self", source))
    func = tx.from_python(obj.__func__, source and Source("method_func", source)).realize()
    return MethodValue(owner, func, source)


def _tuple(tx: Capture, obj: Any, source: Source | None) -> Value:
    cls = type(obj)
    if source is not None:
        tx.guards.type_is(source, cls)
        if not is_namedtuple(cls):
            tx.guards.length(source, tuple.__len__(obj))
    if cls in (tuple, torch.Size) or is_plain_namedtuple(cls) or is_struct_sequence(cls):
        if source is None and is_struct_sequence(cls) and cls.__module__ != "torch.return_types":
            # sys.version_info and its like: some of their classes make no second instance.
            return TupleValue([tx.from_python(x) for x in obj], cls, Source("constant", None, (obj,)))
        guard_plain(tx, cls)
        if source is None:
            return TupleValue([tx.from_python(x) for x in obj], cls)
        return TupleValue(wrap_items(tx, obj, source), cls, source, obj)
    return ObjectValue(cls, obj, source, TupleValue(wrap_items(tx, obj, source), tuple))


def _list(tx: Capture, obj: Any, source: Source | None) -> Value:
    source = source or Source("constant", None, (obj,))
    tx.guards.type_is(source, type(obj))
    if issubclass(type(obj), collections.deque) and type(obj).__getitem__ is not collections.deque.__getitem__:
        raise GraphBreak("QB06", f"a {type(obj).__name__}, a deque that gives its items in its own way")
    return found_list(tx, obj, source)


def _dict(tx: Capture, obj: Any, source: Source | None) -> Value:
    source = source or Source("constant", None, (obj,))
    tx.guards.type_is(source, type(obj))
    return _inner_dict(tx, obj, type(obj), source)


def _inner_dict(tx: Capture, obj: Any, kind: type, source: Source) -> DictValue:
    factory = None
    if kind is collections.defaultdict:
        made = vars(collections.defaultdict)["default_factory"].__get__(obj)
        if made is None:
            tx.guards.is_object(source.attr("default_factory"), None)
        else:
            factory = tx.from_python(made, source.attr("default_factory"))
    return DictValue(kind, source, obj, factory)


def _mapping_proxy(tx: Capture, obj: Any, source: Source | None) -> Value:
    source = source or Source("constant", None, (obj,))
    tx.guards.type_is(source, types.MappingProxyType)
    return ProxyValue(DictValue(dict, Source("call", source, dict), dict(obj)), source)  # the dict behind it may change


def _set(tx: Capture, obj: Any, source: Source | None) -> Value:
    if source is None and type(obj) is set:
        source = Source("constant", None, (obj,))
    elements = tuple(core_items(obj))
    if source is not None:
        tx.guards.type_is(source, type(obj))
        tx.guards.set_equals(source, elements)
    return SetValue.existing(obj, [tx.from_python(item) for item in elements], tx, source)


def _partial(tx: Capture, obj: Any, source: Source | None) -> Value:
    _guard_type(tx, source, functools.partial)
    func = tx.from_python(obj.func, source and source.attr("func"))
    args = source and source.attr("args")
    if args is not None:
        tx.guards.length(args, len(obj.args))
    keywords = source and source.attr("keywords")
    if keywords is not None:
        tx.guards.dict_keys(keywords, list(obj.keywords))
    return PartialValue(
        func,
        [tx.from_python(x, args and args.item(i)) for i, x in enumerate(obj.args)],
        {k: tx.from_python(x, keywords and keywords.item(k)) for k, x in obj.keywords.items()},
        source,
        obj,
    )


def _exception(tx: Capture, obj: Any, source: Source | None) -> Value:
    _guard_type(tx, source, type(obj))
    if source is not None:
        tx.guards.length(source.attr("args"), len(obj.args))
    args = [tx.from_python(a, source and source.attr("args").item(i)) for i, a in enumerate(obj.args)]
    return ExceptionValue(type(obj), args, source or Source("constant", None, (obj,)), obj)


def _compiled(tx: Capture, obj: Any, source: Source | None) -> Value:
    """A function that was compiled on its own: the original is captured."""
    if source is not None:
        tx.guards.is_object(source, obj)
    return wrap(tx, compiled_from(obj), None)


def _disabled(tx: Capture, obj: Any, source: Source | None) -> Value:
    if source is not None:
        tx.guards.is_object(source, obj)
    return DisabledValue(functools.partial(disabled_call, why=reason_of(obj)), "disabled function", obj)


def _lru_cached(tx: Capture, obj: Any, source: Source | None) -> Value:
    if source is not None:
        tx.guards.is_object(source, obj)
    return BuiltinValue(obj, source)


def _triton_kernel(tx: Capture, obj: Any, source: Source | None) -> Value:
    if source is not None:
        tx.guards.is_object(source, obj)
    return TritonKernelValue(obj, source)


def _plain(tx: Capture, obj: Any, source: Source | None) -> Value:
    return plain_object(tx, obj, source) or _object(tx, obj, source)


def _object(tx: Capture, obj: Any, source: Source | None) -> Value:
    cls = type(obj)
    if source is None and (is_numpy_scalar(obj) or is_numpy_constant(obj)):
        return ConstantValue(obj)
    source = source or Source("constant", None, (obj,))
    if is_numpy_constant(obj):
        tx.guards.is_object(source, obj)
        return ConstantValue(obj, source)
    if cls.__module__ == "numpy":
        if cls.__name__ in ("ufunc", "_ArrayFunctionDispatcher"):
            tx.guards.is_object(source, obj)
            return BuiltinValue(obj, source)
        if is_numpy_scalar(obj):
            return numpy_scalar(tx, obj, source)
        raise GraphBreak("QB09", f"a numpy {cls.__name__} ({source})")
    if issubclass(cls, threading.local):
        return held_by_thread(tx, obj, source)
    tx.guards.type_is(source, cls)
    if issubclass(cls, torch.optim.Optimizer):
        tx.optimizers.add(source)
    payload: Value | None = None
    if issubclass(cls, dict):
        payload = _inner_dict(tx, obj, _container(cls), source)
    elif issubclass(cls, (list, collections.deque)):
        payload = _list(tx, obj, source)
    elif issubclass(cls, (int, float, complex, str, bytes)):
        return instance(tx, obj, source)
    elif issubclass(cls, (set, frozenset)):
        payload = _set(tx, obj, source)
    return ObjectValue(cls, obj, source, payload)


def _container(cls: type) -> type:
    """The class in C that an instance of a subclass of a container is at its core."""
    return next(base for base in cls.__mro__ if base in _CONTAINERS)


_CONTAINERS = frozenset((list, dict, collections.OrderedDict, collections.defaultdict, collections.deque))


_HANDLERS: dict[type, Callable[[Any, Any, Any], Value]] = {
    torch.Tensor: _tensor,
    nn.Parameter: _tensor,
    types.FunctionType: _function,
    types.MethodType: _method,
    types.BuiltinFunctionType: _c_function,
    types.ModuleType: _py_module,
    types.MappingProxyType: _mapping_proxy,
    type: _class,
    tuple: _tuple,
    torch.Size: _tuple,
    list: _list,
    collections.deque: _list,
    dict: _dict,
    collections.OrderedDict: _dict,
    collections.defaultdict: _dict,
    set: _set,
    frozenset: _set,
    functools.partial: _partial,
    torch.Generator: torch_generator,
    contextvars.ContextVar: held_by_context,
    weakref.ref: weak_reference,
    weakref.KeyedRef: weak_reference,
    **dict.fromkeys(GETTERS, existing_getter),
}

#: For types that have no handler of their own; the first base that fits.
_BASES: tuple[tuple[Any, Callable[[Any, Any, Any], Value]], ...] = (
    (torch.Tensor, _tensor),
    (nn.Module, _module),
    (type, _class),
    (enum.Enum, _enum),
    (_C_FUNCTIONS, _c_function),
    (types.ModuleType, _py_module),
    (tuple, _tuple),
    (BaseException, _exception),
)
