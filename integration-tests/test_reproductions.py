"""Scripts and searches carry what a graph was compiled for: modes, settings, symbolic sizes, memory that inputs share.

Each bug here is seen in its surroundings alone, so that a reproduction without them would say that all is well.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import warnings
from pathlib import Path

import planted
import pytest
import torch

import compile_api
from compile_api import errors
from compile_api.script import write_script
from prims.options import Options


def rows(x):
    return (x.sin() * 2 + 1).sum(1)


def scaled(x, n):
    return (torch.arange(n) + 1).float().sin() * x


def cast(x, w):
    return torch.tanh(x @ w) * 2


def difference(x, y):
    return (x - y).sin().exp()


def marked(x):
    compile_api.mark_dynamic(x, 0)
    return x


half = lambda: torch.autocast("cpu", torch.bfloat16)
needs = lambda x: x.requires_grad_()
#: The bug, the program, its calls (of which the last is wrong), in which modes.
CASES = {
    "sizes that changed": ("symbolic", rows, lambda: [(torch.randn(n, 3),) for n in (5, 6)], contextlib.nullcontext),
    "a size that is marked": ("symbolic", rows, lambda: [(marked(torch.randn(5, 3)),)], contextlib.nullcontext),
    "numbers that changed": (
        "symbolic", scaled, lambda: [(torch.tensor(2.0), n) for n in (5, 6)], contextlib.nullcontext
    ),
    "autocast": ("half", cast, lambda: [(torch.randn(4, 4), torch.randn(4, 4))], half),
    "no gradients": ("inference", difference, lambda: [(needs(torch.randn(4)), torch.randn(4))], torch.no_grad),
    "inference mode": ("inference", difference, lambda: [(needs(torch.randn(4)), torch.randn(4))], torch.inference_mode),
}  # fmt: skip


def shows(path, bug):
    """Whether a script shows the bug where it is planted."""
    done = planted.run_with_bug(str(path), bug)
    assert "output 0" in done.stdout, done.stdout + done.stderr
    return done.returncode == 1


@pytest.mark.parametrize("case", CASES)
def test_shadow_writes_what_shows_it_again(case, monkeypatch, tmp_path):
    bug, program, make, modes = CASES[case]
    planted.BUGS[bug](monkeypatch)
    made = compile_api.compile(program, options={"check": "shadow", "cache": False, "cache_dir": str(tmp_path)})
    with warnings.catch_warnings(record=True) as said, modes():
        warnings.simplefilter("always")
        for args in make():
            torch.testing.assert_close(made(*args), program(*args))
    (finding,) = made.report().findings
    assert sum(issubclass(w.category, errors.CompileWarning) for w in said) == 1
    assert shows(finding.path, bug)


@pytest.mark.parametrize("case", CASES)
def test_found_and_made_small(case, monkeypatch, tmp_path):
    bug, program, make, modes = CASES[case]
    planted.BUGS[bug](monkeypatch)
    *before, args = make()
    given = {"options": {"cache": False, "cache_dir": str(tmp_path)}, "before": before}
    with modes():
        assert not compile_api.compare(program, *args, **given).same
        found = compile_api.bisect(program, *args, **given)
        small = compile_api.minify(program, *args, **given)
    assert found.stage == ("aot" if bug == "inference" else "codegen")
    assert small.nodes <= 2 and Path(__file__).name in Path(small.path).read_text()
    assert shows(small.path, bug)
    assert subprocess.run([sys.executable, small.path], check=False, capture_output=True).returncode == 0


def test_a_later_call_is_asked_for(monkeypatch):
    planted.in_symbolic(monkeypatch)
    first, second = torch.randn(5, 3), torch.randn(6, 3)
    assert compile_api.compare(rows, second).same
    assert not compile_api.compare(rows, second, before=[(first,)]).same
    for tool in (compile_api.minify, compile_api.bisect):
        with pytest.raises(errors.UserError, match=r"a later call only.*before=\[\(x,\)\]"):
            tool(rows, second)


def test_calls_before_change_a_copy_of_the_module():
    model = torch.nn.BatchNorm1d(3)
    found = compile_api.compare(model, torch.randn(8, 3), before=[(torch.randn(8, 3),), (torch.randn(4, 3),)])
    assert found.same and model.num_batches_tracked == 0


def script_of(program, args, tmp_path):
    captured = []

    def backend(gm, example_inputs):
        def call(*args):
            captured.append(write_script("kept", "why", gm, args, Options(cache_dir=str(tmp_path)), "inductor"))
            return gm.forward(*args)

        return call

    compile_api.compile(program, backend=backend)(*args)
    (script,) = captured
    return Path(script.path).read_text(), subprocess.run([sys.executable, script.path], capture_output=True, text=True, check=False)  # fmt: skip


def test_settings_of_the_process(tmp_path):
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    try:
        text, done = script_of(lambda x: x + torch.ones(3), (torch.ones(3),), tmp_path)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
    assert "torch.set_default_dtype(torch.float64)\n" in text and "torch.set_deterministic_debug_mode(2)\n" in text
    assert (done.returncode, done.stdout) == (0, "program: as eager\n"), done.stderr
    text, _ = script_of(lambda x: x + torch.ones(3), (torch.ones(3),), tmp_path)
    assert "torch.set_" not in text and "\nwith " not in text


def test_inputs_that_share_memory(tmp_path):
    """The graph sees one input through another, as eager does."""
    memory = torch.arange(8.0)
    text, done = script_of(lambda x, y: (x * 2).sum() + y, (memory[:6], memory[2:].view(2, 3).t()), tmp_path)
    assert "memory_0.as_strided((6,), (1,), 0)" in text and "memory_0.as_strided((3, 2), (1, 3), 2)" in text
    assert (done.returncode, done.stdout) == (0, "program: as eager\n"), done.stderr


def test_attributes_of_arguments_are_the_copies_too():
    x = torch.randn(3, requires_grad=True)
    for given in (x, x * 2, x.detach()):
        given.scale = 4
        assert compile_api.compare(lambda x: x * x.scale, given).same
