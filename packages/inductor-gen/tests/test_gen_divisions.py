"""Remainders of floats in kernels: the bits of libm's, whatever lengths, types and invariances leave to lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gen_support import OPTIONS, compile_fn

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def wide(t: torch.Tensor) -> Any:
    return (t if t.dtype == torch.float64 else t.float()).numpy()


def operands(dtype: torch.dtype, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of all exponents, with zeros, infinities and NaN among them."""
    torch.manual_seed(0)
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    x, y = ((torch.randint(-(2**63), 2**63 - 1, (count,)) >> (64 - 8 * dtype.itemsize)).to(whole).view(dtype) for _ in "xy")
    near = torch.arange(count) % 3 == 0
    x = torch.where(near, (y.float() * torch.randn(count) * 100).to(dtype), x)
    rare = [0.0, -0.0, 1.0, float("inf"), -float("inf"), float("nan"), torch.finfo(dtype).smallest_normal]
    for k, value in enumerate(rare[:count]):
        x[k], y[-1 - k] = value, value
    return x, y


@pytest.mark.parametrize("invariant", [False, True], ids=["", "batch invariant"])
@pytest.mark.parametrize("count", [5, 67, 1031])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_remainders_are_exact(dtype: torch.dtype, count: int, invariant: bool) -> None:
    x, y = operands(dtype, count)

    def fn(p: Any, x: Any, y: Any) -> Any:
        return p.fmod(x, y), p.remainder(x, y), p.fmod(x, 0.75)

    got = compile_fn(fn, [x, y], options=OPTIONS.replace(batch_invariant=invariant))(x, y)
    with np.errstate(all="ignore"):
        a, b = wide(x), wide(y)
        rest = np.fmod(a, b)
        want = (rest, np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest), np.fmod(a, a.dtype.type(0.75)))
    for name, g, w in zip(("fmod", "remainder", "by a number"), got, want, strict=True):
        w = torch.from_numpy(w).to(dtype)
        assert torch.equal(g.isnan(), w.isnan()), name
        assert torch.equal(g.nan_to_num(7.0), w.nan_to_num(7.0)), name
        assert torch.equal(g.signbit()[~g.isnan()], w.signbit()[~w.isnan()]), name
