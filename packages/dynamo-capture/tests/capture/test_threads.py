"""Many threads, one compiled function: one of them captures, the others wait for it."""

from __future__ import annotations

import sys
import threading

import pytest
import torch
from torch import nn

import dynamo_capture
from prims.options import Options


def at_once(count, work):
    """Run ``work(i)`` on threads that start together; returns what they raised."""
    start, errors = threading.Barrier(count), []

    def run(i):
        start.wait()
        try:
            work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


@pytest.fixture
def quick_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_one_captures(capture, quick_switches):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.b(self.a(x).relu())

    net = nn.Sequential(*[Block() for _ in range(4)])
    c = capture(net)
    x = torch.randn(3, 4)
    want = net(x)

    def work(i):
        for _ in range(10):
            torch.testing.assert_close(c(x), want, rtol=0, atol=0)

    assert not at_once(16, work)
    assert len(c.graphs) == 1  # neither by another thread, nor of a submodule by a thread that did not wait
    assert not c.report.recompiles and not c.report.fallbacks


def test_different_shapes_at_once(capture, quick_switches):
    def fn(x):
        return (x * 2).softmax(-1).sum(0)

    c = capture(fn)

    def work(i):
        for n in range(20):
            x = torch.randn(i % 4 + 2, n % 3 + 2)
            torch.testing.assert_close(c(x), fn(x), rtol=0, atol=0)

    assert not at_once(16, work)
    assert len(c.graphs) <= 8 and not c.report.fallbacks


def test_breaks_and_loops_at_once(capture, quick_switches):
    def fn(x, seen):
        for k in range(3):
            x = x * 2 + k
            seen.append(x.sum().item())
        if x.sum() > 0:
            return x + 1
        return x - 1

    c = capture(fn)

    def work(i):
        for n in range(6):
            x = torch.randn(4) + (n % 2) * 10 - 5
            ours, theirs = [], []
            torch.testing.assert_close(c(x, ours), fn(x, theirs), rtol=0, atol=0)
            assert ours == theirs

    assert not at_once(16, work)


def test_a_function_that_runs_eagerly_says_so_once(capture, quick_switches):
    def fn(x):
        dynamo_capture.graph_break()
        return x + len(locals())

    c = capture(fn)
    errors = at_once(16, lambda i: torch.testing.assert_close(c(torch.ones(2)), torch.full((2,), 2.0)))
    assert not errors
    assert len(c.report.fallbacks) == 1


def test_grad_mode_is_each_threads_own(capture, quick_switches):
    def fn(x):
        return x * 2

    c = capture(fn)
    x = torch.ones(3, requires_grad=True)

    def work(i):
        for _ in range(20):
            with torch.set_grad_enabled(i % 2 == 0):
                assert c(x).requires_grad == (i % 2 == 0)

    assert not at_once(16, work)


def test_reset_meanwhile(quick_switches):
    def fn(x):
        return x.sin() + 1

    compiled = dynamo_capture.optimize(fn, dynamo_capture.supports_dynamic_shapes(lambda gm, inputs: gm.forward), options=Options(strict=True))

    def work(i):
        for n in range(10):
            if i == 0:
                dynamo_capture.reset()
            x = torch.randn(n % 3 + 2)
            torch.testing.assert_close(compiled(x), fn(x), rtol=0, atol=0)

    assert not at_once(8, work)
