"""Steps of optimizers whose step counts lie on a device other than the CPU, in words that read none of them.

Eager reads such counts (``step.item()``), and waits for the device once for each. Here they stay tensors without
dimensions, in float64 as Python's floats are, and what eager decides by them is selected by ``torch.where``. What the
library does for ``capturable=True`` would not do: its powers are float32's, so that ``1 - 0.999 ** t`` is wrong in its
fifth digit, and it divides by the learning rate, which may be 0.

Every function takes what the library's function of this name takes, and may not be used for sparse gradients.

Sources: those of :mod:`dynamo_capture.values.fused_steps`; Dozat (2016) for Nesterov's momentum in Adam; Liu et al.
(2020) for rectified Adam; Polyak and Juditsky (1992) for averaged gradient descent.
"""

from __future__ import annotations

from typing import Any

import torch

from dynamo_capture.values.fused_steps import (
    Number,
    Tensors,
    counted,
    decayed,
    fused_adagrad,
    fused_adam,
    moved,
    wide,
    write,
)  # fmt: skip

__all__ = ["DEVICE_STEPS"]


def adam(
    params: Tensors, grads: Tensors, exp_avgs: Tensors, exp_avg_sqs: Tensors, max_exp_avg_sqs: Tensors,
    state_steps: Tensors, grad_scale: Any = None, found_inf: Any = None, *, has_complex: bool, capturable: bool,
    differentiable: bool, decoupled_weight_decay: bool, **options: Any,
) -> None:  # fmt: skip
    """Adam, and AdamW where the decay is decoupled."""
    torch._foreach_add_(state_steps, 1)
    x, g, m, v, largest = (_real(some) for some in (params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs))
    fused_adam(x, g, m, v, largest, state_steps, decoupled=decoupled_weight_decay, **options)


def adagrad(
    params: Tensors, grads: Tensors, state_sums: Tensors, state_steps: Tensors, grad_scale: Any = None,
    found_inf: Any = None, *, has_sparse_grad: bool, differentiable: bool, has_complex: bool, **options: Any,
) -> None:  # fmt: skip
    """Adagrad."""
    torch._foreach_add_(state_steps, 1)
    fused_adagrad(_real(params), _real(grads), _real(state_sums), state_steps, **options)


def adamax(
    params: Tensors, grads: Tensors, exp_avgs: Tensors, exp_infs: Tensors, state_steps: Tensors, *, eps: float,
    beta1: Number, beta2: Number, lr: Number, weight_decay: float, maximize: bool, **unused: bool,
) -> None:  # fmt: skip
    """Adamax."""
    torch._foreach_add_(state_steps, 1)
    params, grads, exp_avgs, exp_infs = map(_real, (params, grads, exp_avgs, exp_infs))
    x, g = decayed(wide(params), _signed(grads, maximize), lr, weight_decay, False)
    m = torch._foreach_lerp(wide(exp_avgs), g, 1 - beta1)
    sizes = torch._foreach_add(torch._foreach_abs(g), eps)
    largest = torch._foreach_maximum(torch._foreach_mul(wide(exp_infs), beta2), sizes)
    rates = [lr / (1 - beta1**count) for count in map(counted, state_steps)]
    write([(params, moved(x, torch._foreach_div(m, largest), rates)), (exp_avgs, m), (exp_infs, largest)])


def nadam(
    params: Tensors, grads: Tensors, exp_avgs: Tensors, exp_avg_sqs: Tensors, mu_products: Tensors,
    state_steps: Tensors, *, beta1: Number, beta2: Number, lr: Number, weight_decay: float, momentum_decay: float,
    eps: float, decoupled_weight_decay: bool, maximize: bool, **unused: bool,
) -> None:  # fmt: skip
    """Adam with Nesterov's momentum."""
    torch._foreach_add_(state_steps, 1)
    counts = [counted(step) for step in state_steps]
    momenta = [beta1 * (1.0 - 0.5 * 0.96 ** (count * momentum_decay)) for count in counts]
    following = [beta1 * (1.0 - 0.5 * 0.96 ** ((count + 1) * momentum_decay)) for count in counts]
    torch._foreach_mul_(mu_products, [mu.to(product.dtype) for mu, product in zip(momenta, mu_products)])
    products = [product.double() for product in mu_products]

    params, grads, exp_avgs, exp_avg_sqs = map(_real, (params, grads, exp_avgs, exp_avg_sqs))
    x, g = decayed(wide(params), _signed(grads, maximize), lr, weight_decay, decoupled_weight_decay)
    m = torch._foreach_lerp(wide(exp_avgs), g, 1 - beta1)
    v = torch._foreach_addcmul(torch._foreach_mul(wide(exp_avg_sqs), beta2), g, g, 1 - beta2)
    roots = torch._foreach_sqrt(torch._foreach_div(v, [1 - beta2**count for count in counts]))
    denominators = torch._foreach_add(roots, eps)
    x = moved(x, torch._foreach_div(g, denominators),
              [lr * (1.0 - mu) / (1.0 - product) for mu, product in zip(momenta, products)])  # fmt: skip
    x = moved(x, torch._foreach_div(m, denominators),
              [lr * mu / (1.0 - product * mu) for mu, product in zip(following, products)])  # fmt: skip
    write([(params, x), (exp_avgs, m), (exp_avg_sqs, v)])


def radam(
    params: Tensors, grads: Tensors, exp_avgs: Tensors, exp_avg_sqs: Tensors, state_steps: Tensors, *, beta1: Number,
    beta2: Number, lr: Number, weight_decay: float, eps: float, decoupled_weight_decay: bool, maximize: bool,
    **unused: bool,
) -> None:  # fmt: skip
    """Rectified Adam."""
    torch._foreach_add_(state_steps, 1)
    params, grads, exp_avgs, exp_avg_sqs = map(_real, (params, grads, exp_avgs, exp_avg_sqs))
    x, g = decayed(wide(params), _signed(grads, maximize), lr, weight_decay, decoupled_weight_decay)
    m = torch._foreach_lerp(wide(exp_avgs), g, 1 - beta1)
    v = torch._foreach_addcmul(torch._foreach_mul(wide(exp_avg_sqs), beta2), g, g, 1 - beta2)
    denominators = torch._foreach_add(torch._foreach_sqrt(v), eps)
    longest = 2 / (1 - beta2) - 1
    rates, directions = [], []
    for step, momentum, denominator in zip(state_steps, m, denominators):
        count = counted(step)
        correction = 1 - beta2**count
        length = longest - 2 * count * beta2**count / correction
        is_long = length > 5.0
        known = torch.where(is_long, length, 5.0)  # of shorter ones the root may be of a negative number
        rectified = (known - 4) * (known - 2) * longest / ((longest - 4) * (longest - 2) * known)
        factor = (correction * rectified) ** 0.5
        directions.append(momentum * torch.where(is_long, factor.to(denominator.dtype) / denominator, 1.0))
        rates.append(lr / (1 - beta1**count))
    write([(params, moved(x, directions, rates)), (exp_avgs, m), (exp_avg_sqs, v)])


def asgd(
    params: Tensors, grads: Tensors, axs: Tensors, mus: Tensors, etas: Tensors, state_steps: Tensors, *, lambd: float,
    lr: Number, t0: float, alpha: float, weight_decay: float, maximize: bool, **unused: bool,
) -> None:  # fmt: skip
    """Averaged stochastic gradient descent."""
    torch._foreach_add_(state_steps, 1)
    params, grads, axs = map(_real, (params, grads, axs))
    x, g = decayed(wide(params), _signed(grads, maximize), lr, weight_decay, False)
    x = torch._foreach_mul(x, [(1 - lambd * eta.double()).to(p.dtype) for eta, p in zip(etas, x)])
    x = moved(x, g, [eta.double() for eta in etas])
    averages = [
        torch.where(mu == 1, p, mean + (p - mean) * mu) for p, mean, mu in zip(x, wide(axs), mus)
    ]  # fmt: skip
    counts = [counted(step) for step in state_steps]
    rates = [lr / (1 + lambd * lr * count) ** alpha for count in counts]
    shares = [1 / torch.clamp(count - t0, min=1) for count in counts]
    write([(params, x), (axs, averages), (etas, rates), (mus, shares)])


def _real(tensors: Tensors) -> Tensors:
    return [torch.view_as_real(x) if x.is_complex() else x for x in tensors]


def _signed(grads: Tensors, maximize: bool) -> Any:
    return torch._foreach_neg(wide(grads)) if maximize else wide(grads)


#: Module of ``torch.optim`` -> what is captured in place of its functions, and the options with which they read no
#: count or take gradients of another kind.
DEVICE_STEPS = {
    "adam": (adam, ("capturable", "differentiable")), "adagrad": (adagrad, ("has_sparse_grad",)),
    "adamax": (adamax, ("capturable",)), "nadam": (nadam, ("capturable",)), "radam": (radam, ("capturable",)),
    "asgd": (asgd, ("capturable",)),
}  # fmt: skip
