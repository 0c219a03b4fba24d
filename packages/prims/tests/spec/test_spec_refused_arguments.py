"""Numbers that eager refuses as arguments (none, negative, out of range) are refused by the metadata."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from prims.errors import QuintetError
from prims.spec import AbstractMode, TensorSpec, abstract, infer
from prims.spec.tensorspec import spec_of

#: An overload, the shape of its operand and what follows it: shapes stand for further tensors.
REFUSED: list[tuple[str, tuple[int, ...], tuple[Any, ...]]] = [
    ("split.Tensor", (3,), (0,)), ("split.Tensor", (3,), (-1,)), ("split.Tensor", (), (1,)),
    ("unsafe_split.Tensor", (3,), (0,)), ("unsafe_split.Tensor", (3,), (-1,)),
    ("unfold.default", (), (0, 1, 0)), ("unfold.default", (), (0, 1, -1)), ("unfold.default", (), (0, 2, 1)),
    ("as_strided.default", (3,), ([1], [-1])), ("as_strided.default", (3,), ([1], [1], -1)),
    ("constant_pad_nd.default", (2, 3), ([1, 2, 1],)), ("renorm.default", (2, 3), (0.0, 1, 0.5)),
    ("renorm.default", (2, 3), (-1.0, 1, 0.5)), ("renorm.default", (2, 3), (1.0, 1, -0.5)),
    ("im2col.default", (0, 1, 5, 5), ([0, 0], [1, 1], [0, 0], [1, 1])),
    ("im2col.default", (1, 1, 5, 5), ([2, 2], [0, 1], [0, 0], [1, 1])),
    ("im2col.default", (1, 1, 5, 5), ([2, 2], [1, 1], [-1, 0], [1, 1])),
    ("im2col.default", (1, 1, 5, 5), ([2, 2], [1, 1], [0, 0], [0, 1])),
    ("col2im.default", (1, 4, 16), ([5, 5], [2, 2], [0, 1], [0, 0], [1, 1])),
    ("upsample_nearest1d.default", (1, 1, 4), ([0],)), ("upsample_nearest2d.default", (1, 1, 4, 4), ([3, -1],)),
    ("_upsample_nearest_exact1d.default", (1, 1, 4), ([0],)), ("upsample_linear1d.default", (1, 1, 4), ([0], False)),
    ("upsample_bilinear2d.default", (1, 1, 4, 4), ([0, 3], True)),
    ("upsample_bicubic2d.default", (1, 1, 0, 4), ([3, 3], True)),
    ("upsample_trilinear3d.default", (1, 1, 4, 4, 4), ([0, 3, 3], False)),
]  # fmt: skip
TAKEN: list[tuple[str, tuple[int, ...], tuple[Any, ...]]] = [
    ("split.Tensor", (0,), (0,)), ("split.Tensor", (3,), (5,)), ("unfold.default", (), (0, 1, 2)),
    ("unfold.default", (), (0, 0, 1)), ("im2col.default", (2, 1, 5, 5), ([2, 2], [1, 1], [1, 0], [2, 1])),
    ("upsample_nearest1d.default", (0, 1, 4), ([2],)), ("as_strided.default", (3,), ([2, 2], [0, 1])),
]  # fmt: skip


def asked(row: tuple[str, tuple[int, ...], tuple[Any, ...]]) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
    name, shape, rest = row
    base, _, overload = name.partition(".")
    func = getattr(getattr(torch.ops.aten, base), overload)
    return func, (torch.ones(shape), *rest), (TensorSpec(shape, torch.float32, torch.device("cpu")), *rest)


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_what_eager_refuses(row: tuple[str, tuple[int, ...], tuple[Any, ...]]) -> None:
    func, args, specs = asked(row)
    with pytest.raises(RuntimeError):
        func(*args)
    with pytest.raises((RuntimeError, QuintetError)):
        infer(func, specs)


@pytest.mark.parametrize("row", TAKEN, ids=str)
def test_what_eager_takes(row: tuple[str, tuple[int, ...], tuple[Any, ...]]) -> None:
    func, args, specs = asked(row)
    want, got = func(*args), infer(func, specs)
    for a, b in zip(want, got, strict=True) if isinstance(got, list) else [(want, got)]:
        assert spec_of(a).shape == b.shape


def test_other_refusals() -> None:
    x, target = (TensorSpec((2,), torch.float32, torch.device("cpu")),) * 2
    with pytest.raises(RuntimeError, match="beta"):
        infer(torch.ops.aten.smooth_l1_loss.default, (x, target, 1, -1.0))
    index = TensorSpec((1,), torch.int64, torch.device("cpu"))
    with pytest.raises(IndexError):
        infer(torch.ops.aten.index_fill.int_Scalar, (TensorSpec((), torch.float32, torch.device("cpu")), 99, index, 1.0))


IN_PLACE = {
    "add_": lambda x, y: x.add_(y),
    "mul_": lambda x, y: x.mul_(y),
    "a view": lambda x, y: x[:1].sub_(y),
    "copy_": lambda x, y: x.copy_(y),
    "addcmul_": lambda x, y: x.addcmul_(y, y),
    "lerp_": lambda x, y: x.lerp_(y, 0.5),
    "clamp_": lambda x, y: x.clamp_(min=y),
    "eq_": lambda x, y: x.eq_(y),
    "floor_divide_": lambda x, y: x.floor_divide_(y),
    "where": lambda x, y: x.where(y > 0, y),
}
SHAPES = [((5, 4), (3, 3)), ((5, 1), (5, 4)), ((4,), (5, 4)), ((2, 1, 3), (4, 2, 1)), ((0, 4), (3, 4)), ((), (2,)), ((5, 4), (1, 4))]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("name", IN_PLACE)
def test_what_is_written_in_place_is_as_large_as_its_operands(name, shapes):
    """The errors are eager's, their words too; of several dimensions that do not match the last is named."""

    def outcome(convert):
        x, y = (convert(torch.ones(shape)) for shape in shapes)
        try:
            return IN_PLACE[name](x, y).shape
        except (RuntimeError, IndexError) as error:
            return type(error), str(error)

    wanted = outcome(lambda t: t)
    with AbstractMode():
        assert outcome(abstract) == wanted
