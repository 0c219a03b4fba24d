"""``torch.compile(model, backend="quintet")``: PyTorch's capture before our stages."""

from __future__ import annotations

import copy
import importlib.metadata
import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import compile_api
from compile_api.torch_backend import quintet

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled_reports(before=0):
    found = compile_api.backend_reports()[before:]
    assert found and all(report.verdict == "compiled" and report.kernels for report in found), list(map(str, found))
    return found


def test_the_entry_point_names_it():
    told = tomllib.loads((ROOT / "packages" / "compile-api" / "pyproject.toml").read_text())
    points = told["project"]["entry-points"]["torch_dynamo_backends"]
    point = importlib.metadata.EntryPoint("quintet", points["quintet"], "torch_dynamo_backends")
    assert point.load() is quintet


def test_it_is_found_by_name():
    if "quintet" not in {each.name for each in importlib.metadata.entry_points(group="torch_dynamo_backends")}:
        pytest.skip("compile-api is not installed here, only on the path: it has no entry points")
    assert "quintet" in torch._dynamo.list_backends()
    compiled = torch.compile(lambda x: x.sin() * 2 + 1, backend="quintet")
    x = torch.randn(8)
    torch.testing.assert_close(compiled(x), x.sin() * 2 + 1)


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_a_function_of_sizes_that_change(dynamic):
    def fn(x, y):
        return F.gelu(x @ y).sum(-1) / x.shape[0], x.new_zeros(x.shape[0], 2)

    before = len(compile_api.backend_reports())
    compiled = torch.compile(fn, backend=quintet, dynamic=dynamic)
    for n in (4, 5, 6, 7):
        x, y = torch.randn(n, 8), torch.randn(8, 8)
        torch.testing.assert_close(compiled(x, y), fn(x, y))
    reports = compiled_reports(before)
    assert sum(len(report.recompiles) for report in reports) <= 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x):
        h = self.layers(x)
        torch._dynamo.graph_break()
        return h.softmax(-1) * x.sum()


@pytest.mark.parametrize("in_place", [False, True], ids=["torch.compile", "module.compile"])
def test_training_a_module(in_place):
    torch.manual_seed(0)
    net, before = Net(), len(compile_api.backend_reports())
    twin = copy.deepcopy(net)
    compiled = net
    if in_place:
        net.compile(backend=quintet)
    else:
        compiled = torch.compile(net, backend=quintet)
    steps = [torch.optim.SGD(each.parameters(), 0.1) for each in (net, twin)]
    for n in (3, 4, 5, 3):
        x, losses = torch.randn(n, 4), []
        for run, optimizer in zip((compiled, twin), steps, strict=True):
            optimizer.zero_grad()
            loss = run(x).pow(2).sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses)
    torch.testing.assert_close(net.state_dict(), twin.state_dict())
    compiled_reports(before)


def test_modes_and_options():
    before = len(compile_api.backend_reports())
    made = quintet(torch.fx.symbolic_trace(lambda x: x.exp() + 1), [], options={"fallback_random": True})
    torch.testing.assert_close(made(torch.ones(3)), torch.ones(3).exp() + 1)
    compiled_reports(before)
    with pytest.raises(compile_api.errors.UserError, match="no_such_option"):
        quintet(torch.fx.symbolic_trace(lambda x: x + 1), [], options={"no_such_option": 1})
    with pytest.raises(compile_api.errors.UserError, match="no-such-mode"):
        quintet(torch.fx.symbolic_trace(lambda x: x + 1), [], mode="no-such-mode")


def test_reports_go_with_their_programs():
    made = quintet(torch.fx.symbolic_trace(lambda x: x + 1), [])
    count = len(compile_api.backend_reports())
    made(torch.ones(3))
    del made
    import gc

    gc.collect()
    assert len(compile_api.backend_reports()) == count - 1
