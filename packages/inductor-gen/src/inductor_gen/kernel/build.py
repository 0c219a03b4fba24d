"""From clusters to kernels: bodies are traced, loops cut and ordered, and every fact noted once."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import TypeAlias

from inductor_gen.extern.custom import is_custom
from inductor_gen.fuse.cluster import Cluster, Fusion
from inductor_gen.fuse.seams import cut
from inductor_gen.kernel import ir
from inductor_gen.kernel.alike import Structures, rebound
from inductor_gen.kernel.body import Body, split_request
from inductor_gen.kernel.ir import Call, Kernel, Step
from inductor_gen.kernel.layouts import follow_layouts
from inductor_gen.kernel.nest import arrange
from inductor_gen.kernel.trace import trace, trace_scatter
from inductor_gen.layout.record import Layout, Prepared, channels_last, strides_of
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import Hint
from prims.collectives import is_collective, is_wait

__all__ = ["Builder"]

#: A kernel, and the nodes that it is about in the order of its key.
_Made: TypeAlias = tuple[Kernel, list[Node]]

#: Operators that bring operands into layouts of their own before they compute, but those with channels last.
_REORDERING = frozenset({"aten.convolution.default", "aten.convolution_backward.default"})


class Builder:
    """Makes the kernels of a fused graph.

    Attributes:
        layouts: of every buffer, those of the values that kernels keep included.
        parts: the parts of other buffers that kernels store values to also, or only (``unstored``).
    """

    def __init__(
        self, prepared: Prepared, fusion: Fusion, hint: Hint, rounding: bool, in_order: bool = False
    ) -> None:
        self.prepared = prepared
        self.fusion = fusion
        self.hint = hint
        self.rounding = rounding
        self.in_order = in_order
        self.order = fusion.in_line()
        self.stored = _stored(fusion, prepared)
        self.parts: dict[Node, list[Node]] = {}
        self.unstored: set[Node] = set()
        self.layouts: dict[Node, Layout] = follow_layouts(prepared, fusion, self.order, self.stored)
        self.structures = Structures(prepared, fusion, self.layouts)

    def steps(self) -> Iterator[Step]:
        """A step for each cluster that computes something which is read, producers first."""
        made: dict[Hashable, _Made] = {}
        for cluster in self.order:
            if not cluster.loops and cluster.nodes[0].kind != "scatter":
                yield self._call(cluster.nodes[0])
            elif not cluster.loops:
                yield self.kernel(cluster)
            elif self.stored[cluster.id]:
                key, nodes = self.structures.of(cluster, self.stored[cluster.id])
                found = made.get(key)
                if found is None:
                    kernel = self.kernel(cluster)
                    made[key] = kernel, nodes
                    for nest in kernel.nests:
                        nest.like = nest, nodes
                else:
                    kernel = self._again(cluster, *found, nodes)
                yield kernel

    def traced(self, cluster: Cluster) -> tuple[Body, Cluster]:
        """A new body of a cluster, and the cluster with the variables that were split to remove divisions from it."""
        cluster = cluster.copy()
        storage = self.prepared.storage
        for _ in range(8):
            if cluster.loops:
                stored = self.stored[cluster.id] - self.unstored
                body = trace(self.fusion, cluster, stored, self.layouts, storage, self.parts, self.rounding)
            else:
                body = trace_scatter(self.fusion, cluster, self.layouts, storage, self.rounding)
            request = split_request(body.indices(), body.space)
            if request is None or not self.fusion.split(cluster, *request):
                return body, cluster
        return body, cluster

    def kernel(self, cluster: Cluster) -> Kernel:
        """The kernel of a cluster."""
        pieces = cut(self.fusion, cluster) if cluster.loops else [cluster]
        bodies = [self.traced(piece)[0] for piece in pieces]
        moved, work = ir.bytes_moved(bodies, self.hint), ir.work(bodies, self.hint)
        reads, writes, updates = list(ir.loads(bodies)), ir.stores(bodies), ()
        if not cluster.loops:
            reads, writes, updates = [*reads, *writes], (), writes
        overwrites = self._overwrites(bodies, writes)
        return Kernel(
            nests=tuple(arrange(body, self.hint, self.in_order) for body in bodies), nodes=tuple(cluster.nodes),
            reads=tuple(dict.fromkeys(reads)), writes=writes, updates=updates, overwrites=overwrites,
            moved=moved, work=work, origin=cluster,
        )  # fmt: skip

    def _again(self, cluster: Cluster, like: Kernel, theirs: Sequence[Node], nodes: Sequence[Node]) -> Kernel:
        """The kernel of a cluster that is built as another one: that one's with other nodes."""
        to = dict(zip(theirs, nodes, strict=True))
        nests = tuple(rebound(nest, to, nodes) for nest in like.nests)
        reads, writes = (tuple([to[n] for n in some]) for some in (like.reads, like.writes))
        overwrites = self._overwrites([nest.body for nest in nests], writes)
        return Kernel(
            nests=nests, nodes=tuple(cluster.nodes), reads=reads, writes=writes, overwrites=overwrites,
            moved=like.moved, work=like.work, origin=cluster,
        )  # fmt: skip

    def _overwrites(self, bodies: Sequence[Body], writes: Collection[Node]) -> tuple[tuple[Node, Node], ...]:
        found = ir.overwritable(bodies[0]) if len(bodies) == 1 else ()
        return tuple((a, b) for a, b in found if a in writes and self._interchangeable(a, b))

    def _interchangeable(self, written: Node, read: Node) -> bool:
        """Can one buffer be the other? Inputs stay as they are but for their own new values; shapes may differ where
        places are equal."""
        if self.prepared.renewed.get(written) is read:
            return True
        if read.kind in ("input", "constant", "item") or read in self.prepared.scattered.values():
            return False
        return written.device == read.device and written.kind != "part"

    def _in_channels_last(self, node: Node) -> bool:
        storage = self.prepared.storage(node)
        return len(node.shape) == 4 and strides_of(self.layouts, storage) == channels_last(node.shape)

    def _call(self, node: Node) -> Call:
        items = tuple(user for user in node.users if user.kind == "item")
        reads = tuple(dict.fromkeys(map(self.prepared.storage, self._held(node))))
        moved = node.ins if node.op in _REORDERING else ()
        workspace = sum(ir.nbytes(n, self.hint) for n in moved if not self._in_channels_last(n))
        return Call(node, reads, (node, *items), workspace, is_custom(node))

    def _held(self, node: Node) -> tuple[Node, ...]:
        """What an operator takes; a wait takes what the collective still reads, too."""
        if not is_wait(node.target):
            return tuple(node.ins)
        begun = [x.args[0] if x.kind == "item" else x for x in node.ins]
        return (*node.ins, *(operand for x in begun if is_collective(x.target) for operand in x.ins))


def _stored(fusion: Fusion, prepared: Prepared) -> dict[int, set[Node]]:
    """The nodes that each cluster of loops writes to memory."""
    stored: dict[int, set[Node]] = {c.id: set() for c in fusion.clusters.values() if c.loops}
    for node in prepared.kept():
        cluster = fusion.of.get(node)
        if cluster is not None and cluster.loops:
            stored[cluster.id].add(node)
    for node, cluster in fusion.of.items():
        for base in fusion.bases(node):
            source = fusion.of.get(base)
            if source is not None and source is not cluster and source.loops:
                stored[source.id].add(base)
    return stored

