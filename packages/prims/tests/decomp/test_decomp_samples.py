"""Overloads that the operator database does not reach, one test each."""

import pytest
import torch
from recorded_calls import check, check_metadata, compare_floats
from samples import make

import prims.decomp as decomp
from prims.handlers import TorchHandler

SAMPLES = make()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_sample(name):
    op = decomp.overload(name)
    for args, kwargs in SAMPLES[name]:
        call = op, args, kwargs, op(*args, **kwargs)
        assert check(call) is None
        for device in ("cpu", "cuda:0"):
            assert check_metadata(call, device) is None


def test_rms_norm_backward_equals_autograd():
    """The CPU has no kernel for it, so its gradients are those of the formula."""
    torch.manual_seed(0)
    x, w, g = (torch.randn(s, dtype=torch.float64) for s in ((4, 8), (8,), (4, 8)))
    x.requires_grad_(), w.requires_grad_()
    rstd = (x.square().mean(1, keepdim=True) + 1e-3).rsqrt()
    expected = torch.autograd.grad(x * rstd * w, (x, w), g)
    fn = decomp.by_name("aten._fused_rms_norm_backward.default")
    got = fn(TorchHandler(), g, x.detach(), [8], rstd.detach(), w.detach(), [True, True])
    for ours, theirs in zip(got, expected):
        torch.testing.assert_close(ours, theirs)


def test_gradients_that_are_not_asked_for_are_none():
    fn = decomp.by_name("aten.native_layer_norm_backward.default")
    x = torch.randn(4, 8)
    stats = torch.zeros(4, 1)
    out = fn(TorchHandler(), x, x, [8], stats, stats + 1, None, None, [True, False, False])
    assert out[0].shape == x.shape
    assert out[1] is None and out[2] is None


def test_attention_without_anything_visible_gives_zero():
    """Eager's kernel gives 0, not NaN, for a query that may see nothing."""
    q = torch.randn(1, 1, 2, 4)
    mask = torch.full((2, 2), -torch.inf)
    fn = decomp.by_name("aten._scaled_dot_product_flash_attention_for_cpu.default")
    assert torch.equal(fn(TorchHandler(), q, q, q, attn_mask=mask)[0], torch.zeros_like(q))


def test_comparison_can_fail():
    """The judge of all these tests rejects an error of a few more roundings than eager's."""
    exact = torch.linspace(1, 2, 11, dtype=torch.float64)
    eager = exact.float()
    assert compare_floats(eager.clone(), eager, exact) is None
    assert compare_floats(eager * (1 + 2e-6), eager, exact) is not None
    assert compare_floats(torch.full_like(eager, torch.nan), eager, exact) is not None
