"""Branches on data that lead to a ``raise``: the graph goes on, and a call in which it does not hold is run eagerly."""

from __future__ import annotations

import asserting_programs as programs
import pytest
import torch

import dynamo_capture
from prims.errors import QuintetError, Unsupported

INPUTS = [[1.0, 2.0, 3.0], [1.0, -2.0, 3.0], [float("nan"), 1.0, 2.0], [4.0, 5.0, 6.0], [1e6, 1e6, 1e6], [0.5, 0.25, 1.0]]


def outcomes(fn, inputs=INPUTS, grad=False):
    programs.LOG.calls = 0
    torch.manual_seed(0)
    found = []
    for numbers in inputs:
        x = torch.tensor(numbers, requires_grad=grad)
        try:
            y = fn(x)
            result = y.tolist()
            if grad:
                y.sum().backward()
                result = result, x.grad.tolist()
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        found.append((str(result), programs.LOG.calls, torch.rand(1).item()))
    return found


@pytest.mark.parametrize("fn", programs.PROGRAMS)
def test_one_graph(fn, capture):
    wanted = outcomes(fn)
    compiled = capture(fn, fullgraph=True)
    assert outcomes(compiled) == wanted and any("Error" in text for text, _, _ in wanted)
    assert not compiled.report.breaks and len(compiled.graphs) <= 2


def test_gradients(capture):
    compiled = capture(programs.with_gradient, fullgraph=True)
    inputs = [[1.0, 2.0], [-9.0, 1.0], [0.5, 3.0]]
    assert outcomes(compiled, inputs, grad=True) == outcomes(programs.with_gradient, inputs, grad=True)


@pytest.mark.parametrize("fn", programs.BREAKING)
def test_breaks(fn, capture):
    compiled = capture(fn, strict=False)
    assert outcomes(compiled) == outcomes(fn)
    assert compiled.report.breaks


def test_what_is_written_stays(capture):
    found = []
    for run in (programs.written, capture(programs.written, strict=False)):
        x = torch.tensor([1.0, -1.0])
        for _ in range(2):
            with pytest.raises(AssertionError):
                run(x)
        found.append(x.tolist())
    assert found[0] == found[1] == [4.0, -4.0]


def test_around_a_break(capture):
    fn = programs.around_a_break
    compiled = capture(fn)
    inputs = [[1.0], [-1.0], [20.0], [2.0]]
    assert outcomes(compiled, inputs) == outcomes(fn, inputs)
    assert len(compiled.graphs) == 2


def test_an_exported_graph_has_no_such_branch():
    with pytest.raises((Unsupported, QuintetError)):
        dynamo_capture.export_graph(programs.asserted, torch.ones(3))


def test_explained():
    found = dynamo_capture.explain(programs.asserted)(torch.ones(3))
    assert found.graph_count == 1 and found.graph_break_count == 0


def test_branches_inside_a_graph_within(capture):
    from torch.utils.checkpoint import checkpoint

    def fn(x):
        return checkpoint(programs.asserted, x, use_reentrant=False)

    compiled = capture(fn, strict=False)
    assert outcomes(compiled) == outcomes(fn)
