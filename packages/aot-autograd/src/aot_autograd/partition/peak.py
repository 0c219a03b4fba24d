"""An estimate of the most memory that a step takes for a choice of saved values, and a list of what those are.

The estimate walks the forward and the backward graph in their order and counts what is alive: inputs, saved values,
gradients, results of operators that run by themselves, and of those that are fused the ones that such an operator or
more than one other reads. Later stages choose another order and share memory more tightly: it is what choices need, and
no promise.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx

from aot_autograd.partition.costs import is_fusible, size_in_bytes
from aot_autograd.partition.split import Partition, is_view, split_joint
from aot_autograd.trace.outcome import Joint
from prims.ir import Envelope
from prims.report import Report
from prims.spec import TensorSpec

__all__ = ["estimated_peak", "hints_of", "memory_of", "report_saved"]

#: How many of the largest saved values a report names.
_NAMED = 5


def estimated_peak(joint: Joint, saved: Sequence[torch.fx.Node]) -> int:
    """Bytes alive at once in a step, parameters and other inputs included, for the first sizes seen."""
    parts = split_joint(joint, saved)
    hints = hints_of(parts.forward)
    given = sum(size_in_bytes(desc.spec, hints) for desc in parts.forward.inputs)
    # Saved inputs are alive anyway; the rest belongs to the backward pass alone.
    owned = [k for k, (kind, _) in enumerate(parts.saved) if kind == "output"]
    return given + max(_peak(parts.forward, hints, ()), _peak(parts.backward, hints, owned))


def hints_of(env: Envelope) -> Mapping[str, Any]:
    """What numbers a graph's symbols are taken for."""
    return {} if env.symbols.context is None else env.symbols.context.estimates()


def _peak(env: Envelope, hints: Mapping[str, Any], owned: Sequence[int]) -> int:
    """The most bytes alive at once beside the inputs; those ``owned`` count until their last use."""
    nodes = list(env.graph.nodes)
    last: dict[torch.fx.Node, int] = {}
    for k, node in enumerate(nodes):
        last.update((memory_of(operand), k) for operand in node.all_input_nodes)
    placeholders = env.placeholders()
    mine = {placeholders[k] for k in owned}
    mine |= {node for node, desc in zip(placeholders, env.inputs, strict=True) if desc.kind == "tangent"}
    freed: dict[int, int] = {}
    alive = highest = 0
    for k, node in enumerate(nodes):
        if node in last and (node in mine or (node.op == "call_function" and _is_in_memory(node))):
            size = size_in_bytes(node.meta["spec"], hints)
            alive += size
            freed[last[node]] = freed.get(last[node], 0) + size
        highest = max(highest, alive)
        alive -= freed.pop(k, 0)
    return highest


def memory_of(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose memory a value lies in."""
    while is_view(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _is_in_memory(node: torch.fx.Node) -> bool:
    """Is a value in memory of its own, rather than part of a kernel?"""
    if not isinstance(node.meta.get("spec"), TensorSpec) or is_view(node):
        return False
    return not is_fusible(node) or len(node.users) > 1 or not all(is_fusible(user) for user in node.users)


def report_saved(report: Report, parts: Partition, on_host: int = 0) -> None:
    """Record how many bytes a graph saves for its backward pass, inputs not counted, and the largest of them; of which
    so many are ``on_host``."""
    hints = hints_of(parts.forward)
    results = parts.forward.results()
    nodes = dict.fromkeys(results[at] for kind, at in parts.saved if kind == "output")
    sizes = sorted(((size_in_bytes(n.meta["spec"], hints), n) for n in nodes), key=lambda pair: -pair[0])
    largest = [(size, _described(n), n.meta.get("source")) for size, n in sizes[:_NAMED]]
    report.saved_for_backward(sum(size for size, _ in sizes), len(sizes), largest, on_host)


def _described(node: torch.fx.Node) -> str:
    """``aten.mm.default, float32 [8, 16]``."""
    spec: TensorSpec = node.meta["spec"]
    made: Any = node.args[0] if node.target is operator.getitem else node
    return f"{made.target}, {str(spec.dtype).removeprefix('torch.')} {list(spec.shape)}"
