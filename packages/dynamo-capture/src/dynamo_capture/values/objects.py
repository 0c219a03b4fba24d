"""Instances of user-defined classes, exceptions among them."""

from __future__ import annotations

import collections
import copyreg
import operator
import random
import types
from _io import _IOBase
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dynamo_capture import _native
from dynamo_capture.breaks import GraphBreak
from dynamo_capture.rules import is_library_class
from dynamo_capture.sources import Source
from dynamo_capture.values.base import ObservedError, Value, display
from dynamo_capture.values.classes import (
    bind_attribute,
    class_source,
    find,
    full_name,
    guard_found,
    guard_lookup,
    lookup,
    no_attribute,
)
from dynamo_capture.values.compare import existing, identical
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import ListValue, TupleValue
from dynamo_capture.values.dicts import DictValue
from dynamo_capture.values.exact import type_error
from dynamo_capture.values.identity import never_changes, object_key, pin
from dynamo_capture.values.tracebacks import Trail, as_raised
from dynamo_capture.wrappers import own_dict

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = [
    "DELETED", "UNKNOWN", "ExceptionValue", "InstanceDictValue", "ObjectValue", "TracebackValue", "class_attribute",
    "is_data_descriptor", "is_slot",
]  # fmt: skip


class _Deleted(Value):
    __slots__ = ()


#: Stands for an attribute that the region has deleted.
DELETED = _Deleted()
#: Stands for an attribute that a call of the region changes which is made when the region runs.
UNKNOWN = Value()

_DATA_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_HEAP_TYPE = 1 << 9


def _is_computed_by_library(found: Any, owner: type) -> bool:
    """Whether it is a property of a class of torch's C++ (``_CudaDeviceProperties.major``), computed there.

    Its getter is a C function, which may be wrapped in an ``instancemethod``.
    """
    getter = getattr(found.fget, "__func__", found.fget) if type(found) is property else None
    return isinstance(getter, types.BuiltinFunctionType) and is_library_class(owner)


def is_data_descriptor(found: Any) -> bool:
    """Whether a class attribute wins over the instance's own."""
    kind = type(found)
    return lookup(kind, "__set__")[1] is not None or lookup(kind, "__delete__")[1] is not None


def is_slot(found: Any) -> bool:
    """Whether a class attribute is a member that ``__slots__`` of a Python class made."""
    return type(found) is types.MemberDescriptorType and bool(found.__objclass__.__flags__ & _HEAP_TYPE)


def _filled(descriptor: Any, obj: Any) -> bool:
    try:
        descriptor.__get__(obj)
    except AttributeError:
        return False
    return True


def class_attribute(tx: Capture, value: Value, cls: type, name: str) -> Value | None:
    """An attribute that a Python-level base of ``cls`` defines, bound to ``value``; None when a C type does."""
    found, owner = lookup(cls, name)
    if owner is None or owner in (tuple, object, list, dict):
        return None
    return bind_attribute(tx, value, cls, name, found, owner)


_CONTAINERS = frozenset((list, tuple, set, frozenset, dict, collections.OrderedDict, collections.defaultdict,
                         collections.deque, torch.Size))  # fmt: skip


#: Methods that make an instance of the subclass.
_MAKES_INSTANCES = {
    str: ("format", "format_map"), set: ("copy",), frozenset: ("copy",),
    collections.deque: ("copy", "__copy__", "__add__", "__mul__", "__rmul__"),
    **dict.fromkeys((collections.OrderedDict, collections.defaultdict), ("copy", "__copy__", "__or__", "__ror__")),
}  # fmt: skip
#: Methods of OrderedDict and defaultdict that call no other, and the others that those call.
_ASKS_NO_METHOD = frozenset(("__getitem__", "__setitem__", "__delitem__", "__contains__", "__len__", "__iter__", "get",
                             "move_to_end", "keys", "items", "values"))  # fmt: skip
_ASKED_FOR = ("__getitem__", "__setitem__", "__delitem__", "__contains__", "__iter__", "__missing__", "keys")


def _base_container(payload: Value) -> type:
    """The C type that compares a payload."""
    cls = payload.pytype
    return next(base for base in (list, tuple, set, frozenset, dict, collections.deque, cls) if issubclass(cls, base))


def _number(cls: type) -> str:
    """The number of the reason why a method in C of such an object is not captured."""
    if _IOBase in cls.__mro__:
        return "QB11"
    if cls in (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType):
        return "QB18"
    return "QB07" if cls.__module__ == "builtins" else "QB03"


class ObjectValue(Value):
    """An instance of a Python class.

    ``obj`` is the real object when it existed before the frame; ``attrs`` holds what the region has written, or
    all attributes of an object that the region made. ``payload`` is the list, dict, tuple or set inside an
    instance of a subclass of one of those.
    """

    __slots__ = ("attrs", "cls", "init_args", "obj", "payload")

    mutable = True

    def __init__(self, cls: type, obj: Any = None, source: Any = None, payload: Value | None = None) -> None:
        self.source = source
        self.cls = cls
        self.obj = obj
        self.attrs: dict[str, Value] = {}
        self.payload = payload
        self.init_args: list[Value] = []

    @property
    def pytype(self) -> type:
        return self.cls

    def real(self) -> Any:
        if self.obj is None:
            raise GraphBreak("QB06", f"an object of type {self.cls.__name__} made in the region, as a real object")
        return self.obj

    def key(self, tx: Capture) -> Any:
        return object_key(tx, self, self.cls)

    # --- attributes ---------------------------------------------------------------------------------------------

    def getattr(self, tx: Capture, name: str) -> Value:
        getter, owner = find(tx, self.cls, "__getattribute__")
        if isinstance(getter, types.FunctionType):
            method = bind_attribute(tx, self, self.cls, "__getattribute__", getter, owner)  # type: ignore[arg-type]
            try:
                return method.call(tx, [ConstantValue(name)], {}).realize()
            except ObservedError as error:
                if not self._answers_for(tx, error):
                    raise
                return self._call_getattr(tx, name)
        if not isinstance(getter, types.WrapperDescriptorType):
            raise GraphBreak("QB06", f"__getattribute__ of {self.cls.__name__}")
        if not _native.looks_up_plainly(owner) and not self._has_of_its_own(tx, name):  # type: ignore[arg-type]
            raise GraphBreak("QB06", f"attribute {name!r} of a {self.cls.__name__}, which its C code looks up")
        return self.plain_getattr(tx, name)

    def _has_of_its_own(self, tx: Capture, name: str) -> bool:
        """Whether an attribute is none that the C code of a class asks another object for: ``list[int]`` asks ``list``,
        a ``weakref.proxy`` what it stands for."""
        if self.cls not in (types.GenericAlias, types.UnionType) or self.obj is None:
            return False
        if lookup(self.cls, name)[1] is not None or self.cls is types.UnionType:
            return True
        origin = self.obj.__origin__
        if not is_library_class(origin) or hasattr(origin, name):
            return False
        if self.source is not None:
            tx.guards.is_object(self.source.attr("__origin__"), origin)
        return True

    def plain_getattr(self, tx: Capture, name: str, *, hook: bool = True) -> Value:
        """``object.__getattribute__``, with ``__getattr__`` behind it unless ``hook`` is False."""
        cls = self.cls
        found, owner = lookup(cls, name)
        if owner is object and name == "__class__":
            return tx.from_python(cls)
        if name == "__dict__" and (owner is None or isinstance(found, types.GetSetDescriptorType)):
            return InstanceDictValue(tx, self)
        if owner is None or not is_data_descriptor(found):
            value = self._own_attribute(tx, name)
            if value is not None:
                find(tx, cls, name)  # a data descriptor would come first
                for setter in ("__set__", "__delete__") if owner is not None else ():
                    guard_lookup(tx, type(found), setter)
                return value
        if owner is None:
            return self.missing_attribute(tx, name) if hook else self._no_attribute_at_all(tx, name)
        try:
            if isinstance(found, _DATA_DESCRIPTORS) or _is_computed_by_library(found, owner):
                return self._slot(tx, name, found)
            if self.source is not None and type(found) is not property and name not in self.attrs:
                tx.guards.no_instance_attr(self.source, name)
            return bind_attribute(tx, self, cls, name, found, owner)
        except ObservedError as error:
            if not hook or not self._answers_for(tx, error):
                raise
            return self._call_getattr(tx, name)

    def _own_attribute(self, tx: Capture, name: str) -> Value | None:
        """An attribute of the instance itself, as the region has left it."""
        value = self.attrs.get(name)
        if value is None:
            return self.instance_attribute(tx, name)
        if value is UNKNOWN:
            raise GraphBreak("QB06", f"attribute {name!r} of {self.describe()}, after a call that may change it")
        return None if value is DELETED else value

    def _slot(self, tx: Capture, name: str, descriptor: Any) -> Value:
        """The content of a ``__slots__`` member, or what a C type computes."""
        value = self.attrs.get(name)
        if value is not None and value is not DELETED:
            return value
        if self.obj is None or value is DELETED:
            if not is_slot(descriptor):
                raise GraphBreak("QB06", f"attribute {name!r} of a {self.cls.__name__} made in the region")
            self._fail(tx, descriptor.__get__, self.cls)
        if not self._slot_is_filled(tx, name, descriptor):
            self._fail(tx, descriptor.__get__, self.cls)
        source = self.source
        if source is not None:
            getter, _ = find(tx, self.cls, "__getattribute__")
            overridden = isinstance(getter, types.FunctionType) or find(tx, self.cls, "__getattr__")[1] is not None
            source = Source("call", source, descriptor.__get__) if overridden else source.attr(name)
        if is_slot(descriptor):
            return tx.read(descriptor.__get__(self.obj, self.cls), source)
        with _disable_current_modes():  # what it computes is real: ``saved_tensors`` makes tensors
            found = descriptor.__get__(self.obj, self.cls)
        return tx.read(found, source)

    def _fail(self, tx: Capture, operation: Any, *args: Any) -> NoReturn:
        """Raise what an operation on attributes raises for an empty instance of the class, in Python's own words.

        Raises:
            ObservedError: that error.
            GraphBreak: there is none, or the program would see the instance go.
        """
        if lookup(self.cls, "__del__")[1] is None:
            tx.exact(operation, _c_new(self.cls)(self.cls), *args)
        raise GraphBreak("QB06", f"an attribute of {self.describe()} that is not there")

    def _slot_is_filled(self, tx: Capture, name: str, descriptor: Any) -> bool:
        """Whether the real object has a value in the slot (guarded when it has none)."""
        if _filled(descriptor, self.obj):
            return True
        if self.source is not None:
            text = f"slot {name!r} of {self.source} is empty"
            tx.guards.predicate(self.source, lambda obj: not _filled(descriptor, obj), text)
        return False

    def instance_attribute(self, tx: Capture, name: str) -> Value | None:
        """An attribute in the real object's ``__dict__``."""
        own = None if self.obj is None else own_dict(self.obj)
        if own is not None and name in own:
            return tx.read(own[name], self.source and Source("dict_attr", self.source, name))
        return None

    def missing_attribute(self, tx: Capture, name: str) -> Value:
        """``__getattr__``, or an AttributeError."""
        if find(tx, self.cls, "__getattr__")[1] is None:
            return self._no_attribute_at_all(tx, name)
        self._guard_missing(tx, name)
        return self._call_getattr(tx, name)

    def _answers_for(self, tx: Capture, error: ObservedError) -> bool:
        """Whether ``__getattr__`` is asked after an exception."""
        return issubclass(error.value.pytype, AttributeError) and find(tx, self.cls, "__getattr__")[1] is not None

    def _call_getattr(self, tx: Capture, name: str) -> Value:
        getter, owner = find(tx, self.cls, "__getattr__")
        if not isinstance(getter, types.FunctionType):
            raise GraphBreak("QB06", f"__getattr__ of {self.cls.__name__}")
        method = bind_attribute(tx, self, self.cls, "__getattr__", getter, owner)  # type: ignore[arg-type]
        return method.call(tx, [ConstantValue(name)], {}).realize()

    def _no_attribute_at_all(self, tx: Capture, name: str) -> Value:
        self._guard_missing(tx, name)
        raise self._no_attribute(tx, name)

    def _guard_missing(self, tx: Capture, name: str) -> None:
        guard_lookup(tx, self.cls, name)
        if self.source is not None and name not in self.attrs:
            tx.guards.no_instance_attr(self.source, name)

    def _no_attribute(self, tx: Capture, name: str) -> ObservedError:
        return tx.observed(no_attribute(full_name(self.cls), name))

    def setattr(self, tx: Capture, name: str, value: Value) -> None:
        setter, owner = find(tx, self.cls, "__setattr__")
        if isinstance(setter, types.FunctionType):
            bind_attribute(tx, self, self.cls, "__setattr__", setter, owner).call(  # type: ignore[arg-type]
                tx, [ConstantValue(name), value], {}
            )
            return
        if not isinstance(setter, types.WrapperDescriptorType):
            raise GraphBreak("QB06", f"__setattr__ of {self.cls.__name__}")
        self.store(tx, name, value)

    def store(self, tx: Capture, name: str, value: Value) -> None:
        """``object.__setattr__(self, name, value)``."""
        found, owner = lookup(self.cls, name)
        if isinstance(found, property) and type(found).__set__ is property.__set__:
            guard_found(tx, self.cls, name, found, owner)  # type: ignore[arg-type]
            if found.fset is None:
                tx.exact(found.__set__, _of_the_same_name(self.cls), None)
            if not isinstance(found.fset, types.FunctionType):
                raise GraphBreak("QB06", f"setting property {name!r} of {self.cls.__name__}")
            tx.function(found.fset, None).call(tx, [self, value], {})
            return
        if self._through_descriptor(tx, "__set__", name, [value]):
            return
        if name in ("__class__", "__dict__", "__weakref__"):
            raise GraphBreak("QB06", f"assignment to {name}")
        if not is_slot(found) and not self.cls.__dictoffset__:
            self._fail(tx, object.__setattr__, name, None)
        self.write(tx, name, value)

    def write(self, tx: Capture, name: str, value: Value) -> None:
        """Store into the instance's ``__dict__`` or slot."""
        again = self.attrs.get(name) is DELETED
        tx.side.write_attribute(self, name, again=again)
        if again:
            del self.attrs[name]  # a name that comes back is the last one
        self.attrs[name] = value

    def delattr(self, tx: Capture, name: str) -> None:
        deleter, owner = find(tx, self.cls, "__delattr__")
        if isinstance(deleter, types.FunctionType):
            bind_attribute(tx, self, self.cls, "__delattr__", deleter, owner).call(  # type: ignore[arg-type]
                tx, [ConstantValue(name)], {}
            )
            return
        if not isinstance(deleter, types.WrapperDescriptorType):
            raise GraphBreak("QB06", f"__delattr__ of {self.cls.__name__}")
        self.remove(tx, name)

    def remove(self, tx: Capture, name: str) -> None:
        """``object.__delattr__(self, name)``."""
        found, owner = lookup(self.cls, name)
        if isinstance(found, property) and type(found).__delete__ is property.__delete__:
            guard_found(tx, self.cls, name, found, owner)  # type: ignore[arg-type]
            if found.fdel is None:
                tx.exact(found.__delete__, _of_the_same_name(self.cls))
            if not isinstance(found.fdel, types.FunctionType):
                raise GraphBreak("QB06", f"deleting property {name!r} of {self.cls.__name__}")
            tx.function(found.fdel, None).call(tx, [self], {})
            return
        if self._through_descriptor(tx, "__delete__", name, []):
            return
        if name in ("__class__", "__dict__", "__weakref__"):
            raise GraphBreak("QB06", f"deletion of {name}")
        self.drop(tx, name)

    def drop(self, tx: Capture, name: str) -> None:
        """Delete from the instance's ``__dict__`` or slot."""
        written = self.attrs.get(name)
        existed = self._existed(tx, name)
        if written is DELETED or (written is None and not existed):
            self._fail(tx, object.__delattr__, name)
        if existed:
            tx.side.write_attribute(self, name)
            self.attrs[name] = DELETED
        else:
            tx.side.forget_attribute(self, name)
            del self.attrs[name]

    def _existed(self, tx: Capture, name: str) -> bool:
        """Whether the real object has the attribute itself before the region runs (guarded)."""
        if self.obj is None:
            return False
        found, _ = lookup(self.cls, name)
        if is_slot(found):
            filled = self._slot_is_filled(tx, name, found)
            if filled and self.source is not None:
                text = f"slot {name!r} of {self.source} is filled"
                tx.guards.predicate(self.source, lambda obj: _filled(found, obj), text)
            return filled
        own = own_dict(self.obj)
        existed = own is not None and name in own
        if self.source is not None:
            if existed:
                tx.guards.contains(Source("instance_dict", self.source), name, True)
            else:
                tx.guards.no_instance_attr(self.source, name)
        return existed

    def _through_descriptor(self, tx: Capture, method: str, name: str, args: list[Value]) -> bool:
        """Call a descriptor's ``__set__`` or ``__delete__``; False where the instance itself is written."""
        found, owner = lookup(self.cls, name)
        if owner is None or not is_data_descriptor(found) or is_slot(found):
            return False
        if isinstance(found, types.GetSetDescriptorType) and name in ("__dict__", "__weakref__", "__class__"):
            return False
        function, _ = lookup(type(found), method)
        if function is None:
            raise tx.observed(AttributeError(method))
        if not isinstance(function, types.FunctionType):
            raise GraphBreak("QB06", f"attribute {name!r} of {self.cls.__name__} through a descriptor")
        descriptor = tx.from_python(found, class_source(owner, name))
        tx.function(function, None).call(tx, [descriptor, self, *args], {})
        return True

    # --- protocols ----------------------------------------------------------------------------------------------

    def _has(self, tx: Capture, name: str) -> bool:
        return find(tx, self.cls, name)[1] not in (None, object)

    def _special(self, tx: Capture, name: str, args: list[Value]) -> Value:
        found, owner = find(tx, self.cls, name)
        if owner is None:
            if name not in _OPERATIONS:
                raise GraphBreak("QB06", f"{name} of {self.describe()}")
            type_error(tx, _OPERATIONS[name], self, *args)
        return bind_attribute(tx, self, self.cls, name, found, owner).call(tx, args, {}).realize()

    def call(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        found, owner = find(tx, self.cls, "__call__")
        if owner is None:
            raise tx.observed(TypeError(f"{full_name(self.cls)!r} object is not callable"))
        return bind_attribute(tx, self, self.cls, "__call__", found, owner).call(tx, args, kwargs)

    def truth(self, tx: Capture) -> bool:
        if self._has(tx, "__bool__"):
            answer = self._special(tx, "__bool__", [])
            if answer.pytype is not bool:
                raise GraphBreak("QB06", f"truth of {self.describe()}, whose __bool__ gives {display(answer)}")
            return answer.truth(tx)
        if self._has(tx, "__len__"):
            return self.length(tx).truth(tx)
        return True

    def length(self, tx: Capture) -> Value:
        from dynamo_capture.values.arith import compare

        result = self._special(tx, "__len__", [])
        if result.pytype is not int or not compare(tx, operator.ge, result, ConstantValue(0)).truth(tx):
            raise GraphBreak("QB06", f"len() of {self.describe()}, which gives {display(result)}")
        return result

    def get_iter(self, tx: Capture) -> Value:
        if self._has(tx, "__iter__"):
            iterator = self._special(tx, "__iter__", [])
            is_object = isinstance(iterator, ObjectValue)
            if not (iterator._has(tx, "__next__") if is_object else hasattr(iterator, "next")):  # type: ignore[attr-defined]
                raise GraphBreak("QB06", f"__iter__ of {self.describe()} gives {display(iterator)}")
            return iterator
        if self._has(tx, "__getitem__"):
            from dynamo_capture.values.iterators import IteratorValue

            return IteratorValue(self._by_index(tx))
        raise tx.observed(TypeError(f"{full_name(self.cls)!r} object is not iterable"))

    def _by_index(self, tx: Capture) -> Iterator[Value]:
        index = 0
        while True:
            try:
                item = self._special(tx, "__getitem__", [ConstantValue(index)])
            except ObservedError as error:
                if issubclass(error.value.pytype, IndexError):
                    return
                raise
            yield item
            index += 1

    def iterate(self, tx: Capture) -> Iterator[Value]:
        iterator = self.get_iter(tx)
        if iterator is self:
            while True:
                try:
                    item = self._special(tx, "__next__", [])
                except ObservedError as error:
                    if issubclass(error.value.pytype, StopIteration):
                        return
                    raise
                yield item
        yield from iterator.iterate(tx)

    def next(self, tx: Capture) -> Value | None:
        """``next(self)``; None at the end."""
        try:
            return self._special(tx, "__next__", [])
        except ObservedError as error:
            if issubclass(error.value.pytype, StopIteration):
                return None
            raise

    def unpack(self, tx: Capture) -> list[Value]:
        return list(self.iterate(tx))

    def getitem(self, tx: Capture, key: Value) -> Value:
        return self._special(tx, "__getitem__", [key])

    def setitem(self, tx: Capture, key: Value, value: Value) -> None:
        self._special(tx, "__setitem__", [key, value])

    def delitem(self, tx: Capture, key: Value) -> None:
        self._special(tx, "__delitem__", [key])

    def contains(self, tx: Capture, item: Value) -> bool:
        if self._has(tx, "__contains__"):
            return self._special(tx, "__contains__", [item]).truth(tx)
        if not self._has(tx, "__iter__") and not self._has(tx, "__getitem__"):
            type_error(tx, lambda container: None in container, self)
        return super().contains(tx, item)

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.getattr(tx, name).realize().call(tx, args, kwargs)

    def call_c_method(
        self, tx: Capture, name: str, descriptor: Any, args: list[Value], kwargs: dict[str, Value]
    ) -> Value:
        """A method that a C base of the class defines."""
        if isinstance(descriptor, types.BuiltinFunctionType):  # `__new__`, which is bound to no instance
            return tx.from_python(descriptor).realize().call(tx, args, kwargs)
        own = getattr(descriptor, "__objclass__", None) is not object
        if self.payload is not None and own and name not in ("__getattribute__", "__init_subclass__"):
            return self._inner_method(tx, name, args, kwargs)
        match name, args:
            case "__setattr__", [key, value]:
                self.store(tx, key.realize().const(), value)
                return ConstantValue(None)
            case "__delattr__", [key]:
                self.remove(tx, key.realize().const())
                return ConstantValue(None)
            case "__getattribute__", [key]:
                return self.plain_getattr(tx, key.realize().const(), hook=False)
            case "__init__", _ if not own:
                return ConstantValue(None)
            case "__init_subclass__", _ if not isinstance(self, ExceptionValue):
                return ConstantValue(None)
            case (("__eq__" | "__ne__"), [_]) if not own and not kwargs:
                return self._by_identity(tx, name, args)
            case "__hash__", [] if not own and not kwargs:
                return self._by_identity(tx, name, args)
            case (("__reduce_ex__" | "__reduce__"), _) if self._reduces_plainly():
                return self._reduce(tx)
            case _ if self.cls is random.Random and own:
                from dynamo_capture.values.drawn import draw_natively

                return draw_natively(tx, descriptor, self, args, kwargs)
        raise GraphBreak(_number(self.cls), f"the C method {name!r} of {self.cls.__module__}.{self.cls.__qualname__}")

    def _inner_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A method of the list, dict and so on inside an instance of a subclass."""
        from dynamo_capture.values.dicts import DictView
        from dynamo_capture.values.iterators import IteratorValue

        payload: Any = self.payload
        kind = payload.pytype
        if name in _MAKES_INSTANCES.get(kind, ()):
            raise GraphBreak("QB07", f"{kind.__name__}.{name} of {self.describe()}")
        if name == "__ror__" and isinstance(lookup(self.cls, "__iter__")[0], types.FunctionType):
            raise GraphBreak("QB07", f"{kind.__name__}.{name} of {self.describe()}")
        if kind in (collections.OrderedDict, collections.defaultdict) and name not in _ASKS_NO_METHOD:
            # Their C code calls methods of the subclass.
            if any(isinstance(lookup(self.cls, asked)[0], types.FunctionType) for asked in _ASKED_FOR):
                raise GraphBreak("QB07", f"{kind.__name__}.{name} of {self.describe()}")
        if name == "__getitem__" and isinstance(payload, DictValue) and len(args) == 1 and not kwargs:
            missing, owner = find(tx, self.cls, "__missing__")
            if isinstance(missing, types.FunctionType) and payload.find(tx, args[0]) is None:
                return bind_attribute(tx, self, self.cls, "__missing__", missing, owner).call(tx, args, {})  # type: ignore[arg-type]
        try:
            result = payload.call_method(tx, name, args, kwargs)
        except ObservedError:
            if isinstance(payload, ConstantValue):  # the error names the class
                raise GraphBreak("QB19", f"{kind.__name__}.{name} of {self.describe()}") from None
            raise
        if isinstance(result, IteratorValue):
            result.hold(self, kind)
        elif isinstance(result, DictView):
            result.holder = self
        if result is payload and kind is tuple:  # all of a tuple is itself; of a subclass's, a plain one
            return TupleValue(list(payload.items))
        return self if result is payload else result

    def _by_identity(self, tx: Capture, name: str, args: list[Value]) -> Value:
        """What ``object`` defines: equal to itself, different from what ``__eq__`` refuses, hashed by the address."""
        if name == "__hash__":
            real = self.real()
            pin(tx, self)
            return ConstantValue(object.__hash__(real))
        if name == "__eq__":
            return ConstantValue(True if identical(tx, self, args[0]) else NotImplemented)
        equal = self._special(tx, "__eq__", args)
        if isinstance(equal, ConstantValue) and equal.value is NotImplemented:
            return equal
        return ConstantValue(not equal.truth(tx))

    def compare_natively(self, tx: Capture, fn: Any, other: Value, found: Any) -> Value:
        """A comparison by a C method of the class: of what is inside an instance of a subclass of a container."""
        from dynamo_capture.values.arith import compare

        if self.payload is not None:
            inner = getattr(other, "payload", None) or other
            if isinstance(self.payload, ConstantValue):
                known = inner.is_const and type(inner) is ConstantValue
                method = getattr(type(self.payload.value), f"__{fn.__name__}__")
                return ConstantValue(method(self.payload.value, inner.const()) if known else NotImplemented)
            if isinstance(self.payload, DictValue) and fn not in (operator.eq, operator.ne):
                return ConstantValue(NotImplemented)
            if inner.pytype in _CONTAINERS and issubclass(inner.pytype, _base_container(self.payload)):
                return compare(tx, fn, self.payload, inner)
            return ConstantValue(NotImplemented)
        if found in (types.SimpleNamespace.__eq__, types.SimpleNamespace.__ne__):
            if not isinstance(other, ObjectValue) or not issubclass(other.cls, types.SimpleNamespace):
                return ConstantValue(NotImplemented)
            own = (side.plain_getattr(tx, "__dict__").realize() for side in (self, other))
            return compare(tx, fn, *own)
        if never_changes(self) and (never_changes(other) or type(other) is ConstantValue):
            pin(tx, self)
            pin(tx, other)
            return tx.from_python(tx.exact(fn, self.obj, existing(other)))
        raise GraphBreak("QB06", f"comparison of {self.describe()} by its C method")

    def _reduces_plainly(self) -> bool:
        """Whether copying or pickling is what ``object`` does: an empty instance and its ``__dict__``."""
        special = ("__getstate__", "__getnewargs__", "__getnewargs_ex__", "__slots__", "__reduce__")
        return self.payload is None and all(lookup(self.cls, name)[1] in (None, object) for name in special)

    def _reduce(self, tx: Capture) -> Value:
        state = self.getattr(tx, "__dict__").call_method(tx, "copy", [], {})
        make = tx.from_python(copyreg.__newobj__).realize()  # type: ignore[attr-defined]
        none = ConstantValue(None)
        return TupleValue([make, TupleValue([tx.from_python(self.cls)]), state, none, none])

    # --- rebuilding ---------------------------------------------------------------------------------------------

    def children(self) -> Iterator[Value]:
        yield from self.init_args
        if self.payload is not None:
            yield self.payload
        for value in self.attrs.values():
            if value is not DELETED:
                yield value

    def reconstruct(self, cg: CodeGen) -> None:
        if self.obj is not None:
            cg.load_const(self.obj)
            return
        # An empty instance; its attributes and contents follow as side effects.
        if isinstance(self.payload, TupleValue):
            cg.call_const(tuple.__new__, [ConstantValue(self.cls), TupleValue(list(self.payload.items))])
        else:
            cg.call_const(_c_new(self.cls), [ConstantValue(self.cls)])

    def describe(self) -> str:
        return f"an object of type {self.cls.__module__}.{self.cls.__qualname__}"


def _c_new(cls: type) -> Any:
    """The ``__new__`` below those that Python code defines: it makes an empty instance."""
    for base in cls.__mro__:
        new = base.__dict__.get("__new__")
        if new is not None and not isinstance(new, (staticmethod, types.FunctionType)):
            return new
    return object.__new__


#: Special methods and the operation that fails, by the types of its operands, where they are missing.
_OPERATIONS: dict[str, Any] = {
    "__getitem__": operator.getitem, "__setitem__": operator.setitem, "__delitem__": operator.delitem,
    "__len__": len, "__next__": next,
}  # fmt: skip


def _of_the_same_name(cls: type) -> Any:
    """An object that errors of properties, which look at nothing but a class's name, take for one of the class."""
    return type("", (), {"__qualname__": cls.__qualname__})()


class InstanceDictValue(DictValue):
    """``obj.__dict__``: reads and writes go to the object's attributes."""

    __slots__ = ("owner",)

    def __init__(self, tx: Capture, owner: ObjectValue) -> None:
        real = None if owner.obj is None else own_dict(owner.obj)
        if not owner.cls.__dictoffset__:
            raise tx.observed(no_attribute(full_name(owner.cls), "__dict__"))
        source = owner.source and Source("instance_dict", owner.source)
        super().__init__(dict, source, real)
        self.owner = owner

    def const(self) -> Any:
        if not self._whole:
            return super().const()  # which says why not
        written = self._written()
        if any(value is UNKNOWN for _, value in written):
            raise GraphBreak("QB06", f"__dict__ of {self.owner.describe()}, after a call that may change it")
        return {name: value.realize().const() for name, value in written if value is not DELETED}

    def whole(self, tx: Capture) -> dict[Any, tuple[Value, Value]]:
        entries = super().whole(tx)
        for name, value in self._written():
            if value is UNKNOWN:
                raise GraphBreak("QB06", f"__dict__ of {self.owner.describe()}, after a call that may change it")
            if value is DELETED or tx.side.came_back(self.owner, name):
                entries.pop(name, None)
            if value is not DELETED:
                entries[name] = (ConstantValue(name), value)
        return entries

    def _written(self) -> list[tuple[str, Value]]:
        """What the region has written to the ``__dict__`` (not to slots)."""
        return [item for item in self.owner.attrs.items() if not is_slot(lookup(self.owner.cls, item[0])[0])]

    def find(self, tx: Capture, key: Value) -> Value | None:
        name = key.realize().const()
        written = self.owner.attrs.get(name)
        if written is not None and not is_slot(lookup(self.owner.cls, name)[0]):
            return self.owner._own_attribute(tx, name)
        return super().find(tx, key)

    def _count(self, tx: Capture) -> int:
        return len(self.whole(tx)) if self.owner.attrs else super()._count(tx)

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name in ("clear", "popitem", "__ior__"):
            raise GraphBreak("QB06", f"{name}() of an object's __dict__")
        return super().call_method(tx, name, args, kwargs)

    def setitem(self, tx: Capture, key: Value, value: Value) -> None:
        name = key.realize().const()
        if type(name) is not str or is_slot(lookup(self.owner.cls, name)[0]):
            raise GraphBreak("QB06", f"the entry {name!r} of an object's __dict__")
        self.owner.write(tx, name, value)

    def delitem(self, tx: Capture, key: Value) -> None:
        name = key.realize().const()
        if self.find(tx, key) is None:
            raise tx.observed(KeyError(name))
        self.owner.drop(tx, name)

    def _pop(self, tx: Capture, key: Value) -> Value | None:
        found = self.find(tx, key)
        if found is not None:
            self.delitem(tx, key)
        return found

    def children(self) -> Iterator[Value]:
        yield self.owner  # which is filled where it is new

    def reconstruct(self, cg: CodeGen) -> None:
        cg.load(self.owner)
        cg.load_attr("__dict__")


class TracebackValue(Value):
    """The traceback of an exception that the region has caught; it is the program's own frames that it would show."""

    __slots__ = ()

    @property
    def pytype(self) -> type:
        return types.TracebackType

    def truth(self, tx: Capture) -> bool:
        return True

    def key(self, tx: Capture) -> Any:
        raise GraphBreak("QB06", "a traceback", leaves="callers")

    def getattr(self, tx: Capture, name: str) -> Value:
        raise GraphBreak("QB06", f"{name!r} of a traceback", leaves="callers")

    def children(self) -> Iterator[Value]:
        raise GraphBreak("QB10", "a traceback")

    def describe(self) -> str:
        return "a traceback"


class ExceptionValue(ObjectValue):
    """An exception instance.

    Attributes:
        raised: the region has raised it.
        context: what was handled when it was raised; None for what a caller of the region handles, if anything.
        trail: where it has been raised and passed on: (code, globals, line), innermost first.
    """

    __slots__ = ("args", "context", "raised", "trail")

    def __init__(self, cls: type, args: list[Value], source: Any = None, obj: Any = None) -> None:
        super().__init__(cls, obj, source)
        self.args = args
        self.raised = False
        self.context: Value | None = None
        self.trail: list[tuple[types.CodeType, dict[str, Any], int]] = []

    def is_raised(self, handled: Value | None) -> None:
        """The region raises it where ``handled`` is being handled."""
        if handled is not self and self.obj is None:
            self.raised = True
            self.context = handled
            seen, error = {id(self)}, handled
            while isinstance(error, ExceptionValue) and error.context is not None and id(error) not in seen:
                seen.add(id(error))
                if error.context is self:
                    error.context, error.raised = _NOTHING, True
                error = error.context

    def getattr(self, tx: Capture, name: str) -> Value:
        if name in self.attrs:
            return super().getattr(tx, name)
        if name == "args":
            return TupleValue(list(self.args))
        if self.obj is None and name in ("__cause__", "__context__", "__traceback__", "__suppress_context__"):
            if self.raised and name == "__traceback__":
                # Libraries hand it on; the program may look at the variables of its frames.
                leaves = None if tx.frames[-1].decoded.in_library else "callers"
                raise GraphBreak("QB06", f"{name} of an exception that was raised", leaves=leaves)
            if self.raised and name == "__context__":
                if self.context is None:
                    raise GraphBreak("QB06", "__context__ of an exception: what a caller may be handling")
                return self.context
            return ConstantValue("__cause__" in self.attrs if name == "__suppress_context__" else None)
        if name == "with_traceback":
            from dynamo_capture.values.callables import HandlerValue

            return HandlerValue(self._with_traceback, name)
        if name == "value" and issubclass(self.cls, StopIteration):
            return self.args[0] if self.args else ConstantValue(None)
        if self.obj is None and isinstance(lookup(self.cls, name)[0], _DATA_DESCRIPTORS) and name != "__dict__":
            # What C code keeps in it; of an error of Python's own that is more than a rebuilt one has.
            leaves = "callers" if issubclass(self.cls, (AttributeError, NameError, ImportError)) else None
            raise GraphBreak("QB06", f"attribute {name!r} of a {self.cls.__name__}", leaves=leaves)
        return super().getattr(tx, name)

    def _with_traceback(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if len(args) != 1 or kwargs:
            raise GraphBreak("QB07", "with_traceback()")
        self.store(tx, "__traceback__", args[0])
        return self

    def store(self, tx: Capture, name: str, value: Value) -> None:
        value = value.realize()
        is_none = isinstance(value, ConstantValue) and value.value is None
        if self.obj is None and name == "__traceback__" and (is_none or isinstance(value, TracebackValue)):
            # Nobody can tell: it is not read here, and the exception does not live on.
            self.raised = self.raised or not is_none
            self.trail = [] if is_none else self.trail
        elif self.obj is None and name == "__cause__" and (is_none or isinstance(value, ExceptionValue)):
            self.write(tx, name, value)
        elif self.obj is None and name == "args":
            tx.side.epoch += 1
            self.args = value.unpack(tx)
        else:
            super().store(tx, name, value)

    def _add_note(self, tx: Capture, note: Value) -> None:
        note = note.realize()
        if note.pytype is not str:
            raise GraphBreak("QB19", "add_note() of what is no text")
        notes = self.attrs.get("__notes__")
        if notes is None:
            notes = self.attrs["__notes__"] = ListValue([])
        notes.realize().call_method(tx, "append", [note], {})

    def _has(self, tx: Capture, name: str) -> bool:
        return find(tx, self.cls, name)[1] not in (None, object, BaseException)

    def call_c_method(
        self, tx: Capture, name: str, descriptor: Any, args: list[Value], kwargs: dict[str, Value]
    ) -> Value:
        if name == "__init__" and not kwargs and self.obj is None:
            self.args = list(args)
            return ConstantValue(None)
        if name == "add_note" and len(args) == 1 and self.obj is None:
            self._add_note(tx, args[0])
            return ConstantValue(None)
        if name in ("__str__", "__repr__") and all(a.realize().is_const for a in self.args):
            base = next(c for c in self.cls.__mro__ if c.__module__ == "builtins")  # KeyError's str() differs
            real = base(*[a.realize().const() for a in self.args])
            text = str(real) if name == "__str__" else self.cls.__name__ + repr(real).removeprefix(base.__name__)
            return ConstantValue(text)
        return super().call_c_method(tx, name, descriptor, args, kwargs)

    def children(self) -> Iterator[Value]:
        yield from self.args
        if self.context is not None:
            yield self.context
        yield from super().children()

    def emit_raised(self, cg: CodeGen) -> None:
        """Give the rebuilt exception the traceback and context that it has in the program."""
        if self.raised:
            args: list[Value] = [self, ConstantValue(Trail(self.trail)), *([self.context] if self.context else ())]
            cg.call_const(as_raised, args)
            cg.pop()

    def reconstruct(self, cg: CodeGen) -> None:
        if isinstance(lookup(self.cls, "__init__")[0], types.FunctionType):
            cg.call_const(_c_new(self.cls), [ConstantValue(self.cls), *self.args])
        else:
            cg.call_const(self.cls, self.args)  # which fills what C code keeps in it

    def text(self) -> str:
        """The exception as a traceback would show it."""
        try:
            shown = ", ".join(str(a.realize().const()) for a in self.args)
        except (GraphBreak, ObservedError):
            shown = "..."
        return f"{self.cls.__name__}: {shown}" if shown else self.cls.__name__


_NOTHING = ConstantValue(None)
