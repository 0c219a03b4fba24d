"""Every call that runs no compiled code: recorded with its reason, warned of once, refused under ``fullgraph``."""

from __future__ import annotations

import asyncio
import contextlib
import cProfile
import json
import pstats
import sys
import warnings

import pytest
import torch
from torch.overrides import BaseTorchFunctionMode

import dynamo_capture.language
from dynamo_capture import disable, graph_break, optimize
from prims.errors import CompileWarning, NotCompiled, Unsupported
from prims.options import Options
from prims.report import Report


def compiled(fn, **options):
    report = Report()
    return optimize(fn, lambda gm, inputs: gm.forward, options=Options(**options), report=report), report


@contextlib.contextmanager
def tracing(trace):
    old = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(old)


def steps(x):
    for i in range(3):
        yield x * i


async def later(x):
    return x * 2


async def steps_later(x):
    for i in range(2):
        yield x * i


async def gather(items):
    return [item async for item in items]


def plain(x):
    return x * 2


def only_eagerly(x):
    if torch.compiler.is_compiling():
        raise RuntimeError("not here")
    return x * 2


def only_eagerly_inside(x):
    def helper(y):
        return only_eagerly(y) + 1

    return helper(x)


def makes_steps(x):
    return {"all": [steps(x)]}


def makes_an_expression(x):
    return (x * i for i in range(3))


@contextlib.contextmanager
def managed(x):
    yield x * 2


def entered(call, x):
    with call(x) as y:
        return y


@disable
def disabled(x):
    return x * 2


def broken_at_once(x):
    try:
        graph_break()
    except ValueError:
        pass
    return x


def under_trace(call, x):
    with tracing(lambda *_: None):
        return call(x)


def under_mode(call, x):
    with BaseTorchFunctionMode():
        return call(x)


def call_it(call, x):
    return call(x)


CASES = {
    "generator": (steps, lambda call, x: list(call(x)), "generator function"),
    "coroutine": (later, lambda call, x: asyncio.run(call(x)), "coroutine"),
    "async generator": (steps_later, lambda call, x: asyncio.run(gather(call(x))), "async generator"),
    "debugger": (plain, under_trace, "sys.settrace"),
    "mode": (plain, under_mode, "torch-function mode"),
    "vmap": (plain, lambda call, x: torch.func.vmap(call)(x), "torch.func"),
    "raises in capture only": (only_eagerly, call_it, "RuntimeError: not here, while it is captured and not else"),
    "raises in capture only, inside": (only_eagerly_inside, call_it, "RuntimeError: not here, while it is captured"),
    "calls a generator function": (lambda x: steps(x), lambda call, x: list(call(x)), "generator function"),
    "makes a generator": (makes_steps, lambda call, x: list(call(x)["all"][0]), "generator function"),
    "makes a generator expression": (makes_an_expression, lambda call, x: list(call(x)), "generator function"),
    "a context manager": (managed, entered, "generator function"),
    "disabled": (disabled, call_it, "disable()"),
    "a break and no graph": (broken_at_once, call_it, "graph_break"),
    "no Python code": (torch.sin, call_it, "no Python code"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_call_that_runs_eagerly_says_so(name):
    fn, run, reason = CASES[name]
    x = torch.ones(3)
    expected = run(fn, x)
    call, report = compiled(fn)
    assert report.verdict == "not called yet"
    with pytest.warns(CompileWarning) as caught:
        for _ in range(5):
            torch.testing.assert_close(run(call, x), expected)
    (warning,) = [w for w in caught if w.category is CompileWarning]
    assert reason in str(warning.message)
    assert warning.filename == __file__
    assert report.verdict.startswith("eager: ") and reason in report.verdict
    assert str(report).startswith(report.verdict + "\n")
    assert json.loads(report.to_json())["verdict"] == report.verdict
    assert any(reason in record.reason for record in report.fallbacks)
    assert [record.status for record in report.statuses if record.subject == "call"] == ["eager"]
    refusing, refused = compiled(fn, fullgraph=True)
    with pytest.raises(Unsupported, match="fullgraph=True"), warnings.catch_warnings():
        warnings.simplefilter("error")
        run(refusing, x)
    assert "refused" in {record.status for record in refused.statuses}
    assert refused.verdict.startswith("eager: ")


def test_a_refused_call_runs_nothing():
    ran = []

    def generator(x):
        ran.append(x)
        yield x

    def traced(x):
        ran.append(x)
        return x * 2

    call, _ = compiled(generator, fullgraph=True)
    with pytest.raises(NotCompiled, match="one step"):
        call(torch.ones(2))
    call, _ = compiled(traced, fullgraph=True)
    with pytest.raises(NotCompiled, match="Run without it"):
        under_trace(call, torch.ones(2))
    assert not ran
    torch.testing.assert_close(call(torch.ones(2)), torch.full((2,), 2.0))
    assert len(ran) == 1


def test_compiled_and_partly():
    call, report = compiled(plain, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        call(torch.ones(3))
        assert report.verdict == "compiled"

        def two(x):
            y = x * 2
            graph_break()
            return y + 1

        call, report = compiled(two)
        call(torch.ones(3))
    assert report.verdict.startswith("partly: a graph break: graph_break() was called") and "in test_" in report.verdict
    call, report = compiled(plain)
    call(torch.ones(3))
    with pytest.warns(CompileWarning, match="settrace"):
        under_trace(call, torch.ones(3))
    assert report.verdict.startswith("partly: eager in part: a trace function is set")


def test_nothing_to_compile_is_no_loss():
    call, report = compiled(lambda x: x, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        for _ in range(5):
            call(torch.ones(2))
    assert report.verdict.startswith("eager: there is no tensor operation to compile")
    assert not report.fallbacks


def test_the_recompile_limit_warns_and_refuses():
    def fn(x, s):
        return x + len(s)

    x = torch.ones(2)
    call, report = compiled(fn, recompile_limit=2)
    with pytest.warns(CompileWarning, match="recompile limit of 2") as caught:
        for s in ("a", "bb", "ccc", "dddd", "a", "ccc"):
            torch.testing.assert_close(call(x, s), fn(x, s))
    assert len([w for w in caught if w.category is CompileWarning]) == 1
    assert report.verdict.startswith("partly: eager in part: recompile limit of 2 reached; last miss")
    call, report = compiled(fn, recompile_limit=2, fullgraph=True)
    for s in ("a", "bb"):
        call(x, s)
    for _ in range(2):
        with pytest.raises(NotCompiled, match="recompile limit of 2"):
            call(x, "ccc")
    torch.testing.assert_close(call(x, "a"), fn(x, "a"))


def test_an_internal_defect_warns_and_refuses(monkeypatch):
    def broken(*args, **kwargs):
        raise AssertionError("a defect")

    monkeypatch.setattr(dynamo_capture.language, "translate", broken)
    call, report = compiled(plain)
    with pytest.warns(CompileWarning, match="internal error: AssertionError: a defect"):
        torch.testing.assert_close(call(torch.ones(2)), torch.full((2,), 2.0))
    assert report.verdict.startswith("eager: internal error")
    call, _ = compiled(plain, fullgraph=True)
    with pytest.raises(NotCompiled, match="a defect") as raised:
        call(torch.ones(2))
    assert isinstance(raised.value.__cause__, AssertionError)


def test_the_programs_own_exception_is_no_fallback():
    def fn(x, n):
        if n < 0:
            raise ValueError("negative")
        return x * n

    for fullgraph in (False, True):
        call, report = compiled(fn, fullgraph=fullgraph)
        with warnings.catch_warnings():
            warnings.simplefilter("error", CompileWarning)
            for _ in range(5):
                with pytest.raises(ValueError, match="negative"):
                    call(torch.ones(2), -1)
            assert report.verdict.startswith("eager: the program raises ValueError: negative")
            # However often it was called wrongly, it is compiled once it is called rightly.
            torch.testing.assert_close(call(torch.ones(2), 3), torch.full((2,), 3.0))
        assert report.verdict == "compiled" and not report.fallbacks


def test_profilers_see_compiled_code():
    x = torch.ones(3)
    call, report = compiled(plain)
    profile = cProfile.Profile()
    profile.enable()
    try:
        for _ in range(3):
            call(x)
    finally:
        profile.disable()
    assert report.verdict == "compiled" and len(report.graphs) == 1
    functions = {name for _, _, name in pstats.Stats(profile).stats}
    assert "plain" in functions and "forward" in functions  # the function's new code, and the graph's

    called = []
    old = sys.getprofile()
    sys.setprofile(lambda frame, event, arg: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        call(x)
    finally:
        sys.setprofile(old)
    assert "forward" in called and report.verdict == "compiled"


class Scaled(torch.Tensor):
    """A wrapper whose metadata capture looks at, and sees whether the class is asked for it."""

    @staticmethod
    def __new__(cls, x, by):
        return torch.Tensor._make_wrapper_subclass(cls, x.shape, strides=x.stride(), dtype=x.dtype, device=x.device)

    def __init__(self, x, by):
        self.x, self.by = x, by

    def __tensor_flatten__(self):
        return ["x"], self.by

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*(a.x * a.by if isinstance(a, Scaled) else a for a in args), **(kwargs or {}))


def wrapped_product(x, w):
    return (x @ w).relu()


@pytest.mark.parametrize("profiler", ["cProfile", "sys.setprofile"])
def test_profilers_beside_wrappers(profiler):
    x, w = torch.ones(2, 3), Scaled(torch.ones(3, 2), 2.0)
    call, report = compiled(wrapped_product)
    called = []
    profile = cProfile.Profile()
    note = lambda frame, event, arg: called.append(frame.f_code.co_name)  # noqa: E731
    old = sys.getprofile()
    if profiler == "cProfile":
        profile.enable()
    else:
        sys.setprofile(note)
    try:
        for _ in range(3):
            result = call(x, w)
        wrapped_product(x, w)
        assert profiler == "cProfile" or sys.getprofile() is note
    finally:
        profile.disable()
        sys.setprofile(old)
    torch.testing.assert_close(result, torch.full((2, 2), 6.0))
    assert report.verdict == "compiled" and len(report.graphs) == 1
    if profiler == "cProfile":
        called = [name for _, _, name in pstats.Stats(profile).stats]
    assert "wrapped_product" in called and "forward" in called


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring came with 3.12")
@pytest.mark.parametrize("tool", ["PROFILER_ID", "OPTIMIZER_ID", "DEBUGGER_ID"])
def test_tools_of_monitoring(tool):
    monitoring, number = sys.monitoring, getattr(sys.monitoring, tool)
    call, report = compiled(plain)
    names = []
    monitoring.use_tool_id(number, "test")
    try:
        monitoring.register_callback(number, monitoring.events.LINE, lambda code, line: names.append(code.co_name))
        monitoring.set_events(number, monitoring.events.LINE)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                torch.testing.assert_close(call(torch.ones(2)), torch.full((2,), 2.0))
    finally:
        monitoring.set_events(number, 0)
        monitoring.register_callback(number, monitoring.events.LINE, None)
        monitoring.free_tool_id(number)
    if tool == "DEBUGGER_ID":
        assert "a debugger" in report.verdict and "plain" in names
        assert len([w for w in caught if w.category is CompileWarning]) == 1
    else:
        assert report.verdict == "compiled" and not caught and "forward" in names


def test_nested_compiled_functions_answer_for_themselves():
    inner, inner_report = compiled(plain)

    def outer(x):
        yield inner(x)

    call, report = compiled(outer)
    with pytest.warns(CompileWarning, match="generator function"):
        list(call(torch.ones(2)))
    assert report.verdict.startswith("eager") and inner_report.verdict == "compiled"


def test_marked_or_traced_after_it_was_compiled():
    def fn(x):
        return x * 2

    call, report = compiled(fn)
    disable(fn, recursive=False)
    with pytest.warns(CompileWarning, match="marked by disable"):
        call(torch.ones(2))
    assert "disable()" in report.verdict

    def starts_a_debugger(x):
        old = sys.gettrace()
        sys.settrace(lambda *_: None)
        try:
            return helper(x)
        finally:
            sys.settrace(old)

    def helper(x):
        return x + 1

    call, report = compiled(starts_a_debugger)
    with pytest.warns(CompileWarning):
        torch.testing.assert_close(call(torch.ones(2)), torch.full((2,), 2.0))
    assert report.verdict.startswith("eager: ")


def test_one_break_site_is_listed_once():
    def inner(x):
        y = x.sin()
        graph_break()
        return y + 1

    def middle(x):
        return inner(x) * 2

    def outer(x):
        return middle(x) - 1

    call, report = compiled(outer)
    call(torch.ones(2))
    assert len(report.breaks) == 1 and "graph_break" in report.breaks[0].reason
    found = dynamo_capture.explain(outer)(torch.ones(2))
    assert found.graph_break_count == 1 and "verdict: partly: a graph break" in str(found)
