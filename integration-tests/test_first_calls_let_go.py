"""What a first call is given is free when the call has ended: nothing waits for the cyclic collector, which is off here."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import compile_api


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def one():
    return torch.randn(3, 3)


def leaf():
    return torch.randn(3, 3, requires_grad=True)


def breaks(x):
    return x.sin() + float(x.sum())


def fails(x):
    y = x * 2
    raise ValueError(str(y.shape))


def writes(x):
    x.add_(1)
    return x.view(-1)


def backward(call, x):
    call(x).backward()


def twice(call, x):
    (grad,) = torch.autograd.grad(call(x), x, create_graph=True)
    torch.autograd.grad(grad.sum(), x)


def plainly(call, *given):
    call(*given)


def listed(call, *given):
    list(call(*given))


def refused(call, *given):
    with pytest.raises((RuntimeError, ValueError)):
        call(*given)


def twice_as_much(x):
    return x * 2


#: A program, what makes its arguments, how it is called, options of ``compile()``.
CALLS = {
    "a result": (twice_as_much, [one], plainly, {}),
    "a gradient": (lambda x: (x * 2).sin().sum(), [leaf], backward, {}),
    "gradients of gradients": (lambda x: (x**3).sum(), [leaf], twice, {}),
    "a break": (breaks, [one], plainly, {}),
    "an error": (fails, [one], refused, {}),
    "a refused break": (breaks, [one], refused, {"fullgraph": True}),
    "operands that do not fit": (lambda x, y: x @ y, [one, lambda: torch.ones(4, 4)], refused, {}),
    "a write": (writes, [one], plainly, {}),
    "data": (lambda x: x[x > 0], [one], plainly, {}),
    "a number": (lambda x: x * x.sum().item(), [one], plainly, {}),
    "a generator": (lambda x: (x * i for i in range(2)), [one], listed, {}),
    "a branch": (
        lambda x: torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x * 3, (x,)), [one], plainly, {}),
    "vmap": (lambda x: torch.vmap(lambda row: row.sin())(x), [one], plainly, {}),
    "a derivative": (lambda x: torch.func.jacrev(lambda row: row.sin())(x[0]), [one], plainly, {}),
    "a checkpoint": (lambda x: checkpoint(lambda y: y.sin().cos(), x, use_reentrant=False).sum(), [leaf], backward, {}),
    "a function of autograd": (lambda x: Doubled.apply(x).sum(), [leaf], backward, {}),
    "a copy": (lambda x: copy.deepcopy(x) * 2, [one], plainly, {}),
    "a module": (lambda m, x: m(x), [lambda: nn.Linear(3, 3), one], plainly, {}),
    "a module with buffers": (lambda m, x: m(x), [lambda: nn.BatchNorm1d(3), one], plainly, {}),
    "an array": (lambda x: torch.from_numpy(x.numpy() * 2), [one], plainly, {}),
    "a sparse tensor": (twice_as_much, [lambda: one().to_sparse()], plainly, {}),
    "sizes that are symbols": (twice_as_much, [one], plainly, {"dynamic": True}),
    "another backend": (twice_as_much, [one], plainly, {"backend": "eager"}),
    "a check": (lambda x: x * 2 + 1, [one], plainly, {"options": {"check": "shadow"}}),
    "a verifier": (lambda x: x * 2 + 1, [one], plainly, {"options": {"verify": "reference"}}),
    "eager's bits": (lambda x: x.softmax(0), [one], plainly, {"options": {"numerics": "eager_exact"}}),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("again", [False, True], ids=["compiled", "stored"])
@pytest.mark.parametrize("name", CALLS)
def test_arguments_are_free(name, again):
    fn, made, call, options = CALLS[name]
    if again:
        call(compile_api.compile(fn, **options), *(make() for make in made))
        compile_api.reset()
    gc.collect()
    gc.disable()
    try:
        given = [make() for make in made]
        alive = [weakref.ref(thing) for thing in given]
        alive += [weakref.ref(p) for thing in given if isinstance(thing, nn.Module) for p in thing.parameters()]
        compiled = compile_api.compile(fn, **options)
        call(compiled, *given)
        del given
        assert [ref() is None for ref in alive] == [True] * len(alive)
    finally:
        gc.enable()


@pytest.mark.parametrize("training", [False, True])
def test_a_compiled_module_is_free(training):
    def run():
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.ReLU()).train(training)
        compiled = compile_api.compile(model)
        compiled(one()).sum().backward()
        return [weakref.ref(part) for part in (model, model[0], model[0].weight, compiled)]

    gc.collect()
    gc.disable()
    try:
        assert [ref() is None for ref in run()] == [True] * 4
    finally:
        gc.enable()
