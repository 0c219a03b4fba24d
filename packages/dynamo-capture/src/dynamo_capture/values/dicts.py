"""Dictionaries, their views, and ``types.MappingProxyType``."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import IdentityKey, Value
from dynamo_capture.values.compare import equals
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import BoundMethodOfContainer, ListValue, SetValue, TupleValue
from dynamo_capture.values.identity import is_real_key, pin

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = ["DictValue", "DictView"]

_MISSING = object()


class DictValue(Value):
    """A dict, OrderedDict or defaultdict.

    ``entries`` maps a key's stand-in to (key, value). An existing dict (``obj``) is read by key, with a guard per
    key, until something needs it whole: then its keys are guarded and all entries are taken over.
    """

    __slots__ = ("_whole", "cls", "default_factory", "entries", "obj")

    mutable = True

    def __init__(self, cls: type = dict, source: Any = None, obj: Any = None, default_factory: Any = None) -> None:
        self.source = source
        self.cls = cls
        self.obj = obj
        self.entries: dict[Any, tuple[Value, Value]] = {}
        self._whole = obj is None
        self.default_factory: Value | None = default_factory

    @classmethod
    def of(cls, tx: Capture, pairs: Iterable[tuple[Value, Value]], kind: type = dict) -> DictValue:
        """A new dict."""
        result = cls(kind)
        for key, value in pairs:
            stand_in = key.realize().key(tx)
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
        return {k.realize().const(): v.realize().const() for k, v in self.entries.values()}

    def real(self) -> Any:
        return self.obj if self.obj is not None else self.const()

    def key(self, tx: Capture) -> Any:
        raise GraphBreak("QB19", "unhashable type: 'dict'")

    def _take_entry(self, tx: Capture, key: Any) -> tuple[Value, Value]:
        source = self.source
        value = tx.lazy(dict.__getitem__(self.obj, key), source and source.item(key))
        return tx.from_python(key), value  # the guard of the keys says that it is this one

    def whole(self, tx: Capture) -> dict[Any, tuple[Value, Value]]:
        """All entries; an existing dict's keys are guarded."""
        if not self._whole:
            if self.source is not None:
                tx.guards.dict_keys(self.source, list(self.obj))
            taken = self.entries
            self.entries = {}
            for real_key in dict.keys(self.obj):
                key, value = self._take_entry(tx, real_key)
                stand_in = key.key(tx)
                self.entries[stand_in] = taken.get(stand_in) or (key, value)
            self._whole = True
        return self.entries

    def find(self, tx: Capture, key: Value) -> Value | None:
        """The value under ``key``, or None."""
        stand_in = key.realize().key(tx)
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
        pin(tx, key)
        value = dict.get(self.obj, real_key, _MISSING)
        source = self.source
        if source is not None:
            tx.guards.contains(source, real_key, value is not _MISSING)
        if value is _MISSING:
            return None
        lazy = tx.lazy(value, source and source.item(real_key))
        self.entries[stand_in] = (key, lazy)
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

    def getitem(self, tx: Capture, key: Value) -> Value:
        found = self.find(tx, key)
        if found is not None:
            return found
        if self.default_factory is not None:
            value = self.default_factory.call(tx, [], {})
            self.setitem(tx, key, value)
            return value
        shown = key.realize()
        raise tx.observed(KeyError(shown.const() if shown.is_const else str(shown.describe())))

    def setitem(self, tx: Capture, key: Value, value: Value) -> None:
        key = key.realize()
        stand_in = key.key(tx)
        entries = self.whole(tx)
        tx.side.mutate(self)
        old = entries.get(stand_in)
        entries[stand_in] = (old[0] if old else key, value)

    def delitem(self, tx: Capture, key: Value) -> None:
        if self._pop(tx, key) is None:
            shown = key.realize()
            raise tx.observed(KeyError(shown.const() if shown.is_const else shown.describe()))

    def _pop(self, tx: Capture, key: Value) -> Value | None:
        entries = self.whole(tx)
        stand_in = key.realize().key(tx)
        if stand_in not in entries:
            return None
        tx.side.mutate(self)
        return entries.pop(stand_in)[1]

    def getattr(self, tx: Capture, name: str) -> Value:
        if name == "__class__":
            return tx.from_python(self.cls)
        if name == "default_factory" and self.cls is collections.defaultdict:
            return self.default_factory or ConstantValue(None)
        if callable(getattr(self.cls, name, None)):
            return BoundMethodOfContainer(self, name)
        raise tx.observed(AttributeError(f"{self.cls.__name__!r} object has no attribute {name!r}"))

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        match name, args:
            case "__getitem__", [key]:
                return self.getitem(tx, key)
            case "__setitem__", [key, value]:
                self.setitem(tx, key, value)
            case "__delitem__", [key]:
                self.delitem(tx, key)
            case "__contains__", [key]:
                return ConstantValue(self.contains(tx, key))
            case "__len__", []:
                return self.length(tx)
            case "__iter__", []:
                return self.get_iter(tx)
            case "get", [key]:
                return self.find(tx, key) or kwargs.get("default") or ConstantValue(None)
            case "get", [key, default]:
                found = self.find(tx, key)
                return default if found is None else found
            case ("keys" | "values" | "items"), []:
                return DictView(self, name)
            case ("update" | "__init__"), _:
                self._update(tx, args, kwargs)
            case "setdefault", [key, *default]:
                found = self.find(tx, key)
                if found is None:
                    found = default[0] if default else ConstantValue(None)
                    self.setitem(tx, key, found)
                return found
            case "pop", [key, *default]:
                found = self._pop(tx, key)
                if found is None:
                    if not default:
                        shown = key.realize()
                        raise tx.observed(KeyError(shown.const() if shown.is_const else shown.describe()))
                    return default[0]
                return found
            case "popitem", []:
                return self._popitem(tx, -1)
            case "clear", []:
                self.whole(tx)
                tx.side.mutate(self)
                self.entries.clear()
            case ("copy" | "__copy__"), []:
                result = DictValue(self.cls, default_factory=self.default_factory)
                result.entries = dict(self.whole(tx))
                return result
            case "move_to_end", [key, *last]:
                self._move_to_end(tx, key, last[0] if last else kwargs.get("last"))
            case "__reversed__", []:
                return ListValue([key for key, _ in self.whole(tx).values()][::-1]).get_iter(tx)
            case ("__eq__" | "__ne__"), [other]:
                same = self.same_contents(tx, other.realize())
                return ConstantValue(same is (name == "__eq__"))
            case "__or__", [other]:
                merged = self.call_method(tx, "copy", [], {})
                merged.call_method(tx, "update", [other], {})
                return merged
            case _:
                raise GraphBreak("QB07", f"{self.cls.__name__}.{name}")
        return ConstantValue(None)

    def _popitem(self, tx: Capture, index: int) -> Value:
        entries = self.whole(tx)
        if not entries:
            raise tx.observed(KeyError("popitem(): dictionary is empty"))
        tx.side.mutate(self)
        return TupleValue(list(entries.pop(list(entries)[index])))

    def _move_to_end(self, tx: Capture, key: Value, last: Value | None) -> None:
        entries = self.whole(tx)
        stand_in = key.realize().key(tx)
        tx.side.mutate(self)
        entry = entries.pop(stand_in)
        entries[stand_in] = entry
        if last is not None and not last.truth(tx):
            rest = {k: v for k, v in entries.items() if k != stand_in}
            entries.clear()
            entries[stand_in] = entry
            entries.update(rest)

    def _update(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> None:
        for arg in args:
            for key, value in pairs_of(tx, arg.realize()):
                self.setitem(tx, key, value)
        for name, value in kwargs.items():
            self.setitem(tx, ConstantValue(name), value)

    def same_contents(self, tx: Capture, other: Value) -> bool:
        """``self == other``."""
        if not isinstance(other, DictValue):
            return False
        mine, theirs = self.whole(tx), other.whole(tx)
        return mine.keys() == theirs.keys() and all(equals(tx, v, theirs[k][1]) for k, (_, v) in mine.items())

    def children(self) -> Iterator[Value]:
        for key, value in self.entries.values():
            yield key
            yield value
        if self.default_factory is not None:
            yield self.default_factory

    def reconstruct(self, cg: CodeGen) -> None:
        flat = [v for pair in self.entries.values() for v in pair]
        if self.cls is dict:
            cg.build("BUILD_MAP", flat, len(flat) // 2)
            return
        plain = DictValue()
        plain.entries = self.entries
        factory = [self.default_factory or ConstantValue(None)] if self.cls is collections.defaultdict else []
        cg.call_const(self.cls, [*factory, plain])

    def describe(self) -> str:
        return f"a {self.cls.__name__}"


def pairs_of(tx: Capture, value: Value) -> list[tuple[Value, Value]]:
    """The (key, value) pairs that ``dict(value)`` would take."""
    payload = getattr(value, "payload", None)
    if isinstance(payload, DictValue):
        value = payload
    if isinstance(value, DictValue):
        return list(value.whole(tx).values())
    pairs = []
    for item in value.unpack(tx):
        key, element = item.realize().unpack(tx)
        pairs.append((key, element))
    return pairs


class DictView(Value):
    """``d.keys()``, ``d.values()`` or ``d.items()``."""

    __slots__ = ("kind", "owner")

    def __init__(self, owner: DictValue, kind: str) -> None:
        self.source = None
        self.owner = owner
        self.kind = kind

    @property
    def pytype(self) -> type:
        return type(getattr({}, self.kind)())

    def iterate(self, tx: Capture) -> Iterator[Value]:
        entries = list(self.owner.whole(tx).values())
        if self.kind == "keys":
            return iter([key for key, _ in entries])
        if self.kind == "values":
            return iter([value for _, value in entries])
        return iter([TupleValue([key, value]) for key, value in entries])

    def truth(self, tx: Capture) -> bool:
        return self.owner.truth(tx)

    def length(self, tx: Capture) -> Value:
        return self.owner.length(tx)

    def contains(self, tx: Capture, item: Value) -> bool:
        return self.owner.contains(tx, item) if self.kind == "keys" else super().contains(tx, item)

    def getattr(self, tx: Capture, name: str) -> Value:
        return BoundMethodOfContainer(self, name)

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__iter__":
            return self.get_iter(tx)
        if name == "__len__":
            return self.length(tx)
        if name == "__contains__":
            return ConstantValue(self.contains(tx, args[0]))
        if self.kind == "values":
            raise GraphBreak("QB07", f"dict_values.{name}")
        return SetValue.of(tx, self.iterate(tx)).call_method(tx, name, args, kwargs)

    def children(self) -> Iterator[Value]:
        yield self.owner

    def reconstruct(self, cg: CodeGen) -> None:
        cg.load(self.owner)
        cg.load_attr(self.kind)
        cg.call_top()

    def describe(self) -> str:
        return f"a dict's {self.kind}()"
