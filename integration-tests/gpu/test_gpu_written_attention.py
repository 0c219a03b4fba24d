"""Attention that programs write out runs as fused kernels on a GPU, forward and backward, with dropout too."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from attention_cases import MASKS, OTHER, PRODUCTS, B, H, T, attention, by_matmul, operands, results, seen
from on_gpu import DEVICE

import compile_api

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
#: What kernels have no gradient for, or 16 bits no number.
FORWARD_ONLY = ("padding, added", "padding, in place")


def compiled(fn, **options):
    return compile_api.compile(fn, fullgraph=True, options={"strict": True, **options})


def kernels(run):
    names = [name for name in run.report().extern_counts() if "scaled_dot_product" in name]
    return any("backward" not in name for name in names), any("backward" in name for name in names)


def check(fn, dtype, m, both=True):
    """As near to float64's results and gradients as eager's, NaN in the same places, by the fused kernels."""
    inputs, run = operands(dtype, DEVICE), compiled(fn)
    got, eager = results(run, inputs, m), results(fn, inputs, m)
    exact = results(fn, inputs, m, torch.float64)
    for x, y, z in zip(got, eager, exact, strict=True):
        assert x.dtype == y.dtype and torch.equal(torch.isnan(x), torch.isnan(y))
        error, usual = ((a.double() - z).abs().nan_to_num().max().item() for a in (x, y))
        assert error <= 4 * usual + 16 * torch.finfo(dtype).eps, (error, usual)
    assert not both or kernels(run) == (True, True), run.report().extern_counts()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask, dtype):
    check(attention(by_matmul, MASKS[mask][0], wide=dtype != torch.float32), dtype, seen(device=DEVICE),
          mask not in FORWARD_ONLY)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", [name for name in MASKS if "padding" in name and name not in FORWARD_ONLY])
def test_rows_that_see_nothing(mask, dtype):
    check(attention(by_matmul, MASKS[mask][0]), dtype, seen(False, DEVICE))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("product", PRODUCTS)
def test_products(product, dtype):
    check(attention(product, MASKS["scaled"][0]), dtype, seen(device=DEVICE))


@pytest.mark.parametrize("name", OTHER)
def test_what_is_something_else_stays(name):
    run = compiled(OTHER[name])
    results(run, operands(torch.bfloat16, DEVICE), seen(device=DEVICE))
    assert kernels(run) == (False, False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", ["scaled", "causal, triu", "padding, filled"])
def test_dropout(mask, dtype):
    """The kernel's own random numbers: the expectation is the result without them, and the backward pass has the same
    ones as the forward, so that ``<out, gradient> = <values, their gradient>``."""
    m, inputs = seen(device=DEVICE), operands(dtype, DEVICE)
    run, plain = compiled(attention(by_matmul, MASKS[mask][0], p=0.3)), attention(by_matmul, MASKS[mask][0])
    wanted = results(plain, inputs, m, torch.float64)[0]
    total = torch.zeros_like(wanted)
    for _ in range(200):
        out, *_, dv = results(run, inputs, m)
        gradient = torch.linspace(-1, 1, out.numel(), dtype=torch.float64, device=out.device).sin().view(out.shape).to(out.device)
        one, two = (out * gradient).double(), dv.double() * inputs[2].double()
        rounding = 4 * torch.finfo(dtype).eps * (one.square().sum() + two.square().sum()).sqrt()  # other numbers: 5 times that
        assert (one.sum() - two.sum()).abs() <= rounding + 1e-3
        total += out
    error = ((total / 200 - wanted).square().mean() / wanted.square().mean()).sqrt().item()
    assert error < 0.15, error
    assert kernels(run) == (True, True), run.report().extern_counts()
    assert not torch.equal(run(*inputs, m), run(*inputs, m))


def test_dropout_stays_where_random_numbers_are_eagers():
    fn = lambda q, k, v: F.dropout(torch.softmax(q @ k.mT, -1), 0.5) @ v
    run, inputs = compiled(fn, fallback_random=True), [x.detach() for x in operands(torch.float32, DEVICE)]
    torch.manual_seed(1)
    got = run(*inputs)
    torch.manual_seed(1)
    torch.testing.assert_close(got, fn(*inputs), rtol=1e-3, atol=1e-4)
    assert kernels(run) == (False, False)


def test_the_scores_take_no_memory():
    q, k, v = (torch.randn(B, H, 8 * T, 64, dtype=torch.bfloat16, device=DEVICE, requires_grad=True) for _ in range(3))
    run = compiled(lambda q, k, v: F.dropout(torch.softmax(q @ k.mT / 8, -1), 0.1) @ v)
    run(q, k, v).sum().backward()
    torch.cuda.synchronize()
    base = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run(q, k, v).sum().backward()
    assert torch.cuda.max_memory_allocated() - base < 2 * B * H * (8 * T) ** 2
