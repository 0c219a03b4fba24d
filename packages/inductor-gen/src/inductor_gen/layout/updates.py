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

from collections.abc import Container, Mapping, Sequence

from inductor_gen.layout.record import Prepared, ViewRef
from inductor_gen.loops.graph import Graph, Node, instances
from inductor_gen.loops.index import ZERO, size
from inductor_gen.loops.views import view_strides
from prims.ir import Envelope
from prims.records import record
from prims.spec import TensorSpec
from prims.spec import layout as strided
from prims.spec.expr import Expr

__all__ = ["Into", "in_place_updates", "new_values", "scattered_over", "through"]


@record
class Into:
    """The input that a scatter may write, and the strides there of what it scatters into: the input or a view of it."""

    target: Node
    strides: tuple[Expr, ...]


def in_place_updates(graph: Graph, env: Envelope) -> dict[Node, Into]:
    """The scatters that may write an input, each with where it does."""
    found: dict[Node, Into] = {}
    results = {x for x in graph.outputs if isinstance(x, Node)}
    for mutation in env.mutations:
        target, value = graph.inputs[mutation.input_index], graph.outputs[mutation.output_index]
        if isinstance(value, Node) and target.dtype == value.dtype and _elements_apart(target):
            found.update(_placed(value, _chain(value, target, results), target))
    return found


def scattered_over(graph: Graph, env: Envelope, updates: Container[Node]) -> dict[Node, Into]:
    """The scatters into inputs that are not among ``updates`` but may come to write them, each with where."""
    found: dict[Node, Into] = {}
    results = {x for x in graph.outputs if isinstance(x, Node)}
    for mutation in env.mutations:
        target, value = graph.inputs[mutation.input_index], graph.outputs[mutation.output_index]
        if not isinstance(value, Node) or value.dtype != target.dtype or not _elements_apart(target):
            continue
        last = through(value)
        if last in updates:
            continue
        chain: list[Node] = []
        while isinstance(last, Node) and last.kind == "scatter":
            chain.append(last)
            before = through(last.args[0])
            if before is target:
                found.update(_placed(value, chain, target))
                break
            if not _leads_to(before, last, results):
                break
            last = before
    return found


def through(x: Node) -> Node:
    """What a value is, seen through views that have each of its elements once."""
    while x.kind == "view" and x.op in ("reshape", "permute"):
        x = x.args[0]
    return x


def _placed(value: Node, chain: Sequence[Node], target: Node) -> dict[Node, Into]:
    """Where each scatter of a chain, the last first, writes the target; none where the value would lie otherwise."""
    strides = {target: tuple(size(n) for n in target.spec.strides)}  # type: ignore[union-attr]
    for scatter in reversed(chain):
        seen = _seen(scatter.args[0], strides)
        if seen is None:
            return {}
        strides[scatter] = seen
    same = chain and _seen(value, strides) == strides[target] and value.shape == target.shape
    return {scatter: Into(target, strides[scatter]) for scatter in chain} if same else {}


def _seen(x: Node, known: Mapping[Node, tuple[Expr, ...]]) -> tuple[Expr, ...] | None:
    """The strides of a view of what has known ones; None where it would have to be copied."""
    views: list[Node] = []
    while x not in known:
        views.append(x)
        x = x.args[0]
    strides = known[x]
    for view in reversed(views):
        moved = view_strides(view, strides, ZERO)
        if moved is None:
            return None
        strides = moved[0]
    return strides


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
    value = through(value)
    while value is not target:
        if value.kind != "scatter" or value.args[-1] not in ("set", False):
            return []
        chain.append(value)
        reader, before = value, value.args[0]
        while True:
            if before.users != [reader] or before in results or before in instances(Node, reader.args[1:]):
                return []
            if before is through(before):
                break
            reader, before = before, before.args[0]
        value = before
    return chain


def _elements_apart(target: Node) -> bool:
    """Does each element of the input have memory of its own?"""
    if target.kind != "input" or not isinstance(target.spec, TensorSpec):
        return False
    return strided.is_dense(target.spec.shape, target.spec.strides)
