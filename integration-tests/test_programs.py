"""Small programs that use torch alone: functions, modules, disabled regions, breaks, foreign libraries."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from judge import assert_matches
from reports import assert_all_generated, captured, extern_names, kernel_count
from torch import nn
from zoo import build

import compile_api


@pytest.fixture(autouse=True)
def _inference():
    with torch.no_grad():
        yield


# --- 1: functions and modules ---------------------------------------------------------------------------------------


def test_pointwise_functions():
    def first(x, y):
        return torch.sin(x) + torch.cos(y)

    def second(x, y):
        return (x * y).relu() / (y.abs() + 1)

    for function in (first, second):
        compiled = compile_api.compile(function, fullgraph=True)
        assert_matches(compiled, function, torch.randn(10, 10), torch.randn(10, 10))
        assert_all_generated(compiled.report(), graphs=1, kernels=1)


def test_decorator():
    @compile_api.compile
    def plain(x):
        return torch.sin(x) * 2

    @compile_api.compile(fullgraph=True)
    def with_arguments(x):
        return torch.sin(x) * 2

    for compiled in (plain, with_arguments):
        assert_matches(compiled, lambda x: torch.sin(x) * 2, torch.randn(33))
        assert_all_generated(compiled.report(), graphs=1, kernels=1)
    assert plain.__name__ == "plain"


class LinearReLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(100, 10)

    def forward(self, x):
        return torch.nn.functional.relu(self.lin(x))


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = LinearReLU()
        self.scale = nn.Parameter(torch.randn(10))

    def forward(self, x):
        return self.inner(x) * self.scale


@pytest.mark.parametrize("model_type", [LinearReLU, Nested])
def test_modules(model_type):
    model = model_type()
    compiled = compile_api.compile(model, fullgraph=True)
    assert_matches(compiled, lambda x: model.double()(x) if x.dtype == torch.float64 else model.float()(x), torch.randn(8, 100))
    report = compiled.report()
    assert_all_generated(report, graphs=1, kernels=1)
    assert extern_names(report) == {"aten.addmm"}


def test_twenty_rounds_of_sine():
    case = build("sine")
    compiled = compile_api.compile(case.model, fullgraph=True)
    assert_matches(compiled, case.model, *case.args)
    report = compiled.report()
    assert_all_generated(report, graphs=1, kernels=1)
    assert captured(report)[0].nodes <= 2 * 20 + 2, "shared values must not be captured twice"


def test_two_hundred_rounds_stay_linear():
    sizes = {}
    for rounds in (50, 200):
        case = build("sine", rounds=rounds)
        compiled = compile_api.compile(case.model, fullgraph=True)
        assert_matches(compiled, case.model, *case.args)
        sizes[rounds] = sum(len(kernel.ops) for kernel in compiled.report().kernels)
    assert sizes[200] < 5 * sizes[50]


# --- 2: disable -----------------------------------------------------------------------------------------------------


def test_disable_one_frame_only():
    ran = []

    def conjugate(z):
        ran.append(None)
        return z.conj()

    @compile_api.disable(recursive=False)
    def complex_part(a, b):
        return conjugate(torch.complex(a, b))

    def function(a, b):
        return complex_part(a + 1, b * 2).real + 1

    compiled = compile_api.compile(function)
    assert_matches(compiled, function, torch.randn(4), torch.randn(4))
    assert any("disable" in item.reason for item in compiled.report().breaks)
    assert any("conjugate" in graph.name for graph in captured(compiled.report())), "the callee is still captured"


def test_disable_recursively():
    def inner(x):
        return x * 3

    @compile_api.disable
    def outer(x):
        return inner(x) + 1

    def function(x):
        return outer(x.sin()).cos()

    compiled = compile_api.compile(function)
    assert_matches(compiled, function, torch.randn(4))
    names = [graph.name for graph in captured(compiled.report())]
    assert len(names) == 2
    assert not any("inner" in name or "outer" in name for name in names)


# --- 3: data-dependent control flow ---------------------------------------------------------------------------------


def sign_of_sum(x, y):
    if x.sum() < 0:
        return -y
    return y


def bar(a, b):
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


BAR_LINE = bar.__code__.co_firstlineno + 2


def test_both_branches():
    compiled = compile_api.compile(sign_of_sum)
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
        assert_matches(compiled, sign_of_sum, x, torch.randn(3), exact=True)


def test_three_graphs_over_both_branches(capsys):
    seen = []

    def printing_backend(gm, example_inputs):
        seen.append(gm)
        assert all(isinstance(x, torch.Tensor) for x in example_inputs)
        print(gm.graph)
        return gm.forward

    compiled = compile_api.compile(bar, backend=printing_backend)
    for b in (torch.ones(10), -torch.ones(10)):
        assert_matches(compiled, bar, torch.randn(10), b, exact=True)
    assert len(seen) == 3
    assert capsys.readouterr().out.count("graph():") == 3
    assert all(isinstance(gm, torch.fx.GraphModule) for gm in seen)


def test_explain_names_the_break():
    explanation = compile_api.explain(bar)(torch.randn(10), torch.randn(10).abs())
    assert explanation.graph_count == 2
    assert explanation.graph_break_count == 1
    (item,) = explanation.breaks
    assert "data-dependent" in item.reason.lower() or "data dependent" in item.reason.lower()
    assert f"{__file__}:{BAR_LINE}" in str(item.where)
    assert "if b.sum() < 0:" in str(explanation)


def test_fullgraph_error_names_the_line():
    compiled = compile_api.compile(bar, fullgraph=True)
    with pytest.raises(compile_api.errors.Unsupported, match=re.escape(f"{__file__}:{BAR_LINE}")) as caught:
        compiled(torch.randn(10), torch.randn(10))
    assert "if b.sum() < 0:" in str(caught.value)


# --- 4: numbers and foreign libraries -------------------------------------------------------------------------------


def test_python_int_argument():
    def function(x, n):
        return x + n

    compiled = compile_api.compile(function, fullgraph=True)
    for n in (3, 3, 4, 5, -1, True):
        assert_matches(compiled, function, torch.randn(5), n)
    assert_all_generated(compiled.report())


def test_through_numpy_and_scipy():
    fft = pytest.importorskip("scipy.fft", reason="scipy is needed for the cosine transform of this program")

    def function(x):
        x = x * 2
        y = torch.from_numpy(fft.dct(x.numpy()))
        return y + 1

    compiled = compile_api.compile(function)
    assert_matches(compiled, function, torch.randn(16))
    assert len(captured(compiled.report())) == 2
    assert compiled.report().breaks


def test_kernel_counts_are_minimal():
    """The number of kernels is recorded, so that a lost fusion shows."""
    programs = {
        "softmax": (lambda x: torch.softmax(x * 2, -1), 1),
        "layer_norm": (lambda x: torch.nn.functional.layer_norm(x + 1, (64,)).relu(), 1),
        "rms_norm": (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), 1),
        "gelu": (lambda x: torch.nn.functional.gelu(x) * x.tanh() + x.exp(), 1),
        "sum": (lambda x: x.sin().sum(), 1),
        "batch_norm": (
            lambda x: torch.nn.functional.batch_norm(
                x, torch.zeros(64, dtype=x.dtype), torch.ones(64, dtype=x.dtype), training=False
            ).relu(),
            1,
        ),
    }  # fmt: skip
    for name, (function, kernels) in programs.items():
        compiled = compile_api.compile(function, fullgraph=True)
        assert_matches(compiled, function, torch.randn(32, 64))
        assert kernel_count(compiled.report()) == kernels, name
        assert_all_generated(compiled.report())


def test_cross_entropy_kernels():
    target = torch.randint(0, 50, (32,))
    compiled = compile_api.compile(lambda x: torch.nn.functional.cross_entropy(x, target), fullgraph=True)
    assert_matches(compiled, lambda x: torch.nn.functional.cross_entropy(x, target), torch.randn(32, 50))
    assert kernel_count(compiled.report()) <= 2
    assert_all_generated(compiled.report())


@pytest.mark.parametrize("rows", [0, 3])
def test_nothing_detected(rows):
    """Empty selections: a kernel over no elements notes no index out of range, and joins nothing."""

    def function(boxes, more, scores):
        keep = torch.empty((0,), dtype=torch.int64)
        joined = torch.cat([boxes[keep], more]) * 2
        return boxes[keep], boxes[keep].sum(0), joined, scores[keep].amax(1) + 1, joined.sum(0)

    compiled = compile_api.compile(function, fullgraph=True)
    assert_matches(compiled, function, torch.randn(rows, 4), torch.randn(0, 4), torch.randn(rows, 2), exact=True)
    assert_all_generated(compiled.report())


@pytest.mark.parametrize(
    "targets", [lambda x: [x, x], lambda x: [x, x[1:]], lambda x: [x[:2], x[1:]]], ids=["twice", "part", "overlap"]
)
def test_lists_whose_tensors_share_memory_are_written_in_turn(targets):
    """An operator on a list sees, at each tensor, what it wrote at those before."""

    def program(x):
        torch._foreach_add_(targets(x), 1.0)
        return x * 2

    mine, theirs = torch.arange(4.0), torch.arange(4.0)
    assert torch.equal(compile_api.compile(program)(mine), program(theirs))
    assert torch.equal(mine, theirs)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_loss_of_a_certain_class_has_eagers_sign(reduction):
    def program(x, target):
        return F.nll_loss(x, target, reduction=reduction), F.cross_entropy(x, target, reduction=reduction)

    x, target = torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64)
    for ours, theirs in zip(compile_api.compile(program)(x, target), program(x, target), strict=True):
        assert torch.equal(ours.signbit(), theirs.signbit()) and torch.equal(ours, theirs)


@pytest.mark.parametrize("grad", [False, True])
def test_version_counters_move_as_in_eager(grad):
    """A write through ``.data`` is behind the counter's back: what was saved of the tensor before stays usable."""

    def behind(x, y):
        x.data.mul_(2)
        return x * y

    def before(x, y):
        with torch.no_grad():
            x.mul_(2)
        return x * y

    def listed(x, y):
        with torch.no_grad():
            torch._foreach_mul_([x], 2)
        return x * y

    with torch.enable_grad():
        for program, moved in ((behind, 0), (before, 1), (listed, 1)):
            compiled = compile_api.compile(program)
            for fn in (program, compiled):
                x, y = torch.ones(3, requires_grad=grad), torch.ones(3, requires_grad=True)
                saved = x * y
                assert torch.equal(fn(x, y), torch.full((3,), 2.0))
                assert x._version == moved and torch.equal(x, torch.full((3,), 2.0))
                if not moved:
                    saved.sum().backward()
                    assert torch.equal(y.grad, torch.full((3,), 2.0))
