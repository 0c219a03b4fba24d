"""Saved values in host memory, for real: the copies run beside the computation, and what they free is used again."""

from __future__ import annotations

import threading

import pytest
import torch
from on_gpu import DEVICE
from torch import nn

import compile_api


def layers(depth: int = 10, width: int = 1024) -> nn.Module:
    torch.manual_seed(0)
    parts = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))]
    return nn.Sequential(*parts).to(DEVICE)


def gradients(call, model, x):
    call(x).square().mean().backward()
    found = [x.grad, *(p.grad for p in model.parameters())]
    x.grad = None
    model.zero_grad()
    return found


@pytest.mark.parametrize("offload", [True, "40MB"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_are_those_without(offload, dtype):
    model = layers().to(dtype)
    compiled = [compile_api.compile(model, options={"offload": way}) for way in (False, offload)]
    for rows in (2048, 2048, 4096, 3072):
        for turn in range(3):  # the third time memory is used again
            x = torch.randn(rows, 1024, device=DEVICE, dtype=dtype, requires_grad=True)
            found = [gradients(call, model, x) for call in compiled]
            torch.testing.assert_close(found[1], found[0], rtol=0, atol=0, msg=lambda m: f"{rows}, {turn}: {m}")
    report = compiled[1].report()
    assert report.saved[0].on_host and not report.fallbacks
    assert {name for name in report.extern_counts() if name.startswith("quintet.")} == {
        "quintet.at_device.default", "quintet.at_host.default", "quintet.to_device.default", "quintet.to_host.default",
    }  # fmt: skip


def test_the_peak_is_lower():
    model = layers(20)
    x = torch.randn(8192, 1024, device=DEVICE, requires_grad=True)
    peaks = []
    for offload in (False, True):
        compiled = compile_api.compile(model, options={"offload": offload})
        for _ in range(2):
            gradients(compiled, model, x)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        gradients(compiled, model, x)
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] < 0.7 * peaks[0], peaks


def test_a_step_of_one_graph():
    found = []
    for offload in (False, True):
        model = layers()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        compiled = compile_api.compile(step, options={"offload": offload})
        x = torch.ones(4096, 1024, device=DEVICE)
        found.append([compiled(x) for _ in range(5)])
    torch.testing.assert_close(found[1], found[0])
    assert compiled.report().saved[0].on_host and not compiled.report().fallbacks


def test_other_streams_and_threads():
    """A call on a stream of the program's own, and calls of two threads at once, whose copies run on one stream."""
    model = layers()
    plain = compile_api.compile(model, options={"offload": False})
    compiled = compile_api.compile(model, options={"offload": True})
    inputs = [torch.randn(4096, 1024, device=DEVICE) for _ in range(2)]
    expected = [torch.autograd.grad(plain(x.requires_grad_()).square().mean(), x)[0] for x in inputs]
    torch.autograd.grad(compiled(inputs[0]).square().mean(), inputs[0])
    found: list[torch.Tensor | None] = [None, None]

    def work(k: int) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            for _ in range(5):
                (found[k],) = torch.autograd.grad(compiled(inputs[k]).square().mean(), inputs[k])
        stream.synchronize()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
