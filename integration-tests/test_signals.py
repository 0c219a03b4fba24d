"""What a signal's handler raises leaves a compiled call, also while it compiles, and is no failure of it."""

from __future__ import annotations

import functools
import signal
import threading
import time

import pytest
import torch

import compile_api

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers that send signals")


class TimeLimit(Exception):
    pass


def raise_limit(number, frame):
    raise TimeLimit("time limit")


class Handler:
    def method(self, number, frame):
        raise_limit(number, frame)

    def __call__(self, number, frame):
        raise_limit(number, frame)


HANDLERS = {
    "function": raise_limit,
    "method": Handler().method,
    "object": Handler(),
    "partial": functools.partial(lambda told, number, frame: raise_limit(number, frame), "told"),
}


@pytest.fixture
def alarm(request):
    """Sets a handler of the timer's signal; the timer is off afterwards, and the handler what it was."""
    before = signal.getsignal(signal.SIGALRM)

    def begin(handler, seconds):
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    yield begin
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def many(x, n):
    for k in range(n):
        x = (x @ x.T + k).sin().softmax(-1)
    return x


@pytest.mark.parametrize("handler", HANDLERS)
def test_while_it_compiles(alarm, handler):
    x = torch.rand(4, 4)
    struck = 0
    for limit in (0.02, 0.05, 0.1, 0.2, 0.4):
        compiled = compile_api.compile(many, options={"program_cache": False})
        alarm(HANDLERS[handler], limit)
        try:
            compiled(x, 150)
        except TimeLimit:
            struck += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        assert signal.getsignal(signal.SIGALRM) is HANDLERS[handler] or handler == "method"
        reasons = [record.reason or "" for record in compiled.report().statuses]
        assert not any("TimeLimit" in reason for reason in reasons), reasons
        compiled(x, 5)
        assert compiled.report().kernels and not compiled.report().fallbacks
    assert struck >= 2


def test_while_a_backward_pass_compiles(alarm):
    x = torch.rand(4, 4, requires_grad=True)
    struck = 0
    for limit in (0.005, 0.02, 0.05, 0.1):
        compiled = compile_api.compile(many, options={"program_cache": False})
        loss = compiled(x, 40).sum()
        alarm(raise_limit, limit)
        try:
            loss.backward()
        except TimeLimit:
            struck += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        compiled(x, 40).sum().backward()
        assert not compiled.report().fallbacks, compiled.report().fallbacks
    assert struck >= 1


def test_while_compiled_code_runs(alarm):
    """However long the region runs, no handler's error makes it one that fails."""
    compiled = compile_api.compile(lambda x: ((x @ x).sin() @ x).cos())
    x = torch.rand(300, 300)
    compiled(x)
    struck = 0
    for k in range(40):
        alarm(raise_limit, 0.002 + 0.0001 * k)
        try:
            while True:
                compiled(x)
        except TimeLimit:
            struck += 1
    assert struck == 40
    report = compiled.report()
    assert report.verdict == "compiled" and not report.fallbacks, report


def test_handlers_that_raise_nothing_run(alarm):
    seen = []
    compiled = compile_api.compile(many, options={"program_cache": False})
    alarm(lambda number, frame: seen.append(number), 0.05)
    compiled(torch.rand(4, 4), 100)
    time.sleep(0.06)
    assert seen == [signal.SIGALRM] and compiled.report().verdict == "compiled"


def test_another_thread_compiles():
    """Which may exchange no handlers."""
    compiled = compile_api.compile(many, options={"program_cache": False})
    thread = threading.Thread(target=compiled, args=(torch.rand(4, 4), 20))
    thread.start()
    thread.join()
    assert compiled.report().verdict == "compiled"
