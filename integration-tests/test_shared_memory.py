"""Programs whose buffers share memory by bytes: drawn chains of products and kernels of many shapes, against eager."""

from __future__ import annotations

import random

import pytest
import torch

import compile_api


def program(seed: int):
    """A function of one 64x64 matrix and how often it may be split and joined, the same for the same seed."""
    rng = random.Random(seed)
    steps = [(rng.choice(["product", "half", "join", "turn", "rows", "reshape", "both"]), rng.random()) for _ in range(14)]

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = [x, x.cos()]
        kept = []
        for what, share in steps:
            v = values.pop(int(share * len(values)))
            n, m = v.shape
            if what == "product":
                v = torch.sin(v @ v.t() / m)
            elif what == "half" and n > 8:
                v, other = v[: n // 2].exp().clamp(max=2), v[n // 2 :].tanh()
                values.append(other)
            elif what == "join":
                v = torch.cat([v, v.sigmoid()])[: 2 * n - 4]
            elif what == "turn":
                v = torch.softmax(v, 1).t().contiguous()
            elif what == "rows":
                v = v - v.sum(1, keepdim=True) / m
            elif what == "reshape" and n % 2 == 0:
                v = (v.reshape(n // 2, 2 * m) @ torch.ones(2 * m, 2 * m) / m).cos()
            else:
                kept.append(v * 2)
            values.append(v)
        return (*values, *kept)

    return run


@pytest.mark.parametrize("seed", range(12))
def test_drawn_programs(seed: int) -> None:
    run, x = program(seed), torch.randn(64, 64)
    expected = run(x)
    compiled = compile_api.compile(run, fullgraph=True, options={"verify": "every_pass"})
    results = [compiled(x) for _ in range(2)]  # the first ones are kept
    for result in results:
        for got, want in zip(result, expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
            assert got.untyped_storage().nbytes() == got.numel() * 4 or got is x
            assert not got._is_view() or want._is_view()
    (plan,) = compiled.report().memory
    assert plan.peak <= plan.bound and plan.pieces


def test_a_result_over_a_products_of_another_shape() -> None:
    """The kernel writes where the product's result lies; what the program gets is no view."""

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.sin((x.reshape(-1, 8) @ w).reshape(4, 2, 8)) * 2

    compiled = compile_api.compile(run, options={"verify": "every_pass"})
    x, w = torch.randn(4, 2, 8), torch.randn(8, 8)
    got = compiled(x, w)
    torch.testing.assert_close(got, run(x, w))
    assert not got._is_view() and compiled.report().memory[0].peak == 4 * 2 * 8 * 4


def test_symbolic_sizes_say_why_they_do_not_share() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.sin(x @ x.t()), 0).sum(1) @ x

    compiled = compile_api.compile(run, dynamic=True, options={"verify": "every_pass"})
    for n in (5, 9):
        x = torch.randn(n, 7)
        torch.testing.assert_close(compiled(x), run(x))
    assert "known at run time" in str(compiled.report().memory[0].note)
