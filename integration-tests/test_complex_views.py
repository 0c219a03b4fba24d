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


LAZY = {
    "imaginary parts of conjugates": lambda x: x.conj().imag,
    "conjugates": lambda x: x.conj(),
    "real parts of conjugates": lambda x: x.conj().real,
    "conjugates of conjugates": lambda x: x.conj().conj(),
    "imaginary parts": lambda x: x.imag,
    "negated imaginary parts": lambda x: torch._neg_view(x.conj().imag),
}
SCATTERS = {
    "select": lambda t: t.select_scatter(t.select(0, 0), 0, 1),
    "slice": lambda t: t.slice_scatter(t[:1], 0, 0, 1),
    "diagonal": lambda t: t.diagonal_scatter(t.diagonal()),
}


@pytest.mark.parametrize("scatter", SCATTERS)
@pytest.mark.parametrize("view", LAZY)
@pytest.mark.parametrize("layout", ["whole", "turned", "with gaps"])
def test_strides_of_copies_of_lazy_views(view, scatter, layout) -> None:
    """A conjugate that only its reader makes is copied into memory without gaps, another view with those that it has."""

    def program(x):
        y = x * 2j
        y = {"whole": y, "turned": y.t(), "with gaps": torch.stack([y, y], 2)[..., 0]}[layout]
        return SCATTERS[scatter](LAZY[view](y))

    x = torch.arange(12.0).reshape(3, 4)
    compiled = compile_api.compile(program)
    ours, theirs = compiled(x), program(x)
    assert ours.stride() == theirs.stride()
    assert torch.equal(ours.resolve_conj(), theirs.resolve_conj())
    assert compiled.report().graphs and not compiled.report().fallbacks
