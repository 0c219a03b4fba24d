"""Every row: metadata equals run time (static and symbolic), and the two references agree."""

import pytest
import torch

from prims.conformance import check_backend
from prims.handlers import Array, NumpyHandler
from prims.handlers.base import map_values
from prims.ops import TABLE
from prims.spec import Sym, SymbolContext, TensorSpec

ROWS = list(TABLE.values())


def as_spec(arg):
    return TensorSpec(tuple(arg.shape), arg.dtype, arg.device, arg.stride()) if isinstance(arg, torch.Tensor) else arg


@pytest.mark.parametrize("op", ROWS, ids=lambda op: op.name)
def test_metadata_equals_run_time(op):
    for dtype in op.dtypes:
        for sample in op.samples(dtype):
            args = op.bind(*sample.args)
            spec = op.meta(*map_values(as_spec, args))
            out = op.torch_ref(*args)
            assert spec.shape == tuple(out.shape), sample
            assert spec.dtype == out.dtype, sample
            assert spec.device == out.device, sample
            assert spec.is_contiguous(), sample


@pytest.mark.parametrize("op", ROWS, ids=lambda op: op.name)
def test_metadata_is_symbolic(op):
    """With every size of at least 2 a symbol, the metadata evaluates to the run-time shape."""
    dtype = op.dtypes[0]
    seen_symbolic = False
    for sample in op.samples(dtype):
        ctx = SymbolContext()
        by_size = {}

        def symbolic(arg, ctx=ctx, by_size=by_size):
            if not isinstance(arg, torch.Tensor):
                return arg
            shape = []
            for size in arg.shape:
                if size >= 2 and size not in by_size:
                    by_size[size] = ctx.new_symbol(size, f"size {size}")
                shape.append(by_size.get(size, size))
            return TensorSpec(tuple(shape), arg.dtype, arg.device)

        args = op.bind(*sample.args)
        spec = op.meta(*map_values(symbolic, args))
        out = op.torch_ref(*args)
        hints = ctx.hints()
        shape = tuple(s.expr.evaluate(hints) if isinstance(s, Sym) else s for s in spec.shape)
        assert shape == tuple(out.shape), sample
        seen_symbolic |= any(isinstance(s, Sym) for s in spec.shape)
        if op.elementwise:
            assert not ctx.guards, f"{op.name} guards on sizes that are the same symbol"
    if op.elementwise:
        assert seen_symbolic


def run_numpy(op, args):
    wrapped = map_values(lambda a: Array.from_torch(a) if isinstance(a, torch.Tensor) else a, args)
    return NumpyHandler().prim(op, *wrapped).to_torch()


@pytest.mark.parametrize("op", ROWS, ids=lambda op: op.name)
def test_numpy_reference_agrees_with_torch(op):
    report = check_backend(run_numpy, ops=[op])
    assert report.ok, str(report)


@pytest.mark.parametrize("op", ROWS, ids=lambda op: op.name)
def test_references_leave_their_operands_alone_and_return_fresh_tensors(op):
    for sample in op.samples(op.dtypes[0]):
        args = op.bind(*sample.args)
        tensors = []
        map_values(lambda a, t=tensors: t.append(a) if isinstance(a, torch.Tensor) else None, args)
        before = [t.clone() for t in tensors]
        out = op.torch_ref(*args)
        assert out.is_contiguous()
        out.fill_(1)
        for t, b in zip(tensors, before, strict=True):
            assert torch.equal(t.nan_to_num() if t.is_floating_point() else t, b.nan_to_num() if b.is_floating_point() else b)
