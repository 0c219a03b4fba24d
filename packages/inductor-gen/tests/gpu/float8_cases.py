"""Floats of 8 bits in generated Triton kernels; run under TRITON_INTERPRET=1 (or on a GPU) by test_triton_kernels.py."""

from __future__ import annotations

import os

import pytest
import torch
from gen_support import build

import inductor_gen
from prims.options import Options

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
KEPT = (torch.float8_e4m3fn, torch.float8_e5m2)

pytestmark = pytest.mark.skipif(
    DEVICE == "cuda" and not torch.cuda.is_available(), reason="PyTorch finds no CUDA device; TRITON_INTERPRET is not 1"
)


def run(fn, *inputs):
    inputs = [x.to(DEVICE) for x in inputs]
    env = build(fn, inputs, claims=inductor_gen.claims(DEVICE))
    compiled = inductor_gen.compile_graph(env, options=Options(verify="off"), triton=True)
    assert compiled.kernels and not compiled.externs
    return [out.cpu() for out in compiled(*inputs)]


@pytest.mark.parametrize("dtype", KEPT, ids=str)
def test_every_number_is_read(dtype):
    x = torch.arange(256, dtype=torch.uint8).view(dtype)
    wide, doubled = run(
        lambda p, a: (p.convert(a, torch.float32), p.mul(p.convert(a, torch.float32), 2.0)), x
    )
    torch.testing.assert_close(wide, x.float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(doubled, x.float() * 2, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", KEPT, ids=str)
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32], ids=str)
def test_numbers_are_written_as_pytorch_writes_them(dtype, source):
    known = torch.arange(256, dtype=torch.uint8).view(dtype).float().nan_to_num(0.0, 1e30, -1e30)
    known = known.sort().values
    x = torch.cat([known, (known[1:] + known[:-1]) / 2, torch.randn(500) * torch.logspace(-8, 5, 500)])
    x = torch.cat([x, torch.nextafter(x, torch.tensor(1e9)), torch.nextafter(x, torch.tensor(-1e9))])
    special = [448.0, 464.0, 464.1, 480.0, 57344.0, 61439.0, 61440.0, 1e30, torch.inf, -torch.inf, torch.nan, 0.0, -0.0]
    x = torch.cat([x, torch.tensor(special)])
    if source == torch.int32:
        x = x.nan_to_num(0.0, 0.0, 0.0).clamp(-1e6, 1e6)
    x = x.to(source)
    kept, rounded = run(lambda p, a: (p.convert(a, dtype), p.convert(p.convert(a, dtype), torch.float32)), x)
    want = x.to(dtype).float()
    torch.testing.assert_close(kept.float(), want, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(rounded, want, rtol=0, atol=0, equal_nan=True)
