"""Attention as programs write it out: products, scales, masks, and what is something else."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

B, H, T, D = 2, 3, 192, 16
Change = Callable[..., torch.Tensor]


# ---- spelled-out products -----------------------------------------------------------------------------


def by_matmul(q, k, v, change):
    return torch.matmul(change(torch.matmul(q, k.transpose(-2, -1))), v)


def by_operators(q, k, v, change):
    return change(q @ k.mT) @ v


def by_bmm(q, k, v, change):
    flat = lambda x: x.reshape(B * H, T, D)
    scores = torch.bmm(flat(q), flat(k).permute(0, 2, 1)).view(B, H, T, T)
    return torch.bmm(change(scores).view(B * H, T, T), flat(v)).view(B, H, T, D)


def by_einsum(q, k, v, change):
    return torch.einsum("bhij,bhjd->bhid", change(torch.einsum("bhid,bhjd->bhij", q, k)), v)


def by_einsum_heads_inside(q, k, v, change):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = torch.einsum("b h i j, b j h d -> b i h d", change(torch.einsum("...ihd,...jhd->...hij", q, k)), v)
    return out.transpose(1, 2)


def by_baddbmm(q, k, v, change):
    flat = lambda x: x.reshape(B * H, T, D)
    none = torch.zeros(1, 1, T, device=q.device, dtype=q.dtype)
    scores = torch.baddbmm(none, flat(q), flat(k).transpose(1, 2), beta=1.0, alpha=0.5).view(B, H, T, T)
    return torch.bmm(change(scores).view(B * H, T, T), flat(v)).view(B, H, T, D)


def by_baddbmm_named(q, k, v, change):
    """As in Bloom: a method, with the operands by name."""
    flat = lambda x: x.reshape(B * H, T, D)
    none = torch.zeros(1, 1, T, device=q.device, dtype=q.dtype)
    scores = none.baddbmm(batch2=flat(k).transpose(1, 2), batch1=flat(q), beta=1.0, alpha=0.5).view(B, H, T, T)
    return torch.bmm(change(scores).view(B * H, T, T), flat(v)).view(B, H, T, D)


def by_transposed_weights(q, k, v, change):
    return (v.transpose(-1, -2) @ change(q @ k.mT).transpose(-1, -2)).transpose(-1, -2)


def by_one_key_head(q, k, v, change):
    return torch.einsum("bhij,bjd->bhid", change(torch.einsum("bhid,bjd->bhij", q, k[:, 0])), v[:, 0])


def by_repeated_heads(q, k, v, change):
    k = k[:, :1, None].expand(B, 1, H, T, D).reshape(B, H, T, D)
    v = v[:, :1].repeat_interleave(H, dim=1)
    return change(q @ k.transpose(2, 3)) @ v


def by_groups(q, k, v, change):
    q, k, v = q.view(B, 1, H, T, D), k[:, :1, None], v[:, :1, None]
    return (change((q @ k.mT).view(B, H, T, T)).view(B, 1, H, T, T) @ v).view(B, H, T, D)


PRODUCTS = [
    by_matmul, by_operators, by_bmm, by_einsum, by_einsum_heads_inside, by_baddbmm, by_baddbmm_named,
    by_transposed_weights, by_one_key_head, by_repeated_heads, by_groups,
]  # fmt: skip


# ---- scales and masks ---------------------------------------------------------------------------------


def seen(some=True, device=None):
    """``[B, T]``: what is no padding. Without ``some``, the second sequence is padding alone."""
    mask = torch.rand(B, T, generator=torch.Generator().manual_seed(1)) > 0.3
    mask[:, 0] = True
    if not some:
        mask[1] = False
    return mask.to(device)


def later(x, ahead=1):
    return torch.triu(torch.ones(T, T, dtype=torch.bool, device=x.device), ahead)


def lowest(x):
    return torch.finfo(x.dtype).min


def in_place(x, m):
    x /= 4
    x += (1.0 - m[:, None, None].to(x.dtype)) * lowest(x)
    return x


#: name -> ``(scores, padding) -> scores``, and whether the kernel needs no mask.
MASKS: dict[str, tuple[Change, bool]] = {
    "none": (lambda x, m: x, True),
    "scaled": (lambda x, m: x / math.sqrt(D), True),
    "scaled twice": (lambda x, m: 2 * (x * 0.125), True),
    "causal, triu": (lambda x, m: (x / 4).masked_fill(later(x), -math.inf), True),
    "causal, tril": (lambda x, m: torch.where(~later(x).bool(), x, lowest(x)), True),
    "causal, tril == 0": (lambda x, m: (x / 4).masked_fill(torch.ones(1, 1, T, T, device=x.device).tril() == 0, max(-3e38, lowest(x))), True),
    "causal, added": (
        lambda x, m: x + torch.full((T, T), -math.inf, dtype=x.dtype, device=x.device).triu(1), True,
    ),
    "causal, places": (lambda x, m: torch.where(
        torch.arange(T, device=x.device) > torch.arange(T, device=x.device)[:, None],
        torch.tensor(lowest(x), dtype=x.dtype, device=x.device), x,
    ), True),
    "two ahead": (lambda x, m: x.masked_fill(later(x, 3), -math.inf), False),
    "added before a scale": (
        lambda x, m: (x + torch.full((T, T), -math.inf, dtype=x.dtype, device=x.device).triu(1)) * 0.25, True,
    ),
    "padding, filled": (lambda x, m: (x / 4).masked_fill(~m[:, None, None], -math.inf), False),
    "padding, the lowest": (lambda x, m: (x / 4).masked_fill(m[:, None, None] == 0, lowest(x)), False),
    "padding, where": (lambda x, m: torch.where(m[:, None, None], x, lowest(x)), False),
    "padding, added": (lambda x, m: x / 4 + (1.0 - m[:, None, None].to(x.dtype)) * lowest(x), False),
    "padding, in place": (in_place, False),
    "padding, minus infinity added": (
        lambda x, m: x + torch.zeros(B, 1, 1, T, dtype=x.dtype, device=x.device)
        .masked_fill(~m[:, None, None], -math.inf), False,
    ),
    "padding and causal": (
        lambda x, m: (x / 4).masked_fill(later(x), -math.inf).masked_fill(~m[:, None, None], -math.inf), False,
    ),
    "bias and causal": (
        lambda x, m: (x + torch.arange(T, dtype=x.dtype, device=x.device) * -0.1).masked_fill(later(x), lowest(x)), False,
    ),
}  # fmt: skip


#: Of a row that all of is hidden by the lowest number kernels have no gradient.
LOWEST_ADDED = ("padding, added", "padding, in place")


def weights(x, wide):
    return torch.softmax(x, -1, dtype=torch.float32).to(x.dtype) if wide else F.softmax(x, dim=-1)


def attention(product, mask, wide=False, p=0.0):
    def fn(q, k, v, m):
        return product(q, k, v, lambda x: F.dropout(weights(mask(x, m), wide), p))

    return fn


def operands(dtype=torch.float32, device=None):
    torch.manual_seed(0)
    return [torch.randn(B, T, H, D, dtype=dtype, device=device).transpose(1, 2).requires_grad_() for _ in range(3)]


def results(fn, inputs, m, dtype=None):
    """The result and gradients of an attention."""
    given = [x.detach().to(dtype or x.dtype).requires_grad_() for x in inputs]
    out = fn(*given, m)
    gradient = torch.linspace(-1, 1, out.numel(), dtype=torch.float64, device=out.device).sin().view(out.shape).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, given, gradient)]


# ---- what is something else ---------------------------------------------------------------------------------------

other_axis = lambda q, k, v, m: torch.softmax(q @ k.mT, -2) @ v
weights_too = lambda q, k, v, m: (w := torch.softmax(q @ k.mT, -1)) @ v + w.mean()
scores_too = lambda q, k, v, m: torch.softmax(s := q @ k.mT, -1) @ v + s.mean()
another_function = lambda q, k, v, m: torch.softmax(torch.tanh(q @ k.mT), -1) @ v
negative_scale = lambda q, k, v, m: torch.softmax((q @ k.mT) / -4, -1) @ v
computed_scale = lambda q, k, v, m: torch.softmax((q @ k.mT) * q.mean(), -1) @ v
near_zero = lambda q, k, v, m: torch.softmax((q @ k.mT).masked_fill(later(q), -1e4), -1) @ v
hidden_by_less = lambda q, k, v, m: torch.softmax((q @ k.mT).masked_fill(later(q), -1e9) * 1e-6, -1) @ v
learned_bias = lambda q, k, v, m: torch.softmax(q @ k.mT + q.mean(-1, keepdim=True), -1) @ v
columns_of_weights = lambda q, k, v, m: torch.softmax(q @ k.mT, -1)[..., :64] @ v[:, :, :64]
transposed = lambda q, k, v, m: torch.softmax(q @ k.mT, -1).mT @ v
short = lambda q, k, v, m: torch.softmax(q[:, :, :40] @ k[:, :, :40].mT, -1) @ v[:, :, :40]
large_bias = lambda q, k, v, m: torch.softmax(q @ k.mT + (k.detach() @ q.detach().mT).log(), -1) @ v
drops = lambda q, k, v, m: F.dropout(torch.softmax(q @ k.mT, -1), 0.5) @ v


def written_between(q, k, v, m):
    keys = k * 1.0
    scores = q @ keys.mT
    keys.mul_(2)  # the product has read it before
    return torch.softmax(scores, -1) @ (v + keys)


def scores_written_again(q, k, v, m):
    scores = q @ k.mT
    w = torch.softmax(scores, -1)
    scores.add_(1)
    return w @ v + scores.mean()


OTHER = {
    "another axis": other_axis, "weights are given too": weights_too, "scores are given too": scores_too,
    "another function": another_function, "a negative scale": negative_scale, "a scale that is computed": computed_scale,
    "hidden by a number that scores may reach": near_zero, "hidden by a number that is scaled": hidden_by_less,
    "a bias with a gradient": learned_bias, "a part of the weights": columns_of_weights, "weights turned": transposed,
    "short": short, "a bias as large as scores": large_bias, "a write between": written_between,
    "scores written later": scores_written_again,
}  # fmt: skip
