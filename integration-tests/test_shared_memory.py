"""Programs whose buffers share memory by bytes: drawn chains of products and kernels of many shapes, against eager."""

from __future__ import annotations

import random
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from processors import PROCESSORS, pretended

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
@pytest.mark.parametrize("processor", [None, *PROCESSORS])
def test_drawn_programs(processor: str | None, seed: int) -> None:
    """By what is decided for this machine, and for others."""
    with nullcontext() if processor is None else pretended(PROCESSORS[processor]):
        _compared(seed)


def _compared(seed: int) -> None:
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


W = torch.randn(8, 8) / 4


def recurrent(dim: int):
    """The states of a recurrence, each read by the next step, joined in a new dimension."""

    def run(x: torch.Tensor) -> torch.Tensor:
        states = [x]
        for _ in range(5):
            states.append(torch.tanh(states[-1] @ W + states[-1]))
        return torch.stack(states[1:-1], dim)

    return run


def twice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.sin(x @ W)
    z = torch.softmax(y @ W, 1)
    return torch.cat([y, z, y], 0), z @ W


def nested(x: torch.Tensor) -> torch.Tensor:
    y = torch.sin(x @ W)
    z = torch.cat([y, torch.cos(y @ W)], 0)
    return torch.cat([z @ W, z * 2, torch.softmax(z @ W, 1)], 1) @ torch.ones(24, 3)


def changed(x: torch.Tensor) -> torch.Tensor:
    y = torch.sin(x @ W)
    z = torch.cat([y, torch.cos(y @ W)], 0)
    z[2:4] += y[:2]
    return z @ W


def images(x: torch.Tensor) -> torch.Tensor:
    skip = torch.relu(F.conv2d(x.reshape(1, 4, 4, 4), K))
    down = F.max_pool2d(skip, 2)
    up = F.interpolate(torch.sigmoid(F.conv2d(down, K)), scale_factor=2.0)
    return F.conv2d(torch.cat([skip, up], 1), K.repeat(1, 2, 1, 1))


K = torch.randn(4, 4, 1, 1)

#: A program, and how many loops its kernels have that write concatenations: one computes the last state, nobody stores
#: in leaps of a row, and what is changed afterwards is left alone.
JOINED = {
    "first": (recurrent(0), 1), "last": (recurrent(-1), 4), "middle": (recurrent(1), 1), "twice": (twice, 0),
    "nested": (nested, None), "changed": (changed, 4), "images": (images, None),
}  # fmt: skip


@pytest.mark.parametrize("name", JOINED)
@pytest.mark.parametrize("dynamic", [False, True])
def test_concatenations_in_place(name: str, dynamic: bool) -> None:
    """Producers write their parts, whoever else reads the operands, instead of loops that copy."""
    run, copies = JOINED[name]
    compiled = compile_api.compile(run, dynamic=dynamic, options={"verify": "every_pass"})
    for n in (8, 8, 12) if dynamic and name != "images" else (8, 8):
        x = torch.randn(n, 8)
        got, want = compiled(x), run(x)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    report = compiled.report()
    assert not report.fallbacks
    if not dynamic and copies is not None:
        assert sum(kernel.loops for kernel in report.kernels if set(kernel.ops) == {"copy"}) == copies


def test_symbolic_sizes_say_why_they_do_not_share() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.sin(x @ x.t()), 0).sum(1) @ x

    compiled = compile_api.compile(run, dynamic=True, options={"verify": "every_pass"})
    for n in (5, 9):
        x = torch.randn(n, 7)
        torch.testing.assert_close(compiled(x), run(x))
    assert "known at run time" in str(compiled.report().memory[0].note)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_parts_of_conjugates_beside_them(dtype: torch.dtype, dynamic: bool | None) -> None:
    def program(x):
        y = (x * (1 + 2j)).conj()
        return y, y.imag, y.real, y[1:].imag[..., ::2], y.conj().imag, y.conj().conj().imag

    compiled = compile_api.compile(program, dynamic=dynamic)
    for rows in (4, 3):
        x = torch.randn(rows, 5, dtype=dtype)
        for ours, eager in zip(compiled(x), program(x), strict=True):
            torch.testing.assert_close(ours, eager)
            assert (ours.is_neg(), ours.is_conj()) == (eager.is_neg(), eager.is_conj())
    assert not compiled.report().fallbacks
