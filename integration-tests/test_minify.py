"""``minify()`` and ``bisect()`` on bugs planted in each stage: a script of a line or two, and the culprit by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import planted
import pytest
import torch

import compile_api
from prims.errors import UserError
from prims.ir.passes import Fuel, counting_steps


def program(x, w, buffer):
    h = torch.relu(x @ w)
    buffer.add_(1)
    h = h.reshape(-1, 3) + 1
    largest, _ = h.max(1)
    y = (h.tanh() / 3).sin() * 2
    z = y.exp() + buffer[:3].exp()
    return z.log(), largest.sum()


def inputs():
    return torch.randn(4, 8, requires_grad=True), torch.randn(8, 6, requires_grad=True), torch.arange(6.0)


def sine(fn) -> str:
    return f"{__file__}:{fn.__code__.co_firstlineno + 5}"


def run(path, stage=None):
    """A script's exit status and text, in a fresh process with the stage's bug planted."""
    if stage is None:
        done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    else:
        done = planted.run_with_bug(path, stage)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("stage", planted.STAGES)
def test_a_wrong_result_of_each_stage(stage, monkeypatch, tmp_path):
    planted.STAGES[stage](monkeypatch)
    options = {"cache_dir": str(tmp_path)}
    found = compile_api.bisect(program, *inputs(), options=options)
    assert found.stage == {"rewrite": "lower"}.get(stage, stage)
    assert found.step == {"rewrite": "planted", "fusion": "fusion"}.get(stage)
    if stage == "fusion":
        (kernel,) = found.kernels
        assert "sin" in kernel.ops and any(line.startswith(sine(program)) for line in kernel.lines)
        assert 0 < found.number <= found.of and "fusion" in str(found)
    small = compile_api.minify(program, *inputs(), options=options)
    assert small.of == 17 and small.nodes <= (2 if stage == "fusion" else 1)
    assert ".sin()" in Path(small.path).read_text() and sine(program) in small.detail
    status, text = run(small.path, stage)
    assert status == 1 and "output 0" in text, text
    assert run(small.path)[0] == 0


def test_a_slow_kernel(monkeypatch, tmp_path):
    """It sleeps for 30 ms, which a program of microseconds takes under no load; gradients are taken too."""
    planted.in_speed(monkeypatch)
    small = compile_api.minify(program, *inputs(), options={"cache_dir": str(tmp_path)}, slow=3.0)
    assert small.of == 17 and small.nodes == 1 and "ms compiled" in small.detail
    text = Path(small.path).read_text()
    assert ".sin()" in text and sine(program) in text
    status, said = run(small.path, "speed")
    assert status == 1 and "times)" in said, said
    monkeypatch.undo()
    with pytest.raises(UserError, match="no captured graph takes over 1e\\+06 times as long"):
        compile_api.minify(program, *inputs(), slow=1e6)
    with pytest.raises(UserError, match="nothing was captured"):
        compile_api.minify(lambda: 3, slow=2.0)


def test_a_slow_call_of_the_library(monkeypatch, tmp_path):
    """A product that sleeps, between what fuses: the slow call alone is left."""
    import time

    import inductor_gen.extern.calls as calls

    real = calls.function_of

    def slept(*args):
        time.sleep(0.03)
        return torch.mm(*args)

    def spoiled(node, *rest):
        return ("torch.mm", slept) if node.op == "aten.mm.default" else real(node, *rest)

    for place in ("inductor_gen.extern.calls", "inductor_gen.runtime.wrapper"):
        monkeypatch.setattr(f"{place}.function_of", spoiled)
    small = compile_api.minify(lambda x, w: ((x.cos() + 1) @ w).tanh() * 2, *inputs()[:2], slow=3.0)
    assert small.nodes == 1 and "matmul" in small.text


def test_capture(monkeypatch, tmp_path):
    planted.in_capture(monkeypatch)
    found = compile_api.bisect(cosines, torch.randn(3))
    assert found.stage == "capture" and "output 0" in str(found)
    small = compile_api.minify(cosines, torch.randn(3), options={"cache_dir": str(tmp_path)})
    assert "def cosines" in small.text and run(small.path)[0] == 0
    assert compile_api.minify(lambda x: x.cos(), torch.randn(3)).path is None


def cosines(x):
    return torch.exp(x.cos())


TIMES = 3


def thrice(x):
    return x * TIMES


def many(x, y, memory, *, rounds=2):
    a = x + y
    memory.add_(1)
    b = thrice(a) + memory
    factors = [1.5, 2]
    for k in range(rounds):
        b = b * factors[k]
        if k == 1:
            c = thrice(b).cos()
        else:
            c = thrice(b)
        b = b + 1
    d = b.tanh()
    e = (c - d).exp()
    return e.sum(), a


def test_statements_that_capture_gets_wrong(monkeypatch, tmp_path):
    planted.in_capture(monkeypatch)
    x, y, memory = torch.randn(3, requires_grad=True), torch.randn(3), torch.zeros(3)
    small = compile_api.minify(many, x, y, memory, kwargs={"rounds": 2}, options={"cache_dir": str(tmp_path)})
    assert small.counted == "statements" and small.of == 12 and small.nodes <= 4, small
    line = many.__code__.co_firstlineno + 5
    assert f"for k in range(rounds):  # {__file__}:{line}\n" in small.text and ".cos()" in small.text
    assert "exp" not in small.text and "memory" not in small.text and not memory.any()
    text = Path(small.path).read_text()
    assert "TIMES = 3" in text and "def thrice(x):" in text
    status, said = run(small.path, "capture")
    assert status == 1 and "capture: output" in said, said
    assert run(small.path)[0] == 0


def test_what_no_script_can_hold(monkeypatch):
    planted.in_capture(monkeypatch)
    held = torch.nn.Linear(3, 3)

    def closes(x):
        y = x.sin()
        return held(y).cos().exp()

    small = compile_api.minify(closes, torch.randn(3))
    assert small.path is None and "no script can stand alone" in str(small)
    assert "held(y)" in small.text and "sin" not in small.text
    module = compile_api.minify(torch.nn.Sequential(Cosine()), torch.randn(3))
    assert module.path is None and "capture: output 0" in str(module)


class Cosine(torch.nn.Module):
    def forward(self, x):
        return x.cos()


def test_a_wrong_gradient(monkeypatch, tmp_path):
    planted.in_backward(monkeypatch)
    small = compile_api.minify(program, *inputs(), options={"cache_dir": str(tmp_path)})
    assert small.nodes <= 2 and "gradient" in small.detail
    assert compile_api.bisect(program, *inputs()).stage == "aot"


def test_an_error(monkeypatch, tmp_path):
    import inductor_gen

    real = inductor_gen.compile_graph

    def failing(env, **settings):
        if any(str(node.target) == "prim.sin" or getattr(node.target, "name", "") == "sin" for node in env.op_nodes):
            raise KeyError("no sines today")
        return real(env, **settings)

    monkeypatch.setattr(inductor_gen, "compile_graph", failing)
    small = compile_api.minify(program, *inputs(), options={"cache_dir": str(tmp_path)})
    assert small.nodes == 1 and "KeyError" in small.detail and ".sin()" in Path(small.path).read_text()
    assert compile_api.bisect(program, *inputs()).stage == "codegen"


def test_a_rewrite_that_raises_is_named(monkeypatch, tmp_path):
    """Also where it does so before it says that it applies."""
    import prims
    from inductor_gen.rewrite import table
    from inductor_gen.rewrite.row import Row
    from prims.handlers.graph import Rewrite
    from prims.lower import rewrites

    def failing(*_):
        raise KeyError("no tanh today")

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(rewrites.LOWER_REWRITES, "tanh", [Rewrite("raises", "tanh", failing)])
        found = compile_api.bisect(program, *inputs(), options={"cache_dir": str(tmp_path)})
        assert (found.stage, found.step) == ("lower", "raises") and "no tanh today" in found.detail
    fails = lambda node, context: failing() if node.target is prims.ops.tanh else None
    rows = (Row("raises too", fails, failing), *table.ROWS)
    monkeypatch.setattr(table.rewrite, "__defaults__", (rows,))
    found = compile_api.bisect(program, *inputs(), options={"cache_dir": str(tmp_path)})
    assert (found.stage, found.step) == ("rewrite", "raises too") and "no tanh today" in found.detail


def test_sizes_shrink(monkeypatch):
    planted.in_codegen(monkeypatch)
    small = compile_api.minify(lambda x: x.sin().reshape(-1, 30).sum(1), torch.randn(40, 60))
    assert "sin" in small.text
    (shape,) = {tuple(t.shape) for t in _tensors(small.path)}
    assert shape == (2, 2)


def _tensors(path):
    from safetensors.torch import load_file

    return load_file(str(path)[: -len(".py")] + ".safetensors").values()


def test_modules_modes_and_loops(monkeypatch):
    planted.in_codegen(monkeypatch)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(4))

        def forward(self, x, *, last=True):
            for layer in self.layers:
                x = torch.relu(layer(x))
            return x.sin() if last else x

    with torch.no_grad():
        small = compile_api.minify(Model(), torch.rand(3, 6) + 1, kwargs={"last": True})
    assert small.nodes == 1 and "sin" in small.text and small.of == 9


def test_nothing_to_find():
    for tool in (compile_api.minify, compile_api.bisect):
        with pytest.raises(UserError, match="does what eager does"):
            tool(program, *inputs())


def test_counted_steps_are_those_of_all_stages():
    with counting_steps(2) as steps:
        assert [Fuel().spend("a"), Fuel(0).spend("b"), Fuel().spend("c"), Fuel().spend("d")] == [True, False, True, False]
    assert steps.taken == ["a", "c"] and Fuel().spend("e")
