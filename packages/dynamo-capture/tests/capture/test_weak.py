"""Weak references and dictionaries of them: answers, changed objects, what dies."""

from __future__ import annotations

import functools
import gc
import weakref

import pytest
import torch

import dynamo_capture


class Thing:
    def __init__(self, factor=1.0):
        self.factor = factor


class Other:
    pass


class ByValue:
    def __init__(self, tag):
        self.tag = tag

    def __eq__(self, other):
        return isinstance(other, ByValue) and other.tag == self.tag

    def __hash__(self):
        return hash(self.tag)


class Child(torch.nn.Module):
    def __init__(self, parent):
        super().__init__()
        self.parent = weakref.ref(parent)

    def forward(self, x):
        parent = self.parent()
        return x if parent is None else x * parent.factor


def helper(x):
    return x


THING = Thing(2.0)
REFERENCE = weakref.ref(THING)
WITH_CALLBACK = weakref.ref(THING, lambda _: None)
BY_KEY = weakref.WeakKeyDictionary({Thing: 3, THING: 4})
BY_VALUE = weakref.WeakValueDictionary({"thing": THING})
SET = weakref.WeakSet([Thing, THING])


def not_referable(x):
    try:
        weakref.ref(5)
    except TypeError as error:
        return x + 1, str(error)


def kept(x, holder):
    holder.seen = weakref.ref(Thing)
    return x + 1


def through_a_break(x):
    reference = weakref.ref(THING)
    y = x * reference().factor
    dynamo_capture.graph_break()
    return y + reference().factor


ONE_GRAPH = {
    "of a class": lambda x: x + (weakref.ref(Thing)() is Thing),
    "of a function": lambda x: x + (weakref.ref(helper)() is helper),
    "of an object": lambda x: x * weakref.ref(THING)().factor,
    "of a tensor": lambda x: weakref.ref(x)() + 1,
    "existing": lambda x: x * REFERENCE().factor,
    "with a callback": lambda x: x * WITH_CALLBACK().factor,
    "None for a callback": lambda x: x + (weakref.ref(Thing, None)() is Thing),
    "a class of them": lambda x: x + isinstance(weakref.ref(Thing), weakref.ReferenceType),
    "truth": lambda x: x + (1 if weakref.ref(Thing) else 2),
    "the same twice": lambda x: x + ((r := weakref.ref(Thing)) is r) + (weakref.ref(Thing) is None),
    "returned": lambda x: (x + 1, weakref.ref(Thing)),
    "not referable": not_referable,
    "a key": lambda x: x + BY_KEY[Thing] + BY_KEY.get(THING, 0),
    "no key": lambda x: x + BY_KEY.get(Other, 7) + (Other in BY_KEY) + (Thing in BY_KEY) + (5 in BY_KEY),
    "an absent key": lambda x: x + absent(),
    "a value": lambda x: x * BY_VALUE["thing"].factor + (BY_VALUE.get("nothing") is None) + ("thing" in BY_VALUE),
    "in a set": lambda x: x + (Thing in SET) + (Other in SET),
}


@functools.singledispatch
def by_class(value):
    return 1


@by_class.register
def _(value: int):
    return 2


def absent():
    try:
        return BY_KEY[Other]
    except KeyError:
        return 9


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if type(a) in (list, tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return a is b or (type(a) is type(b) and a == b)


@pytest.mark.parametrize("name", ONE_GRAPH)
def test_one_graph(name, capture):
    function = ONE_GRAPH[name]
    compiled = capture(function)
    for n in range(3):
        x = torch.arange(4.0) + n
        assert same(compiled(x), function(x))
    assert len(compiled.graphs) == 1 and not compiled.report.breaks and not compiled.report.fallbacks


BREAKS = {
    "two of them": lambda x: x + (weakref.ref(THING) is REFERENCE) + (weakref.ref(THING) is WITH_CALLBACK),
    "compared": lambda x: x + (weakref.ref(THING) == REFERENCE) + (weakref.ref(Thing) != REFERENCE),
    "made here": lambda x: x + (weakref.ref(Thing())() is None),
    "its hash": lambda x: x + (hash(weakref.ref(THING)) == hash(THING)),
    "its callback": lambda x: x + (REFERENCE.__callback__ is None),
    "around a break": through_a_break,
    "dispatched by class": lambda x: x + by_class(1.5) + by_class(3) + by_class("a"),
    "all keys": lambda x: x + len(list(BY_KEY.items())),
}


@pytest.mark.parametrize("name", BREAKS)
def test_as_eager(name, capture):
    function = BREAKS[name]
    compiled = capture(function, strict=False)
    for n in range(3):
        x = torch.arange(4.0) + n
        assert same(compiled(x), function(x))


def test_stored_and_equal(capture):
    things = [Thing(), Thing()]
    for function in (kept, capture(kept)):
        holder = things.pop()
        for _ in range(2):
            function(torch.ones(2), holder)
            assert holder.seen() is Thing


def test_keys_that_come_and_go(capture):
    table = weakref.WeakKeyDictionary()

    def function(x, key):
        return x + table.get(key, 1) + (key in table)

    compiled = capture(function)
    first, second = Thing(), Thing()
    for step in range(4):
        if step == 1:
            table[first] = 10
        if step == 2:
            table[second] = 20
        if step == 3:
            del table[first]
        for key in (first, second):
            assert same(compiled(torch.ones(2), key), function(torch.ones(2), key))
    died = weakref.ref(first)
    del first, key
    gc.collect()
    assert died() is None
    assert same(compiled(torch.ones(2), second), function(torch.ones(2), second))


def test_keys_that_compare_by_value(capture):
    table = weakref.WeakKeyDictionary()
    kept = ByValue(1)
    table[kept] = 5

    def function(x, key):
        return x + table.get(key, 1)

    compiled = capture(function)
    for tag in (1, 2, 1):
        key = ByValue(tag)
        assert same(compiled(torch.ones(2), key), function(torch.ones(2), key))


def test_what_died(capture):
    parent = Thing(3.0)
    child = Child(parent)
    compiled = capture(child)
    assert same(compiled(torch.ones(2)), torch.full((2,), 3.0))
    parent.factor = 5.0
    assert same(compiled(torch.ones(2)), torch.full((2,), 5.0))
    assert len(compiled.graphs) <= 2 and not compiled.report.breaks
    died = weakref.ref(parent)
    del parent
    gc.collect()
    assert died() is None
    assert same(compiled(torch.ones(2)), torch.ones(2))


def test_what_the_region_lets_go_of(capture):
    class Owner:
        pass

    def function(x, owner):
        reference = weakref.ref(owner.held)
        owner.held = None
        return x + (reference() is None)

    def of_argument(x, thing):
        reference = weakref.ref(thing)
        del thing
        return x + (reference() is None)

    for run in (function, capture(function, strict=False)):
        owner = Owner()
        owner.held = keeps = Thing()
        assert same(run(torch.ones(2), owner), torch.ones(2))
        assert owner.held is None and keeps
    compiled = capture(of_argument, strict=False)
    keeps = Thing()
    assert same(compiled(torch.ones(2), keeps), of_argument(torch.ones(2), keeps))


class Keeper:
    def __init__(self):
        self.thing = Thing(3.0)
        self.reference = weakref.ref(self.thing)
        self.steps, self.log, self.table = 0, [], {"a": Thing(1.0)}


def counts(x, keeper):
    keeper.steps += 1
    keeper.log.append(keeper.steps)
    return x * keeper.reference().factor


def replaces_another(x, keeper):
    keeper.table = {}
    return x * keeper.reference().factor


def lets_go(x, keeper):
    keeper.thing = None
    found = keeper.reference()
    return x if found is None else x * found.factor


def lets_go_by_a_list(x, keeper):
    keeper.log = [keeper.thing]
    keeper.thing = 0
    keeper.log.clear()
    found = keeper.reference()
    return x if found is None else x * found.factor


@pytest.mark.parametrize("fn", [counts, replaces_another, lets_go, lets_go_by_a_list], ids=lambda fn: fn.__name__)
def test_changes_before_a_weak_reference_is_called(fn, capture):
    """They end the graph only where what they replace leads to the object."""
    compiled = capture(fn, strict=False)
    for _ in range(3):
        keepers = Keeper(), Keeper()
        ours, expected = compiled(torch.ones(2), keepers[0]), fn(torch.ones(2), keepers[1])
        assert torch.equal(ours, expected)
        assert (keepers[0].reference() is None) is (keepers[1].reference() is None)
        assert keepers[0].steps == keepers[1].steps and len(keepers[0].log) == len(keepers[1].log)
    whole = not compiled.report.breaks and not compiled.report.fallbacks
    assert whole is not fn.__name__.startswith("lets")


class Referent:
    shared = 5.0

    def __init__(self):
        self.own = 2.0

    def method(self):
        return self.own

    def __call__(self):
        return 3.0

    def __len__(self):
        return 4

    def __iter__(self):
        return iter((1, 2))

    def __getitem__(self, i):
        return i * 2

    def __contains__(self, i):
        return i == 7

    def __add__(self, other):
        return 9.0

    def __bool__(self):
        return False

    def __eq__(self, other):
        return True

    __hash__ = None  # type: ignore[assignment]

    def __str__(self):
        return "7"


def _in_try(x, p):
    try:
        return x + p.own
    except AttributeError:
        return x - 1


PROXIED = {
    "try": _in_try,
    "attribute": lambda x, p: x + p.own,
    "default": lambda x, p: x + getattr(p, "own", 100.0),
    "hasattr": lambda x, p: x + 1 if hasattr(p, "shared") else x - 1,
    "absent": lambda x, p: x + 1 if hasattr(p, "absent") else x - 1,
    "method": lambda x, p: x * p.method(),
    "call": lambda x, p: x * p(),
    "len": lambda x, p: x * len(p),
    "sum": lambda x, p: x * sum(p),
    "item": lambda x, p: x * p[3],
    "in": lambda x, p: x + 1 if 7 in p else x - 1,
    "operator": lambda x, p: x * (p + 1),
    "truth": lambda x, p: x + 1 if p else x - 1,
    "equal": lambda x, p: x + 1 if p == 3 else x - 1,
    "isinstance": lambda x, p: x + 1 if isinstance(p, Referent) else x - 1,
    "type": lambda x, p: x + 1 if type(p) is Referent else x - 1,
    "class": lambda x, p: x + 1 if p.__class__ is Referent else x - 1,
    "text": lambda x, p: x * int(str(p)) + int(f"{p}"),
    "callable": lambda x, p: x + 1 if callable(p) else x - 1,
}


@pytest.mark.parametrize("name", PROXIED)
def test_proxies_answer_for_what_they_stand_for(capture, name):
    """Their C code asks the referent, of which the proxy's class knows nothing."""
    referent = Referent()
    proxy = weakref.proxy(referent)
    compiled = capture(PROXIED[name], strict=False)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(2), proxy), PROXIED[name](torch.ones(2), proxy))
    referent.own = 8.0
    assert torch.equal(compiled(torch.ones(2), proxy), PROXIED[name](torch.ones(2), proxy))
