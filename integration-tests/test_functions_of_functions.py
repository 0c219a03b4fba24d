"""Backwards that call other autograd functions, by which these say how they are differentiated themselves."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import compile_api


class SinBackward(Function):
    """Wrong on purpose by a factor, so that nobody takes the derivative of its forward for its backward."""

    @staticmethod
    def forward(ctx, gradient, x):
        ctx.save_for_backward(gradient, x)
        return gradient * x.cos()

    @staticmethod
    def backward(ctx, again):
        gradient, x = ctx.saved_tensors
        return again * x.cos() * 1.5, -again * gradient * x.sin() * 2


class Sin(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        return SinBackward.apply(gradient, *ctx.saved_tensors)


class Wave(Function):
    """Its derivative is one of the other, whose is one of it: without end."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * Crest.apply(*ctx.saved_tensors)


class Crest(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.cos()

    @staticmethod
    def backward(ctx, gradient):
        return -gradient * Wave.apply(*ctx.saved_tensors)


class Power(Function):
    """With a number, of which its backward calls the function itself with another."""

    @staticmethod
    def forward(ctx, x, n):
        ctx.n = n
        ctx.save_for_backward(x)
        return x**n

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * ctx.n * Power.apply(x, ctx.n - 1) if ctx.n > 1 else gradient, None


class Solve(Function):
    """Implicit differentiation: the backward solves with the function itself."""

    @staticmethod
    def forward(ctx, a, b):
        out = torch.linalg.solve(a, b)
        ctx.save_for_backward(a, out)
        return out

    @staticmethod
    def backward(ctx, gradient):
        a, out = ctx.saved_tensors
        of_b = Solve.apply(a.mT, gradient)
        return -of_b @ out.mT, of_b


class Inside(Function):
    """A function called in a forward is no matter of derivatives."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Sin.apply(x) * 2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            factor = Sin.apply(x)
        return gradient * factor


class Once(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return gradient * Crest.apply(*ctx.saved_tensors)


def solved(x):
    a = torch.eye(3) * 4 + x.view(3, 1) * torch.linspace(0, 1, 3)
    return Solve.apply(a, torch.linspace(-1, 1, 6).view(3, 2)).sum(1)


PROGRAMS = {
    "another": lambda x: Sin.apply(x) * x,
    "one another": lambda x: Wave.apply(x * 2),
    "itself": lambda x: Power.apply(x, 5),
    "a solver": solved,
    "two deep": lambda x: Sin.apply(Wave.apply(x) * Power.apply(x, 3)),
}  # fmt: skip


def derivatives(run, count):
    """The first derivatives up to the given one, of sums of squares."""
    x = torch.linspace(0.3, 0.9, 3, dtype=torch.float32).requires_grad_()
    found, value = [], run(x)
    for order in range(count):
        (value,) = torch.autograd.grad(value.pow(2).sum(), x, create_graph=order + 1 < count)
        found.append(value.detach())
    return found


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives_are_the_functions_own(name, count, inside):
    fn = PROGRAMS[name]
    if inside:

        def whole(x):
            value = fn(x)
            for _ in range(count - 1):
                (value,) = torch.autograd.grad(value.pow(2).sum(), x, create_graph=True)
            return value

        compiled = compile_api.compile(whole)
        for _ in range(2):
            torch.testing.assert_close(derivatives(compiled, 1), derivatives(whole, 1), rtol=1e-4, atol=1e-4)
    else:
        compiled = compile_api.compile(fn)
        for _ in range(2):
            torch.testing.assert_close(derivatives(compiled, count), derivatives(fn, count), rtol=1e-4, atol=1e-4)
    assert compiled.report().verdict == "compiled", str(compiled.report())


@pytest.mark.parametrize("fn", [Inside.apply, Once.apply], ids=["in a forward", "once"])
def test_no_derivative_is_made_up(fn):
    compiled = compile_api.compile(lambda x: fn(x) * x)
    torch.testing.assert_close(derivatives(compiled, 1), derivatives(lambda x: fn(x) * x, 1))
    try:
        wanted = derivatives(lambda x: fn(x) * x, 2)
    except RuntimeError:
        wanted = None
    try:
        found = derivatives(compiled, 2)
    except RuntimeError:
        return  # that it cannot be had is said
    assert wanted is not None
    torch.testing.assert_close(found, wanted)


def test_a_derivative_beyond_those_that_are_captured_is_right_or_said():
    fn = PROGRAMS["one another"]
    compiled = compile_api.compile(fn)
    try:
        found = derivatives(compiled, 5)
    except RuntimeError as error:
        assert "derivative of the autograd function" in str(error)
    else:
        torch.testing.assert_close(found, derivatives(fn, 5), rtol=1e-3, atol=1e-3)
