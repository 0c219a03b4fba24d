"""Loss functions, forward and backward. `reduction` is 0 for none, 1 for the mean, 2 for the sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from prims.decomp.common import (
    Value,
    along,
    expand,
    full_like,
    number,
    numel,
    operands,
    opmath,
    required,
    result_dtype,
    to_dtype,
    unsupported,
)
from prims.decomp.registry import decomposition

NONE, MEAN, SUM = 0, 1, 2


def reduce_loss(p: Any, loss: Value, reduction: int) -> Value:
    """The loss per element, its mean or its sum."""
    if reduction == NONE:
        return loss
    total = p.sum(loss, tuple(range(loss.ndim))) if loss.ndim else loss
    return total if reduction == SUM else p.div(total, number(numel(loss), loss.dtype))


def _elementwise_loss(
    p: Any, self: Value, target: Value, reduction: int, formula: Callable[..., Value], dtype: torch.dtype | None = None
) -> Value:
    common = result_dtype(self, target)
    x, y = operands(p, self, target, dtype=opmath(common))
    return to_dtype(p, reduce_loss(p, formula(x, y), reduction), dtype or common)


def _loss_gradient(
    p: Any, grad: Value, self: Value, target: Value, reduction: int, formula: Callable[..., Value], factor: float = 1.0
) -> Value:
    """grad * d loss / d self, the mean's divisor applied to the slope; what is made larger then is no infinity yet."""
    dtype = result_dtype(self, target)
    x, y, g = operands(p, self, target, grad, dtype=opmath(dtype))
    slope = formula(x, y)
    if reduction == MEAN:
        slope = p.div(slope, number(numel(slope), slope.dtype))
    if factor != 1.0:
        slope = p.mul(slope, factor)
    return to_dtype(p, p.mul(slope, g), dtype)


@decomposition("aten.mse_loss.default")
def mse_loss(p: Any, self: Value, target: Value, reduction: int = MEAN) -> Value:
    """(x - y)^2"""
    if not result_dtype(self, target).is_floating_point:
        raise unsupported("the mean squared error of integers")

    def formula(x: Value, y: Value) -> Value:
        gap = p.sub(x, y)
        return p.mul(gap, gap)

    return _elementwise_loss(p, self, target, reduction, formula)


@decomposition("aten.mse_loss_backward.default")
def mse_loss_backward(p: Any, grad_output: Value, self: Value, target: Value, reduction: int) -> Value:
    """2 (x - y) grad"""
    return _loss_gradient(p, grad_output, self, target, reduction, p.sub, 2.0)


@decomposition("aten.l1_loss.default")
def l1_loss(p: Any, self: Value, target: Value, reduction: int = MEAN) -> Value:
    """|x - y|"""
    return _elementwise_loss(p, self, target, reduction, lambda x, y: p.abs(p.sub(x, y)))


@decomposition("aten.smooth_l1_loss.default")
def smooth_l1_loss(p: Any, self: Value, target: Value, reduction: int = MEAN, beta: float = 1.0) -> Value:
    """gap^2 / (2 beta) below beta, gap - beta / 2 above."""

    def formula(x: Value, y: Value) -> Value:
        gap = p.abs(p.sub(x, y))
        if beta == 0:
            return gap
        near = p.div(p.mul(p.mul(gap, gap), 0.5), float(beta))
        return p.where(p.lt(gap, float(beta)), near, p.sub(gap, 0.5 * beta))

    return _elementwise_loss(p, self, target, reduction, formula)


@decomposition("aten.smooth_l1_loss_backward.default")
def smooth_l1_loss_backward(
    p: Any, grad_output: Value, self: Value, target: Value, reduction: int, beta: float
) -> Value:
    """gap / beta inside [-beta, beta], its sign outside; a gap that is NaN is neither."""

    def formula(x: Value, y: Value) -> Value:
        gap = p.sub(x, y)
        if beta == 0:
            return p.sign(gap)
        return p.where(p.ge(p.abs(gap), float(beta)), p.sign(gap), p.div(gap, float(beta)))

    return _loss_gradient(p, grad_output, self, target, reduction, formula)


@decomposition("aten.huber_loss.default")
def huber_loss(p: Any, self: Value, target: Value, reduction: int = MEAN, delta: float = 1.0) -> Value:
    """gap^2 / 2 up to delta, delta (gap - delta / 2) above."""

    def formula(x: Value, y: Value) -> Value:
        gap = p.abs(p.sub(x, y))
        near = p.mul(p.mul(gap, gap), 0.5)
        return p.where(p.le(gap, float(delta)), near, p.mul(p.sub(gap, 0.5 * delta), float(delta)))

    return _elementwise_loss(p, self, target, reduction, formula, self.dtype)


@decomposition("aten.huber_loss_backward.default")
def huber_loss_backward(p: Any, grad_output: Value, self: Value, target: Value, reduction: int, delta: float) -> Value:
    """The gap, clamped to [-delta, delta]."""
    d = float(delta)
    return _loss_gradient(
        p, grad_output, self, target, reduction, lambda x, y: p.minimum(p.maximum(p.sub(x, y), -d), d)
    )


@decomposition("aten.soft_margin_loss.default")
def soft_margin_loss(p: Any, self: Value, target: Value, reduction: int = MEAN) -> Value:
    """log(1 + exp(-x y))"""
    return _elementwise_loss(p, self, target, reduction, lambda x, y: p.log1p(p.exp(p.neg(p.mul(x, y)))), self.dtype)


@decomposition("aten.soft_margin_loss_backward.default")
def soft_margin_loss_backward(p: Any, grad_output: Value, self: Value, target: Value, reduction: int) -> Value:
    """-y z / (1 + z), z = exp(-x y)"""

    def formula(x: Value, y: Value) -> Value:
        z = p.exp(p.neg(p.mul(x, y)))
        return p.div(p.mul(p.neg(y), z), p.add(z, 1.0))

    return _loss_gradient(p, grad_output, self, target, reduction, formula)


# ---- binary cross-entropy -------------------------------------------------------------------------------


def _weighted(p: Any, loss: Value, weight: Value | None) -> Value:
    return loss if weight is None else p.mul(loss, expand(p, to_dtype(p, weight, loss.dtype), loss.shape))


@decomposition("aten.binary_cross_entropy.default")
def binary_cross_entropy(
    p: Any, self: Value, target: Value, weight: Value | None = None, reduction: int = MEAN
) -> Value:
    """(y - 1) log(1 - x) - y log(x), logarithms no lower than -100 (as eager does); both from 0 to 1."""

    def formula(x: Value, y: Value) -> Value:
        x, y = (required(p, v, p.logical_and(p.ge(v, 0.0), p.le(v, 1.0))) for v in (x, y))
        log_not = p.maximum(p.log1p(p.neg(x)), -100.0)
        log_yes = p.maximum(p.log(x), -100.0)
        return _weighted(p, p.sub(p.mul(p.sub(y, 1.0), log_not), p.mul(y, log_yes)), weight)

    return _elementwise_loss(p, self, target, reduction, formula)


@decomposition("aten.binary_cross_entropy_backward.default")
def binary_cross_entropy_backward(
    p: Any, grad_output: Value, self: Value, target: Value, weight: Value | None = None, reduction: int = MEAN
) -> Value:
    """(x - y) / max(x (1 - x), 1e-12)"""

    def formula(x: Value, y: Value) -> Value:
        spread_ = p.maximum(p.mul(p.sub(1.0, x), x), 1e-12)
        return _weighted(p, p.div(p.sub(x, y), spread_), weight)

    return _loss_gradient(p, grad_output, self, target, reduction, formula)


@decomposition("aten.binary_cross_entropy_with_logits.default")
def binary_cross_entropy_with_logits(
    p: Any,
    self: Value,
    target: Value,
    weight: Value | None = None,
    pos_weight: Value | None = None,
    reduction: int = MEAN,
) -> Value:
    """(1 - y) x - (1 + (w - 1) y) log(sigmoid(x))"""

    def formula(x: Value, y: Value) -> Value:
        log_sig = p.sub(p.minimum(x, 0.0), p.log1p(p.exp(p.neg(p.abs(x)))))
        if pos_weight is not None:
            w = expand(p, to_dtype(p, pos_weight, x.dtype), x.shape)
            log_sig = p.mul(log_sig, p.add(p.mul(p.sub(w, 1.0), y), 1.0))
        return _weighted(p, p.sub(p.mul(p.sub(1.0, y), x), log_sig), weight)

    return _elementwise_loss(p, self, target, reduction, formula, target.dtype)


# ---- negative log-likelihood ----------------------------------------------------------------------------


def _class_weights(p: Any, x: Value, weight: Value | None, at: Value, valid: Value) -> Value:
    """Each target's class weight, 0 where it is ignored."""
    if weight is None:
        return p.convert(valid, x.dtype)
    return p.where(valid, p.index(to_dtype(p, weight, x.dtype), (at,), (0,)), 0.0)


def _targets(p: Any, target: Value, ignore_index: int) -> tuple[Value, Value]:
    """Targets with ignored ones replaced by class 0, and which are not ignored."""
    target = to_dtype(p, target, torch.int64)
    valid = p.ne(target, ignore_index)
    return p.where(valid, target, 0), valid


def _nll(
    p: Any, self: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> tuple[Value, Value]:
    """Classes are dimension 1 of `self` (dimension 0 of a vector)."""
    dtype = self.dtype
    x = to_dtype(p, self, opmath(dtype))
    dim = 1 if x.ndim > 1 else 0
    at, valid = _targets(p, target, ignore_index)
    shape = (*x.shape[:dim], 1, *x.shape[dim + 1 :])
    picked = p.reshape(p.gather(x, p.reshape(at, shape), dim), tuple(at.shape))
    w = _class_weights(p, x, weight, at, valid)
    if weight is None:
        loss = p.where(valid, p.neg(picked), 0.0)
    else:
        loss = p.where(valid, p.neg(p.mul(picked, w)), 0.0)
    everything = tuple(range(loss.ndim))
    if reduction == NONE and x.ndim > 1:
        return to_dtype(p, loss, dtype), p.full((), 0.0, dtype, self.device)
    total_weight = p.sum(w, everything) if everything else w
    # Eager adds to zero, so that the loss of a certain class is 0.0 rather than its negative.
    total = p.add(p.sum(loss, everything) if everything else loss, 0.0)
    if reduction == MEAN:
        total = p.div(total, total_weight)
    return to_dtype(p, total, dtype), to_dtype(p, total_weight, dtype)


@decomposition("aten.nll_loss_forward.default")
def nll_loss_forward(
    p: Any, self: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> tuple[Value, Value]:
    """-weight[target] * x[target]; and the sum of the weights. `self` is [n, c] or [c]."""
    if self.ndim == 1 and target.ndim == 1:
        out, total = _nll(p, self, p.reshape(target, ()), weight, reduction, ignore_index)
        return out, total
    return _nll(p, self, target, weight, reduction, ignore_index)


@decomposition("aten.nll_loss2d_forward.default")
def nll_loss2d_forward(
    p: Any, self: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> tuple[Value, Value]:
    """The same for [n, c, h, w]."""
    return _nll(p, self, target, weight, reduction, ignore_index)


@decomposition("aten.nll_loss_backward.default", "aten.nll_loss2d_backward.default")
def nll_loss_backward(
    p: Any,
    grad_output: Value,
    self: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
    total_weight: Value,
) -> Value:
    """-weight[target] * grad at the target's class, 0 elsewhere."""
    compute = opmath(self.dtype)
    dim = 1 if self.ndim > 1 else 0
    if self.ndim == 1 and target.ndim == 1:
        target = p.reshape(target, ())
    at, valid = _targets(p, target, ignore_index)
    grad = to_dtype(p, grad_output, compute)
    if reduction == MEAN:
        grad = p.div(grad, to_dtype(p, total_weight, compute))
    x = full_like(p, at, 0.0, compute)
    each = p.neg(p.mul(_class_weights(p, x, weight, at, valid), expand(p, grad, at.shape)))
    # A masked class has weight 0, but 0 * inf must not become NaN.
    each = p.where(valid, each, 0.0)
    kept = tuple(d for d in range(self.ndim) if d != dim)
    shape = tuple(self.shape)
    classes = along(p, p.iota(shape[dim], 0, 1, torch.int64, self.device), shape, dim)
    chosen = p.eq(p.broadcast(at, shape, kept), classes)
    return to_dtype(p, p.where(chosen, p.broadcast(each, shape, kept), 0.0), self.dtype)


# ---- the rest -------------------------------------------------------------------------------------------


@decomposition("aten.kl_div.default")
def kl_div(p: Any, self: Value, target: Value, reduction: int = MEAN, *, log_target: bool = False) -> Value:
    """y (log y - x), 0 where y is 0; y is exp(target) where log_target."""

    def formula(x: Value, y: Value) -> Value:
        if log_target:
            return p.mul(p.exp(y), p.sub(y, x))
        own = p.where(p.eq(y, 0.0), 0.0, p.mul(y, p.log(y)))
        return p.sub(own, p.mul(y, x))

    return _elementwise_loss(p, self, target, reduction, formula)
