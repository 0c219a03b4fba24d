"""Tensors that a program makes and that are to have gradients: compiled, in one graph where nobody else sees them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import compile_api


def scaled(x, w):
    return (x * nn.Parameter(torch.full((4,), 2.0))).sum()


def normalised(x, w):
    return nn.LayerNorm(4)(x)


def normalised_view(x, w):
    return nn.BatchNorm1d(4)(x).relu().view(-1)


def beside_an_input(x, w):
    return nn.LayerNorm(4)(x) @ w, x + 1


def leaf_of_an_input(x, w):
    y = x.detach().requires_grad_()
    return (y * y).sum(), x * 2


def without_gradients(x, w):
    with torch.no_grad():
        return nn.LayerNorm(4)(x)


@pytest.mark.parametrize(
    "fn", [scaled, normalised, normalised_view, beside_an_input, leaf_of_an_input, without_gradients]
)
def test_one_graph(fn):
    x, w = torch.randn(3, 4), torch.randn(4, 2, requires_grad=True)
    compiled = compile_api.compile(fn)
    found, want = compiled(x, w), fn(x, w)
    report = compiled.report()
    assert not report.breaks
    assert not report.fallbacks
    assert report.kernels
    gradients = []
    for results in (found, want):
        results = results if isinstance(results, tuple) else (results,)
        w.grad = None
        for result in results:
            if result.requires_grad:
                result.sum().backward()
        gradients.append(w.grad)
    torch.testing.assert_close(found, want)
    flags = [[(t.requires_grad, t.is_leaf) for t in (r if isinstance(r, tuple) else (r,))] for r in (found, want)]
    assert flags[0] == flags[1]
    assert (gradients[0] is None) == (gradients[1] is None)
    if gradients[0] is not None:
        torch.testing.assert_close(gradients[0], gradients[1])


def test_the_parameter_of_a_module_that_is_kept():
    def fn(x):
        net = nn.Linear(4, 1)
        return net(x + 1).sum(), net

    compiled = compile_api.compile(fn)
    x = torch.randn(3, 4)
    loss, net = compiled(x)
    loss.backward()
    torch.testing.assert_close(net.weight.grad, (x + 1).sum(0, keepdim=True))


def test_modules_are_made_in_one_graph_beside_pytorchs_compiler():
    """It changes ``nn.Module.__init__`` for good when it first runs."""
    torch.compile(nn.Linear(4, 4), backend="eager")(torch.ones(1, 4))
    test_one_graph(normalised)


@pytest.mark.parametrize("also", [False, True])
def test_gradients_that_lead_to_such_leaves_alone_have_a_history(also):
    """As in eager, where they can be differentiated though nobody gets anything of it; others go on to the inputs."""

    def program(x, w):
        return x.detach().requires_grad_() * w * (x if also else 1)

    compiled = compile_api.compile(program)
    found = []
    for fn in (compiled, program):
        x, w = torch.linspace(0.5, 2, 4).requires_grad_(), torch.linspace(-1, 1, 4).requires_grad_()
        (gradient,) = torch.autograd.grad(fn(x, w).sum(), w, create_graph=True)
        flag = gradient.requires_grad
        (gradient * 3).sum().backward()
        found.append((flag, gradient.detach(), x.grad, w.grad))
    assert compiled.report().graphs
    assert not compiled.report().breaks
    assert found[0][0] is True
    torch.testing.assert_close(found[0], found[1])
