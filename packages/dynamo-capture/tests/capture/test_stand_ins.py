"""What is captured as a function of ours: scans, grouping of tensors; and what costs no break because nothing happens."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

from dynamo_capture.frontend import optimize
from dynamo_capture.values.stand_ins import associative_scan
from prims.options import Options
from prims.report import Report


def captured(function, *args, calls=1):
    """The result of ``function`` captured whole."""
    compiled = optimize(function, lambda gm, xs: gm.forward, options=Options(fullgraph=True), report=Report())
    for _ in range(calls):
        result = compiled(*args)
    return result


def decay(left, right):
    return left[0] * right[0], right[0] * left[1] + right[1]


def recurrence(a, x):
    state, out = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = a[:, t] * state + x[:, t]
        out.append(state)
    return torch.stack(out, 1)


@pytest.mark.parametrize("size", [1, 2, 7, 8])
@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan(size, reverse):
    a, x = torch.rand(2, size, 3), torch.randn(2, size, 3)
    expected = recurrence(a.flip(1), x.flip(1)).flip(1) if reverse else recurrence(a, x)
    ours = associative_scan(decay, (a, x), 1, reverse, "generic")
    torch.testing.assert_close(ours[1], expected)
    single = associative_scan(torch.add, x, dim=1, reverse=reverse)
    torch.testing.assert_close(single, x.flip(1).cumsum(1).flip(1) if reverse else x.cumsum(1))


def test_associative_scan_of_torch_is_captured():
    scan = pytest.importorskip("torch._higher_order_ops.associative_scan").associative_scan

    def function(a, x):
        return scan(decay, (a, x), dim=1, combine_mode="generic")[1] * 2

    a, x = torch.rand(2, 5, 3), torch.randn(2, 5, 3)
    torch.testing.assert_close(captured(function, a, x), recurrence(a, x) * 2)


def test_grouping_of_tensors():
    def function(x, y, z):
        total = 0
        for (_, dtype), ((first, second), indices) in _group_tensors_by_device_and_dtype([[x, y, z], [y, x, z]], True).items():
            scale = 2 if dtype == torch.float64 else 3
            total = total + sum(v.sum() * (i + scale) for v, i in zip(first, indices, strict=True)) + second[0].sum()
        return total

    args = torch.randn(2), torch.randn(2), torch.randn(2, dtype=torch.float64)
    torch.testing.assert_close(captured(function, *args), function(*args), rtol=0, atol=0)


@pytest.mark.parametrize("dtypes", itertools.permutations([torch.float32, torch.float64, torch.float16, torch.int64], 3))
def test_groups_are_in_eagers_order(dtypes):
    """Which is that of a hash table, and decides in which order numbers are added up."""

    def function(*tensors):
        found = _group_tensors_by_device_and_dtype([[*tensors, *tensors]], True)
        return tensors[0] + 1, [str(key) for key in found], [indices for _, indices in found.values()]

    args = [torch.ones(2, dtype=dtype) for dtype in dtypes]
    assert captured(function, *args)[1:] == function(*args)[1:]


def test_clipping_of_gradients():
    def clipped(x, y):
        torch.nn.utils.clip_grad_norm_([x, y], 0.5)
        return x.grad * 2

    def leaves():
        torch.manual_seed(0)
        pair = [torch.randn(3, requires_grad=True), torch.randn(4, requires_grad=True)]
        for p in pair:
            p.grad = torch.randn_like(p)
        return pair

    with torch.no_grad():
        torch.testing.assert_close(captured(clipped, *leaves()), clipped(*leaves()))


def test_requires_grad_of_what_requires_it_already():
    """As ``gradient_checkpointing_enable()`` of transformers asks of every embedding's output."""

    def function(weight, x):
        y = (x @ weight).requires_grad_(True)
        return y.sin(), (x * 2).requires_grad_(False)

    weight, x = torch.randn(3, 2, requires_grad=True), torch.randn(4, 3)
    for ours, theirs in zip(captured(function, weight, x), function(weight, x), strict=True):
        assert ours.requires_grad == theirs.requires_grad
        torch.testing.assert_close(ours, theirs)


def test_annotations_and_properties_of_kinds():
    class Lazy(property):
        pass

    class Model:
        scale = Lazy(lambda self: self.factor + 1)

        def __init__(self):
            self.factor = 2

    model = Model()

    def function(x):
        def apply(f: Callable[[torch.Tensor], torch.Tensor], other: Callable[..., int | None] | None = None):
            return f(x)

        return apply(torch.sin) * model.scale

    x = torch.randn(3)
    torch.testing.assert_close(captured(function, x), x.sin() * 3)
