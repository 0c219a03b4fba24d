"""Products and 1x1 convolutions on the CPU, for which PyTorch has more than one kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor_gen.extern.calls import function_for
from inductor_gen.extern.cpu import by_linear, is_row, onednn, takes_linear
from inductor_gen.kernel.ir import Call, Step
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import ONE
from inductor_gen.templates.problem import Candidate, Draft, Operator, Problem, numbers, sizes_text, usual_operator

__all__ = ["find_operators"]

#: Multiply-adds below which a call takes longer than what it computes.
LEAST = 1 << 18

_PRODUCTS = ("aten.mm.default", "aten.addmm.default")
_CONVOLUTION = "aten.convolution.default"


def find_operators(draft: Draft, steps: Sequence[Step]) -> list[Problem]:
    """The operators among some steps on the CPU for which there is another kernel than the usual one."""
    found = []
    if draft.options.numerics == "fast" and onednn() is not None:
        for at, call in enumerate(steps):
            if isinstance(call, Call) and call.node.op in (*_PRODUCTS, _CONVOLUTION):
                problem = _problem(draft, at, call.node)
                if problem is not None:
                    found.append(problem)
    return found


def _problem(draft: Draft, at: int, node: Node) -> Problem | None:
    if node.device is None or node.device.type != "cpu" or node.kwargs:
        return None
    if any(x.dtype != torch.float32 for x in (node, *node.ins)):
        return None
    args, _ = draft.prepared.externs[node]
    inner = args[1].shape[1:] if node.op == _CONVOLUTION else args[-1].shape[:1]
    if math.prod(numbers(draft.hint, (*node.shape, *inner))) < LEAST:
        return None
    usual = usual_operator(draft, node)
    plain = function_for(node)
    ways = [way for way in (plain, _by_onednn(node, args)) if way is not None and way[0] != usual.name]
    if not ways:
        return None
    candidates = [Candidate(o.name, (o,)) for o in (usual, *(Operator(node, *way) for way in ways))]
    operands = [x for x in args if hasattr(x, "strides")]
    layouts = [numbers(draft.hint, (*x.shape, *x.strides, x.offset)) for x in operands]
    rest = [x for x in args if not hasattr(x, "strides")]
    text = f"{node.op} {' '.join(sizes_text(draft.hint, x.shape) for x in operands)} float32"
    key = "\n".join([text, repr(layouts), repr(rest), " ".join(c.name for c in candidates)])
    deep = math.prod(numbers(draft.hint, inner))
    factor = operands[1] if node.op == _CONVOLUTION else operands[-1]
    return Problem(text, key, (at,), node.device, candidates, (node,), {factor.base: max(deep, 1) ** -0.5})


def _by_onednn(node: Node, args: tuple[Any, ...]) -> tuple[str, Callable[..., Any]] | None:
    """oneDNN's linear layer, where the operands lie so that it can take them."""
    if node.op == _CONVOLUTION:
        _, weight, _, _, padding, _, transposed, _, groups = args
        if len(node.shape) != 4 or transposed or groups != 1 or any(padding):
            return None
        if any(s is not ONE for s in weight.shape[2:]):
            return None
        function = takes_linear(node)
        return function.__name__, function
    *bias, _, right = args
    fits = ONE in right.strides and all(is_row(b, right) for b in bias)
    return ("linear", by_linear) if fits else None
