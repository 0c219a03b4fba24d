"""Draws of ``random`` in compiled programs: one graph, the numbers and the generator's state of eager."""

from __future__ import annotations

import random

import pytest
import torch

import compile_api


def chosen(x):
    return torch.where(x < random.random(), x * random.uniform(0.5, 2.0), 0.0) + random.randint(1, 9)


PROGRAMS = {
    "a float": lambda x: x + random.random(),
    "several": lambda x: x * random.uniform(-1, 2) + random.randint(1, 6) - random.gauss(0, 1),
    "a size": lambda x: torch.zeros(random.randint(1, 5)).sum() + x,
    "alone": lambda x: (random.random(), x + 1),
    "chosen by a draw": chosen,
    "a derivative": lambda x: (x * random.random()).sin().sum() * random.random(),
}


def outcomes(function):
    random.seed(3)
    torch.manual_seed(3)
    found = []
    for _ in range(5):
        x = torch.linspace(-1, 1, 12).requires_grad_()
        result = function(x)
        first = result if isinstance(result, torch.Tensor) else result[1]
        first.sum().backward()
        found.append((result, x.grad, random.getstate()))
    return found


@pytest.mark.parametrize("backend", ["inductor", "aot_eager", "eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_draws_anew_in_every_call(name, backend):
    function = PROGRAMS[name]
    compiled = compile_api.compile(function, backend=backend)
    for got, wanted in zip(outcomes(compiled), outcomes(function), strict=True):
        torch.testing.assert_close(got[:2], wanted[:2])
        assert got[2] == wanted[2]
    report = compiled.report()
    assert not report.breaks and not report.recompiles and not report.fallbacks
    assert sum(graph.dialect == "torch" for graph in report.graphs) == 1
