"""Bad input gets one clear error; what only fails inside a stage runs eagerly with a recorded reason."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch

import compile_api


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: compile_api.compile(3), ("3", "int", "callable")),
        (lambda: compile_api.compile("relu"), ("relu", "callable")),
        (lambda: compile_api.compile(torch.sin, mode="fastest"), ("fastest", "reduce-overhead")),
        (lambda: compile_api.compile(torch.sin, backend="nonsense"), ("nonsense", "inductor")),
        (lambda: compile_api.compile(torch.sin, backend=7), ("7",)),
        (lambda: compile_api.compile(torch.sin, options={"no_such_option": 1}), ("no_such_option",)),
        (lambda: compile_api.compile(torch.sin, options={"memory_budget": 3.0}), ("memory_budget", "3.0")),
        (lambda: compile_api.compile(torch.sin, dynamic="yes"), ("dynamic", "yes")),
    ],
)
def test_compile_arguments(call, words):
    with pytest.raises((compile_api.errors.UserError, TypeError)) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_failing_backend_falls_back_with_a_reason():
    def broken(gm, example_inputs):
        raise ZeroDivisionError("my backend is broken")

    function = lambda x: x.sin() + 1
    compiled = compile_api.compile(function, backend=broken)
    x = torch.randn(4)
    torch.testing.assert_close(compiled(x), function(x))
    torch.testing.assert_close(compiled(x), function(x))
    assert len(compiled.report().fallbacks) == 1
    assert "my backend is broken" in compiled.report().fallbacks[0].reason


def test_failing_stage_falls_back_once(monkeypatch):
    import inductor_gen

    def broken(*args, **kwargs):
        raise AssertionError("a defect in a stage")

    monkeypatch.setattr(inductor_gen, "compile_graph", broken)
    function = lambda x: x.sin() + 1
    compiled = compile_api.compile(function)
    x = torch.randn(4)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), function(x))
    (fallback,) = compiled.report().fallbacks
    assert "a defect in a stage" in fallback.reason


def test_exceptions_of_the_program_are_the_programs_own():
    def function(x, y):
        if x.shape[0] > 3:
            raise KeyError("mine")
        return x + y

    compiled = compile_api.compile(function)
    with pytest.raises(KeyError, match="mine"):
        compiled(torch.randn(4), torch.randn(4))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="must match the size") as ours:
            compiled(torch.randn(3), torch.randn(2))
    with pytest.raises(RuntimeError) as theirs:
        function(torch.randn(3), torch.randn(2))
    assert str(ours.value) == str(theirs.value)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'y'"):
        compiled(torch.randn(3))
    assert compiled(torch.ones(2), torch.ones(2)).tolist() == [2, 2]


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_missing_compiler(tmp_path):
    done = run(
        """
        import torch, compile_api
        f = lambda x: x.sin() + 1
        c = compile_api.compile(f)
        x = torch.randn(4)
        with torch.no_grad():
            for _ in range(2):
                assert torch.equal(c(x), f(x))
        print(len(c.report().fallbacks))
        print(c.report().fallbacks[0].reason)
        """,
        PATH=str(tmp_path), CC="", QUINTET_CACHE_DIR=str(tmp_path / "cache"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "1"
    assert "gcc" in done.stdout and "ziglang" in done.stdout


def test_unsupported_device_runs_eagerly():
    function = lambda x: x + 1
    compiled = compile_api.compile(function)
    assert compiled(torch.empty(3, device="meta")).device.type == "meta"
    (fallback,) = compiled.report().fallbacks
    assert "meta" in fallback.reason


def test_unsupported_versions_give_one_message_and_run_eagerly():
    done = run(
        """
        import warnings, torch
        torch.__version__ = "9.9.0"
        import compile_api
        f = lambda x: x.sin() + 1
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            c = compile_api.compile(f)
            for _ in range(3):
                assert torch.equal(c(torch.ones(2)), f(torch.ones(2)))
        messages = [str(w.message) for w in caught if "9.9.0" in str(w.message)]
        print(len(messages), messages[0])
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 ") and "2.11" in done.stdout
