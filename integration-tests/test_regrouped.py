"""Reshapes that regroup dimensions, and reads at places that are computed of positions: eager's elements, by kernels
that go through runs of memory, whose sizes lie around those where their loops change."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional as F

import compile_api


def shifted(s):
    """Transformer-XL's relative shift."""
    batch, n, m = s.shape
    return F.pad(s, (1, 0)).view(batch, m + 1, n)[:, 1:].reshape(batch, n, m) + 1 if n == m else s + 1


def windows(x):
    size = 4
    padded = F.pad(x, (0, -x.shape[2] % size, 0, -x.shape[1] % size))
    batch, n, m = padded.shape
    cut = padded.view(batch, n // size, size, m // size, size).transpose(2, 3).reshape(-1, size, size)
    back = cut.relu().view(batch, n // size, m // size, size, size).transpose(2, 3).reshape(batch, n, m)
    return cut.sin(), back[:, : x.shape[1], : x.shape[2]] + x


PROGRAMS = {
    "relative shift": shifted,
    "windows": windows,
    "turned": lambda x: x.transpose(1, 2).reshape(x.shape[0], x.shape[1], x.shape[2]) * 2,
    "another width": lambda x: F.pad(x, (0, 3)).reshape(x.shape[0], -1)[:, 2:].sin(),
    "rows of seven": lambda x: F.pad(x.reshape(-1), (0, -x.numel() % 7)).view(-1, 7).cos(),
    "a diagonal": lambda x: F.pad(x, (0, 1)).reshape(x.shape[0], -1)[:, : -x.shape[1]].reshape(x.shape) + x,
    "sums of another width": lambda x: F.pad(x.reshape(-1), (0, -x.numel() % 9)).view(9, -1).sum(-1),
    "windows by steps": lambda x: x.reshape(x.shape[0], -1).unfold(-1, 3, 2) * 2,
    "frames": lambda x: F.pad(x.reshape(x.shape[0], -1)[:, None], (2, 2), mode="reflect")[:, 0].unfold(-1, 4, 1).cos(),
    "read by arange": lambda x: x[:, torch.arange(x.shape[1] - 1, -1, -1)][:, :, torch.arange(0, x.shape[2], 2)] + 1,
    "read by sums of places": lambda x: x.reshape(-1)[
        torch.arange(x.shape[1])[:, None] * x.shape[2] + torch.arange(x.shape[2])
    ].exp(),
    "read by remainders": lambda x: x.reshape(-1)[torch.arange(2 * x.numel()) % x.numel()] * 3,
    "read by quotients": lambda x: x.reshape(-1)[torch.arange(x.numel()) // 3] * 3,
    "read from the end": lambda x: x.reshape(-1)[-torch.arange(1, x.shape[2] + 1)] - 1,
    "shuffled channels": lambda x: x.view(x.shape[0], -1, 1, x.shape[2]).expand(-1, -1, 2, -1).reshape(
        x.shape[0], -1, x.shape[2]
    ).tanh(),
    "group norm": lambda x: F.group_norm(F.pad(x, (0, 0, 0, -x.shape[1] % 2)), 2),
    "pixel shuffle": lambda x: F.pixel_shuffle(F.pad(x, (0, 0, 0, -x.shape[1] % 4))[:, :, :, None], 2) + 1,
}  # fmt: skip

SIZES = [(2, n, m) for n, m in itertools.product((5, 8, 33, 70), (7, 8, 33, 40))] + [(1, 64, 64), (3, 9, 9), (2, 40, 40)]


def check(fn, dynamic, gradients):
    compiled = compile_api.compile(fn, dynamic=dynamic, options={"recompile_limit": 64})
    pick = torch.Generator().manual_seed(0)
    for sizes in SIZES if dynamic else SIZES[::4]:
        rows = []
        x = torch.randn(sizes, generator=pick)
        for run in (fn, compiled):
            given = x.clone().requires_grad_(gradients)
            out = run(given)
            out = out if isinstance(out, tuple) else (out,)
            if gradients:
                sum((each * (1 + torch.arange(each.numel()).view(each.shape) % 5)).sum() for each in out).backward()
            rows.append(([each.detach() for each in out], given.grad))
        torch.testing.assert_close(*rows, rtol=1e-4, atol=1e-4)
    assert compiled.report().verdict == "compiled", str(compiled.report())


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_regrouped(name, dynamic, gradients):
    check(PROGRAMS[name], dynamic, gradients)


def test_a_place_that_is_not_there_is_an_error():
    """Places that are computed of positions alone are checked where they are not known to lie inside."""
    for program in (
        lambda x: x[torch.arange(x.shape[0]) + 1] * 2,
        lambda x: x[torch.arange(x.shape[0]) * 2] * 2,
        lambda x: x[-torch.arange(x.shape[0]) - 2] * 2,
    ):
        for dynamic in (False, True):
            compiled = compile_api.compile(program, dynamic=dynamic)
            for run in (program, compiled):
                with pytest.raises((IndexError, RuntimeError), match=r"out of|index"):
                    run(torch.randn(40))
