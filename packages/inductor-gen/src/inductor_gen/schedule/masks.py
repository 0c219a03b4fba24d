"""Attention masks that are known before anything runs: built inside the region, of constants and sizes alone.

Such a mask is evaluated once, when the graph is compiled. One that allows everything is left out, and one that hides
exactly what comes later becomes the kernel's own causal mode, which skips half of the work. What the operator computes
stays the same; the kernels that would have made the mask go away with it.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from inductor_gen.extern.cuda import mask_argument
from inductor_gen.loops.graph import Graph, Node
from prims.ops import PrimOp

__all__ = ["settle_masks"]

#: Position of the causal flag among the arguments, and what stands before it by default.
_CAUSAL = {
    "aten._scaled_dot_product_cudnn_attention.default": (6, (False, 0.0, False)),
    "aten._scaled_dot_product_efficient_attention.default": (6, (False, 0.0, False)),
}
#: Elements of the largest mask that is evaluated.
_LARGEST = 1 << 28
_KINDS = frozenset({"create", "pointwise", "view", "reduce", "scan"})


class _Unknown(Exception):
    """The value depends on what is only known when the graph runs."""


def settle_masks(graph: Graph) -> None:
    """Leave out, or turn into the causal flag, the masks of attention operators that are constants."""
    values: dict[Node, torch.Tensor] = {}
    verdicts: dict[Node, str | None] = {}
    for node in graph.nodes:
        at = mask_argument(node)
        if at is None or node.op not in _CAUSAL:
            continue
        mask = node.args[at]
        if mask not in verdicts:
            verdicts[mask] = _verdict(mask, values)
        verdict, (flag, defaults) = verdicts[mask], _CAUSAL[node.op]
        args = [*node.args, *defaults[len(node.args) - 4 :]]
        if verdict is None or args[flag]:
            continue
        args[at] = None
        args[flag] = verdict == "causal"
        node.args = tuple(args)


def _verdict(mask: Node, values: dict[Node, torch.Tensor]) -> str | None:
    """``"free"`` for a mask that hides nothing, ``"causal"`` for one that hides exactly what comes later, else None."""
    try:
        _check(mask, set())
        with torch.no_grad():
            return _kind(_value(mask, values))
    except _Unknown:
        return None


def _check(node: Node, seen: set[Node]) -> None:
    todo = [node]
    while todo:
        x = todo.pop()
        if x in seen:
            continue
        seen.add(x)
        if x.kind not in _KINDS or x.op.startswith("random_") or not isinstance(x.target, PrimOp):
            raise _Unknown
        if not all(s.is_const for s in x.shape) or math.prod(s.value for s in x.shape) > _LARGEST:
            raise _Unknown
        if x.device is None or (x.device.type == "cuda" and not torch.cuda.is_available()):
            raise _Unknown
        todo += _operands(x.args)


def _operands(args: Any) -> list[Node]:
    if isinstance(args, Node):
        return [args]
    if isinstance(args, (tuple, list)):
        return [n for a in args for n in _operands(a)]
    if args is None or isinstance(args, (bool, int, float, str, torch.dtype, torch.device)):
        return []
    raise _Unknown  # a symbolic size


def _value(node: Node, values: dict[Node, torch.Tensor]) -> torch.Tensor:
    """The node's value by the primitives' references."""
    todo = [node]
    while todo:
        x = todo[-1]
        missing = [n for n in _operands(x.args) if n not in values]
        if missing:
            todo += missing
            continue
        todo.pop()
        if x not in values:
            values[x] = x.target(*_filled(x.args, values))
    return values[node]


def _filled(args: Any, values: dict[Node, torch.Tensor]) -> Any:
    if isinstance(args, Node):
        return values[args]
    return tuple(_filled(a, values) for a in args) if isinstance(args, (tuple, list)) else args


def _kind(mask: torch.Tensor) -> str | None:
    if not mask.dtype.is_floating_point:
        return None
    if not bool(mask.any()):
        return "free"
    rows, columns = mask.shape[-2:]
    if rows != columns:
        return None
    later = torch.ones(rows, columns, dtype=torch.bool, device=mask.device).triu(1)
    lowest = torch.finfo(mask.dtype).min  # added to a score it leaves nothing beside the diagonal's
    causal = torch.where(later, mask <= lowest, mask == 0)
    return "causal" if bool(causal.all()) else None
