"""Composite operators of PyTorch that read tensors of numbers where sizes tell them: captured as Python in their place.

Each has its operator's parameters, and calls it whole where the numbers do depend on data or it would warn or raise.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F

__all__ = [
    "BODIES_OF_EXAMPLES", "TENSOR_MAKERS", "batch_norm_at_a_rate", "body_of", "corrcoef", "cov", "cross_entropy",
    "has_gradient_of_a_mask", "index_fill", "index_put", "index_put_", "nll_loss", "of_number", "of_numbers",
    "set_by_mask",
]  # fmt: skip


def cov(input: Any, *, correction: int = 1) -> Any:
    """The covariance matrix of the rows of ``input``, (variables, observations) or (observations,)."""
    rows = input if input.ndim > 1 else input.view(1, -1)
    if rows.ndim > 2 or rows.dtype == torch.bool or rows.shape[1] <= correction:
        return torch.ops.aten.cov.default(input, correction=correction)
    count = torch.full((), rows.shape[1], dtype=torch.int64, device=rows.device)
    centred = rows - (rows.sum(1) / count).unsqueeze(1)
    return (centred.mm(centred.t().conj()) / (count - correction)).squeeze()


def corrcoef(input: Any) -> Any:
    """The correlation coefficients of the rows of ``input``, (variables, observations) or (observations,)."""
    c = cov(input)
    if c.ndim == 0:
        return c / c
    variances = c.diag()
    deviations = (variances.real if variances.is_complex() else variances).sqrt()
    c = c / deviations.view(-1, 1) / deviations.view(1, -1)
    return torch.complex(c.real.clip(-1, 1), c.imag.clip(-1, 1)) if c.is_complex() else c.clip(-1, 1)


def index_fill(input: Any, dim: int, index: Any, value: Any) -> Any:
    """``torch.index_fill``. PyTorch sums the gradient of ``value`` over unique indices: as many as the data say."""
    if not isinstance(value, torch.Tensor) or not value.requires_grad or value.ndim:
        return torch.ops.aten.index_fill(input, dim, index, value)
    shape = [1] * input.ndim
    if shape:
        shape[dim] = input.shape[dim]
    chosen = torch.zeros(shape, dtype=torch.bool, device=input.device).index_fill(dim, index, True)
    return torch.where(chosen, value.to(input.dtype), input)


def index_put(input: Any, indices: Any, values: Any, accumulate: Any = False) -> Any:
    """``torch.index_put``. By a mask PyTorch takes the gradient of ``values`` from as many elements as the data say."""
    if len(indices) != 1 or not has_gradient_of_a_mask(input, indices[0], values, 0):
        return torch.ops.aten.index_put(input, indices, values, accumulate)
    return put_by_mask(input, indices[0], values, 0, accumulate)


def index_put_(input: Any, indices: Any, values: Any, accumulate: Any = False) -> Any:
    """``torch.index_put_``, in the same way."""
    if len(indices) != 1 or not has_gradient_of_a_mask(input, indices[0], values, 0):
        return torch.ops.aten.index_put_(input, indices, values, accumulate)
    return input.copy_(put_by_mask(input, indices[0], values, 0, accumulate))


def has_gradient_of_a_mask(input: Any, mask: Any, values: Any, dim: int) -> bool:
    """Whether it is a mask over dimensions from ``dim`` on, whose values get a gradient, and none that PyTorch refuses.

    Not one after another on a GPU: their number would be asserted there, which ends the process's use of it.
    """
    if not isinstance(mask, torch.Tensor) or not isinstance(values, torch.Tensor):
        return False
    if mask.dtype != torch.bool or not mask.ndim or not values.requires_grad or values.dtype != input.dtype:
        return False
    behind = input.ndim - mask.ndim - dim
    if behind < 0 or tuple(input.shape[dim : dim + mask.ndim]) != tuple(mask.shape):
        return False
    if not values.numel() or not input.numel() or values.ndim > dim + 1 + behind:
        return False
    return input.device.type == "cpu" or values.ndim <= behind


def put_by_mask(input: Any, mask: Any, values: Any, dim: int, accumulate: Any = False) -> Any:
    """``input`` with ``values`` (or increased by them) where a mask, over dimensions from ``dim`` on, is true: one for
    all, or one after another. Their number is asserted to be that of the mask's elements."""
    behind = input.ndim - dim - mask.ndim
    chosen = mask.reshape(*mask.shape, *[1] * behind)
    if values.ndim > behind and values.shape[values.ndim - behind - 1] != 1:
        at = values.ndim - behind - 1
        count = values.shape[at]
        seen = mask.reshape(-1).cumsum(0)
        torch._assert_async(seen[-1] == count)
        rows = values.index_select(at, (seen - 1).clamp(0, count - 1))
        values = rows.reshape(*values.shape[:at], *mask.shape, *values.shape[at + 1 :])
    elif values.ndim > behind:
        at = values.ndim - behind - 1
        values = values.reshape(*values.shape[:at], *[1] * mask.ndim, *values.shape[at + 1 :])
    values = values.expand(input.shape)  # which refuses what is no value of the places
    return torch.where(chosen, input + values if accumulate else values, input)


def set_by_mask(input: Any, mask: Any, values: Any, dim: int) -> None:
    """``input[mask] = values``, the mask behind ``dim`` whole dimensions."""
    input.copy_(put_by_mask(input, mask, values, dim))


def of_number(data: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """A tensor of a symbolic number, of which ``torch.tensor`` would take the value that it has in this call."""
    if isinstance(data, float):
        if dtype is not None and not dtype.is_floating_point:
            return torch.full((), data, device=device).to(dtype)
        return torch.full((), data, dtype=torch.get_default_dtype() if dtype is None else dtype, device=device)
    return torch.full((), data, dtype=torch.int64 if dtype is None else dtype, device=device)


def of_numbers(data: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """A tensor of a list or tuple of numbers, of which some are symbolic."""
    if dtype is None:
        dtype = torch.get_default_dtype() if any(isinstance(number, float) for number in data) else torch.int64
    return torch.stack([of_number(number, dtype=dtype, device=device) for number in data])


def batch_norm_at_a_rate(
    input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: Any = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """``F.batch_norm`` in training with a momentum that is a number of the graph, as where each batch counts alike."""
    mean, variance = torch.zeros_like(running_mean), torch.zeros_like(running_var)
    result = torch.nn.functional.batch_norm(input, mean, variance, weight, bias, training, 1.0, eps)
    if not input.numel():
        return result  # of nothing, nothing is kept
    with torch.no_grad():
        running_mean.mul_(1 - momentum).add_(mean * momentum)
        running_var.mul_(1 - momentum).add_(variance * momentum)
    return result


#: What makes a tensor of a Python number.
TENSOR_MAKERS = frozenset((torch.tensor, torch.as_tensor, torch.scalar_tensor))


def nll_loss(input: Any, target: Any, weight: Any = None, *, ignore_index: int = -100, reduction: str = "mean") -> Any:
    """``F.nll_loss``, of ``input`` (classes,), (rows, classes) or (rows, classes, ...)."""
    dim = 0 if input.ndim == 1 else 1
    counts = target != ignore_index
    chosen = torch.where(counts, target, 0)
    losses = -input.gather(dim, chosen.unsqueeze(dim)).squeeze(dim)
    weights = counts.to(input.dtype)
    if weight is not None:
        weights = weights * weight.gather(0, chosen.reshape(-1)).reshape(chosen.shape)
    losses = torch.where(counts, losses * weights, 0)
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / weights.sum()


def cross_entropy(
    input: Any, target: Any, weight: Any = None, *, ignore_index: int = -100, reduction: str = "mean"
) -> Any:
    """``F.cross_entropy`` with classes as its target."""
    return nll_loss(
        F.log_softmax(input, 0 if input.ndim == 1 else 1),
        target,
        weight,
        ignore_index=ignore_index,
        reduction=reduction,
    )


#: What is captured in a vmapped function: PyTorch has no batching rules for these.
BODIES_OF_EXAMPLES = {F.nll_loss: nll_loss, F.cross_entropy: cross_entropy}

_BODIES = {
    getattr(owner, body.__name__): body
    for owner in (torch, torch.Tensor)
    for body in (cov, corrcoef, index_fill, index_put, index_put_)
}


def body_of(operator: Any, keywords: Iterable[str]) -> Callable[..., Any] | None:
    """What is captured for an operator (a function or a method); None: it itself, as where a keyword is not known."""
    body = _BODIES.get(operator)
    if body is None or not set(keywords) <= set(inspect.signature(body).parameters):
        return None
    return body
