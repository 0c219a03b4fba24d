"""Programs that look for what has become too large for 16 bits find it, whatever a kernel keeps in float32."""

from __future__ import annotations

import pytest
import torch
from zoo import tensors

import compile_api


def _clamped_as_t5_does(x, y):
    hidden = x * y
    largest = torch.finfo(hidden.dtype).max
    limit = torch.where(torch.isinf(hidden).any(), largest - 1000, largest)
    return torch.clamp(hidden, min=-limit, max=limit)


PROGRAMS = {
    "isinf": lambda x, y: (x * y, (x * y).isinf()),
    "isfinite": lambda x, y: (x * y, torch.isfinite(x * y).all()),
    "isposinf": lambda x, y: (x * y, torch.isposinf(x * y), torch.isneginf(x * y)),
    "nan_to_num": lambda x, y: torch.nan_to_num(x * y),
    "clamp": _clamped_as_t5_does,
    "where finite": lambda x, y: torch.where((x * y).isfinite(), x * y, torch.zeros_like(x)),
    "masked_fill": lambda x, y: (x * y).masked_fill((x * y).isinf(), 0.0),
    "equal to inf": lambda x, y: torch.where((x * y) == float("inf"), 0.0, x * y),
    "equal to zero": lambda x, y: ((x / y / y / y) == 0, (x / y / y / y) != 0),
    "beyond the largest": lambda x, y: (x * y).abs() > torch.finfo(x.dtype).max,
    "truth": lambda x, y: ((x / y / y / y).bool(), (x / y / y / y).sign(), (x / y / y / y).any()),
    "whole numbers": lambda x, y: (
        (x * 1.9999).clamp(-9, 9).int(), (x * 1.9999).clamp(0, 9).long() % 7,
        (y.sqrt() * 0.9999).clamp(0, 9).to(torch.uint8),
    ),
    "nearest": lambda x, y: [f((x * 1.9999).clamp(-9, 9)) for f in (torch.floor, torch.ceil, torch.trunc, torch.round)],
    "what is left": lambda x, y: (torch.remainder((x * 1.9999).clamp(-9, 9), 1.0), (x * 1.9999).clamp(0, 9).fmod(2.0)),
    "first of equals": lambda x, y: (
        (y - x / 1e5).argmax(), (x / 1e5 - y).argmin(), (y - x / 1e5).max(0).indices,
    ),
    "isclose": lambda x, y: torch.isclose(x * y, x * y * 2),
    "added": lambda x, y: ((x * y + x * y).isinf(), (x * y - 1).exp().isinf()),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_too_large_is_found(name, dtype):
    large = 300.0 if dtype == torch.float16 else 2e19
    x = torch.tensor([large, 1.0, -large, 4.0, 0.5, 1 / large], dtype=dtype)
    y = torch.tensor([large, 2.0, large, 5.0, large, large], dtype=dtype)
    compiled = compile_api.compile(PROGRAMS[name])
    ours, theirs = compiled(x, y), PROGRAMS[name](x, y)
    for a, b in zip(tensors(ours), tensors(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2 if a.is_floating_point() else 0, atol=0, equal_nan=True)
    report = compiled.report()
    assert report.verdict == "compiled" and report.kernels, report
