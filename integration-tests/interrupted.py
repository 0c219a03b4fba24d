"""A program whose first compile is broken off at a chosen point: by an exception in place of an audited event, or by a
signal that arrives at that event. Then it compiles again, and that must work as if nothing had happened.

``python interrupted.py MODE FIRST LAST STEP``: a child per point, forked before anything is compiled; a line for each that went
wrong, and the number of points.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import warnings
from typing import Any

import torch

import compile_api

MODES = {
    "signal": KeyboardInterrupt, "exit": SystemExit, "memory": MemoryError,
    "raise-signal": KeyboardInterrupt, "raise-exit": SystemExit, "raise-memory": MemoryError,
}  # fmt: skip


def f(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() @ x.T).softmax(-1)


def g(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm((x.cos() @ x.T).tanh(), (3,)).cumsum(-1)


def wide(x: torch.Tensor) -> torch.Tensor:
    """Other families of operators than ``g``."""
    y = torch.cat([x[:, 1:], x[:, :1]], 1).index_select(0, torch.tensor([2, 0, 1])) + torch.nn.functional.gelu(x)
    return y.clamp(min=0).amax(-1) + torch.linalg.inv(y @ y.T + torch.eye(3)).sum()


class Points:
    """Counts events and strikes at one of them."""

    def __init__(self, mode: str, at: int) -> None:
        self.error = MODES[mode]
        self.by_signal = not mode.startswith("raise")
        self.at = at
        self.count = 0
        self.on = False

    def event(self, *event: Any) -> None:
        if not self.on:
            return
        self.count += 1
        if self.count == self.at:
            if self.by_signal:
                os.kill(os.getpid(), signal.SIGINT)
            else:
                raise self.error("injected")

    def struck(self, *frame: Any) -> None:
        raise self.error("injected")


def trial(mode: str, at: int) -> tuple[int, str]:
    """How many points there are up to the end of the first compile, and what is wrong after it, or nothing."""
    points = Points(mode, at)
    signal.signal(signal.SIGINT, points.struck)
    sys.addaudithook(points.event)
    if points.by_signal:  # collections are points too: they come between any two instructions
        gc.callbacks.append(lambda phase, info: points.event() if phase == "start" else None)
        gc.set_threshold(200, 5, 5)
    torch.manual_seed(0)  # some numbers make the normalisation of three values ill-conditioned
    x = torch.rand(3, 3) + torch.eye(3)
    points.on = True
    try:
        compile_api.compile(f)(x.requires_grad_()).sum().backward()
    except points.error:
        pass
    points.on = False
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wrong = []
    for fn in (f, g, wide):
        y = x.detach().clone().requires_grad_()
        compiled = compile_api.compile(fn)
        out = compiled(y)
        out.sum().backward()
        z = x.detach().clone().requires_grad_()
        expected = fn(z)
        expected.sum().backward()
        report = compiled.report()
        if report.fallbacks or not report.kernels:
            reasons = sorted({str(r.reason)[:300] for r in report.fallbacks})
            wrong.append(f"{fn.__name__}: {len(report.kernels)} kernels, {reasons}")
        if not torch.allclose(out, expected, atol=1e-5) or not torch.allclose(y.grad, z.grad, atol=1e-4):
            wrong.append(f"{fn.__name__}: other results")
    return points.count, "; ".join(wrong)


def child(mode: str, at: int, out: int) -> None:
    """A trial in a forked child, its answer written to ``out``."""
    signal.alarm(120)
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)
    try:
        count, wrong = trial(mode, at)
        answer = f"{count}\n{wrong}"
    except BaseException as error:
        import traceback

        where = traceback.extract_tb(error.__traceback__)[-3:]
        answer = f"0\n{type(error).__name__}: {error} {[f'{s.filename[-40:]}:{s.lineno}' for s in where]}"
    os.write(out, answer.encode())
    os._exit(0)


def main(mode: str, first: int, last: int, step: int) -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    bad = tried = 0
    for at in range(first, last, step):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            child(mode, at, write)
        os.close(write)
        with os.fdopen(read) as pipe:
            count, _, wrong = pipe.read().partition("\n")
        status = os.waitpid(pid, 0)[1]
        tried += 1
        if status or wrong:
            bad += 1
            print(f"{mode} at {at}: status {status}, {wrong}", flush=True)
        if count.isdigit() and 0 < int(count) < at:
            break  # past the end of the first compile
    print(f"{tried} points, {bad} wrong")
    return bad


if __name__ == "__main__":
    begun = time.monotonic()
    code = main(sys.argv[1], *map(int, sys.argv[2:5]))
    sys.exit(min(code, 100))
