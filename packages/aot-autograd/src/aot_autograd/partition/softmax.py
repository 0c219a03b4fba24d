"""Logarithms of softmaxes spelled out, so that a backward pass can keep two numbers of each row.

``(x - max) - log(sum(exp(x - max)))``: from ``x``, the largest element and the logarithm the rest is made pointwise,
where the operator as a whole would go through each row twice again.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from aot_autograd.partition.split import is_backward
from prims.spec import infer

__all__ = ["STATISTIC", "spell_out"]

STATISTIC = "statistic"
"""``node.meta`` key of what there is one of per row: it is kept rather than made again."""

aten = torch.ops.aten


def spell_out(graph: torch.fx.Graph) -> None:
    """Replace each ``_log_softmax`` that a backward pass reads, in place, by the operators that it is made of."""
    for node in list(graph.nodes):
        if node.target is aten._log_softmax.default and any(is_backward(user) for user in node.users):
            _spell_out(graph, node)


def _spell_out(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    x: Any = node.args[0]
    dim: Any = node.args[1]
    spec = node.meta["spec"]
    empty = any(isinstance(size, int) and size == 0 for size in spec.shape)
    if not spec.shape or empty or spec.dtype not in (torch.float32, torch.float64) or x.meta["spec"] != spec:
        return

    def call(func: Any, *args: Any, **meta: Any) -> torch.fx.Node:
        made = graph.call_function(func, args)
        specs = [a.meta["spec"] if isinstance(a, torch.fx.Node) else a for a in args]
        made.meta = {**node.meta, **meta, "spec": infer(func, tuple(specs))}
        return made

    with graph.inserting_before(node):
        shifted = call(aten.sub.Tensor, x, call(aten.amax.default, x, [dim], True, **{STATISTIC: True}))
        total = call(aten.sum.dim_IntList, call(aten.exp.default, shifted), [dim], True)
        result = call(aten.sub.Tensor, shifted, call(aten.log.default, total, **{STATISTIC: True}))
    node.replace_all_uses_with(result)
    graph.erase_node(node)
