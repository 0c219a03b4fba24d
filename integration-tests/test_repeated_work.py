"""What a kernel computes in place of reading is not computed again and again: chains of steps that each read the one before
at several places stay linear, and functions do not go through the serial loop of a scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import compile_api


def on_a_torus(x: torch.Tensor, steps: int) -> torch.Tensor:
    for _ in range(steps):
        x = x + 0.1 * (x.roll(1, 0) + x.roll(-1, 0) + x.roll(1, 1) + x.roll(-1, 1) - 4 * x)
    return x


def padded(x: torch.Tensor, steps: int) -> torch.Tensor:
    for _ in range(steps):
        p = F.pad(x, (1, 1, 1, 1))
        x = x + 0.1 * (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * x)
    return x


def narrowing(x: torch.Tensor, steps: int) -> torch.Tensor:
    for _ in range(steps):
        x = (x[:, 2:] + x[:, :-2]) * 0.5 + x[:, 1:-1].sin()
    return x


def doubling(x: torch.Tensor, steps: int) -> torch.Tensor:
    for k in range(steps):
        x = x + x.roll(2**k, 1)
    return x


def associative(x: torch.Tensor, steps: int) -> torch.Tensor:
    a, b = x * 0.1, x
    for k in range(steps):
        s = 2**k
        b = torch.cat([b[:, :s], b[:, s:] + a[:, s:] * b[:, :-s]], 1)
        a = torch.cat([a[:, :s], a[:, s:] * a[:, :-s]], 1)
    return b


def mirrored(x: torch.Tensor, steps: int) -> torch.Tensor:
    for _ in range(steps):
        x = x + x.flip(1) * 0.5 + x.flip(0) * 0.25
    return x


def statements(fn: Callable[..., Any], steps: int, grad: bool) -> int:
    """How many values the kernels of so many steps compute; the results are eager's."""
    torch.manual_seed(0)
    compiled = compile_api.compile(lambda x: fn(x, steps))
    x = torch.randn(96, 512, requires_grad=grad)
    y, wanted = compiled(x), fn(x, steps)
    torch.testing.assert_close(y, wanted, atol=1e-3, rtol=1e-3)
    if grad:
        mine, eager = torch.autograd.grad(y.sum(), x), torch.autograd.grad(wanted.sum(), x)
        torch.testing.assert_close(mine, eager, atol=1e-3, rtol=1e-3)
    report = compiled.report()
    assert report.verdict == "compiled" and report.kernels
    return sum(kernel.source.count("const float v") for kernel in report.kernels)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("fn", [on_a_torus, padded, narrowing, doubling, associative, mirrored], ids=lambda fn: fn.__name__)
def test_the_work_of_a_chain_is_that_of_its_steps(fn: Callable[..., Any], grad: bool) -> None:
    few, many = statements(fn, 2, grad), statements(fn, 8, grad)
    assert many <= 16 * few, (few, many)  # the square at most: a step makes one seam more, and the pieces are kernels


SCANS = {
    "tanh before": (lambda x: x.tanh().cumsum(-1), 2),
    "tanh behind": (lambda x: x.cumsum(-1).tanh(), 2),
    "around": (lambda x: torch.exp(-F.softplus(x).cumsum(-1)), 3),
    "with another": (lambda x: (1 - torch.exp(-F.softplus(x))) * torch.exp(-F.softplus(x).cumsum(-1)), 3),
    "a product": (lambda x: x.sigmoid().cumprod(-1), 2),
    "little": (lambda x: (x + 1).cumsum(-1), 1),
    "across rows": (lambda x: x.tanh().cumsum(0).exp(), 1),
}


@pytest.mark.parametrize("name", SCANS)
def test_functions_beside_a_scan_are_computed_by_vectors(name: str) -> None:
    fn, kernels = SCANS[name]
    compiled = compile_api.compile(fn)
    x = torch.randn(256, 1000)
    torch.testing.assert_close(compiled(x), fn(x), atol=1e-4, rtol=1e-4)
    assert compiled.report().verdict == "compiled" and len(compiled.report().kernels) == kernels
