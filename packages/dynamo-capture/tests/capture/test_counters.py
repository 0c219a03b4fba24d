"""Counters: an int that the region changes in each call takes two captures, wherever it is kept."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch
from torch import nn

import dynamo_capture

COUNT = 0


class Thing:
    count = 0


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x):
        self.count += 1
        return x * self.count


def on_an_object():
    thing = Thing()

    def fn(x):
        thing.count += 1
        return x * thing.count

    return fn, lambda n: setattr(thing, "count", n)


def on_a_module():
    module = Counted()
    return module, lambda n: setattr(module, "count", n)


def in_a_dict():
    held = {}

    def fn(x):
        held["n"] = held["n"] + 1
        return x * held["n"]

    return fn, lambda n: held.update(n=n)


def in_a_list():
    held = [0]

    def fn(x):
        held[0] += 1
        return x * held[0]

    return fn, lambda n: held.__setitem__(0, n)


def in_a_cell():
    n = 0

    def fn(x):
        nonlocal n
        n += 1
        return x * n

    def start(value):
        nonlocal n
        n = value

    return fn, start


def in_a_global():
    def fn(x):
        global COUNT
        COUNT += 1
        return x * COUNT

    def start(value):
        global COUNT
        COUNT = value

    return fn, start


def in_a_namespace():
    space = types.SimpleNamespace(n=0)

    def fn(x):
        space.n += 1
        return x * space.n

    return fn, lambda n: setattr(space, "n", n)


PLACES = [on_an_object, on_a_module, in_a_dict, in_a_list, in_a_cell, in_a_global, in_a_namespace]


class Backend:
    supports_dynamic_shapes = True

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, module, inputs):
        self.graphs += 1
        return module


@pytest.mark.parametrize("start", [0, 1, 2, 70])
@pytest.mark.parametrize("place", PLACES)
def test_two_captures(place, start):
    fn, begin = place()
    begin(start)
    backend = Backend()
    compiled = dynamo_capture.optimize(fn, backend)
    for n in range(start + 1, start + 12):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), float(n)))
    assert backend.graphs == 2


@pytest.mark.parametrize("make", [int, np.int64])
def test_an_argument_that_counts(make):
    backend = Backend()
    compiled = dynamo_capture.optimize(lambda x, n: x * n + 1, backend)
    for n in range(12):
        assert torch.equal(compiled(torch.ones(2), make(n)), torch.full((2,), n + 1.0))
    assert backend.graphs == 2


USES = {
    "size": lambda x, n: torch.ones(n) + x[:1],
    "broadcast": lambda x, n: torch.ones(n) * x,
    "expand": lambda x, n: x[None].expand(n, 6).sum(0),
    "view": lambda x, n: x.view(n, -1) + 1,
    "slice": lambda x, n: x[:n] * x[-n:],
    "index": lambda x, n: x[n - 1] + x[-n],
    "branch": lambda x, n: x + 1 if n > 2 else x - 1,
    "is it one": lambda x, n: x + 1 if n == 1 else x - 1,
    "divisor": lambda x, n: x / n + 6 // n + 6 % n,
    "range": lambda x, n: sum(x * i for i in range(n)) + x,
    "power": lambda x, n: x**n,
    "dimension": lambda x, n: x.view(1, 6).sum(n - 1) if n < 3 else x.sum(),
}


@pytest.mark.parametrize("values", [(3, 1, 2), (1, 2, 3), (2, 1, 6), (6, 3, 1), (1, 6, 1)])
@pytest.mark.parametrize("use", USES)
def test_one_is_a_value_like_any_other(use, values):
    fn = USES[use]
    compiled = dynamo_capture.optimize(fn, Backend())
    x = torch.randn(6)
    for n in (*values, *values):
        try:
            expected = fn(x, n)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match="size"):
                compiled(x, n)
            assert "size" in str(error)
            continue
        torch.testing.assert_close(compiled(x, n), expected)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_batch_norms_without_a_momentum(dims, capture):
    """Each batch counts alike: the rate is one over their number."""
    modules = []
    for make in (lambda m: m, lambda m: capture(m, fullgraph=True)):
        torch.manual_seed(0)
        module = getattr(nn, f"BatchNorm{dims}d")(3, momentum=None)
        run = make(module)
        results = []
        for step in range(6):
            module.train(step != 4)
            x = torch.randn(4, 3, *[5] * dims)
            results.append(run(x))
        modules.append((module, results, run))
    (eager, wanted, _), (ours, got, run) = modules
    for a, b in zip((*got, *ours.buffers()), (*wanted, *eager.buffers()), strict=True):
        torch.testing.assert_close(a, b)
    assert ours.num_batches_tracked.item() == 5
    assert len(run.graphs) <= 3 and not run.report.breaks


def test_a_batch_of_nothing_does_not_count(capture):
    modules = []
    for make in (lambda m: m, lambda m: capture(m, fullgraph=True)):
        torch.manual_seed(0)
        module = nn.BatchNorm1d(3, momentum=None)
        run = make(module)
        for count in (4, 5, 0, 3):
            run(torch.randn(count, 3, 2) + 1)
        modules.append(module)
    for ours, eager in zip(modules[1].buffers(), modules[0].buffers(), strict=True):
        torch.testing.assert_close(ours, eager)
