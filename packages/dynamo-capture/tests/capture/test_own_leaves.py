"""``backward()`` inside the region to leaves that it has made itself."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynamo_capture


def factory(z):
    x = torch.ones(3, requires_grad=True)
    y = (x * 2 * z).sum()
    before = x.grad
    y.backward()
    return x.grad, before, y.requires_grad


def twice(z):
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    (x * z).sum().backward()
    first = x.grad.clone()
    (x.exp() * z).sum().backward()
    x.grad.mul_(2)
    second, x.grad = x.grad, None
    (x * 3).sum().backward()
    return first, second, x.grad


def random(z):
    x = torch.randn(3, requires_grad=True)
    loss = F.mse_loss(x * z, torch.randn(3))
    loss.backward()
    return loss, x.grad * 2


def required_later(z):
    x = (z * 2).detach().requires_grad_()
    y = x.sin().sum()
    y.backward()
    return x.grad + z


def with_a_parameter(z):
    p = nn.Parameter(torch.full((3,), 2.0))
    (p * z).sum().backward()
    return p.grad


def retained(z):
    x = torch.ones(3, requires_grad=True)
    y = (x * x * z).sum()
    y.backward(retain_graph=True)
    y.backward()
    return x.grad


def with_an_input(z):
    x = torch.ones(3, requires_grad=True)
    w = z * 1
    (x * w).sum().backward()
    return x.grad, w.detach()


def step_by_hand(z):
    x = torch.zeros(3, requires_grad=True)
    for _ in range(3):
        ((x - z) ** 2).sum().backward()
        with torch.no_grad():
            x -= 0.25 * x.grad
        x.grad = None
    return x.detach() + 1


ONE_GRAPH = [factory, twice, random, required_later, with_a_parameter, retained]


def same(a, b):
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        facts = [(t.requires_grad, t.is_leaf, t.stride(), t.dtype) for t in (a, b)]
        return facts[0] == facts[1] and torch.allclose(a, b)
    return a == b


def outcomes(fn, grad=False):
    found = []
    for k in range(3):
        z = (torch.arange(3.0) + k).requires_grad_(grad)
        torch.manual_seed(k)
        found.append((fn(z), z.grad if grad else z))
    return tuple(found)


@pytest.mark.parametrize("fn", ONE_GRAPH)
def test_one_graph(fn, capture):
    compiled = capture(fn, fullgraph=True)
    assert same(outcomes(compiled), outcomes(fn))
    assert len(compiled.graphs) == 1 and not compiled.report.breaks


def test_with_a_leaf_from_outside(capture):
    compiled = capture(with_an_input, fullgraph=True)
    assert same(outcomes(compiled, grad=True), outcomes(with_an_input, grad=True))


def returned(z):
    x = torch.ones(3, requires_grad=True)
    (x * z).sum().backward()
    return x


def around_a_break(z):
    x = torch.ones(3, requires_grad=True)
    (x * z).sum().backward()
    dynamo_capture.graph_break()
    (x * z * 2).sum().backward()
    return x.grad


def no_gradient_yet(z):
    x = torch.ones(3, requires_grad=True)
    y = x * z
    return y, x.grad


@pytest.mark.parametrize("fn", [returned, around_a_break, step_by_hand, no_gradient_yet])
def test_as_eager(fn, capture):
    compiled = capture(fn, strict=False)
    ours, theirs = outcomes(compiled), outcomes(fn)
    assert same(ours, theirs)
    if fn is returned:
        assert all(same(a[0].grad, b[0].grad) for a, b in zip(ours, theirs, strict=True))


def with_its_loss(z):
    x = torch.arange(3.0, requires_grad=True)
    loss = (x * z).sum()
    loss.backward()
    return x, loss


def stepped(z):
    x = torch.ones(3, requires_grad=True)
    (x * z).sum().backward()
    with torch.no_grad():
        x -= 0.5 * x.grad
    return [x, x], x.detach()


def without_a_gradient(z):
    x = torch.ones(3, requires_grad=True)
    (x * z).sum().backward()
    x.grad = None
    return x


def required(z):
    x = (z * 2).detach().requires_grad_()
    (x * x).sum().backward()
    return {"x": x, "grad": x.grad}


@pytest.mark.parametrize("fn", [returned, with_its_loss, stepped, without_a_gradient, required])
def test_leaves_that_leave(fn, capture):
    """They are leaves outside too, with their gradients."""

    def facts(run):
        found = []
        for k in range(3):
            result = run(torch.arange(3.0) + k)
            x = result if isinstance(result, torch.Tensor) else result["x"] if isinstance(result, dict) else result[0]
            x = x[0] if isinstance(x, list) else x
            if isinstance(result, dict):
                assert x.grad is result["grad"]
            if fn is stepped:
                assert result[0][0] is result[0][1]
            before = None if x.grad is None else x.grad.clone()
            (x * 3).sum().backward()
            found.append((x.detach().clone(), x.is_leaf, x.requires_grad, x.grad_fn, before, x.grad))
            if fn is with_its_loss:
                assert result[1].requires_grad
                with pytest.raises(RuntimeError, match="second time"):
                    result[1].backward()
        return tuple(found)

    compiled = capture(fn, fullgraph=True)
    assert same(facts(compiled), facts(fn))
    assert len(compiled.graphs) == 1


def history_leaves_too(z):
    x = torch.ones(3, requires_grad=True)
    y = x * z
    y.sum().backward(retain_graph=True)
    return x, y


def a_view_leaves_too(z):
    x = torch.ones(3, requires_grad=True)
    v = x[:2]
    (x * z).sum().backward()
    return x, v


@pytest.mark.parametrize("fn", [history_leaves_too, a_view_leaves_too])
def test_leaves_that_leave_with_a_history(fn, capture):
    def facts(run):
        x, y = run(torch.arange(3.0) + 1)
        first = x.grad.clone()
        y.sum().backward()
        return first, x.grad, x.is_leaf

    compiled = capture(fn, strict=False)
    assert same(facts(compiled), facts(fn))
