"""Results of a region that are written afterwards: an error where eager's backward pass comes to what it saved, else none."""

from __future__ import annotations

import pytest
import torch

from aot_autograd import aot_function, default_partition, min_cut_partition, run_eagerly
from prims.options import Options
from prims.report import Report

#: Regions of two results, of which the second is saved for its own gradient, and whether the first is computed from it.
REGIONS = {
    "beside": lambda x: (x * x, x.exp()),
    "beside, of a common part": lambda x: ((y := x.sin()) * 2, y.sigmoid()),
    "under": lambda x: ((y := x.exp()).sin(), y),
    "under a sum": lambda x: ((y := x.tanh()) + x, y),
    "softmax": lambda x: (x * x, x.softmax(-1)),
    "three": lambda x: (x * x, x.exp(), x.tanh()),
}


def gradients(function, x, uses, written):
    """The gradient of the results ``uses``, after writing to the result ``written``, or the error's first words."""
    results = function(x)
    with torch.no_grad():
        results[written].mul_(2)
    try:
        (gradient,) = torch.autograd.grad([results[i].sum() for i in uses], [x])
    except RuntimeError as error:
        return str(error)[:60]
    return gradient


@pytest.mark.skipif(
    not hasattr(torch._C._autograd.SavedTensor, "unpack"), reason="this PyTorch reads saved tensors all at once"
)
@pytest.mark.parametrize("partition", [default_partition, min_cut_partition])
@pytest.mark.parametrize("name", REGIONS)
def test_a_result_that_is_written(name, partition):
    region = REGIONS[name]
    x = torch.randn(3, 4, requires_grad=True)
    count = len(region(x))
    graph = torch.fx.Graph()
    given = graph.placeholder("x")
    graph.output(graph.call_function(region, (given,)))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    compiled = aot_function(
        module, [x], fw_compiler=run_eagerly, bw_compiler=run_eagerly, partition_fn=partition, options=Options(),
        report=(report := Report()),
    )  # fmt: skip
    for uses in ([0], [1], [0, 1], [count - 1]):
        for written in range(1, count):
            ours, eager = (gradients(f, x, uses, written) for f in (compiled, region))
            assert type(ours) is type(eager), (uses, written, ours, eager)
            if isinstance(eager, torch.Tensor):
                torch.testing.assert_close(ours, eager)
            else:
                assert ours == eager
    assert not report.fallbacks
