"""What looks at the program's frames sees the program's frames: eager's answer, compiled or not, and with the reason."""

from __future__ import annotations

import functools
import gc
import inspect
import sys
import traceback

import pytest
import torch

import dynamo_capture

PROGRAMS = []
SCALE = 2


def program(fn):
    PROGRAMS.append(fn)
    return fn


@program
def names_of_locals(x):
    y = 3.0
    return x + locals()["y"]


@program
def names_after_a_break(x):
    y = 3.0
    x = x + 1
    dynamo_capture.graph_break()
    return x + locals()["y"]


@program
def variables_that_nobody_reads_else(x):
    a, b = 1, 2  # noqa: F841
    x = x * 2
    dynamo_capture.graph_break()
    return x * len(vars()) + len(dir())


@program
def evaluated(x):
    y = 3.0  # noqa: F841
    z = x + 1  # noqa: F841
    return eval("z * y")


@program
def evaluated_in_a_namespace(x):
    return eval("x * y", {"x": x, "y": 2})


@program
def executed(x):
    names = {}
    exec("q = 5", names)
    return x * names["q"]


@program
def of_a_cell(x):
    y = 3.0

    def inner():
        return y

    x = x + inner()
    dynamo_capture.graph_break()
    return x * eval("y")


@program
def own_frame(x):
    y = 3.0  # noqa: F841
    return x + sys._getframe().f_locals["y"]


def of_the_caller():
    return sys._getframe(1).f_locals["y"]


@program
def frame_of_the_caller(x):
    y = 3.0  # noqa: F841
    return x + of_the_caller()


@program
def current_frame(x):
    y = 3.0  # noqa: F841
    x = x * 2
    return x + inspect.currentframe().f_locals["y"]


def caller_of_current():
    return inspect.currentframe().f_back.f_locals["y"]


@program
def back_from_current_frame(x):
    y = 3.0  # noqa: F841
    x = x * 2
    return x + caller_of_current()


@program
def stack_of_frames(x):
    return x * len(inspect.stack()[0].function)


@program
def lines_of_the_stack(x):
    return x * len(traceback.extract_stack()[-1].name)


@program
def in_a_callee(x):
    def callee(a):
        q = 2.0  # noqa: F841
        return a * locals()["q"]

    return callee(x) + 1


@program
def in_a_comprehension(x):
    return x * [sorted(locals())[0] for _ in range(2)].count("_")


@program
def globals_by_name(x):
    return x * globals()["SCALE"]


@program
def globals_set_by_name(x):
    globals()["MADE"] = 4
    return x * MADE  # noqa: F821


@program
def globals_read_after_setting(x):
    global MADE_TOO
    MADE_TOO = 5
    return x * globals()["MADE_TOO"]


class Base:
    def __init__(self):
        self.k = 2


class Derived(Base):
    def __init__(self):
        super().__init__()
        dynamo_capture.graph_break()
        super().__init__()
        self.j = 3


@program
def methods_above(x):
    d = Derived()
    return x * d.k * d.j


class Tagged(torch.Tensor):
    @staticmethod
    def __new__(cls, data):
        return torch.Tensor._make_subclass(cls, data)

    def __init__(self, data):
        super().__init__()
        self.tag = 3


@program
def methods_above_of_a_tensor(x):
    t = Tagged(x * 2)
    return torch.Tensor.sum(t).as_subclass(torch.Tensor) + t.tag


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_program(fn, capture):
    compiled = capture(fn, strict=False)
    for x in (torch.ones(2), torch.arange(2.0), torch.ones(3)):
        torch.testing.assert_close(compiled(x), fn(x))
    assert not [f.reason for f in compiled.report.fallbacks if "internal error" in f.reason]


@pytest.mark.parametrize("fn", [names_of_locals, evaluated, own_frame, frame_of_the_caller], ids=lambda fn: fn.__name__)
def test_left_to_eager_with_the_reason(fn, capture):
    compiled = capture(fn, strict=False)
    compiled(torch.ones(2))
    assert any("frame" in f.reason for f in compiled.report.fallbacks)
    with pytest.raises(Exception, match="QB21"):
        capture(fn, fullgraph=True)(torch.ones(2))


def test_only_the_frame_that_looks_is_left(capture):
    compiled = capture(in_a_callee, strict=False)
    assert compiled(torch.ones(2)).tolist() == [3, 3]
    assert compiled.graphs  # what follows the call


def test_libraries_may_ask_for_names(capture):
    """``collections.namedtuple`` and the like ask who called them: the graph breaks there, no more."""
    import collections

    def fn(x):
        point = collections.namedtuple("point", "a b")
        return x * point(2, 3).b

    compiled = capture(fn, strict=False)
    assert compiled(torch.ones(2)).tolist() == [3, 3]


def test_disabled_functions_see_the_frames(capture):
    @dynamo_capture.disable
    def name():
        return sys._getframe(1).f_code.co_name

    def fn(x):
        return x * 2, name()

    assert capture(fn)(torch.ones(2))[1] == "fn"


def test_an_optimizers_step_leaves_no_function_to_eager():
    """What the step itself calls, functions about types among it, after gradients have been set."""
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def step(x):
        loss = layer(x).sin().sum()
        loss.backward()
        optimizer.step()
        return loss.detach() + 1

    found = dynamo_capture.explain(step)(torch.ones(3, 2))
    assert found.graph_count == 1
    assert not found.breaks and not found.report.fallbacks


class Watcher:
    def __init__(self):
        self.calls = 0

    def __call__(self, phase, info):
        self.calls += 1
        self.look(torch.ones(2))

    def method(self, phase, info):
        self(phase, info)

    def look(self, x):
        dynamo_capture.graph_break()
        return x + 1


def _function(watcher):
    return lambda phase, info: watcher(phase, info)


@pytest.mark.parametrize(
    "made",
    [_function, lambda w: w, lambda w: w.method, lambda w: functools.partial(w.method)],
    ids=["function", "instance", "method", "partial"],
)
def test_callbacks_of_the_garbage_collector_are_no_frames_of_the_program(made, capture):
    """They run in the middle of whatever frame the collector happens to run in, here one that breaks."""

    def collected(x):
        gc.collect()
        return x + 1

    watcher = Watcher()
    callback = made(watcher)
    compiled = capture(collected, strict=False)
    gc.callbacks.append(callback)
    try:
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    finally:
        gc.callbacks.remove(callback)
    assert watcher.calls >= 2
    (only,) = compiled.report.breaks
    assert "gc.collect" in only.reason
