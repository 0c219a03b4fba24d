"""Operators that raise because of their data, compiled: what clauses of the program write on the way out is written, what
the program wrote before is written once, and regions around which nothing raises stay whole."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

import compile_api

pytestmark = pytest.mark.filterwarnings("ignore")


def finally_writes(x, at, cache):
    try:
        z = (x * 2).gather(0, at)
    finally:
        x += 1
    return z


def finally_of_failures(x, at, cache):
    done = False
    try:
        z = (x * 2)[at] * 3
        done = True
    finally:
        if not done:
            cache.add_(x.detach().sum())
    return z


def written_before(x, at, cache):
    x.mul_(3)
    cache[1] = 7.0
    return (x * 2).gather(0, at)


def written_after(x, at, cache):
    z = (x * 2).gather(0, at)
    cache.index_copy_(0, at[:1], x.detach()[:1])
    x.add_(1)
    return z


def written_between(x, at, cache):
    try:
        cache.index_copy_(0, at[1:], x.detach()[:1])
        z = (x * 2).gather(0, at)
        cache.zero_()
    except RuntimeError:
        cache.mul_(2)
        z = x * 5
    return z.sum() + x.sum() + cache.sum()


@contextlib.contextmanager
def counting(x, cache):
    cache += 1
    try:
        yield
    finally:
        x.add_(1)


def manager_writes(x, at, cache):
    with counting(x, cache), torch.no_grad():
        z = (x * 2).index_select(0, at)
    return z + x.sum()


PROGRAMS = [finally_writes, finally_of_failures, written_before, written_after, written_between, manager_writes]


def outcome(fn, at, training):
    weight = torch.arange(3.0).requires_grad_(training)
    x, cache = weight * 1, torch.ones(4)
    try:
        result = fn(x, torch.tensor(at), cache)
    except Exception as error:
        result = type(error).__name__
    if training:
        (x.sum() + (result.sum() if isinstance(result, torch.Tensor) else 0)).backward()
    return [each.tolist() if isinstance(each, torch.Tensor) else each for each in (result, x, cache, weight.grad)]


@pytest.mark.parametrize("backend", ["inductor", "aot_eager", "eager"])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_what_is_written_when_an_operator_raises(fn, training, backend):
    compile_api.reset()
    compiled = compile_api.compile(fn, backend=backend)
    for at in ([0, 1], [0, 9], [2, 1], [7, 0], [1, 2]):
        assert outcome(compiled, at, training) == outcome(fn, at, training)
    report = compiled.report()
    assert report.graphs
    if backend == "inductor":
        assert report.kernels
        assert not report.breaks


class Counter:
    def __init__(self):
        self.count = 0

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.count += 1


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.counter = nn.Linear(4, 4), nn.BatchNorm1d(4), Counter()

    def forward(self, x):
        self.counter.count += 1
        with self.counter, torch.autograd.profiler.record_function("forward"), torch.autocast("cpu", enabled=False):
            try:
                return self.norm(self.linear(x)).relu()
            finally:
                self.counter.count += 1


@pytest.mark.parametrize("backend", ["inductor", "aot_eager", "eager"])
def test_training_with_running_means_within_clauses_is_one_graph(backend):
    torch.manual_seed(0)
    model = Normed()
    compiled = compile_api.compile(model, backend=backend, fullgraph=True)
    for _ in range(3):
        compiled(torch.randn(8, 4)).sum().backward()
    assert model.counter.count == 9
    assert model.norm.num_batches_tracked == 3
    assert sum(graph.dialect == "torch" for graph in compiled.report().graphs) <= 2  # the counter becomes symbolic
    assert not compiled.report().breaks
