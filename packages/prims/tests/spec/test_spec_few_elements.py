"""Strides of results where dimensions have one element or none, in which eager's ways to make a result differ."""

from __future__ import annotations

import pytest
import torch

from prims.spec import infer, spec_of
from prims.spec.rules import elementwise

aten = torch.ops.aten

#: Shapes and strides: transposed, with gaps, of one element along a dimension with any stride, of none.
LAYOUTS = (
    ((2, 3), (1, 2)), ((2, 3), (6, 2)), ((3,), (2,)), ((1,), (5,)), ((1, 1), (4, 9)), ((1, 3), (1, 1)), ((1, 3), (7, 1)),
    ((3, 1), (1, 5)), ((3, 1), (1, 1)), ((20, 1), (1, 20)), ((2, 1, 3), (1, 9, 2)), ((2, 1, 3), (1, 2, 2)),
    ((1, 2, 1, 3), (6, 1, 6, 2)), ((1, 2, 3, 4), (24, 1, 8, 2)), ((0, 3), (1, 1)), ((3, 0), (1, 3)), ((0, 0), (1, 1)),
    ((2, 0, 3), (1, 6, 2)), ((2, 3, 0), (1, 2, 6)), ((1, 0, 1), (3, 3, 1)),
)  # fmt: skip
TYPES = (torch.float32, torch.int32, torch.bool, torch.complex64)
UNARY = sorted(
    {*"isinf isfinite abs log_sigmoid frexp".split()}.union(
        *(text.split() for table in (elementwise.UNARY, elementwise.MADE_ALIKE) for text in table.values())
    )
)
NUMBERS = [
    name.rpartition(".")[::2]
    for name in (
        "add.Tensor sub.Tensor mul.Tensor div.Tensor fmod.Scalar remainder.Scalar gt.Scalar eq.Scalar bitwise_and.Scalar "
        "floor_divide.default xlogy.Scalar_Other copysign.Scalar rsub.Scalar __lshift__.Scalar pow.Tensor_Scalar "
        "clamp.default"
    ).split()
]


def laid_out(dtype):
    for shape, strides in LAYOUTS:
        yield torch.empty_strided(shape, strides, dtype=dtype).fill_(1)


def compared(op, x, *args):
    """Whether eager takes the call; then the metadata are those of its results."""
    try:
        made = op(x, *args)
    except (RuntimeError, NotImplementedError, TypeError):
        return False
    specs = infer(op, (spec_of(x), *args))
    for result, spec in zip(*((v if isinstance(v, tuple) else (v,)) for v in (made, specs)), strict=True):
        if result is not x:
            assert (result.shape, result.stride(), result.dtype) == (spec.shape, spec.strides, spec.dtype), (op, x.shape, x.stride())
    return True


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_of_one_tensor(dtype):
    names = [n for n in UNARY if sum(compared(getattr(getattr(aten, n), overload(n)), x) for x in laid_out(dtype))]
    assert len(names) > 8


def overload(name):
    return "Tensor" if name == "frexp" else "default"


@pytest.mark.parametrize("name,variant", NUMBERS, ids=lambda v: v)
def test_of_a_tensor_and_a_number(name, variant):
    op = getattr(getattr(aten, name), variant)
    calls = [compared(op, x, 2) for dtype in TYPES[:2] for x in laid_out(dtype)]
    assert sum(calls) >= len(LAYOUTS)


@pytest.mark.parametrize("before", [(1,), (1, 1), (2,), (1, 2), (2, 1)], ids=str)
def test_expanded(before):
    """A new dimension of one element has the stride that it would have had."""
    for x in laid_out(torch.float32):
        assert compared(aten.expand.default, x, [*before, *x.shape])
    assert compared(aten.expand.default, torch.tensor(1.0), list(before))
