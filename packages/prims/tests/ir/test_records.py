"""Records behave as the dataclasses of the same declaration, in every way that the packages use."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from prims.records import record

DECLARATIONS = {
    "frozen": ({"frozen": True}, {}),
    "mutable": ({}, {"frozen": False}),
    "frozen, by identity": ({"frozen": True, "eq": False}, {"eq": False}),
    "mutable, by identity": ({"eq": False}, {"frozen": False, "eq": False}),
    "frozen, by name": ({"frozen": True, "kw_only": True}, {"kw_only": True}),
}


def declared(how: Any) -> Any:
    class Thing:
        a: int
        b: str = "x"
        c: list[int] = dataclasses.field(default_factory=list)
        d: Any = dataclasses.field(default=None, repr=False, compare=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "made", self.b * 2)

    class More(how(Thing)):  # type: ignore[misc]
        e: int = 5

    return how(More)


@pytest.fixture(params=DECLARATIONS)
def both(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    theirs, ours = DECLARATIONS[request.param]
    return declared(dataclasses.dataclass(**theirs)), declared(record(**ours))


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {"a": 1}), ((1,), {}), ((1, "y", [3], 4, 5), {}), ((1, "y"), {"e": 7}), ((), {"a": 1, "b": "z", "c": (), "d": 2, "e": 3}),
    ((), {}), ((1,), {"a": 1}), ((1, 2, 3, 4, 5, 6), {}), ((), {"a": 1, "f": 2}), ((), {"b": "x"}),
]  # fmt: skip


def outcome(run: Any) -> Any:
    try:
        return run()
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("args, values", CALLS)
def test_construction(both: tuple[Any, Any], args: Any, values: Any) -> None:
    theirs, ours = (outcome(lambda cls=cls: vars(cls(*args, **values))) for cls in both)
    assert ours == theirs


def test_defaults_made_are_not_shared(both: tuple[Any, Any]) -> None:
    assert both[1](a=1).c is not both[1](a=1).c


QUESTIONS = {
    "text": lambda cls: repr(cls(a=1, d=2)),
    "equal": lambda cls: (cls(a=1, d=2) == cls(a=1, d=3), cls(a=1) == cls(a=2), cls(a=1) == 1, cls(a=1) != cls(a=1)),
    "equal to another class": lambda cls: cls(a=1) == cls.__base__(a=1),
    "hash": lambda cls: len({hash(x) for x in [cls(a=1, c=()), cls(a=1, c=())]}),
    "hash of a list": lambda cls: type(hash(cls(a=1))),
    "assign": lambda cls: setattr(cls(a=1), "a", 2),
    "assign another": lambda cls: setattr(cls(a=1), "z", 2),
    "delete": lambda cls: delattr(cls(a=1), "a"),
    "fields": lambda cls: [(f.name, f.default, f.kw_only) for f in dataclasses.fields(cls)],
    "replace": lambda cls: vars(dataclasses.replace(cls(a=1, e=2), a=3)),
    "replace by an unknown": lambda cls: dataclasses.replace(cls(a=1), f=3),
    "as a dict": lambda cls: dataclasses.asdict(cls(a=1)),
    "copy": lambda cls: vars(copy.deepcopy(cls(a=1, c=[1]))),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_use(both: tuple[Any, Any], question: str) -> None:
    theirs, ours = (outcome(lambda cls=cls: QUESTIONS[question](cls)) for cls in both)
    assert ours == theirs


@record
class Stored:
    a: int

    def __repr__(self) -> str:
        return "own"

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 7


def test_pickled() -> None:
    assert vars(pickle.loads(pickle.dumps(Stored(3)))) == {"a": 3}


def test_own_methods_stay() -> None:
    assert (repr(Stored(1)), Stored(1) == 2, hash(Stored(1))) == ("own", True, 7)
