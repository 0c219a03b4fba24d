"""Loops over vector lanes, each with a few unrolled steps, whose loads are under conditions that change along the lanes:
rows of two to four numbers beside the rows before and after them. Of the masks of such loads gcc 12 and 13 use
the wrong one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import compile_api


def before(x: torch.Tensor, d: int, count: int = 1) -> torch.Tensor:
    """What stands so many places before, along a dimension from the end: 0 before the first."""
    return F.pad(x, [0, 0] * (-1 - d) + [count, 0]).narrow(d, 0, x.shape[d])


def after(x: torch.Tensor, d: int) -> torch.Tensor:
    return F.pad(x, [0, 0] * (-1 - d) + [0, 1]).narrow(d, 1, x.shape[d])


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "quotient": lambda x: x / (1 + before(x, -2) ** 2),
    "both sides": lambda x: (x + before(x, -2)) * after(x, -2),
    "both dimensions": lambda x: before(before(x, -1), -2) / (1 + x * x),
    "softmax": lambda x: torch.softmax(before(x, -2) + x, -1),
    "softmax across": lambda x: torch.softmax(before(x, -1) * x, -1) + after(x, -2),
    "norm": lambda x: F.layer_norm(after(x, -2), x.shape[-1:]),
    "share": lambda x: before(x, -2, 2) / x.sum(-1, keepdim=True),
    "chosen": lambda x: torch.where(torch.arange(x.shape[-2])[:, None] > 1, x, before(x, -2)) / x.amax(-1, True),
    "channels": lambda x: F.local_response_norm(x.view(1, *x.shape[-2:]) if x.ndim == 2 else x, 3, beta=0.5),
    "gradient": lambda x: torch.func.grad(lambda y: (before(y, -2).exp() / y).square().sum())(x),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_conditions_along_lanes(name: str, dtype: torch.dtype) -> None:
    program = PROGRAMS[name]
    near = 1e-3 if dtype == torch.float32 else 1e-9  # a neighbour left out is more, but among `channels` in float32
    for lead, lanes, steps in itertools.product(((), (20,)), (6, 300), (2, 3, 4)):
        x = torch.rand(*lead, lanes, steps, generator=torch.Generator().manual_seed(lanes), dtype=dtype) + 0.1
        compiled = compile_api.compile(program)
        y = compiled(x)
        torch.testing.assert_close(y, program(x), rtol=near, atol=near, msg=lambda m: f"{tuple(x.shape)}: {m}")
        assert compiled.report().kernels, "nothing was generated"
