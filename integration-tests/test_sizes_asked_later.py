"""What a graph's compilation asks of sizes holds for the sizes at hand alone: in a backward pass, which is compiled when
it first runs, for a graph that another program has left on disk, and for an exported program.

A program's guards are complete when its forward pass is compiled. Adaptive pooling, for one, asks whether what is left
divides what is there.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import compile_api
from prims.errors import UserError

PROGRAMS = {
    "adaptive average to 2": "F.adaptive_avg_pool2d(x, 2)",
    "adaptive average to 3 and 1": "F.adaptive_avg_pool2d(x, (3, 1))",
    "adaptive average, one dimension": "F.adaptive_avg_pool1d(x[0], 2)",
    "adaptive maximum": "F.adaptive_max_pool2d(x, 2)",
    "adaptive average of rows": "F.adaptive_avg_pool2d(x[:, 0].reshape(1, 1, -1, x.shape[-1]), (1, 2))",
    "average": "F.avg_pool2d(x, 2, ceil_mode=True)",
    "maximum": "F.max_pool2d(x, 2, 2, ceil_mode=True)",
    "resized": "F.interpolate(x, (3, 3), mode='bilinear')",
    "resized by half": "F.interpolate(x, scale_factor=0.5)",
    "windows": "x.unfold(2, 2, 2).amax(3)",
    "halves": "x.chunk(2, 2)[0].sum(2) + x.chunk(2, 2)[-1].mean(2)",
    "all but one": "x[:, :, 1:].mean(2) * x[:, :, -1]",
    "differences": "x.diff(dim=2).var(2)",
    "rolled": "x[:, :, :-1].roll(1, 2)",
    "folded": "x[:, :, : x.shape[2] // 2 * 2].reshape(1, 2, -1, 2, x.shape[3]).amax(3)",
}
#: Programs that ask of sizes while they are captured what is not so for all.
NOT_FOR_ALL = (PROGRAMS["halves"], PROGRAMS["folded"])
ORDERS = ((4, 6, 10, 7, 9, 3, 8), (2, 1, 3, 4, 8), (5, 4, 7, 1, 6))


def _function(text, name="program"):
    scope = {"F": F}
    exec(f"def {name}(x):\n    return {text}", scope)
    return scope[name]


def _gradient(fn, x):
    x = x.clone().requires_grad_()
    y = fn(x)
    (y * torch.linspace(1, 2, y.numel()).reshape(y.shape)).sum().backward()
    return y.detach(), x.grad


def _or_error(fn, *args):
    try:
        return fn(*args)
    except RuntimeError as error:
        return type(error)


def _same(ours, eager):
    if isinstance(eager, type):
        assert ours is eager
    else:
        torch.testing.assert_close(ours, eager, equal_nan=True)


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS)
def test_a_backward_pass(text, order):
    program = _function(text)
    compiled = compile_api.compile(program)
    for size in order:
        x = torch.randn(1, 2, size, 5)
        _same(_or_error(_gradient, compiled, x), _or_error(_gradient, program, x))
    report = compiled.report()
    assert any(graph.name == "backward" for graph in report.graphs)
    assert report.kernels or text == PROGRAMS["maximum"], "all but a maximum, which is PyTorch's own operator, is generated"
    assert not any("internal error" in fallback.reason or "uncompiled" in fallback.reason for fallback in report.fallbacks)


@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS)
def test_graphs_on_disk(tmp_path, monkeypatch, text):
    """A second program finds the graphs of a first one by their text; its calls come in another order."""
    monkeypatch.setenv("QUINTET_CACHE_DIR", str(tmp_path))
    for number, order in enumerate((ORDERS[0][:3], ORDERS[0], ORDERS[1])):
        program = _function(text, f"program{number}")
        compiled = compile_api.compile(program, options={"program_cache": True})
        for size in order:
            x = torch.randn(1, 2, size, 5)
            _same(_or_error(_gradient, compiled, x), _or_error(_gradient, program, x))
    assert list(tmp_path.rglob("*"))


@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS)
def test_an_exported_program(text):
    class Model(torch.nn.Module):
        def forward(self, x):
            return program(x)

    program = _function(text)
    x = torch.randn(1, 2, 6, 5)
    sizes = {"x": {2: compile_api.Dim("h", min=3, max=12)}}
    if text in NOT_FOR_ALL:
        with pytest.raises(UserError, match="which dynamic_shapes does not promise"):
            compile_api.export(Model(), (x,), dynamic_shapes=sizes)
        return
    exported = compile_api.export(Model(), (x,), dynamic_shapes=sizes)
    for size in range(3, 13):
        x = torch.randn(1, 2, size, 5)
        _same(_or_error(exported, x), _or_error(program, x))


def test_forms_of_a_backward_pass_on_disk(tmp_path, monkeypatch):
    """Each form is found again by the sizes that it was compiled for."""
    monkeypatch.setenv("QUINTET_CACHE_DIR", str(tmp_path))
    lowered = []
    for order in ((2, 1, 3), (1, 3), (3, 1, 4)):
        compile_api.reset()
        program = _function(PROGRAMS["adaptive average of rows"])
        compiled = compile_api.compile(program, options={"program_cache": True})
        for size in order:
            x = torch.randn(1, 2, size, 5)
            _same(_gradient(compiled, x), _gradient(program, x))
        lowered.append("lower" in compiled.report().seconds)
    assert lowered == [True, False, False]
