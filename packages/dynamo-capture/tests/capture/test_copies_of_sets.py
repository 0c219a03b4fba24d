"""``copy.deepcopy`` and ``copy.copy`` of sets, and of what holds them."""

from __future__ import annotations

import copy

import pytest
import torch


class Config:
    def __init__(self):
        self.names = {"b", "a"}
        self.inner = {"keys": {1, 2, 3}, "none": set()}


CONFIG = Config()
FROZEN = frozenset((1, 2))


def of_an_object(x):
    other = copy.deepcopy(CONFIG)
    other.names.add("c")
    other.inner["keys"].discard(1)
    return x + len(other.names) + len(CONFIG.names), sorted(other.names), other.inner, type(other) is Config


def of_sets(x):
    a, b, c = copy.deepcopy({1, 2}), copy.copy(FROZEN), copy.deepcopy(FROZEN)
    a.add(x.shape[0])
    return x + sum(a), a, b, c, copy.deepcopy({(1, 2): {3}})


def reduced(x):
    kind, args, state = {7}.__reduce_ex__(4)
    return x, kind is set, args, state, {7}.__reduce__()[1]


@pytest.mark.parametrize("fn", [of_an_object, of_sets, reduced])
def test_copies(fn, capture):
    compiled = capture(fn, fullgraph=True)
    for n in (4, 4, 5):
        CONFIG.inner["keys"] = set(range(n))
        got, wanted = compiled(torch.ones(n)), fn(torch.ones(n))
        assert torch.equal(got[0], wanted[0]) and got[1:] == wanted[1:]
