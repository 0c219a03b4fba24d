"""``export_graph``: a graph with the function's signature and results, for tools of ``torch.fx``."""

from __future__ import annotations

import collections
import dataclasses
import inspect
import linecache
import threading

import pytest
import torch
from torch import nn

import dynamo_capture
from prims.errors import NotCompiled, Unsupported
from prims.ir import Envelope, load, save

X = torch.arange(12.0).reshape(3, 4)
Pair = collections.namedtuple("Pair", "first rest")
SEEN: list[int] = []


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    name: str = "loss"


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, *more, scale=2.0, **named):
        self.calls.add_(1)
        y = self.linear(x) * scale
        return Pair(y, {"sum": y.sum(), "others": [*more, named.get("bias"), None, "text", 3]})


def structures(x):
    return Output(x.sum()), (x + 1, [x]), {"x": x * 2, 3: None}


def appending(x):
    SEEN.append(x.shape[0])
    return x.sin()


def test_signature_and_structure() -> None:
    model = Model()
    exported = dynamo_capture.export_graph(model, X, X + 1, scale=3.0, bias=X)
    assert inspect.signature(exported) == inspect.signature(model.forward)
    assert exported.__wrapped__ is model and "Model.forward(x, *more, scale=2.0, **named)" in repr(exported)
    assert float(model.calls) == 1
    bias, other = X + 2, X + 3
    got = exported(2 * X, other, scale=3.0, bias=bias)
    expected = model(2 * X, other, scale=3.0, bias=bias)
    assert type(got) is Pair and torch.equal(got.first, expected.first)
    assert got.rest["others"][0] is other and got.rest["others"][1] is bias
    assert got.rest["others"][2:] == [None, "text", 3]
    assert float(model.calls) == 3


def test_results_of_any_structure() -> None:
    got = dynamo_capture.export_graph(structures, X)(X + 1)
    assert isinstance(got[0], Output) and float(got[0].loss) == float((X + 1).sum())
    assert isinstance(got[1], tuple) and torch.equal(got[1][1][0], X + 1)
    assert list(got[2]) == ["x", 3] and got[2][3] is None


def test_gradients_reach_the_functions_own_parameters() -> None:
    model = Model()
    exported = dynamo_capture.export_graph(model, X)
    exported(X).rest["sum"].backward()
    assert model.linear.weight.grad is not None and float(model.linear.bias.grad[0]) == 6.0
    with torch.no_grad():
        model.linear.bias.add_(1.0)
    assert torch.equal(exported(X).first, model(X).first)


def test_what_it_does_beside_is_done() -> None:
    SEEN.clear()
    exported = dynamo_capture.export_graph(appending, X)
    exported(X)
    assert SEEN == [3, 3]


def test_nodes_have_the_programs_line() -> None:
    exported = dynamo_capture.export_graph(structures, X)
    traces = [node.stack_trace for node in exported.graph.nodes if node.op.startswith("call")]
    assert len(traces) == 3 and all(f'File "{__file__}", line ' in text and "in structures" in text for text in traces)
    line = linecache.getline(__file__, structures.__code__.co_firstlineno + 1).strip()
    assert traces[0].endswith(line)
    assert "def forward" in exported.graph_module.code


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((torch.ones(5, 4),), {}, "size"), ((X.double(),), {}, "float64"), ((X,), {"scale": 3.0}, "scale"),
        ((X, X), {}, "more"), ((X.t().contiguous().t(),), {}, "stride"),
    ],
)  # fmt: skip
def test_calls_that_it_is_not_for_are_refused(args, kwargs, words) -> None:
    model = Model()
    exported = dynamo_capture.export_graph(model, X)
    with pytest.raises(NotCompiled, match=f"the graph of Model.forward is not for this call: .*{words}"):
        exported(*args, **kwargs)
    assert torch.equal(exported(X).first, model(X).first)  # nor does it come to be for them


def test_marked_sizes_may_change() -> None:
    x = torch.ones(3, 4)
    dynamo_capture.mark_dynamic(x, 0)
    exported = dynamo_capture.export_graph(lambda x: x.reshape(-1) * x.shape[0], x)
    for rows in (2, 7, 100):
        x = torch.randn(rows, 4)
        assert torch.equal(exported(x), x.reshape(-1) * rows)


def test_changed_graphs_run() -> None:
    exported = dynamo_capture.export_graph(lambda x, *, y: {"out": torch.relu(x) + y}, X - 5, y=X)
    (relu,) = [node for node in exported.graph.nodes if node.target is torch.relu]
    relu.target = torch.tanh
    exported.graph.lint()
    assert torch.equal(exported(X - 5, y=X)["out"], torch.relu(X - 5) + X)
    exported.graph_module.recompile()
    assert torch.equal(exported(X - 5, y=X)["out"], torch.tanh(X - 5) + X)


def test_it_is_an_envelope(tmp_path) -> None:
    exported = dynamo_capture.export_graph(lambda x: x.sin() + 1, X)
    assert isinstance(exported, Envelope) and exported.dialect == "torch" and len(exported.op_nodes) == 2
    save(exported, tmp_path / "graph.json")
    assert str(load(tmp_path / "graph.json")) == str(exported)
    assert torch.equal(exported.module()(X)[0], exported(X))
    renamed = exported.replace(producer="another")
    assert type(renamed) is Envelope and renamed.producer == "another" and renamed.graph is exported.graph


def test_methods_and_other_threads() -> None:
    model = Model()
    exported = dynamo_capture.export_graph(model.forward, X)
    found: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: found.append(exported(X).first))
    thread.start()
    thread.join()
    assert torch.equal(found[0], model(X).first)


def test_what_is_no_single_graph() -> None:
    with pytest.raises(Unsupported):
        dynamo_capture.export_graph(lambda x: x.sum().item(), X)
    with pytest.raises(Unsupported):
        dynamo_capture.export_graph(lambda x: 3, X)
