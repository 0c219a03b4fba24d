"""Whatever the program decides by an object, the answer for one object is not used for another.

The table is generated: kinds of objects × questions. Each question is compiled once and asked of two objects of a kind,
in both orders, and must give what it gives in eager; a graph must have been captured. ``BREAKS`` lists the questions
that the program has to ask itself, so that a new graph break is seen.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
import datetime
import enum
import fractions
import functools
import re
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import dynamo_capture
from dynamo_capture import optimize
from prims.options import Options
from prims.report import Report

# --- kinds of objects: each gives two of them ------------------------------------------------------------------------


class Plain:
    def __init__(self, tag: int) -> None:
        self.tag = tag

    def method(self) -> int:
        return self.tag


class Slotted:
    __slots__ = ("tag",)

    def __init__(self, tag: int) -> None:
        self.tag = tag


class ByValue:
    def __init__(self, tag: int) -> None:
        self.tag = tag

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByValue) and self.tag == other.tag

    def __hash__(self) -> int:
        return hash(("by value", self.tag))


class Sized:
    def __init__(self, tag: int) -> None:
        self.tag = tag

    def __len__(self) -> int:
        return self.tag - 1


class Truthful(Plain):
    def __bool__(self) -> bool:
        return self.tag > 1


@dataclasses.dataclass
class Record:
    tag: int


@dataclasses.dataclass(frozen=True)
class Frozen:
    tag: int


class Pair(NamedTuple):
    first: Any
    second: Any


class Text(str):
    tag: int


class Number(int):
    tag: int


class Real(float):
    tag: int


class LoudText(str):
    tag: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoudText) and self.tag == other.tag

    def __hash__(self) -> int:
        return 7


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Spoken(enum.Enum):
    YES = "y"
    NO = "n"

    def __str__(self) -> str:
        return self.value

    def __bool__(self) -> bool:
        return self.value == "y"


class Items(list):
    pass


class Table(dict):
    pass


def tagged(cls: type, value: Any, tag: int) -> Any:
    """An instance of a subclass with an attribute."""
    made = cls(value)
    made.tag = tag
    return made


def closure(n: int) -> Callable[[int], int]:
    def inner(v: int = n) -> int:
        return v + n

    inner.tag = n
    return inner


def new_class(n: int) -> type:
    return type("Made", (), {"tag": n})


def new_module(n: int) -> types.ModuleType:
    module = types.ModuleType("made")
    module.tag = n
    return module


KINDS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "plain": lambda: (Plain(1), Plain(2)),
    "equal attributes": lambda: (Plain(1), Plain(1)),
    "slots": lambda: (Slotted(1), Slotted(2)),
    "by value": lambda: (ByValue(1), ByValue(2)),
    "equal by value": lambda: (ByValue(1), ByValue(1)),
    "sized": lambda: (Sized(1), Sized(2)),
    "truthful": lambda: (Truthful(1), Truthful(2)),
    "dataclass": lambda: (Record(1), Record(2)),
    "equal dataclass": lambda: (Record(1), Record(1)),
    "frozen dataclass": lambda: (Frozen(1), Frozen(2)),
    "function": lambda: (closure(1), closure(2)),
    "bound method": lambda: (Plain(1).method, Plain(2).method),
    "partial": lambda: (functools.partial(closure(1), 1), functools.partial(closure(2), 1)),
    "class": lambda: (new_class(1), new_class(2)),
    "python module": lambda: (new_module(1), new_module(2)),
    "nn module": lambda: (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)),
    "tensor": lambda: (torch.ones(2), torch.zeros(2)),
    "parameter": lambda: (torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))),
    "enum": lambda: (Color.RED, Color.BLUE),
    "int enum": lambda: (Level.LOW, Level.HIGH),
    "enum with methods": lambda: (Spoken.YES, Spoken.NO),
    "str subclass": lambda: (tagged(Text, "a", 1), tagged(Text, "a", 2)),
    "int subclass": lambda: (tagged(Number, 3, 1), tagged(Number, 3, 2)),
    "float subclass": lambda: (tagged(Real, 3.5, 1), tagged(Real, 3.5, 2)),
    "str subclass with ==": lambda: (tagged(LoudText, "a", 1), tagged(LoudText, "a", 2)),
    "tuple": lambda: ((Plain(1), 2), (Plain(1), 2)),
    "equal tuples": lambda: (("a", 2), ("a", int("2"))),
    "named tuple": lambda: (Pair(Plain(1), 2), Pair(Plain(1), 2)),
    "frozenset": lambda: (frozenset([1, 2]), frozenset([1, 3])),
    "list": lambda: ([1, 2], [1, 2]),
    "list of objects": lambda: ([Plain(1)], [Plain(1)]),
    "list subclass": lambda: (Items([1]), Items([2])),
    "dict": lambda: ({"a": 1}, {"a": 2}),
    "dict of objects": lambda: ({Frozen(1): 1}, {Frozen(2): 1}),
    "dict subclass": lambda: (Table(a=1), Table(a=2)),
    "set": lambda: ({1, 2}, {1, 2, 3}),
    "set of equal objects": lambda: ({ByValue(1)}, {ByValue(1)}),
    "deque": lambda: (collections.deque([1], maxlen=1), collections.deque([1], maxlen=2)),
    "exception": lambda: (ValueError(1), ValueError(2)),
    "dtype": lambda: (torch.float32, torch.float64),
    "device": lambda: (torch.device("cpu"), torch.device("meta")),
    "pattern": lambda: (re.compile("a"), re.compile("b")),
    "date": lambda: (datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)),
    "fraction": lambda: (fractions.Fraction(1, 2), fractions.Fraction(1, 3)),
    "namespace": lambda: (types.SimpleNamespace(tag=1), types.SimpleNamespace(tag=2)),
    "alias": lambda: (list[int], list[str]),
    "int": lambda: (100_000, 100_001),
    "float": lambda: (1.5, 2.5),
    "str": lambda: ("one", "two"),
    "bytes": lambda: (b"one", b"two"),
    "complex": lambda: (1j, 2j),
    "range": lambda: (range(2), range(3)),
}

# --- questions: of an object `o`, where `a` and `b` are known ones ---------------------------------------------------


@functools.lru_cache(None)
def cached(o: Any) -> int:
    return id(o) % 1000


@functools.lru_cache(None)
def cached_keyword(*, o: Any) -> list[Any]:
    return [id(o) % 1000]


class Known(NamedTuple):
    a: Any
    b: Any
    ids: frozenset[int]


QUESTIONS: dict[str, Callable[[Any, Known], Any]] = {
    "is": lambda o, k: o is k.a,
    "is not": lambda o, k: o is not k.a,
    "==": lambda o, k: bool(o == k.a),
    "!=": lambda o, k: bool(o != k.a),
    "== reversed": lambda o, k: bool(k.a == o),
    "in list": lambda o, k: o in [k.a],
    "in tuple": lambda o, k: o in (k.a, 0),
    "in set": lambda o, k: o in {k.a},
    "in dict": lambda o, k: o in {k.a: 1},
    "dict item": lambda o, k: {k.a: 1, k.b: 2}[o],
    "dict get": lambda o, k: {k.a: 1}.get(o, 5),
    "index": lambda o, k: [k.a, k.b].index(o),
    "count": lambda o, k: [k.a, k.b].count(o),
    "distinct": lambda o, k: len({o, k.a}),
    "equal lists": lambda o, k: [o] == [k.a],
    "equal tuples": lambda o, k: (o, 1) == (k.a, 1),
    "equal sets": lambda o, k: {o} == {k.a},
    "equal dicts": lambda o, k: {"x": o} == {"x": k.a},
    "tuple key": lambda o, k: (o, 1) in {(k.a, 1): 1},
    "hash": lambda o, k: hash(o) == hash(k.a),
    "hash of a tuple": lambda o, k: hash((o, 1)) == hash((k.a, 1)),
    "id": lambda o, k: id(o) == id(k.a),
    "id in": lambda o, k: id(o) in k.ids,
    "id as a key": lambda o, k: {id(k.a): 1}.get(id(o), 5),
    "truth": lambda o, k: bool(o),
    "not": lambda o, k: not o,
    "callable": lambda o, k: callable(o),
    "type": lambda o, k: type(o) is type(k.a),
    "isinstance": lambda o, k: isinstance(o, (Plain, str, Level, list)),
    "isinstance of its type": lambda o, k: isinstance(o, type(k.a)),
    "abstract": lambda o, k: isinstance(o, collections.abc.Hashable) + 2 * isinstance(o, collections.abc.Sized),
    "attribute": lambda o, k: getattr(o, "tag", 9),
    "has an attribute": lambda o, k: hasattr(o, "tag"),
    "cached": lambda o, k: cached(o),
    "cached keyword": lambda o, k: cached_keyword(o=o)[0],
}


def ask(question: Callable[[Any, Known], Any], known: Known) -> Callable[[torch.Tensor, Any], torch.Tensor]:
    """The question, between two operators."""

    def fn(x: torch.Tensor, o: Any) -> torch.Tensor:
        return x.sin() * (1 + question(o, known))

    return fn


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return fn(*args).tolist()
    except Exception as error:
        return type(error)


#: Questions that break the graph, by kind ("*": of every kind).
BREAKS: dict[str, frozenset[str]] = {}


def check(kind: str, name: str) -> list[str]:
    """The graph breaks of a question; it must give eager's answers."""
    x = torch.ones(1)
    reasons: set[str] = set()
    for order in ((0, 1, 0, 1), (1, 0, 1)):
        pair = KINDS[kind]()
        known = Known(*pair, frozenset((id(pair[0]),)))
        wanted = [outcome(ask(QUESTIONS[name], known), x, pair[i]) for i in order]
        graphs: list[Any] = []

        def backend(gm: Any, inputs: Any, graphs: list[Any] = graphs) -> Any:
            graphs.append(gm)
            return gm.forward

        dynamo_capture.reset()
        report = Report()
        compiled = optimize(ask(QUESTIONS[name], known), backend, options=Options(strict=True), report=report)
        got = [outcome(compiled, x, pair[i]) for i in order]
        assert got == wanted, (kind, name, order, [b.reason for b in report.breaks])
        if not all(isinstance(answer, type) for answer in wanted):
            assert graphs, (kind, name)
        reasons.update(b.reason for b in report.breaks)
    return sorted(reasons)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_of_one_object_are_not_used_for_another(kind):
    breaking = {name for name in QUESTIONS if check(kind, name)}
    assert breaking == BREAKS.get(kind, frozenset())
