"""``profile()``: each kernel and library call of one call, once for each launch, with times that add up; nothing stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
import torch

import compile_api
from inductor_gen.runtime import steps
from prims.errors import UserError


def program(x, w):
    y = torch.softmax(x.sin() @ w, -1)
    return (y.cumsum(0) @ w).cos()


def names(records):
    return Counter(record.name for record in records)


def test_every_launch_once_and_times_that_add_up():
    made = compile_api.compile(program, options={"cache": False})
    x, w = torch.randn(700, 900), torch.randn(900, 900)
    call = compile_api.profile(made, x, w)
    report = made.report()
    assert report.calls == [call]
    kernels, library = ([s for s in call.steps if s.kind == kind] for kind in ("kernel", "library"))
    assert names(kernels) == names(report.kernels) and names(library) == names(report.externs) == {"aten.mm.default": 2}
    assert [s.bytes for s in library] == [e.bytes for e in report.externs]
    assert all(s.seconds > 0 and s.depth == 0 and s.device == "cpu" for s in call.steps)
    for before, after in zip(call.steps, call.steps[1:], strict=False):
        assert before.start + before.seconds <= after.start
    inside = sum(s.seconds for s in call.steps)
    assert inside == pytest.approx(call.seconds_in("kernel") + call.seconds_in("library"))
    assert 0.8 * call.seconds < inside <= call.seconds  # products of that size are nearly all of it
    assert call.elsewhere == pytest.approx(call.seconds - inside)
    assert "wall clock" in call.what and call.bandwidth["cpu"] > 1e9
    assert any(f"{__file__}:{program.__code__.co_firstlineno + 1}" in line for s in call.steps for line in s.lines)


def test_its_text_and_records():
    made = compile_api.compile(program, options={"cache": False})
    call = compile_api.profile(made, torch.randn(60, 60), torch.randn(60, 60))
    text = str(made.report())
    assert all(line in text for line in str(call).splitlines())
    assert f"{len(call.steps) - 2} kernels" in text and "2 library calls" in text and "% of main memory's" in text
    (told,) = json.loads(made.report().to_json())["calls"]
    assert [step["name"] for step in told["steps"]] == [step.name for step in call.steps]
    assert sum(group.seconds for group in call.groups()) == pytest.approx(sum(s.seconds for s in call.steps))
    assert [group.seconds for group in call.groups()] == sorted((g.seconds for g in call.groups()), reverse=True)


def test_the_backward_pass_is_in_it():
    made = compile_api.compile(torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.GELU(), torch.nn.Linear(40, 5)))
    call = compile_api.profile(made, torch.randn(7, 30))
    assert names(s for s in call.steps if s.kind == "library")["aten.addmm.default"] == 2
    assert names(s for s in call.steps if s.kind == "library")["aten.mm.default"] >= 3
    assert made.report().memory and all(p.grad is None for p in made.parameters())


def test_kernels_of_one_launch_are_timed_apart():
    made = compile_api.compile(lambda x: (x.softmax(0).cumsum(1), x.cumsum(0).softmax(1)), options={"cache": False})
    call = compile_api.profile(made, torch.randn(400, 300))
    assert names(call.steps) == names(made.report().kernels) and len(call.steps) >= 3
    assert all(step.seconds > 1e-6 for step in call.steps)


def test_nothing_stays():
    made = compile_api.compile(program, options={"cache": False})
    x, w = torch.randn(20, 20), torch.randn(20, 20)
    made(x, w)
    spaces = {id(call): dict(call.__globals__) for call in steps._KNOWN}
    compile_api.profile(made, x, w)
    with pytest.raises(RuntimeError):
        compile_api.profile(made, x, torch.randn(21, 20))  # the program's own error
    with pytest.raises(ZeroDivisionError), steps.timing():
        raise ZeroDivisionError
    for call in steps._KNOWN:
        if id(call) in spaces:
            assert all(call.__globals__[name] is value for name, value in spaces[id(call)].items())
    with steps.timing() as found:
        with pytest.raises(UserError, match="already"):
            compile_api.profile(made, x, w)
        found.clear()  # of the calls before
    made(x, w)
    assert found == []


def test_state_of_generators_and_arguments_stays():
    made = compile_api.compile(lambda x: x.add_(torch.rand(3)), options={"cache": False})
    x = torch.zeros(3)
    before = torch.get_rng_state()
    call = compile_api.profile(made, x)
    assert torch.equal(torch.get_rng_state(), before) and not x.any() and call.steps


def test_bodies_are_nested():
    def branch(x):
        return torch.cond(x.sum() > 0, lambda y: y.sin() * 2, lambda y: y.cos() - 1, (x,))

    made = compile_api.compile(branch, options={"cache": False})
    call = compile_api.profile(made, torch.ones(50, 50))
    inner = [step for step in call.steps if step.depth]
    (outer,) = (step for step in call.steps if step.kind == "library")
    assert [step.kind for step in inner] == ["kernel"] and "sin" in inner[0].ops
    assert outer.start <= inner[0].start and inner[0].seconds <= outer.seconds
    assert call.seconds_in("kernel") + call.seconds_in("library") <= call.seconds


FROM_DISK = """
import json, torch, compile_api
from test_profiling import program
made = compile_api.compile(program)
call = compile_api.profile(made, torch.ones(50, 50), torch.ones(50, 50))
steps = [(s.kind, s.name, s.ops, s.read, s.written, s.lines) for s in call.steps]
report = made.report()
print(json.dumps([[p.status for p in report.programs], steps, [str(m) for m in report.moved], len(report.spans)]))
"""


def test_a_program_from_the_disk(tmp_path):
    environment = {**os.environ, "QUINTET_CACHE_DIR": str(tmp_path), "QUINTET_PROGRAM_CACHE": "1"}
    path = os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)])
    told = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", FROM_DISK], capture_output=True, text=True, check=True,
            env={**environment, "PYTHONPATH": path},
        )  # fmt: skip
        told.append(json.loads(done.stdout))
    (first, made, moved, _), (second, found, again, _) = told
    assert "stored" in first and second == ["loaded"]
    assert found == made and len(made) > 3 and again == moved


def test_what_is_not_compiled():
    with pytest.raises(UserError, match="is not compiled"):
        compile_api.profile(program, torch.ones(2, 2), torch.ones(2, 2))
    made = compile_api.compile(program, backend="eager")
    with pytest.warns(compile_api.CompileWarning, match="no compiled graph"):
        call = compile_api.profile(made, torch.ones(2, 2), torch.ones(2, 2))
    assert call.steps == () and call.elsewhere == call.seconds
