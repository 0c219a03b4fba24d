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
    specs = infer(op, (spec_of(x), *(spec_of(v) if isinstance(v, torch.Tensor) else v for v in args)))
    for result, spec in zip(*((v if isinstance(v, tuple) else (v,)) for v in (made, specs)), strict=True):
        if result is not x and result is not None and spec is not None:  # gradients nobody wants may be made or not
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


IMAGES = (
    ((1, 3, 1, 1), (3, 1, 3, 3)), ((1, 3, 1, 1), (3, 1, 1, 1)), ((2, 1, 3, 4), (12, 1, 4, 1)), ((2, 1, 3, 4), (12, 12, 4, 1)),
    ((2, 3, 1, 1), (3, 1, 3, 3)), ((2, 3, 1, 4), (12, 1, 12, 3)), ((2, 3, 4, 1), (12, 1, 3, 7)), ((2, 3, 4, 4), (96, 1, 24, 6)),
    ((2, 3, 1, 1, 1), (3, 1, 3, 3, 3)), ((2, 3, 4, 4), (48, 16, 4, 1)), ((2, 4, 3), (12, 1, 4)), ((2, 3), (1, 2)),
)  # fmt: skip


@pytest.mark.parametrize("training", [False, True])
def test_batch_norms_of_images_in_two_formats_at_once(training):
    for shape, strides in IMAGES:
        x = torch.empty_strided(shape, strides).normal_()
        if training and x.numel() == x.shape[1]:
            continue
        zeros, ones = torch.zeros(shape[1]), torch.ones(shape[1])
        assert compared(aten.native_batch_norm.default, x, ones, zeros, zeros, ones, training, 0.1, 1e-5)
        _, mean, scale = aten.native_batch_norm(x, ones, zeros, zeros.clone(), ones.clone(), training, 0.1, 1e-5)
        kept = (mean, scale) if training else (None, None)
        for grad in (torch.randn(shape), x.clone(), torch.empty_strided(shape, strides).normal_()):
            given = (x, ones, zeros, ones, *kept, training, 1e-5, [True, True, True])
            assert compared(aten.native_batch_norm_backward.default, grad, *given)


@pytest.mark.parametrize("shape", [(2, 3, 2, 0), (2, 0, 4, 5), (0, 3, 2, 2), (2, 3, 0, 4), (2, 3, 0, 2, 2)], ids=str)
def test_memory_formats_of_nothing(shape):
    last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    for op in (aten.clone.default, aten.empty_like.default, aten._to_copy.default):
        made = op(torch.empty(shape), memory_format=last)
        assert made.stride() == infer(op, (spec_of(torch.empty(shape)),), {"memory_format": last}).strides
    laid = torch.empty(shape, memory_format=last)
    for op in (aten.relu.default, aten.neg.default, aten.isinf.default, aten.clone.default):
        assert compared(op, laid)


SEQUENCES = (
    ((2, 4, 3), (12, 1, 4)), ((2, 4, 3), (12, 3, 1)), ((2, 4, 1), (4, 1, 4)), ((1, 4, 1), (1, 1, 1)), ((2, 1, 3), (3, 1, 1)),
    ((2, 1, 3), (3, 7, 1)), ((3, 2, 5), (20, 10, 2)), ((1, 1, 4), (4, 4, 1)),
)  # fmt: skip


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("channels", [1, 2, 4])
@pytest.mark.parametrize("kernel", [1, 3])
def test_convolutions_along_one_dimension(kernel, channels, transposed):
    taken = 0
    for shape, strides in SEQUENCES:
        x = torch.empty_strided(shape, strides).normal_()
        rows = torch.randn(*((shape[1], channels, kernel) if transposed else (channels, shape[1], kernel)))
        for weight in (rows, rows.mT.contiguous().mT):
            settings = ([1], [1], [1], transposed, [0], 1)
            if not compared(aten.convolution.default, x, weight, None, *settings):
                continue
            taken += 1
            grad = aten.convolution.default(x, weight, None, *settings)
            # Which library takes kernels of one element, and so the stride of that, depends on the number of threads.
            wanted = [True, kernel > 1, True]
            assert compared(aten.convolution_backward.default, grad, x, weight, [channels], *settings, wanted)
    assert taken >= len(SEQUENCES)


@pytest.mark.parametrize("size", [0, 1, 3, 6])
def test_positions_of_a_given_number(size):
    for x in (torch.tensor(1.0), torch.ones(3), torch.ones(2, 2), torch.ones(0, 2)):
        result = aten.nonzero_static(x, size=size)
        spec = infer(aten.nonzero_static.default, (spec_of(x),), {"size": size})
        assert (result.shape, result.stride(), result.dtype) == (spec.shape, spec.strides, spec.dtype)
