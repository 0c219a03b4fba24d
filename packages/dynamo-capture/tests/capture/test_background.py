"""Frames whose graphs a backend compiles on another thread."""

from __future__ import annotations

import threading

import pytest
import torch

import dynamo_capture
import dynamo_capture.language  # noqa: F401
from dynamo_capture.background import stand_in
from prims import background
from prims.errors import DataDependentError
from prims.options import Options
from prims.report import Report
from prims.spec import expr as E

WAIT = 120.0


def optimized(fn, backend, **options):
    report = Report()
    made = dynamo_capture.optimize(fn, backend, options=Options(background=True, **options), report=report)
    return made, report


def asking(question):
    """A backend that asks something about the first input's first size."""
    seen = []

    @dynamo_capture.supports_dynamic_shapes
    def backend(gm, inputs):
        assert threading.current_thread() is not threading.main_thread()
        seen.append(gm)
        size = next(desc.spec.shape[0] for desc in gm.meta["envelope"].inputs if hasattr(desc.spec, "shape"))
        if not isinstance(size, int):
            question(gm.meta["envelope"].symbols.context, size)
        return gm.forward

    return backend, seen


def test_a_size_that_the_backend_asks_about_is_guarded():
    backend, seen = asking(lambda context, size: context.evaluate(E.le(size.expr, 10), "small only"))
    fn, report = optimized(lambda x: x.sin() * 2, backend, dynamic=True)
    for size, graphs in ((4, 1), (6, 1), (12, 2), (13, 2), (9, 2), (30, 2)):
        for _ in range(2):
            x = torch.rand(size)
            torch.testing.assert_close(fn(x), x.sin() * 2)
            assert background.wait(WAIT)
        assert len(seen) == graphs, (size, [str(g.meta["envelope"]) for g in seen])
    assert any("small only" in reason.reason or "<=" in reason.reason for reason in report.recompiles), report
    assert [b.programs for b in report.background] == [2]


def test_sizes_that_no_guard_can_check_compile_at_once():
    seen = []

    @dynamo_capture.supports_dynamic_shapes
    def backend(gm, inputs):
        seen.append(threading.current_thread() is threading.main_thread())
        if not seen[-1]:
            gm.meta["envelope"].symbols.context.add_guard(E.le(E.symbol("elsewhere"), 10), "of no input")
        return gm.forward

    fn, report = optimized(lambda x: x.sin() * 2, backend, dynamic=True)
    for _ in range(3):
        x = torch.rand(5)
        torch.testing.assert_close(fn(x), x.sin() * 2)
        assert background.wait(WAIT)
    assert seen == [False, True], seen
    assert report.status("frame", "compiled", where=report.background[0].where) is False  # recorded by now


def test_data_that_a_stage_cannot_do_without_is_read_between_graphs():
    calls = []

    @dynamo_capture.supports_dynamic_shapes
    def backend(gm, inputs):
        calls.append(gm)
        if len(calls) == 1:
            raise DataDependentError("needs a number")
        return gm.forward

    fn, report = optimized(lambda x: x[x > 0.5].sum() + 1, backend, data_dependent=True)
    for k in range(6):
        x = torch.linspace(0, 1, 5 + k)  # always two or more of them, so that no size is a special case
        torch.testing.assert_close(fn(x), x[x > 0.5].sum() + 1)
        assert background.wait(WAIT)
    assert len(calls) >= 2 and all(b.status == "in use" for b in report.background), report


def test_a_promise_that_is_not_kept_leaves_the_graph_to_eager():
    """The backend says that its results write when they are done, and gives one that does not say so."""
    asked = []

    def backend(gm, inputs):
        asked.append(gm)
        return gm.forward

    backend.gives_writes_when_done = True

    def fn(x):
        x.add_(1)
        return x.sin()

    made, report = optimized(fn, backend)
    for _ in range(4):
        x = torch.zeros(3)
        y = torch.zeros(3)
        torch.testing.assert_close(made(x), fn(y))
        torch.testing.assert_close(x, y)
        assert background.wait(WAIT)
    assert len(asked) == 1, report
    assert [b.status for b in report.background] == ["failed"], report


@pytest.mark.parametrize("why", ["nothing", "raises"])
def test_what_comes_to_nothing_is_not_waited_for(why):
    def fn(x):
        if why == "raises":
            raise ValueError("always")
        return x

    made, report = optimized(fn, lambda gm, inputs: gm.forward)
    hold = threading.Event()
    background.submit(background.Job(lambda: hold.wait(WAIT) and None))
    for turn in range(4):
        if why == "raises":
            with pytest.raises(ValueError, match="always"):
                made(torch.ones(2))
        else:
            made(torch.ones(2))
        hold.set()
        assert background.wait(WAIT)
    assert not any(b.open for b in report.background), report
    assert "in the background" not in report.verdict, report.verdict


def test_an_interrupt_is_the_programs_own():
    started, go = threading.Event(), threading.Event()

    def backend(gm, inputs):
        started.set()
        go.wait(WAIT)
        return gm.forward

    def fn(x, stops=False):
        if stops:
            raise KeyboardInterrupt
        return x.cos()

    made, report = optimized(fn, backend)
    made(torch.ones(2))
    assert started.wait(WAIT)
    with pytest.raises(KeyboardInterrupt):
        made(torch.ones(2), True)
    go.set()
    assert background.wait(WAIT)
    made(torch.ones(2))
    assert report.background[0].programs == 1, report


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("make", [
    lambda: torch.rand(3), lambda: torch.nn.Parameter(torch.rand(2, 3)), lambda: torch.nn.Buffer(torch.rand(3)),
    lambda: torch.rand(3, dtype=torch.float64), lambda: torch.rand(2, 4).t(),
])  # fmt: skip
def test_stand_ins_have_what_a_trace_reads(make, grad):
    x = make()
    if grad:
        x = x.requires_grad_() if isinstance(x, torch.nn.Parameter) else x.requires_grad_() * 1
    else:
        x.requires_grad_(False)
    given = stand_in(x)
    for what in ("requires_grad", "is_leaf", "dtype", "device"):
        assert getattr(given, what) == getattr(x, what), what
    assert type(given) is type(x) and given.is_inference() == x.is_inference()
    assert given.untyped_storage().nbytes() == 0 and given is not x


def test_warnings_of_the_background_come_with_the_next_call():
    from prims.eager import warn_user

    def backend(gm, inputs):
        warn_user("told by the backend")
        return gm.forward

    made, _ = optimized(lambda x: x.exp(), backend)
    made(torch.ones(2))
    assert background.wait(WAIT)
    with pytest.warns(match="told by the backend") as seen:
        made(torch.ones(2))
    assert [w.filename for w in seen] == [__file__]
