"""Types that eager's kernels refuse are refused by the metadata of pointwise operators, with eager's error."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch

from prims.errors import QuintetError
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


MOVED: dict[str, tuple[int | tuple[int, ...], ...]] = {
    **{f"{pad}_pad{n}d": ((1, 2, *[3] * n), (1,) * 2 * n) for n in (1, 2, 3) for pad in ("reflection", "replication")},
    **{f"{name}{n}d": ((1, 2, *[3] * n), (5,) * n) for n in (1, 2, 3)
       for name in ("upsample_nearest", "_upsample_nearest_exact")},
    "argmax": ((2, 3),), "argmin": ((2, 3), 1), "trace": ((2, 3),), "avg_pool3d": ((1, 2, 4, 4, 4), (2, 2, 2)),
    "im2col": ((1, 2, 3, 3), (2, 2), (1, 1), (0, 0), (1, 1)),
    "col2im": ((1, 8, 4), (3, 3), (2, 2), (1, 1), (0, 0), (1, 1)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [*TYPES, torch.int8, torch.int32, torch.bfloat16])
def test_what_eager_refuses_to_move(dtype: torch.dtype) -> None:
    """Operators that are no pointwise ones, and that our own code would compute in any type."""
    for name, (shape, *rest) in MOVED.items():
        func = getattr(torch.ops.aten, name).default
        args = [list(arg) if isinstance(arg, tuple) else arg for arg in rest]
        wanted = found = None
        try:
            func(torch.ones(shape, dtype=dtype), *args)
        except (RuntimeError, NotImplementedError) as error:
            wanted = str(error)
        for _ in range(2):
            try:
                infer(func, (TensorSpec(shape, dtype, torch.device("cpu")), *args))
            except (RuntimeError, NotImplementedError) as error:
                found = str(error)
            assert found == wanted, name


INDEXED = {
    "gather.default": lambda x, i: (x, 0, i), "scatter.src": lambda x, i: (x, 0, i, x),
    "scatter.value": lambda x, i: (x, 0, i, 2.0), "scatter_add.default": lambda x, i: (x, 0, i, x),
    "scatter_reduce.two": lambda x, i: (x, 0, i, x, "amax"), "index_copy.default": lambda x, i: (x, 0, i[0], x),
    "index_add.default": lambda x, i: (x, 0, i[0], x), "index_fill.int_Scalar": lambda x, i: (x, 0, i[0], 2.0),
    "index_select.default": lambda x, i: (x, 0, i[0]), "take.default": lambda x, i: (x, i),
    "put.default": lambda x, i: (x, i, x), "index_reduce.default": lambda x, i: (x, 0, i[0], x, "prod"),
    "embedding.default": lambda x, i: (x, i),
}  # fmt: skip


@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32])
def test_indices_that_eager_refuses(name: str, dtype: torch.dtype) -> None:
    base, _, overload = name.partition(".")
    func = getattr(getattr(torch.ops.aten, base), overload)
    args = INDEXED[name](torch.ones(2, 2), torch.zeros(2, 2, dtype=dtype))
    specs = tuple(
        TensorSpec(tuple(a.shape), a.dtype, a.device) if isinstance(a, torch.Tensor) else a for a in args
    )
    try:
        func(*args)
    except (RuntimeError, IndexError):
        with pytest.raises((RuntimeError, QuintetError)):
            infer(func, specs)
    else:
        infer(func, specs)


def test_a_gpu_may_take_other_types() -> None:
    """Nothing runs on it, and there need be none."""
    spec = TensorSpec((2, 3), torch.float16, torch.device("cuda"))
    assert infer(torch.ops.aten.special_airy_ai.default, (spec,)).dtype == torch.float16


def _refused(func, args) -> bool:
    try:
        func(*args)
    except (RuntimeError, IndexError):
        return True
    return False


aten = torch.ops.aten
#: Operators that are told which class or which element is right, and their operands, made by shape (and type).
TOLD = {
    "nll_loss": (aten.nll_loss_forward.default, lambda of, i: (of((2, 3)), of((2,), i), None, 1, -100)),
    "nll_loss2d": (aten.nll_loss2d_forward.default, lambda of, i: (of((2, 3, 1, 1)), of((2, 1, 1), i), None, 1, -100)),
    "index": (aten.index.Tensor, lambda of, i: (of((2, 3)), [of((2,), i)])),
    "index_put": (aten.index_put.default, lambda of, i: (of((2, 3)), [of((2,), i)], of(()))),
    "index_put at one": (aten.index_put.default, lambda of, i: (of((2, 3)), [of((1,), i)], of(()))),
    "index_put at two": (aten.index_put.default, lambda of, i: (of((2, 2)), [of((2,), i), of((2,), i)], of(()))),
    "index_put at rows": (aten.index_put.default, lambda of, i: (of((2, 3)), [of((2, 3), i)], of(()))),
    "index_select": (aten.index_select.default, lambda of, i: (of((2, 3)), 0, of((2,), i))),
    "embedding": (aten.embedding.default, lambda of, i: (of((2, 3)), of((2,), i))),
    "gather": (aten.gather.default, lambda of, i: (of((2, 3)), 0, of((2, 3), i))),
    "scatter": (aten.scatter.src, lambda of, i: (of((2, 3)), 0, of((2, 3), i), of((2, 3)))),
    "index_add": (aten.index_add.default, lambda of, i: (of((2, 3)), 0, of((2,), i), of((2, 3)))),
    "take": (aten.take.default, lambda of, i: (of((2, 3)), of((2,), i))),
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.float32], ids=str
)
def test_types_of_targets_and_places(name: str, dtype: torch.dtype) -> None:
    func, args = TOLD[name]
    if name == "index" and dtype in (torch.bool, torch.uint8):
        pytest.skip("the sizes of a mask's result are in its data: it is asked about tensors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = _refused(func, args(lambda shape, dtype=torch.float32: torch.zeros(shape, dtype=dtype), dtype))
    cpu = torch.device("cpu")
    given = args(lambda shape, dtype=torch.float32: TensorSpec(shape, dtype, cpu), dtype)
    assert _refused(lambda *some: infer(func, some), given) == wanted
