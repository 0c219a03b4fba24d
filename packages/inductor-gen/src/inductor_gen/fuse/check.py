"""The fused graph as text, and what must hold of it."""

from __future__ import annotations

from collections import Counter

from inductor_gen.fuse.cluster import COMPUTED, Cluster, Fusion, home_of
from inductor_gen.loops.graph import Node, reached
from inductor_gen.loops.index import ZERO, distinct, lower, product, substitute, upper
from prims.errors import VerifierError
from prims.spec import expr as ex

__all__ = ["CONSTRAINTS", "text", "verify"]

CONSTRAINTS = {
    "FUSE-C1": "Every live computed node is in one cluster, which knows it, or is inlined, or both.",
    "FUSE-C2": "A node that must be in memory is not inlined, and only pointwise nodes are.",
    "FUSE-C3": "A cluster reads its own values at their homes.",
    "FUSE-C4": "No cluster reads, through others, what comes after it.",
    "FUSE-C5": "A node's index tells apart all outer variables of its cluster, and all inner ones or none.",
    "FUSE-C6": "Operators that draw random numbers run in the order of the graph.",
    "FUSE-C7": "A node is computed at indices within its shape.",
    "FUSE-C8": "What may refuse the program's data is in a cluster, and not behind a later write into an input.",
    "FUSE-C9": "What is late is not in one cluster with what is early, nor computes that in place, but for constants.",
    "FUSE-C10": "A node is computed at each of its elements, and once.",
}


def verify(fusion: Fusion) -> None:
    """Check the constraints.

    Raises:
        VerifierError: one is broken; the error names it.
    """
    for node in fusion.graph.nodes:
        cluster = fusion.of.get(node)
        if node.kind in COMPUTED and node in fusion.live:
            at_home = cluster is not None and node in cluster.homes and fusion.clusters.get(cluster.id) is cluster
            _demand(at_home or (cluster is None and node in fusion.inlined), "FUSE-C1", node)
        if node in fusion.inlined:
            _demand(node not in fusion.kept and node.kind == "pointwise", "FUSE-C2", node)
    count = Counter(node for cluster in fusion.clusters.values() for node in cluster.nodes)
    for node, times in count.items():
        _demand(times == 1 and node in fusion.of, "FUSE-C1", node)
    for cluster in fusion.clusters.values():
        _verify_cluster(fusion, cluster)
    _verify_order(fusion)
    for node in fusion.refusing:
        later = [fusion.of[u] for u in fusion.updates if u.id > node.id]
        cluster = fusion.of.get(node)
        before = cluster is not None and all(
            c is cluster or fusion.order.label(cluster.id) < fusion.order.label(c.id) for c in later
        )
        _demand(before, "FUSE-C8", node)


def _verify_cluster(fusion: Fusion, cluster: Cluster) -> None:
    outer, inner = set(cluster.outer()), set(cluster.inner)
    for node in cluster.nodes:
        _demand(node.is_late == cluster.late, "FUSE-C9", node)
        for x in reached(node.ins, lambda x: x.ins if x.kind == "view" or x in fusion.inlined else ()):
            early = cluster.late and x in fusion.inlined and not x.is_late
            _demand(not early or not fusion.bases(x), "FUSE-C9", x)
        operand = cluster.operands[node]
        _demand(cluster.homes[node] == home_of(node, operand), "FUSE-C5", node)
        if not cluster.loops:
            continue
        used = {v for i in operand for v in i.symbols}
        _demand(outer <= used and (not used & inner or inner <= used), "FUSE-C5", node)
        for base, index, exact in fusion.reads(node, operand):
            if base in cluster.homes:
                _demand(exact and index == cluster.homes[base], "FUSE-C3", node)
    for node in cluster.nodes if cluster.loops and ZERO not in cluster.space.values() else ():
        used = {v for i in cluster.homes[node] for v in i.symbols if v in cluster.space}
        count = ex.sub(product(cluster.space[v] for v in used), product(node.shape))
        each = (not count.is_const or count is ZERO) and distinct(cluster.homes[node], cluster.space) is not False
        _demand(each, "FUSE-C10", node)
        for i, extent in zip(cluster.homes[node], node.shape, strict=True):
            low, high = lower(i, cluster.space), upper(i, cluster.space)
            known = low is not None and high is not None and low.is_const and high.is_const and extent.is_const
            _demand(not known or 0 <= low.value <= high.value < extent.value, "FUSE-C7", node)  # type: ignore[union-attr]


def _verify_order(fusion: Fusion) -> None:
    needs = {c.id: {o.id for n in c.nodes for o in fusion.owners(n) if o is not c} for c in fusion.clusters.values()}
    done: set[int] = set()
    for cluster in fusion.in_line():
        _demand(needs[cluster.id] <= done, "FUSE-C4", cluster.nodes[0])
        done.add(cluster.id)
    places = [fusion.order.label(fusion.of[n].id) for n in fusion.random]
    for node, a, b in zip(fusion.random[1:], places, places[1:], strict=False):
        _demand(a < b, "FUSE-C6", node)


def _demand(holds: bool, label: str, node: Node) -> None:
    if not holds:
        raise VerifierError(label, CONSTRAINTS[label], node=repr(node), after="fuse")


def text(fusion: Fusion) -> str:
    """The clusters in an order in which they can run: variables, nodes and homes, what each reads and why its nodes
    are together. Variables are numbered within a cluster, so that equal clusters read alike."""
    lines = []
    for k, cluster in enumerate(fusion.in_line()):
        if not cluster.loops and not cluster.space:
            lines.append(f"operator {k}: {cluster.nodes[0]!r}")
            continue
        names = {v: ex.symbol(f"{'r' if v in cluster.inner else 'p'}{n}") for n, v in enumerate(cluster.space)}
        space = ", ".join(f"{names[v]}: {extent}" for v, extent in cluster.space.items())
        lines.append(f"{'kernel' if cluster.loops else 'scatter'} {k} [{space}]{_why(cluster)}")
        for node in cluster.nodes:
            outside = sorted((b for b in fusion.bases(node) if b not in cluster.homes), key=lambda n: n.id)
            read = f" reads {', '.join(map(repr, outside))}" if outside else ""
            kept = " kept" if node in fusion.kept else ""
            home = ", ".join(str(substitute(i, names)) for i in cluster.homes[node])
            lines.append(f"  {node!r} [{home}]{read}{kept}")
    if fusion.inlined:
        lines.append(f"inlined: {', '.join(map(repr, sorted(fusion.inlined, key=lambda n: n.id)))}")
    return "\n".join(lines) + "\n"


def _why(cluster: Cluster) -> str:
    found: dict[str, tuple[int, int]] = {}
    for fused in cluster.fused:
        count, saved = found.get(fused.stage, (0, 0))
        found[fused.stage] = count + 1, saved + fused.saved
    return "".join(f"; {stage} {count} ({saved} bytes saved)" for stage, (count, saved) in sorted(found.items()))
