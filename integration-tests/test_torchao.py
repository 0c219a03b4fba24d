"""torchao's quantised linears: one graph, dequantised and quantised in generated kernels, eager's numbers."""

from __future__ import annotations

import importlib.util

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

from compile_api import compile as compile_model

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")


class Block(nn.Module):
    """A layer of a Llama: attention with rotated queries, and a gated MLP."""

    def __init__(self, width=64, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width)
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x):
        h = self.first(x)
        q, k, v = (m(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for m in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).flatten(2))
        h = self.second(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def config(kind):
    from torchao.quantization import Float8WeightOnlyConfig, Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig

    return {
        "int8": Int8WeightOnlyConfig, "int8 dynamic": Int8DynamicActivationInt8WeightConfig,
        "float8": Float8WeightOnlyConfig,
    }[kind]()  # fmt: skip


def quantised(kind, dtype=torch.float32):
    from torchao.quantization import quantize_

    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).to(dtype).eval()
    quantize_(model, config(kind))
    return model


KINDS = ["int8", "int8 dynamic", "float8"]


def unquantised(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block()).to(dtype).eval()


def close(got, expected, exact, kind):
    """Within rounding. Activations that are rounded to int8 may go to the other side where they lie between two numbers:
    eager does so too for an input that is one rounding off, and the error against float64 is what stays the same."""
    if kind == "int8 dynamic":
        assert (got - exact).abs().max() <= 1.5 * (expected - exact).abs().max()
    else:
        bounds = {"rtol": 3e-2, "atol": 6e-2} if got.dtype == torch.bfloat16 else {}
        torch.testing.assert_close(got, expected, **bounds)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_one_graph_in_kernels(kind, dtype):
    model = quantised(kind, dtype)
    plain = unquantised()
    compiled = compile_model(model, fullgraph=True)
    with torch.no_grad():
        for rows in (6, 6, 7, 11):
            x = torch.randn(2, rows, 64).to(dtype)
            close(compiled(x), model(x), plain(x.double()), kind)
    report = compiled.report()
    assert report.kernels and not report.fallbacks and not report.breaks
    assert len([graph for graph in report.graphs if graph.dialect == "torch"]) <= 2
    named = {extern.name for extern in report.externs}
    assert named <= {"aten.mm.default", "aten._int_mm.default", "aten._scaled_dot_product_flash_attention_for_cpu.default"}
    assert any("convert" in kernel.ops for kernel in report.kernels)


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_is_quantised_in_the_region(kind):
    """The class is made, and used, inside of the region."""
    from torchao.quantization import quantize_

    layer = nn.Linear(32, 16)
    quantize_(layer, config(kind))
    cls = type(layer.weight)
    weight = torch.randn(16, 32)
    known = {"granularity": layer.weight.act_quant_kwargs.granularity} if kind == "int8 dynamic" else {}

    def fn(x, weight):
        return F.linear(x, cls.from_hp(weight, **known))

    compiled = compile_model(fn)
    x = torch.randn(3, 32)
    with torch.no_grad():
        if kind == "int8":
            from torchao.quantization import PerRow

            known["granularity"] = PerRow()
        torch.testing.assert_close(compiled(x, weight), fn(x, weight))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_the_activations(kind):
    model = quantised(kind)
    compiled, plain = compile_model(model), unquantised()
    for _ in range(2):
        x = torch.randn(2, 5, 64, requires_grad=True)
        found = []
        for call, given in ((compiled, x), (model, x), (plain, x.detach().double().requires_grad_())):
            out = call(given)
            found.append((out, *torch.autograd.grad(out.square().sum(), [given])))
        close(*(out.detach() for out, _ in found), kind)
        bounds = {"rtol": 2e-2, "atol": 2e-2} if kind == "int8 dynamic" else {}  # it depends on what was rounded
        torch.testing.assert_close(found[0][1], found[1][1], **bounds)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_one_linear_is_eagers(kind, rows):
    """What it takes has no roundings before: all that it rounds to int8 is what eager does."""
    from torchao.quantization import quantize_

    torch.manual_seed(0)
    layer = nn.Linear(64, 48)
    quantize_(layer, config(kind))
    compiled = compile_model(layer, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(rows, 64)
            torch.testing.assert_close(compiled(x), layer(x))


@pytest.mark.parametrize("way", ["autocast", "checkpoint"])
@pytest.mark.parametrize("kind", ["int8", "float8"])
def test_training_through_frozen_weights(kind, way):
    """As adapters are trained on a quantised model: under autocast, and with blocks that are computed again."""
    model = quantised(kind)

    class Trained(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = model
            self.adapter = nn.Linear(64, 64)

        def forward(self, x):
            x = x + self.adapter(x)
            for block in self.blocks:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) if way == "checkpoint" else block(x)
            return x

    trained = Trained()
    compiled = compile_model(trained, fullgraph=True)
    x = torch.randn(2, 6, 64)
    found = []
    for call in (trained, compiled):
        with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
            out = call(x)
        grads = torch.autograd.grad(out.square().mean(), list(trained.adapter.parameters()), allow_unused=True)
        found.append((out, *grads))
    assert found[0][1] is not None
    bounds = {"rtol": 5e-2, "atol": 5e-2} if way == "autocast" else {}
    for a, b in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(a, b, **bounds)
