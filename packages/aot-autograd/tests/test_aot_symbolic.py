"""Sizes as symbols: what PyTorch's C++ makes of them on the way to an operator."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from aot_autograd.trace.program import trace_forward
from prims.ir import Envelope, InputDesc, SymbolTable
from prims.spec import SymbolContext, TensorSpec, contiguous_strides

CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(torch.version.cuda is None, reason="PyTorch is built without CUDA's functions")
)
aten = torch.ops.aten


def normalised(function, device):
    """What each norm of the trace of ``function`` is taken over, and the input's sizes."""
    graph = torch.fx.symbolic_trace(function)
    context = SymbolContext()
    rows, columns = (context.new_symbol(n, name, min=2, max=512) for n, name in ((6, "rows"), (10, "columns")))
    shape = (3, rows, columns)
    inputs = (InputDesc("x", "input", TensorSpec(shape, torch.float32, torch.device(device), contiguous_strides(shape))),)
    symbols = SymbolTable.from_inputs(inputs, context)
    graph.meta["envelope"] = Envelope("torch", (1, 0), "test", "0", graph.graph, inputs, (), symbols)
    with torch.no_grad():
        program = trace_forward(graph, [torch.randn(3, 6, 10)])
    calls = {node.target: node.args for node in program.tracer.graph.nodes if "norm" in str(node.target)}
    return {target: next(a for a in args if isinstance(a, (list, tuple))) for target, args in calls.items()}, shape


@pytest.mark.parametrize("device", ["cpu", "meta", CUDA])
@pytest.mark.parametrize("dims", [1, 2])
def test_a_norm_is_over_the_sizes_of_its_input(device, dims):
    def both(x):
        return F.rms_norm(x, x.shape[-dims:]), F.layer_norm(x, x.shape[-dims:])

    taken, shape = normalised(both, device)
    assert len(taken) == (2 if device == "cuda" else 1)
    assert all(list(sizes) == list(shape[-dims:]) for sizes in taken.values())


def test_an_address_is_not_taken_for_a_size():
    """For a GPU, C++ gives the fused operators the addresses of what stands for the symbols."""
    address = -0x6000000000000000 + 0x55D0B0C0

    def forward_and_backward(x):
        out, rstd = aten._fused_rms_norm.default(x, [address], None, None)
        return aten._fused_rms_norm_backward.default(out, x, [address], rstd, None, [True, False])[0]

    taken, shape = normalised(forward_and_backward, "cpu")
    assert aten._fused_rms_norm_backward.default in taken
    assert all(list(sizes) == [shape[-1]] for sizes in taken.values())
