"""The cross-entropy of logits that nothing else reads, by chunks of rows on a GPU: its gradients and its peak."""

from __future__ import annotations

import pytest
import torch
from on_gpu import DEVICE
from torch.nn import functional as F

import compile_api
from prims.control.losses import _takes_out_dtype


def operands(rows, classes, width, dtype):
    torch.manual_seed(0)
    x = torch.randn(rows, width, device=DEVICE).to(dtype).requires_grad_()
    w = (torch.randn(classes, width, device=DEVICE) / width**0.5).to(dtype).requires_grad_()
    b = torch.randn(classes, device=DEVICE).to(dtype).requires_grad_()
    target = torch.randint(0, classes, (rows,), device=DEVICE)
    target[::7] = -100
    return x, w, b, target


def loss(x, w, b, target):
    return F.cross_entropy(F.linear(x, w, b).float(), target)


def under_autocast(x, w, b, target):
    with torch.autocast("cuda", torch.bfloat16):
        return F.cross_entropy(F.linear(x, w, b), target)


def gradients(fn, x, w, b, target):
    value = fn(x, w, b, target)
    return [value.detach(), *torch.autograd.grad(value, (x, w, b))]


@pytest.mark.parametrize("classes", [8192, 10001], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "autocast"])
def test_gradients(kind, classes):
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    fn = under_autocast if kind == "autocast" else loss
    x, w, b, target = operands(2500, classes, 64, dtype)
    compiled = compile_api.compile(fn, fullgraph=True, options={"strict": True})
    ours, eager = gradients(compiled, x, w, b, target), gradients(fn, x, w, b, target)
    wide = [t.detach().double().requires_grad_() for t in (x, w, b)]
    exact = gradients(lambda x, w, b, t: F.cross_entropy(F.linear(x, w, b), t), *wide, target)
    assert any("linear_loss" in record.name for record in compiled.report().externs)
    for got, usual, wanted in zip(ours, eager, exact, strict=True):
        errors = [(t.double() - wanted).norm() / wanted.norm() for t in (got, usual)]
        assert got.dtype == usual.dtype and errors[0] <= max(1.5 * errors[1], 2e-6), errors


def test_sums_over_chunks_are_not_rounded_to_16_bits():
    """Where the library has such a product; the fallback adds rounded ones."""
    assert _takes_out_dtype("cuda", torch.bfloat16)


def test_the_peak_falls_by_the_logits():
    x, w, b, target = operands(16384, 50257, 64, torch.bfloat16)

    def peak(fn):
        for _ in range(3):
            gradients(fn, x, w, b, target)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        gradients(fn, x, w, b, target)
        return torch.cuda.max_memory_allocated() - before

    ours = peak(compile_api.compile(loss, fullgraph=True, options={"strict": True}))
    whole = peak(compile_api.compile(loss, fullgraph=True, options={"numerics": "eager_close"}))
    logits = 16384 * 50257 * 2
    assert ours < 0.4 * logits < whole, (ours, whole)
