"""What may be computed together: index maps between nodes and clusters.

A node joins the cluster of a producer when its home follows from the producer's through the views between them, and
when every value of the cluster that it reads is read at that value's own home. Two clusters become one when a value
that both know, one as its maker or both as readers, gives each variable of one in terms of the other's.
"""

from __future__ import annotations

from collections.abc import Sequence

from inductor_gen.fuse.cluster import Cluster, Fusion, in_order, substituted
from inductor_gen.fuse.order import Move
from inductor_gen.loops.cost import LONGEST, op_length
from inductor_gen.loops.graph import Node, inner_dims
from inductor_gen.loops.index import ONE, ZERO, coefficient, lower
from inductor_gen.loops.views import Index, push
from prims.records import record
from prims.spec import expr as ex
from prims.spec.expr import Expr

__all__ = ["Merger", "is_full", "merger", "operand_in", "refine"]

#: Nodes in one kernel beyond which a new one is begun on a CPU.
MAX_NODES = 600

#: Results beyond which one is begun there: gcc compares every store with every load. 0.4 seconds for a chain of 50, 1.8
#: for 100, 11 for 200 (12.2); chains with one result take 0.2 seconds whatever their length.
MAX_RESULTS = 64

#: Loads and stores beyond which one is begun on a GPU: for each, a pass of Triton walks over all that it is connected
#: with. 1.1 seconds for 80, 6.6 for 160 (3.7).
MAX_ACCESSES = 96

#: The length (``op_length``) from which one is begun there: two seconds of Triton's time with one element per thread.
MAX_LENGTH = 8000

#: Splits of variables tried to bring an index to the form that another has.
_SPLITS = 6


def is_full(fusion: Fusion, cluster: Cluster, node: Node) -> bool:
    """Is a cluster with another node more than one kernel should hold?"""
    nodes = (*cluster.nodes, node)
    if len(nodes) > cluster.fits:
        cluster.fits = len(nodes) + _spare(fusion, nodes)
    return len(nodes) > cluster.fits


def _spare(fusion: Fusion, nodes: Sequence[Node]) -> int:
    """How many nodes more one kernel may hold for certain, or nearly so; below 0 where these are too many."""
    inside = set(nodes)
    stored = lambda: sum(x in fusion.kept or not inside.issuperset(x.users) for x in nodes)
    if nodes[0].on_gpu:
        read = {site for x in nodes for site in fusion.sites(x) if site[0] not in inside}
        left, short = MAX_ACCESSES - len(read) - stored(), MAX_LENGTH - sum(op_length(x.op) for x in nodes)
        return min(left, short) if min(left, short) < 0 else min(left // 4, short // LONGEST)
    left = MAX_NODES - len(nodes)
    if len(nodes) <= MAX_RESULTS:
        return MAX_RESULTS - len(nodes)  # each node more is one result at most
    return min(left, MAX_RESULTS - stored())


def refine(fusion: Fusion, node: Node, cluster: Cluster) -> None:
    """Split the variables of a new cluster so that what its node reads needs no division, where sizes allow it."""
    for _ in range(_SPLITS):
        read = fusion.reads(node, cluster.operands[node])
        if not fusion.split_for(cluster, (i for _, i, _ in read)):
            return


def operand_in(fusion: Fusion, node: Node, cluster: Cluster) -> Index | None:
    """The index at which a cluster that makes operands of a node can compute it, as ``Fusion.add`` takes it."""
    for _ in range(_SPLITS):
        tried = (_fits(fusion, node, at, cluster) for x in _aligned(node) if (at := _forward(x, cluster)) is not None)
        found = next((home for home in tried if home is not None), None)
        if not isinstance(found, str):
            return found
    return None


def _aligned(node: Node) -> list[Node]:
    """The operands that are read at the very index of the node (of its operand, for a reduction)."""
    if node.kind in ("reduce", "scan"):
        return [node.args[0]]
    if node.op == "gather":
        return [node.args[1]]
    if node.op == "index":
        indices = node.args[1]
        return list(indices) if len(indices[0].shape) == len(node.shape) else []
    return [x for x in node.ins if len(x.shape) == len(node.shape)]


def _forward(x: Node, cluster: Cluster) -> Index | None:
    """The index at which the cluster has ``x``, a view of one of its values."""
    chain: list[Node] = []
    while x.kind == "view" and x.op not in ("pad", "concat", "slice"):
        chain.append(x)
        x = x.args[0]
    index = cluster.homes.get(x)
    for view in reversed(chain):
        if index is None:
            return None
        index = push(view, index, cluster.space, cluster.inner)
    return index


def _fits(fusion: Fusion, node: Node, at: Index, cluster: Cluster) -> Index | str | None:
    """The node's home when its operands are read at ``at``, if that is legal in the cluster; ``"split"`` where a
    variable of the cluster was split, so that it may be."""
    if fusion.split_for(cluster, (at,)):
        return "split"
    inner = set(cluster.inner)
    if not _covers(at, cluster.space, set(cluster.outer()), inner):
        return None
    over: list[Expr] = []
    if node.kind in ("reduce", "scan"):
        dims = inner_dims(node)
        over = [v for d in dims for v in cluster.space if v in at[d].symbols]
        kept = {v for d, i in enumerate(at) if d not in dims for v in i.symbols if v in cluster.space}
        if kept & set(over) or (over and inner and set(over) != inner):
            return None
        if node.kind == "scan" and not in_order(node, at, cluster.inner or over, cluster.space):
            return None
    for base, index, exact in fusion.reads(node, at):
        if fusion.of.get(base) is cluster and (not exact or index != cluster.homes[base]):
            return "split" if fusion.split_for(cluster, (index,)) else None
    if over and not inner:
        cluster.inner = tuple(over)
    return at


def _covers(index: Index, space: dict[Expr, Expr], outer: set[Expr], inner: set[Expr]) -> bool:
    """Does the index tell all outer variables apart, and all inner ones or none?"""
    used = {v for i in index for v in i.symbols if v in space}
    return outer <= used and (not used & inner or inner <= used)


@record
class Merger:
    """How one cluster goes into another: its variables in terms of the other's, and the reduced ones of both."""

    mapping: dict[Expr, Expr]
    inner: tuple[Expr, ...]
    move: Move


def merger(
    fusion: Fusion, other: Cluster, cluster: Cluster, theirs: Index, ours: Index, move: Move | None = None
) -> Merger | None:
    """How to move ``other`` into ``cluster``, where ``theirs`` over its variables is ``ours`` over the cluster's;
    ``move``: what the order of clusters asks for, where that is known."""
    if other.late != cluster.late or _spare(fusion, (*other.nodes, *cluster.nodes)) < 0:
        return None
    move = move or fusion.order.together(other.id, cluster.id)
    if move is None:
        return None
    mapping = _unify(other, theirs, ours, cluster)
    if mapping is None:
        return None
    inner = {v for w in other.inner for v in mapping[w].symbols if v in cluster.space}
    if cluster.inner and inner and inner != set(cluster.inner):
        return None
    final_inner = set(cluster.inner) or inner
    outer = set(cluster.space) - final_inner
    homes = substituted(other.homes, mapping)
    for home in (*homes.values(), *cluster.homes.values()):
        if not _covers(home, cluster.space, outer, final_inner):
            return None
    order = cluster.inner or tuple(v for v in cluster.space if v in final_inner)
    operands = {**cluster.operands, **substituted(other.operands, mapping)}
    if not all(in_order(n, at, order, cluster.space) for n, at in operands.items() if n.kind == "scan"):
        return None
    if not _reads_at_home(fusion, cluster, other, operands, {**cluster.homes, **homes}):
        return None
    return Merger(mapping, order, move)


def _reads_at_home(
    fusion: Fusion, cluster: Cluster, other: Cluster, operands: dict[Node, Index], homes: dict[Node, Index]
) -> bool:
    """Would every value of one cluster that the other reads be read at its home, and those of the one that moves by its
    own nodes still? Over other variables the way through a view may not be seen to lead there."""
    label = fusion.order.label
    source, reader = (cluster, other) if label(cluster.id) < label(other.id) else (other, cluster)
    pairs = {(source, reader)} if source.id in fusion.order.sources(reader.id) else set()
    for made, read in pairs | {(other, other)}:
        for node in read.nodes:
            if not any(fusion.of.get(base) is made for base in fusion.bases(node)):
                continue
            for base, index, exact in fusion.reads(node, operands[node]):
                if fusion.of.get(base) is made and (not exact or index != homes[base]):
                    return False
    return True


def _takes_each(e: Expr, extent: Expr, space: dict[Expr, Expr]) -> bool:
    """Does an index take each value from 0 to below ``extent``, and each once?

    Its variables are then the digits of a number, each worth as much as all those below it, and any may count down.
    That the ends are right is not enough: ``2*(i//2)`` for ``i < 5``, as a slice is read through the reshape that
    writes it back, begins at 0, ends at 4 and leaves out what lies between.
    """
    worth, left = ONE, [v for v in e.symbols if v in space]
    while left:
        digit = next((v for v in left if (c := coefficient(e, v)) is not None and worth in (c, ex.neg(c))), None)
        if digit is None:
            return False
        left.remove(digit)
        worth = ex.mul(worth, space[digit])
    return worth is extent and lower(e, space) is ZERO


def _unify(other: Cluster, home: Index, index: Index, cluster: Cluster) -> dict[Expr, Expr] | None:
    """What each variable of ``other`` is in terms of ``cluster``'s, so that ``home`` becomes ``index``."""
    mapping: dict[Expr, Expr] = {}
    for theirs, ours in zip(home, index, strict=True):
        if theirs is ZERO:
            if ours is not ZERO:
                return None
            continue
        if theirs not in other.space:
            return None
        if mapping.setdefault(theirs, ours) is not ours:
            return None
    if set(mapping) != set(other.space):
        if not set(other.outer()) <= set(mapping) or set(mapping) & set(other.inner):
            return None
        # ``home`` lies outside other's reduction: its inner variables must be ours, size by size.
        if len(other.inner) != len(cluster.inner):
            return None
        for v, w in zip(other.inner, cluster.inner, strict=True):
            if other.space[v] is not cluster.space[w]:
                return None
            mapping[v] = w
    if ZERO in other.space.values():
        return None
    used = [v for e in mapping.values() for v in e.symbols if v in cluster.space]
    if len(used) != len(set(used)):
        return None
    if not all(_takes_each(e, other.space[v], cluster.space) for v, e in mapping.items()):
        return None  # two parts of a value may be equally large, and lie elsewhere
    return mapping
