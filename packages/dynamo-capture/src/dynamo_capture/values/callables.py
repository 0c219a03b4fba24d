"""Builtin functions, C methods, classes and Python modules as values."""

from __future__ import annotations

import enum
import functools
import operator
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.rules import is_library_class
from dynamo_capture.sources import Source
from dynamo_capture.values.base import Value
from dynamo_capture.values.classes import (
    Held,
    bind_attribute,
    class_source,
    find,
    guard_found,
    guard_lookup,
    is_data,
    lookup,
    may_be_set,
    set_for_now,
)
from dynamo_capture.values.constant import CONST_TYPES, ConstantValue
from dynamo_capture.values.dicts import ProxyValue
from dynamo_capture.values.enums import iterate_members, member_by_name, members
from dynamo_capture.wrappers import is_wrapper

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = [
    "BuiltinValue", "CMethodValue", "ClassValue", "DisabledValue", "HandlerValue", "MethodHandlerValue",
    "PyModuleValue",
]  # fmt: skip


_SLOTS = (types.MethodDescriptorType, types.WrapperDescriptorType)


class _FixedValue(Value):
    """An object that is guarded by identity and never changes as far as capture sees."""

    __slots__ = ("obj",)

    def __init__(self, obj: Any, source: Any = None) -> None:
        self.obj = obj
        self.source = source

    @property
    def pytype(self) -> type:
        return type(self.obj)

    @property
    def is_const(self) -> bool:
        return True

    def const(self) -> Any:
        return self.obj

    def real(self) -> Any:
        return self.obj

    def key(self, tx: Capture) -> Any:
        return self.obj

    def truth(self, tx: Capture) -> bool:
        return True

    def reconstruct(self, cg: CodeGen) -> None:
        cg.load_const(self.obj)


_BOUND = (types.BuiltinMethodType, types.MethodWrapperType)


class BuiltinValue(_FixedValue):
    """A function implemented in C, or a torch function that is an operator of the graph."""

    __slots__ = ()

    def call(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return tx.call_builtin(self.obj, args, kwargs)

    def getattr(self, tx: Capture, name: str) -> Value:
        if name == "__call__":
            return self
        if name == "__get__" and isinstance(self.obj, _SLOTS):
            return MethodHandlerValue(self._bind, name, self)
        found = tx.exact(getattr, self.obj, name)
        if getattr(found, "__self__", None) is self.obj and isinstance(found, _BOUND):
            return self._method(name, found)
        return tx.from_python(found, self.source and self.source.attr(name))

    def _method(self, name: str, found: Any) -> Value:
        """A method of the function itself: of a ufunc of NumPy, ``np.add.outer``."""
        from dynamo_capture.values.made_arrays import call_numpy

        if type(self.obj).__name__ != "ufunc" or name not in ("reduce", "accumulate", "outer", "reduceat", "at"):
            raise GraphBreak("QB03", f"the method {name!r} of {self.describe()}")
        return HandlerValue(lambda tx, args, kwargs: call_numpy(tx, found, args, kwargs), name)

    def _bind(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """``object.__setattr__.__get__(instance)``, by which attrs sets the fields of frozen instances."""
        owner = args[0].realize() if args else None
        if owner is None or len(args) > 2 or kwargs or not issubclass(owner.pytype, self.obj.__objclass__):
            raise GraphBreak("QB03", f"{self.describe()}.__get__ with arguments that it does not take")
        if isinstance(owner, ConstantValue) and owner.value is None:
            raise GraphBreak("QB03", f"{self.describe()}.__get__ of None")
        return _BoundSlot(owner, self.obj, self.obj.__name__)

    def describe(self) -> str:
        name = getattr(self.obj, "__qualname__", None) or getattr(self.obj, "__name__", None) or repr(self.obj)
        module = getattr(self.obj, "__module__", None)
        return f"the builtin function {module + '.' if module else ''}{name}"


class HandlerValue(Value):
    """A callable that exists only during capture."""

    __slots__ = ("handler", "name")

    def __init__(self, handler: Callable[[Any, list[Value], dict[str, Value]], Value], name: str) -> None:
        self.source = None
        self.handler = handler
        self.name = name

    @property
    def pytype(self) -> type:
        return types.BuiltinMethodType

    def call(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.handler(tx, args, kwargs)

    def truth(self, tx: Capture) -> bool:
        return True

    def describe(self) -> str:
        return f"the method {self.name!r}"


class DisabledValue(HandlerValue):
    """A function under ``disable()``, which outside of capture is itself."""

    __slots__ = ("obj",)

    def __init__(
        self, handler: Callable[[Any, list[Value], dict[str, Value]], Value], name: str, obj: Any
    ) -> None:
        super().__init__(handler, name)
        self.obj = obj

    def reconstruct(self, cg: CodeGen) -> None:
        cg.load_const(self.obj)

    def describe(self) -> str:
        return "a function under disable()"


class MethodHandlerValue(HandlerValue):
    """A bound C method whose meaning capture knows; outside of it a look at its object gives it."""

    __slots__ = ("owner",)

    def __init__(
        self, handler: Callable[[Any, list[Value], dict[str, Value]], Value], name: str, owner: Value
    ) -> None:
        super().__init__(handler, name)
        self.owner = owner

    def children(self) -> Iterator[Value]:
        yield self.owner

    def reconstruct(self, cg: CodeGen) -> None:
        cg.load(self.owner)
        cg.load_attr(self.name)


class CMethodValue(Value):
    """A C method found on a class, bound to a value: ``dict.__setitem__`` of a subclass's instance and the like."""

    __slots__ = ("descriptor", "name", "owner")

    def __init__(self, owner: Value, descriptor: Any, name: str) -> None:
        self.source = None
        self.owner = owner
        self.descriptor = descriptor
        self.name = name

    @property
    def pytype(self) -> type:
        return types.BuiltinMethodType

    def truth(self, tx: Capture) -> bool:
        return True

    def call(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.owner.realize().call_c_method(tx, self.name, self.descriptor, args, kwargs)  # type: ignore[attr-defined]

    def children(self) -> Iterator[Value]:
        yield self.owner

    def reconstruct(self, cg: CodeGen) -> None:
        # Not by name: a class below may override what super() found.
        cg.call_const(_bind, [ConstantValue(self.descriptor), self.owner])

    def describe(self) -> str:
        return f"the C method {self.name!r} of {self.owner.describe()}"


class _BoundSlot(CMethodValue):
    """A C method that a program has bound itself, of an object of any class."""

    __slots__ = ()

    def call(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return tx.call_builtin(self.descriptor, [self.owner, *args], kwargs)


def _bind(descriptor: Any, owner: Any) -> Any:
    """Runs in the emitted code."""
    return descriptor.__get__(owner, type(owner)) if hasattr(descriptor, "__get__") else descriptor


class PyModuleValue(_FixedValue):
    """A Python module such as ``torch`` or ``math``."""

    __slots__ = ()

    def getattr(self, tx: Capture, name: str) -> Value:
        module = self.obj
        changed = tx.side.global_value(module.__dict__, name)
        if changed is not None:
            from dynamo_capture.values.objects import DELETED

            if changed is DELETED:
                raise GraphBreak("QB06", f"{name!r} of module {module.__name__}, deleted here")
            return changed
        written: Any = tx.changed(module.__dict__)
        if written is not None and name not in vars(types.ModuleType):  # by way of `module.__dict__`
            entries = {key.realize().const(): value for key, value in written.whole(tx).values()}
            if name not in entries:
                raise GraphBreak("QB06", f"{name!r} of module {module.__name__}, whose dictionary is changed here")
            return entries[name]
        if not hasattr(module, name):
            self._guard_missing(tx, name)
        found = tx.exact(getattr, module, name)
        computed = hasattr(type(module), name) or name not in vars(module)
        if type(module) is not types.ModuleType and computed and type(found) in CONST_TYPES:
            # A setting that is computed when it is read, as those of torch.backends and of torch._dynamo.config are.
            from dynamo_capture.values.torch_calls import is_set_here

            getter = getattr(vars(type(module)).get(name), "getter", None)
            if module.__name__.startswith("torch.backends") and is_set_here(tx, getter, []):
                return tx.from_python(found)
            tx.guards.state(functools.partial(getattr, module, name), found, f"{module.__name__}.{name}")
        value = tx.from_python(found, tx.module_attribute_source(module, name, self.source))
        if tx.later is not None:
            tx.later.of_module(module, name, value)
        return value

    def _guard_missing(self, tx: Capture, name: str) -> None:
        """The module does not come to have an attribute of the name."""
        source = self.source or Source("constant", None, (self.obj,))
        if type(self.obj) is types.ModuleType:
            for absent in (name, "__getattr__"):
                if absent not in self.obj.__dict__:
                    tx.guards.no_instance_attr(source, absent)
        if type(self.obj) is not types.ModuleType or "__getattr__" in self.obj.__dict__:
            tx.guards.has_attr(source, name, False)

    def setattr(self, tx: Capture, name: str, value: Value) -> None:
        raise GraphBreak("QB06", f"setting {name!r} of module {self.obj.__name__}")

    def describe(self) -> str:
        return f"the module {self.obj.__name__}"


def _plain(value: Value) -> Any:
    """What a subscript of a class is in Python, or None where it is no constant, no type, no list or tuple of them."""
    from dynamo_capture.values.containers import ListValue, TupleValue

    value = value.realize()
    if value.is_const:
        return value.const()
    if value.pytype.__module__ in ("types", "typing", "collections.abc"):
        return value.real()  # int | str, Callable[[int], str]
    if not isinstance(value, (TupleValue, ListValue)):
        return None
    items = [_plain(item) for item in value.items]
    return None if None in items else tuple(items) if isinstance(value, TupleValue) else items


class ClassValue(_FixedValue):
    """A class."""

    __slots__ = ()

    def key(self, tx: Capture) -> Any:
        if id(self.obj) in tx.made_classes:  # its hash is another in each call, by which sets are ordered
            raise GraphBreak("QB15", f"the class {self.obj.__qualname__}, which is made here, as a key")
        meta = type(self.obj)
        if lookup(meta, "__hash__")[1] is not object or lookup(meta, "__eq__")[1] is not object:
            raise GraphBreak("QB06", f"the class {self.obj.__name__} as a key, whose metaclass compares in its own way")
        return self.obj

    def getattr(self, tx: Capture, name: str) -> Value:
        cls = self.obj
        if name == "__dict__" and id(cls) in tx.made_classes:
            raise GraphBreak("QB15", f"the namespace of {cls.__qualname__}, which is made here")
        if name == "__dict__":
            return self._namespace(tx)
        if name in ("__name__", "__qualname__", "__module__", "__doc__"):
            source = None if is_library_class(cls) else Source("attr", Source("constant", None, (cls,)), name)
            return tx.from_python(getattr(cls, name), source)
        if name in ("__mro__", "__bases__"):
            return tx.from_python(getattr(cls, name))
        if name == "__class__":
            return tx.from_python(type(cls))
        if isinstance(cls, enum.EnumMeta):
            if name == "__members__":
                return ProxyValue(members(tx, cls), None)
            if (member := member_by_name(tx, cls, name)) is not None:
                return member
        found, owner = lookup(cls, name)
        if owner is not None:
            return self._own_attribute(tx, name, found, owner)
        guard_lookup(tx, cls, name)
        meta_found, meta_owner = find(tx, type(cls), name)
        if meta_owner is not None:
            if meta_owner in (type, object):
                value = tx.exact(getattr, cls, name)  # a class need not have __abstractmethods__
                return BuiltinValue(value) if callable(value) else tx.from_python(value)
            return bind_attribute(tx, self, type(cls), name, meta_found, meta_owner)
        asked, owner = find(tx, type(cls), "__getattr__")
        if isinstance(asked, types.FunctionType) and owner is not None and not isinstance(cls, enum.EnumMeta):
            return bind_attribute(tx, self, type(cls), "__getattr__", asked, owner).call(tx, [ConstantValue(name)], {})
        return tx.from_python(tx.exact(getattr, cls, name))

    def _namespace(self, tx: Capture) -> Value:
        """``cls.__dict__``, which is ``type``'s descriptor's, whatever the class has of that name."""
        cls = self.obj
        if tx.side.is_set_on(cls):
            raise GraphBreak("QB06", f"the namespace of {cls.__qualname__}, whose attributes are set here")
        tx.namespaces.add(id(cls))
        return tx.from_python(cls.__dict__, Source("attr", Source("constant", None, (cls,)), "__dict__"))

    def _own_attribute(self, tx: Capture, name: str, found: Any, owner: type) -> Value:
        from dynamo_capture.values.functions import MethodValue

        guard_found(tx, self.obj, name, found, owner)
        if type(found) is Held:
            return found.value  # type: ignore[no-any-return]
        if is_wrapper(found):  # which says that it is a function
            return tx.from_python(found, class_source(owner, name))
        if isinstance(found, types.FunctionType):
            return tx.function(found, class_source(owner, name))
        if isinstance(found, staticmethod):
            return tx.from_python(found.__func__)
        if isinstance(found, classmethod) and isinstance(found.__func__, types.FunctionType):
            return MethodValue(self, tx.function(found.__func__, None))
        if isinstance(found, property):
            return tx.from_python(found)
        get, getter = find(tx, type(found), "__get__")
        if isinstance(get, types.FunctionType) and not is_library_class(type(found)):
            descriptor = tx.from_python(found, class_source(owner, name))
            called = tx.function(get, class_source(getter, "__get__"))  # type: ignore[arg-type]
            return called.call(tx, [descriptor, ConstantValue(None), self], {})
        value = getattr(self.obj, name)
        if isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)):
            return BuiltinValue(value)
        return tx.from_python(value, class_source(owner, name))

    def setattr(self, tx: Capture, name: str, value: Value) -> None:
        seen_whole = id(self.obj) in tx.made_classes or id(self.obj) in tx.namespaces
        if seen_whole or not may_be_set(self.obj, name) or not is_data(value.realize().pytype):
            raise GraphBreak("QB06", f"setting attribute {name!r} of the class {self.obj.__name__}")
        tx.side.set_on(self, self.obj, name, value)
        set_for_now(self.obj, name, value)

    def call(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return tx.instantiate(self.obj, args, kwargs)

    def iterate(self, tx: Capture) -> Iterator[Value]:
        if isinstance(self.obj, enum.EnumMeta):
            return iterate_members(tx, self.obj)
        raise GraphBreak("QB06", f"iteration over the class {self.obj.__name__}")

    def getitem(self, tx: Capture, key: Value) -> Value:
        on_meta, _ = find(tx, type(self.obj), "__getitem__")
        on_class, owner = find(tx, self.obj, "__class_getitem__")
        if isinstance(self.obj, enum.EnumMeta) and is_library_class(type(self.obj)):
            return members(tx, self.obj).getitem(tx, key)  # type: ignore[no-any-return]
        if isinstance(on_meta, types.FunctionType):
            return tx.function(on_meta, None).call(tx, [self, key], {})
        if owner is not None and isinstance(on_class, classmethod) and not is_library_class(owner):
            return self.getattr(tx, "__class_getitem__").call(tx, [key], {})
        if (plain := _plain(key)) is not None:
            return tx.from_python(tx.exact(operator.getitem, self.obj, plain))  # list[int], Callable[[int], str]
        raise GraphBreak("QB06", f"subscript of the class {self.obj.__name__}")

    def length(self, tx: Capture) -> Value:
        question, owner = find(tx, type(self.obj), "__len__")
        if isinstance(question, types.FunctionType):
            return tx.function(question, class_source(owner, "__len__")).call(tx, [self], {})  # type: ignore[arg-type]
        raise GraphBreak("QB06", f"len() of the class {self.obj.__name__}")

    def setitem(self, tx: Capture, key: Value, value: Value) -> None:
        raise GraphBreak("QB06", f"an item of the class {self.obj.__name__} is set")

    def delitem(self, tx: Capture, key: Value) -> None:
        raise GraphBreak("QB06", f"an item of the class {self.obj.__name__} is deleted")

    def contains(self, tx: Capture, item: Value) -> bool:
        question, owner = find(tx, type(self.obj), "__contains__")
        if isinstance(question, types.FunctionType):
            return tx.function(question, class_source(owner, "__contains__")).call(tx, [self, item], {}).truth(tx)  # type: ignore[arg-type]
        raise GraphBreak("QB06", f"membership test on the class {self.obj.__name__}")

    def call_c_method(
        self, tx: Capture, name: str, descriptor: Any, args: list[Value], kwargs: dict[str, Value]
    ) -> Value:
        """A method of ``type``, or ``super().__new__(cls)`` and the like."""
        if name == "__new__":
            from dynamo_capture.values.construct import empty_instance

            if kwargs or (descriptor is object.__new__ and len(args) != 1):
                raise GraphBreak("QB03", f"{self.describe()}.__new__ with more than the class")
            return empty_instance(tx, args[0].realize().const(), args[1:])
        if name == "__init_subclass__":
            return ConstantValue(None)
        if name == "__call__" and descriptor is type.__call__ and self.obj is not type:
            from dynamo_capture.values.construct import user_instance

            return user_instance(tx, self.obj, args, kwargs)
        raise GraphBreak("QB03", f"the C method {name!r} of {self.describe()}")

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__contains__":
            return ConstantValue(self.contains(tx, args[0].realize()))
        return super().call_method(tx, name, args, kwargs)

    def describe(self) -> str:
        return f"the class {self.obj.__module__}.{self.obj.__qualname__}"
