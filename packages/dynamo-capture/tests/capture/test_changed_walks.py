"""Walks of existing containers that the region has changed before a break: they go on, over what is there then."""

from __future__ import annotations

import collections
import copy

import pytest
import torch

import dynamo_capture


class Mapping(dict):
    pass


PAIRS = [("a", 1), ("b", 2), ("c", 3)]
DICTS = {
    "dict": lambda: dict(PAIRS),
    "subclass": lambda: Mapping(PAIRS),
    "defaultdict": lambda: collections.defaultdict(int, PAIRS),
    "OrderedDict": lambda: collections.OrderedDict(PAIRS),
    "Counter": lambda: collections.Counter(dict(PAIRS)),
}
DICT_CHANGES = {
    "del": lambda d: d.__delitem__("a"),
    "setdefault": lambda d: d.setdefault("z", 26),
    "new key": lambda d: d.__setitem__("y", 25),
    "pop and set": lambda d: d.__setitem__("b", d.pop("b")),
    "update": lambda d: d.update(a=7, q=8),
    "clear": lambda d: d.clear(),
    "value": lambda d: d.__setitem__("b", 20),
}
WALKS = {
    "keys": iter,
    "items": lambda d: iter(d.items()),
    "values": lambda d: iter(d.values()),
    "reversed": lambda d: reversed(d.keys()),
    "enumerate": lambda d: enumerate(d.items()),
    "zip": lambda d: zip(d, d.values()),
}
DEQUE_CHANGES = {
    "append": lambda d: d.append(9),
    "popleft": lambda d: d.popleft(),
    "rotate": lambda d: d.rotate(1),
    "item": lambda d: d.__setitem__(1, 5),
}


def check(fn, make):
    """The results and the container afterwards are eager's, in the call that captures and in the next."""
    compiled = dynamo_capture.optimize(fn, lambda module, inputs: module)
    for _ in range(2):
        given = make()
        theirs = copy.deepcopy(given)
        ours = compiled(torch.ones(3), given)
        expected = fn(torch.ones(3), theirs)
        assert torch.equal(ours[0], expected[0])
        assert ours[1:] == expected[1:]
        assert given == theirs
        assert list(given) == list(theirs)
    found = dynamo_capture.explain(fn)(torch.ones(3), make())
    assert found.graph_count and not found.report.fallbacks


def loop(change, walk, advanced):
    def fn(x, given):
        change(given)
        y = x.sin()
        iterator = walk(given)
        first = next(iterator, None) if advanced else None
        seen = []
        for item in iterator:
            dynamo_capture.graph_break()
            seen.append(item)
        return y + 1, first, seen

    return fn


@pytest.mark.parametrize("advanced", [False, True])
@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("change", DICT_CHANGES)
@pytest.mark.parametrize("kind", DICTS)
def test_dicts(kind, change, walk, advanced):
    check(loop(DICT_CHANGES[change], WALKS[walk], advanced), DICTS[kind])


@pytest.mark.parametrize("advanced", [False, True])
@pytest.mark.parametrize("walk", [iter, reversed])
@pytest.mark.parametrize("change", DEQUE_CHANGES)
def test_deques(change, walk, advanced):
    check(loop(DEQUE_CHANGES[change], walk, advanced), lambda: collections.deque([1, 2, 3]))


def test_a_dict_changed_while_it_is_walked_still_raises():
    def fn(x, given):
        y = x.sin()
        for key in given:
            dynamo_capture.graph_break()
            given[key + "!"] = 1
        return y

    with pytest.raises(RuntimeError, match="changed size"):
        dynamo_capture.optimize(fn, lambda module, inputs: module)(torch.ones(3), dict(PAIRS))


def test_the_walk_is_returned():
    def fn(x, given):
        given.pop("a")
        iterator = iter(given.items())
        return x.sin(), next(iterator), iterator

    given = dict(PAIRS)
    _, first, rest = dynamo_capture.optimize(fn, lambda module, inputs: module)(torch.ones(3), given)
    assert (first, list(rest), given) == (("b", 2), [("c", 3)], {"b": 2, "c": 3})
