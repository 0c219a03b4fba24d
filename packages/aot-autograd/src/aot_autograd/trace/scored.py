"""Attention with functions of its scores, on a GPU: the functions are traced into the body of an operator.

A kernel can then apply them to blocks of scores that never lie in memory; its gradient is an operator too, whose body
gives the functions' derivative. Elsewhere, and where the functions' own operands need gradients, the formula is traced,
with all scores in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from aot_autograd.autocast import differentiate, differentiating
from aot_autograd.trace.control import Interpret, operator_of
from aot_autograd.trace.tracer import Tracer, state_of
from prims.control import Form, ScoredAttention
from prims.dtypes import HALVES
from prims.errors import Unsupported
from prims.spec import TensorSpec

__all__ = ["call_attention"]

#: Where there are such kernels.
DEVICES = ("cuda",)

#: The widest heads that kernels hold in registers.
_WIDEST = 256

_Run = Callable[[Tracer, list[Any]], Sequence[torch.Tensor]]


def call_attention(
    tracer: Tracer, attention: ScoredAttention, args: Sequence[Any], interpret: Interpret
) -> tuple[Any, ...]:
    """The abstract results: the attention's, the sums' logarithms, and the largest scores where they are asked for."""
    operands = attention.operands(*args[:3])
    if attention.largest or not tracer.fast or not _is_for_kernels(operands, args[3:]):
        return attention(*args)  # type: ignore[no-any-return]
    call = _Call(tracer, attention, [*operands, *args[3:]], interpret)
    try:
        forward, backward = call.operators()
    except Unsupported:  # of a function that makes a constant tensor: as part of this graph it may
        return attention(*args)  # type: ignore[no-any-return]
    return *_Differentiable.apply(call, forward, backward, *call.args), None


def _is_for_kernels(operands: Sequence[torch.Tensor], read: Sequence[Any]) -> bool:
    query, key, value = operands
    if query.device.type not in DEVICES or query.dtype not in HALVES or not query.dtype == key.dtype == value.dtype:
        return False
    widths = (query.shape[3], value.shape[3])
    if not all(isinstance(n, int) and 0 < n <= _WIDEST for n in widths):
        return False
    if any(n == 0 for x in (query, key) for n in x.shape):
        return False
    learns = torch.is_grad_enabled()
    return not any(isinstance(x, torch.Tensor) and x.requires_grad and learns for x in read)


class _Call:
    """One call under a tracer; ``args`` are its operands and what the functions read."""

    def __init__(self, tracer: Tracer, attention: ScoredAttention, args: list[Any], interpret: Interpret) -> None:
        self.tracer = tracer
        self.attention = attention
        self.args = args
        self.interpret = interpret
        query, key = (state_of(tracer.plain(x)).spec for x in args[:2])
        self.scores = TensorSpec((*query.shape[:3], key.shape[2]), torch.float32, query.device)
        self.read: list[Any] = []
        for value in args[3 + attention.tables :]:
            plain = tracer.plain(value)
            self.read.append(state_of(plain).spec if isinstance(plain, torch.Tensor) else plain)

    def operators(self) -> tuple[Any, Any]:
        """The operator, and where a gradient may be asked for that of its derivative, else None."""
        scale, tables, block = self.attention.scale, self.attention.tables, self.attention.block
        forward = self._operator(Form("attention", scale=scale, tables=tables // 2, block=block))
        if not torch.is_grad_enabled() or not any(x.requires_grad for x in self.args[:3]):
            return forward, None
        return forward, self._operator(Form("attention_backward", scale=scale, tables=tables, block=block))

    def _operator(self, form: Form) -> Any:
        made = form.own[1]
        body = self._changed if made == 1 else self._derived
        given = [*[self.scores] * made, *self.read]
        return operator_of(self.tracer, "flex_attention", form, [body], given, [[self.scores] * made])

    def _changed(self, tracer: Tracer, values: list[Any]) -> Sequence[torch.Tensor]:
        run = lambda graph, *args: self.interpret(graph, list(args), tracer)
        changed = self.attention.changed(run, *values)
        if changed.dtype != self.scores.dtype:
            raise Unsupported(f"scores that become {changed.dtype}")
        return (changed,)

    def _derived(self, tracer: Tracer, values: list[Any]) -> Sequence[torch.Tensor]:

        scores, tangent, *read = values
        with torch.enable_grad():
            (changed,) = self._changed(tracer, [scores.requires_grad_(), *read])
        tracer.backward = True
        with differentiating():
            (found,) = differentiate([changed], [scores], [tangent]) if changed.requires_grad else (None,)
        tracer.backward = False
        # What weighs nothing has no gradient, even where the function's derivative is infinite there. Besides, this
        # makes one kernel of both results: the second depends on the first.
        found = torch.zeros_like(scores) if found is None else found
        return changed, torch.where(changed == -math.inf, 0.0, found)


class _Differentiable(torch.autograd.Function):
    """The operator, and its derivative by query, key and value."""

    @staticmethod
    def forward(ctx: Any, call: _Call, forward: Any, backward: Any, *args: Any) -> Any:
        tables = call.attention.tables
        out, sums = forward.call(call.tracer, [*args[: 3 + tables // 2], *args[3 + tables :]])
        ctx.call, ctx.operator = call, backward
        ctx.places = [at for at, x in enumerate(args) if isinstance(x, torch.Tensor)]
        ctx.given = [None if isinstance(x, torch.Tensor) else x for x in args]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(out, sums, *(args[at] for at in ctx.places))
        return out, sums

    @staticmethod
    def backward(ctx: Any, tangent: Any, of_sums: Any) -> Any:
        out, sums, *tensors = ctx.saved_tensors
        args = list(ctx.given)
        for at, value in zip(ctx.places, tensors, strict=True):
            args[at] = value
        if tangent is None:
            tangent = torch.zeros_like(out)
        rest = (out.float() * tangent.float()).sum(-1)
        if of_sums is not None:
            rest = rest - of_sums
        found = ctx.operator.call(ctx.call.tracer, [*args[:3], tangent, sums, rest, *args[3:]])
        return (None, None, None, *found, *[None] * (len(args) - 3))
