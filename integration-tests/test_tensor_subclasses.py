"""Tensor subclasses, with ``__torch_function__`` and with ``__torch_dispatch__``, through the whole stack: the work is done
in generated kernels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import return_and_correct_aliasing

from compile_api import compile as compile_model


class Units(torch.Tensor):
    """A tensor with a unit, which operators carry on."""

    @staticmethod
    def __new__(cls, data, unit="m"):
        self = data.as_subclass(cls)
        self.unit = unit
        return self

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs)
        if isinstance(result, cls) and not hasattr(result, "unit"):
            result.unit = next((a.unit for a in args if isinstance(a, cls)), "?")
        return result


class Doubled(nn.Parameter):
    """A weight that is stored as half of itself."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            if func is F.linear:
                args = [a.as_subclass(torch.Tensor) * 2 if isinstance(a, cls) else a for a in args]
            return func(*args, **(kwargs or {}))


def test_a_subclass_is_carried_on():
    def fn(x, y):
        z = torch.tanh(x * y + 1)
        return z / z.sum(-1, keepdim=True), z.unit

    compiled = compile_model(fn, fullgraph=True)
    for unit in ("m", "s", "m"):
        x, y = Units(torch.rand(8, 16), unit), torch.rand(8, 16)
        (got, got_unit), (expected, expected_unit) = compiled(x, y), fn(x, y)
        assert type(got) is type(expected) is Units and got.unit == expected.unit == got_unit == expected_unit == unit
        torch.testing.assert_close(got.as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor))
    assert compiled.report().kernels and not compiled.report().fallbacks


@pytest.mark.parametrize("training", [True, False])
def test_a_weight_of_a_class(training):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    for layer in (model[0], model[2]):
        layer.weight = Doubled(layer.weight.data)
    compiled = compile_model(model, fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.rand(5, 8)
        with torch.set_grad_enabled(training):
            got, expected = compiled(x), model(x)
        torch.testing.assert_close(got, expected)
        if training:
            grads = torch.autograd.grad(got.square().mean(), list(model.parameters()))
            wanted = torch.autograd.grad(expected.square().mean(), list(model.parameters()))
            for a, b, p in zip(grads, wanted, model.parameters(), strict=True):
                torch.testing.assert_close(a.as_subclass(torch.Tensor), b.as_subclass(torch.Tensor))
                p.grad = a.as_subclass(torch.Tensor)
            optimizer.step()
    assert compiled.report().kernels and not compiled.report().fallbacks


class Int8(torch.Tensor):
    """A weight in int8 with a scale per row: ``linear`` multiplies by what it is dequantised to."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, data, scale, dtype):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=dtype, device=data.device)

    def __init__(self, data, scale, dtype):
        self.rows, self.scale = data, scale

    @classmethod
    def of(cls, weight):
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale, weight.dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].rows, args[0].scale, args[0].dtype)
        if func is torch.ops.aten.t.default:
            return cls(args[0].rows.t(), args[0].scale.t(), args[0].dtype)
        plain = [arg.rows.to(arg.dtype) * arg.scale if isinstance(arg, cls) else arg for arg in args]
        return func(*plain, **(kwargs or {}))


class Pair(torch.Tensor):
    """Two tensors that every operator is done to."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, a, b):
        return torch.Tensor._make_wrapper_subclass(cls, a.shape, strides=a.stride(), dtype=a.dtype, device=a.device)

    def __init__(self, a, b):
        self.a, self.b = a, b

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        one, other = ([getattr(arg, name) if isinstance(arg, cls) else arg for arg in args] for name in "ab")
        out = cls(func(*one, **(kwargs or {})), func(*other, **(kwargs or {})))
        return return_and_correct_aliasing(func, args, kwargs or {}, out)


@pytest.mark.parametrize("inference", [True, False])
def test_a_quantised_weight_that_dispatches(inference):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)).eval()
    for layer in (model[0], model[2]):
        layer.weight = nn.Parameter(Int8.of(layer.weight.data), requires_grad=False)
    compiled = compile_model(model, fullgraph=True)
    with torch.inference_mode(inference), torch.no_grad():
        for rows in (4, 4, 5, 9):
            x = torch.rand(2, rows, 16)
            torch.testing.assert_close(compiled(x), model(x))
    report = compiled.report()
    assert report.kernels and not report.fallbacks and not report.breaks
    assert {extern.name for extern in report.externs} <= {"aten.mm.default", "aten.addmm.default"}
    assert any("convert" in kernel.ops for kernel in report.kernels)
    assert len([graph for graph in report.graphs if graph.dialect == "torch"]) <= 2


def test_training_around_a_quantised_weight():
    """What autograd records of the class runs eagerly; gradients are eager's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8), nn.Tanh())
    model[2].weight = nn.Parameter(Int8.of(model[2].weight.data), requires_grad=False)
    compiled = compile_model(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    for _ in range(3):
        x = torch.rand(5, 16)
        got, expected = compiled(x), model(x)
        torch.testing.assert_close(got, expected)
        for a, b in zip(torch.autograd.grad(got.sum(), trained), torch.autograd.grad(expected.sum(), trained), strict=True):
            torch.testing.assert_close(a, b)
    report = compiled.report()
    assert report.kernels and any("gradient" in found.reason for found in report.breaks)


def test_instances_that_are_written_made_and_returned():
    def fn(x, y):
        x.mul_(2).add_(y)
        return (x * y).sin(), Pair(x.a.cos(), y.b), x

    compiled = compile_model(fn, fullgraph=True)
    for rows in (4, 4, 6, 7):
        parts = [torch.rand(rows, 8) for _ in range(4)]
        copies = [part.clone() for part in parts]
        x, y = Pair(*copies[:2]), Pair(*copies[2:])
        got, expected = compiled(Pair(*parts[:2]), Pair(*parts[2:])), fn(x, y)
        for a, b in zip(got, expected, strict=True):
            assert type(a) is type(b) is Pair and a.shape == b.shape
            torch.testing.assert_close((a.a, a.b), (b.a, b.b))
        torch.testing.assert_close(parts, copies)
    assert compiled.report().kernels and not compiled.report().fallbacks
