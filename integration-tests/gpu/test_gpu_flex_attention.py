"""``flex_attention`` on a GPU: one kernel forward and two of its gradient, near the formula in float64."""

from __future__ import annotations

import pytest
import torch
from on_gpu import DEVICE
from scored_attention import MASKS, SCORES, judge, masked, scored
from torch.nn.attention.flex_attention import flex_attention

import compile_api


def in_kernels(compiled):
    report = compiled.report()
    assert not report.fallbacks and not [e for e in report.externs if "attention" in e.name]
    return len([k for k in report.kernels if k.name.startswith("k_quintet_attention_")])


@pytest.mark.parametrize("widths", [(64, 64), (40, 128), (256, 256)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", SCORES)
def test_scores(name, dtype, widths):
    function = scored(name, 8, 300, 520, DEVICE)
    compiled = compile_api.compile(function, fullgraph=True, options={"strict": True})
    judge(function, compiled, (8, 8 if widths[0] == 64 else 2), (300, 520), widths, dtype, DEVICE)
    assert in_kernels(compiled) == 2


@pytest.mark.parametrize("length", [256, 1000])
@pytest.mark.parametrize("name", MASKS)
def test_block_masks(name, length):
    function = masked(name, 4, length, DEVICE)
    compiled = compile_api.compile(function, fullgraph=True, options={"strict": True})
    judge(function, compiled, (4, 2), (length, length), (64, 64), torch.bfloat16, DEVICE)
    assert in_kernels(compiled) == 2


def test_sizes_that_change():
    function = lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.tanh(s / 5) * 5 + (i - j))
    compiled = compile_api.compile(function, fullgraph=True, dynamic=True, options={"strict": True})
    for length in (100, 333, 1024):
        operands = [torch.randn(2, 4, length, 64, device=DEVICE, dtype=torch.bfloat16) for _ in range(3)]
        exact = function(*(x.double() for x in operands))
        assert (compiled(*operands).double() - exact).abs().max() <= 2**-6 * exact.abs().max()
    assert in_kernels(compiled) >= 1


def test_no_score_lies_in_memory():
    operands = [torch.randn(1, 8, 8192, 64, device=DEVICE, dtype=torch.bfloat16).requires_grad_() for _ in range(3)]
    function = lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s - (i - j).abs() * 0.01)
    compiled = compile_api.compile(function, fullgraph=True, options={"strict": True})
    compiled(*operands).sum().backward()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    compiled(*operands).sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 16 * operands[0].numel() * 2  # the scores take 2 GiB
