"""Windows over an image with padded edges: the edges are written once, and not chosen by every window for every element."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.nn import functional as F

import compile_api

WINDOWS = {
    "least": lambda v: functools.reduce(torch.minimum, v),
    "median of three": lambda v: torch.maximum(
        torch.minimum(v[3], v[4]), torch.minimum(torch.maximum(v[3], v[4]), v[5])
    ),
    "bilateral": lambda v: sum((a - v[4]).square().neg().exp() * a for a in v),
    "gradient": lambda v: ((v[5] - v[3]) ** 2 + (v[7] - v[1]) ** 2 + 1e-3).sqrt(),
    "two of nine": lambda v: v[0] * v[8],
}


def windows(x, mode, of):
    height, width = x.shape[-2:]
    padded = F.pad(x, (1, 1, 1, 1), mode=mode)
    return WINDOWS[of]([padded[..., i : i + height, j : j + width] for i in range(3) for j in range(3)])


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular", "constant"])
@pytest.mark.parametrize("of", WINDOWS)
def test_windows_over_padded_edges(of, mode):
    compiled = compile_api.compile(functools.partial(windows, mode=mode, of=of))
    for height, width in ((12, 9), (5, 20)):
        found = []
        for run in (functools.partial(windows, mode=mode, of=of), compiled):
            x = torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1)).requires_grad_()
            result = run(x)
            found.append([result, *torch.autograd.grad(result.square().sum(), x)])
        torch.testing.assert_close(found[1], found[0])
    assert compiled.report().verdict == "compiled"


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("of", ["least", "median of three", "bilateral"])
def test_edges_are_written_once(of, mode):
    compiled = compile_api.compile(functools.partial(windows, mode=mode, of=of))
    compiled(torch.rand(2, 3, 64, 64))
    assert set(compiled.report().extern_counts()) == {"aten.cat.default"}
    last = compiled.report().kernels[-1].source
    assert "?" not in last.split("int k_")[-1].replace("q_pickf", "")
