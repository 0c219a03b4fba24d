"""The guard rails that the product promises, a row each: what is promised, and a program that shows it holding.

Where a promise has tests of its own in depth (``test_checks.py``, ``test_minify.py``, capture's ``test_stances.py`` and
``test_compiler_names.py``), its row is the short form of them through ``compile_api`` with the default backend.
"""

from __future__ import annotations

import copy
import random
import subprocess
import sys
import warnings
import zlib
from pathlib import Path

import planted
import pytest
import torch
import torch._dynamo  # programs that come from torch.compile have it

import compile_api
from compile_api import errors

ROWS = {}


@pytest.fixture(autouse=True)
def default_stance():
    yield
    compile_api.set_stance("default")


def promise(text):
    """Register a row."""

    def register(show):
        assert text not in ROWS
        ROWS[text] = show
        return show

    return register


def sines(x):
    return (x.sin() * 2).exp() + x


def compiled(fn, **settings):
    return compile_api.compile(fn, **settings)


# --- checks ---------------------------------------------------------------------------------------------------------


@promise("check='shadow': values, gradients and writes against eager and float64; reverts, says so once, writes a script")
def _(patch, tmp):
    def program(x, buffer):
        buffer.add_(1)
        return sines(x) + buffer

    planted.in_codegen(patch)
    made = compiled(program, options={"check": "shadow", "cache": False, "cache_dir": str(tmp)})
    x, buffer = torch.randn(4, requires_grad=True), torch.zeros(4)
    with pytest.warns(errors.CompileWarning, match="is not eager's"):
        got = made(x, buffer)
    assert torch.equal(got, sines(x) + 1) and torch.equal(buffer, torch.ones(4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made(x, buffer)
    (finding,) = made.report().findings
    assert planted.run_with_bug(finding.path, "codegen").returncode == 1
    patch.undo()
    planted.in_backward(patch)
    made = compiled(lambda x: sines(x), options={"check": "shadow", "cache": False})
    with pytest.warns(errors.CompileWarning, match="gradient of"):
        made(x)


@promise("check='nan' names the first operator")
def _(patch, tmp):
    made = compiled(lambda x: (x - x.max()).log().sum(), options={"check": "nan"})
    with pytest.warns(errors.CompileWarning):
        made(torch.randn(8))
    assert "aten.log.default makes a NaN" in made.report().findings[0].text


# --- minifier and bisector ------------------------------------------------------------------------------------------


def small_script(patch, tmp, fn=sines):
    x = torch.randn(4, 6)
    found = compile_api.minify(fn, x, options={"cache_dir": str(tmp)})
    return found, Path(found.path).read_text()


@promise("minify: a wrong result becomes a small script that stands alone")
def _(patch, tmp):
    planted.in_codegen(patch)
    found, text = small_script(patch, tmp)
    assert found.nodes == 1 and ".sin()" in text
    assert planted.run_with_bug(found.path, "codegen").returncode == 1
    assert subprocess.run([sys.executable, found.path], check=False, capture_output=True).returncode == 0


@promise("minify: an exception becomes a small script that stands alone")
def _(patch, tmp):
    import inductor_gen

    def failing(env, **settings):
        raise KeyError("a defect")

    patch.setattr(inductor_gen, "compile_graph", failing)
    found, _ = small_script(patch, tmp)
    assert found.nodes == 1 and "KeyError" in found.detail


@promise("minify(slow=...): a program that is slow becomes a small script that stands alone")
def _(patch, tmp):
    planted.in_speed(patch)
    found = compile_api.minify(wide, *(x.detach() for x in wide_inputs()), options={"cache_dir": str(tmp)}, slow=3.0)
    assert found.nodes == 1 and ".sin()" in Path(found.path).read_text()
    assert planted.run_with_bug(found.path, "speed").returncode == 1


@promise("bisect: the stage, and by fuel the pass, rewrite or fusion")
def _(patch, tmp):
    for stage, step in (("rewrite", "planted"), ("fusion", "fusion"), ("codegen", None)):
        with pytest.MonkeyPatch.context() as own:
            planted.STAGES[stage](own)
            found = compile_api.bisect(wide, *wide_inputs(), options={"cache_dir": str(tmp / stage)})
            assert (found.stage, found.step) == ({"rewrite": "lower"}.get(stage, stage), step)


def wide(x, w, buffer):
    h = torch.relu(x @ w)
    buffer.add_(1)
    h = h.reshape(-1, 3) + 1
    largest, _ = h.max(1)
    y = (h.tanh() / 3).sin() * 2
    z = y.exp() + buffer[:3].exp()
    return z.log(), largest.sum()


def wide_inputs():
    return torch.randn(4, 8, requires_grad=True), torch.randn(8, 6, requires_grad=True), torch.arange(6.0)


# --- stances --------------------------------------------------------------------------------------------------------


def asks(x):
    return x.sin() + torch.compiler.is_compiling()


def runs_compiled(made, n=4):
    x = torch.zeros(n)
    return made(x).sum().item() == n


@promise("set_stance is a function, a context and a decorator; nested use restores")
def _(patch, tmp):
    made = compiled(asks)
    assert runs_compiled(made)
    compile_api.set_stance("eager")
    assert not runs_compiled(made)
    with compile_api.set_stance("default"):
        assert runs_compiled(made)
        with compile_api.set_stance("eager"):
            assert not runs_compiled(made)
        assert runs_compiled(made)
        assert not compile_api.set_stance("eager")(runs_compiled)(made) and compile_api.get_stance() == "default"
    assert not runs_compiled(made)
    compile_api.set_stance("default")
    assert runs_compiled(made)


@promise("stance 'eager' ('force_eager'): nothing compiled runs, and the report counts")
def _(patch, tmp):
    model = compiled(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), fullgraph=True)
    x = torch.randn(2, 4)
    with compile_api.set_stance("force_eager"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(model(x), torch.relu(torch.nn.functional.linear(x, model[0].weight, model[0].bias)))
    assert model.report().verdict.startswith("eager: stance 'eager': ran eagerly") and not model.report().kernels


@promise("stance 'fail_on_recompile': an error names the guard, and the report says so")
def _(patch, tmp):
    made = compiled(asks)
    made(torch.zeros(4))
    with compile_api.set_stance("fail_on_recompile"):
        assert runs_compiled(made)
        with pytest.raises(errors.NotCompiled, match=r"size \[4\], now \[5\]"):
            made(torch.zeros(5))
    assert made.report().stances[0].done == "refused" and made.report().verdict == "compiled"


@promise("stance 'eager_on_recompile': compiled where guards hold, eager where not, and the report says so")
def _(patch, tmp):
    made = compiled(asks)
    assert runs_compiled(made)
    with compile_api.set_stance("eager_on_recompile"):
        assert runs_compiled(made) and not runs_compiled(made, 5)
    assert made.report().stances[0].done == "ran eagerly" and not made.report().recompiles
    assert runs_compiled(made, 5)


@promise("stance 'strict': what would be left to eager is an error, and the report says so")
def _(patch, tmp):
    import inductor_gen

    def failing(env, **settings):
        raise KeyError("a defect")

    patch.setattr(inductor_gen, "compile_graph", failing)
    made = compiled(asks)
    with compile_api.set_stance("strict"), pytest.raises(KeyError, match="a defect"):
        made(torch.zeros(4))
    assert made.report().stances[0].done == "raised"
    with pytest.warns(errors.CompileWarning):
        assert runs_compiled(compiled(asks))  # without it: the captured graph, run eagerly


@promise("set_stance inside a compiled region is refused with a message")
def _(patch, tmp):
    def program(x):
        compile_api.set_stance("eager")
        return x + 1

    with pytest.raises(errors.UserError, match="set_stance\\(\\) was called inside a compiled region"):
        compiled(program)(torch.ones(2))


# --- what users of torch.compiler look for --------------------------------------------------------------------------


@promise("allow_in_graph (and theirs): one opaque call, with gradients")
def _(patch, tmp):
    for allow in (compile_api.allow_in_graph, torch.compiler.allow_in_graph):

        def opaque(x):
            assert "x" in locals()  # which capture would break at
            return x.sin() * 2

        allow(opaque)
        made = compiled(lambda x: opaque(x).sum(), fullgraph=True)
        x = torch.randn(5, requires_grad=True)
        (grad,) = torch.autograd.grad(made(x), x)
        assert torch.allclose(grad, 2 * x.cos())
        torch_graph = next(g for g in made.report().graphs if g.dialect == "torch")
        assert any("opaque" in op for op in torch_graph.ops)


@promise("assume_constant_result (and theirs): called once, its arguments guarded")
def _(patch, tmp):
    for assume in (compile_api.assume_constant_result, torch.compiler.assume_constant_result):
        calls = []

        @assume
        def draw(scale):
            calls.append(scale)
            return scale + random.random() * 0

        made = compiled(lambda x, scale: x * draw(scale), fullgraph=True)
        for scale in (2.0, 2.0, 3.0):
            assert torch.equal(made(torch.ones(2), scale), torch.full((2,), scale))
        assert calls[0] == 2.0 and calls.count(2.0) == 1
        assert "promised, not guarded: the result of " in str(made.report())


@promise("substitute_in_graph: a function in C is captured as Python; outside the original runs")
def _(patch, tmp):
    from dynamo_capture import promises

    patch.setattr(promises, "_substitutes", {})

    @compile_api.substitute_in_graph(zlib.adler32, skip_signature_check=True)
    def polyfill(data, value=1):
        return len(data) + value

    def program(x):
        return x * zlib.adler32(b"abc")

    made = compiled(program, fullgraph=True)
    assert torch.equal(made(torch.ones(1)), torch.tensor([4.0]))
    assert program(torch.ones(1, dtype=torch.float64)).item() == zlib.adler32(b"abc")
    (said,) = (line for line in str(made.report()).splitlines() if "promised" in line)
    assert f"{polyfill.__qualname__}() is captured in the place of zlib.adler32()" in said and __file__ in said


@promise("error_on_graph_break (and theirs) makes breaks errors in a part of the program")
def _(patch, tmp):
    for errors_on in (compile_api.error_on_graph_break, torch._dynamo.error_on_graph_break):

        def program(x, inside):
            with errors_on(True):
                x = x * 2
                if inside:
                    compile_api.graph_break()
            compile_api.graph_break()
            return x + 1

        assert torch.equal(compiled(program)(torch.ones(2), False), torch.full((2,), 3.0))
        with pytest.raises(errors.NotCompiled, match="error_on_graph_break is set"):
            compiled(program)(torch.ones(2), True)


def captures(mark, sizes=(5, 6, 9), fn=lambda x: x.sum(1) * 2, **settings):
    made = compiled(fn, fullgraph=True, **settings)
    for k, n in enumerate(sizes):
        x = torch.rand(n, 3)
        if k == 0:
            mark(x)
        assert torch.allclose(made(x), fn(x))
    return 1 + len(made.report().recompiles)


@promise("mark_dynamic (and theirs): symbolic at once, with a range that is guarded")
def _(patch, tmp):
    for mark in (compile_api.mark_dynamic, torch._dynamo.mark_dynamic):
        assert captures(lambda x: mark(x, 0)) == 1
        assert captures(lambda x: mark(x, 0, min=2, max=8)) == 2
    with pytest.warns(errors.CompileWarning, match="was marked dynamic, but the program fixes it to 5"):
        captures(lambda x: compile_api.mark_dynamic(x, 0), (5,), lambda x: x.view(5, 3) + 1)


@promise("maybe_mark_dynamic (and theirs): symbolic at once where the program lets it")
def _(patch, tmp):
    for mark in (compile_api.maybe_mark_dynamic, torch._dynamo.maybe_mark_dynamic):
        assert captures(lambda x: mark(x, 0)) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        captures(lambda x: compile_api.maybe_mark_dynamic(x, 0), (5,), lambda x: x.view(5, 3) + 1)


@promise("mark_static (and theirs): a graph for each size, under dynamic=True too")
def _(patch, tmp):
    for mark in (compile_api.mark_static, torch._dynamo.mark_static):
        made = compiled(lambda x: x * 2, dynamic=True)
        for n in (4, 5):
            x = torch.rand(n)
            mark(x, 0)
            made(x)
        assert len(made.report().recompiles) == 1


@promise("mark_unbacked (and theirs): symbolic at once, sizes of 1 included")
def _(patch, tmp):
    for mark in (compile_api.mark_unbacked, torch._dynamo.decorators.mark_unbacked):
        assert captures(lambda x: mark(x, 0), (5, 1, 9)) == 1


@promise("nested_compile_region (and theirs): not needed, which its documentation says; calls are inlined")
def _(patch, tmp):
    assert "Not needed" in compile_api.nested_compile_region.__doc__
    for mark in (compile_api.nested_compile_region, torch.compiler.nested_compile_region):
        layer = mark(sines)
        x = torch.randn(4)
        made = compiled(lambda x: layer(layer(x)), fullgraph=True)
        assert torch.allclose(made(x), sines(sines(x)))


@promise("cudagraph_mark_step_begin (and theirs): does nothing, which its documentation explains")
def _(patch, tmp):
    assert "copied out" in compile_api.cudagraph_mark_step_begin.__doc__
    for begin in (compile_api.cudagraph_mark_step_begin, torch.compiler.cudagraph_mark_step_begin):

        def program(x):
            begin()
            return x + 1

        assert torch.equal(compiled(program, fullgraph=True)(torch.ones(2)), torch.full((2,), 2.0))


@promise("is_compiling, is_dynamo_compiling, is_exporting (and theirs) answer by where they are asked")
def _(patch, tmp):
    def program(x):
        said = [compile_api.is_compiling(), torch.compiler.is_compiling(), compile_api.is_dynamo_compiling(),
                torch.compiler.is_dynamo_compiling(), compile_api.is_exporting(), torch.compiler.is_exporting()]  # fmt: skip
        return x + 1, said

    assert program(torch.ones(1))[1] == [False] * 6
    assert compiled(program, fullgraph=True)(torch.ones(1))[1] == [True] * 4 + [False] * 2
    exported = compile_api.export(lambda x: x * (2 if torch.compiler.is_exporting() else 3), (torch.ones(2),))
    assert torch.equal(exported(torch.ones(2)), torch.full((2,), 2.0))


@promise("reset forgets what was compiled")
def _(patch, tmp):
    made = compiled(asks)
    made(torch.zeros(4))
    before = len(made.report().graphs)
    compile_api.reset()
    assert runs_compiled(made) and len(made.report().graphs) == 2 * before


@promise("list_backends, list_modes, list_options")
def _(patch, tmp):
    assert {"inductor", "eager", "aot_eager"} <= set(compile_api.list_backends())
    for mode in compile_api.list_modes():
        assert set(compile_api.list_mode_options(mode)) <= set(compile_api.list_options())
        compile_api.compile(asks, mode=mode)


@promise("disable (and theirs): runs eagerly, with what it calls")
def _(patch, tmp):
    for disable in (compile_api.disable, torch.compiler.disable, torch._dynamo.disable):
        off = disable(asks)
        made = compiled(lambda x: off(x + 0) + 0)
        assert not runs_compiled(made) and "[QB04]" in made.report().breaks[0].reason


@promise("compile_(module) compiles in place")
def _(patch, tmp):
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh())
    kind, keys, x = type(model), list(model.state_dict()), torch.randn(2, 4)
    expected, seen = model(x), []
    model.register_forward_hook(lambda module, given, got: seen.append(module is not model and type(module)))
    assert compile_api.compile_(model, fullgraph=True) is model
    assert torch.allclose(model(x), expected) and type(model) is kind and list(model.state_dict()) == keys
    assert compile_api.report_of(model).verdict == "compiled" and compile_api.report_of(model).kernels
    assert len(seen) == 1
    copied = copy.deepcopy(model)
    with pytest.raises(errors.UserError, match="is not compiled"):
        compile_api.report_of(copied)
    model(x).sum().backward()
    assert model[0].weight.grad is not None
    within = compiled(torch.nn.Sequential(model, torch.nn.ReLU()), fullgraph=True)
    assert torch.allclose(within(x), torch.relu(expected))
    again = compiled(model)
    again(x)
    assert again.report().verdict == "compiled"
    compile_api.compile_(model, disable=True)
    assert model._compiled_call_impl is None
    for wrong in (again, asks):
        with pytest.raises(errors.UserError, match="compile_\\(\\) got"):
            compile_api.compile_(wrong)


@promise("torch._dynamo.graph_break() in a user's code breaks")
def _(patch, tmp):
    def program(x):
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    made = compiled(program)
    assert torch.equal(made(torch.ones(1)), program(torch.ones(1)))
    assert [b.reason for b in made.report().breaks] == ["graph_break() was called [QB20]"]


@promise("torch._dynamo.config: a region that reads a setting is guarded on it")
def _(patch, tmp):
    made = compiled(lambda x: x * torch._dynamo.config.cache_size_limit, fullgraph=True)
    for limit in (3, 4, 3):
        with torch._dynamo.config.patch(cache_size_limit=limit):
            assert made(torch.ones(1)).item() == limit


# --- memory ---------------------------------------------------------------------------------------------------------


@promise("out of memory: what was planned and who holds it, and eager for that call")
def _(patch, tmp):
    import inductor_gen

    real, full = inductor_gen.compile_graph, [True]

    def compile_graph(env, **settings):
        made = real(env, **settings)

        def run(*inputs):
            if full[0]:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
            return made(*inputs)

        return run

    patch.setattr(inductor_gen, "compile_graph", compile_graph)
    made = compiled(lambda x: torch.softmax(x @ x, -1) @ x)
    x = torch.randn(32, 32)
    with pytest.warns(errors.CompileWarning, match="out of memory") as said:
        got = made(x)
    (message,) = (str(warning.message) for warning in said)
    assert "takes 8192 bytes at once, the most: 4096 " in message and "float32 [32, 32] at" in message, message
    assert "later ones run compiled code again" in message and "'memory_budget': 0.5" in message
    assert torch.allclose(got, torch.softmax(x @ x, -1) @ x, atol=1e-5)
    (planned,) = made.report().memory
    assert planned.peak > 0 and planned.held and planned.held[0][0] > 0
    full[0] = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made(x)


@pytest.mark.parametrize("text", ROWS)
def test_promise(text, monkeypatch, tmp_path):
    ROWS[text](monkeypatch, tmp_path)
