"""Programs that sum under a condition, several sums in one loop: counts were garbage where gcc walked through partial sums."""

from __future__ import annotations

import pytest
import torch

import compile_api

CONDITIONS = {"nan": lambda x: x != x, "above": lambda x: x > 0.5, "not finite": lambda x: ~x.isfinite()}
PROGRAMS = {
    "constants": lambda c, x, w: (torch.where(c, 0, 3).sum(), torch.where(c, 0.0, x).sum()),
    "integers": lambda c, x, w: (torch.where(c, 0, w).sum(), torch.where(c, 0.0, x).sum()),
    "a count": lambda c, x, w: ((~c).sum(), torch.where(c, 0.0, x).sum(), torch.where(c, 1.0, x * 2)),
    "a mask's product": lambda c, x, w: ((w * (~c)).sum(), x.masked_fill(c, 0.0).sum()),
    "means": lambda c, x, w: (x.nanmean(), x * 0.5, x.nansum(), x.isnan().sum()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_sums_under_a_condition(name, condition, dtype):
    def program(x, w):
        y = torch.where(x > 0, x, x * 0.2)
        return PROGRAMS[name](CONDITIONS[condition](y), y, w)

    compiled = compile_api.compile(program, options={"program_cache": False})
    for size in (37, 5000):
        torch.manual_seed(0)
        x, w = torch.randn(size).to(dtype), torch.arange(size) % 7
        x[::7] = float("nan")
        for ours, eager in zip(compiled(x, w), program(x, w), strict=True):
            loose = {} if dtype in (torch.float32, torch.float64) else {"rtol": 2e-2, "atol": 0.3}
            torch.testing.assert_close(ours, eager, equal_nan=True, **(loose if ours.is_floating_point() else {}))
    assert compiled.report().kernels and not compiled.report().fallbacks
