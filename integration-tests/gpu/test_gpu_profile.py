"""``profile()`` on a GPU: device time of each kernel and each library call, one by one where calls replay a CUDA graph."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from on_gpu import DEVICE
from torch import nn

import compile_api


def layers(dtype, width=2048):
    made = (nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)) for _ in range(4))
    return nn.Sequential(*made).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])  # products by PyTorch, and by the library itself
def test_device_time_of_each_launch(dtype):
    made = compile_api.compile(layers(dtype), options={"cache": False})
    x = torch.randn(16384, 2048, device=DEVICE, dtype=dtype)
    with torch.no_grad():
        call = compile_api.profile(made, x)
    report = made.report()
    launches = [*(name for kernel in report.kernels for name in kernel.launches), *(call.name for call in report.externs)]
    assert Counter(step.name for step in call.steps) == Counter(launches) and len(report.externs) == 4
    assert torch.cuda.get_device_name(DEVICE) in call.what and "device time" in call.what
    assert all(step.device.startswith("cuda") and step.seconds > 0 for step in call.steps)
    inside = sum(step.seconds for step in call.steps)
    assert 0.8 * call.seconds < inside <= 1.01 * call.seconds  # the host is ahead: there are no gaps
    products = [step.seconds for step in call.steps if step.kind == "library"]
    flops = 2 * 16384 * 2048 * 2048
    assert all(1e12 < flops / seconds < 2e15 for seconds in products)  # a product's time, and not its launch's
    assert call.seconds < call.undisturbed * 1.5
    rates = [group.rate / call.bandwidth[group.first.device] for group in call.groups() if group.first.kind == "kernel"]
    assert all(0.05 < rate < 4 for rate in rates), rates  # what is in the L2 cache goes faster than memory


def test_a_training_step():
    made = compile_api.compile(layers(torch.float32, 512), options={"cache": False})
    call = compile_api.profile(made, torch.randn(256, 512, device=DEVICE))
    report = made.report()
    launches = [*(name for kernel in report.kernels for name in kernel.launches), *(call.name for call in report.externs)]
    assert len(call.steps) >= 15 and {step.name for step in call.steps} <= set(launches)
    assert sum(step.seconds for step in call.steps) <= 1.01 * call.seconds


def test_what_calls_replay_is_launched_one_by_one(monkeypatch):
    replays = []
    plain = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda self: (replays.append(self), plain(self))[1])
    made = compile_api.compile(layers(torch.float32, 256), mode="reduce-overhead")
    x = torch.randn(64, 256, device=DEVICE)
    with torch.no_grad():
        want = made(x)
        call = compile_api.profile(made, x)
        before = len(replays)
        assert before and len(call.steps) > 4
        torch.testing.assert_close(made(x), want)
    assert len(replays) == before + 1
