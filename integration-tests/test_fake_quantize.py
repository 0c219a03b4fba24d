"""Training that is aware of quantisation: fake quantisation and its observers, against eager, bit by bit."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.ao.quantization import (
    FakeQuantize,
    FusedMovingAvgObsFakeQuantize,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    get_default_qat_qconfig,
    prepare_qat,
)

import compile_api

STEP, ZERO = torch.tensor([0.037]), torch.tensor([3], dtype=torch.int32)
STEPS, ZEROS = torch.tensor([0.1, 0.037, 0.5, 0.02]), torch.tensor([0, 3, 10, 255], dtype=torch.int32)

FUNCTIONS = {
    "number": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.037, 3, 0, 255),
    "symmetric": lambda x: torch.fake_quantize_per_tensor_affine(x * 2, 0.1, 0, -128, 127),
    "few levels": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.5, 2, -8, 7).abs(),
    "tensors": lambda x: torch.fake_quantize_per_tensor_affine(x, STEP, ZERO, 0, 255),
    "channels": lambda x: torch.fake_quantize_per_channel_affine(x, STEPS, ZEROS, 1, 0, 255) * 2,
    "learnable": lambda x: torch._fake_quantize_learnable_per_tensor_affine(x, STEP, ZERO.float(), 0, 255, 1.0),
    "learnable channels": lambda x: torch._fake_quantize_learnable_per_channel_affine(x, STEPS, ZEROS.float(), 1, 0, 255, 0.5),
}  # fmt: skip
#: Computed in generated kernels, without a call of PyTorch's.
GENERATED = {"number", "symmetric", "few levels", "tensors"}


def numbers(dtype: torch.dtype, layout: str) -> torch.Tensor:
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, 6) * 5
    x.view(-1)[:6] = torch.tensor([math.nan, math.inf, -math.inf, 1e30, -1e30, -0.0])
    x.view(-1)[6:70] = (torch.arange(64) - 32.5) * 0.037  # between two levels
    x = x.to(dtype)
    return {"rows": x, "channels last": x.contiguous(memory_format=torch.channels_last), "gaps": x[..., ::2]}[layout]


def run(function, x):
    leaf = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x).requires_grad_()
    assert leaf.stride() == x.stride()
    result = function(leaf)
    (result.nan_to_num() * torch.arange(result.numel()).view_as(result)).sum().backward()
    return result.detach(), leaf.grad


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("layout", ["rows", "channels last", "gaps"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name, dtype, layout, dynamic):
    function, x = FUNCTIONS[name], numbers(dtype, layout)
    try:
        run(function, x)
    except RuntimeError as refused:
        assert "learnable" in name and dtype is not torch.float32, refused
        with pytest.raises(RuntimeError) as ours:
            run(compile_api.compile(function, dynamic=dynamic), x)
        assert str(ours.value) == str(refused)
        return
    compiled = compile_api.compile(function, dynamic=dynamic)
    for got, want in zip(run(compiled, x), run(function, x), strict=True):
        assert torch.equal(got.nan_to_num(1.25), want.nan_to_num(1.25)) and got.stride() == want.stride()
    report = compiled.report()
    assert len(report.graphs) and not report.breaks
    if name == "channels" and dynamic:  # PyTorch's formula of its gradient reads sizes as numbers
        assert "symbolic sizes" in str(report)
        return
    assert len(report.kernels) > 0
    if name in GENERATED:
        assert not report.fallbacks and not report.externs, report


def by(scale, zero_point, least=0, most=255):
    return lambda x: torch.fake_quantize_per_tensor_affine(x, scale, zero_point, least, most)


TENSOR, INT = torch.tensor, torch.int32
ODD = {
    "float64 scale": by(TENSOR([0.1], dtype=torch.float64), TENSOR([3], dtype=INT)),
    "float16 scale": by(TENSOR([0.1], dtype=torch.float16), TENSOR([3], dtype=INT)),
    "int64 zero point": by(TENSOR([0.1]), TENSOR([3])),
    "zero point with a fraction": by(TENSOR([0.1]), TENSOR([3.75])),
    "no dimensions": by(TENSOR(0.1), TENSOR(3, dtype=INT)),
    "two scales": by(TENSOR([0.1, 0.2]), TENSOR([3, 3], dtype=INT)),
    "no scale": by(TENSOR([]), TENSOR([], dtype=INT)),
    "zero point out of range": by(TENSOR([0.1]), TENSOR([300], dtype=INT)),
    "tensor of zero": by(TENSOR([0.0]), TENSOR([0], dtype=INT)),
    "subnormal": by(1e-45, 0), "less than float32 has": by(1e-60, 0), "more than float32 has": by(1e39, 0),
    "zero": by(0.0, 0), "negative": by(-0.1, 0), "nan": by(math.nan, 0), "infinite": by(math.inf, 0),
    "32 bits": by(1e-9, 0, -(2**31), 2**31 - 1), "27 bits": by(1e-4, 7, -(2**26), 2**26),
}  # fmt: skip


@pytest.mark.parametrize("shape", [(50,), (0,), ()], ids=str)
@pytest.mark.parametrize("name", ODD)
def test_odd_scales(name, shape):
    torch.manual_seed(0)
    x = torch.randn(shape) * 5
    compiled = compile_api.compile(lambda x: ODD[name](x))
    try:
        expected = ODD[name](x)
    except RuntimeError as error:
        with pytest.raises(RuntimeError) as ours:
            compiled(x)
        assert str(ours.value) == str(error)
        return
    torch.testing.assert_close(compiled(x), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("channels", [False, True], ids=["one scale", "by channel"])
def test_gradients_of_learnable_scales(channels):
    x, results = numbers(torch.float32, "rows").nan_to_num(0, 9, -9), []
    scale, zero_point = (STEPS, ZEROS.float()) if channels else (STEP, ZERO.float())

    def function(x, scale, zero_point):
        if channels:
            return torch._fake_quantize_learnable_per_channel_affine(x, scale, zero_point, 1, 0, 255, 0.5)
        return torch._fake_quantize_learnable_per_tensor_affine(x, scale, zero_point, 0, 255, 0.5)

    compiled = compile_api.compile(function, options={"strict": True})
    for run in (function, compiled):
        leaves = [t.clone().requires_grad_() for t in (x, scale, zero_point)]
        run(*leaves).square().sum().backward()
        results.append([leaf.grad for leaf in leaves])
    for ours, theirs in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, theirs)
    assert compiled.report().externs, compiled.report()


@pytest.mark.parametrize("enabled", [False, True])
def test_what_is_switched_off_passes(enabled):
    on = torch.tensor([int(enabled)])
    operator = torch.ops.aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    x = numbers(torch.float32, "rows")
    compiled = compile_api.compile(lambda x: operator(x, STEP, ZERO, on, 0, 255), options={"strict": True})
    for got, want in zip(compiled(x), operator(x, STEP, ZERO, on, 0, 255), strict=True):
        assert torch.equal(got.nan_to_num(1.25), want.nan_to_num(1.25))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 300, 0, 255),
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 5, 2),
        lambda x: torch.fake_quantize_per_tensor_affine(x.long(), 0.1, 0, 0, 255),
        lambda x: torch.fake_quantize_per_channel_affine(x, STEPS, ZEROS, 5, 0, 255),
        lambda x: torch.fake_quantize_per_channel_affine(x, STEPS, ZEROS, 0, 0, 255),
        lambda x: torch.fake_quantize_per_channel_affine(x, STEPS, ZEROS + 1, 1, 0, 255),
        lambda x: torch.fake_quantize_per_channel_affine(x, STEPS, ZEROS, 1, 5, 2),
    ],
    ids=["zero point", "levels", "integers", "axis", "channels", "a channel's zero point", "a channel's levels"],
)
def test_what_eager_refuses(call):
    x = numbers(torch.float32, "rows")
    with pytest.raises(Exception) as eager:
        call(x)
    with pytest.raises(type(eager.value)) as ours:
        compile_api.compile(lambda x: call(x))(x)
    assert str(ours.value) == str(eager.value)


def observed(kind: str) -> nn.Module:
    if kind == "weights":
        return FusedMovingAvgObsFakeQuantize(
            observer=MovingAveragePerChannelMinMaxObserver, quant_min=-128, quant_max=127, dtype=torch.qint8,
            qscheme=torch.per_channel_symmetric, ch_axis=0,
        )  # fmt: skip
    cls = FakeQuantize if kind == "apart" else FusedMovingAvgObsFakeQuantize
    return cls(observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=255)


def same_training(eager: nn.Module, compiled: nn.Module, inputs: list[torch.Tensor]) -> None:
    for x in inputs:
        results = []
        for model in (eager, compiled):
            model.zero_grad()
            y = model(x)
            y.square().sum().backward()
            results.append(y.detach())
        torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)
        for ours, theirs in zip(compiled.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4)
        for (name, ours), theirs in zip(compiled.named_buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize("kind", ["joined", "apart", "weights"])
def test_observers_are_written(kind):
    torch.manual_seed(0)
    eager = nn.Sequential(observed(kind), nn.Flatten(), nn.Linear(120, 3))
    compiled = compile_api.compile(copy.deepcopy(eager))
    same_training(eager, compiled, [torch.randn(3, 4, 5, 6) * k for k in (1, 3, 1, 2)])
    report = compiled.report()
    if kind == "joined":
        assert not report.breaks and len(report.graphs) == 3, report


def test_a_prepared_model():
    """Weights by channels, activations by observers, normalisations folded: what ``prepare_qat`` makes of a model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 2, 3))
    model.qconfig = get_default_qat_qconfig("fbgemm")
    eager = prepare_qat(model.train())
    compiled = compile_api.compile(copy.deepcopy(eager))
    same_training(eager, compiled, [torch.randn(3, 4, 5, 6) for _ in range(4)])
    report = compiled.report()
    assert [brk.reason for brk in report.breaks if "first call of an observer" not in brk.reason] == []
    assert max(graph.nodes for graph in report.graphs if graph.dialect == "torch") >= 12, report  # from the second call on
