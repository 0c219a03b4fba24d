"""Guard rails: ``check="shadow"`` catches what a stage computes wrongly, ``check="nan"`` names who made a NaN."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import planted
import pytest
import torch
import zoo

import compile_api
from compile_api import shadow
from compile_api.judge import Ran, judge
from compile_api.trial import copies_of, trial
from prims.errors import CompileWarning, InternalError, UserError


def program(x, w, buffer):
    y = (x @ w).sin() * 2
    buffer.add_(1)
    return y.exp() + buffer, y.sum()


def inputs():
    return torch.randn(4, 8, requires_grad=True), torch.randn(8, 6, requires_grad=True), torch.zeros(6)


def shadowed(fn=program, **options):
    return compile_api.compile(fn, options={"check": "shadow", "cache": False, **options})


@pytest.mark.parametrize("stage", planted.STAGES)
def test_a_wrong_result_of_each_stage_is_seen(stage, monkeypatch, tmp_path):
    planted.STAGES[stage](monkeypatch)
    made = shadowed(cache_dir=str(tmp_path))
    x, w, buffer = inputs()
    with pytest.warns(CompileWarning, match="output 0 of the compiled graph is not eager's") as warned:
        got = made(x, w, buffer)
    expected = program(x, w, torch.zeros(6))
    assert torch.equal(got[0], expected[0]) and torch.equal(buffer, torch.ones(6))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        for _ in range(3):
            made(x, w, buffer)
    assert torch.equal(buffer, torch.full((6,), 4.0))
    (finding,) = made.report().findings
    line = program.__code__.co_firstlineno + 3
    assert f"{__file__}:{line}" in finding.where and str(warned[0].message).count(finding.where) == 1
    assert made.report().verdict.startswith("partly: eager in part: check='shadow'")
    _reproduces(finding.path, stage)


def _reproduces(path, stage):
    """The script, in a fresh process: wrong with the bug, right without it."""
    assert "# " + __file__ in Path(path).read_text()
    assert subprocess.run([sys.executable, path], check=False).returncode == 0  # no bug is planted there
    done = planted.run_with_bug(path, stage)
    assert done.returncode == 1 and "output 0" in done.stdout, done.stderr


def test_a_wrong_gradient_is_seen(monkeypatch):
    planted.in_backward(monkeypatch)
    made = shadowed()
    x, w, buffer = inputs()
    with pytest.warns(CompileWarning, match="gradient of"):
        out, total = made(x, w, buffer)
    (out.sum() + total).backward()
    got, x.grad = x.grad, None
    out, total = program(x, w, torch.zeros(6))
    (out.sum() + total).backward()
    assert torch.equal(got, x.grad)


def test_a_backward_pass_that_raises_is_seen_before_the_program_needs_it(monkeypatch, tmp_path):
    from aot_autograd.runtime import lazy

    def failing(*_):
        raise KeyError("no gradients today")

    monkeypatch.setattr(lazy, "compile_or_run", lambda *_: failing)
    made = compile_api.compile(program, options={"check": "shadow", "cache": False, "cache_dir": str(tmp_path)})
    args = inputs()
    expected = [x.detach().clone().requires_grad_(x.requires_grad) for x in args]
    with pytest.warns(CompileWarning, match=r"a call of the compiled graph is not eager's: it raises KeyError"):
        got = made(*args)
    got[0].sum().backward()
    program(*expected)[0].sum().backward()
    assert torch.equal(args[0].grad, expected[0].grad) and torch.equal(args[2], expected[2])
    (finding,) = made.report().findings
    assert "no gradients today" in finding.text and finding.path
    strict = compile_api.compile(program, options={"check": "shadow", "cache": False, "strict": True})
    with pytest.raises(KeyError, match="no gradients today"):
        strict(*inputs())[0].sum().backward()


def test_a_wrong_write_is_seen(monkeypatch):
    import inductor_gen

    real = inductor_gen.compile_graph

    def spoiled(env, **settings):
        graph = real(env, **settings)
        at = next(m.output_index for m in env.mutations)
        return lambda *args: [r + 1 if k == at else r for k, r in enumerate(graph(*args))]

    monkeypatch.setattr(inductor_gen, "compile_graph", spoiled)
    buffer = torch.zeros(3)
    with pytest.warns(CompileWarning, match="what is written to buffer"):
        shadowed(lambda x, buffer: buffer.mul_(2).add_(x).sum() * 0)(torch.ones(3), buffer)
    assert torch.equal(buffer, torch.ones(3))


def test_right_results_leave_the_program_as_it_was():
    made = shadowed()
    x, w, buffer = inputs()
    torch.manual_seed(5)
    for _ in range(shadow.FIRST + 2):
        out, total = made(x, w, buffer)
        (out.sum() + total).backward()
    assert made.report().verdict == "compiled" and not made.report().findings
    assert torch.equal(buffer, torch.full((6,), float(shadow.FIRST + 2)))
    drawn = torch.rand(2)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(2))


def test_a_bug_that_comes_later_is_seen_by_sampling(monkeypatch):
    monkeypatch.setattr(shadow, "EVERY", 8)
    import inductor_gen

    real, late = inductor_gen.compile_graph, []
    monkeypatch.setattr(
        inductor_gen, "compile_graph",
        lambda env, **settings: (lambda graph: lambda *args: [r * (1.01 if late else 1) for r in graph(*args)])(
            real(env, **settings)
        ),
    )  # fmt: skip
    made = shadowed(lambda x: x.sin() + 1)
    x = torch.ones(4)
    for _ in range(4):
        made(x)
    late.append(True)
    for _ in range(4):
        assert not torch.equal(made(x), x.sin() + 1)
    with pytest.warns(CompileWarning, match="not eager's"):
        assert torch.equal(made(x), x.sin() + 1)


def test_random_numbers(recwarn):
    def drops(x):
        return torch.nn.functional.dropout(x.sin(), 0.5)

    made = shadowed(drops)
    made(torch.ones(64))
    made(torch.ones(64))
    (finding,) = made.report().findings
    assert "draws random numbers" in finding.text and made.report().verdict == "compiled"
    exact = shadowed(drops, fallback_random=True)
    torch.manual_seed(3)
    got = exact(torch.ones(64))
    torch.manual_seed(3)
    assert torch.equal(got, drops(torch.ones(64))) and not exact.report().findings
    assert not [w for w in recwarn if issubclass(w.category, CompileWarning)]


def test_strict_raises(monkeypatch):
    planted.in_codegen(monkeypatch)
    with pytest.raises(InternalError, match="not eager's"):
        shadowed(strict=True)(*inputs())


def test_a_custom_operator_that_lies(tmp_path):
    """Its kernel is right for eager's layout only: a wrong result planted by the program itself."""

    @torch.library.custom_op("checks::first_row", mutates_args=())
    def first_row(x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(x, (x.shape[1],), (1,)).clone()

    @first_row.register_fake
    def _(x):
        return x.new_empty(x.shape[1])

    def uses(x):
        return first_row((x.t() + 1).contiguous()) * 2

    x = torch.randn(5, 3)
    made = shadowed(uses, cache_dir=str(tmp_path))
    assert torch.allclose(made(x), uses(x))


@pytest.mark.parametrize("name", ["transformer", "convnet"])
def test_models_are_found_right(name):
    case = zoo.build(name, small=True)
    made = shadowed(case.model, fallback_random=True)
    for _ in range(2):
        made(*case.args, **case.kwargs)
    assert not made.report().findings and made.report().verdict == "compiled"


# ---- the judge ---------------------------------------------------------------------------------------------------


def test_the_judge():
    y = torch.randn(100)
    assert not judge(Ran((y,)), Ran((y.clone(),)), lambda: pytest.fail("not asked where results are equal"))
    exact = Ran((y.double(),))
    assert judge(Ran((y * (1 + 1e-5),)), Ran((y,)), lambda: exact)
    rough = y + 1e-5 * torch.randn(100)
    assert not judge(Ran((y - 1e-5,)), Ran((rough,)), lambda: exact)
    assert judge(Ran((y,)), Ran((y.half(),)), lambda: None)[0].detail.startswith("dtype")
    assert judge(Ran((y,)), Ran((y[:3],)), lambda: None)[0].detail.startswith("shape")
    broken = y.clone()
    broken[7] = float("nan")
    assert judge(Ran((broken,)), Ran((y,)), lambda: exact) and not judge(Ran((broken,)), Ran((broken,)), lambda: exact)
    assert judge(Ran((y > 0,)), Ran((y > 0.5,)), lambda: Ran((y.double() > 0.5,)))
    assert judge(Ran((1,)), Ran((2,)), lambda: None) and judge(Ran((1,)), Ran((1.0,)), lambda: None)
    found = judge(Ran((y,), (None,)), Ran((y,), (y,)), lambda: exact)
    assert [(d.what, d.index) for d in found] == [("gradient", 0)]


def test_float64_programs_are_their_own_float64_run():
    """Eager's batch norm is off by dozens of roundings; what went through float32 is wrong all the same."""
    x = torch.randint(-16, 17, (1, 1, 20000)).double() / 4 + 3
    made = shadowed(torch.nn.functional.instance_norm)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made(x)
    exact = Ran((torch.linspace(1, 2, 9).double(),))
    assert judge(Ran((exact.outputs[0] * (1 + 1e-12),)), exact, lambda: exact) == []
    assert judge(Ran(((exact.outputs[0] / 3).float().double() * 3,)), exact, lambda: exact)
    inexact = Ran((exact.outputs[0] * (1 + 1e-7),))  # by a step in float32, and the float64 run says how far
    assert judge(Ran((exact.outputs[0] * (1 - 2e-7),)), inexact, lambda: exact) == []
    assert judge(Ran((exact.outputs[0] * (1 - 1e-6),)), inexact, lambda: exact)


def test_copies():
    base = torch.randn(6, requires_grad=True)
    inner = base * 2
    wide = torch.randn(3, 1).expand(3, 4)
    a, b, c, d = copies_of((inner, inner[1:3], wide, torch.randn(2, 3).t())).args
    assert c.stride() == wide.stride() and d.stride() == (1, 3)
    assert a.untyped_storage()._cdata == b.untyped_storage()._cdata != inner.untyped_storage()._cdata
    assert not a.is_leaf and a.requires_grad
    ran = trial(lambda x: x.mul_(3).sum(), (inner,))
    assert torch.equal(ran.state[0], inner * 3) and ran.gradients[0].unique().numel() == 1


def test_float64_runs_of_programs_that_name_dtypes():
    from compile_api.trial import in_float64

    def names(x):
        return (x.float() + torch.zeros(3, dtype=torch.float32) + torch.ones(3)).to(torch.float32)

    ran = in_float64(names, (torch.randn(3),))
    assert ran is not None and ran.outputs[0].dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_in_float64_begin_with_the_same_numbers(dtype):
    from compile_api.trial import in_float64

    x = torch.randn(8, dtype=dtype, requires_grad=True)
    narrow, wide = trial(torch.sin, (x,)), in_float64(torch.sin, (x,))
    assert (narrow.gradients[0] - wide.gradients[0]).abs().max() <= 4 * torch.finfo(dtype).eps


# ---- NaN ---------------------------------------------------------------------------------------------------------


def nan_of(fn, *args, backend="inductor", backward=False):
    made = compile_api.compile(fn, backend=backend, options={"check": "nan", "cache": False})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        out = made(*args)
        if backward:
            out.backward()
        made(*args)
    return made.report().findings, [str(w.message) for w in said if w.category is CompileWarning]


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_the_first_operator_is_named(backend):
    def fn(x):
        y = x.sin() - 2
        z = y.log()  # of negative numbers
        return (z + 1).relu().sum()

    (finding,), said = nan_of(fn, torch.randn(4), backend=backend)
    assert "aten.log.default makes a NaN" in finding.text
    assert f"{__file__}:{fn.__code__.co_firstlineno + 2}" in finding.where
    assert len(said) == 1 and finding.where in said[0]


def test_an_infinity_before_a_nan_is_named_too():
    def fn(x):
        hidden = x.masked_fill(x < 9, float("-inf"))
        return torch.softmax(hidden, -1)

    (finding,), _ = nan_of(fn, torch.randn(3, 4))
    assert "softmax" in finding.text and f":{fn.__code__.co_firstlineno + 1}" in finding.text
    (finding,), _ = nan_of(lambda x: (x * 1e30) * 1e30, torch.ones(3))
    assert "makes an infinity" in finding.text


def test_in_the_backward_pass():
    def fn(x):
        return (x * x).sum().sqrt()

    (finding,), _ = nan_of(fn, torch.zeros(3, requires_grad=True), backward=True)
    assert "makes" in finding.text and f":{fn.__code__.co_firstlineno + 1}" in finding.where


def test_what_came_in_and_what_is_meant():
    (finding,), _ = nan_of(lambda x: x + 1, torch.tensor([float("nan")]))
    assert finding.text == "a NaN came in with x"
    assert not nan_of(lambda x: x.masked_fill(x < 0, float("-inf")).max(), torch.randn(9))[0]
    assert not nan_of(lambda x, b: b.add_(x).sin(), torch.randn(9), torch.zeros(9))[0]


def test_generated_code_that_makes_one(monkeypatch):
    from inductor_gen.codegen import cexpr

    (renderer,) = (c for c in vars(cexpr).values() if isinstance(c, type) and "expression" in vars(c))
    real = renderer.expression
    monkeypatch.setattr(renderer, "expression", lambda self, v: real(self, v).replace("sinf(", "logf(-1 +0*"))
    (finding,), _ = nan_of(lambda x: x.sin() + 1, torch.ones(3))
    assert "eager's operators do not make" in finding.text


def test_nan_needs_aten_graphs():
    with pytest.raises(UserError, match="inductor"):
        compile_api.compile(program, backend="eager", options={"check": "nan"})
    with pytest.raises(UserError, match="'check'"):
        compile_api.compile(program, options={"check": "shadows"})


# ---- compare() ---------------------------------------------------------------------------------------------------


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        return self.inner(x).cos().sin()


def test_compare_leaves_a_module_alone():
    model = Small()
    found = compile_api.compare(model, torch.randn(2, 4))
    assert found.same and model.count == 0 and str(found).endswith("as eager")
    assert compile_api.compare(compile_api.compile(model), torch.randn(2, 4)).same
    assert compile_api.compare(model.forward, torch.randn(2, 4)).same


def test_compare_sees_capture(monkeypatch):
    planted.in_capture(monkeypatch)
    found = compile_api.compare(Small(), torch.randn(2, 4))
    assert not found.same and found.capture and found.failing is None and str(found).startswith("capture: output 0")


def test_compare_says_that_a_program_does_not_repeat():
    """A program with state of its own differs from itself: neither capture nor a stage is at fault."""
    count = []

    @torch.library.custom_op("quintet_checks::counting", mutates_args=())
    def counting(x: torch.Tensor) -> torch.Tensor:
        count.append(1)
        return x + len(count)

    counting.register_fake(torch.empty_like)
    program = lambda x: counting(x.sin()) * 2
    found = compile_api.compare(program, torch.ones(3))
    assert not found.same and not found.repeats and "run eagerly once more" in str(found)
    for look in (compile_api.minify, compile_api.bisect):
        with pytest.raises(compile_api.errors.UserError, match="run eagerly once more"):
            look(program, torch.ones(3))


def test_compare_sees_errors(monkeypatch):
    monkeypatch.setattr("inductor_gen.compile_graph", lambda *a, **k: 1 // 0)
    found = compile_api.compare(Small(), torch.randn(2, 4))
    assert isinstance(found.failing.error, ZeroDivisionError) and "ZeroDivisionError" in str(found)


def test_findings_are_in_every_report():
    findings, _ = nan_of(lambda x: x.log(), torch.tensor([-1.0]))
    made = compile_api.compile(lambda x: x.log(), options={"check": "nan"})
    with pytest.warns(CompileWarning):
        made(torch.tensor([-1.0]))
    assert "found by check='nan'" in str(made.report())
    assert json.loads(made.report().to_json())["findings"][0]["text"] == findings[0].text
