"""Sizes that eager refuses are refused compiled: before and after sizes are symbolic, and where nothing takes the result.

A library that is called refuses what it is given; what is generated, or not called for nobody takes it, must not forget.
"""

import pytest
import torch
import torch.nn.functional as F

import compile_api

ROW, SQUARE, TURNED = torch.ones(3, 2, 5), torch.ones(3, 2, 5, 5), torch.ones(2, 3, 3, 3)


def row(n):
    return torch.randn(1, 2, n)


def square(n):
    return torch.randn(1, 2, n, n)


def thin(n):
    return torch.randn(1, 2, n, 1)


def plain(n):
    return torch.randn(n)


def matrix(n):
    return torch.randn(n, 3)


#: What is computed, and the input by a size.
PROGRAMS = {
    "conv1d": (lambda x: F.conv1d(x, ROW), row),
    "conv1d, strided": (lambda x: F.conv1d(x, ROW, stride=2, padding=1), row),
    "conv2d": (lambda x: F.conv2d(x, SQUARE), square),
    "conv2d, dilated": (lambda x: F.conv2d(x, SQUARE[:, :, :3, :3], dilation=3), square),
    "conv2d of nothing": (lambda x: F.conv2d(x, SQUARE[:, :, :2, :2]), thin),
    "conv_transpose2d": (lambda x: F.conv_transpose2d(x, TURNED, padding=4), square),
    "conv_transpose2d, strided": (lambda x: F.conv_transpose2d(x, TURNED, padding=1, stride=2), square),
    "max_pool1d": (lambda x: F.max_pool1d(x, 5), row),
    "max_pool2d": (lambda x: F.max_pool2d(x, 5), square),
    "max_pool2d, ceil": (lambda x: F.max_pool2d(x, 5, ceil_mode=True), square),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 5), square),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 3), row),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 3), square),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 2), square),
    "unfold": (lambda x: F.unfold(x, 5), square),
    "Tensor.unfold": (lambda x: x.unfold(0, 5, 1), plain),
    "reflection": (lambda x: F.pad(x, (5, 5), mode="reflect"), row),
    "circular": (lambda x: F.pad(x, (5, 5), mode="circular"), row),
    "cropped": (lambda x: F.pad(x, (-3, -3)), row),
    "narrow": (lambda x: x.narrow(0, 2, 4), plain),
    "select": (lambda x: x[5] + 1, matrix),
    "split": (lambda x: x.split([2, 4]), plain),
    "view": (lambda x: x.view(2, -1), plain),
    "expand": (lambda x: x.expand(6), plain),
    "topk": (lambda x: x.topk(5), plain),
    "kthvalue": (lambda x: x.kthvalue(5), plain),
    "diagonal": (lambda x: torch.diagonal(x, 5), matrix),
    "matmul": (lambda x: x.t() @ torch.ones(6, 2), matrix),
    "dot": (lambda x: torch.dot(x, torch.ones(6)), plain),
    "add": (lambda x: x + torch.ones(6), plain),
    "cat": (lambda x: torch.cat([x, torch.ones(6, 3)], 1), matrix),
    "max": (lambda x: x.max(), plain),
    "argmax": (lambda x: x.argmax(0), matrix),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), row),
    "layer_norm": (lambda x: F.layer_norm(x, (6,)), plain),
    "nll_loss": (lambda x: F.nll_loss(x, torch.tensor([0, 0])), matrix),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=0.2), row),
}


def answer(fn, x):
    """What is returned, or the type of what is raised."""
    try:
        got = fn(x)
    except Exception as error:  # whatever eager raises
        return type(error)
    return list(got) if isinstance(got, tuple | list) else [got]


@pytest.mark.parametrize("taken", [True, False], ids=["taken", "unused"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_that_eager_refuses_are_refused(name, taken):
    program, make = PROGRAMS[name]
    fn = program if taken else lambda x: (program(x), x + 1)[1]
    compiled = compile_api.compile(fn)
    torch.manual_seed(0)
    ran = False
    for size in (8, 9, 6, 3, 4, 1, 2, 0):
        x = make(size)
        expected, got = answer(fn, x), answer(compiled, x)
        ran |= isinstance(expected, list)
        if isinstance(expected, list) and isinstance(got, list):
            torch.testing.assert_close(got, expected, equal_nan=True)
        else:
            assert got is expected, size
    assert any(g.nodes for g in compiled.report().graphs) or not ran
