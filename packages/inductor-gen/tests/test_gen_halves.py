"""Floats of 16 bits between memory and float32 in generated C: every number, every rounding, and no rounding twice."""

from __future__ import annotations

import pytest
import torch
from gen_support import OPTIONS, build, check, compile_fn

import inductor_gen
from prims.report import Report

HALVES = (torch.float16, torch.bfloat16)


def all_of(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


def bits(x: torch.Tensor) -> torch.Tensor:
    """The bits of 16-bit or 32-bit floats, NaNs all alike."""
    whole = x.view(torch.int16 if x.itemsize == 2 else torch.int32)
    return torch.where(x.isnan(), torch.full_like(whole, -1), whole)


def to_round(dtype: torch.dtype) -> torch.Tensor:
    """Float32 numbers at, next to and midway between the numbers of a dtype, and of all magnitudes."""
    at = all_of(dtype).float()
    at = at[at.isfinite()].sort().values
    middles = ((at[1:].double() + at[:-1].double()) / 2).float()
    near = torch.cat([at, middles])
    inf = torch.tensor(torch.inf)
    wild = torch.randint(-(2**31), 2**31, (1 << 20,), dtype=torch.int64).to(torch.int32).view(torch.float32)
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 65519.996, 65520.0, -65520.0, 1e-45, 3e38])
    return torch.cat([near, torch.nextafter(near, inf), torch.nextafter(near, -inf), wild, special])


@pytest.fixture(params=[False, True], ids=["subnormals", "subnormals flushed"])
def flush(request):
    if request.param and not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot take subnormal numbers for zero")
    yield request.param
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("dtype", HALVES)
def test_every_number_is_read(dtype: torch.dtype, flush: bool) -> None:
    x = all_of(dtype)
    (got,) = compile_fn(lambda p, a: p.convert(a, torch.float32), [x])(x)
    want = x.float()
    if flush and dtype == torch.bfloat16:  # of which some are subnormal as float32: moved, not computed with
        return
    assert torch.equal(bits(got), bits(want))


@pytest.mark.parametrize("dtype", HALVES)
def test_every_rounding(dtype: torch.dtype, flush: bool) -> None:
    x = to_round(dtype)
    (got,) = compile_fn(lambda p, a: p.convert(a, dtype), [x])(x)
    want = x.to(dtype)
    wrong = bits(got) != bits(want)
    if flush:  # what is subnormal in float32 is far below what rounds to another number of float16
        wrong &= x.abs() >= torch.finfo(torch.float32).tiny
    assert not wrong.any(), (x[wrong][:5], got[wrong][:5], want[wrong][:5])


@pytest.mark.parametrize("dtype", HALVES)
def test_what_is_stored_is_rounded_once(dtype: torch.dtype) -> None:
    x = torch.randn(1000).to(dtype)
    report = Report()
    program = build(lambda p, a: p.convert(p.exp(p.convert(a, torch.float32)), dtype), [x])
    (got,) = inductor_gen.compile_graph(program, options=OPTIONS, report=report)(x)
    torch.testing.assert_close(got, x.float().exp().to(dtype), rtol=torch.finfo(dtype).eps, atol=0)
    (kernel,) = report.kernels
    stored = next(line for line in kernel.source.splitlines() if line.strip().startswith(("out0[", "m0_[")))
    rounded = next(line for line in kernel.source.splitlines() if "q_round_" in line).split("=")[0].split()[-1]
    assert rounded not in stored, kernel.source


ROWS = {
    "pointwise": lambda p, a, b: p.mul(p.add(a, b), b),
    "two results": lambda p, a, b: (p.mul(a, b), p.sub(a, b)),
    "moved and computed": lambda p, a, b: (p.where(p.gt(a, b), a, b), p.exp(a)),
    "into float32": lambda p, a, b: p.convert(p.add(a, b), torch.float32),
    "sum of each": lambda p, a, b: p.sum(p.convert(p.mul(a, b), torch.float32), (1,)),
    "sum of columns": lambda p, a, b: p.sum(p.convert(p.mul(a, b), torch.float32), (0,)),
    "turned": lambda p, a, b: p.add(p.permute(p.permute(a, (1, 0)), (1, 0)), p.flip(b, (1,))),
    "less its greatest": lambda p, a, b: p.sub(a, p.broadcast(p.amax(b, (1,)), tuple(a.shape), (0,))),
}  # fmt: skip


@pytest.mark.parametrize("columns", [1, 7, 31, 32, 33, 255, 256, 257, 515])
@pytest.mark.parametrize("name", ROWS)
def test_rows_are_converted_at_once(name: str, columns: int) -> None:
    """A row, and what is left of one; what is next to it stays as it is."""
    torch.manual_seed(columns)
    x, y = torch.randn(3, columns).half(), torch.randn(3, columns).half()
    case = check(ROWS[name], [x, y], tol=2e-3)
    text = "".join(kernel.source for kernel in case.report.kernels)
    one_by_one = columns < 32 and name not in ("pointwise", "two results", "moved and computed", "into float32")
    assert ("q_row_from_f16" in text) or one_by_one or 3 * columns < 32 or name in ("sum of columns", "turned"), text


def test_what_is_only_moved_is_not_converted() -> None:
    x = torch.randn(64, 64).half()
    case = check(lambda p, a: p.permute(p.concat((a, a), 0), (1, 0)), [x])
    assert "q_row_" not in "".join(kernel.source for kernel in case.report.kernels)
