"""Operands of two types are computed in their common type: a number without dimensions, of a wider type, is rounded to it
or wraps around in it, as in eager, except where eager's kernels take such a number as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import compile_api

NAMES = """logical_and logical_or logical_xor eq ne lt le gt ge add sub mul maximum minimum fmod remainder floor_divide
true_divide bitwise_and bitwise_or bitwise_xor bitwise_left_shift copysign atan2 hypot gcd lcm heaviside fmax xlogy
nextafter logaddexp isclose rsub ldexp float_power isin pow""".split()
CHOICE = torch.tensor([True, False])
OPERATORS: dict[str, Callable[[Any, Any], torch.Tensor]] = {name: getattr(torch, name) for name in NAMES} | {
    "where": lambda a, b: torch.where(CHOICE, a, b),
    "addcmul": lambda a, b: torch.addcmul(a, a, b),
    "addcdiv": lambda a, b: torch.addcdiv(a, b, a + 1),
    "lerp": lambda a, b: torch.lerp(a, a + 1, b),
    "clamp": lambda a, b: torch.clamp(a, min=b),
    "div floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "div trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "masked_fill": lambda a, b: a.masked_fill(CHOICE, b),
    "add_": lambda a, b: a.clone().add_(b),
    "mul_": lambda a, b: a.clone().mul_(b),
    "logical_and_": lambda a, b: a.clone().logical_and_(b),
    "logical_xor in a branch": lambda a, b: torch.where(torch.logical_xor(a, b), 1, 2),
}


def whole(dtype, *numbers):
    return torch.tensor(numbers, dtype=dtype)


PAIRS = [
    (whole(torch.int8, 0, 5), torch.tensor(-1090519040, dtype=torch.int32)),
    (whole(torch.int8, 0, 5), torch.tensor(300)),
    (whole(torch.uint8, 0, 5), torch.tensor(256)),
    (whole(torch.uint8, 0, 44), torch.tensor(-1, dtype=torch.int16)),
    (torch.tensor([1.0, 0.0]), torch.tensor(1e-50, dtype=torch.float64)),
    (torch.tensor([1.0, 0.0]), torch.tensor(1e300, dtype=torch.float64)),
    (torch.tensor([1.0, 0.0]).half(), torch.tensor(1e-8)),
    (torch.tensor([1.0, 0.0]).half(), torch.tensor(1e8)),
    (torch.tensor([1.0, 0.0]).bfloat16(), torch.tensor(1.001)),
    (torch.tensor([1.0, 0.0]), torch.tensor(2**30 + 1)),
    (torch.tensor([True, False]), torch.tensor(True)),
    (torch.tensor([3, 0]), torch.tensor(0.5)),
]
#: 0.0 to the power of a number that is zero in float32 only: eager's kernel keeps the exponent, ours rounds it. And a number
#: beyond the type's largest, which the call's own checks refuse where it is captured.
LEFT = {("pow", torch.float32, 1e-50), ("where", torch.float16, 1e8)}
#: Of some types, calls of PyTorch's own kernels.
LIBRARY = {"nextafter", "isin", "pow", "lerp", "gcd", "lcm"}


def accepted(name, plain):
    """The pairs of operands that eager takes, in both orders."""
    for many, one in PAIRS:
        other = one.item() if plain else one
        for operands in ((many, other), (other, many)):
            try:
                OPERATORS[name](*operands)
            except (RuntimeError, TypeError, AttributeError, OverflowError):
                continue
            if not plain or (name, many.dtype, other) not in LEFT:
                yield operands


CASES = {f"{name}-{'numbers' if plain else 'tensors'}": (name, plain) for name in OPERATORS for plain in (False, True)}
#: Some operators take tensors only.
PAIRS_OF = {case: pairs for case, (name, plain) in CASES.items() if (pairs := list(accepted(name, plain))) or not plain}


@pytest.mark.parametrize("case", PAIRS_OF)
def test_results_are_eagers(case):
    name, pairs = CASES[case][0], PAIRS_OF[case]
    assert pairs

    def program(*tensors):
        given = iter(tensors)
        fed = [[next(given) if isinstance(x, torch.Tensor) else x for x in operands] for operands in pairs]
        return [OPERATORS[name](*operands) for operands in fed]

    tensors = [x for operands in pairs for x in operands if isinstance(x, torch.Tensor)]
    compiled = compile_api.compile(program, fullgraph=True)
    for operands, found, wanted in zip(pairs, compiled(*tensors), program(*tensors), strict=True):
        assert found.dtype == wanted.dtype
        bound = 2e-6 if wanted.dtype == torch.float32 else 0
        torch.testing.assert_close(found, wanted, rtol=bound, atol=0, equal_nan=True, msg=lambda m: f"{operands}: {m}")
    assert compiled.report().kernels or name in LIBRARY
    assert name in LIBRARY or not compiled.report().fallbacks
