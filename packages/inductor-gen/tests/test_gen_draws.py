"""Random numbers that are made before stretches of a loop are the primitives' own, wherever a stretch begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gen_support import build, check

import inductor_gen
from prims.handlers import TorchHandler
from prims.options import Options
from prims.report import Report

CPU = torch.device("cpu")
SEED = torch.tensor(1234567890123456789)


def draw(kind: str, p: Any, shape: tuple[Any, ...], seed: Any, offset: Any, dtype: torch.dtype) -> Any:
    return getattr(p, f"random_{kind}")(shape, seed, offset, dtype, CPU)


USES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "alone": lambda p, x, u: u,
    "dropped": lambda p, x, u: p.mul(x, p.convert(p.lt(u, 0.5), x.dtype)),
    "summed over rows": lambda p, x, u: p.sum(p.mul(x, u), (1,)),
    "summed over columns": lambda p, x, u: p.sum(p.mul(x, u), (0,)),
    "greatest": lambda p, x, u: p.argmax(p.add(x, u), 1),
    "joined": lambda p, x, u: p.sum(p.concat([u, x], 1), (1,)),
    "turned": lambda p, x, u: p.permute(p.mul(x, u), (1, 0)),
    "part": lambda p, x, u: p.slice(u, (0, 2), (u.shape[0], 7), (1, 2)),
    "reversed": lambda p, x, u: p.mul(x, p.flip(u, (1,))),
}
SHAPES = ((3, 7), (5, 33), (4, 255), (3, 257), (2, 770), (1, 5000))


@pytest.mark.parametrize("kind", ["uniform", "normal"])
@pytest.mark.parametrize("used", USES)
def test_draws_are_the_primitives(used: str, kind: str) -> None:
    for shape in SHAPES:
        for offset in (0, 3, 2**32 - 5):
            x = torch.randn(shape)
            check(
                lambda p, x, seed, offset=offset: USES[used](p, x, draw(kind, p, x.shape, seed, offset, torch.float32)),
                [x, SEED], tol=2e-5,
            )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_other_dtypes(kind: str, dtype: torch.dtype) -> None:
    x = torch.randn(3, 333).to(dtype)
    check(lambda p, x, seed: draw(kind, p, x.shape, seed, 8, dtype), [x, SEED], tol=1e-2)


@pytest.mark.parametrize("threads", [1, 3])
def test_several_draws_of_symbolic_size_and_threads(threads: int) -> None:
    def program(p: Any, x: Any, seed: Any) -> Any:
        first, second = (draw(k, p, x.shape, seed, n, torch.float32) for k, n in (("uniform", 0), ("normal", 2**20)))
        return p.add(p.mul(x, first), second), p.lt(first, 0.25)

    x = torch.randn(7, 5001)
    report = Report()
    env = build(program, [x, SEED], dynamic={0: (0, 1)})
    compiled = inductor_gen.compile_graph(env, options=Options(threads=threads), report=report)
    for shape in ((7, 5001), (3, 258), (2, 2), (900, 31)):
        x = torch.randn(shape)
        for got, want in zip(compiled(x, SEED), program(TorchHandler(), x, SEED), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert any("q_words" in kernel.source for kernel in report.kernels)


def test_words_are_made_once_for_four() -> None:
    x = torch.randn(64, 100)
    case = check(lambda p, x, seed: p.mul(x, draw("uniform", p, x.shape, seed, 0, torch.float32)), [x, SEED])
    (kernel,) = case.report.kernels
    assert "q_words" in kernel.source and "q_uniform" not in kernel.source
