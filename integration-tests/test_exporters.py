"""Other tools that read a program take a compiled one for the original: exporters of PyTorch's, signatures."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch

import compile_api

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Model(torch.nn.Module):
    """With a parameter by name, a default, and a branch on whether it is being exported."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        """Doc."""
        return torch.relu(self.layer(x)) * scale + self.shift


class Around(torch.nn.Module):
    """Calls a compiled thing."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) * 3


def in_place_and_again(model):
    compile_api.compile_(model)
    return compile_api.compile(model)


def called_before(model):
    compiled = compile_api.compile(model)
    compiled(X)
    return compiled


#: How a module is compiled that is then exported.
COMPILED = {
    "compile": compile_api.compile,
    "called before": called_before,
    "compile_": compile_api.compile_,
    "both": in_place_and_again,
    "a module inside": lambda model: Around(compile_api.compile(model)),
    "a module inside, in place": lambda model: Around(compile_api.compile_(model)),
    "a method inside": lambda model: Around(compile_api.compile(model.forward)),
    "a function inside": lambda model: Around(compile_api.compile(lambda x: model(x).sin())),
    "around a module inside": lambda model: compile_api.compile(Around(compile_api.compile(model))),
}


#: What the strict exporter, which reads bytecode, cannot: a function's object, which is no Python, and a module that is
#: compiled in place and, with other settings, beside. It says so; without ``strict`` they are exported.
REFUSED = ("both", "a method inside", "a function inside")


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("how", COMPILED)
def test_torch_export(how, strict):
    torch.manual_seed(0)
    compiled = COMPILED[how](Model().eval())
    if strict and how in REFUSED:
        with pytest.raises((torch._dynamo.exc.Unsupported, AttributeError)):
            torch.export.export(compiled, (X,), strict=True)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(compiled, (X,), strict=strict)
    calls = [node.target for node in exported.graph.nodes if node.op == "call_function"]
    assert torch.ops.aten.linear.default in calls and torch.ops.aten.relu.default in calls
    assert len([*exported.parameters()]) == len([*compiled.parameters()])
    torch.testing.assert_close(exported.module()(X + 1), compiled(X + 1))


def test_an_object_compiled_beside_one_in_place_keeps_its_own_code():
    model = Model().eval()
    before, expected = compile_api.compile(model), model(X)
    compile_api.compile_(model)
    after = compile_api.compile(model)
    for one in (before, model, after):
        torch.testing.assert_close(one(X), expected)
        assert compile_api.report_of(one).verdict == "compiled"
    assert len({id(compile_api.report_of(one)) for one in (before, model, after)}) == 3
    compile_api.compile_(model, disable=True)
    for one in (before, model, after):
        torch.testing.assert_close(one(X), expected)


def function(x, *, scale: float = 2.0, **others):
    """Doc."""
    return x * scale


@pytest.mark.parametrize("original", [function, Model().forward, Model(), Model.forward])
def test_signatures(original):
    compiled = compile_api.compile(original)
    assert inspect.signature(compiled) == inspect.signature(original)
    if not isinstance(original, torch.nn.Module):
        assert inspect.getfullargspec(compiled) == inspect.getfullargspec(original)
        assert inspect.unwrap(compiled) in (original, getattr(original, "__func__", None))
    else:
        assert inspect.getfullargspec(compiled.forward) == inspect.getfullargspec(original.forward)
    assert inspect.getdoc(compiled) == inspect.getdoc(original)


def test_torch_onnx_export():
    pytest.importorskip("onnxscript")
    model = Model().eval()
    program = torch.onnx.export(compile_api.compile(model), (X,), dynamo=True, verbose=False)
    assert program is not None


def test_tracing_by_torch():
    model = Model().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(compile_api.compile(model), (X,))
        gm = torch.fx.symbolic_trace(model, concrete_args={"scale": 2.0})
    torch.testing.assert_close(traced(X), model(X))
    torch.testing.assert_close(gm(X), model(X))
