"""The stages of fusion, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from inductor_gen.fuse.cluster import Fusion
from inductor_gen.fuse.horizontal import join_small
from inductor_gen.fuse.inline import inline_cheap
from inductor_gen.fuse.vertical import cluster_nodes
from inductor_gen.loops.graph import Graph, Node
from prims.spec.expr import Expr

__all__ = ["fuse"]


def fuse(graph: Graph, hint: Callable[[Expr], int], kept: Iterable[Node] = (), fuel: int | None = None) -> Fusion:
    """Cluster the nodes of a graph.

    ``hint`` gives a likely number for a size; ``kept`` are the nodes that must end up in memory; ``fuel`` limits the
    number of fusions.
    """
    fusion = Fusion(graph, kept, fuel)
    cluster_nodes(fusion)
    inline_cheap(fusion, hint)
    join_small(fusion)
    return fusion
