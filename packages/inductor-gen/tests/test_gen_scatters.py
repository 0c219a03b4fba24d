"""What is scattered on a GPU: atomic operations where there are such, PyTorch's kernels where there are none."""

from __future__ import annotations

import itertools

import pytest
import torch
from gen_support import build, check

import inductor_gen
from inductor_gen.codegen.lowered import Rendered
from inductor_gen.device.record import known
from inductor_gen.loops.graph import Node
from inductor_gen.pipeline import lower_graph
from inductor_gen.rewrite import impossible
from inductor_gen.rewrite.row import Context
from prims.dtypes import ROWS
from prims.ops import TABLE
from prims.options import Options
from prims.spec import TensorSpec

GPU = torch.device("cuda", 0)
MODES = ["set", "add", "mul", "max", "min"]
DTYPES = [row.dtype for row in ROWS.values() if row.dtype in TABLE["add"].dtypes]
ATOMIC = {
    "add": {torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64},
    "mul": set(), "max": {torch.int32, torch.int64}, "min": {torch.int32, torch.int64},
}  # fmt: skip


def scattered(mode):
    """An element-wise operation before and after, which fuse with what is generated."""
    if mode == "put":
        return lambda p, x, at, v: p.mul(p.index_put(p.add(x, 1), (at,), (0,), p.mul(v, 2), True), 3)
    return lambda p, x, at, v: p.mul(p.scatter(p.add(x, 1), at, p.mul(v, 2), 0, mode), 3)


@pytest.mark.parametrize(("dtype", "mode"), list(itertools.product(DTYPES, [*MODES, "put"])), ids=str)
def test_every_type_and_way_is_compiled(dtype, mode):
    at = TensorSpec((40,) if mode == "put" else (40, 8), torch.int64, GPU)
    specs = [TensorSpec((9, 8), dtype, GPU), at, TensorSpec((40, 8), dtype, GPU)]
    env = build(scattered(mode), specs, claims=inductor_gen.claims("cuda"))
    unit = lower_graph(env, Options(verify="off"), devices=lambda _: known("H200"))
    calls = [call.node.op for call in unit.calls if not isinstance(call, Rendered)]
    text = "\n".join(source.text for source in unit.sources())
    way = "add" if mode == "put" else mode
    generated = way == "set" or dtype in ATOMIC[way]
    assert calls == ([] if generated else ["index_put" if mode == "put" else "scatter"])
    assert (f"tl.atomic_{way}(" in text) == (generated and way != "set")


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.uint8, torch.int16, torch.bfloat16, torch.float16, torch.float64], ids=str
)
@pytest.mark.parametrize("mode", [*MODES[1:], "put"])
def test_the_library_s_kernels_give_the_primitives_results(monkeypatch, mode, dtype):
    """As on a GPU, but for the device: the operand stays what it was, and the call is reported."""
    monkeypatch.setattr(Node, "on_gpu", True)
    monkeypatch.setattr(Context, "device", lambda self, node: known("H200"))
    monkeypatch.setattr(impossible, "ATOMIC", {})
    torch.manual_seed(3)
    x, v = (torch.randint(0, 90, shape).to(dtype) for shape in ((9, 8), (40, 8)))
    if dtype.is_floating_point and mode != "mul":
        x[0, 0], v[3, 3], v[4] = float("nan"), float("nan"), -0.0
    at = torch.randint(0, 9, (40,) if mode == "put" else (40, 8))
    held = x.clone()
    case = check(scattered(mode), [x, at, v], tol=None if dtype == torch.float64 else 2e-2)
    assert case.compiled.externs == ("index_put" if mode == "put" else "scatter",)
    torch.testing.assert_close(x, held, rtol=0, atol=0, equal_nan=True)
