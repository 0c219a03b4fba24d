"""Weight normalisation, pairwise distances and the bilinear form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from prims.decomp.common import Value, broadcast_shapes, expand, keep, opmath, to_dtype
from prims.decomp.registry import decomposition
from prims.decomp.views import reshaped, unsqueeze


def _others(x: Value, dim: int) -> tuple[int, ...]:
    return tuple(d for d in range(x.ndim) if d != dim)


@decomposition("aten._weight_norm_interface.default")
def weight_norm(p: Any, v: Value, g: Value, dim: int = 0) -> tuple[Value, Value]:
    """v * g / |v|, norms over all dimensions but `dim`; and the norms."""
    compute = opmath(v.dtype)
    x, scale = to_dtype(p, v, compute), to_dtype(p, g, compute)
    norm = keep(p, p.sqrt(p.sum(p.mul(x, x), _others(x, dim))), x.shape, _others(x, dim))
    out = p.mul(x, expand(p, p.div(reshaped(p, scale, norm.shape), norm), x.shape))
    # The norms have the shape that g came in.
    return to_dtype(p, out, v.dtype), reshaped(p, to_dtype(p, norm, v.dtype), g.shape)


@decomposition("aten._weight_norm_interface_backward.default")
def weight_norm_backward(
    p: Any, grad_w: Value, saved_v: Value, saved_g: Value, saved_norms: Value, dim: int
) -> tuple[Value, Value]:
    """Gradients by v and g."""
    compute = opmath(saved_v.dtype)
    grad, v, g, norm = (to_dtype(p, t, compute) for t in (grad_w, saved_v, saved_g, saved_norms))
    others = _others(v, dim)
    product = keep(p, p.sum(p.mul(grad, v), others), v.shape, others)
    g, norm = reshaped(p, g, product.shape), reshaped(p, norm, product.shape)
    per_norm = p.div(g, norm)
    along_v = p.mul(v, expand(p, p.div(product, p.mul(norm, norm)), v.shape))
    by_v = p.mul(expand(p, per_norm, v.shape), p.sub(grad, along_v))
    by_g = reshaped(p, p.div(product, norm), saved_g.shape)
    return to_dtype(p, by_v, saved_v.dtype), to_dtype(p, by_g, saved_g.dtype)


@decomposition("aten._cdist_forward.default")
def cdist(p: Any, x1: Value, x2: Value, order: float, compute_mode: int | None) -> Value:
    """Distances [..., n, m] between the rows of [..., n, k] and [..., m, k]."""
    batch = broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    shape = (*batch, x1.shape[-2], x2.shape[-2], x1.shape[-1])
    a, b = expand(p, unsqueeze(p, x1, x1.ndim - 1), shape), expand(p, unsqueeze(p, x2, x2.ndim - 2), shape)
    gap = p.abs(p.sub(a, b))
    last = (len(shape) - 1,)
    if order == 2:
        return p.sqrt(p.sum(p.mul(gap, gap), last))
    if order == 1:
        return p.sum(gap, last)
    if order == math.inf:
        return p.amax(gap, last)
    if order == 0:
        return p.sum(p.convert(p.ne(gap, 0.0), x1.dtype), last)
    return p.pow(p.sum(p.pow(gap, float(order)), last), 1.0 / float(order))


@decomposition("aten._trilinear.default")
def trilinear(
    p: Any,
    i1: Value,
    i2: Value,
    i3: Value,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Value:
    """Sum over `sumdim` of the product of the three tensors, each with dimensions of size 1 inserted."""
    dtype = i1.dtype
    wide = []
    for x, dims in ((i1, expand1), (i2, expand2), (i3, expand3)):
        x = to_dtype(p, x, opmath(dtype))
        for dim in sorted(dims):
            x = unsqueeze(p, x, dim)
        wide.append(x)
    shape = broadcast_shapes(*(x.shape for x in wide))
    a, b, c = (expand(p, x, shape) for x in wide)
    product = p.mul(p.mul(a, b), c)
    return to_dtype(p, p.sum(product, tuple(sumdim)) if sumdim else product, dtype)
