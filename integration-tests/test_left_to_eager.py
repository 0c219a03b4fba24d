"""Operators whose meaning their overloads do not tell: the region ends before them, and results are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import compile_api
from prims.errors import NotCompiled


def square(n: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(3)
    half = torch.randn(n, n, dtype=dtype)
    return half @ half.mH + torch.eye(n, dtype=dtype)


def under_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    def program(x: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return function(x * 2)

    return program


@pytest.mark.parametrize(
    "function", [torch.linalg.pinv, lambda x: torch.linalg.pinv(x, rtol=1e-4), lambda x: torch.linalg.pinv(input=x)],
    ids=["plain", "rtol", "named"],
)  # fmt: skip
def test_what_multiplies_inside_does_it_in_autocasts_type(function: Callable[..., Any]) -> None:
    program = under_autocast(function)
    compiled = compile_api.compile(program)
    expected, got = program(square()), compiled(square())
    assert expected.dtype is torch.bfloat16 and got.dtype is torch.bfloat16
    torch.testing.assert_close(got, expected)
    assert "autocast" in compiled.report().verdict


def test_without_autocast_it_is_captured() -> None:
    compiled = compile_api.compile(lambda x: torch.linalg.pinv(x * 2), fullgraph=True)
    torch.testing.assert_close(compiled(square()), torch.linalg.pinv(square() * 2))


VECTORS: dict[str, tuple[Callable[..., Any], torch.dtype]] = {
    "eig": (lambda x: torch.linalg.eig(x)[1], torch.float32),
    "eigh": (lambda x: torch.linalg.eigh(x)[1], torch.complex64),
    "svd": (lambda x: torch.linalg.svd(x)[0], torch.complex64),
    "old svd": (lambda x: torch.svd(x)[0], torch.complex64),
    "method": (lambda x: x.svd()[0], torch.complex64),
}


@pytest.mark.parametrize("name", VECTORS)
def test_a_loss_of_the_phases_of_vectors_is_refused(name: str) -> None:
    vectors, dtype = VECTORS[name]

    def program(x: torch.Tensor) -> torch.Tensor:
        return (vectors(x * 2) * torch.arange(4)).real.sum() + vectors(x * 2).imag.sum()

    compiled = compile_api.compile(program)
    for function in (program, compiled):
        x = (square(dtype=dtype) + torch.randn(4, 4, dtype=dtype)).requires_grad_()
        with pytest.raises(RuntimeError, match="ill-defined"):
            function(x).backward()


@pytest.mark.parametrize("name", VECTORS)
def test_a_loss_of_their_lengths_has_eagers_gradient(name: str) -> None:
    vectors, dtype = VECTORS[name]

    def program(x: torch.Tensor) -> torch.Tensor:
        return (vectors(x * 2).abs() * torch.arange(4)).sum()

    given = square(dtype=dtype) + torch.diag(torch.arange(4.0)).to(dtype)
    found = []
    for function in (program, compile_api.compile(program)):
        x = given.clone().requires_grad_()
        function(x).backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)


def test_vectors_without_gradients_are_captured() -> None:
    compiled = compile_api.compile(lambda x: torch.linalg.eigh(x * 2)[1].abs(), fullgraph=True)
    with torch.no_grad():
        x = square(dtype=torch.complex64).requires_grad_()
        torch.testing.assert_close(compiled(x), torch.linalg.eigh(x * 2)[1].abs())


UNTOLD = {
    "split": lambda x: torch.unsafe_split(x, 2),
    "chunk": lambda x: x.unsafe_chunk(2, dim=1),
    "sizes": lambda x: torch.unsafe_split_with_sizes(x, [1, 3]),
}


@pytest.mark.parametrize("name", UNTOLD)
def test_parts_that_are_no_views_share_memory(name: str) -> None:
    split = UNTOLD[name]
    compiled = compile_api.compile(lambda x: split(x))
    x = torch.zeros(4, 4)
    for part in compiled(x):
        part.add_(1)
    assert torch.equal(x, torch.ones(4, 4))
    with pytest.raises(NotCompiled, match="share their argument's memory"):
        compile_api.compile(lambda x: split(x), fullgraph=True)(x)
