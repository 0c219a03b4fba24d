"""Inputs that the graph itself may write, in the place of copies that the caller would write back.

The new value of an input is a functional value of the graph: a scatter into what the input held. It can be the input,
with the scattered elements written to it, where nobody needs what it held before: the input's only reader is the
scatter (or a chain of scatters, each the only reader of the one before), which sets elements and does not accumulate,
and the input's elements are apart in memory. No value of the graph depends on what the input held then, but through
the new value, so that the whole graph may even be run again on inputs that are partly written (after a failure, or for
another guess about its masks): it writes the same elements again.
"""

from __future__ import annotations

from inductor_gen.loops.graph import Graph, Node, nodes_in
from prims.ir import Envelope
from prims.spec import TensorSpec
from prims.spec import layout as strided

__all__ = ["in_place_updates"]


def in_place_updates(graph: Graph, env: Envelope) -> dict[Node, Node]:
    """The scatters that may write an input, each with that input."""
    found: dict[Node, Node] = {}
    results = {x for x in graph.outputs if isinstance(x, Node)}
    for mutation in env.mutations:
        target, value = graph.inputs[mutation.input_index], graph.outputs[mutation.output_index]
        chain = _chain(value, target, results) if isinstance(value, Node) else []
        if chain and _elements_apart(target, value):
            found.update((scatter, target) for scatter in chain)
    return found


def _chain(value: Node, target: Node, results: set[Node]) -> list[Node]:
    """The scatters from ``target`` to ``value``, last first; none where somebody else reads what is between."""
    chain: list[Node] = []
    while value is not target:
        if value.kind != "scatter" or value.args[-1] not in ("set", False):
            return []
        before = value.args[0]
        chain.append(value)
        if before.users != [value] or before in results or before in nodes_in(value.args[1:]):
            return []
        value = before
    return chain


def _elements_apart(target: Node, value: Node) -> bool:
    """Does each element of the input have memory of its own, of the new value's shape and dtype?"""
    if target.kind != "input" or not isinstance(target.spec, TensorSpec):
        return False
    same = (target.shape, target.dtype, target.device) == (value.shape, value.dtype, value.device)
    return same and strided.is_dense(target.spec.shape, target.spec.strides)
