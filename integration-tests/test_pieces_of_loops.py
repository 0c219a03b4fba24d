"""Loops that are cut where what they read changes: at the seams of concatenations, at borders, on a diagonal.

Every result is compared with eager's, at lengths around those at which loops are cut for other reasons.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import compile_api

MADE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "joined": lambda x, y: torch.cat([x, y * 2], 1),
    "joined thrice": lambda x, y: torch.cat([x, y[:, :5], x * 2], 1),
    "joined of seven": lambda x, y: torch.cat([x, y, x * 2, y * 2, x - 1, y - 1, x[:, :1]], 1),
    "rolled": lambda x, y: x.roll(7, 1) + y,
    "rolled back": lambda x, y: x.roll(-1, 1) * y,
    "padded": lambda x, y: F.pad(x, (3, 5), value=0.5),
    "padded and cropped": lambda x, y: F.pad(x, (-2, 300), value=-1.0),
    "reflected": lambda x, y: F.pad(x[None], (2, 3), mode="reflect")[0],
    "repeated at the border": lambda x, y: F.pad(x[None], (2, 3), mode="replicate")[0],
    "lower triangle": lambda x, y: x.tril(2),
    "upper triangle": lambda x, y: x.triu(-3) + y.tril(),
    "differences": lambda x, y: x.diff(dim=1),
    "written part": lambda x, y: x.slice_scatter(y[:, 3:-2] * 3, 1, 3, -2),
    "halves turned": lambda x, y: torch.cat([-x[:, x.shape[1] // 2 :], x[:, : x.shape[1] // 2]], 1) * y + x,
    "joined of joined": lambda x, y: F.pad(torch.cat([x.roll(3, 1), y], 1), (1, 1)),
    "flipped and joined": lambda x, y: torch.cat([x.flip(1), y], 1),
    "joined whole numbers": lambda x, y: torch.cat([(x * 9).long(), (y * 9).long()], 1),
}
USED: dict[str, Callable[[torch.Tensor], Any]] = {
    "as it is": lambda t: t,
    "sum": lambda t: t.sum(1),
    "greatest": lambda t: (t.amax(1), t.argmax(1)),
    "least of all": lambda t: t.min(),
    "softmax": lambda t: t.double().softmax(1) if not t.is_floating_point() else t.softmax(1),
    "running sum": lambda t: t.cumsum(1),
    "normalised": lambda t: F.layer_norm(t.float(), t.shape[1:]),
    "over rows": lambda t: (t.sum(0), t.float().std(0)),
    "any": lambda t: (t > 2.5).any(1),
}
LENGTHS = (31, 255, 257, 600)


def close(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("used", USED)
@pytest.mark.parametrize("made", MADE)
def test_as_eager(made: str, used: str) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return USED[used](MADE[made](x, y))

    compiled = compile_api.compile(program)
    for length in LENGTHS:  # from the second on, sizes are symbols
        x, y = torch.randn(9, length), torch.randn(9, length)
        close(compiled(x, y), program(x, y))
        x[3, length // 2], y[4, -1] = torch.nan, torch.inf
        if "whole" not in made:
            torch.testing.assert_close(compiled(x, y), program(x, y), rtol=2e-5, atol=2e-5, equal_nan=True)
    report = compiled.report()
    assert report.kernels and not report.fallbacks, report


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("made", ["joined", "rolled", "padded", "upper triangle"])
def test_other_dtypes(made: str, dtype: torch.dtype) -> None:
    compiled = compile_api.compile(MADE[made])
    x, y = torch.randn(5, 300).to(dtype), torch.randn(5, 300).to(dtype)
    assert torch.equal(compiled(x, y), MADE[made](x, y))
    assert compiled.report().kernels and not compiled.report().fallbacks


@pytest.mark.parametrize("made", ["joined", "rolled", "padded", "differences"])
def test_gradients(made: str) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return MADE[made](x, y).softmax(1).square().sum()

    results = []
    for run in (program, compile_api.compile(program)):
        torch.manual_seed(1)
        x, y = torch.randn(4, 700, requires_grad=True), torch.randn(4, 700, requires_grad=True)
        results.append(torch.autograd.grad(run(x, y), (x, y), allow_unused=True))
    for got, want in zip(*reversed(results), strict=True):
        assert (got is None) == (want is None)
        if got is not None:
            close(got, want)


def _innermost(source: str) -> list[str]:
    """The bodies of loops over lanes."""
    return re.findall(r"#pragma omp (?:parallel for )?simd[^\n]*\n\s*for[^\n]*\{\n(.*?)\n\s*\}", source, re.DOTALL)


@pytest.mark.parametrize("made", ["joined", "rolled", "padded", "joined thrice"])
def test_no_test_is_left_in_a_loop_over_lanes(made: str) -> None:
    compiled = compile_api.compile(lambda x, y: MADE[made](x, y).sum(1))
    compiled(torch.randn(64, 900), torch.randn(64, 900))
    (kernel,) = compiled.report().kernels
    bodies = _innermost(kernel.source)
    assert len(bodies) > 1, kernel.source
    assert not any(">= 0)" in body for body in bodies), kernel.source


def test_many_seams_make_no_long_text() -> None:
    compiled = compile_api.compile(lambda *xs: torch.cat(xs, 1).sum(1))
    xs = [torch.randn(6, 40 + k) for k in range(24)]
    close(compiled(*xs), torch.cat(xs, 1).sum(1))
    assert all(len(kernel.source) < 40_000 for kernel in compiled.report().kernels)


@pytest.mark.parametrize("strides", ["flipped", "every second", "every third", "turned"])
def test_lanes_go_where_memory_is_near(strides: str) -> None:
    made = {
        "flipped": lambda x: x.flip(1), "every second": lambda x: x[:, ::2], "every third": lambda x: x[:, 1::3],
        "turned": lambda x: x.t(),
    }[strides]  # fmt: skip
    compiled = compile_api.compile(lambda x: made(x).sum(1))
    x = torch.randn(512, 512)
    close(compiled(x) / 16, made(x).sum(1) / 16)
    (kernel,) = compiled.report().kernels
    across = "l_++" in kernel.source  # the lanes are results, not what is added up
    assert across == (strides == "turned"), kernel.source


@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (1, 1, 3, 2), (2, 1, 1, 2), (2, 2, 3, 4)])
def test_loops_that_become_one_in_two_steps(shape: tuple[int, ...]) -> None:
    def program(x: torch.Tensor) -> None:
        x += x
        x.diagonal(1)[torch.tensor([0, 1])]

    compiled, x = compile_api.compile(program, options={"strict": True}), torch.randn(shape)
    y = x.clone()
    compiled(x)
    program(y)
    close(x, y)
    assert compiled.report().kernels and not compiled.report().fallbacks
