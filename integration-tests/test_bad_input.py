"""Bad input gets one clear error; what only fails inside a stage runs eagerly with a recorded reason."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import types
import warnings
import weakref

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
        import importlib.util
        import torch, compile_api
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *rest: None if name == "ziglang" else find(name, *rest)
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


@pytest.fixture
def full_memory(monkeypatch):
    """Compiled graphs run out of memory as often as ``left[0]`` says; ``scratch`` holds what the failed runs made."""
    import inductor_gen

    plain, state = inductor_gen.compile_graph, types.SimpleNamespace(left=1, scratch=[], runs=0)

    def compile_graph(*args, **kwargs):
        graph = plain(*args, **kwargs)

        def call(*inputs):
            if state.left:
                state.left -= 1
                scratch = torch.empty(1 << 20)
                state.scratch.append(weakref.ref(scratch))
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
            state.runs += 1
            return graph(*inputs)

        return call

    monkeypatch.setattr(inductor_gen, "compile_graph", compile_graph)
    return state


def test_out_of_memory_is_tried_eagerly_once_the_failed_run_is_freed(monkeypatch, full_memory):
    from prims.ir import Envelope

    plain, alive = Envelope.module, []

    def module(self):
        alive.append([ref() is not None for ref in full_memory.scratch])
        return plain(self)

    monkeypatch.setattr(Envelope, "module", module)
    function = lambda x: x.sin() + 1
    compiled = compile_api.compile(function)
    x = torch.randn(4)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), function(x))
    assert alive == [[False]], "the failed run's tensors are gone before the region runs again"
    assert full_memory.runs == 2, "memory may be free again: the compiled graph is not given up"
    (fallback,) = compiled.report().fallbacks
    assert "out of memory" in fallback.reason


def test_out_of_memory_in_eager_too_is_eagers_error(monkeypatch, full_memory):
    from prims.ir import Envelope

    def forward(*inputs):
        raise torch.OutOfMemoryError("eager's own")

    monkeypatch.setattr(Envelope, "module", lambda self: types.SimpleNamespace(forward=forward, graph=torch.fx.Graph()))
    compiled = compile_api.compile(lambda x: x.sin() + 1)
    x = torch.ones(4)
    with torch.no_grad():
        with pytest.raises(torch.OutOfMemoryError, match="eager's own"):
            compiled(x)
        torch.testing.assert_close(compiled(x), x.sin() + 1)
    assert not compiled.report().fallbacks


def test_out_of_memory_where_an_input_is_written(monkeypatch, full_memory):
    """The graph has written nothing, so the frame runs as it is: what it writes before an error is then written."""
    from prims.ir import Envelope

    def forward(*inputs):
        raise torch.OutOfMemoryError("eager's own")

    monkeypatch.setattr(Envelope, "module", lambda self: types.SimpleNamespace(forward=forward, graph=torch.fx.Graph()))
    compiled = compile_api.compile(lambda x, total: (x.sin() + 1, total.add_(x)))
    x, total = torch.ones(4), torch.zeros(4)
    with torch.no_grad():
        for calls in (1, 2):
            torch.testing.assert_close(compiled(x, total)[0], x.sin() + 1)
            assert total.tolist() == [calls] * 4
    (fallback,) = compiled.report().fallbacks
    assert "an operator raised" in fallback.reason


def test_no_gpu():
    """Without a GPU the modes that use one work, and asking for one gives eager's own error."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")

    def function(x):
        return (x + 1).to("cuda")

    compiled = compile_api.compile(function)
    with pytest.raises((RuntimeError, AssertionError)) as theirs:
        function(torch.ones(3))
    with pytest.raises(type(theirs.value), match=re.escape(str(theirs.value)[:40])):
        compiled(torch.ones(3))
    with torch.no_grad():
        for mode in ("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"):
            compiled = compile_api.compile(torch.nn.Linear(4, 4), mode=mode)
            assert compiled(torch.ones(2, 4)).shape == (2, 4)
            assert not compiled.report().fallbacks and not compiled.report().breaks


def test_what_the_user_can_mend_is_one_warning(monkeypatch):
    import inductor_gen

    def refuse(*args, **kwargs):
        raise compile_api.errors.UserError("Triton is not installed (a test)", todo="pip install triton==9.9")

    monkeypatch.setattr(inductor_gen, "compile_graph", refuse)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
    compiled = compile_api.compile(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            compiled(torch.ones(2, 4)).sum().backward()
            torch.testing.assert_close(compiled(torch.ones(2, 4)), model(torch.ones(2, 4)))
    messages = [str(w.message) for w in caught if "(a test)" in str(w.message)]
    assert len(messages) == 1 and "pip install triton==9.9" in messages[0] and "eagerly" in messages[0]
    assert all("(a test)" in f.reason for f in compiled.report().fallbacks)
