"""Inlining: small or single-use pointwise clusters are computed inside their consumers.

A pointwise cluster whose values are all read by other kernels through index maps that fusion could not follow
(a slice, a broadcast, a concatenation) disappears when recomputing it costs less than a trip through memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from inductor_gen.fuse.cluster import Cluster, Fusion
from inductor_gen.loops.cost import op_cost
from inductor_gen.loops.graph import Node
from prims.spec.expr import Expr

__all__ = ["inline_cheap"]

#: Cost (see ``op_cost``) up to which a small chain is recomputed in its consumers rather than stored and loaded.
CHEAP = 12
#: The same on a GPU, where arithmetic is cheaper beside memory and a kernel costs microseconds to launch.
CHEAP_ON_GPU = 60
MAX_COPIES = 4

#: Nodes computed in place in one kernel: bounds repeated work and the depth of what follows them.
MAX_INLINED = 100


def inline_cheap(fusion: Fusion, hint: Callable[[Expr], int]) -> None:
    """Compute the clusters inside their consumers that are cheap enough."""
    consumers = fusion.consumers()
    carried: dict[int, list[Node]] = {}  # what a cluster already computes in place
    for cluster in sorted(fusion.clusters.values(), key=lambda c: max((n.id for n in c.nodes), default=0)):
        if not cluster.loops or any(n.kind != "pointwise" or n in fusion.kept for n in cluster.nodes):
            continue
        users = list(dict.fromkeys(u for n in cluster.nodes for u in consumers.get(n, ()) if u in fusion.of))
        readers = {c.id: c for u in users if (c := fusion.of[u]) is not cluster}
        nodes = [*carried.get(cluster.id, ()), *cluster.nodes]
        if not readers or not _worth(cluster, nodes, list(readers.values()), hint):
            continue
        if any(len(carried.get(r, ())) + len(nodes) > MAX_INLINED for r in readers) or not fusion.may_fuse():
            continue
        for r in readers:
            carried.setdefault(r, []).extend(nodes)
        fusion.inline(cluster)
        for base in {b.id: b for n in cluster.nodes for b in fusion.bases(n)}.values():
            consumers.setdefault(base, []).extend(users)


def _worth(cluster: Cluster, nodes: list[Node], readers: list[Cluster], hint: Callable[[Expr], int]) -> bool:
    cost = sum(op_cost(n.op) for n in nodes)
    size = max(math.prod(map(hint, n.shape)) for n in cluster.nodes)
    device = cluster.nodes[-1].device
    cheap = CHEAP_ON_GPU if device is not None and device.type == "cuda" else CHEAP
    if any(not reader.loops and not reader.space for reader in readers):
        return False
    read = max(math.prod(map(hint, reader.space.values())) for reader in readers)
    inside = set(cluster.nodes)
    uses = sum(user not in inside for n in cluster.nodes for user in n.users)
    if uses > 2 and cost > cheap:
        return False  # several reads would repeat the work
    if len(readers) == 1 and read <= size:
        return not any(n.op in ("gather", "index") for n in readers[0].nodes) or cost <= cheap
    if len(readers) > MAX_COPIES:
        return False
    if cost <= 1 and len(nodes) == 1:
        return True
    return size * 4 <= read and cost <= cheap
