"""The stages of fusion, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from inductor_gen.device.record import Asked
from inductor_gen.fuse.cluster import Fusion
from inductor_gen.fuse.horizontal import join_small
from inductor_gen.fuse.inline import inline_clusters, recompute_shared
from inductor_gen.fuse.score import Costs
from inductor_gen.fuse.siblings import fuse_siblings
from inductor_gen.fuse.vertical import cluster_nodes
from inductor_gen.loops.graph import Graph, Node
from prims.ir import Fuel
from prims.spec.expr import Expr

__all__ = ["fuse"]


def fuse(
    graph: Graph, hint: Callable[[Expr], int], devices: Asked, kept: Iterable[Node] = (), fuel: Fuel | None = None,
    updates: Iterable[Node] = (), renewed: Iterable[Node] = (), renewing: Mapping[Node, Node] | None = None,
) -> Fusion:  # fmt: skip
    """Cluster the nodes of a graph.

    ``hint`` gives a likely number for a size, ``devices`` the record of a device; ``kept`` are the nodes that must end
    up in memory; ``fuel`` limits the number of fusions; ``updates`` are the scatters that write an input, ``renewed``
    the nodes that are inputs' new values and may be written over them, ``renewing`` copies that begin as the inputs.
    """
    fusion = Fusion(graph, kept, fuel, updates, renewed, renewing)
    costs = Costs(fusion, hint, devices)
    cluster_nodes(fusion, costs)
    inline_clusters(fusion, costs)
    costs = Costs(fusion, hint, devices)
    recompute_shared(fusion, costs)
    fuse_siblings(fusion, costs)
    join_small(fusion, costs)
    return fusion
