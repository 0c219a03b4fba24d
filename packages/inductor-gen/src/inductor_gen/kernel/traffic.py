"""The bytes that steps move to and from memory, and the least that a graph has to move.

Counted from what kernels load and store and from operators' operands, for likely sizes: a step reads and writes each
element once. What is in a cache from the step before counts all the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from inductor_gen.extern.custom import EMPTY
from inductor_gen.kernel.body import Body
from inductor_gen.kernel.ir import Call, Kernel, Step, nbytes
from inductor_gen.layout.record import Prepared, ViewRef
from inductor_gen.loops.graph import Node, instances
from inductor_gen.loops.index import ZERO, Hint
from inductor_gen.unit import Least
from prims.records import record
from prims.spec.expr import Expr

__all__ = ["Alike", "Traffic", "least", "together", "traffic"]


@record(eq=False)
class Traffic:
    """The bytes that something reads and writes of each buffer."""

    reads: Mapping[Node, int]
    writes: Mapping[Node, int]

    @property
    def read(self) -> int:
        """All bytes read."""
        return sum(self.reads.values())

    @property
    def written(self) -> int:
        """All bytes written."""
        return sum(self.writes.values())


class Alike(dict[object, tuple[Any, Sequence[Node]]]):
    """What kernels of one nest move, by what these have in common with others, and the nodes that it is told of."""


def traffic(step: Step, prepared: Prepared, hint: Hint, known: Alike | None = None) -> Traffic:
    """What a step moves. Of a call, and of a kernel that a template renders, all elements of operands and results.

    A kernel's loads and stores name buffers; of nests that differ in their nodes alone, those of one are counted.
    """
    if isinstance(step, Kernel) and step.nests:
        like = step.nests[0].like if known is not None and len(step.nests) == 1 and not step.parts else None
        if like is None or known is None:
            reads, writes = _of_bodies([nest.body for nest in step.nests], prepared, hint)
        elif like[0] not in known:
            reads, writes = _of_bodies([step.nests[0].body], prepared, hint)
            known[like[0]] = (reads, writes), like[1]
        else:
            found, theirs = known[like[0]]
            to = dict(zip(theirs, like[1], strict=True))
            reads, writes = ({to[node]: size for node, size in some.items()} for some in found)
    elif isinstance(step, Kernel):
        reads, writes = ({prepared.storage(n): nbytes(n, hint) for n in some} for some in (step.reads, step.writes))
    else:
        reads, writes = _of_call(step, prepared, hint)
    return Traffic(reads, writes)


def _of_bodies(bodies: Iterable[Body], prepared: Prepared, hint: Hint) -> tuple[dict[Node, int], dict[Node, int]]:
    found: tuple[dict[Node, int], dict[Node, int]] = {}, {}
    seen: set[tuple[int, Node, Expr]] = set()
    for body in bodies:
        accesses = [(0, v.attr, v.at) for v in body.vals if v.op == "load" and v.at is not None]
        accesses += [(1, s.buffer, s.at) for s in body.stores]
        accesses += [(0, s.buffer, s.at) for s in body.stores if s.mode != "set"]
        for access in accesses:
            way, node, at = access
            if node.dtype is None or access in seen:
                continue
            seen.add(access)
            through = any(a in body.atoms for a in at.symbols)
            points = math.prod(hint(n) for v, n in body.space.items() if through or v in at.symbols)
            buffer = prepared.storage(node)
            total = found[way].get(buffer, 0) + node.dtype.itemsize * points
            found[way][buffer] = min(total, nbytes(buffer, hint))
    return found


def _of_call(call: Call, prepared: Prepared, hint: Hint) -> tuple[dict[Node, int], dict[Node, int]]:
    if call.node.op == EMPTY:
        return {}, {}
    reads: dict[Node, int] = {}
    for ref in instances(ViewRef, prepared.externs[call.node]):
        buffer = prepared.storage(ref.base)
        if buffer.dtype is not None:
            own = (hint(n) for n, stride in zip(ref.shape, ref.strides, strict=True) if stride is not ZERO)
            total = reads.get(buffer, 0) + buffer.dtype.itemsize * math.prod(own)
            reads[buffer] = min(total, nbytes(buffer, hint))
    return reads, {n: size for n in call.writes if (size := nbytes(n, hint))}


def together(some: Sequence[Traffic]) -> Traffic:
    """What several move, each by itself."""
    totals: tuple[dict[Node, int], dict[Node, int]] = {}, {}
    for one in some:
        for total, part in zip(totals, (one.reads, one.writes), strict=True):
            for node, size in part.items():
                total[node] = total.get(node, 0) + size
    return Traffic(*totals)


def least(
    steps: Sequence[Traffic], inputs: Iterable[tuple[Node, bool]], returned: Iterable[Node], hint: Hint
) -> Least:  # fmt: skip
    """The least of a graph of these steps. Of an input counts what the step takes that takes most of it, so that what
    nobody reads is not asked for; elements that an index picks count as if each were another.

    Args:
        inputs: what exists before, and whether it is a parameter, a buffer or a constant.
        returned: the buffers that outlive the graph.
    """
    read = dict.fromkeys((False, True), 0)
    given = list(inputs)
    most: dict[Node, int] = {}
    for step in steps:
        for node, size in step.reads.items():
            if size > most.get(node, 0):
                most[node] = size
    for node, kept in given:
        read[kept] += most.get(node, 0)
    written = together(steps).writes
    results = {*returned, *(node for node, _ in given)}
    outputs = sum(min(size, nbytes(node, hint)) for node, size in written.items() if node in results)
    return Least(read[False], read[True], outputs)
