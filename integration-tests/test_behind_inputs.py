"""What the program has before a region, in backward passes that reach some of the region's results only.

One autograd node is before all inputs of a region. What is behind an input that the reached results are not computed
from is run as in eager: not at all.
"""

from __future__ import annotations

import pytest
import torch

import compile_api


class Noted(torch.autograd.Function):
    """Two results, and a backward that is not linear: what it gets is noted, and of nothing it makes NaN."""

    seen: list[list[float | None]] = []

    @staticmethod
    def forward(ctx, x):
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        Noted.seen.append([float(g.sum()) for g in (first, second)])
        return first / first.abs().max() + second


class Unmade(torch.autograd.Function):
    """It takes None for what has not come."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        Noted.seen.append([None if g is None else float(g.sum()) for g in (first, second)])
        return first if second is None else second


#: name -> what comes to the region of a leaf.
BEFORE = {
    "function": lambda x: Noted.apply(x)[0],
    "function, further off": lambda x: (Noted.apply(x)[0].sin() * 2)[:, None].squeeze(1),
    "second result": lambda x: Noted.apply(x)[1],
    "function of a function": lambda x: Noted.apply(Noted.apply(x)[1] * 2)[0],
    "function that takes None": lambda x: Unmade.apply(x)[0],
    "another region": compile_api.compile(lambda x: x.cos() * 2),
    "operators": lambda x: x.cos() * 2,
}


def region(y, w):
    return w * w, y * w, w.sin()


#: name -> the loss of the region's results and of what comes to it.
LOSSES = {
    "not reached": lambda out, y: out[0].sum(),
    "reached": lambda out, y: out[1].sum(),
    "all": lambda out, y: sum(o.sum() for o in out),
    "beside the region": lambda out, y: out[2].sum() + (y * y).sum(),
    "both": lambda out, y: out[1].sum() + (y * y).sum(),
}


def gradients(function, before, loss, times):
    Noted.seen = []
    x, w = torch.linspace(0.5, 1, 4).requires_grad_(), torch.arange(1.0, 5).requires_grad_()
    y = before(x)
    total = loss(function(y, w), y)
    for _ in range(times):
        total.backward(retain_graph=times > 1)
    return x.grad, w.grad, Noted.seen


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("before", BEFORE)
def test_functions_run_where_a_gradient_comes_to_them(before, loss, times):
    compiled = compile_api.compile(region, fullgraph=True)
    ours = gradients(compiled, BEFORE[before], LOSSES[loss], times)
    eager = gradients(region, BEFORE[before], LOSSES[loss], times)
    none = float("nan")  # in the place of None, which comes to nothing but itself
    flat = [[none if g is None else g for call in seen for g in call] for seen in (ours[2], eager[2])]
    assert flat[0] == pytest.approx(flat[1], nan_ok=True)
    for mine, theirs in zip(ours[:2], eager[:2], strict=True):
        assert (mine is None) is (theirs is None)
        if mine is not None:
            torch.testing.assert_close(mine, theirs, equal_nan=True)
    assert compiled.report().kernels and not compiled.report().fallbacks


def test_a_pass_that_misses_a_function_leaves_it_as_it_was():
    """The next pass through the same graph comes to it."""
    x, w = torch.ones(4, requires_grad=True), torch.arange(1.0, 5).requires_grad_()
    y = Noted.apply(x)[0]
    first, second, _ = compile_api.compile(region)(y, w)
    first.sum().backward(retain_graph=True)
    assert x.grad is None and "apply" not in y.grad_fn.__dict__
    Noted.seen = []
    second.sum().backward()
    assert Noted.seen == [[10.0, 0.0]] and torch.equal(x.grad, torch.arange(1.0, 5) / 4)
