"""Optimizer steps that are captured in other words: the fused ones (``torch._fused_adamw_``), and Adafactor's.

The operators take their hyperparameters as numbers fixed in the graph, and have kernels that no other work can join.
Here the numbers of a step may change, and its rows are fused like any others. As in the fused kernels, sums are in
float32 for 16-bit tensors, and where ``found_inf`` is 1 nothing changes.

Adafactor reads norms of what it computes, to take the larger of two numbers; here those numbers stay tensors.

Sources: Kingma and Ba (2015) for Adam; Loshchilov and Hutter (2019) for decoupled decay; Reddi et al. (2018) for the
maxima; Duchi et al. (2011) for Adagrad; Sutskever et al. (2013) for momentum;
Shazeer and Stern (2018) for Adafactor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["FUSED_STEPS", "Number", "Tensors", "adafactor", "counted", "decayed", "moved", "wide", "write"]

Tensors = Sequence[torch.Tensor]
Number = Any  # a float, or a tensor without dimensions


def fused_adam(
    self: Tensors, grads: Tensors, exp_avgs: Tensors, exp_avg_sqs: Tensors, max_exp_avg_sqs: Tensors,
    state_steps: Tensors, *, lr: Number, beta1: Number, beta2: Number, weight_decay: float, eps: float, amsgrad: bool,
    maximize: bool, grad_scale: Number = None, found_inf: Number = None, decoupled: bool = False,
) -> None:  # fmt: skip
    """``torch._fused_adam_``; one row of each list is one parameter."""
    g, unscaled = _gradients(grads, grad_scale, maximize)
    x, g = decayed(wide(self), g, lr, weight_decay, decoupled)
    m = torch._foreach_lerp(wide(exp_avgs), g, 1 - beta1)
    v = torch._foreach_addcmul(torch._foreach_mul(wide(exp_avg_sqs), beta2), g, g, 1 - beta2)
    largest = torch._foreach_maximum(wide(max_exp_avg_sqs), v) if amsgrad else v
    counts = [counted(step) for step in state_steps]
    roots = [(1 - beta2**count) ** 0.5 for count in counts]
    denominators = torch._foreach_add(torch._foreach_div(torch._foreach_sqrt(largest), roots), eps)
    x = moved(x, torch._foreach_div(m, denominators), [lr / (1 - beta1**count) for count in counts])
    maxima = [(max_exp_avg_sqs, largest)] if amsgrad else []
    write([(self, x), (exp_avgs, m), (exp_avg_sqs, v), *maxima, *unscaled], found_inf)


def fused_adamw(
    self: Tensors, grads: Tensors, exp_avgs: Tensors, exp_avg_sqs: Tensors, max_exp_avg_sqs: Tensors,
    state_steps: Tensors, **options: Any,
) -> None:  # fmt: skip
    """``torch._fused_adamw_``: decay of the parameters themselves."""
    fused_adam(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, decoupled=True, **options)


def fused_adagrad(
    self: Tensors, grads: Tensors, state_sums: Tensors, state_steps: Tensors, *, lr: Number, lr_decay: float,
    weight_decay: float, eps: float, maximize: bool, grad_scale: Number = None, found_inf: Number = None,
) -> None:  # fmt: skip
    """``torch._fused_adagrad_``."""
    g, unscaled = _gradients(grads, grad_scale, maximize)
    x, g = decayed(wide(self), g, lr, weight_decay, False)
    sums = torch._foreach_addcmul(wide(state_sums), g, g)
    rates = [lr / (1 + (counted(step) - 1) * lr_decay) for step in state_steps]
    quotients = torch._foreach_div(g, torch._foreach_add(torch._foreach_sqrt(sums), eps))
    write([(self, moved(x, quotients, rates)), (state_sums, sums), *unscaled], found_inf)


def fused_sgd(
    self: Tensors, grads: Tensors, momentum_buffer_list: Tensors, *, weight_decay: float, momentum: float, lr: Number,
    dampening: float, nesterov: bool, maximize: bool, is_first_step: bool, grad_scale: Number = None,
    found_inf: Number = None,
) -> None:  # fmt: skip
    """``torch._fused_sgd_``; without momentum the buffers are no list of tensors."""
    g, written = _gradients(grads, grad_scale, maximize)
    x, g = decayed(wide(self), g, lr, weight_decay, False)
    if momentum != 0:
        if is_first_step:
            buffers: Any = g
        else:
            kept = torch._foreach_mul(wide(momentum_buffer_list), momentum)
            buffers = torch._foreach_add(kept, g, alpha=1 - dampening)
        written.append((momentum_buffer_list, buffers))
        g = torch._foreach_add(g, buffers, alpha=momentum) if nesterov else buffers
    write([(self, moved(x, g, [lr] * len(x))), *written], found_inf)


def adafactor(
    params: Tensors, grads: Tensors, row_vars: Sequence[Any], col_vars: Sequence[Any], variances: Sequence[Any],
    state_steps: Tensors, grad_scale: Any, found_inf: Any, *, d: float, lr: Number, beta2_decay: float,
    weight_decay: float, eps1: float | None, eps2: float, maximize: bool, has_complex: bool,
) -> None:  # fmt: skip
    """Adafactor's step on each parameter: a matrix's second moments are means of rows and of columns."""
    if grad_scale is not None or found_inf is not None:
        raise AssertionError("Grad scaling should occur outside of optimizer.step()")
    for param, grad, rows, columns, variance, step in zip(params, grads, row_vars, col_vars, variances, state_steps):
        least = torch.finfo(param.dtype).eps if eps1 is None else eps1
        g = -grad if maximize else grad
        step += 1
        count = counted(step)
        share = _like(count**beta2_decay, g)
        rate = _at_least(param.norm(2).double() / param.numel() ** 0.5, eps2) * _at_most(lr, 1 / count**0.5)
        if weight_decay != 0:
            param.mul_(1 - lr * weight_decay)
        if g.dim() > 1:
            rows.lerp_(torch.norm(g, dim=-1, keepdim=True).square() / g.size(-1), share)
            columns.lerp_(torch.norm(g, dim=-2, keepdim=True).square() / g.size(-2), share)
            estimate = (rows @ columns) / rows.mean(dim=-2, keepdim=True).clamp(min=least)
        else:
            variance.lerp_(g * g, share)
            estimate = variance
        update = estimate.clamp(min=least * least).rsqrt() * g
        clipped = _at_least(update.norm(2).double() / (update.numel() ** 0.5 * d), 1.0)
        param.sub_(update * (rate / clipped).to(update.dtype))


def _at_least(x: torch.Tensor, least: Any) -> torch.Tensor:
    """``max(least, x)`` as Python computes it, which of a NaN makes ``least``."""
    return torch.where(x > least, x, least)


def _at_most(x: Number, other: Number) -> Number:
    """``min(x, other)``, which are both no NaN."""
    return torch.where(other < x, other, x) if isinstance(other, torch.Tensor) else min(x, other)


def _like(number: Number, x: torch.Tensor) -> Number:
    return number.to(x.dtype) if isinstance(number, torch.Tensor) else number


def wide(tensors: Tensors) -> list[torch.Tensor]:
    """What is computed with: float32 for 16-bit tensors."""
    return [x.float() if x.dtype in (torch.float16, torch.bfloat16) else x for x in tensors]


def _gradients(grads: Tensors, scale: Number, maximize: bool) -> tuple[Any, list[Any]]:
    """What is descended along, and the unscaled gradients that take the place of scaled ones."""
    g: Any = wide(grads)
    unscaled: list[Any] = []
    if scale is not None:
        g = torch._foreach_div(g, scale)
        unscaled = [(grads, g)]
    return (torch._foreach_neg(g) if maximize else g), unscaled


def decayed(x: Any, g: Any, lr: Number, weight_decay: float, decoupled: bool) -> tuple[Any, Any]:
    """The parameters and the gradients after weight decay, which is of the parameters themselves or decoupled."""
    if weight_decay != 0 and decoupled:
        x = torch._foreach_mul(x, 1 - lr * weight_decay)
    elif weight_decay != 0:
        g = torch._foreach_add(g, x, alpha=weight_decay)
    return x, g


def counted(step: torch.Tensor) -> Number:
    """A step count to compute with in float64: in float32, 1 - 0.999 ** t would lose most of its digits."""
    return step.item() if step.device.type == "cpu" else step.double()


def moved(x: Any, directions: Any, rates: list[Number]) -> Any:
    """``x`` less each direction times its rate."""
    if isinstance(rates[0], torch.Tensor):
        return torch._foreach_sub(x, torch._foreach_mul(directions, [rate.to(d.dtype) for rate, d in zip(rates, x)]))
    return torch._foreach_sub(x, torch._foreach_mul(directions, rates))


def write(pairs: list[Any], found_inf: Number = None) -> None:
    """Write tensors, as pairs of the tensors and their values, unless ``found_inf`` is 1."""
    for targets, values in pairs:
        if found_inf is not None:
            skipped = found_inf.reshape(()) == 1
            values = [torch.where(skipped, target.to(value.dtype), value) for target, value in zip(targets, values)]
        torch._foreach_copy_(targets, values)


#: Operator -> what is captured in its place.
FUSED_STEPS = {
    getattr(torch, name): step
    for name, step in (("_fused_adam_", fused_adam), ("_fused_adamw_", fused_adamw), ("_fused_sgd_", fused_sgd),
                       ("_fused_adagrad_", fused_adagrad))
    if hasattr(torch, name)
}  # fmt: skip
