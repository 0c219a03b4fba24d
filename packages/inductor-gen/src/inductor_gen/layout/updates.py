"""Inputs that the graph itself may write, in the place of copies that the caller would write back.

The new value of an input is a functional value of the graph: a scatter into what the input held. It can be the input,
with the scattered elements written to it, where nobody needs what it held before: the input's only reader is the
scatter (or a chain of scatters, each the only reader of the one before), which sets elements and does not accumulate,
and the input's elements are apart in memory. No value of the graph depends on what the input held then, but through
the new value, so that the whole graph may even be run again on inputs that are partly written (after a failure, or for
another guess about its masks): it writes the same elements again.

A value that does depend on what the input held (a step of an optimizer, a running mean, sums that are scattered into
it) may be written over it by the last kernels, after everything that can fail, so that nothing is run again afterwards:
:func:`new_values` says which these are, and the memory plan whether it is done. Where such a value is scatters into
what the input held, which others read too (``k[:, 5:7] += x``), it is a copy of the input that the scatters write: a
copy over the input itself, which moves nothing, where all who read the input have run by then. What is scattered is in
memory before it. :func:`scattered_over` says which scatters these are.
"""

from __future__ import annotations

from collections.abc import Container

from inductor_gen.layout.record import Prepared, ViewRef
from inductor_gen.loops.graph import Graph, Node, instances
from inductor_gen.loops.index import ZERO
from prims.ir import Envelope
from prims.spec import TensorSpec
from prims.spec import layout as strided

__all__ = ["in_place_updates", "new_values", "scattered_over"]


def in_place_updates(graph: Graph, env: Envelope) -> dict[Node, Node]:
    """The scatters that may write an input, each with that input."""
    found: dict[Node, Node] = {}
    results = {x for x in graph.outputs if isinstance(x, Node)}
    for mutation in env.mutations:
        target, value = graph.inputs[mutation.input_index], graph.outputs[mutation.output_index]
        chain = _chain(value, target, results) if isinstance(value, Node) else []
        if chain and target.dtype == value.dtype and _elements_apart(target):
            found.update((scatter, target) for scatter in chain)
    return found


def scattered_over(graph: Graph, env: Envelope, updates: Container[Node]) -> dict[Node, Node]:
    """The scatters into inputs that are not among ``updates`` but may come to write them, each with the input."""
    found: dict[Node, Node] = {}
    results = {x for x in graph.outputs if isinstance(x, Node)}
    for mutation in env.mutations:
        target, value = graph.inputs[mutation.input_index], graph.outputs[mutation.output_index]
        if not isinstance(value, Node) or value in updates or value.dtype != target.dtype or value is target:
            continue
        chain = []
        while isinstance(value, Node) and value.kind == "scatter":
            chain.append(value)
            before = value.args[0]
            if before is target:
                if _elements_apart(target):
                    found.update((scatter, target) for scatter in chain)
                break
            if not _leads_to(before, value, results):
                break
            value = before
    return found


def _leads_to(value: Node, scatter: Node, results: Container[Node]) -> bool:
    """Is all that is made of a value, but for the scatter's result, read by the scatter alone?"""
    todo, seen = [value], {scatter}
    while todo:
        x = todo.pop()
        if x in results:
            return False
        fresh = [user for user in x.users if user not in seen]
        if x is not value and not x.users:
            return False
        seen.update(fresh)
        todo += fresh
    return True


def new_values(prepared: Prepared, env: Envelope) -> dict[Node, Node]:
    """The buffers of inputs' new values that lie as the inputs do, each with its input."""
    found: dict[Node, Node] = {}
    for mutation in env.mutations:
        target, out = prepared.graph.inputs[mutation.input_index], prepared.outputs[mutation.output_index]
        if isinstance(out, ViewRef) and out.offset is ZERO and out.shape == target.shape:
            value = prepared.storage(out.base)
            same = out.strides == prepared.layouts[target].strides and value.dtype == target.dtype
            if same and value.kind not in ("input", "constant", "extern", "item") and _elements_apart(target):
                found[value] = target
    return found


def _chain(value: Node, target: Node, results: set[Node]) -> list[Node]:
    """The scatters from ``target`` to ``value``, last first; none where somebody else reads what is between."""
    chain: list[Node] = []
    while value is not target:
        if value.kind != "scatter" or value.args[-1] not in ("set", False):
            return []
        before = value.args[0]
        chain.append(value)
        if before.users != [value] or before in results or before in instances(Node, value.args[1:]):
            return []
        value = before
    return chain


def _elements_apart(target: Node) -> bool:
    """Does each element of the input have memory of its own?"""
    if target.kind != "input" or not isinstance(target.spec, TensorSpec):
        return False
    return strided.is_dense(target.spec.shape, target.spec.strides)
