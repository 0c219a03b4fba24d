"""Fused optimiser steps over lists of tensors, in their functional forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prims.decomp.common import Value, expand, is_value, numel, opmath, to_dtype, unsupported
from prims.decomp.registry import decomposition

Values = Sequence[Value]


def _scalar(p: Any, x: Any, like: Value) -> Any:
    """A 0-dim value or a number, usable beside `like`."""
    return p.broadcast(to_dtype(p, x, like.dtype), tuple(like.shape), ()) if is_value(x) else float(x)


def _corrections(p: Any, step: Value, lr: Any, beta1: float, beta2: float) -> tuple[Value, Value]:
    """lr / (1 - beta1^t) and sqrt(1 - beta2^t), in float64: in float32 1 - 0.999^t would lose most digits."""
    t = p.convert(step, torch.float64)
    first = p.sub(1.0, p.pow(float(beta1), t))
    second = p.sqrt(p.sub(1.0, p.pow(float(beta2), t)))
    rate = p.convert(lr, torch.float64) if is_value(lr) else float(lr)
    return p.div(rate, first), second


def _adam(p: Any, decoupled: bool, lists: Sequence[Values], lr: Any, kw: dict[str, Any]) -> tuple[Values, ...]:
    """One Adam step per tensor. Source: Kingma and Ba (2015); decoupled decay: Loshchilov and Hutter (2019)."""
    if kw.get("grad_scale") is not None or kw.get("found_inf") is not None:
        raise unsupported("a fused optimiser step with a gradient scaler")
    params, grads, firsts, seconds, maxima, steps = lists
    beta1, beta2, decay, eps = (float(kw[k]) for k in ("beta1", "beta2", "weight_decay", "eps"))
    out: list[list[Value]] = [[], [], [], [], []]
    for i, (param, grad, m, v, step) in enumerate(zip(params, grads, firsts, seconds, steps, strict=True)):
        compute = opmath(param.dtype)
        x, g, m32, v32 = (to_dtype(p, t, compute) for t in (param, grad, m, v))
        if kw["maximize"]:
            g = p.neg(g)
        if decay and decoupled:
            x = p.sub(x, p.mul(p.mul(x, _scalar(p, lr, x)), decay))
        elif decay:
            g = p.add(g, p.mul(x, decay))
        m32 = p.add(m32, p.mul(p.sub(g, m32), 1.0 - beta1))
        v32 = p.add(p.mul(v32, beta2), p.mul(p.mul(g, g), 1.0 - beta2))
        size, root = _corrections(p, step, lr, beta1, beta2)
        largest = v32
        if kw["amsgrad"]:
            largest = p.maximum(to_dtype(p, maxima[i], compute), v32)
            out[4].append(to_dtype(p, largest, maxima[i].dtype))
        denominator = p.add(p.div(p.sqrt(largest), _scalar(p, root, x)), eps)
        x = p.sub(x, p.div(p.mul(m32, _scalar(p, size, x)), denominator))
        for place, new, old in ((0, x, param), (2, m32, m), (3, v32, v)):
            out[place].append(to_dtype(p, new, old.dtype))
        out[1].append(grad)
    return tuple(tuple(values) for values in out)


def _register(name: str, decoupled: bool) -> None:
    def step(
        p: Any,
        self: Values,
        grads: Values,
        exp_avgs: Values,
        exp_avg_sqs: Values,
        max_exp_avg_sqs: Values,
        state_steps: Values,
        *,
        lr: Any,
        **kw: Any,
    ) -> tuple[Values, ...]:
        lists = (self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps)
        return _adam(p, decoupled, lists, lr, kw)

    decomposition(f"aten.{name}.default", f"aten.{name}.tensor_lr")(step)


_register("_fused_adam", False)
_register("_fused_adamw", True)


@decomposition("aten._fused_sgd.default", "aten._fused_sgd.tensor_lr")
def fused_sgd(
    p: Any,
    self: Values,
    grads: Values,
    momentum_buffer_list: Values,
    *,
    weight_decay: float,
    momentum: float,
    lr: Any,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Value | None = None,
    found_inf: Value | None = None,
) -> tuple[Values, Values, Values]:
    """One step of gradient descent with momentum per tensor."""
    if grad_scale is not None or found_inf is not None:
        raise unsupported("a fused optimiser step with a gradient scaler")
    params, buffers = [], []
    for i, (param, grad) in enumerate(zip(self, grads, strict=True)):
        compute = opmath(param.dtype)
        x, g = to_dtype(p, param, compute), to_dtype(p, grad, compute)
        if maximize:
            g = p.neg(g)
        if weight_decay:
            g = p.add(g, p.mul(x, float(weight_decay)))
        if momentum:
            old = momentum_buffer_list[i]
            if is_first_step:
                buffer = g
            else:
                buffer = p.add(p.mul(to_dtype(p, old, compute), float(momentum)), p.mul(g, 1.0 - dampening))
            buffers.append(to_dtype(p, buffer, old.dtype))
            g = p.add(g, p.mul(buffer, float(momentum))) if nesterov else buffer
        params.append(to_dtype(p, p.sub(x, p.mul(g, _scalar(p, lr, x))), param.dtype))
    return tuple(params), tuple(grads), tuple(buffers)


# ---- gradient scaling (`torch.amp.GradScaler`; Micikevicius et al., 2018) ---------------------------------


@decomposition("aten._amp_foreach_non_finite_check_and_unscale.default")
def unscale(p: Any, self: Values, found_inf: Value, inv_scale: Value) -> tuple[Values, Value]:
    """Gradients times ``inv_scale`` (left alone where it is 1), and 1.0 where one of their numbers is not finite."""
    grads = []
    for grad in self:
        x = to_dtype(p, grad, opmath(grad.dtype))
        strange = p.logical_or(p.isnan(x), p.isinf(x))
        strange = p.any(p.reshape(strange, (numel(strange),)), (0,))
        found_inf = p.where(p.reshape(strange, tuple(found_inf.shape)), 1.0, found_inf)
        factor = expand(p, p.reshape(to_dtype(p, inv_scale, x.dtype), ()), x.shape)
        grads.append(to_dtype(p, p.where(p.eq(factor, 1.0), x, p.mul(x, factor)), grad.dtype))
    return tuple(grads), found_inf


@decomposition("aten._amp_update_scale.default")
def update_scale(
    p: Any, self: Value, growth_tracker: Value, found_inf: Value, growth: float, backoff: float, interval: int
) -> tuple[Value, Value]:
    """The scale shrinks after a step that was skipped, and grows after ``interval`` steps that were not."""
    failed = p.ne(p.reshape(found_inf, tuple(self.shape)), 0.0)
    count = p.add(growth_tracker, 1)
    due = p.eq(count, interval)
    grown = p.mul(self, float(growth))
    fits = p.logical_not(p.logical_or(p.isnan(grown), p.isinf(grown)))
    here = p.reshape(due, tuple(self.shape))
    scale = p.where(failed, p.mul(self, float(backoff)), p.where(p.logical_and(here, fits), grown, self))
    rest = p.where(due, 0, count)
    return scale, p.where(p.reshape(failed, tuple(growth_tracker.shape)), 0, rest)
