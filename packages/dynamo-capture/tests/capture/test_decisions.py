"""Whatever the program decides by an object, the answer for one object is not used for another.

The table is generated: kinds of objects × questions. Each question is compiled once and asked of two objects of a kind,
in both orders, and must give what it gives in eager; a graph must have been captured. ``BREAKS`` lists the questions
that the program has to ask itself, so that a new graph break is seen.
"""

from __future__ import annotations

import collections
import copy
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


_VALUES_OF_A_TENSOR = frozenset(
    ("==", "!=", "== reversed", "in list", "in tuple", "index", "count", "equal lists", "equal tuples", "equal dicts",
     "truth", "not", "cached", "cached keyword")
)  # fmt: skip
#: Questions that break the graph, by kind.
BREAKS: dict[str, frozenset[str]] = {
    "tensor": _VALUES_OF_A_TENSOR,
    "parameter": _VALUES_OF_A_TENSOR,
    "partial": frozenset(("attribute", "has an attribute")),
}


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
        reasons.update(b.reason for b in report.breaks if not b.reason.startswith("the program raises"))
    return sorted(reasons)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_of_one_object_are_not_used_for_another(kind):
    breaking = {name for name in QUESTIONS if check(kind, name)}
    assert breaking == BREAKS.get(kind, frozenset())


# --- objects that the region makes -----------------------------------------------------------------------------------

NEW: dict[str, Callable[[], Any]] = {
    "plain": lambda: Plain(1),
    "by value": lambda: ByValue(1),
    "frozen dataclass": lambda: Frozen(1),
    "function": lambda: closure(1),
    "partial": lambda: functools.partial(closure(1), 1),
    "list": lambda: [1],
    "generator": lambda: (i for i in ()),
    "iterator": lambda: iter([1]),
}
NEW_QUESTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "is": lambda o, p: o is p,
    "==": lambda o, p: o == p,
    "in list": lambda o, p: o in [p],
    "in set": lambda o, p: o in {p},
    "distinct": lambda o, p: len({o, p}),
    "dict": lambda o, p: {o: 1, p: 2}[o],
    "id": lambda o, p: id(o) == id(p),
    "id as a key": lambda o, p: {id(o): 1}.get(id(p), 5),
}


@pytest.mark.parametrize("kind", NEW)
@pytest.mark.parametrize("same", [True, False])
def test_objects_that_the_region_makes(kind, same):
    make = NEW[kind]
    for name, question in NEW_QUESTIONS.items():

        def fn(x: torch.Tensor, question: Any = question) -> torch.Tensor:
            x = x.sin()
            o = make()
            return x * (1 + question(o, o if same else make()))

        graphs: list[Any] = []

        def backend(gm: Any, inputs: Any, graphs: list[Any] = graphs) -> Any:
            graphs.append(gm)
            return gm.forward

        dynamo_capture.reset()
        x = torch.ones(1)
        compiled = optimize(fn, backend, options=Options(strict=True))
        wanted = outcome(fn, x)
        assert outcome(compiled, x) == outcome(compiled, x) == wanted, name
        assert graphs or isinstance(wanted, type), name


def test_a_new_objects_id_does_not_leave_the_graph(capture):
    def fn(x):
        o = Plain(1)
        return x + 1, o, id(o)

    compiled = capture(fn)
    for _ in range(2):
        _, o, address = compiled(torch.ones(1))
        assert address == id(o)
    assert [b.reason for b in compiled.report.breaks]


def test_a_new_objects_id_is_no_number_to_compute_with(capture):
    def fn(x):
        o = Plain(1)
        return x + 1, o, id(o) % 1024

    compiled = capture(fn)
    _, o, rest = compiled(torch.ones(1))
    assert rest == id(o) % 1024


# --- what a class says -----------------------------------------------------------------------------------------------


def answers(capture: Any, fn: Any, steps: list[Callable[[], Any]], *args: Any) -> Any:
    """Run each step, then the function compiled and in eager, which must agree; a graph must have been captured."""
    compiled = capture(fn)
    for step in steps:
        step()
        assert compiled(*args).tolist() == fn(*args).tolist(), step
    assert compiled.graphs
    return compiled


SPECIAL_METHODS = [
    ("__bool__", lambda self: False, lambda x, o, p: x * (2 if o else 3)),
    ("__len__", lambda self: 0, lambda x, o, p: x * (2 if o else 3)),
    ("__eq__", lambda self, other: True, lambda x, o, p: x * (2 if o == p else 3)),
    ("__ne__", lambda self, other: False, lambda x, o, p: x * (2 if o != p else 3)),
    ("__call__", lambda self: 1, lambda x, o, p: x * (2 if callable(o) else 3)),
    ("__contains__", lambda self, item: True, lambda x, o, p: x * (2 if item_of(o, 7) else 3)),
    ("__getattr__", lambda self, name: 4, lambda x, o, p: x * getattr(o, "nothing", 3)),
    ("__getattribute__", lambda self, name: 4, lambda x, o, p: x * o.tag),
    ("tag", property(lambda self: 9), lambda x, o, p: x * o.tag),
]


def item_of(o: Any, item: Any) -> bool:
    try:
        return item in o
    except TypeError:
        return False


@pytest.mark.parametrize("module", ["torch.nn", "collections", "__main__"])
@pytest.mark.parametrize(("name", "method", "fn"), SPECIAL_METHODS, ids=[case[0] for case in SPECIAL_METHODS])
def test_a_method_that_a_class_gains_or_loses(capture, name, method, fn, module):
    # Whatever the class says of its module.
    cls = type("Changing", (), {"__init__": Plain.__init__, "__module__": module})
    o, p = cls(1), cls(2)
    answers(capture, fn, [lambda: None, lambda: setattr(cls, name, method), lambda: delattr(cls, name)],
            torch.ones(1), o, p)  # fmt: skip


@pytest.mark.parametrize("module", ["torch.nn.modules.linear", "enum", "builtins"])
def test_attributes_of_a_class_that_claims_to_be_a_librarys(capture, module):
    cls = type("Linear", (), {"__module__": module, "K": 2, "twice": lambda self: 2})
    o = cls()
    steps = [lambda: None, lambda: setattr(cls, "K", 3), lambda: setattr(cls, "twice", lambda self: 5)]
    answers(capture, lambda x: x * o.K * o.twice() + type(o).K, steps, torch.ones(1))


def test_a_class_of_a_library_is_told_by_where_it_lives():
    from dynamo_capture.rules import is_library_class

    assert is_library_class(torch.nn.Linear) and is_library_class(collections.OrderedDict) and is_library_class(int)
    assert not is_library_class(type("Linear", (torch.nn.Linear,), {"__module__": "torch.nn.modules.linear"}))
    assert not is_library_class(Plain)


def test_isinstance_by_a_metaclass(capture):
    flag = [True]

    class Meta(type):
        def __instancecheck__(cls, o: object) -> bool:
            return flag[0]

        def __subclasscheck__(cls, other: type) -> bool:
            return not flag[0]

    class Asked(metaclass=Meta):
        pass

    def fn(x, o):
        return x * (2 if isinstance(o, (int, Asked)) else 3) + (5 if issubclass(type(o), Asked) else 7)

    steps = [lambda: None, lambda: flag.__setitem__(0, False), lambda: flag.__setitem__(0, True)]
    compiled = answers(capture, fn, steps, torch.ones(1), Plain(1))
    assert not compiled.report.breaks
    assert len(compiled.graphs) == 2  # the third answer is the first graph's


def test_isinstance_of_abstract_classes(capture):
    import abc

    class Base(abc.ABC):
        pass

    def fn(x, o):
        return x * (2 if isinstance(o, Base) else 3) + (5 if issubclass(type(o), Base) else 7)

    compiled = answers(capture, fn, [lambda: None, lambda: Base.register(dict), lambda: Base.register(Plain)],
                       torch.ones(1), Plain(1))  # fmt: skip
    assert not compiled.report.breaks
    assert len(compiled.graphs) == 2  # registering another class changes nothing here


@pytest.mark.parametrize("classes", [int | Plain, (int, (str, Plain)), collections.abc.Callable], ids=str)
def test_isinstance_of_several_classes(capture, classes):
    compiled = capture(lambda x, o: x * (2 if isinstance(o, classes) else 3))
    for o in (Plain(1), 1.5, "a", len, Plain):
        assert compiled(torch.ones(1), o).item() == (2 if isinstance(o, classes) else 3)
    assert compiled.graphs and not compiled.report.breaks


def test_an_object_that_says_it_is_of_another_class(capture):
    class Proxy:
        @property
        def __class__(self) -> type:  # type: ignore[override]
            return Plain

    compiled = capture(lambda x, o: x.sin() * (2 if isinstance(o, Plain) else 3))
    x = torch.ones(1)
    assert compiled(x, Proxy()).item() == (x.sin() * 2).item()
    assert compiled.graphs


# --- functions that keep their results -------------------------------------------------------------------------------


def test_a_cache_that_is_cleared(capture):
    state = [2.0]

    @functools.lru_cache(None)
    def scale() -> float:
        return state[0]

    def change(value: float, clear: bool) -> None:
        state[0] = value
        if clear:
            scale.cache_clear()

    steps = [lambda: None, lambda: change(3.0, False), lambda: scale.cache_clear(), lambda: change(5.0, True)]
    compiled = answers(capture, lambda x: x * scale(), steps, torch.ones(1))
    assert not compiled.report.breaks


def test_a_cached_method_and_keywords(capture):
    class Config:
        def __init__(self, k: int) -> None:
            self.k = k

        @functools.cache  # noqa: B019 (the point of the test)
        def factor(self, *, times: int) -> list[int]:
            return [self.k * times]

    a, b = Config(2), Config(3)
    compiled = capture(lambda x, o, n: x * o.factor(times=n)[0])
    x = torch.ones(1)
    for o, n in ((a, 2), (b, 2), (a, 3), (a, 2)):
        assert compiled(x, o, n).item() == o.k * n
    a.factor(times=2)[0] = 50  # the list that the cache holds
    assert compiled(x, a, 2).item() == 50
    assert compiled.graphs and not compiled.report.breaks


def test_a_cached_function_sees_what_the_program_changed_before(capture):
    state = Plain(2)

    @functools.lru_cache(None)
    def read() -> int:
        return state.tag

    def fn(x, n):
        x = x + 1
        state.tag = n
        return x * read()

    compiled = capture(fn)
    assert compiled(torch.ones(1), 7).item() == 14
    assert compiled(torch.ones(1), 8).item() == 14  # kept
    read.cache_clear()
    assert compiled(torch.ones(1), 9).item() == 18
    assert compiled.graphs


@pytest.mark.parametrize("maxsize", [None, 2])
@pytest.mark.parametrize("arguments", [(), (3,), ("a",), (3, "a")])
def test_what_a_cache_has_needs_no_break_after_changes(capture, maxsize, arguments):
    """As where models ask what is installed: the function does not look again. Once the cache has forgotten, it does."""
    state = Plain(2)

    @functools.lru_cache(maxsize)
    def read(*given: Any) -> int:
        return 10 * state.tag + len(given)

    def fn(x, n):
        state.tag = n
        return x * read(*arguments)

    known, x = read(*arguments), torch.ones(1)
    compiled = capture(fn)
    for n in (7, 8):
        assert compiled(x, n).item() == known and state.tag == n
    assert not compiled.report.breaks and len(compiled.graphs) <= 2
    read.cache_clear()
    assert compiled(x, 9).item() == 90 + len(arguments)
    assert compiled(x, 4).item() == 90 + len(arguments)
    assert any("QB03" in b.reason for b in compiled.report.breaks)


def test_a_cached_function_that_raises(capture):
    state = [0]

    @functools.lru_cache(None)
    def picky() -> int:
        if not state[0]:
            raise ValueError("nothing to give")
        return state[0]

    def fn(x):
        x = x.sin()
        try:
            return x * picky()
        except ValueError:
            return x * 3

    compiled = capture(fn, strict=False)
    for value in (0, 4, 0):
        state[0] = value
        assert compiled(torch.ones(1)).item() == (torch.ones(1).sin() * (4 if value or picky.cache_info().hits else 3))
    assert picky.cache_info().currsize == 1


# --- names -----------------------------------------------------------------------------------------------------------


def test_a_global_that_hides_a_builtin(capture):
    namespace: dict[str, Any] = {}
    exec("def fn(x, xs): return x * len(xs)\ndef outer(x, xs): return fn(x, xs) + abs(-1)", namespace)
    steps = [
        lambda: None,
        lambda: namespace.__setitem__("len", lambda xs: 10),
        lambda: namespace.__setitem__("abs", lambda n: 20),
        lambda: namespace.pop("len"),
    ]
    answers(capture, namespace["outer"], steps, torch.ones(1), [1, 2])


def test_functions_of_one_code_with_other_globals(capture):
    code = compile("lambda x: x * K", "made", "eval").co_consts[0]
    f, g = (types.FunctionType(code, {"K": k}) for k in (2, 3))
    compiled = capture(lambda x, fn: fn(x) + 1)
    for fn in (f, g, f):
        assert compiled(torch.ones(1), fn).item() == fn.__globals__["K"] + 1
    assert compiled.graphs


def test_names_of_functions(capture):
    f, g = closure(1), closure(2)
    g.__name__ = "other"
    g.__qualname__ = "Some.other"
    compiled = capture(lambda x, fn: x * len(fn.__name__) + len(fn.__qualname__))
    for fn in (f, g, f):
        assert compiled(torch.ones(1), fn).item() == len(fn.__name__) + len(fn.__qualname__)
    f.__name__ = "a longer name"
    assert compiled(torch.ones(1), f).item() == len(f.__name__) + len(f.__qualname__)


def test_an_enum_members_attributes(capture):
    def fn(x, member):
        return x * member.weight + (1 if member.name == "RED" else 2) * member.value

    for member in Color:
        member.weight = member.value * 10
    compiled = capture(fn)
    for member in (Color.RED, Color.BLUE, Color.RED):
        assert compiled(torch.ones(1), member).item() == fn(torch.ones(1), member).item()
    Color.RED.weight = 77
    assert compiled(torch.ones(1), Color.RED).item() == 78
    assert compiled.graphs and not compiled.report.breaks


def test_deep_copies(capture):
    # copy.deepcopy asks by id() what it has copied already.
    shared = [1, 2]
    original = Plain(3)
    original.names = {"a": shared, "b": (shared, Plain(4))}
    original.itself = original

    def fn(x):
        made = copy.deepcopy(original)
        return x * made.tag + made.names["b"][1].tag, made

    compiled = capture(fn)
    for _ in range(2):
        result, made = compiled(torch.ones(1))
        assert result.item() == 7
        assert made.itself is made and made.names["a"] is made.names["b"][0] is not shared
    assert compiled.graphs and not compiled.report.breaks


class Countable(collections.abc.Sequence):
    def __init__(self, *items: int) -> None:
        self.items = items

    def __getitem__(self, index: int) -> int:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)


def test_a_generator_that_is_left_where_other_exceptions_are_caught(capture):
    def fn(x, items):
        first = next(iter(items))  # collections.abc.Sequence.__iter__, suspended in its ``try``
        return x * (first if 2 in items else 5)

    compiled = capture(fn)
    for items in (Countable(7, 2, 3), Countable(7, 3), Countable(1, 2)):
        assert compiled(torch.ones(1), items).item() == (items[0] if 2 in items else 5)
    assert compiled.graphs and not compiled.report.breaks and not compiled.report.fallbacks


class Output(collections.OrderedDict):
    """Like the results of transformers' models: reading by position, views by their C methods."""

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else tuple(v for _, v in self.items())[key]


def test_views_of_an_ordered_dict_whose_class_reads_in_its_own_way(capture):
    def fn(x, made):
        return x + made[1] + sum(made.values()) + len(made.keys())

    compiled = capture(fn)
    x, made = torch.ones(1), Output(first=torch.ones(1), second=torch.zeros(1))
    assert compiled(x, made).item() == fn(x, made).item() == 4
    assert compiled.graphs and not compiled.report.breaks
