"""Gradients of some results only, through custom functions whose backward is anything but linear in what it gets."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import compile_api


class Saved(torch.autograd.Function):
    """Its gradient is a tensor that it saved, whatever comes back."""

    @staticmethod
    def forward(ctx, x, gradient):
        ctx.save_for_backward(gradient)
        return x * 2

    @staticmethod
    def backward(ctx, coming):
        return ctx.saved_tensors[0], None


class Passes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, coming):
        return coming


def program(x, w, gradient):
    y = x * w
    return Saved.apply(y, gradient) * 3, y * 5, Passes.apply(y).sin(), Passes.apply(Saved.apply(w, gradient))


@pytest.mark.parametrize("used", [u for u in itertools.product((False, True), repeat=4) if any(u)])
def test_gradients_of_some_results(used):
    found = []
    for call in (program, compile_api.compile(program, fullgraph=True)):
        torch.manual_seed(0)
        x, w = (torch.randn(3, requires_grad=True) for _ in range(2))
        results = call(x, w, torch.full((3,), 7.0))
        sum(result.sum() for result, u in zip(results, used, strict=True) if u).backward()
        found.append([x.grad, w.grad])
    for theirs, ours in zip(*found, strict=True):
        assert (theirs is None) == (ours is None)
        if theirs is not None:
            torch.testing.assert_close(ours, theirs)


LAYOUTS = {
    "transposed": lambda n: torch.randn(7, n, 3).permute(2, 1, 0),
    "channels last": lambda n: torch.randn(2, 3, n, 4).to(memory_format=torch.channels_last),
    "reversed": lambda n: torch.randn(n, 1, 4).permute(2, 1, 0),
    "with gaps": lambda n: torch.randn(6, 2 * n).t()[::2],
    "row-major": lambda n: torch.randn(n, 6),
}


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2), (1, 2)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_some_results_lie_as_eagers(layout, used):
    """Terms of a sum that lie otherwise than it, of sizes that change."""

    def f(x):
        copied = torch.stack(x.unbind())
        return F.celu(x), copied.abs().log2(), copied.sin() + x

    compiled = compile_api.compile(f, dynamic=True, fullgraph=True, options={"verify": "every_pass", "strict": True})
    for n in (5, 6):
        found = []
        for call in (f, compiled):
            torch.manual_seed(n)
            x = LAYOUTS[layout](n).requires_grad_()
            results = call(x)
            sum((results[u] * results[u].detach()).sum() for u in used).backward()
            found.append(x.grad)
        assert found[0].stride() == found[1].stride()
        torch.testing.assert_close(*found)
    assert not compiled.report().fallbacks


class Average(torch.nn.Module):
    """Scaled by a running mean, which is written behind a graph break: eager's product saves its cosine, not the mean."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 4))

    def forward(self, x):
        h = x * self.weight * self.mean.cos()
        h.register_hook(lambda gradient: gradient * 2)
        self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return h.sin()


def through_a_break(x):
    """Of ``t`` alone gradients come: that of ``cummin``, which has saved it before it was written, is not asked for."""
    t = x.tile(2)
    smallest = t.cummin(1).values
    smallest[smallest.gt(0)]
    t += 1
    return t


def softmax_written(x):
    t = x.cummax(1)[0]
    logits = t.reshape(4, -1).log_softmax(1)
    logits[t.reshape(4, -1).gt(0)] *= 2
    return t


@pytest.mark.parametrize("program", [Average, lambda: through_a_break, lambda: softmax_written])
def test_writes_behind_a_graph_break(program):
    found = []
    for wrap in (lambda call: call, compile_api.compile):
        torch.manual_seed(0)
        call = program()
        run = wrap(call)
        x = torch.randn(4, 4, requires_grad=True)
        for _ in range(2):
            run(x).sum().backward()
        found.append([x.grad, *(p.grad for p in call.parameters())] if isinstance(call, torch.nn.Module) else [x.grad])
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (2, 3)], ids=str)
def test_an_input_that_is_watched_and_shares_memory(shape):
    """Of what it keeps, a call watches versions without holding memory, whatever its shape."""
    compiled = compile_api.compile(lambda x, y: (y * y).sum())
    for _ in range(2):
        x = torch.ones(shape, requires_grad=True)
        compiled(x, (x * 1)[...]).backward()
        assert torch.equal(x.grad, torch.full(shape, 2.0))
        compiled(x, x[...]).backward()
        assert torch.equal(x.grad, torch.full(shape, 4.0))
    assert compiled.report().kernels and not compiled.report().fallbacks


NO_DERIVATIVE = {
    "unique": lambda x: x.unique(),
    "unique_consecutive": lambda x: x.unique_consecutive(),
    "igamma": lambda x: torch.igamma(x.abs() + 1, x.detach().abs()),
}


@pytest.mark.parametrize("written", [False, True], ids=["read", "written"])
@pytest.mark.parametrize("name", NO_DERIVATIVE)
def test_a_result_beside_what_has_no_derivative(name, written):
    """Behind a graph break both are inputs of one region; eager comes to one of them only."""
    made = NO_DERIVATIVE[name]

    def f(x):
        y = x * 2
        z = made(y)
        assert str(z.tolist())  # a graph break
        if written:
            z += 1
        return y.sin(), z * 3

    compiled = compile_api.compile(f)
    for used in (0, 1):
        found = []
        for call in (f, compiled):
            x = torch.linspace(0.5, 2, 4).requires_grad_()
            result = call(x)[used].sum()
            try:
                result.backward(retain_graph=True)
                result.backward()
                found.append(x.grad)
            except NotImplementedError as error:
                found.append(str(error))
        if used:
            assert found[0] == found[1] and "is not implemented" in found[0]
        else:
            torch.testing.assert_close(found[1], found[0])
    assert compiled.report().breaks and compiled.report().kernels


class TellsAbsent(torch.autograd.Function):
    """Its derivative is not that of zeros where a gradient is absent."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x.sum()

    @staticmethod
    def backward(ctx, first, second):
        found = None
        if first is not None:
            found = first * 2 + 1
        if second is not None:
            found = second.expand(3) if found is None else found + second
        return found


#: Of an input, results of which some come from one of the function's own, and whether one graph can tell.
TELLING = {
    "both": (lambda x: TellsAbsent.apply(x), False),
    "behind": (lambda x: (TellsAbsent.apply(x)[0].sin(), x * 3), True),
    "each": (lambda x: tuple(y.sin() for y in TellsAbsent.apply(x)), False),
    "mixed": (lambda x: (lambda y, s: (y * s, y + s))(*TellsAbsent.apply(x)), True),
    "one of both": (lambda x: (lambda y, s: (y * s, y.cos()))(*TellsAbsent.apply(x)), False),
    "of each other": (lambda x: (lambda y, s: (TellsAbsent.apply(y)[1], s))(*TellsAbsent.apply(x)), False),
}


@pytest.mark.filterwarnings("ignore::prims.errors.CompileWarning")
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("name", TELLING)
def test_functions_that_tell_absent_gradients_from_zeros(name, used):
    program, is_compiled = TELLING[name]
    compiled = compile_api.compile(program)
    found = []
    for call in (program, compiled, compiled):
        x = torch.arange(3.0, requires_grad=True)
        results = call(x)
        sum(results[k].sum() for k in used).backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1:], [found[0]] * 2)
    report = compiled.report()
    assert (report.verdict == "compiled") == is_compiled, report
    assert is_compiled or "tells absent gradients from zeros" in report.verdict, report.verdict
