"""Training through reads by index: results and gradients are eager's, made by generated kernels that scatter nothing."""

import pytest
import torch
import torch.nn.functional as F

import compile_api

KNOWN = {
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear, smaller": lambda x: F.interpolate(x, size=(5, 4), mode="bilinear", align_corners=True),
    "bilinear of rows that grow": lambda x: F.interpolate(x, size=(9, 40), mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, scale_factor=1.7, mode="bicubic"),
    "nearest": lambda x: F.interpolate(x, size=(13, 21), mode="nearest"),
    "nearest by a scale": lambda x: F.interpolate(x, scale_factor=1.1, mode="nearest"),
    "reflected": lambda x: F.pad(x, (3, 1, 2, 4), mode="reflect"),
    "replicated": lambda x: F.pad(x, (3, 1, 0, 9), mode="replicate"),
    "around": lambda x: F.pad(x, (3, 1, 2, 4), mode="circular"),
    "around, cropped": lambda x: F.pad(x, (-3, 1, 2, -1), mode="reflect"),
    "windows": lambda x: x.unfold(2, 3, 2) * 2,
    "adaptive pooling": lambda x: F.adaptive_avg_pool2d(x, (3, 5)),
    "written slices": lambda x: _written(x),
    "rolled": lambda x: x.roll((1, -2), (1, 3)) * x,
}


def _written(x):
    y = x * 2
    y[:, :, 1:4] = x[:, :, 2:5].sin()
    y[..., -2:] = y[..., :2]
    return y[:, :, 2:7] + y[:, :, :5]


def step(fn, x, grad):
    x = x.detach().requires_grad_()
    out = fn(x)
    out.backward(grad if grad is not None else torch.ones_like(out))
    return out.detach(), x.grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", KNOWN)
def test_reads_at_known_places(name, dtype):
    torch.manual_seed(0)
    fn = KNOWN[name]
    x = torch.randn(2, 3, 7, 9).to(dtype)
    grad = torch.randn(fn(x).shape).to(dtype)
    compiled = compile_api.compile(fn, dynamic=False)
    got, expected = step(compiled, x, grad), step(fn, x, grad)
    exact = step(fn, x.double(), grad.double())
    for ours, eager, truth in zip(got, expected, exact):
        assert ours.dtype == dtype and ours.stride() == eager.stride()
        if dtype == torch.float64:
            torch.testing.assert_close(ours, eager, rtol=1e-13, atol=1e-14)
            continue
        worst = (eager.double() - truth).abs().max()
        assert (ours.double() - truth).abs().max() <= 2 * worst + torch.finfo(dtype).eps * truth.abs().max()
    report = compiled.report()
    assert not report.fallbacks and not report.externs and report.kernels
    assert not any(op in ("index_put", "scatter") for k in report.kernels for op in k.ops)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        lambda x: F.interpolate(x, scale_factor=3, mode="nearest"),
        lambda x: F.interpolate(x, size=(2 * x.shape[2], 3 * x.shape[3]), mode="bicubic", align_corners=True),
        lambda x: F.pad(x, (1, 2, 3, 4), mode="reflect"),
        lambda x: F.pad(x, (1, 2, 3, 0), mode="replicate"),
        lambda x: x.unfold(2, 5, 3) * 2,
    ],
)  # fmt: skip
def test_reads_at_known_places_of_any_size(fn):
    """One graph serves all sizes."""
    compiled = compile_api.compile(fn, dynamic=True)
    for shape in ((2, 3, 8, 10), (2, 3, 11, 9), (1, 4, 30, 7), (3, 2, 6, 50)):
        x = torch.randn(shape, dtype=torch.float64)
        for ours, eager in zip(step(compiled, x, None), step(fn, x, None)):
            torch.testing.assert_close(ours, eager)
    report = compiled.report()
    assert not report.fallbacks and not report.externs
    assert not any(op in ("index_put", "scatter") for k in report.kernels for op in k.ops)
