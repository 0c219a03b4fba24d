"""Sums are as exact as eager's whatever the loop computes: also where no vectors are made of it, and many numbers are equal,
so that all additions round the same way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import compile_api

COUNT = 20_000
UNIT = 2.0**-24

#: What is summed, of numbers ``x`` of which half are equal, whole numbers ``i`` and an order ``p``.
TERMS: dict[str, Callable[..., torch.Tensor]] = {
    "lgamma": lambda x, i, p: x.lgamma(),
    "digamma": lambda x, i, p: x.digamma(),
    "erfinv": lambda x, i, p: (x / 9).erfinv(),
    "exponential": lambda x, i, p: x.exp(),
    "power": lambda x, i, p: x**1.37,
    "fmod": lambda x, i, p: torch.fmod(x, 1.1),
    "remainder": lambda x, i, p: x % 1.1,
    "nextafter": lambda x, i, p: torch.nextafter(x, x * 2),
    "bessel": lambda x, i, p: torch.special.i1(x),
    "chosen": lambda x, i, p: torch.where(x > 2, x, x.exp()),
    "whole division": lambda x, i, p: (i // (i + 1)).to(x.dtype) * 1.1 + x,
    "whole division by a number": lambda x, i, p: (i // 3).to(x.dtype) * 1.1,
    "whole remainder of 32 bits": lambda x, i, p: (i.int() % 7).to(x.dtype) * 1.1,
    "converted": lambda x, i, p: i.to(x.dtype) * 1.1,
    "gathered": lambda x, i, p: x[:, p] * 1.1,
    "flipped": lambda x, i, p: x.flip(1) * 1.1,
    "rolled": lambda x, i, p: x.roll(17, 1) * 1.1,
    "joined": lambda x, i, p: torch.cat([x, x * 1.1], 1),
    "padded": lambda x, i, p: F.pad(x, (3, 4)) * 1.1,
    "turned": lambda x, i, p: x.view(2, 125, -1).transpose(1, 2).reshape(2, -1) * 1.1,
    "repeated": lambda x, i, p: x.repeat(1, 3) * 1.1,
    "each repeated": lambda x, i, p: x.repeat_interleave(3, 1) * 1.1,
    "windows": lambda x, i, p: x.unfold(1, 5, 2).reshape(2, -1) * 1.1,
    "every third": lambda x, i, p: x[:, ::3] * 1.1,
}
SUMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda t: t.sum(-1),
    "mean": lambda t: t.mean(-1),
    "variance": lambda t: t.var(-1),
    "norm": lambda t: torch.linalg.vector_norm(t, dim=-1),
    "of each layer": lambda t: F.layer_norm(t, t.shape[-1:]).square().sum(-1),
}


def numbers() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = (torch.rand(2, COUNT, generator=generator) < 0.5).float() + 1.7
    return x, torch.randint(0, 9, (2, COUNT), generator=generator), torch.randperm(COUNT, generator=generator)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("how", SUMS)
@pytest.mark.parametrize("terms", TERMS)
def test_sums(terms: str, how: str, dynamic: bool) -> None:
    def program(x: torch.Tensor, i: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        return SUMS[how](TERMS[terms](x, i, p))

    x, i, p = numbers()
    compiled = compile_api.compile(program, fullgraph=True, dynamic=dynamic)
    ours, eagers = compiled(x, i, p), program(x, i, p)
    # The terms as they are rounded, summed exactly; a digamma is computed otherwise than eager's.
    rounded = TERMS[terms](x.double(), i, p) if terms == "digamma" else TERMS[terms](x, i, p).double()
    exact = SUMS[how](rounded)
    ours_off, eagers_off = (float(((t - exact) / exact).abs().max()) / UNIT for t in (ours, eagers))
    report = compiled.report()
    assert report.kernels and not report.fallbacks
    assert ours_off <= 4 * eagers_off + 4, (ours_off, eagers_off)
