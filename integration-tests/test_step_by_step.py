"""Loops over the steps of a sequence: tensors taken apart, filled and read step by step, and joined.

Each step must cost what it touches, and not the whole sequence, in what is generated too: the text of the kernels may
grow with the number of steps, not with its square (or with a power, as values do that are computed on every way to
them). Results, gradients and what was written to arguments are compared with eager's.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import compile_api


def filled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in range(x.shape[1]):
        out[:, t] = (x[:, t] * (t + 1.0)).sin()
    return out.square()


def recurrent(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out, h = x.new_zeros(x.shape), x.new_zeros(x.shape[0], x.shape[2])
    for t in range(x.shape[1]):
        h = torch.tanh(x[:, t] + h @ w)
        out[:, t] = h
    return out.softmax(1)


def joined(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    steps, h = [], x.new_zeros(x.shape[0], x.shape[2])
    for step in x.unbind(1):
        h = torch.sigmoid(step * w[0] + h)
        steps.append(h)
    return torch.stack(steps, -1).cumsum(-1)


def discounted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = x * 1.0
    for t in reversed(range(x.shape[1] - 1)):
        out[:, t] = out[:, t] + out[:, t + 1] * 0.5
    return out


def filtered(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    for t in range(2, x.shape[1]):
        out[:, t] += 0.75 * out[:, t - 1] - 0.25 * out[:, t - 2]
    return out * x


def windows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return sum((x[:, t : t + 3].sum(1) * (t + 1) for t in range(x.shape[1] - 2)), x.new_zeros(()))


def written_over(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = x * 2
    for t in range(x.shape[1] - 1):
        out[:, t : t + 2] = out[:, t : t + 2] * 0.75 + t
    return out


def taken(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.stack([(x[:, t] * w[t % 3]).cos() for t in range(x.shape[1])], 1)


def chosen(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[:, t] * t for t in range(x.shape[1])], 0)[torch.arange(0, x.shape[0] * x.shape[1], 3)]


PROGRAMS = (filled, recurrent, joined, discounted, filtered, windows, written_over, taken, chosen)


def ran(program: Callable[..., torch.Tensor], steps: int, compiled: bool, dtype: torch.dtype = torch.float64) -> Any:
    """The result, the gradients, and the report."""
    made = torch.Generator().manual_seed(steps)
    x = torch.randn(3, steps, 4, generator=made, dtype=dtype).requires_grad_()
    w = (torch.randn(4, 4, generator=made, dtype=dtype) / 2).requires_grad_()
    call = compile_api.compile(program, dynamic=False) if compiled else program
    out = call(x, w)
    if out.requires_grad:
        (out * torch.arange(out.numel(), dtype=dtype).reshape(out.shape).cos()).sum().backward()
    return (out.detach(), x.grad, w.grad), call.report() if compiled else None


@pytest.mark.parametrize("steps", [1, 2, 5, 13])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_as_eager(program: Callable[..., torch.Tensor], steps: int) -> None:
    got, report = ran(program, steps, True)
    want, _ = ran(program, steps, False)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    assert not report.fallbacks and len([g for g in report.graphs if g.dialect == "torch"]) == 1


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_text_grows_with_the_steps(program: Callable[..., torch.Tensor]) -> None:
    sizes = []
    for steps in (16, 32):
        (_, report), want = ran(program, steps, True), ran(program, steps, False)
        assert report.kernels and not report.fallbacks
        sizes.append(sum(len(kernel.source) for kernel in report.kernels))
        assert max(kernel.source.count(" ? ") for kernel in report.kernels) <= 8, "a kernel chooses among the steps"
        torch.testing.assert_close(ran(program, steps, True)[0], want[0], rtol=1e-9, atol=1e-9)
    assert sizes[1] < 3 * sizes[0] + 4000, sizes


def test_arguments_are_written() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for t in range(x.shape[1]):
            x[:, t] += y[:, t]
            y[:, t, 0] = x[:, max(t - 1, 0), 1]
        x[:, 2:5] = 7
        return x[:, 1:4].clone()

    both = [[torch.arange(48.0).reshape(2, 6, 4), torch.arange(48.0).reshape(2, 6, 4).cos()] for _ in range(2)]
    results = [f(*given) for f, given in zip((program, compile_api.compile(program)), both, strict=True)]
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    torch.testing.assert_close(both[1], both[0], rtol=0, atol=0)


def test_zeros_have_eagers_sign() -> None:
    """Zeros of the other parts are added to a part's -0.0."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return (x[:2] * -0.0).sum() + (x[2:] * -0.0).sum()

    grads = []
    for f in (program, compile_api.compile(program)):
        x = torch.ones(5, requires_grad=True)
        f(x).backward()
        grads.append(torch.signbit(x.grad))
    assert torch.equal(*grads)


def _random_program(seed: int) -> tuple[Callable[[torch.Tensor], Any], str]:
    """Writes and reads at random places of a tensor, in one of its dimensions mostly."""
    r = random.Random(seed)
    main = r.randrange(3)
    lines = ["def f(x):", "    o = x * 1", "    seen = []"]

    def place() -> str:
        dim = main if r.random() < 0.85 else r.randrange(3)
        if r.random() < 0.5:
            at = str(r.randrange(-7, 7))
        else:
            low = r.randrange(-7, 7)
            at = f"{low if r.random() < 0.9 else ''}:{low + r.randrange(1, 4) if low >= 0 or low < -4 else ''}"
            at += ":2" * (r.random() < 0.1)
        return ", ".join([":"] * dim + [at])

    for _ in range(r.randrange(3, 14)):
        kind = r.random()
        if kind < 0.55:
            lines.append(f"    o[{place()}] = {r.choice(['o', 'x'])}[{place()}].mean() * {r.randrange(1, 4)} + 1")
        elif kind < 0.7:
            lines.append(f"    o[{place()}] *= {r.choice(['-0.5', '2'])}")
        elif kind < 0.85:
            lines.append(f"    seen.append(o[{place()}])")
        elif kind < 0.95:
            lines.append(f"    seen.append(o[{place()}] + 1)")
        else:
            lines.append("    o = o.clone()")
    text = "\n".join([*lines, "    return o, [s * 2 for s in seen]"])
    space: dict[str, Any] = {}
    exec(text, space)
    return space["f"], text


@pytest.mark.parametrize("seed", range(24))
def test_random_places(seed: int) -> None:
    program, text = _random_program(seed)
    results = []
    for f in (program, compile_api.compile(program, dynamic=False)):
        x = torch.arange(343.0, dtype=torch.float64).reshape(7, 7, 7).cos().requires_grad_()
        out, seen = f(x)
        (out.sin().sum() + sum(s.cos().sum() for s in seen)).backward()
        results.append((out.detach(), [s.detach() for s in seen], x.grad))
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9, msg=lambda m: f"{m}\n{text}")
