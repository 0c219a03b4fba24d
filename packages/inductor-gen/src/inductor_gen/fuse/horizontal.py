"""Horizontal fusion: small kernels that have nothing to do with each other run as one.

A training step of a convolution net counts the batches that each batch norm has seen: fifty kernels of one integer
addition, each of which costs a launch. Kernels of one small iteration space that read only the graph's inputs depend
on nothing, so that joining them can make no cycle.
"""

from __future__ import annotations

import math
from typing import Any

from inductor_gen.fuse.cluster import Cluster, Fusion
from inductor_gen.fuse.order import Move

__all__ = ["join_small"]

#: Elements up to which a kernel costs more to launch than to run.
SMALL = 4096

#: Nodes and buffers of a joined kernel: bounds its arguments and its registers.
MAX_JOINED = 64


def join_small(fusion: Fusion) -> None:
    """Join the small clusters that read only inputs, in groups of one iteration space and device."""
    open_groups: dict[Any, tuple[Cluster, int]] = {}
    for cluster in list(fusion.clusters.values()):
        key = _space_of(fusion, cluster)
        if key is None:
            continue
        size = len(cluster.nodes) + len({base for node in cluster.nodes for base in fusion.bases(node)})
        first, total = open_groups.get(key, (cluster, 0))
        if first is cluster or total + size > MAX_JOINED or not fusion.may_fuse():
            open_groups[key] = (cluster, size)
            continue
        mapping = dict(zip(cluster.space, first.space, strict=True))
        fusion.merge(first, cluster, mapping, (), Move())
        open_groups[key] = (first, total + size)


def _space_of(fusion: Fusion, cluster: Cluster) -> Any:
    """What must be equal in clusters that are joined; None for one that is not."""
    if not cluster.loops or fusion.order.sources(cluster.id) or cluster.inner:
        return None
    if any(node.kind != "pointwise" for node in cluster.nodes):
        return None
    extents = tuple(cluster.space.values())
    if any(extent.kind != "const" for extent in extents):
        return None
    if not 0 < math.prod(int(extent.args[0]) for extent in extents) <= SMALL:
        return None
    return extents, cluster.nodes[0].device
