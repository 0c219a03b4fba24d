"""Tables of a capture go by the identities of values, which therefore live as long as the tables do."""

from __future__ import annotations

import gc
import types

import pytest
import torch

import dynamo_capture


class Kind(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


class First(Kind):
    pass


class Second(Kind):
    pass


class Third(Kind):
    pass


def deep_iterators_beside_classes(x, items):
    """Iterators inside iterators hold numbers that only planning makes; the classes are made when code is emitted."""
    chains = []
    for _ in range(3):
        found = iter(items)
        for _ in range(40):
            found = enumerate(found)
            next(found)
        chains.append(found)
    y = x + 1
    return y.as_subclass(Kind), (y * 2).as_subclass(First), (y * 3).as_subclass(Second), (y * 4).as_subclass(Third), chains


def test_what_planning_makes_keeps_its_identity(capture):
    for call in range(12):
        dynamo_capture.reset()
        compiled = capture(deep_iterators_beside_classes)
        given = torch.arange(4.0) + call, list(range(200))
        found, wanted = compiled(*given), deep_iterators_beside_classes(*given)
        assert [type(each) for each in found[:4]] == [type(each) for each in wanted[:4]]
        torch.testing.assert_close([each.as_subclass(torch.Tensor) for each in found[:4]],
                                   [each.as_subclass(torch.Tensor) for each in wanted[:4]])  # fmt: skip
        assert [next(each) for each in found[4]] == [next(each) for each in wanted[4]]


LOG = []


class Box:
    pass


def made():
    try:
        yield 1
    finally:
        LOG.append("made")


def making(box):
    try:
        yield 1
    finally:
        started = made()
        next(started)
        box.held.append(started)
        LOG.append("making")


def dropping(box):
    try:
        yield 1
    finally:
        box.held = None
        LOG.append("dropping")


def closed_in_order(x, box):
    """What closing one generator makes may get the address of an object that the function has let go of."""
    one, two, three, four = Box(), Box(), Box(), Box()  # noqa: F841
    a, b = making(box), dropping(box)
    next(a), next(b)
    return x + 1


def test_generators_are_closed_in_their_order(capture):
    rows = []
    for run in (closed_in_order, capture(closed_in_order, strict=False)):
        LOG.clear()
        box = Box()
        box.held = []
        run(torch.ones(2), box)
        rows.append(list(LOG))
    assert rows[0] == rows[1]


def test_a_namespace_without_a_name_is_guarded(capture):
    """A global that hides a builtin, in the namespace of code that was executed without one of a module."""
    space = {}
    exec("def inner(x):\n    return x * abs(-3)", space)
    inner = space["inner"]
    compiled = capture(lambda x: inner(x) + 1)
    x = torch.ones(2)
    torch.testing.assert_close(compiled(x), inner(x) + 1)
    space["abs"] = lambda number: 7
    torch.testing.assert_close(compiled(x), inner(x) + 1)


@pytest.mark.parametrize("name", ["torch.made", "collections"])
def test_a_namespace_that_takes_a_librarys_name_is_guarded(capture, name):
    """The libraries' own globals are taken as fixed, and not kept: another dict may get the address of one that is gone."""
    code = next(each for each in compile("def inner(x): return x * k", "<made>", "exec").co_consts
                if isinstance(each, types.CodeType))  # fmt: skip
    compiled = capture(lambda x, fn: fn(x) + 1, recompile_limit=40)
    x = torch.ones(2)
    for number in range(20):
        inner = types.FunctionType(code, {"__name__": name, "k": float(number)})
        torch.testing.assert_close(compiled(x, inner), x * number + 1)
        del inner
        gc.collect()
