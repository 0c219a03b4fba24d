"""Lists, tuples, sets and deques of values."""

from __future__ import annotations

import collections
import operator
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.compare import equals
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.tensor import SymValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = ["BoundMethodOfContainer", "ListValue", "SequenceValue", "SetValue", "TupleValue", "wrap_items"]


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
        if callable(getattr(self.cls, name, None)):
            return BoundMethodOfContainer(self, name)
        raise tx.observed(AttributeError(f"{self.cls.__name__!r} object has no attribute {name!r}"))

    def getitem(self, tx: Capture, key: Value) -> Value:
        key = key.realize()
        index = index_of(tx, key)
        try:
            found = self.items[index]
        except IndexError:
            raise tx.observed(IndexError(f"{self.cls.__name__} index out of range")) from None
        except TypeError as error:
            raise tx.observed(error) from None
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
            case "index", [item, *rest]:
                start, stop = ([r.realize().const() for r in rest] + [0, len(self.items)][len(rest) :])[:2]
                for i in range(*slice(start, stop).indices(len(self.items))):
                    if equals(tx, self.items[i], item):
                        return ConstantValue(i)
                raise tx.observed(ValueError("value is not in the sequence"))
            case "count", [item]:
                return ConstantValue(sum(equals(tx, x, item) for x in self.items))
            case ("__eq__" | "__ne__" | "__lt__" | "__gt__" | "__le__" | "__ge__"), [other]:
                from dynamo_capture.values.arith import compare

                return compare(tx, getattr(operator, name), self, other.realize())
            case "__add__", [other]:
                from dynamo_capture.values.arith import binary

                return binary(tx, operator.add, self, other.realize())
        return None

    def iterate(self, tx: Capture) -> Iterator[Value]:
        # By position: a list may grow while it is walked.
        i = 0
        while i < len(self.items):
            yield self.items[i]
            i += 1

    def get_iter(self, tx: Capture) -> Value:
        from dynamo_capture.values.iterators import PositionIterator

        if issubclass(self.cls, (list, tuple)):
            return PositionIterator(self, self.items.__getitem__)
        return super().get_iter(tx)

    def describe(self) -> str:
        return f"a {self.cls.__name__}"


def index_of(tx: Capture, key: Value) -> Any:
    """A key as a Python int or slice."""
    if isinstance(key, SymValue) or key.is_const:
        return key.const()
    if hasattr(key, "as_slice"):
        return key.as_slice(tx)
    raise GraphBreak("QB06", f"an index that is {display(key)}")


class ListValue(SequenceValue):
    """A list (or a deque): mutable, with its own identity."""

    __slots__ = ("maxlen",)

    mutable = True

    def __init__(self, items: list[Value], cls: type = list, source: Any = None, maxlen: int | None = None) -> None:
        super().__init__(items, cls, source)
        self.maxlen = maxlen

    def const(self) -> Any:
        return self.cls(item.realize().const() for item in self.items)

    @property
    def is_const(self) -> bool:
        return False

    def key(self, tx: Capture) -> Any:
        raise GraphBreak("QB19", f"unhashable type {self.cls.__name__!r}")

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
        tx.side.mutate(self)
        try:
            self.items[index] = value.unpack(tx) if isinstance(index, slice) else value
        except (IndexError, ValueError) as error:
            raise tx.observed(error) from None

    def delitem(self, tx: Capture, key: Value) -> None:
        index = index_of(tx, key.realize())
        tx.side.mutate(self)
        try:
            del self.items[index]
        except IndexError as error:
            raise tx.observed(error) from None

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "sort":
            from dynamo_capture.values.builtin_functions import sort_values

            self.replace(tx, sort_values(tx, list(self.items), kwargs))
            return ConstantValue(None)
        if kwargs:
            raise GraphBreak("QB07", f"{self.cls.__name__}.{name} with keyword arguments")
        common = self.common_method(tx, name, args)
        if common is not None:
            return common
        items = self.items
        none = ConstantValue(None)
        match name, args:
            case "__setitem__", [key, value]:
                self.setitem(tx, key, value)
            case "__delitem__", [key]:
                self.delitem(tx, key)
            case "append", [item]:
                tx.side.mutate(self)
                items.append(item)
                if self.maxlen is not None and len(items) > self.maxlen:
                    del items[0]
            case ("extend" | "__iadd__"), [other]:
                new = other.realize().unpack(tx)
                tx.side.mutate(self)
                items.extend(new)
                if self.maxlen is not None:
                    del items[: max(0, len(items) - self.maxlen)]
                return self if name == "__iadd__" else none
            case "appendleft", [item]:
                tx.side.mutate(self)
                items.insert(0, item)
                if self.maxlen is not None:
                    del items[self.maxlen :]
            case "popleft", []:
                return self._pop(tx, 0)
            case "insert", [index, item]:
                tx.side.mutate(self)
                items.insert(index.realize().const(), item)
            case "pop", []:
                return self._pop(tx, -1)
            case "pop", [index]:
                return self._pop(tx, index.realize().const())
            case "remove", [item]:
                for i, x in enumerate(items):
                    if equals(tx, x, item):
                        tx.side.mutate(self)
                        del items[i]
                        return none
                raise tx.observed(ValueError("list.remove(x): x not in list"))
            case "clear", []:
                self.replace(tx, [])
            case "reverse", []:
                self.replace(tx, items[::-1])
            case ("copy" | "__copy__"), []:
                return ListValue(list(items), self.cls, maxlen=self.maxlen)
            case "__reversed__", []:
                return ListValue(items[::-1]).get_iter(tx)
            case "__init__", []:
                self.replace(tx, [])
            case "__init__", [other]:
                self.replace(tx, other.realize().unpack(tx))
            case _:
                raise GraphBreak("QB07", f"{self.cls.__name__}.{name}")
        return none

    def _pop(self, tx: Capture, index: int) -> Value:
        if not -len(self.items) <= index < len(self.items):
            raise tx.observed(IndexError("pop from empty list" if not self.items else "pop index out of range"))
        tx.side.mutate(self)
        return self.items.pop(index)

    def reconstruct(self, cg: CodeGen) -> None:
        if self.cls is list:
            cg.build("BUILD_LIST", self.items)
        else:
            cg.call_const(collections.deque, [TupleValue(list(self.items)), ConstantValue(self.maxlen)])


class TupleValue(SequenceValue):
    """A tuple, a ``torch.Size``, or a named tuple (``cls``)."""

    __slots__ = ()

    def __init__(self, items: list[Value], cls: type = tuple, source: Any = None) -> None:
        super().__init__(items, cls, source)

    def const(self) -> Any:
        return self.make_real(item.realize().const() for item in self.items)

    def make_real(self, items: Iterable[Any]) -> Any:
        """A real tuple of the value's class."""
        return self.cls(*items) if is_namedtuple(self.cls) else self.cls(items)

    def key(self, tx: Capture) -> Any:
        return tuple(item.realize().key(tx) for item in self.items)

    def slice_of(self, items: list[Value]) -> Value:
        return TupleValue(items, torch.Size if self.cls is torch.Size else tuple)

    def concat(self, tx: Capture, other: SequenceValue) -> Value:
        """``self + other``."""
        cls = torch.Size if torch.Size in (self.cls, other.cls) else tuple
        return TupleValue([*self.items, *other.items], cls)

    def repeat(self, tx: Capture, n: int) -> Value:
        """``self * n``."""
        return TupleValue(self.items * n, torch.Size if self.cls is torch.Size else tuple)

    def getattr(self, tx: Capture, name: str) -> Value:
        fields = named_fields(self.cls)
        if name in fields:
            return self.items[fields.index(name)]
        if name == "_fields" and fields:
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

                return DictValue.named(dict(zip(named_fields(self.cls), self.items, strict=True)))
            from dynamo_capture.values.objects import class_attribute

            found = class_attribute(tx, self, self.cls, name)
            if found is not None:
                return found.call(tx, args, kwargs)
        common = self.common_method(tx, name, args) if not kwargs else None
        if common is not None:
            return common
        if name == "numel" and self.cls is torch.Size and not args:
            total: Value = ConstantValue(1)
            from dynamo_capture.values.arith import binary

            for item in self.items:
                total = binary(tx, operator.mul, total, item.realize())
            return total
        if name == "__hash__":
            return ConstantValue(hash(self.const()))
        raise GraphBreak("QB07", f"{self.cls.__name__}.{name}")

    def reconstruct(self, cg: CodeGen) -> None:
        if self.cls is tuple:
            cg.build("BUILD_TUPLE", self.items)
        elif is_namedtuple(self.cls) and self.cls.__module__ != "torch.return_types":
            cg.call_const(tuple.__new__, [ConstantValue(self.cls), TupleValue(self.items)])
        else:
            cg.call_const(self.cls, [TupleValue(self.items)])


def named_fields(cls: type) -> tuple[str, ...]:
    """The field names of a named tuple or of one of torch's return types; () for others."""
    fields = getattr(cls, "_fields", None)
    if isinstance(fields, tuple):
        return fields
    if cls.__module__ == "torch.return_types":
        return tuple(getattr(cls, "__match_args__", ()))
    return ()


def is_namedtuple(cls: type) -> bool:
    """Whether ``cls`` is made by ``collections.namedtuple`` or ``typing.NamedTuple`` (or is torch's like)."""
    return cls is not tuple and issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


class SetValue(Value):
    """A set or frozenset; ``items`` maps a key to the element."""

    __slots__ = ("cls", "items")

    mutable = True

    def __init__(self, items: dict[Any, Value], cls: type = set, source: Any = None) -> None:
        self.source = source
        self.items = items
        self.cls = cls

    @classmethod
    def of(cls, tx: Capture, items: Iterable[Value], kind: type = set, source: Any = None) -> SetValue:
        """A set with these elements."""
        found: dict[Any, Value] = {}
        for item in items:
            found.setdefault(item.realize().key(tx), item)
        return cls(found, kind, source)

    @property
    def pytype(self) -> type:
        return self.cls

    @property
    def is_const(self) -> bool:
        return self.cls is frozenset and all(item.realize().is_const for item in self.items.values())

    def const(self) -> Any:
        return self.cls(item.realize().const() for item in self.items.values())

    def key(self, tx: Capture) -> Any:
        return frozenset(self.items)

    def truth(self, tx: Capture) -> bool:
        return bool(self.items)

    def iterate(self, tx: Capture) -> Iterator[Value]:
        return iter(list(self.items.values()))

    def children(self) -> Iterator[Value]:
        return iter(self.items.values())

    def contains(self, tx: Capture, item: Value) -> bool:
        return item.realize().key(tx) in self.items

    def length(self, tx: Capture) -> Value:
        return ConstantValue(len(self.items))

    def getattr(self, tx: Capture, name: str) -> Value:
        if name == "__class__":
            return tx.from_python(self.cls)
        if callable(getattr(self.cls, name, None)):
            return BoundMethodOfContainer(self, name)
        raise tx.observed(AttributeError(f"{self.cls.__name__!r} object has no attribute {name!r}"))

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        values = [a.realize() for a in args]
        items = self.items
        none = ConstantValue(None)
        match name:
            case "add":
                tx.side.mutate(self)
                items.setdefault(values[0].key(tx), values[0])
            case "discard" | "remove":
                if values[0].key(tx) not in items:
                    if name == "remove":
                        raise tx.observed(KeyError("element not in set"))
                    return none
                tx.side.mutate(self)
                del items[values[0].key(tx)]
            case "clear":
                tx.side.mutate(self)
                items.clear()
            case "update" | "intersection_update" | "difference_update":
                new = self._algebra(tx, name.removesuffix("_update").replace("update", "union"), values)
                tx.side.mutate(self)
                self.items = new
            case "union" | "intersection" | "difference" | "symmetric_difference" | "copy":
                return SetValue(self._algebra(tx, name, values), self.cls)
            case "issubset":
                return ConstantValue(items.keys() <= SetValue.of(tx, values[0].unpack(tx)).items.keys())
            case "issuperset":
                return ConstantValue(items.keys() >= SetValue.of(tx, values[0].unpack(tx)).items.keys())
            case "isdisjoint":
                return ConstantValue(items.keys().isdisjoint(SetValue.of(tx, values[0].unpack(tx)).items))
            case "__contains__":
                return ConstantValue(self.contains(tx, values[0]))
            case "__len__":
                return self.length(tx)
            case "__iter__":
                return self.get_iter(tx)
            case _:
                raise GraphBreak("QB07", f"{self.cls.__name__}.{name}")
        return none

    def _algebra(self, tx: Capture, name: str, others: list[Value]) -> dict[Any, Value]:
        result = dict(self.items)
        for other in others:
            rhs = SetValue.of(tx, other.unpack(tx)).items
            match name:
                case "union":
                    for key, value in rhs.items():
                        result.setdefault(key, value)
                case "intersection":
                    result = {k: v for k, v in result.items() if k in rhs}
                case "difference":
                    result = {k: v for k, v in result.items() if k not in rhs}
                case "symmetric_difference":
                    only_there = {k: v for k, v in rhs.items() if k not in result}
                    result = {k: v for k, v in result.items() if k not in rhs} | only_there
        return result

    def reconstruct(self, cg: CodeGen) -> None:
        if self.cls is set:
            cg.build("BUILD_SET", list(self.items.values()))
        else:
            cg.call_const(self.cls, [TupleValue(list(self.items.values()))])

    def describe(self) -> str:
        return f"a {self.cls.__name__}"


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


def wrap_items(tx: Capture, obj: Any, source: Any) -> list[Value]:
    """The elements of an existing list or tuple, not looked at yet."""
    return [tx.lazy(item, source and source.item(i)) for i, item in enumerate(obj)]
