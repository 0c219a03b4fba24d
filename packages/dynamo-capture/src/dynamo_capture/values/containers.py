"""Lists, tuples, sets and deques of values."""

from __future__ import annotations

import collections
import operator
import sys
import types
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.rules import is_library_class
from dynamo_capture.values.base import ObservedError, Value, display
from dynamo_capture.values.classes import NAMED_FIELD, find, full_name, guard_lookup, lookup, no_attribute
from dynamo_capture.values.compare import equals
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.tensor import SymValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = [
    "BoundMethodOfContainer", "DequeValue", "ListValue", "SequenceValue", "TupleValue", "kind_of", "wrap_items",
]  # fmt: skip


class SequenceValue(Value):
    """What lists and tuples share."""

    __slots__ = ("cls", "items")

    def __init__(self, items: list[Value], cls: type, source: Any = None) -> None:
        self.source = source
        self.items = items
        self.cls = cls

    @property
    def pytype(self) -> type:
        return self.cls

    @property
    def is_const(self) -> bool:
        return all(item.realize().is_const for item in self.items)

    def truth(self, tx: Capture) -> bool:
        return bool(self.items)

    def length(self, tx: Capture) -> Value:
        return ConstantValue(len(self.items))

    def children(self) -> Iterator[Value]:
        return iter(self.items)

    def unpack(self, tx: Capture) -> list[Value]:
        return list(self.items)

    def getattr(self, tx: Capture, name: str) -> Value:
        if name == "__class__":
            return tx.from_python(self.cls)
        return method_of_container(tx, self, self.cls, name)

    def getitem(self, tx: Capture, key: Value) -> Value:
        key = key.realize()
        index = index_of(tx, key)
        try:
            found = self.items[index]
        except (IndexError, TypeError, ValueError):
            tx.exact(operator.getitem, kind_of(self)(self.items), index)
            raise GraphBreak("QB07", f"an item of {self.describe()}") from None
        return self.slice_of(found) if isinstance(found, list) else found  # type: ignore[arg-type]

    def slice_of(self, items: list[Value]) -> Value:
        """A new sequence from a slice of this one."""
        raise NotImplementedError

    def common_method(self, tx: Capture, name: str, args: list[Value]) -> Value | None:
        """Methods that lists and tuples share; None for another name."""
        match name, args:
            case "__getitem__", [key]:
                return self.getitem(tx, key)
            case "__len__", []:
                return self.length(tx)
            case "__iter__", []:
                return self.get_iter(tx)
            case "__contains__", [item]:
                return ConstantValue(self.contains(tx, item))
            case "index", [item, *rest] if len(rest) < 3:
                return self._index(tx, item, [r.realize().const() for r in rest])
            case "count", [item]:
                return ConstantValue(sum(equals(tx, x, item) for x in self.items))
            case (("__eq__" | "__ne__" | "__lt__" | "__gt__" | "__le__" | "__ge__"), [other]):
                from dynamo_capture.values.arith import compare

                inner = getattr(other.realize(), "payload", None) or other.realize()
                if not isinstance(inner, SequenceValue) or kind_of(inner) is not kind_of(self):
                    return ConstantValue(NotImplemented)
                return compare(tx, getattr(operator, name), self, inner)
            case "__add__", [other]:
                other = other.realize()
                if isinstance(other, SequenceValue) and kind_of(self) is kind_of(other):
                    return self.concat(tx, other)
                raise GraphBreak("QB07", f"{self.cls.__name__}.__add__ of {display(other)}")
            case (("__mul__" | "__rmul__"), [number]):
                count = index_of(tx, number.realize())
                if type(count) in (int, bool):
                    return self.repeat(tx, count)
                raise GraphBreak("QB07", f"{self.cls.__name__}.__mul__ of {count!r:.40}")
        return None

    def concat(self, tx: Capture, other: SequenceValue) -> Value:
        """``self + other``."""
        raise NotImplementedError

    def repeat(self, tx: Capture, n: int) -> Value:
        """``self * n``."""
        raise NotImplementedError

    def _index(self, tx: Capture, item: Value, bounds: list[Any]) -> Value:
        if not all(type(bound) is int for bound in bounds):
            raise GraphBreak("QB07", f"{self.cls.__name__}.index with bounds that are no ints")
        first, last = [*bounds, None, None][:2]
        start, stop, _ = slice(first, last).indices(len(self.items))
        for i in range(start, stop):
            if i < len(self.items) and equals(tx, self.items[i], item):
                return ConstantValue(i)
        item = item.realize()
        if kind_of(self) is tuple:
            raise tx.observed(ValueError("tuple.index(x): x not in tuple"))
        if sys.version_info >= (3, 14):
            kind = kind_of(self).__name__
            raise tx.observed(ValueError(f"{kind}.index(x): x not in {kind}"))
        if item.is_const:
            raise tx.observed(ValueError(f"{item.const()!r} is not in {kind_of(self).__name__}"))
        raise GraphBreak("QB19", f"{self.cls.__name__}.index of what is not there")

    def iterate(self, tx: Capture) -> Iterator[Value]:
        # By position: a list may grow while it is walked.
        i = 0
        while i < len(self.items):
            yield self.items[i]
            i += 1

    def get_iter(self, tx: Capture) -> Value:
        from dynamo_capture.values.iterators import PositionIterator

        kind = kind_of(self)
        return PositionIterator(self, self.items.__getitem__, _ITERATOR_KINDS[kind], kind.__iter__)  # type: ignore[attr-defined]

    def describe(self) -> str:
        return f"a {self.cls.__name__}"


_ITERATOR_KINDS: dict[type, type] = {list: type(iter([])), tuple: type(iter(()))}


def kind_of(value: Value) -> Any:
    """``list``, ``tuple`` or ``deque``; None for what is no sequence."""
    if isinstance(value, TupleValue):
        return tuple
    if isinstance(value, DequeValue):
        return collections.deque
    return list if isinstance(value, ListValue) else None


def index_of(tx: Capture, key: Value) -> Any:
    """A key as a Python int or slice."""
    if isinstance(key, SymValue) or key.is_const:
        return key.const()
    if hasattr(key, "as_slice"):
        return key.as_slice(tx)
    raise GraphBreak("QB06", f"an index that is {display(key)}")


class ListValue(SequenceValue):
    """A list: mutable, with its own identity. ``items`` is a real list of values; only changed in place."""

    __slots__ = ()

    mutable = True

    def __init__(self, items: list[Value], cls: type = list, source: Any = None) -> None:
        super().__init__(items, cls, source)

    def const(self) -> Any:
        return self.cls(item.realize().const() for item in self.items)

    @property
    def is_const(self) -> bool:
        return False

    def key(self, tx: Capture) -> Any:
        tx.exact(hash, self.items)

    def slice_of(self, items: list[Value]) -> Value:
        return ListValue(items)

    def concat(self, tx: Capture, other: SequenceValue) -> Value:
        """``self + other``."""
        return ListValue([*self.items, *other.items])

    def repeat(self, tx: Capture, n: int) -> Value:
        """``self * n``."""
        return ListValue(self.items * n)

    def replace(self, tx: Capture, items: list[Value]) -> None:
        """``self[:] = items``."""
        tx.side.mutate(self)
        self.items[:] = items

    def setitem(self, tx: Capture, key: Value, value: Value) -> None:
        index = index_of(tx, key.realize())
        if isinstance(index, slice) and value.is_const and not hasattr(value.const(), "__iter__"):
            raise GraphBreak("QB07", "assigning something that is no iterable to a slice")
        new: Any = value.unpack(tx) if isinstance(index, slice) else value
        self.native(tx, "__setitem__", index, new)

    def delitem(self, tx: Capture, key: Value) -> None:
        self.native(tx, "__delitem__", index_of(tx, key.realize()))

    def native(self, tx: Capture, name: str, *args: Any) -> Any:
        """Do to the real list of values what the program does to its own; what that raises, the program's raises."""
        tx.side.mutate(self)
        return tx.exact(getattr(self.items, name), *args)

    def extend(self, tx: Capture, other: Value, name: str = "append") -> None:
        """``self.extend(other)``, element by element where finding the elements may raise."""
        if isinstance(other, SequenceValue):
            items = list(other.items)
            tx.side.mutate(self)
            if name == "append":
                self.items.extend(items)
                return
        else:
            items = other.iterate(tx)  # type: ignore[assignment]
        for item in items:
            self.native(tx, name, item)

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "sort" and not args and self.cls is list:
            self._sort(tx, kwargs)
            return ConstantValue(None)
        if kwargs or not hasattr(self.cls, name):
            raise GraphBreak("QB07", f"{self.cls.__name__}.{name}")
        common = self.common_method(tx, name, args)
        if common is not None:
            return common
        none = ConstantValue(None)
        match name, args:
            case "__setitem__", [key, value]:
                self.setitem(tx, key, value.realize())
            case "__delitem__", [key]:
                self.delitem(tx, key)
            case "append", [item]:
                self.native(tx, name, item)
            case "extend", [other]:
                self.extend(tx, other.realize())
            case "__iadd__", [other]:
                self.extend(tx, other.realize())
                return self
            case "__imul__", [number]:
                self.native(tx, name, index_of(tx, number.realize()))
                return self
            case "insert", [index, item]:
                self.native(tx, name, index_of(tx, index.realize()), item)
            case "pop", []:
                return self.native(tx, name)  # type: ignore[no-any-return]
            case "pop", [index] if self.cls is list:
                return self.native(tx, name, index_of(tx, index.realize()))  # type: ignore[no-any-return]
            case "remove", [item]:
                self._remove(tx, item)
            case (("clear" | "reverse"), []):
                self.native(tx, name)
            case (("copy" | "__copy__"), []):
                return self.copy()
            case "__reversed__", []:
                return self.backwards()
            case "__init__", ([] | [_]) if self.cls is list:
                self.replace(tx, [])
                self.extend(tx, args[0].realize() if args else TupleValue([]))
            case _:
                return self._other_method(tx, name, args)
        return none

    def _other_method(self, tx: Capture, name: str, args: list[Value]) -> Value:
        raise GraphBreak("QB07", f"{self.cls.__name__}.{name}")

    def copy(self) -> Value:
        """``self.copy()``."""
        return ListValue(list(self.items))

    def backwards(self) -> Value:
        """``reversed(self)``."""
        from dynamo_capture.values.iterators import BackwardsIterator

        return BackwardsIterator(self, self.items, type(reversed([])))

    def _remove(self, tx: Capture, item: Value) -> None:
        for i, x in enumerate(list(self.items)):
            if equals(tx, x, item):
                self.native(tx, "__delitem__", i)
                return
        kind = self.cls.__name__
        if kind == "deque" and not (3, 12) <= sys.version_info < (3, 14):
            raise tx.observed(ValueError("deque.remove(x): x not in deque"))
        if kind == "deque":
            raise GraphBreak("QB19", "deque.remove of what is not there")
        raise tx.observed(ValueError("list.remove(x): x not in list"))

    def _sort(self, tx: Capture, kwargs: dict[str, Value]) -> None:
        """As CPython sorts: the list is empty meanwhile, and keeps the order that an exception left."""
        from dynamo_capture.values.reductions import sort_in_place

        if not kwargs.keys() <= {"key", "reverse"}:
            raise GraphBreak("QB07", "list.sort with these arguments")
        items = list(self.items)
        self.replace(tx, [])
        try:
            sort_in_place(tx, items, kwargs)
            if self.items:
                raise tx.observed(ValueError("list modified during sort"))
        finally:
            self.replace(tx, items)

    def reconstruct(self, cg: CodeGen) -> None:
        cg.build("BUILD_LIST", self.items)


def _deque_index(tx: Capture, key: Value) -> int:
    index = index_of(tx, key.realize())
    if type(index) not in (int, bool):
        raise GraphBreak("QB19", f"an index of a deque that is {index!r:.40}")
    return index  # type: ignore[no-any-return]


class DequeValue(ListValue):
    """A deque; ``items`` is a real deque of values."""

    __slots__ = ()

    def __init__(self, items: list[Value], source: Any = None, maxlen: int | None = None) -> None:
        super().__init__(collections.deque(items, maxlen), collections.deque, source)  # type: ignore[arg-type]

    @property
    def maxlen(self) -> int | None:
        """The limit of its length."""
        return self.items.maxlen  # type: ignore[attr-defined, no-any-return]

    def const(self) -> Any:
        return collections.deque((item.realize().const() for item in self.items), self.maxlen)

    def getattr(self, tx: Capture, name: str) -> Value:
        return ConstantValue(self.maxlen) if name == "maxlen" else super().getattr(tx, name)

    def getitem(self, tx: Capture, key: Value) -> Value:
        return tx.exact(operator.getitem, self.items, _deque_index(tx, key))  # type: ignore[no-any-return]

    def setitem(self, tx: Capture, key: Value, value: Value) -> None:
        self.native(tx, "__setitem__", _deque_index(tx, key), value)

    def delitem(self, tx: Capture, key: Value) -> None:
        self.native(tx, "__delitem__", _deque_index(tx, key))

    def get_iter(self, tx: Capture) -> Value:
        return self._walk(iter)

    def iterate(self, tx: Capture) -> Iterator[Value]:
        return self._walk(iter).iterate(tx)

    def backwards(self) -> Value:
        return self._walk(reversed)

    def _walk(self, begin: Any) -> Value:
        from dynamo_capture.values.iterators import NativeWalk

        return NativeWalk(self.items, lambda item: item, self, self, begin, type(begin(collections.deque())))

    def concat(self, tx: Capture, other: SequenceValue) -> Value:
        return self._like([*self.items, *other.items])

    def repeat(self, tx: Capture, n: int) -> Value:
        return self._like(list(self.items * n))

    def copy(self) -> Value:
        return self._like(list(self.items))

    def _like(self, items: list[Value]) -> DequeValue:
        return DequeValue(items, maxlen=self.maxlen)

    def replace(self, tx: Capture, items: list[Value]) -> None:
        tx.side.mutate(self)
        self.items.clear()
        self.items.extend(items)

    def _other_method(self, tx: Capture, name: str, args: list[Value]) -> Value:
        match name, args:
            case "appendleft", [item]:
                self.native(tx, name, item)
            case "popleft", []:
                return self.native(tx, name)  # type: ignore[no-any-return]
            case "extendleft", [other]:
                self.extend(tx, other.realize(), "appendleft")
            case "rotate", ([] | [_]):
                self.native(tx, name, *[index_of(tx, arg.realize()) for arg in args])
            case _:
                return super()._other_method(tx, name, args)
        return ConstantValue(None)

    def reconstruct(self, cg: CodeGen) -> None:
        cg.call_const(collections.deque, [TupleValue(list(self.items)), ConstantValue(self.maxlen)])


class TupleValue(SequenceValue):
    """A tuple, a ``torch.Size``, or a named tuple (``cls``); ``original`` is the existing one, if there is one."""

    __slots__ = ("original",)

    def __init__(self, items: list[Value], cls: type = tuple, source: Any = None, original: Any = None) -> None:
        super().__init__(items, cls, source)
        self.original = original

    def const(self) -> Any:
        if self.source is not None and self.source.kind == "constant":
            return self.source.key[0]
        return self.make_real(item.realize().const() for item in self.items)

    def make_real(self, items: Iterable[Any]) -> Any:
        """A real tuple of the value's class."""
        return self.cls(*items) if is_namedtuple(self.cls) else self.cls(items)

    def key(self, tx: Capture) -> Any:
        return tuple(item.realize().key(tx) for item in self.items)

    def slice_of(self, items: list[Value]) -> Value:
        return TupleValue(items, torch.Size if self.cls is torch.Size else tuple)

    def getitem(self, tx: Capture, key: Value) -> Value:
        key = key.realize()
        found, index = super().getitem(tx, key), index_of(tx, key) if self.cls is tuple else None
        if isinstance(index, slice) and index.step in (None, 1) and len(found.items) == len(self.items):  # type: ignore[attr-defined]
            return self  # as CPython does, here and below
        return found

    def concat(self, tx: Capture, other: SequenceValue) -> Value:
        """``self + other``."""
        for whole, rest in ((self, other), (other, self)):
            if whole.cls is tuple and not rest.items and rest.cls is tuple:
                return whole
        cls = torch.Size if torch.Size in (self.cls, other.cls) else tuple
        return TupleValue([*self.items, *other.items], cls)

    def repeat(self, tx: Capture, n: int) -> Value:
        """``self * n``."""
        if n == 1 and self.cls is tuple:
            return self
        return TupleValue(self.items * n, torch.Size if self.cls is torch.Size else tuple)

    def getattr(self, tx: Capture, name: str) -> Value:
        fields = named_fields(self.cls)
        if name in fields and type(find(tx, self.cls, name)[0]) in _FIELDS:
            return self.items[fields.index(name)]
        if name == "_fields" and fields:
            find(tx, self.cls, name)
            return tx.from_python(fields)
        if is_namedtuple(self.cls):
            from dynamo_capture.values.objects import class_attribute

            found = class_attribute(tx, self, self.cls, name)
            if found is not None:
                return found
        return super().getattr(tx, name)

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if is_namedtuple(self.cls):
            if name == "_replace" and not args:
                fields = named_fields(self.cls)
                return TupleValue([kwargs.get(f, x) for f, x in zip(fields, self.items, strict=True)], self.cls)
            if name == "_asdict" and not args:
                from dynamo_capture.values.dicts import DictValue

                find(tx, self.cls, "_fields")
                return DictValue.named(dict(zip(named_fields(self.cls), self.items, strict=True)))
            from dynamo_capture.values.objects import class_attribute

            found = class_attribute(tx, self, self.cls, name)
            if found is not None:
                return found.call(tx, args, kwargs)
        common = self.common_method(tx, name, args) if not kwargs else None
        if common is not None:
            return common
        if name == "numel" and self.cls is torch.Size and not args and not kwargs:
            total: Value = ConstantValue(1)
            from dynamo_capture.values.arith import binary

            for item in self.items:
                total = binary(tx, operator.mul, total, item.realize())
            return total
        if name == "__hash__" and not args and not kwargs:
            tx.guards.hashed()
            return ConstantValue(hash(self.const()))
        raise GraphBreak("QB07", f"{self.cls.__name__}.{name}")

    def reconstruct(self, cg: CodeGen) -> None:
        if self.cls is tuple:
            cg.build("BUILD_TUPLE", self.items)
        elif is_namedtuple(self.cls) and self.cls.__module__ != "torch.return_types":
            cg.call_const(tuple.__new__, [ConstantValue(self.cls), TupleValue(self.items)])
        else:
            cg.call_const(self.cls, [TupleValue(self.items)])


#: Descriptors of the fields of named tuples and of struct sequences.
_FIELDS = (NAMED_FIELD, types.MemberDescriptorType)


def named_fields(cls: type) -> tuple[str, ...]:
    """The field names of a named tuple or of a struct sequence (torch's return types); () for others."""
    fields = getattr(cls, "_fields", None)
    if isinstance(fields, tuple):
        return fields
    if is_struct_sequence(cls):
        return tuple(getattr(cls, "__match_args__", ()))
    return ()


def is_struct_sequence(cls: type) -> bool:
    """Whether ``cls`` is a C type of tuples with names: ``torch.return_types.max``, ``sys.version_info``."""
    return issubclass(cls, tuple) and hasattr(cls, "n_sequence_fields")


def is_namedtuple(cls: type) -> bool:
    """Whether ``cls`` is made by ``collections.namedtuple`` or ``typing.NamedTuple`` (or is torch's like)."""
    return cls is not tuple and issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def key_error(tx: Capture, key: Value) -> ObservedError:
    """The key has been looked for, and is not there; a symbolic number is specialised by then."""
    key = key.realize()
    try:
        shown: Value = ConstantValue(key.const())
    except GraphBreak:
        shown = key
    return tx.observed_value(KeyError, [shown])


def method_of_container(tx: Capture, owner: Value, cls: type, name: str) -> Value:
    """The C method of an object whose builtin type is ``cls``.

    Raises:
        ObservedError: the object has no attribute of this name.
        GraphBreak: the attribute is no method.
    """
    found, base = lookup(cls, name)
    if base is not None:
        if callable(found):
            return BoundMethodOfContainer(owner, name)
        raise GraphBreak("QB06", f"attribute {name!r} of {owner.describe()}")
    obj = getattr(owner, "obj", None)
    if cls.__dictoffset__ and (obj is not None or issubclass(cls, tuple)):
        # An OrderedDict or a subclass of a named tuple can have attributes of its own.
        if obj is None or name in obj.__dict__:
            raise GraphBreak("QB06", f"attribute {name!r} of {owner.describe()}")
        if owner.source is not None:
            tx.guards.no_instance_attr(owner.source, name)
    raise tx.observed(no_attribute(full_name(cls), name))


class BoundMethodOfContainer(Value):
    """A bound C method of a container value, such as ``items.append``."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: Value, name: str) -> None:
        self.source = None
        self.owner = owner
        self.name = name

    @property
    def pytype(self) -> type:
        return type([].append)

    def call(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.owner.call_method(tx, self.name, args, kwargs)

    def truth(self, tx: Capture) -> bool:
        return True

    def children(self) -> Iterator[Value]:
        yield self.owner

    def reconstruct(self, cg: CodeGen) -> None:
        cg.load(self.owner)
        cg.load_attr(self.name)

    def describe(self) -> str:
        return f"the method {self.name!r} of {self.owner.describe()}"


class SliceValue(Value):
    """A slice whose bounds are not all constants (a tensor or a symbolic size among them)."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Value]) -> None:
        self.source = None
        self.parts = parts

    @property
    def pytype(self) -> type:
        return slice

    def as_slice(self, tx: Capture) -> slice:
        """The slice with its bounds specialised."""
        return slice(*[index_of(tx, part.realize()) for part in self.parts])

    def getattr(self, tx: Capture, name: str) -> Value:
        if name in ("start", "stop", "step"):
            return self.parts[("start", "stop", "step").index(name)]
        return super().getattr(tx, name)

    def children(self) -> Iterator[Value]:
        return iter(self.parts)

    def reconstruct(self, cg: CodeGen) -> None:
        cg.call_const(slice, self.parts)


def core_items(obj: Any) -> Iterator[Any]:
    """The elements of a container as its C base gives them, whatever a subclass says of iteration."""
    base = next(base for base in (list, tuple, set, frozenset, collections.deque) if issubclass(type(obj), base))
    return base.__iter__(obj)  # type: ignore[attr-defined, no-any-return]


def wrap_items(tx: Capture, obj: Any, source: Any) -> list[Value]:
    """The elements of an existing list or tuple, not looked at yet."""
    return [tx.lazy(item, source and source.item(i)) for i, item in enumerate(core_items(obj))]


#: What a class may say of its instances as containers.
_PROTOCOL = tuple(
    f"__{name}__" for name in "iter len getitem contains eq ne lt le gt ge hash add mul rmul bool".split()
)


def is_plain_namedtuple(cls: type) -> bool:
    """Whether instances of a named tuple's class behave as tuples do."""
    return is_namedtuple(cls) and all(lookup(cls, name)[1] in (tuple, object, None) for name in _PROTOCOL)


def guard_plain(tx: Capture, cls: type) -> None:
    """The class of a named tuple does not come to say itself what containers do."""
    if not is_library_class(cls):
        for name in _PROTOCOL:
            guard_lookup(tx, cls, name, lookup(cls, name)[1])


def make_slice(parts: list[Value]) -> Value:
    """A slice: a constant one when its bounds are."""
    realized = [part.realize() for part in parts]
    if all(isinstance(part, ConstantValue) for part in realized):
        return ConstantValue(slice(*[part.const() for part in realized]))
    return SliceValue(realized)
