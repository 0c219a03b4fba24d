"""Cutting a kernel's outer loop at the seams of a concatenation.

Reading ``concat(x, y)`` element by element needs a choice per element. Where the concatenated dimension is a loop of
its own, the loop is cut at the seams instead: one nest per operand, each reading that operand alone, all writing
parts of the same buffers. Equal nests share one function, so a densenet's many concatenations cost few kernels.
"""

from __future__ import annotations

from inductor_gen.fuse.cluster import Cluster, Fusion
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import ONE
from inductor_gen.loops.views import Index, parts_of
from prims.spec import expr as ex
from prims.spec.expr import Expr

__all__ = ["cut"]

MAX_PIECES = 64


def _seams(fusion: Fusion, cluster: Cluster) -> tuple[Expr, list[Expr]] | None:
    """An outer variable and the ``starts`` of the parts of a concatenation along it."""
    for node in cluster.nodes:
        for x, at, _ in fusion.on_the_way(node, cluster.operands[node]):
            found = _along(x, at, cluster) if x.op == "concat" else None
            if found is not None:
                return found
    return None


def _along(node: Node, at: Index, cluster: Cluster) -> tuple[Expr, list[Expr]] | None:
    dim = node.args[1]
    v = at[dim]
    if v not in cluster.space or v in cluster.inner or cluster.space[v] is not node.shape[dim]:
        return None
    starts = parts_of(node)[1]
    return (v, starts) if len(starts) > 1 else None


def cut(fusion: Fusion, cluster: Cluster) -> list[Cluster]:
    """The cluster, or the pieces of it that together do its work."""
    done: list[Cluster] = []
    todo = [cluster]
    while todo:
        piece = todo.pop()
        seams = None if len(done) + len(todo) >= MAX_PIECES else _seams(fusion, piece)
        parts = [piece]
        if seams is not None:
            v, starts = seams
            stops = [*starts[1:], piece.space[v]]
            parts = [_part(fusion, piece, v, a, ex.sub(b, a)) for a, b in zip(starts, stops, strict=True)]
        if seams is None or not all(map(fusion.agrees, parts)):  # of a seam with a symbolic place, too little is known
            done.append(piece)
        else:
            todo += reversed(parts)
    return done


def _part(fusion: Fusion, cluster: Cluster, variable: Expr, start: Expr, extent: Expr) -> Cluster:
    part, (fresh,) = cluster.copy(), fusion.variables(cluster, extent)
    if extent is ONE:
        part.replace(variable, start, {})
    else:
        part.replace(variable, ex.add(start, fresh), {fresh: extent})
    return part
