"""Every primitive, on the samples of its own row, against its PyTorch reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gen_support import OPTIONS, build

import inductor_gen
from prims.ops import TABLE, PrimOp

DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8,
    torch.bool, torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip

#: Primitives whose references and kernels may differ in the last place of the dtype by this many.
TOLERANCE = {torch.float64: 1e-11, torch.float32: 4e-6, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def _call(op: PrimOp, args: tuple[Any, ...]) -> tuple[Any, list[torch.Tensor]]:
    """A function of a handler and tensors that applies the primitive, and the tensors of the sample."""
    tensors: list[torch.Tensor] = []

    def slot(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            tensors.append(x)
            return ("slot", len(tensors) - 1)
        return tuple(slot(v) for v in x) if isinstance(x, (tuple, list)) else x

    slots = tuple(slot(a) for a in args)

    def fill(x: Any, values: tuple[Any, ...]) -> Any:
        if isinstance(x, tuple) and len(x) == 2 and x[0] == "slot" and isinstance(x[0], str):
            return values[x[1]]
        return tuple(fill(v, values) for v in x) if isinstance(x, tuple) else x

    return (lambda p, *values: getattr(p, op.name)(*(fill(s, values) for s in slots))), tensors


@pytest.mark.parametrize("name", list(TABLE))
def test_prim_matches_its_reference(name: str) -> None:
    """All samples of all dtypes in one graph: one compilation per primitive."""
    op = TABLE[name]
    fns, inputs, notes, expected = [], [], [], []
    for dtype in DTYPES:
        for sample in op.samples(dtype) if dtype in op.dtypes else ():
            fn, tensors = _call(op, sample.args)
            fns.append((fn, len(inputs), len(tensors)))
            inputs += tensors
            notes.append(f"{name} {dtype} {sample.note}")
            expected.append(op(*sample.args))

    def everything(p: Any, *values: Any) -> tuple[Any, ...]:
        return tuple(fn(p, *values[start : start + count]) for fn, start, count in fns)

    compiled = inductor_gen.compile_graph(build(everything, inputs), options=OPTIONS)
    assert not compiled.externs or op.kind == "dot"
    for got, want, note in zip(compiled(*inputs), expected, notes, strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape, note
        limit = TOLERANCE.get(got.dtype, 0)
        try:
            torch.testing.assert_close(got, want, rtol=limit, atol=limit, equal_nan=True)
        except AssertionError as error:
            raise AssertionError(f"{note}: {error}") from None
