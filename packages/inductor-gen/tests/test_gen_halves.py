"""Floats of 16 bits between memory and float32 in generated C: every number, every rounding, and no rounding twice."""

from __future__ import annotations

import pytest
import torch
from gen_support import OPTIONS, build, compile_fn

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
    stored = next(line for line in kernel.source.splitlines() if line.strip().startswith("out0["))
    rounded = next(line for line in kernel.source.splitlines() if "q_round_" in line).split("=")[0].split()[-1]
    assert rounded not in stored, kernel.source
