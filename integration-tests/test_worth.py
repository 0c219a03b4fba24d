"""``worth_it()``: what it says is about the program that it was given; seconds themselves are not judged."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import compile_api
from compile_api import errors, worth


def model():
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 3))


def test_ways_and_what_they_share():
    program, x = model(), torch.randn(512, 64)
    before = [p.clone() for p in program.parameters()]
    state = torch.get_rng_state()
    found = compile_api.worth_it(program, x, rounds=3)
    assert [way.name for way in found.ways] == ["eager", "quintet"]
    assert found["quintet"].first > found["quintet"].call > 0
    assert found.report.verdict == "compiled" and found.report.kernels
    assert all(p.grad is None for p in program.parameters()), "gradients are taken, not left behind"
    assert all(map(torch.equal, before, program.parameters())) and torch.equal(state, torch.get_rng_state())
    (library,) = (x for x in found.limits if "stay the library's" in x)
    assert "addmm" in library and "at most" in library
    assert all(str(way) in str(found) for way in found.ways) and f"{found.speedup:.3g} times" in str(found)


def test_slow_ones_are_seen_and_never_pay():
    import time

    def sleepy(program):
        def run(*args):
            time.sleep(0.05)
            return program(*args)

        return run

    found = compile_api.worth_it(torch.sin, torch.randn(10), beside={"sleepy": sleepy}, rounds=2)
    assert found["sleepy"].call >= 0.05 and found["sleepy"].pays_after is None
    assert "never pays" in str(found["sleepy"])


def test_breaks_are_limits():
    def program(x):
        y = x.sin()
        compile_api.graph_break()
        return y * 2

    found = compile_api.worth_it(program, torch.randn(10), rounds=1)
    (line,) = (x for x in found.limits if "graph break" in x)
    assert line.startswith("1 graph break(s)") and "test_worth.py" in line


def test_when_it_pays():
    """Eager takes 10 a call; another takes 100 for its first one, and then 8 (or 12, or 8 without compiling)."""

    def after(first, call):
        return worth._pays_after({"eager": 10.0, "x": first}, {"eager": 10.0, "x": call}, "x")

    assert after(100.0, 8.0) == 47 and after(100.0, 12.0) is None and after(8.0, 8.0) == 1
    for first, call in ((100.0, 8.0), (31.0, 9.5), (1000.0, 1.0)):
        n = after(first, call)
        assert first + call * (n - 1) < 10.0 * n and first + call * (n - 2) >= 10.0 * (n - 1)


def test_bad_arguments():
    for beside in ({"torch.compile": "inductor"}, {"eager": lambda f: f}):
        with pytest.raises(errors.UserError, match="beside has"):
            compile_api.worth_it(torch.sin, torch.ones(1), beside=beside)


def test_torch_compile_beside_ours():
    """In a process of its own, as it changes what is imported; its backend ``eager`` needs no compiler."""
    script = """
import torch, compile_api
found = compile_api.worth_it(lambda x: x.sin() * 2, torch.randn(100), rounds=1,
                             beside={"torch.compile": lambda f: torch.compile(f, backend="eager")})
print([way.name for way in found.ways])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "['eager', 'quintet', 'torch.compile']" in done.stdout
    script = "import sys, torch, compile_api\ncompile_api.worth_it(torch.sin, torch.ones(9), rounds=1)\n"
    script += "print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "False" in done.stdout
