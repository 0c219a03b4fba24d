"""Inputs whose shape the program changes in place: guards are about the shape that they came with."""

from __future__ import annotations

import pytest
import torch

from dynamo_capture import supports_dynamic_shapes
from dynamo_capture.frontend import optimize
from prims.options import Options
from prims.report import Report


@supports_dynamic_shapes
def traced_and_run(gm, example_inputs):
    """As backends that trace the graph do, on the very tensors that stand for the inputs."""
    gm(*example_inputs)
    return gm.forward


traced_and_run.symbolic_example_inputs = True


CHANGES = {
    "t_": lambda x: x.t_(),
    "transpose_": lambda x: x.transpose_(0, 1),
    "swapaxes_": lambda x: x.swapaxes_(-1, 0),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "squeeze_": lambda x: x.squeeze_(0),
    "out of another size": lambda x: torch.add(torch.ones(5, 5), 1, out=x),
    "out of the size it has": lambda x: torch.add(x, 1, out=x),
}


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", CHANGES)
def test_an_input_whose_shape_changes_in_place(name, dynamic):
    change = CHANGES[name]

    def function(x):
        factor = 2 if x.shape[0] > x.shape[1] + 2 else 3 if x.shape[1] > 6 else 5
        change(x)
        return x * factor, factor, tuple(x.shape)

    report = Report()
    compiled = optimize(function, traced_and_run, options=Options(dynamic=dynamic), report=report)
    for rows, columns in [(3, 4), (7, 4), (4, 7), (1, 5), (9, 3), (3, 9), (5, 5), (8, 8), (0, 4), (2, 11)]:
        mine, theirs = torch.ones(rows, columns), torch.ones(rows, columns)
        ours, eager = compiled(mine), function(theirs)
        assert torch.equal(ours[0], eager[0]) and ours[1:] == eager[1:]
        assert (mine.shape, mine.stride()) == (theirs.shape, theirs.stride())
    assert report.graphs
    assert not any("internal" in fallback.reason for fallback in report.fallbacks)
