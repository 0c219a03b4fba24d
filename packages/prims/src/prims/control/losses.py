"""A loss that is a function of logits, ``hidden @ weight.T + bias``, which nothing else reads: by chunks of their rows.

With a vocabulary of 50,000 the logits are the largest tensor of a language model's training step, and their gradient is
as large. Here neither exists whole. In the aten and prim dialects the loss is an operator
(:func:`prims.control.control_operator`) whose body is the function::

    linear_loss  (hidden [n, h], weight [v, h], bias [v]?, *sliced [n, ...], *read)  -> loss [], *gradients

The body takes ``(logits [rows, v], *sliced [rows, ...], *read)`` and gives its rows' share of the loss and, where a
gradient is asked for, that of its logits. The last chunk is filled up with zeros, of which the body is to make nothing:
the last of ``sliced`` is each row's factor in the loss.

The gradients are those for a tangent of 1, computed with the loss while a chunk's logits exist (as Liger Kernel does;
Hsu and others, 2024), and the backward pass multiplies them by the tangent. To compute the logits once more there would
take no memory for the weight's gradient between the passes, but a third more products: 4 instead of 3 of ``n * v * h``,
and that gradient exists when the backward pass begins all the same. What is lost is a tangent that the gradients of
logits need, in order to be numbers of few exponent bits: float16 is not for this operator.

Gradients of weights and biases are sums over chunks, which 16 bits would round at every chunk; they are in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from prims.spec import TensorSpec

if TYPE_CHECKING:
    from prims.control.form import Form

__all__ = ["by_chunks", "loss_results", "summed_in"]

_Body = Callable[..., Sequence[torch.Tensor]]


def summed_in(dtype: torch.dtype) -> torch.dtype:
    """The type of sums over chunks for hidden states of this type."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def loss_results(learns: Sequence[str], loss: TensorSpec, args: Sequence[Any]) -> list[TensorSpec]:
    """The metadata of what the operator returns, of that of what it takes and of the body's loss."""
    hidden, weight = args[:2]
    dtype = summed_in(hidden.dtype)
    specs = {
        "hidden": TensorSpec(hidden.shape, hidden.dtype, hidden.device),
        "weight": TensorSpec(weight.shape, dtype, weight.device),
        "bias": TensorSpec(weight.shape[:1], dtype, weight.device),
    }
    return [loss, *(specs[name] for name in learns)]


@torch.no_grad()
def by_chunks(form: Form, body: _Body, args: Sequence[Any]) -> list[torch.Tensor]:
    """What ``linear_loss`` returns; the body may be compiled."""
    hidden, weight, *rest = args
    bias = rest.pop(0) if form.biased else None
    sliced, read = rest[: form.sliced], rest[form.sliced :]
    count, rows = hidden.shape[0], form.rows
    kept = {"dtype": summed_in(hidden.dtype), "device": hidden.device}
    results = {
        "hidden": lambda: torch.empty(hidden.shape, dtype=hidden.dtype, device=hidden.device),
        "weight": lambda: torch.zeros(weight.shape, **kept),
        "bias": lambda: torch.zeros(weight.shape[:1], **kept),
    }
    found = {name: results[name]() for name in form.learns}
    add_product = _adds_products(hidden.device.type, hidden.dtype)
    by_row = weight.t()
    total = None
    for start in range(0, max(count, 1), rows):
        chunk, *parts = (_rows(x, start, rows) for x in (hidden, *sliced))
        logits = torch.mm(chunk, by_row) if bias is None else torch.addmm(bias, chunk, by_row)
        loss, *of = body(logits, *parts, *read)
        del logits
        total = loss if total is None else total + loss
        if not of:
            continue
        (gradient,) = of
        if "hidden" in found:
            stop = min(rows, count - start)
            torch.mm(gradient[:stop], weight, out=found["hidden"][start : start + stop])
        if "weight" in found:
            add_product(found["weight"], gradient.t(), chunk)
        if "bias" in found:
            found["bias"] += gradient.sum(0, dtype=kept["dtype"])
        del of, gradient  # before the next chunk's logits are made
    assert total is not None
    return [total, *found.values()]


def _rows(x: torch.Tensor, start: int, rows: int) -> torch.Tensor:
    """So many rows, zeros behind the last."""
    part = x[start : start + rows]
    if part.shape[0] == rows:
        return part
    whole = x.new_zeros((rows, *x.shape[1:]))
    whole[: part.shape[0]] = part
    return whole


@functools.cache
def _adds_products(device: str, dtype: torch.dtype) -> Callable[..., Any]:
    """``add(total, x, y)``: a matrix product is added to a total of :func:`summed_in`'s type."""
    if dtype == summed_in(dtype):
        return lambda total, x, y: total.addmm_(x, y)
    if device != "cpu" and _takes_out_dtype(device, dtype):
        # Nothing is rounded to 16 bits on the way.
        return lambda total, x, y: torch.addmm(total, x, y, out_dtype=total.dtype, out=total)  # type: ignore[call-overload]
    return lambda total, x, y: total.add_(torch.mm(x, y))


def _takes_out_dtype(device: str, dtype: torch.dtype) -> bool:
    """Does the library add products of 16 bits to a total of 32? Some releases and devices have no such function."""
    x = torch.ones((16, 16), dtype=dtype, device=device)
    total = torch.ones((16, 16), dtype=torch.float32, device=device)
    try:
        torch.addmm(total, x, x, out_dtype=torch.float32, out=total)  # type: ignore[call-overload]
    except (TypeError, RuntimeError):
        return False
    return bool((total == 17).all())
