"""Matrix products in terms of `dot`, and of one another where a backend claims the simpler ones."""

from __future__ import annotations

import math
from typing import Any

import torch

from prims.decomp.common import (
    REDUCED,
    Value,
    broadcast_shapes,
    expand,
    iota_along,
    is_float,
    number,
    opmath,
    prod,
    spread,
    to_dtype,
    unsupported,
)
from prims.decomp.elementwise import add, mul
from prims.decomp.registry import call, decomposition
from prims.decomp.views import reshaped, swapped


def _dot(p: Any, x: Value, y: Value) -> Value:
    if x.dtype != y.dtype:
        raise TypeError(f"matrix product of {x.dtype} and {y.dtype}")
    if x.dtype.is_complex or x.dtype == torch.bool:
        raise unsupported(f"matrix product of {x.dtype}")
    return p.dot(x, y)


@decomposition("aten.mm.default")
def mm(p: Any, self: Value, mat2: Value) -> Value:
    """[m, k] @ [k, n]"""
    return _dot(p, self, mat2)


@decomposition("aten.bmm.default")
def bmm(p: Any, self: Value, mat2: Value) -> Value:
    """[b, m, k] @ [b, k, n]"""
    return _dot(p, self, mat2)


def _plus(p: Any, bias: Value, product: Value, beta: Any, alpha: Any) -> Value:
    """beta * bias + alpha * product, in float32 for reduced precision; beta 0 ignores the bias."""
    dtype = product.dtype
    compute = opmath(dtype)
    out = to_dtype(p, product, compute)
    if alpha != 1:
        out = p.mul(out, number(alpha, compute))
    if beta != 0:
        b = expand(p, to_dtype(p, bias, compute), out.shape)
        out = p.add(out, b if beta == 1 else p.mul(b, number(beta, compute)))
    return to_dtype(p, out, dtype)


def _product(p: Any, name: str, x: Value, y: Value) -> Value:
    """A product whose sum with a bias is rounded once: unclaimed reduced precision widens its inputs."""
    if name not in p.claims and x.dtype in REDUCED:
        return p.dot(to_dtype(p, x, torch.float32), to_dtype(p, y, torch.float32))
    return call(p, name, x, y)


@decomposition("aten.addmm.default")
def addmm(p: Any, self: Value, mat1: Value, mat2: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    """beta * self + alpha * mat1 @ mat2"""
    return to_dtype(p, _plus(p, self, _product(p, "aten.mm.default", mat1, mat2), beta, alpha), mat1.dtype)


@decomposition("aten.baddbmm.default")
def baddbmm(p: Any, self: Value, batch1: Value, batch2: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    """beta * self + alpha * batch1 @ batch2"""
    product = _product(p, "aten.bmm.default", batch1, batch2)
    return to_dtype(p, _plus(p, self, product, beta, alpha), batch1.dtype)


@decomposition("aten.addbmm.default")
def addbmm(p: Any, self: Value, batch1: Value, batch2: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    """beta * self + alpha * sum over the batch of batch1 @ batch2, as one long product."""
    b, m, k = batch1.shape
    n = batch2.shape[2]
    left = p.reshape(p.permute(batch1, (1, 0, 2)), (m, b * k))
    return addmm(p, self, left, p.reshape(batch2, (b * k, n)), beta=beta, alpha=alpha)


def _columns(p: Any, v: Value) -> Value:
    return p.reshape(v, (v.shape[0], 1))


@decomposition("aten.mv.default")
def mv(p: Any, self: Value, vec: Value) -> Value:
    """[m, k] @ [k]"""
    return p.reshape(call(p, "aten.mm.default", self, _columns(p, vec)), (self.shape[0],))


@decomposition("aten.addmv.default")
def addmv(p: Any, self: Value, mat: Value, vec: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    """beta * self + alpha * mat @ vec"""
    product = p.reshape(_product(p, "aten.mm.default", mat, _columns(p, vec)), (mat.shape[0],))
    return to_dtype(p, _plus(p, self, product, beta, alpha), mat.dtype)


@decomposition("aten.dot.default", "aten.vdot.default")
def dot(p: Any, self: Value, tensor: Value) -> Value:
    """[k] . [k]"""
    compute = opmath(self.dtype)
    x, y = to_dtype(p, self, compute), to_dtype(p, tensor, compute)
    return to_dtype(p, p.sum(mul(p, x, y), (0,)), self.dtype)


@decomposition("aten.addr.default")
def addr(p: Any, self: Value, vec1: Value, vec2: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    """beta * self + alpha * outer(vec1, vec2)"""
    shape = (vec1.shape[0], vec2.shape[0])
    dtype = torch.promote_types(self.dtype, torch.promote_types(vec1.dtype, vec2.dtype))
    if dtype == torch.bool:
        raise unsupported("addr of bool tensors")
    compute = opmath(dtype)
    a = p.broadcast(to_dtype(p, vec1, compute), shape, (0,))
    b = p.broadcast(to_dtype(p, vec2, compute), shape, (1,))
    return to_dtype(p, _plus(p, self, p.mul(a, b), beta, alpha), dtype)


# ---- products of any rank -------------------------------------------------------------------------------


@decomposition("aten.matmul.default")
def matmul(p: Any, self: Value, other: Value) -> Value:
    """torch.matmul: vectors, matrices and broadcast batches."""
    if self.ndim == 1 and other.ndim == 1:
        return dot(p, self, other)
    if self.ndim == 1:
        out = matmul(p, p.reshape(self, (1, self.shape[0])), other)
        return p.reshape(out, (*out.shape[:-2], out.shape[-1]))
    if other.ndim == 1:
        out = matmul(p, self, _columns(p, other))
        return p.reshape(out, tuple(out.shape[:-1]))
    m, k, n = self.shape[-2], self.shape[-1], other.shape[-1]
    if other.ndim == 2:
        rows = reshaped(p, self, (prod(self.shape[:-1]), k))
        return reshaped(p, call(p, "aten.mm.default", rows, other), (*self.shape[:-1], n))
    batch = broadcast_shapes(self.shape[:-2], other.shape[:-2])
    b = prod(batch)
    left = reshaped(p, expand(p, self, (*batch, m, k)), (b, m, k))
    right = reshaped(p, expand(p, other, (*batch, k, n)), (b, k, n))
    return reshaped(p, call(p, "aten.bmm.default", left, right), (*batch, m, n))


@decomposition("aten.linear.default")
def linear(p: Any, input: Value, weight: Value, bias: Value | None = None) -> Value:
    """input @ weight.T + bias"""
    right = swapped(p, weight, 0, 1) if weight.ndim == 2 else weight
    if bias is None or weight.ndim != 2 or input.ndim == 1:
        out = matmul(p, input, right)
        return out if bias is None else add(p, out, bias)
    rows = reshaped(p, input, (prod(input.shape[:-1]), input.shape[-1]))
    out = call(p, "aten.addmm.default", bias, rows, right)
    return reshaped(p, out, (*input.shape[:-1], weight.shape[0]))


# ---- attention ------------------------------------------------------------------------------------------


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
