"""Dictionaries, their views, and ``types.MappingProxyType``."""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture import _native
from dynamo_capture.breaks import GraphBreak
from dynamo_capture.sources import Source
from dynamo_capture.values.base import IdentityKey, LazyValue, Value
from dynamo_capture.values.classes import find
from dynamo_capture.values.compare import equals
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import TupleValue, key_error, method_of_container
from dynamo_capture.values.identity import is_real_key, keyed, pin, source_of_existing
from dynamo_capture.values.iterators import NativeWalk
from dynamo_capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = ["DictValue", "DictView", "OwnAttributes", "ProxyValue", "each_pair", "merged", "pairs_of"]

_MISSING = object()
_NO_ATTRIBUTES: dict[str, Value] = {}


def _place(kind: type) -> str | None:
    """How the error of an unhashable key calls it where a dict of that class stores or drops one."""
    return None if issubclass(kind, collections.OrderedDict) else "dict key"


class DictValue(Value):
    """A dict, OrderedDict or defaultdict.

    ``entries`` maps a key's stand-in to (key, value). An existing dict (``obj``) is read by key, with a guard per
    key, until something needs it whole: then its keys are guarded and all entries are taken over. ``attrs`` are the
    attributes that the region has set on an OrderedDict that it has made.
    """

    __slots__ = ("_places", "_whole", "attrs", "cls", "default_factory", "entries", "obj")

    mutable = True

    def __init__(self, cls: type = dict, source: Any = None, obj: Any = None, default_factory: Any = None) -> None:
        self.source = source
        self.cls = cls
        self.obj = obj
        self.entries: dict[Any, tuple[Value, Value]] = _new_entries(cls)
        self._whole = obj is None
        self._places: dict[int, int] | None = None  # of the existing keys, by identity
        self.default_factory: Value | None = default_factory
        self.attrs: dict[str, Value] = _NO_ATTRIBUTES

    @classmethod
    def of(cls, tx: Capture, pairs: Iterable[tuple[Value, Value]], kind: type = dict) -> DictValue:
        """A new dict."""
        result = cls(kind)
        place = _place(kind)
        for key, value in pairs:
            stand_in = keyed(tx, key, place)
            known = result.entries.get(stand_in)
            result.entries[stand_in] = (known[0] if known else key, value)
        return result

    @classmethod
    def named(cls, values: Mapping[str, Value]) -> DictValue:
        """A new dict whose keys are these names."""
        result = cls()
        result.entries = {name: (ConstantValue(name), value) for name, value in values.items()}
        return result

    @property
    def pytype(self) -> type:
        return self.cls

    def const(self) -> Any:
        if not self._whole:
            raise GraphBreak("QB06", "the contents of a dict as a constant")
        plain = {k.realize().const(): v.realize().const() for k, v in self.entries.values()}
        if self.cls is collections.defaultdict:
            return self.cls(None if self.default_factory is None else self.default_factory.const(), plain)
        return plain if self.cls is dict else self.cls(plain)

    def real(self) -> Any:
        return self.obj if self.obj is not None else self.const()

    def key(self, tx: Capture) -> Any:
        tx.exact(hash, collections.defaultdict() if self.cls is collections.defaultdict else _new_entries(self.cls))

    def _take_entry(self, tx: Capture, key: Any) -> tuple[Value, Value]:
        source = self.source
        value = tx.lazy(dict.__getitem__(self.obj, key), source and source.item(key))
        return tx.from_python(key), value  # the guard of the keys says that it is this one

    def whole(self, tx: Capture) -> dict[Any, tuple[Value, Value]]:
        """All entries; an existing dict's keys are guarded."""
        if not self._whole:
            is_ordered = issubclass(self.cls, collections.OrderedDict)
            keys = _ordered_keys(self.obj) if is_ordered else tuple(dict.keys(self.obj))
            if self.source is not None:
                tx.guards.dict_keys(self.source, list(dict.keys(self.obj)))
                if is_ordered and len(keys) > 1:  # which has an order of its own
                    tx.guards.equals(Source("call", self.source, _ordered_keys), keys)
            taken = self.entries
            self.entries = _new_entries(self.cls)
            for real_key in keys:
                key, value = self._take_entry(tx, real_key)
                stand_in = key.key(tx)
                self.entries[stand_in] = taken.get(stand_in) or (key, value)
            self._whole = True
        return self.entries

    def find(self, tx: Capture, key: Value) -> Value | None:
        """The value under ``key``, or None."""
        stand_in = keyed(tx, key, "dict key")
        entry = self.entries.get(stand_in)
        if entry is not None:
            return entry[1]
        if self._whole:
            return None
        if isinstance(stand_in, IdentityKey):
            return None  # made in the region
        if not is_real_key(stand_in):
            entry = self.whole(tx).get(stand_in)
            return None if entry is None else entry[1]
        real_key = stand_in
        source = self.source
        given = source_of_existing(key) if source is not None and isinstance(real_key, torch.Tensor) else None
        if source is not None and given is not None:
            if not self.obj:
                tx.guards.length(source, 0)
                return None
            found = self._under_tensor(tx, source, key, given, real_key)
            if found is not None:
                return found
        pin(tx, key)
        value = dict.get(self.obj, real_key, _MISSING)
        if source is not None:
            tx.guards.contains(source, real_key, value is not _MISSING)
        if value is _MISSING:
            return None
        lazy = tx.lazy(value, source and source.item(real_key))
        self.entries[stand_in] = (key, lazy)
        return lazy

    def _under_tensor(
        self, tx: Capture, source: Source, key: Value, given: Source, tensor: torch.Tensor
    ) -> Value | None:
        """What an existing dict has under a tensor, as an optimizer's state does, by the place of the entry: whose key
        is the tensor that the program asks for, whichever that is. The entries of another optimizer serve as well."""
        if self._places is None:
            self._places = {id(each): place for place, each in enumerate(dict.keys(self.obj))}
        place = self._places.get(id(tensor))
        entry = None if place is None else _native.dict_entry(self.obj, place)
        if place is None or entry is None or entry[0] is not tensor:  # of a dict that things were taken out of
            return None
        tx.guards.same(Source("dict_key", source, place), given)
        lazy = tx.lazy(entry[1], Source("dict_value", source, place))
        self.entries[tensor] = (key, lazy)
        return lazy

    def truth(self, tx: Capture) -> bool:
        return bool(self._count(tx))

    def _count(self, tx: Capture) -> int:
        if self._whole:
            return len(self.entries)
        if self.source is not None:
            tx.guards.length(self.source, len(self.obj))
        return len(self.obj)

    def length(self, tx: Capture) -> Value:
        return ConstantValue(self._count(tx))

    def contains(self, tx: Capture, item: Value) -> bool:
        return self.find(tx, item) is not None

    def iterate(self, tx: Capture) -> Iterator[Value]:
        return iter([key for key, _ in self.whole(tx).values()])

    def get_iter(self, tx: Capture) -> Value:
        return self.walk(tx, "keys", self, iter)

    def walk(self, tx: Capture, kind: str, owner: Value, begin: Any) -> Value:
        """The iterator over keys, values or items, which sees what is written meanwhile."""
        entries = self.whole(tx)

        def item(stand_in: Any) -> Value:
            key, value = entries[stand_in]
            return key if kind == "keys" else value if kind == "values" else TupleValue([key, value])

        return NativeWalk(entries, item, self, owner, begin, type(begin(getattr(_new_entries(self.cls), kind)())))

    def getitem(self, tx: Capture, key: Value) -> Value:
        found = self.find(tx, key)
        if found is not None:
            return found
        if self.default_factory is not None and self.cls is collections.defaultdict:
            value = self.default_factory.call(tx, [], {})
            self.setitem(tx, key, value)
            return value
        raise key_error(tx, key)

    def setitem(self, tx: Capture, key: Value, value: Value) -> None:
        key = key.realize()
        if self._has_tensor(tx, key, value):
            return
        stand_in = keyed(tx, key, _place(self.cls))
        entries = self.whole(tx)
        tx.side.mutate(self)
        old = entries.get(stand_in)
        entries[stand_in] = (old[0] if old else key, value)

    def _has_tensor(self, tx: Capture, key: Value, value: Value) -> bool:
        """Whether a tensor that exists outside stands under the key already, as an optimizer stores its buffers."""
        tensor = value.realized if isinstance(value, LazyValue) else value
        if self.source is None or not isinstance(tensor, TensorValue) or tensor.source is None:
            return False
        found = self.find(tx, key)
        return found is not None and found.realize() is tensor

    def delitem(self, tx: Capture, key: Value) -> None:
        if self._pop(tx, key) is None:
            raise key_error(tx, key)

    def _pop(self, tx: Capture, key: Value) -> Value | None:
        entries = self.whole(tx)
        stand_in = keyed(tx, key, _place(self.cls))
        if stand_in not in entries:
            return None
        tx.side.mutate(self)
        return entries.pop(stand_in)[1]

    def getattr(self, tx: Capture, name: str) -> Value:
        if name == "__class__":
            return tx.from_python(self.cls)
        if name == "default_factory" and self.cls is collections.defaultdict:
            return self.default_factory or ConstantValue(None)
        if name in self.attrs:
            return self.attrs[name]
        return method_of_container(tx, self, self.cls, name)

    def setattr(self, tx: Capture, name: str, value: Value) -> None:
        new = self.cls is collections.OrderedDict and self.source is None
        if not new or hasattr(collections.OrderedDict, name) or value.realize() is self:
            super().setattr(tx, name, value)
        tx.side.epoch += 1
        self.attrs = self.attrs | {name: value}

    def delattr(self, tx: Capture, name: str) -> None:
        if name not in self.attrs:
            super().delattr(tx, name)
        tx.side.epoch += 1
        self.attrs = {key: value for key, value in self.attrs.items() if key != name}

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        fills = name == "update" or (name == "__init__" and self.cls is not collections.defaultdict)
        if fills and len(args) < 2:
            self._update(tx, args, kwargs)
            return ConstantValue(None)
        if issubclass(self.cls, collections.OrderedDict) and name in _ORDERED_METHODS:
            return self._ordered_method(tx, name, args, kwargs)
        if kwargs or not hasattr(self.cls, name):
            raise GraphBreak("QB07", f"{self.cls.__name__}.{name} with these arguments")
        found = self._lookup_method(tx, name, args)
        return self._changing_method(tx, name, args) if found is None else found

    def _lookup_method(self, tx: Capture, name: str, args: list[Value]) -> Value | None:
        match name, args:
            case "__getitem__", [key]:
                return self.getitem(tx, key)
            case "__contains__", [key]:
                return ConstantValue(self.contains(tx, key))
            case "__len__", []:
                return self.length(tx)
            case "__iter__", []:
                return self.get_iter(tx)
            case "get", [key, *default] if len(default) < 2:
                return self.find(tx, key) or (default[0] if default else ConstantValue(None))
            case ("keys" | "values" | "items"), []:
                return DictView(self, name)
            case "__reversed__", []:
                return self.walk(tx, "keys", self, reversed)
            case ("copy" | "__copy__"), []:
                return self._copy(tx)
            case ("__eq__" | "__ne__"), [other]:
                other = getattr(other.realize(), "payload", other.realize())
                if not isinstance(other, DictValue):
                    return ConstantValue(NotImplemented)
                return ConstantValue(self.same_contents(tx, other) is (name == "__eq__"))
            case ("__lt__" | "__le__" | "__gt__" | "__ge__"), [_]:
                return ConstantValue(NotImplemented)
            case ("__or__" | "__ror__"), [other]:
                other = other.realize()
                if not isinstance(getattr(other, "payload", other), DictValue):
                    return ConstantValue(NotImplemented)
                return merged(tx, self, other, self) if name == "__or__" else merged(tx, other, self, self)
        return None

    def _changing_method(self, tx: Capture, name: str, args: list[Value]) -> Value:
        match name, args:
            case "__setitem__", [key, value]:
                self.setitem(tx, key, value)
            case "__delitem__", [key]:
                self.delitem(tx, key)
            case "setdefault", [key, *default] if len(default) < 2:
                found = self.find(tx, key)
                if found is None:
                    found = default[0] if default else ConstantValue(None)
                    self.setitem(tx, key, found)
                return found
            case "pop", [key, *default] if len(default) < 2:
                found = self._pop(tx, key)
                if found is None and not default:
                    raise key_error(tx, key)
                return default[0] if found is None else found
            case "popitem", []:
                return self._popitem(tx, last=True)
            case "clear", []:
                self.whole(tx)
                tx.side.mutate(self)
                self.entries.clear()
            case "__ior__", [other]:
                self._update(tx, [other], {})
                return self
            case "__missing__", [key] if self.cls is collections.defaultdict:
                if self.default_factory is None:
                    raise key_error(tx, key)
                value = self.default_factory.call(tx, [], {})
                self.setitem(tx, key, value)
                return value
            case _:
                raise GraphBreak("QB07", f"{self.cls.__name__}.{name}")
        return ConstantValue(None)

    def _ordered_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """The methods of OrderedDict that take keywords."""
        names = ("last",) if name == "popitem" else ("key", _ORDERED_METHODS[name])
        if len(args) > len(names) or not kwargs.keys() <= set(names[len(args) :]):
            raise GraphBreak("QB07", f"{self.cls.__name__}.{name} with these arguments")
        given = dict(zip(names, args, strict=False)) | kwargs
        if name == "popitem":
            return self._popitem(tx, last="last" not in given or given["last"].realize().truth(tx))
        if "key" not in given:
            raise GraphBreak("QB07", f"{self.cls.__name__}.{name} without a key")
        if name == "move_to_end":
            self._move_to_end(tx, given["key"], last="last" not in given or given["last"].realize().truth(tx))
            return ConstantValue(None)
        rest = [given["default"]] if "default" in given else []
        return self._changing_method(tx, name, [given["key"], *rest])

    def _copy(self, tx: Capture) -> DictValue:
        result = DictValue(self.cls, default_factory=self.default_factory)
        result.entries.update(self.whole(tx))
        return result

    def _popitem(self, tx: Capture, last: bool) -> Value:
        entries: Any = self.whole(tx)
        is_ordered = isinstance(entries, collections.OrderedDict)
        if not entries:
            raise tx.observed(KeyError("dictionary is empty" if is_ordered else "popitem(): dictionary is empty"))
        tx.side.mutate(self)
        _, (key, value) = entries.popitem(last=last) if is_ordered else entries.popitem()
        return TupleValue([key, value])

    def _move_to_end(self, tx: Capture, key: Value, last: bool) -> None:
        entries: Any = self.whole(tx)
        stand_in = key.realize().key(tx)
        if stand_in not in entries:
            raise key_error(tx, key)
        tx.side.mutate(self)
        entries.move_to_end(stand_in, last=last)

    def _update(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> None:
        for arg in args:
            if arg.realize() is not self:
                for key, value in each_pair(tx, arg.realize()):
                    self.setitem(tx, key, value)
        for name, value in kwargs.items():
            self.setitem(tx, ConstantValue(name), value)

    def same_contents(self, tx: Capture, other: Value) -> bool:
        """``self == other``."""
        if not isinstance(other, DictValue):
            return False
        mine, theirs = self.whole(tx), other.whole(tx)
        if mine.keys() != theirs.keys():
            return False
        if not all(equals(tx, v, theirs[k][1]) for k, (_, v) in mine.items()):
            return False
        both_ordered = all(isinstance(x, collections.OrderedDict) for x in (mine, theirs))
        return not both_ordered or list(mine) == list(theirs)

    def children(self) -> Iterator[Value]:
        for key, value in self.entries.values():
            yield key
            yield value
        if self.default_factory is not None:
            yield self.default_factory
        yield from self.attrs.values()

    def reconstruct(self, cg: CodeGen) -> None:
        flat = [v for pair in self.entries.values() for v in pair]
        if self.cls is dict:
            cg.build("BUILD_MAP", flat, len(flat) // 2)
            return
        plain = DictValue()
        plain.entries.update(self.entries)
        if self.attrs:
            names = TupleValue([*map(ConstantValue, self.attrs)])
            cg.call_const(_ordered_with_attributes, [plain, names, *self.attrs.values()])
            return
        factory = [self.default_factory or ConstantValue(None)] if self.cls is collections.defaultdict else []
        cg.call_const(self.cls, [*factory, plain])

    def describe(self) -> str:
        return f"a {self.cls.__name__}"


def _ordered_with_attributes(items: dict[Any, Any], names: tuple[str, ...], *values: Any) -> Any:
    """Runs in the emitted code: what ``state_dict`` makes, an OrderedDict with metadata."""
    made = collections.OrderedDict(items)
    made.__dict__.update(zip(names, values, strict=True))
    return made


#: Methods of OrderedDict that take keywords, with the name of their second parameter.
_ORDERED_METHODS = {"popitem": "last", "move_to_end": "last", "pop": "default", "setdefault": "default"}


def _new_entries(cls: type) -> dict[Any, tuple[Value, Value]]:
    """A real dict of the kind: an OrderedDict for one, whose order is kept in its own way."""
    return collections.OrderedDict() if issubclass(cls, collections.OrderedDict) else {}


def merged(tx: Capture, a: Value, b: Value, like: DictValue) -> Value:
    """``a | b``, as the method of ``like`` makes it."""
    result = DictValue(like.cls, default_factory=like.default_factory)
    result.call_method(tx, "update", [a], {})
    result.call_method(tx, "update", [b], {})
    return result


def _ordered_keys(ordered: Any) -> tuple[Any, ...]:
    """The keys of an OrderedDict in its order (a step of a guard's path)."""
    return tuple(collections.OrderedDict.keys(ordered))


def each_pair(tx: Capture, value: Value) -> Iterator[tuple[Value, Value]]:
    """The (key, value) pairs that ``dict(value)`` takes, one by one."""
    payload = getattr(value, "payload", None)
    if isinstance(payload, DictValue) and not isinstance(find(tx, value.pytype, "__iter__")[0], types.FunctionType):
        value = payload
    if isinstance(value, DictValue):
        yield from list(value.whole(tx).values())
        return
    if find(tx, value.pytype, "keys")[1] is not None:
        for key in value.call_method(tx, "keys", [], {}).realize().iterate(tx):
            yield key, value.getitem(tx, key.realize())
        return
    for i, item in enumerate(value.iterate(tx)):
        element = item.realize()
        if element.is_const and not hasattr(element.const(), "__iter__"):
            raise GraphBreak("QB19", "a dict of elements that are no pairs")
        pair = element.unpack(tx)
        if len(pair) != 2:
            raise GraphBreak("QB19", f"a dict of elements that are no pairs: element {i}")
        yield pair[0], pair[1]



class OwnAttributes(DictValue):
    """The ``__dict__`` of a function that the region defines: reads and writes go to the function's attributes.

    Args:
        owner: has ``own_attributes()``, ``set_own(tx, name, value)`` and ``drop_own(tx, name)``.
    """

    __slots__ = ("_owner",)

    def __init__(self, owner: Any) -> None:
        super().__init__()
        self._owner = owner

    def _now(self) -> None:
        self.entries = {name: (ConstantValue(name), value) for name, value in self._owner.own_attributes().items()}

    def whole(self, tx: Capture) -> dict[Any, tuple[Value, Value]]:
        self._now()
        return super().whole(tx)

    def find(self, tx: Capture, key: Value) -> Value | None:
        self._now()
        return super().find(tx, key)

    def _count(self, tx: Capture) -> int:
        self._now()
        return super()._count(tx)

    def setitem(self, tx: Capture, key: Value, value: Value) -> None:
        self._owner.set_own(tx, key.realize().const(), value)

    def _pop(self, tx: Capture, key: Value) -> Value | None:
        found = self.find(tx, key)
        if found is not None:
            self._owner.drop_own(tx, key.realize().const())
        return found

    def _changing_method(self, tx: Capture, name: str, args: list[Value]) -> Value:
        if name in ("clear", "popitem", "move_to_end", "__ior__"):
            raise GraphBreak("QB06", f"{name}() of the __dict__ of a function made here")
        return super()._changing_method(tx, name, args)

    def reconstruct(self, cg: CodeGen) -> None:
        raise GraphBreak("QB06", "the __dict__ of a function made here, handed on")


class ProxyValue(Value):
    """``types.MappingProxyType``: a dict that is only read through it.

    Args:
        mapping: the dict as it is now.
        source: where the proxy comes from.
    """

    __slots__ = ("mapping",)

    def __init__(self, mapping: DictValue, source: Any) -> None:
        self.source = source
        self.mapping = mapping

    @property
    def pytype(self) -> type:
        return types.MappingProxyType

    def real(self) -> Any:
        raise GraphBreak("QB06", "a mappingproxy as a real object")

    def truth(self, tx: Capture) -> bool:
        return self.mapping.truth(tx)

    def length(self, tx: Capture) -> Value:
        return self.mapping.length(tx)

    def contains(self, tx: Capture, item: Value) -> bool:
        return self.mapping.contains(tx, item)

    def iterate(self, tx: Capture) -> Iterator[Value]:
        return self.mapping.iterate(tx)

    def get_iter(self, tx: Capture) -> Value:
        return self.mapping.get_iter(tx)

    def getitem(self, tx: Capture, key: Value) -> Value:
        return self.mapping.getitem(tx, key)

    def getattr(self, tx: Capture, name: str) -> Value:
        if name == "__class__":
            return tx.from_python(types.MappingProxyType)
        return method_of_container(tx, self, types.MappingProxyType, name)

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if kwargs or name not in _PROXY_METHODS:
            raise GraphBreak("QB07", f"mappingproxy.{name}")
        return self.mapping.call_method(tx, name, args, kwargs)

    def reconstruct(self, cg: CodeGen) -> None:
        raise GraphBreak("QB10", "a mappingproxy")

    def describe(self) -> str:
        return "a mappingproxy"


_PROXY_METHODS = frozenset(("get", "keys", "values", "items", "copy", "__getitem__", "__contains__", "__len__",
                            "__iter__", "__reversed__"))  # fmt: skip


def pairs_of(tx: Capture, value: Value) -> list[tuple[Value, Value]]:
    """The (key, value) pairs that ``dict(value)`` takes."""
    return list(each_pair(tx, value))


class DictView(Value):
    """``d.keys()``, ``d.values()`` or ``d.items()``."""

    __slots__ = ("holder", "kind", "owner")

    def __init__(self, owner: DictValue, kind: str) -> None:
        self.source = None
        self.owner = owner
        self.kind = kind
        #: The program's object, where that is an instance of a subclass which the dict is the inside of.
        self.holder: Value = owner

    @property
    def pytype(self) -> type:
        return type(getattr(_new_entries(self.owner.cls), self.kind)())

    def iterate(self, tx: Capture) -> Iterator[Value]:
        return self.get_iter(tx).iterate(tx)

    def get_iter(self, tx: Capture) -> Value:
        return self.owner.walk(tx, self.kind, self, iter)

    def truth(self, tx: Capture) -> bool:
        return self.owner.truth(tx)

    def length(self, tx: Capture) -> Value:
        return self.owner.length(tx)

    def contains(self, tx: Capture, item: Value) -> bool:
        if self.kind == "keys":
            return self.owner.contains(tx, item)
        if self.kind == "values":
            return super().contains(tx, item)
        item = item.realize()
        if not isinstance(item, TupleValue) or len(item.items) != 2:
            return False
        found = self.owner.find(tx, item.items[0])
        return found is not None and equals(tx, found, item.items[1])

    def getattr(self, tx: Capture, name: str) -> Value:
        if name == "__class__":
            return tx.from_python(self.pytype)
        return method_of_container(tx, self, self.pytype, name)

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if kwargs or not hasattr(self.pytype, name):
            raise GraphBreak("QB07", f"{self.pytype.__name__}.{name}")
        match name, args:
            case "__iter__", []:
                return self.get_iter(tx)
            case "__len__", []:
                return self.length(tx)
            case "__contains__", [item]:
                return ConstantValue(self.contains(tx, item))
            case "__reversed__", []:
                return self.owner.walk(tx, self.kind, self, reversed)
            case _, [other] if self.kind != "values":
                return self._set_method(tx, name, other.realize())
        raise GraphBreak("QB07", f"{self.pytype.__name__}.{name}")

    def _set_method(self, tx: Capture, name: str, other: Value) -> Value:
        """A view of keys or items as a set."""
        from dynamo_capture.values.sets import SetValue

        if name in _VIEW_COMPARISONS:
            is_set = isinstance(other, SetValue) or (isinstance(other, DictView) and other.kind != "values")
            return ConstantValue(self._compare(tx, name, other) if is_set else NotImplemented)
        if name == "isdisjoint":
            return ConstantValue(not any(self.contains(tx, item) for item in other.iterate(tx)))
        if self.kind == "keys" and (made := SetValue.from_keys(tx, name, self, other)) is not None:
            return made
        if self.kind == "items" and name in ("__or__", "__sub__"):
            made = SetValue.of(tx, list(self.iterate(tx)))
            made.call_method(tx, "update" if name == "__or__" else "difference_update", [other], {})
            return made
        raise GraphBreak("QB07", f"{self.pytype.__name__}.{name}")

    def _compare(self, tx: Capture, name: str, other: Any) -> bool:
        size, of_other = self.length(tx).const(), other.length(tx).const()
        within: Any = (self, other)
        if name in ("__gt__", "__ge__"):
            within = (other, self)
        if not _VIEW_COMPARISONS[name](size, of_other):
            return name == "__ne__"
        inside = all(within[1].contains(tx, item) for item in within[0].iterate(tx))
        return not inside if name == "__ne__" else inside

    def children(self) -> Iterator[Value]:
        yield self.holder

    def reconstruct(self, cg: CodeGen) -> None:
        cg.call_const(getattr(self.owner.cls, self.kind), [self.holder])

    def describe(self) -> str:
        return f"a dict's {self.kind}()"


#: What has to hold of the sizes of a view and a set before their elements are compared.
_VIEW_COMPARISONS = {"__eq__": operator.eq, "__ne__": operator.eq, "__lt__": operator.lt, "__le__": operator.le,
                     "__gt__": operator.gt, "__ge__": operator.ge}  # fmt: skip
