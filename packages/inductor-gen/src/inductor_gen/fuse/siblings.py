"""Sibling fusion: clusters that read the same value, or one of which reads the other, become one kernel.

Candidates are clusters that know a value in common, those next to each other among its readers first, the pair with
the most bytes to spare before the others. They become one where the index at which each knows the value leads from the
variables of one to the other's, and where the model of costs gains by it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping

from inductor_gen.fuse.cluster import Cluster, Fusion
from inductor_gen.fuse.legality import Merger, merger
from inductor_gen.fuse.score import Costs, Facts, Work, steps_of_one
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import ZERO, substitute
from inductor_gen.loops.views import Index
from prims.spec.expr import Expr

__all__ = ["fuse_siblings"]

#: How many of a value's next readers each reader is tried with.
NEIGHBOURS = 4

#: How many pairs of the indices at which two clusters read a value are tried.
INDICES = 4

#: Nodes between two clusters beyond which one would wait for the other with much of the graph in memory.
NEAR = 128


def fuse_siblings(fusion: Fusion, costs: Costs) -> None:
    """Make one cluster of those that share values, the best pairs first."""
    pairs: dict[tuple[int, int], int] = {}
    for value, known in _known(fusion, costs).items():
        known.sort(key=fusion.order.label)
        for k, a in enumerate(known):
            for b in known[k + 1 : k + 1 + NEIGHBOURS]:
                pairs[a, b] = pairs.get((a, b), 0) + costs.size(value)
    best = [(-saved, a, b) for (a, b), saved in pairs.items()]
    heapq.heapify(best)
    while best:
        _, a, b = heapq.heappop(best)
        one, other = (fusion.clusters.get(fusion.order.find(c)) for c in (a, b))
        if one is not None and other is not None and one is not other:
            _try(fusion, costs, one, other)


def _known(fusion: Fusion, costs: Costs) -> dict[Node, list[int]]:
    """The clusters that make or read each value at an index of their own."""
    known: dict[Node, list[int]] = {}
    for cluster in fusion.clusters.values():
        if cluster.loops and ZERO not in cluster.space.values() and cluster.nodes[0] not in fusion.renewing:
            facts = costs.facts(cluster)
            for value in (*(v for v, indices in facts.reads.items() if indices), *facts.writes):
                known.setdefault(value, []).append(cluster.id)
    return {value: clusters for value, clusters in known.items() if len(clusters) > 1 and value.shape}


def _try(fusion: Fusion, costs: Costs, one: Cluster, other: Cluster) -> None:
    a, b = costs.facts(one), costs.facts(other)
    if a.marks != b.marks or one.nodes[0].device != other.nodes[0].device or _apart(one, other):
        return
    if not (costs.may_wait(one.nodes, other) and costs.may_wait(other.nodes, one)):
        return
    shared = [v for v in {**a.reads, **dict.fromkeys(a.writes)} if v in b.reads or v in b.writes]
    move = fusion.order.together(one.id, other.id) if shared else None
    if move is None:
        return
    for value in sorted(shared, key=lambda v: (-costs.size(v), v.id)):
        pairs = itertools.product(_indices(value, one, a), _indices(value, other, b))
        for at_one, at_other in itertools.islice(pairs, INDICES):
            for into, gone, here, there in ((one, other, at_one, at_other), (other, one, at_other, at_one)):
                found = merger(fusion, gone, into, there, here, move)
                if found is not None:
                    saved = _saved(costs, into, gone, found)
                    gains = saved > 0 and _pays(costs, into, gone, found, saved)
                    if gains and _is_light(costs, into, gone, saved) and fusion.may_fuse():
                        fusion.merge(into, gone, found.mapping, found.inner, found.move, "sibling", saved)
                    return


def _apart(one: Cluster, other: Cluster) -> bool:
    """Do the clusters stand far from each other in the graph?"""
    first, last = sorted((one, other), key=lambda c: c.nodes[-1].id)
    return last.nodes[0].id - first.nodes[-1].id > NEAR


def _indices(value: Node, cluster: Cluster, facts: Facts) -> list[Index]:
    if value in cluster.homes:
        return [cluster.homes[value]]
    return sorted(facts.reads.get(value, ()), key=str)


def _moved(indices: frozenset[Index], mapping: Mapping[Expr, Expr]) -> set[Index]:
    return {tuple(substitute(i, mapping) for i in index) for index in indices}


def _saved(costs: Costs, into: Cluster, gone: Cluster, found: Merger) -> int:
    """The bytes that one kernel of both does not move: what both read at one index, and what one reads of the other."""
    a, b = costs.facts(into), costs.facts(gone)
    points = costs.count(into.space.values())
    both = [v for v, at in b.reads.items() if v in a.reads and _moved(at, found.mapping) & a.reads[v]]
    handed = [v for v in b.reads if v in into.homes] + [v for v in a.reads if v in gone.homes]
    of, kept = costs.fusion.of, costs.fusion.kept
    inside = [v for v in handed if v not in kept and all(of.get(u) in (into, gone) for u in costs.consumers.get(v, ()))]
    return costs.bytes_of([*both, *handed, *inside], points)


def _is_light(costs: Costs, into: Cluster, gone: Cluster, saved: int) -> bool:
    """Does one kernel hold no more memory than the two?

    The first waits for the second, where nothing in between reads it, with what it reads in memory all that time; or
    the second's results are there as early as the first's, and what it reads last is gone as early.
    """
    label, fusion = costs.fusion.order.label, costs.fusion
    first, last = sorted((into, gone), key=lambda c: label(c.id))
    here, there = costs.facts(first), costs.facts(last)
    waits = all(r == last.id or label(r) > label(last.id) for r in fusion.order.readers(first.id))
    slack = max(saved // 8, int(costs.device(into.nodes[0]).launch_bytes) // 4)

    def ending(facts: Facts, later: Facts) -> int:
        inside = (into, gone) if facts is there else (first,)
        read = (v for v in facts.reads if v not in later.reads and v.kind not in ("input", "constant"))
        users = ((v, costs.consumers.get(v, ())) for v in read if v not in fusion.kept)
        return sum(costs.size(v) for v, some in users if all(fusion.of.get(u) in inside for u in some))

    def made(facts: Facts) -> int:
        return sum(map(costs.size, facts.writes))

    delayed = ending(here, there) - made(here) if waits else slack + 1
    return min(delayed, made(there) - ending(there, Facts({}, (), frozenset(), ()))) <= slack


def _pays(costs: Costs, into: Cluster, gone: Cluster, found: Merger, saved: int) -> bool:
    """Is one kernel faster than the two, and does it keep the form that theirs have?"""
    a, b = costs.facts(into), costs.facts(gone)
    along = a.along | {v for w in b.along for v in steps_of_one(found.mapping[w], into.space)}
    directions = 1 if a.marks[2] else max(len(a.along), len(b.along))  # copies: they may be laid out otherwise
    if len(along) > directions or a.streams + b.streams > costs.room(into):
        return False
    if bool(into.inner) != bool(gone.inner):
        device = costs.device(into.nodes[0])
        row = costs.count(into.space[v] for v in found.inner)
        if len(along) > 1 or row * 4 < device.vector_bytes:
            return False
    device = costs.device(into.nodes[0])
    mine, theirs = costs.work(into), costs.work(gone)
    whole = Work(
        mine.moved + theirs.moved - saved, mine.operations + theirs.operations, min(mine.parallel, theirs.parallel)
    )
    return whole.seconds(device) < mine.seconds(device) + theirs.seconds(device)
