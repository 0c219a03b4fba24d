"""Numbers of a program are parameters of its C kernels: kernels that differ in them alone are one, to the same bits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from gen_support import OPTIONS, build, compile_fn

import inductor_gen
from prims.report import Report

NUMBERS = [
    0.0, -0.0, 1.0, -1.0, 0.5, 3.0, 16.0, 17.0, -17.0, 0.1, -0.1, 1 / 3, 2.0**-30, 6272.0, 6272 / 6271, math.pi,
    1e-45, 1e-40, 3.4e38, 3.5e38, 1e300, -1e300, 1e-320, 2.0**53 + 2, math.inf, -math.inf, math.nan,
]  # fmt: skip
BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", BITS, ids=str)
def test_every_number_arrives(dtype: torch.dtype, dynamic: bool) -> None:
    """As itself, and as what it is in arithmetic."""

    def fn(p: Any, x: Any) -> Any:
        numbers = [p.full(x.shape, n, dtype=dtype, device=torch.device("cpu")) for n in NUMBERS]
        return tuple(numbers) + tuple(p.add(x, n) for n in numbers) + tuple(p.mul(x, n) for n in numbers)

    x = torch.randn(37, dtype=dtype)
    got = compile_fn(fn, [x], dynamic={0: (0,)} if dynamic else None)(x)
    numbers = [torch.full((37,), n, dtype=torch.float64).to(dtype) for n in NUMBERS]
    want = numbers + [x + n for n in numbers] + [x * n for n in numbers]
    for a, b in zip(got, want, strict=True):
        same = (a.view(BITS[dtype]) == b.view(BITS[dtype])) | (a.isnan() & b.isnan())
        assert same.all(), (a, b)


@pytest.mark.parametrize("dtype", BITS, ids=str)
def test_kernels_that_differ_in_a_number_are_one(dtype: torch.dtype) -> None:
    def program(number: float) -> tuple[str, torch.Tensor]:
        report = Report()
        x = torch.arange(5, dtype=dtype)
        env = build(lambda p, x: p.mul(x, p.full(x.shape, number, dtype=dtype, device=torch.device("cpu"))), [x])
        (result,) = inductor_gen.compile_graph(env, options=OPTIONS, report=report)(x)
        assert torch.equal(result, x * number)
        (kernel,) = report.kernels
        return kernel.name, result

    assert program(6272.0)[0] == program(1.0 / 392)[0]
    assert len({program(number)[0] for number in (6272.0, 2.0, 3.0, 0.125)}) == 4  # of which a compiler makes more
