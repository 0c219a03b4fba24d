"""Which operators exchange data with other processes."""

from __future__ import annotations

import pytest
import torch

from prims.collectives import exchanges, is_collective, is_wait

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")


def test_collectives_and_waits_are_told_apart():
    operators = torch.ops._c10d_functional
    for name in ("all_reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"):
        assert is_collective(getattr(operators, name).default) and not is_wait(getattr(operators, name).default)
    assert is_wait(operators.wait_tensor.default) and not is_collective(operators.wait_tensor.default)
    for other in (torch.ops.aten.add.Tensor, torch.add, len, "all_reduce"):
        assert not is_collective(other) and not is_wait(other)


def test_dead_code_with_a_collective_stays():
    """Other processes wait for it, whoever reads its result."""
    from prims.lower.clean import erase_dead

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch.ops._c10d_functional.all_reduce.default, (x, "sum", "0"))
    graph.call_function(torch.ops.aten.sin.default, (x,))
    graph.output((x,))
    assert exchanges(graph)
    assert erase_dead(graph) == 1
    assert exchanges(graph)
