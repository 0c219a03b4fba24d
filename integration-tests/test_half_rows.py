"""Rows of float16 that are written where they are read: by kernels of several passes, of which the last one stores."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import compile_api


def centred(x: torch.Tensor) -> torch.Tensor:
    return x.sub_(x.amax(-1, keepdim=True))


def normalised(x: torch.Tensor) -> torch.Tensor:
    return x.copy_(torch.nn.functional.layer_norm(x, x.shape[-1:]))


def weighed(x: torch.Tensor) -> torch.Tensor:
    return x.copy_(x.softmax(-1))


def scaled_to_one(x: torch.Tensor) -> torch.Tensor:
    return x.div_(x.square().sum().sqrt().add(1))


def chain(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = torch.nn.functional.layer_norm(x * 2, x.shape[-1:]) + x.amax(-1, keepdim=True)
    return x


PROGRAMS: list[Callable[[torch.Tensor], torch.Tensor]] = [centred, normalised, weighed, scaled_to_one, chain]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [33, 256, 300, 1024])
@pytest.mark.parametrize("program", PROGRAMS)
def test_in_place(program: Callable[[torch.Tensor], torch.Tensor], columns: int, dtype: torch.dtype) -> None:
    torch.manual_seed(columns)
    given = torch.randn(5, columns).to(dtype)
    compiled = compile_api.compile(program, options={"strict": True})
    ours, eager, exact = given.clone(), given.clone(), given.double()
    found, expected, true = compiled(ours), program(eager), program(exact)
    allowed = 4 * (expected.double() - true).abs().max() + 4 * torch.finfo(dtype).eps * true.abs().max()
    assert (found.double() - true).abs().max() <= allowed
    assert (ours.double() - exact).abs().max() <= allowed
    assert compiled.report().kernels and not compiled.report().fallbacks
