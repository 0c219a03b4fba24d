"""Checks that eager makes on values, of which the trace knows only metadata."""

from __future__ import annotations

import pytest
import torch

from aot_autograd import aot_function, run_eagerly
from prims.report import Report

FACTORISATIONS = {
    "inv": lambda x: torch.linalg.inv(x),
    "solve": lambda x: torch.linalg.solve(x, x.sin()),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.mT + x.det().square()),
    "lu_factor": lambda x: torch.linalg.lu_factor(x)[0],
    "batch": lambda x: torch.linalg.inv(torch.stack([x, 2 * x])),
}


@pytest.mark.parametrize("name", FACTORISATIONS)
def test_factorisations_are_checked_when_the_graph_runs(name):
    function = FACTORISATIONS[name]
    x = torch.eye(3) * 2 + torch.arange(9.0).view(3, 3) / 10
    report = Report()
    gm = torch.fx.symbolic_trace(function)
    compiled = aot_function(gm, [x.clone().requires_grad_()], fw_compiler=run_eagerly, report=report)
    found = []
    for one in (compiled, function):
        own = x.clone().requires_grad_()
        result = one(own)
        result.square().sum().backward()
        with pytest.raises(RuntimeError) as caught:
            one(torch.full((3, 3), -1.0).requires_grad_())
        found.append((result.detach(), own.grad, type(caught.value), str(caught.value)))
    torch.testing.assert_close(found[0][:2], found[1][:2])
    assert found[0][2:] == found[1][2:]
    assert not report.fallbacks
