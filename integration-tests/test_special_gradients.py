"""Gradients at zeros of either sign, infinities, NaN, denormals and numbers whose squares overflow: of the same kind as
eager's (NaN or not, finite or not), and equal to a few roundings. A gradient that hides a NaN hides a diverged run.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import compile_api

SPECIAL = [
    math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, 3.0, -3.0, 6.0, 88.9, -104.0, 1e-40, -1e-30, 1e30,
    -1e30, 3.4e38, 0.2, 0.8, 1e-3, 16777217.0,
]  # fmt: skip
REDUCTIONS = ("none", "mean", "sum")


def one_by_one(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(SPECIAL * 4, dtype=torch.float64)[:96].to(dtype)


def in_pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.tensor(SPECIAL, dtype=torch.float64).to(dtype)
    return values.repeat_interleave(len(values)), values.repeat(len(values))


def gradients(function: Callable[..., Any], given: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    given = tuple(x.clone().requires_grad_() for x in given)
    result = function(*given)
    # Dense ones: eager reads those that an expanded number makes element by element, as its tails.
    return [result.detach(), *torch.autograd.grad(result, given, torch.ones_like(result))]


def agree(function: Callable[..., Any], given: tuple[torch.Tensor, ...]) -> None:
    compiled = compile_api.compile(function, options={"strict": True})
    for k, (ours, eager) in enumerate(zip(gradients(compiled, given), gradients(function, given), strict=True)):
        kinds = (ours.isnan() != eager.isnan()) | (ours.isinf() != eager.isinf())
        rtol = 2e-2 if eager.dtype == torch.bfloat16 else 1e-4
        far = ~torch.isclose(ours.double(), eager.double(), rtol=rtol, atol=1e-6, equal_nan=True)
        bad = (kinds | far).flatten()
        at = int(bad.nonzero()[0]) if bad.any() else 0
        told = [x[at].item() for x in given] if eager.shape == given[0].shape else "the whole"
        assert not bad.any(), f"result {k} of {told}: {ours.flatten()[at].item()} instead of {eager.flatten()[at].item()}"
    assert compiled.report().kernels and not compiled.report().fallbacks


LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth l1": F.smooth_l1_loss,
    "smooth l1, beta 2.5": functools.partial(F.smooth_l1_loss, beta=2.5),
    "smooth l1, beta 0": functools.partial(F.smooth_l1_loss, beta=0.0),
    "huber": F.huber_loss,
    "huber, delta 0.5": functools.partial(F.huber_loss, delta=0.5),
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str, dtype: torch.dtype, reduction: str) -> None:
    agree(lambda x, y: LOSSES[name](x, y, reduction=reduction), in_pairs(dtype))


@pytest.mark.parametrize("eps", [None, -1.0, 0.0, 0.1, 0.6, 1.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_logits(dtype: torch.dtype, eps: float | None) -> None:
    """Cut off at eps and 1 - eps, where the first may be the greater one; by a negative eps nowhere."""
    agree(lambda x: torch.logit(x, eps), (one_by_one(dtype),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_was_dropped_of_no_number_is_none(dtype: torch.dtype) -> None:
    def program(gradient: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.native_dropout_backward(gradient, mask, 2.0)

    compiled = compile_api.compile(program, options={"strict": True})
    gradient = one_by_one(dtype)
    mask = torch.arange(len(gradient)) % 5 > 1
    torch.testing.assert_close(compiled(gradient, mask), program(gradient, mask), equal_nan=True)


ACTIVATIONS: dict[str, Callable[..., torch.Tensor]] = {
    name: getattr(F, name)
    for name in """relu relu6 leaky_relu elu celu selu silu mish softplus logsigmoid hardsigmoid hardswish
    hardshrink softshrink softsign tanhshrink""".split()
} | {
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "erf": torch.erf, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "log": torch.log, "log1p": torch.log1p, "exp": torch.exp, "expm1": torch.expm1, "abs": torch.abs,
    "reciprocal": torch.reciprocal, "square": torch.square, "atan": torch.atan, "asinh": torch.asinh,
    "nan to numbers": lambda x: torch.nan_to_num(x, 0.5, 7.0, -7.0), "clamp": lambda x: x.clamp(-1, 1),
    "power": lambda x: x**3, "root": lambda x: x**0.5, "where": lambda x: torch.where(x > 0, x, x * x),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str, dtype: torch.dtype) -> None:
    agree(ACTIVATIONS[name], (one_by_one(dtype),))


PAIRS: dict[str, Callable[..., torch.Tensor]] = {
    "product": torch.mul, "quotient": torch.div, "maximum": torch.maximum, "minimum": torch.minimum, "hypot": torch.hypot,
    "atan2": torch.atan2, "power": lambda x, y: x.abs() ** y.clamp(-3, 3), "xlogy": torch.xlogy,
    "logaddexp": torch.logaddexp, "lerp": lambda x, y: torch.lerp(x, y, 0.25), "addcmul": lambda x, y: torch.addcmul(x, x, y),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_pairs(name: str, dtype: torch.dtype) -> None:
    agree(PAIRS[name], in_pairs(dtype))
