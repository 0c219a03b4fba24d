"""Horizontal fusion: small kernels that have nothing to do with each other run as one.

A training step of a convolution net counts the batches that each batch norm has seen: fifty kernels of one integer
addition, each of which costs a launch. Kernels of one small iteration space that read only the graph's inputs depend
on nothing, so that joining them can make no cycle.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from inductor_gen.fuse.cluster import Cluster, Fusion
from inductor_gen.fuse.order import Move
from inductor_gen.fuse.score import Costs, call_bytes
from inductor_gen.loops.index import ZERO

__all__ = ["join_small"]

#: A kernel is small where it moves no more than this part of the bytes that could be moved during its launch; the
#: results of those that are joined, all in memory at once, stay below this multiple.
PART, MULTIPLE = 0.5, 4

#: Nodes and buffers of a joined kernel: bounds its arguments and its registers.
MAX_JOINED = 64


#: Clusters of the same operators, on a GPU, above which they are left for one kernel over many tensors of any sizes.
ALIKE = 8


def join_small(fusion: Fusion, costs: Costs) -> None:
    """Join the small clusters that read only inputs, in groups of one iteration space and device."""
    groups: dict[Any, tuple[Cluster, int, float]] = {}
    free = [cluster for cluster in fusion.clusters.values() if _is_free(fusion, cluster)]
    alike = Counter(map(_operators, free))
    for cluster in free:
        key = _space_of(costs, cluster)
        on_gpu = costs.device(cluster.nodes[0]).kind == "cuda"
        if key is None or alike[_operators(cluster)] > ALIKE and on_gpu or _only_copies(cluster) and not on_gpu:
            continue
        size, moved = len(cluster.nodes) + len(costs.facts(cluster).reads), costs.work(cluster).moved
        limit = MULTIPLE * call_bytes(costs.device(cluster.nodes[0]))
        first, total, bytes_ = groups.get(key, (cluster, 0, 0.0))
        full = total + size > MAX_JOINED or bytes_ + moved > limit
        if first is cluster or full or not fusion.may_fuse():
            groups[key] = cluster, size, moved
            continue
        mapping = dict(zip(cluster.space, first.space, strict=True))
        fusion.merge(first, cluster, mapping, (), Move(), "horizontal", 0)
        groups[key] = first, total + size, bytes_ + moved


def _is_free(fusion: Fusion, cluster: Cluster) -> bool:
    """Does it compute elementwise what depends on inputs alone?"""
    if not cluster.loops or fusion.order.sources(cluster.id) or cluster.inner:
        return False
    return all(node.kind == "pointwise" for node in cluster.nodes)


def _only_copies(cluster: Cluster) -> bool:
    """Does it copy? On a CPU one kernel copies any number of elements: joined ones would be compiled for every number
    of operands beside it."""
    return all(node.op == "copy" for node in cluster.nodes)


def _operators(cluster: Cluster) -> Any:
    return tuple((node.op, node.dtype) for node in cluster.nodes)


def _space_of(costs: Costs, cluster: Cluster) -> Any:
    """What must be equal in clusters that are joined; None for one that is not."""
    extents = tuple(cluster.space.values())
    if any(extent.kind != "const" or extent is ZERO for extent in extents):
        return None
    if costs.work(cluster).moved > call_bytes(costs.device(cluster.nodes[0])) * PART:
        return None
    return extents, cluster.nodes[0].device, cluster.late
