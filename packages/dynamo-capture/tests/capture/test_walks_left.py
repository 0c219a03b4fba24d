"""Walks of containers that a region has made, of their own classes too, which a graph break leaves in the middle.

The container is filled before its walk is taken up: one that is filled afterwards was empty where the walk began.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

import dynamo_capture


class Dict(dict): ...


class Ordered(collections.OrderedDict): ...


class Default(collections.defaultdict): ...


class List(list): ...


class Set(set): ...


class Deque(collections.deque): ...


def pairs(text: str) -> dict[str, int]:
    return {c: ord(c) for c in text}


CONTAINERS: dict[str, Callable[[str], Any]] = {
    "dict": lambda text: pairs(text),
    "Counter": lambda text: collections.Counter(text),
    "OrderedDict": lambda text: collections.OrderedDict(pairs(text)),
    "defaultdict": lambda text: collections.defaultdict(int, pairs(text)),
    "ChainMap": lambda text: collections.ChainMap(pairs(text)),
    "UserDict": lambda text: collections.UserDict(pairs(text)),
    "UserList": lambda text: collections.UserList(text),
    "subclass of dict": lambda text: Dict(pairs(text)),
    "subclass of OrderedDict": lambda text: Ordered(pairs(text)),
    "subclass of defaultdict": lambda text: Default(int, pairs(text)),
    "subclass of list": lambda text: List(text),
    "subclass of set": lambda text: Set(text),
    "subclass of deque": lambda text: Deque(text),
    "deque": lambda text: collections.deque(text),
    "set": lambda text: set(text),
    "frozenset": lambda text: frozenset(text),
}
WALKS: dict[str, Callable[[Any], Iterable[Any]]] = {
    "itself": lambda c: c,
    "iter": lambda c: iter(c),
    "keys": lambda c: c.keys(),
    "values": lambda c: c.values(),
    "items": lambda c: c.items(),
    "reversed": lambda c: reversed(c),
    "enumerate": lambda c: enumerate(c),
    "zip with itself": lambda c: zip(c, c, strict=True),
    "map": lambda c: map(str, c),
}


def can_be_walked(container: str, walk: str) -> bool:
    try:
        list(WALKS[walk](CONTAINERS[container]("a")))
    except (TypeError, AttributeError):
        return False
    return True


CASES = [(container, walk) for container in CONTAINERS for walk in WALKS if can_be_walked(container, walk)]


@pytest.mark.parametrize(("container", "walk"), CASES)
def test_a_break_in_a_walk(container: str, walk: str) -> None:
    make, begin = CONTAINERS[container], WALKS[walk]

    def program(x: torch.Tensor, text: str) -> tuple[torch.Tensor, list[str], Any]:
        seen, made = [], make(text)
        for item in begin(made):
            x = x + 1
            dynamo_capture.graph_break()
            seen.append(str(item))
        return x, seen, made

    optimized = dynamo_capture.optimize(program, lambda gm, inputs: gm.forward)
    for text in ("abac", "abac", "q", "zy"):
        expected, got = program(torch.zeros(1), text), optimized(torch.zeros(1), text)
        assert got[0].item() == expected[0].item() and got[2] == expected[2] and type(got[2]) is type(expected[2])
        assert got[1] == expected[1] if "set" not in container else sorted(got[1]) == sorted(expected[1])
