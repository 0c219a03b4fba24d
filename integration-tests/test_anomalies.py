"""``torch.autograd.set_detect_anomaly``: regions are compiled as ever, and a gradient that is no number is an error."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import set_detect_anomaly

import compile_api


def of_a_root(x):
    return (x * x).sum().sqrt()


@pytest.mark.parametrize("first", [True, False])
def test_a_region_is_compiled_with_and_without(first):
    """What is detected is read where autograd runs, not where the region is traced."""
    compiled = compile_api.compile(of_a_root, fullgraph=True)
    for detects in (first, not first):
        x = torch.ones(3, requires_grad=True)
        with set_detect_anomaly(detects):
            compiled(x).backward()
        torch.testing.assert_close(x.grad, torch.full((3,), 3**-0.5))
    report = compiled.report()
    assert report.verdict == "compiled" and report.kernels and not report.fallbacks and not report.recompiles
    with set_detect_anomaly(True), pytest.raises(RuntimeError, match="returned nan values"):
        compiled(torch.zeros(3, requires_grad=True)).backward()
    x = torch.zeros(3, requires_grad=True)
    with set_detect_anomaly(True, check_nan=False):
        compiled(x).backward()
    assert x.grad.isnan().all()


def with_backward(linear, x):
    linear.zero_grad()
    loss = of_a_root(linear(x))
    loss.backward()
    return loss.detach()


def with_grad(linear, x):
    return torch.autograd.grad(of_a_root(linear(x)), [linear.weight])[0]


def with_func(linear, x):
    return torch.func.grad(of_a_root)(linear(x).detach())


@pytest.mark.parametrize("step", [with_backward, with_grad, with_func], ids=lambda step: step.__name__)
@pytest.mark.parametrize("first", [True, False])
def test_a_derivative_inside_is_looked_at_too(step, first):
    """A graph looks at none of its own: while anomalies are detected autograd computes it, after a graph break."""
    linear = nn.Linear(3, 2, bias=False)
    compiled = compile_api.compile(step)
    for detects in (first, not first):
        with set_detect_anomaly(detects):
            torch.testing.assert_close(compiled(linear, torch.ones(4, 3)), step(linear, torch.ones(4, 3)))
    for call in (step, compiled):
        call(linear, torch.zeros(4, 3))
        with set_detect_anomaly(True), pytest.raises(RuntimeError, match="returned nan values"):
            call(linear, torch.zeros(4, 3))
    reasons = [record.reason for record in compiled.report().breaks]
    assert any("while anomalies are detected" in reason for reason in reasons), reasons
    assert compiled.report().kernels
