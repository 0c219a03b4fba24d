"""Gradient scaling inside a compiled step: what is checked for infinities is written by operators that return nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import compile_api


def step(model, optimizer, scaler, x, y, factor):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss * factor).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()


def test_a_whole_step():
    """A step with an infinite gradient is skipped and shrinks the scale, steps without one make it grow."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    twin = copy.deepcopy(model)
    compiled = compile_api.compile(step)
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2) for _ in range(2)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9) for m in (model, twin)]
    scales = []
    for number in range(8):
        x, y, factor = torch.randn(8, 16), torch.randint(0, 4, (8,)), float("inf") if number == 3 else 1.0
        before = copy.deepcopy(model.state_dict())
        compiled(model, optimizers[0], scalers[0], x, y, factor)
        step(twin, optimizers[1], scalers[1], x, y, factor)
        assert scalers[0].get_scale() == scalers[1].get_scale(), number
        scales.append(scalers[0].get_scale())
        unchanged = all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), before.values(), strict=True))
        assert unchanged == (number == 3)
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-3)
    assert len(set(scales)) > 2
    assert compiled.report().kernels and not compiled.report().fallbacks


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("bad", [None, float("inf"), float("-inf"), float("nan")])
def test_unscale(bad, dtype, backend):
    def f(gradients, found, inverse):
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse)
        return found + 1

    def given():
        torch.manual_seed(0)
        gradients = [torch.randn(5).to(dtype), torch.randn(2, 3).to(dtype)]
        if bad is not None:
            gradients[1][1, 2] = bad
        return gradients, torch.zeros(()), torch.tensor(0.25)

    ours, theirs = given(), given()
    compiled = compile_api.compile(f, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(*ours), f(*theirs), rtol=0, atol=0)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert not compiled.report().fallbacks


@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("tracker", [0, 1])
@pytest.mark.parametrize("scale", [4.0, 3e38])
def test_update_scale(scale, tracker, found):
    def f(scale, tracker, found):
        return torch._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 2) + 0

    given = lambda: (torch.tensor([scale]), torch.tensor([tracker], dtype=torch.int32), torch.tensor([found]))
    ours, theirs = given(), given()
    compiled = compile_api.compile(f, fullgraph=True)
    torch.testing.assert_close(compiled(*ours), f(*theirs), rtol=0, atol=0)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert not compiled.report().fallbacks
