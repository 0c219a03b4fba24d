"""Vertical fusion: each node goes to the cluster of a value that it reads, where that is legal.

Nodes are visited once, in topological order; of several clusters that which spares most bytes is tried first. A node
that joins a cluster draws those of its other operands in.
"""

from __future__ import annotations

from inductor_gen.fuse.cluster import COMPUTED, LOOP_KINDS, Cluster, Fusion
from inductor_gen.fuse.legality import is_full, merger, operand_in, refine
from inductor_gen.fuse.score import Costs
from inductor_gen.loops.graph import Node, runs_once
from inductor_gen.loops.index import ZERO

__all__ = ["cluster_nodes"]


def cluster_nodes(fusion: Fusion, costs: Costs) -> None:
    """Give each node of the graph its cluster."""
    readers: dict[Node, list[Node]] = {x: [] for x in fusion.olds}
    for node in fusion.graph.nodes:
        for x in fusion.bases(node) if readers and node in fusion.live and node.kind in COMPUTED else ():
            if x in readers:
                readers[x].append(node)
        if node in fusion.renewing:
            fusion.new_cluster(node, True, node.shape, readers[fusion.renewing[node]])
        elif node in fusion.live and node.kind in ("pointwise", "reduce", "scan"):
            _place(fusion, costs, node)
        elif node.kind == "extern":
            _extern(fusion, node)
        elif node.kind == "scatter":
            shape = node.args[1].shape if node.op == "scatter" else node.args[3].shape
            before = [x for x in fusion.refusing if x.id < node.id] if node in fusion.updates else ()
            refine(fusion, node, fusion.new_cluster(node, False, shape, before))  # over the values that it writes


def _extern(fusion: Fusion, node: Node) -> None:
    """A cluster of one operator. Those that draw random numbers, and collectives, stay in the order of the graph."""
    random = runs_once(node)
    fusion.new_cluster(node, False, after=fusion.random[-1:] if random else ())
    if random:
        fusion.random.append(node)


def _place(fusion: Fusion, costs: Costs, node: Node) -> None:
    """Find the cluster of a loop node."""
    bases = fusion.bases(node)
    if node.kind == "pointwise" and not bases and node not in fusion.kept and node not in fusion.refusing:
        fusion.compute_in_place([node])  # made of constants and iotas: cheaper to recompute than to load
        return
    owners = fusion.owners(node)
    able: dict[int, list[Node]] = {}
    for base in bases:
        if (c := fusion.of.get(base)) is not None and c.loops and base.kind in LOOP_KINDS:
            able.setdefault(c.id, []).append(base)
    if ZERO in node.shape or any(ZERO in x.shape for x in node.ins):
        able = {}  # nothing to compute, and sizes that no longer tell index maps apart
    for saved, at in sorted(((_spared(costs, node, read), c) for c, read in able.items()), reverse=True):
        cluster = fusion.clusters[at]
        apart = cluster.late != node.is_late or is_full(fusion, cluster, node)
        if apart or not costs.may_join(node, cluster, bases) or not costs.may_wait([node], cluster):
            continue
        move = fusion.order.admit(cluster.id, (c.id for c in owners if c is not cluster))
        operand = None if move is None else operand_in(fusion, node, cluster)
        if move is not None and operand is not None and fusion.may_fuse():
            fusion.add(cluster, node, operand, move, saved)
            _absorb(fusion, costs, node, cluster)
            return
    shape = node.args[0].shape if node.kind == "reduce" else node.shape
    refine(fusion, node, fusion.new_cluster(node, True, shape))


def _spared(costs: Costs, node: Node, read: list[Node]) -> int:
    """The bytes not moved when a node is computed where what it reads is made."""
    return sum(costs.size(b) * (1 if b in costs.fusion.kept or costs.consumers[b] != [node] else 2) for b in read)


def _absorb(fusion: Fusion, costs: Costs, node: Node, cluster: Cluster) -> None:
    """Merge the clusters of the node's other operands into its own, where legal."""
    for _ in range(8):
        for base, index, exact in fusion.reads(node, cluster.operands[node]):
            other = fusion.of.get(base)
            if other is None or other is cluster or not other.loops or not exact or base.kind not in LOOP_KINDS:
                continue
            if not costs.may_wait(cluster.nodes, other) or not costs.may_merge(cluster, other):
                continue
            into, gone = cluster, other
            found = merger(fusion, other, cluster, other.homes[base], index)
            if found is None and other.inner and not cluster.inner:
                into, gone = other, cluster
                found = merger(fusion, cluster, other, index, other.homes[base])
            if found is not None and fusion.may_fuse():
                saved = _spared(costs, node, [base])
                fusion.merge(into, gone, found.mapping, found.inner, found.move, "vertical", saved)
                cluster = into
                break
        else:
            return
