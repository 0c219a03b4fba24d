"""Types that eager's kernels refuse are refused by the metadata of pointwise operators, with eager's error."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch

from prims.spec import TensorSpec, infer

TYPES = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32, torch.complex64]
NAMES = """neg abs floor ceil round frac sign bitwise_not relu silu mish elu gelu softplus hardtanh hardswish leaky_relu erf
erfinv lgamma digamma i0 logit deg2rad signbit isposinf angle reciprocal sin sinc sqrt exp2 logical_not
maximum minimum fmax fmin hypot nextafter gcd lcm heaviside atan2 logaddexp igamma copysign.Tensor xlogy.Tensor
remainder.Tensor fmod.Tensor bitwise_and.Tensor bitwise_left_shift.Tensor lt.Tensor eq.Tensor sub.Tensor add.Tensor
mul.Tensor div.Tensor pow.Tensor_Tensor floor_divide""".split()


@pytest.mark.parametrize("name", NAMES)
def test_what_eager_refuses(name: str) -> None:
    base, _, overload = name.partition(".")
    func = getattr(getattr(torch.ops.aten, base), overload or "default")
    count = sum(isinstance(a.type, torch.TensorType) for a in func._schema.arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for types in itertools.product(TYPES, repeat=count):
            wanted = found = None
            try:
                func(*(torch.ones(2, 3, dtype=dtype) for dtype in types))
            except (RuntimeError, NotImplementedError) as error:
                wanted = str(error)
            for _ in range(2):
                try:
                    infer(func, tuple(TensorSpec((2, 3), dtype, torch.device("cpu")) for dtype in types))
                except (RuntimeError, NotImplementedError) as error:
                    found = str(error)
                assert found == wanted, types


def test_a_gpu_may_take_other_types() -> None:
    """Nothing runs on it, and there need be none."""
    spec = TensorSpec((2, 3), torch.float16, torch.device("cuda"))
    assert infer(torch.ops.aten.special_airy_ai.default, (spec,)).dtype == torch.float16
