"""Attention, forward and backward, and the fused transformer layers that eager's fast paths call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from prims.decomp.activations import gelu, relu
from prims.decomp.common import (
    Size,
    Value,
    expand,
    iota_along,
    is_float,
    opmath,
    slice_dim,
    spread,
    to_dtype,
    unsupported,
)
from prims.decomp.elementwise import add
from prims.decomp.matmul import linear
from prims.decomp.normalisation import layer_norm
from prims.decomp.reductions import mean_of
from prims.decomp.registry import call, decomposition
from prims.decomp.softmax import softmax
from prims.decomp.views import swapped


@decomposition("aten._scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention_for_cpu(
    p: Any,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, Value]:
    """softmax(q k^T * scale + mask) v, and the logarithm of the sum of exponentials.

    `[b, h, l, d]` each; the second result is `[b, h, l]`, float32 for reduced precision.
    """
    if dropout_p > 0.0:
        raise unsupported("attention with dropout")
    if not is_float(query.dtype):
        raise unsupported(f"attention of {query.dtype}")
    dtype, compute = query.dtype, opmath(query.dtype)
    factor = 1.0 / math.sqrt(query.shape[3]) if scale is None else float(scale)
    q, k = p.mul(to_dtype(p, query, compute), factor), to_dtype(p, key, compute)
    scores = _scores(p, q, k, is_causal, attn_mask)
    top = p.amax(scores, (3,))
    safe = p.where(p.eq(top, -math.inf), 0.0, top)
    e = p.exp(p.sub(scores, spread(p, safe, scores.shape, (3,))))
    total = p.sum(e, (3,))
    weights = p.div(e, spread(p, p.where(p.eq(total, 0.0), 1.0, total), e.shape, (3,)))
    out = _batched(p, weights, to_dtype(p, value, compute))
    return to_dtype(p, out, dtype), p.add(p.log(total), top)


def _scores(p: Any, q: Value, k: Value, is_causal: bool, attn_mask: Value | None) -> Value:
    """q k^T, masked. `q` is scaled already."""
    scores = _batched(p, q, swapped(p, k, 2, 3))
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = p.where(expand(p, attn_mask, scores.shape), scores, -math.inf)
        else:
            scores = p.add(scores, expand(p, to_dtype(p, attn_mask, scores.dtype), scores.shape))
    if is_causal:
        shape = tuple(scores.shape[2:])
        seen = p.le(iota_along(p, shape, 1, q.device), iota_along(p, shape, 0, q.device))
        scores = p.where(expand(p, seen, scores.shape), scores, -math.inf)
    return scores


def _batched(p: Any, x: Value, y: Value) -> Value:
    """A product of two 4-d values through bmm."""
    b, h, m, k = x.shape
    n = y.shape[3]
    flat = call(p, "aten.bmm.default", p.reshape(x, (b * h, m, k)), p.reshape(y, (b * h, k, n)))
    return p.reshape(flat, (b, h, m, n))


@decomposition("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
def flash_attention_for_cpu_backward(
    p: Any,
    grad_out: Value,
    query: Value,
    key: Value,
    value: Value,
    out: Value,
    logsumexp: Value,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, Value, Value]:
    """Gradients by query, key and value; the weights are computed anew from the saved logsumexp.

    Source: algorithm 4 of Dao et al., FlashAttention (2022), without its tiling.
    """
    if dropout_p > 0.0:
        raise unsupported("attention with dropout")
    compute = opmath(query.dtype)
    factor = 1.0 / math.sqrt(query.shape[3]) if scale is None else float(scale)
    g, q, k, v, o = (to_dtype(p, x, compute) for x in (grad_out, query, key, value, out))
    lse = to_dtype(p, logsumexp, compute)
    scores = _scores(p, p.mul(q, factor), k, is_causal, attn_mask)
    weights = p.exp(p.sub(scores, spread(p, lse, scores.shape, (3,))))
    weights = p.where(spread(p, p.eq(lse, -math.inf), scores.shape, (3,)), 0.0, weights)
    by_value = _batched(p, swapped(p, weights, 2, 3), g)
    by_weights = _batched(p, g, swapped(p, v, 2, 3))
    delta = spread(p, p.sum(p.mul(g, o), (3,)), scores.shape, (3,))
    by_scores = p.mul(weights, p.sub(by_weights, delta))
    by_query = p.mul(_batched(p, by_scores, k), factor)
    by_key = p.mul(_batched(p, swapped(p, by_scores, 2, 3), q), factor)
    return tuple(to_dtype(p, x, query.dtype) for x in (by_query, by_key, by_value))  # type: ignore[return-value]


# ---- fused layers ---------------------------------------------------------------------------------------

SRC_MASK, PADDING_MASK = 0, 1


def _heads(p: Any, x: Value, heads: int) -> Value:
    """[b, t, e] as [b, heads, t, e / heads]."""
    b, t, e = x.shape
    return p.permute(p.reshape(x, (b, t, heads, e // heads)), (0, 2, 1, 3))


def _hidden(p: Any, mask: Value, mask_type: int | None, shape: Sequence[Size]) -> Value:
    """Where a weight [b, h, t, s] is masked out. Masks are True there."""
    if mask.dtype != torch.bool:
        mask = p.ne(mask, 0.0 if is_float(mask.dtype) else 0)
    if mask_type == PADDING_MASK:
        return p.broadcast(mask, tuple(shape), (0, 3))
    if mask_type == SRC_MASK:
        return p.broadcast(mask, tuple(shape), (2, 3))
    return expand(p, mask, shape)


def _fused(q: Value, k: Value, v: Value) -> tuple[str, tuple[Any, ...]] | None:
    """The fused attention kernel for these operands and its arguments after them, if there is one.

    Values of a graph have no layout yet: the last dimensions of eager's are dense, as are those that a call is given.
    """
    from prims.spec import TensorSpec, contiguous_strides
    from prims.spec.rules import attention as rules

    query, key, value = (TensorSpec(x.shape, x.dtype, x.device, contiguous_strides(x.shape)) for x in (q, k, v))
    choice = rules.sdp_choice(query, key, value, None, 0.0, False)
    if choice == rules.FLASH:
        return "aten._scaled_dot_product_flash_attention.default", ()
    if choice == rules.EFFICIENT:
        return "aten._scaled_dot_product_efficient_attention.default", (None, False)
    if choice == rules.CUDNN:
        return "aten._scaled_dot_product_cudnn_attention.default", (None, False)
    return None


@decomposition("aten._native_multi_head_attention.default")
def native_multi_head_attention(
    p: Any,
    query: Value,
    key: Value,
    value: Value,
    embed_dim: Size,
    num_head: int,
    qkv_weight: Value,
    qkv_bias: Value,
    proj_weight: Value,
    proj_bias: Value,
    mask: Value | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Value, Value | None]:
    """Projections, attention and the output projection of nn.MultiheadAttention; [b, t, e] each."""
    if query is key and key is value:
        qkv = linear(p, query, qkv_weight, qkv_bias)
        parts = [slice_dim(p, qkv, 2, i * embed_dim, (i + 1) * embed_dim) for i in range(3)]
    else:
        rows = [(i * embed_dim, (i + 1) * embed_dim) for i in range(3)]
        parts = [
            linear(p, x, slice_dim(p, qkv_weight, 0, *row), slice_dim(p, qkv_bias, 0, *row))
            for x, row in zip((query, key, value), rows, strict=True)
        ]
    q, k, v = (_heads(p, x, num_head) for x in parts)
    weights = None
    empty = any(type(n) is int and n == 0 for n in (*q.shape, *k.shape))  # by which a fused kernel may divide
    if mask is None and not need_weights and query.device.type == "cpu" and not empty:
        context = call(p, "aten._scaled_dot_product_flash_attention_for_cpu.default", q, k, v)[0]
    elif mask is None and not need_weights and not empty and (fused := _fused(q, k, v)) is not None:
        context = call(p, fused[0], q, k, v, *fused[1])[0]
    else:
        scores = _batched(p, p.mul(q, 1.0 / math.sqrt(embed_dim // num_head)), swapped(p, k, 2, 3))
        if mask is not None:
            scores = p.where(_hidden(p, mask, mask_type, scores.shape), -math.inf, scores)
        weights = softmax(p, scores, 3, False)
        context = _batched(p, weights, v)
    b, _, t, _ = context.shape
    merged = p.reshape(p.permute(context, (0, 2, 1, 3)), (b, t, embed_dim))
    out = linear(p, merged, proj_weight, proj_bias)
    if not need_weights:
        return out, None
    return out, mean_of(p, weights, (1,)) if average_attn_weights else weights


@decomposition("aten._transformer_encoder_layer_fwd.default")
def transformer_encoder_layer(
    p: Any,
    src: Value,
    embed_dim: Size,
    num_heads: int,
    qkv_weight: Value,
    qkv_bias: Value,
    proj_weight: Value,
    proj_bias: Value,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Value,
    norm_bias_1: Value,
    norm_weight_2: Value,
    norm_bias_2: Value,
    ffn_weight_1: Value,
    ffn_bias_1: Value,
    ffn_weight_2: Value,
    ffn_bias_2: Value,
    mask: Value | None = None,
    mask_type: int | None = None,
) -> Value:
    """A whole nn.TransformerEncoderLayer in evaluation mode."""

    def norm(x: Value, weight: Value, bias: Value) -> Value:
        return layer_norm(p, x, (embed_dim,), weight, bias, eps)

    def attention(x: Value) -> Value:
        parameters = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return native_multi_head_attention(p, x, x, x, embed_dim, num_heads, *parameters, mask, False, True, mask_type)[
            0
        ]

    def feed_forward(x: Value) -> Value:
        hidden = linear(p, x, ffn_weight_1, ffn_bias_1)
        hidden = gelu(p, hidden) if use_gelu else relu(p, hidden)
        return linear(p, hidden, ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = add(p, src, attention(norm(src, norm_weight_1, norm_bias_1)))
        return add(p, x, feed_forward(norm(x, norm_weight_2, norm_bias_2)))
    x = norm(add(p, src, attention(src)), norm_weight_1, norm_bias_1)
    return norm(add(p, x, feed_forward(x)), norm_weight_2, norm_bias_2)
