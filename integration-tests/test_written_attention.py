"""Attention that programs write out runs as PyTorch's fused kernels, forward and backward, and gives what they wrote."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from attention_cases import (
    LOWEST_ADDED,
    MASKS,
    OTHER,
    PRODUCTS,
    B,
    D,
    H,
    T,
    attention,
    by_matmul,
    drops,
    operands,
    results,
    seen,
)  # fmt: skip

import compile_api

KERNEL = "_scaled_dot_product_flash_attention_for_cpu"


def check(fn, m, inputs=None, kernel="both", **options):
    """Compiled results and gradients are as near to float64's as eager's are, and come by the fused kernels: both, or
    the ``"forward"`` alone without gradients, or ``"neither"``.

    Where the lowest float32 is added to a whole row, float64 is no reference, as it keeps the scores; eager is.
    """
    inputs = operands() if inputs is None else inputs
    compiled = compile_api.compile(fn, fullgraph=True, options={"strict": True, **options})
    got = results(compiled, inputs, m)
    eager = results(fn, inputs, m)
    exact = eager if kernel == "forward" and not m.any(-1).all() else results(fn, inputs, m, torch.float64)
    assert got[0].stride() == eager[0].stride()
    for x, y, z in zip(got, eager, exact, strict=True):
        assert x.dtype == y.dtype
        assert torch.equal(torch.isnan(x), torch.isnan(z))
        error, usual = ((a.double() - z).abs().nan_to_num().max().item() for a in (x, y))
        assert error <= max(4 * usual, 2e-6), (error, usual)
    with torch.no_grad():
        assert torch.equal(torch.isnan(compiled(*inputs, m)), torch.isnan(exact[0]))
    names = [name for name in compiled.report().extern_counts() if "scaled_dot_product" in name]
    both = [f"aten.{KERNEL}.default", f"aten.{KERNEL}_backward.default"]
    assert names == (both if kernel == "both" else both[:1] if kernel == "forward" else []), names


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("some", [True, False])
def test_masks(mask, some):
    """Also where the padding leaves rows that see nothing: they give NaN, or the mean of all values."""
    if some or "padding" in mask:
        check(attention(by_matmul, MASKS[mask][0]), seen(some), kernel="forward" if mask in LOWEST_ADDED else "both")


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("mask", ["scaled", "causal, triu", "padding, filled"])
def test_products(product, mask):
    check(attention(product, MASKS[mask][0]), seen())


@pytest.mark.parametrize("mask", ["none", "padding and causal"])
def test_in_double_precision_and_with_a_softmax_in_float32(mask):
    check(attention(by_matmul, MASKS[mask][0], wide=True), seen())
    check(attention(by_matmul, MASKS[mask][0]), seen(), operands(torch.float64))


def test_a_known_mask_is_a_flag_or_nothing():
    """A mask that hides what comes later takes no memory; of any length."""
    for name, (mask, flag) in MASKS.items():
        fn = attention(by_matmul, mask)
        compiled = compile_api.compile(fn, fullgraph=True, options={"strict": True})
        with torch.no_grad():
            compiled(*operands(), seen())
        ops = {op for kernel in compiled.report().kernels for op in kernel.ops}
        assert not flag or not ops & {"where", "iota", "maximum"}, (name, ops)


def test_lengths_that_change():
    fn = lambda q, k, v: F.softmax(
        (q @ k.mT).masked_fill(torch.triu(torch.ones(q.shape[2], q.shape[2], dtype=torch.bool), 1), -math.inf), -1
    ) @ v  # fmt: skip
    compiled = compile_api.compile(fn, fullgraph=True, dynamic=True, options={"strict": True})
    for length in (128, 160, 200):
        q, k, v = (torch.randn(B, H, length, D) for _ in range(3))
        with torch.no_grad():
            torch.testing.assert_close(compiled(q, k, v), fn(q, k, v), rtol=1e-4, atol=1e-5)
    report = compiled.report()
    assert report.extern_counts() == {f"aten.{KERNEL}.default": 1} and not report.recompiles
    assert not {op for kernel in report.kernels for op in kernel.ops} & {"where", "iota"}


def test_heads_of_a_model_with_a_buffer_for_its_mask():
    """As in the first GPT: one product for queries, keys and values, and a mask that is cut out of a buffer."""

    class Heads(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = torch.nn.Linear(H * D, 3 * H * D), torch.nn.Linear(H * D, H * D)
            self.register_buffer("bias", torch.tril(torch.ones(256, 256)).view(1, 1, 256, 256))

        def forward(self, x):
            q, k, v = (part.view(B, T, H, D).transpose(1, 2) for part in self.qkv(x).split(H * D, dim=2))
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = F.softmax(att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf")), dim=-1)
            y = F.dropout(att, 0.1, self.training) @ v
            return self.out(y.transpose(1, 2).contiguous().view(B, T, H * D))

    torch.manual_seed(0)
    model, x = Heads().eval(), torch.randn(B, T, H * D)
    compiled = compile_api.compile(model, fullgraph=True, options={"strict": True})
    grads = []
    for way in (compiled, model):
        model.zero_grad()
        way(x).square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
    assert f"aten.{KERNEL}_backward.default" in compiled.report().extern_counts()


@pytest.mark.parametrize("name", OTHER)
def test_what_is_something_else_stays(name):
    check(OTHER[name], seen(), kernel="neither")


@pytest.mark.parametrize("equation", ["...i,...i->...", "i,i->", "i,j->ij", "i,ij->j", "ij,j->i", "...i,j->...ij"])
@pytest.mark.parametrize("softmax_first", [True, False])
def test_products_of_vectors_with_a_softmax(equation, softmax_first):
    """Sums of products of fewer dimensions than an attention's are computed as they are."""
    dims = [1 if "j" not in part or "i" not in part else 2 for part in equation.split("->")[0].split(",")]
    x, y = (torch.randn((4,) * d) for d in dims)

    def fn(x, y):
        x, y = (x.softmax(-1), y) if softmax_first else (x, y.softmax(-1))
        return torch.einsum(equation, x, y)

    compiled = compile_api.compile(fn, fullgraph=True, options={"strict": True})
    torch.testing.assert_close(compiled(x, y), fn(x, y))


def same_without_kernel(fn, **options):
    compiled = compile_api.compile(fn, fullgraph=True, options={"strict": True, **options})
    inputs = [x.detach() for x in operands()]
    torch.manual_seed(3)
    got = compiled(*inputs, seen())
    torch.manual_seed(3)
    torch.testing.assert_close(got, fn(*inputs, seen()), rtol=1e-4, atol=1e-5)
    assert not any("scaled_dot_product" in name for name in compiled.report().extern_counts())


@pytest.mark.parametrize("numerics", ["eager_close", "eager_exact"])
def test_where_roundings_count_it_stays(numerics):
    same_without_kernel(attention(by_matmul, MASKS["scaled"][0]), numerics=numerics)


def test_where_random_numbers_are_eagers_dropout_stays():
    same_without_kernel(drops, fallback_random=True)


def test_fuel_stops_it():
    same_without_kernel(attention(by_matmul, MASKS["none"][0]), fuel=0)


@pytest.mark.parametrize("mask", ["padding, minus infinity added", "scaled", "padding and causal"])
def test_in_16_bits_that_have_no_number_as_low(mask):
    """Lower than any finite half is -inf alone, which a mask may hold already."""
    for product in PRODUCTS if mask == "scaled" else (by_matmul,):
        fn = attention(product, MASKS[mask][0])
        inputs, compiled = operands(torch.float16), compile_api.compile(fn, options={"strict": True})
        got, eager = results(compiled, inputs, seen()), results(fn, inputs, seen())
        exact = results(fn, inputs, seen(), torch.float64)
        for x, y, z in zip(got, eager, exact, strict=True):
            error, usual = ((a.double() - z).abs().nan_to_num().max().item() for a in (x, y))
            assert x.dtype == y.dtype and error <= 4 * usual + 2.0**-10, (error, usual)
        assert not compiled.report().fallbacks
