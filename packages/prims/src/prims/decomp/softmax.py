"""Softmax and its kin, forward and backward."""

from __future__ import annotations

import math
from typing import Any

import torch

from prims.decomp.common import Value, full_like, is_empty, norm_dim, opmath, spread, to_dtype
from prims.decomp.registry import decomposition
from prims.spec.promote import softmax_gradient_dtype


def _shifted(p: Any, x: Value, dims: tuple[int, ...]) -> Value:
    """x minus its largest element, so that exp() does not overflow."""
    if is_empty(x):
        return x
    return p.sub(x, spread(p, p.amax(x, dims), x.shape, dims)) if x.ndim else p.sub(x, x)


def _sum(p: Any, x: Value, dims: tuple[int, ...]) -> Value:
    return p.sum(x, dims) if x.ndim else x


def _spread(p: Any, x: Value, like: Value, dims: tuple[int, ...]) -> Value:
    return spread(p, x, like.shape, dims) if like.ndim else x


def _prepared(p: Any, self: Value, dim: int, half_to_float: bool) -> tuple[Value, torch.dtype, tuple[int, ...]]:
    out = torch.float32 if half_to_float else self.dtype
    return to_dtype(p, self, opmath(self.dtype)), out, (norm_dim(dim, self.ndim),)


@decomposition("aten._softmax.default")
def softmax(p: Any, self: Value, dim: int, half_to_float: bool) -> Value:
    """exp(x - max) / sum(exp(x - max)) along a dimension."""
    x, out, dims = _prepared(p, self, dim, half_to_float)
    e = p.exp(_shifted(p, x, dims))
    return to_dtype(p, p.div(e, _spread(p, _sum(p, e, dims), e, dims)), out)


@decomposition("aten._log_softmax.default")
def log_softmax(p: Any, self: Value, dim: int, half_to_float: bool) -> Value:
    """x - max - log(sum(exp(x - max))) along a dimension."""
    x, out, dims = _prepared(p, self, dim, half_to_float)
    shifted = _shifted(p, x, dims)
    total = p.log(_sum(p, p.exp(shifted), dims))
    return to_dtype(p, p.sub(shifted, _spread(p, total, x, dims)), out)


@decomposition("aten.softmax.int")
def softmax_int(p: Any, self: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
    """Softmax along a dimension, after a conversion."""
    return softmax(p, to_dtype(p, self, dtype), dim, False)


@decomposition("aten.log_softmax.int")
def log_softmax_int(p: Any, self: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
    """Logarithm of the softmax along a dimension, after a conversion."""
    return log_softmax(p, to_dtype(p, self, dtype), dim, False)


@decomposition("aten._safe_softmax.default")
def safe_softmax(p: Any, self: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
    """Softmax whose rows of nothing but -inf are 0 rather than NaN."""
    x = to_dtype(p, self, dtype)
    soft = softmax(p, x, dim, False)
    dims = (norm_dim(dim, x.ndim),)
    masked = p.eq(x, -math.inf)
    if x.ndim:
        masked = spread(p, p.all(masked, dims), x.shape, dims)
    return p.where(masked, full_like(p, soft, 0.0), soft)


@decomposition("aten._softmax_backward_data.default")
def softmax_backward(p: Any, grad_output: Value, output: Value, dim: int, input_dtype: torch.dtype) -> Value:
    """y * (grad - sum(grad * y))"""
    compute = opmath(grad_output.dtype)
    g, y = to_dtype(p, grad_output, compute), to_dtype(p, output, compute)
    dims = (norm_dim(dim, g.ndim),)
    total = _spread(p, _sum(p, p.mul(g, y), dims), g, dims)
    result = p.mul(p.sub(g, total), y)
    return to_dtype(p, result, softmax_gradient_dtype(grad_output.dtype, grad_output.device, input_dtype))


@decomposition("aten._log_softmax_backward_data.default")
def log_softmax_backward(p: Any, grad_output: Value, output: Value, dim: int, input_dtype: torch.dtype) -> Value:
    """grad - exp(y) * sum(grad)"""
    compute = opmath(grad_output.dtype)
    g, y = to_dtype(p, grad_output, compute), to_dtype(p, output, compute)
    dims = (norm_dim(dim, g.ndim),)
    total = _spread(p, _sum(p, g, dims), g, dims)
    result = p.sub(g, p.mul(p.exp(y), total))
    return to_dtype(p, result, softmax_gradient_dtype(grad_output.dtype, grad_output.device, input_dtype))
