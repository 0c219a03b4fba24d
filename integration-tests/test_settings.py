"""Settings of the process that a region sets for a while: they hold where the graph is traced, and not afterwards."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import compile_api


def attention(x, kernel):
    with sdpa_kernel(kernel):
        y = F.scaled_dot_product_attention(x, x, x)
    return y + F.scaled_dot_product_attention(x, x, x)


def flags():
    c = torch._C
    return c._get_flash_sdp_enabled(), c._get_math_sdp_enabled(), c._get_mem_efficient_sdp_enabled()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kernel", [SDPBackend.MATH, [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]], ids=str)
def test_kernels_of_attention(kernel, training):
    compiled = compile_api.compile(attention, fullgraph=True)
    found = []
    for run in (attention, compiled, compiled):
        torch.manual_seed(0)
        x = torch.randn(1, 2, 16, 8, requires_grad=training)
        y = run(x, kernel)
        if training:
            y.sum().backward()
        found.append((y.detach(), x.grad if training else y.detach()))
    for one in found[1:]:
        for a, b in zip(one, found[0], strict=True):
            torch.testing.assert_close(a, b)
    report = compiled.report()
    assert flags() == (True, True, True) and len(report.graphs) >= 1 and not report.breaks and not report.fallbacks


def test_a_graph_that_cannot_be_traced_leaves_them():
    def fn(x):
        with sdpa_kernel(SDPBackend.MATH):
            y = F.scaled_dot_product_attention(x, x, x)
            return y[torch.tensor([100])]

    compiled = compile_api.compile(fn)
    for _ in range(2):
        with pytest.raises(IndexError):
            compiled(torch.randn(1, 2, 16, 8))
        assert flags() == (True, True, True)
