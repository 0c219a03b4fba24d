"""Tensors without elements: kernels that make them, reduce them and join them with others."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import compile_api

PROGRAMS = {
    "outer product": (lambda x: torch.outer(x.abs().flatten(), x.flatten()), (0, 0, 2, 0)),
    "repeated": (lambda x: (x[:, None] * x[None]).repeat(2, 1), (0,)),
    "reshaped": (lambda x: (x * 2).reshape(-1, 5, 2).transpose(1, 2).reshape(-1), (0, 5)),
    "sum of nothing": (lambda x: (x * 2).sum(0), (0, 5)),
    "sum of an input": (lambda x: x.sum(0), (0, 5)),
    "product of nothing": (lambda x: (x + 1).prod(1), (5, 0)),
    "mean of nothing": (lambda x: x.mean(0) + 1, (0, 5)),
    "variance of nothing": (lambda x: x.sin().var(1), (5, 0)),
    "softmax": (lambda x: torch.softmax(x, -1) * 2, (5, 0)),
    "cumulative sum": (lambda x: x.cumsum(1).sum(), (5, 0)),
    "concatenated": (lambda x: torch.cat([x, torch.ones(2, 5), x * 2]), (0, 5)),
    "padded": (lambda x: F.pad(x, (1, 1)) * 2, (5, 0)),
    "expanded": (lambda x: (x[:, None].expand(5, 3, 0) * 2).sum(2), (5, 0)),
    "matrix product": (lambda x: (x.t() @ x).relu(), (0, 5)),
    "rolled past its dimensions": (lambda x: x.roll(1, 3) + 1, (0, 5)),
    "any": (lambda x: (x > 0).any(0), (0, 5)),
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_on_tensors_without_elements_agree_with_eager(name, gradients):
    program, shape = PROGRAMS[name]
    x, y = (torch.zeros(shape, requires_grad=gradients) for _ in range(2))
    compiled = compile_api.compile(program)
    for _ in range(2):
        ours, eager = compiled(x), program(y)
        assert ours.dtype == eager.dtype and ours.requires_grad == eager.requires_grad
        assert torch.allclose(ours.detach(), eager.detach(), rtol=0, atol=0, equal_nan=True)
        if eager.requires_grad:
            ours.sum().backward()
            eager.sum().backward()
            assert torch.equal(x.grad, y.grad)
    assert not compiled.report().fallbacks


#: What takes images of so many dimensions, batch and channels left out.
OF_IMAGES = {
    "average": (1, lambda x: F.avg_pool1d(x, 2)),
    "average of two": (2, lambda x: F.avg_pool2d(x, 2, padding=1)),
    "average of three": (3, lambda x: F.avg_pool3d(x, 2)),
    "maximum": (1, lambda x: F.max_pool1d(x, 2)),
    "maximum of two": (2, lambda x: F.max_pool2d(x, 2)),
    "maximum of three": (3, lambda x: F.max_pool3d(x, 2, padding=1)),
    "power average": (1, lambda x: F.lp_pool1d(x, 2, 2)),
    "adaptive average": (2, lambda x: F.adaptive_avg_pool2d(x, 2)),
    "adaptive maximum": (2, lambda x: F.adaptive_max_pool2d(x, 2)),
    "reflected": (1, lambda x: F.pad(x, (1, 1), mode="reflect")),
    "reflected in two": (2, lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect")),
    "repeated": (2, lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate")),
    "repeated in three": (3, lambda x: F.pad(x, (1, 1, 1, 1, 1, 1), mode="replicate")),
    "nearest": (1, lambda x: F.interpolate(x, scale_factor=2)),
    "linear": (1, lambda x: F.interpolate(x, scale_factor=2, mode="linear")),
    "bicubic": (2, lambda x: F.interpolate(x, scale_factor=2, mode="bicubic")),
    "trilinear": (3, lambda x: F.interpolate(x, scale_factor=2, mode="trilinear")),
    "windows": (2, lambda x: F.unfold(x, 2)),
    "convolution": (1, lambda x: F.conv1d(x, x.new_ones(2, x.shape[1], 2))),
    "normalised": (1, lambda x: F.group_norm(x, 1)),
}


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", OF_IMAGES)
def test_images_without_elements(name, dynamic):
    """Eager refuses images that have no channels or no pixels, and takes none at all."""
    dims, run = OF_IMAGES[name]
    compiled = compile_api.compile(run, dynamic=dynamic)
    for at in (None, *range(dims + 2)):
        sizes = [2, 3, 4, 5, 6][: dims + 2]
        if at is not None:
            sizes[at] = 0
        x = torch.randn(sizes)
        try:
            want = run(x)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                compiled(x)
        else:
            torch.testing.assert_close(compiled(x), want)
