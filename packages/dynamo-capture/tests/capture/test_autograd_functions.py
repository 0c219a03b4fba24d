"""``torch.autograd.Function`` inside a captured region: the user's backward runs, from a graph."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dynamo_capture import optimize, supports_dynamic_shapes
from prims.report import Report

Function = torch.autograd.Function


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x + 0.125


class Attributes(Function):
    @staticmethod
    def forward(ctx, x, factor, name, y):
        ctx.factor, ctx.name_, ctx.twice, ctx.shape = factor, name, y * 2, x.shape
        return x * factor + y

    @staticmethod
    def backward(ctx, g):
        scale = 2 if ctx.name_ == "a" else 3
        return g * ctx.factor * scale, None, None, g * ctx.twice + torch.zeros(ctx.shape)


class Several(Function):
    @staticmethod
    def forward(ctx, x, y):
        product, index, mask = x * y, x.argmax(-1), (x > 0).float()
        ctx.mark_non_differentiable(mask)
        ctx.save_for_backward(x, y, product)
        return product, index, mask, "text", x + y

    @staticmethod
    def backward(ctx, product_g, index_g, mask_g, text_g, sum_g):
        assert text_g is None
        x, y, product = ctx.saved_tensors
        return product_g * y + sum_g + product, product_g * x + sum_g if ctx.needs_input_grad[1] else None


class SetUp(Function):
    @staticmethod
    def forward(x, weight=2.0):
        return x.exp() * weight

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (output,) = ctx.saved_tensors
        return g * output, None


#: Keyword arguments of ``apply`` came with torch 2.13.
WEIGHT = {"weight": 3.0} if torch.__version__ >= "2.13" else {}


class Absent(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        if a is None:
            return b * 30
        return a * 20 if b is None else a * 2 + b * 3


class Reverse(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.factor * g, None


class Round(Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


class Same(Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 5


class NoGradient(Function):
    @staticmethod
    def forward(ctx, x, y):
        return x + y

    @staticmethod
    def backward(ctx, g):
        return g, None


class MixedPrecision(Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x @ y

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g @ y.t(), x.t() @ g


class OfModule(Function):
    @staticmethod
    def forward(ctx, x, module):
        ctx.module = module
        return module(x)

    @staticmethod
    def backward(ctx, g):
        return g @ ctx.module.weight, None


class WritesItsOwn(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        g.mul_(3)
        g[0] = 1
        return g


class Nested(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Cube.apply(x) * 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * Cube.apply(x)


LINEAR = nn.Linear(4, 4)

WHOLE = {
    "saved": lambda x, y: Cube.apply(x) * y,
    "attributes": lambda x, y: Attributes.apply(x, 3, "a", y) * Attributes.apply(x, 2.5, "b", y).sin(),
    "several": lambda x, y: Several.apply(x, y)[:3] + Several.apply(x, y)[4:],
    "one_of_several": lambda x, y: Several.apply(x, y)[0] * 2,
    "input_without_gradient": lambda x, y: Several.apply(x, y.detach())[0] * y,
    "setup_context": lambda x, y: SetUp.apply(x) * y + SetUp.apply(y, **WEIGHT),
    "absent_gradients": lambda x, y: (sum(Absent.apply(x)) * y, Absent.apply(y)[0], Absent.apply(x * y)[1]),
    "reversal": lambda x, y: Reverse.apply(x * y, 0.5).sum(),
    "straight_through": lambda x, y: Round.apply(x * 3) * y,
    "returns_its_input": lambda x, y: Same.apply(x * 2) * y,
    "no_gradient": lambda x, y: NoGradient.apply(x, y) * 2 + y,
    "mixed_precision": lambda x, y: MixedPrecision.apply(x, y),
    "writes_its_own": lambda x, y: WritesItsOwn.apply(x) * y,
    "nested": lambda x, y: Nested.apply(x * 2) * y,
    "repeated": lambda x, y: Cube.apply(Cube.apply(x) * 0.3) * y + Cube.apply(y),
}


class Dirty(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x.mul_(2))
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 2


CALLS = []


class SideEffect(WritesItsOwn):
    @staticmethod
    def backward(ctx, g):
        CALLS.append(1)
        return g * 2


class Counts(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.calls = 1
        return x * 2

    @staticmethod
    def backward(ctx, g):
        ctx.calls += 1
        return g * ctx.calls


class Branches(WritesItsOwn):
    @staticmethod
    def backward(ctx, g):
        return g * 2 if g.sum() > 0 else g


class TooFew(NoGradient):
    @staticmethod
    def backward(ctx, g):
        return g


class Raises(WritesItsOwn):
    @staticmethod
    def backward(ctx, g):
        raise ValueError("not today")


BROKEN = {
    "module": (lambda x, y: OfModule.apply(x, LINEAR) * y, "whose backward reads what may change until its call"),
    "dirty": (lambda x, y: Dirty.apply(x * 2) * y, "marks tensors as dirty"),
    "side_effect": (lambda x, y: SideEffect.apply(x * 2) * y, "has side effects"),
    "context_changes": (lambda x, y: Counts.apply(x * 2) * y, "has side effects"),
    "branches": (lambda x, y: Branches.apply(x * 2) * y, "data-dependent"),
    "too_few": (lambda x, y: TooFew.apply(x * 2, y) * y, "other than a gradient per input"),
    "raises": (lambda x, y: Raises.apply(x * 2) * y, "raises ValueError"),
}


def outcome(function, seed):
    """Results, which of them need gradients, and the gradients; or the error."""
    torch.manual_seed(seed)
    x, y = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    LINEAR.zero_grad()
    try:
        results = function(x, y)
        results = [r for r in (results if isinstance(results, tuple) else (results,)) if isinstance(r, torch.Tensor)]
        torch.stack([r.square().sum() for r in results if r.requires_grad]).sum().backward()
    except Exception as error:
        return type(error), str(error)
    flags = [r.requires_grad for r in results]
    return [r.detach() for r in results], flags, [x.grad, y.grad, LINEAR.weight.grad]


def agrees(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs):
        if isinstance(other, list):
            agrees(one, other)
        elif isinstance(other, torch.Tensor):
            torch.testing.assert_close(one, other)
        else:
            assert one == other


def compiled(function):
    report = Report()
    return optimize(function, supports_dynamic_shapes(lambda gm, inputs: gm.forward), report=report), report


@pytest.mark.parametrize("name", WHOLE)
def test_one_graph(name):
    function, report = compiled(WHOLE[name])
    for seed in (0, 1):
        agrees(outcome(function, seed), outcome(WHOLE[name], seed))
    assert len(report.graphs) == 1
    assert not report.breaks and not report.fallbacks and not report.recompiles


@pytest.mark.parametrize("name", BROKEN)
def test_breaks_with_a_reason(name):
    plain, reason = BROKEN[name]
    function, report = compiled(plain)
    for seed in (0, 1):
        agrees(outcome(function, seed), outcome(plain, seed))
    assert any(reason in item.reason for item in report.breaks), report.breaks


def test_the_node_shows_the_backward():
    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        return gm.forward

    x = torch.randn(3, requires_grad=True)
    result = optimize(lambda x: Cube.apply(x), backend)(x)
    assert type(result.grad_fn).__name__ == "CubeBackward"
    (node,) = [n for n in graphs[0].graph.nodes if str(n.target) == "attach_Cube"]
    (backward,) = node.target.graphs.values()
    assert [n.op for n in backward.graph.nodes].count("call_function") == 4


def test_guards_of_the_backward():
    """A global that only the backward reads is guarded."""
    scale = {"by": 2.0}

    class Scaled(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g * scale["by"]

    function, report = compiled(lambda x: Scaled.apply(x))
    for factor in (2.0, 3.0):
        scale["by"] = factor
        x = torch.randn(3, requires_grad=True)
        function(x).sum().backward()
        torch.testing.assert_close(x.grad, torch.full((3,), factor))
    assert len(report.recompiles) == 1


def test_wrong_shape_is_eagers_error():
    class Wrong(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g[:2]

    def error(function):
        with pytest.raises(RuntimeError) as caught:
            function(torch.randn(4, requires_grad=True)).sum().backward()
        return str(caught.value)

    assert error(compiled(Wrong.apply)[0]) == error(Wrong.apply)


def test_saved_tensors_are_checked():
    def function(x):
        y = x * 1
        z = Cube.apply(y)
        y.add_(1)
        return z.sum() + y.sum()

    def error(function):
        with pytest.raises(RuntimeError) as caught:
            function(torch.randn(4, requires_grad=True)).backward()
        return str(caught.value)

    assert "modified by an inplace operation" in error(compiled(function)[0])


def test_second_derivative():
    function, _ = compiled(lambda x: Cube.apply(x))
    found = []
    for one in (function, Cube.apply):
        x = torch.arange(3.0, requires_grad=True)
        (gradient,) = torch.autograd.grad(one(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(gradient.square().sum(), x)
        found.append((gradient.detach(), second))
    torch.testing.assert_close(*found)


def test_second_derivative_is_refused():
    function, _ = compiled(lambda x: SetUp.apply(x))  # whose backward is once_differentiable
    x = torch.randn(3, requires_grad=True)
    (gradient,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative of the autograd function SetUp"):
        gradient.sum().backward()


def test_symbolic_sizes():
    class Mean(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.count = x.shape[0] * x.shape[1]
            ctx.save_for_backward(x)
            return x.sum() / ctx.count

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g.expand(x.shape) / ctx.count

    function, report = compiled(lambda x: Mean.apply(x) * 2)
    for rows in (2, 3, 4, 5, 9):
        ours, theirs = (torch.ones(rows, 4, requires_grad=True) for _ in range(2))
        function(ours).backward()
        (Mean.apply(theirs) * 2).backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert len(report.graphs) == 2


class Times(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, a):
        ctx.a = a
        ctx.save_for_backward(x)
        return x * x * a

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * ctx.a * g, None


@pytest.mark.parametrize("numbers", [(1.0, 2.0, 3.5, -4.0), (2, 3, 5, 7)])
def test_a_number_that_is_symbolic_reaches_the_backward(capture, numbers):
    c = capture(lambda x, a: Times.apply(x, a).sin())
    for a in numbers:
        x = torch.arange(4.0, requires_grad=True)
        y = torch.arange(4.0, requires_grad=True)
        c(x, a).sum().backward()
        Times.apply(y, a).sin().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert len(c.graphs) == 2


class Inner(Function):
    """Keeps a graph of its own for its backward, as reversible and implicit layers do."""

    @staticmethod
    def forward(ctx, x, saved, way):
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            y = way(inner)
        if saved:
            ctx.save_for_backward(inner, y)
        else:
            ctx.inner, ctx.y = inner, y
        ctx.saved = saved
        return y.detach()

    @staticmethod
    def backward(ctx, g):
        inner, y = ctx.saved_tensors if ctx.saved else (ctx.inner, ctx.y)
        (gradient,) = torch.autograd.grad(y, inner, g)
        return gradient, None, None


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("way", [torch.sin, torch.exp, torch.square], ids=lambda way: way.__name__)
def test_a_backward_that_differentiates_what_the_forward_made(capture, way, saved):
    def program(x):
        return Inner.apply(x, saved, way) * 2

    compiled = capture(program)
    for _ in range(2):
        ours, theirs = (torch.arange(3.0).requires_grad_() for _ in range(2))
        result, expected = compiled(ours), program(theirs)
        torch.testing.assert_close(result, expected)
        result.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
