"""Tensor subclasses with ``__torch_function__`` through the whole stack: the work is done in generated kernels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

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
