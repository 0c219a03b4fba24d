"""Strided views of complex numbers, and writes to them, are computed by parts."""

from __future__ import annotations

import pytest
import torch

import compile_api


def written(x: torch.Tensor) -> torch.Tensor:
    x.fill_diagonal_(3)
    return x * 2


def wrapped(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.fill_diagonal_(2 - 1j, True)
    return y


def viewed(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided((2, 2), (1, 3)) + 1


@pytest.mark.parametrize("fn", [written, wrapped, viewed], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("turned", [False, True])
def test_strided_views_of_complex_numbers(fn, dtype, turned) -> None:
    numbers = torch.randn(5, 3, dtype=dtype)
    ours, theirs = (numbers.clone().t() if turned else numbers.clone() for _ in range(2))
    compiled = compile_api.compile(fn)
    result, expected = compiled(ours), fn(theirs)
    assert torch.equal(result, expected) and torch.equal(ours, theirs)
    assert result.stride() == expected.stride()
    assert compiled.report().kernels and not compiled.report().fallbacks
