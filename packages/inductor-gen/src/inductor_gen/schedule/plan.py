"""From fused clusters to an ordered list of kernels and extern calls."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from inductor_gen.fuse.cluster import Cluster, Fusion
from inductor_gen.loops.body import Layout
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import ONE, contiguous_strides
from inductor_gen.schedule.loopnest import Hint
from inductor_gen.schedule.memory import Step, lightest_order, workspace
from inductor_gen.schedule.prepare import Prepared, ViewRef, channels_last

__all__ = ["Plan", "plan"]

@dataclass
class Plan:
    """Clusters in execution order, and the nodes that each kernel cluster writes to memory."""

    order: list[Cluster] = field(default_factory=list)
    stored: dict[int, list[Node]] = field(default_factory=dict)


def kept_nodes(prepared: Prepared) -> set[Node]:
    """Nodes that must be in memory whatever fusion does: outputs and what externs and scatters take."""
    kept: set[Node] = set()
    for out in prepared.outputs:
        if isinstance(out, ViewRef):
            kept.add(out.base)
    for node in prepared.graph.nodes:
        if node.kind in ("extern", "item"):
            kept.update(node.ins)
    kept.update(prepared.scattered.values())
    return kept


def plan(fusion: Fusion, prepared: Prepared, hint: Hint) -> Plan:
    """Order the clusters and find what each writes."""
    kept = kept_nodes(prepared)
    stored: dict[int, set[Node]] = {}
    for node in kept:
        if node in fusion.of and fusion.of[node].loops:
            stored.setdefault(fusion.of[node].id, set()).add(node)
    needs: dict[int, set[int]] = {c: set() for c in fusion.clusters}
    for node, cluster in fusion.of.items():
        for base in fusion.bases(node):
            source = fusion.of.get(base)
            if source is None or source is cluster:
                continue
            needs[cluster.id].add(source.id)
            if source.loops:
                stored.setdefault(source.id, set()).add(base)
    for earlier, later in zip(fusion.random, fusion.random[1:], strict=False):
        needs[fusion.of[later].id].add(fusion.of[earlier].id)
    out = Plan()
    for cluster in fusion.clusters.values():
        if cluster.loops:
            out.stored[cluster.id] = sorted(stored.get(cluster.id, ()), key=lambda n: n.id)
    order = _delayed(fusion, _topological(fusion, needs), needs, prepared.tangents)
    steps = {c.id: _step(fusion, c, out, prepared, hint) for c in order}
    returned = {_owner(r.base, prepared) for r in prepared.outputs if isinstance(r, ViewRef)}
    ids = lightest_order(steps, [c.id for c in order], needs, returned, prepared.freed, hint)
    out.order = [c for c in map(fusion.clusters.__getitem__, ids) if not c.loops or out.stored[c.id]]
    _choose_layouts(fusion, out, prepared)
    return out


def _owner(node: Node, prepared: Prepared) -> Node:
    return prepared.scattered.get(node, node)


def _step(fusion: Fusion, cluster: Cluster, out: Plan, prepared: Prepared, hint: Hint) -> Step:
    """A cluster as the buffers that it makes and reads."""
    read: dict[Node, None] = {}
    seen: set[Node] = set()
    todo = [x for node in cluster.nodes for x in node.ins]
    while todo:
        x = todo.pop()
        if x in seen:
            continue
        seen.add(x)
        if x.kind in ("view", "create") or x in fusion.inlined:
            todo.extend(x.ins)
        elif fusion.of.get(x) is not cluster:
            read[_owner(x, prepared)] = None
    first = cluster.nodes[0]
    if cluster.loops:
        return Step(tuple(n for n in out.stored[cluster.id] if n not in prepared.scattered), tuple(read))
    if first.kind == "scatter":
        return Step((), tuple(read))
    items = [user for user in first.users if user.kind == "item"]
    return Step((first, *items), tuple(read), kernel=False, extra=workspace(first, hint))


def _delayed(
    fusion: Fusion, order: list[Cluster], needs: dict[int, set[int]], tangents: set[Node]
) -> list[Cluster]:
    """In a backward graph, put off what is recomputed from saved values until the gradients need it: done first, all of
    it would be in memory at once."""
    if not tangents:
        return order
    on_gradients: set[int] = set()
    for c in order:
        if needs[c.id] & on_gradients or any(b in tangents for n in c.nodes for b in fusion.bases(n)):
            on_gradients.add(c.id)
    out: list[Cluster] = []
    placed: set[int] = set()

    def place(c: Cluster) -> None:
        todo = [c]
        while todo:
            top = todo[-1]
            missing = [fusion.clusters[s] for s in sorted(needs[top.id], reverse=True) if s not in placed]
            if top.id in placed:
                todo.pop()
            elif missing:
                todo += missing
            else:
                placed.add(top.id)
                out.append(todo.pop())

    for c in order:
        if c.id in on_gradients:
            place(c)
    for c in order:
        place(c)
    return out


def _topological(fusion: Fusion, needs: dict[int, set[int]]) -> list[Cluster]:
    """Consumers soon after their producers: the ready cluster with the earliest last node first."""
    users: dict[int, list[int]] = {}
    for c, sources in needs.items():
        for s in sources:
            users.setdefault(s, []).append(c)
    waiting = {c: len(sources) for c, sources in needs.items()}
    last = {c.id: max((n.id for n in c.nodes), default=0) for c in fusion.clusters.values()}
    ready = [(last[c], c) for c, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order: list[Cluster] = []
    while ready:
        _, c = heapq.heappop(ready)
        order.append(fusion.clusters[c])
        for u in users.get(c, ()):
            waiting[u] -= 1
            if waiting[u] == 0:
                heapq.heappush(ready, (last[u], u))
    if len(order) != len(fusion.clusters):
        from prims.errors import InternalError

        raise InternalError("fusion made a cycle of kernels")
    return order


def _choose_layouts(fusion: Fusion, out: Plan, prepared: Prepared) -> None:
    """Give intermediate values a layout: their same-shaped inputs' where these agree on a dense one (channels
    last), else row-major."""
    layouts = prepared.layouts
    for cluster in out.order:
        for node in out.stored.get(cluster.id, ()):
            if node not in layouts:
                layouts[node] = _followed(fusion, cluster, node, prepared)


def _followed(fusion: Fusion, cluster: Cluster, node: Node, prepared: Prepared) -> Layout:
    layouts = prepared.layouts
    row_major = Layout(contiguous_strides(node.shape))
    if len(node.shape) < 4:
        return row_major
    home = cluster.homes[node]
    for other in cluster.nodes:
        for base in fusion.bases(other):
            if prepared.images.get(base) == node.shape:
                return Layout(channels_last(node.shape))
            layout = layouts.get(base)
            if layout is None or base.shape != node.shape or fusion.of.get(base) is cluster:
                continue
            if cluster.operands[other] == home and layout.strides != row_major.strides and _dense(base, layout):
                return layout
    return row_major


def _dense(node: Node, layout: Layout) -> bool:
    """Do the strides visit every element of a block exactly once?"""
    left = {(s, n) for s, n in zip(layout.strides, node.shape, strict=True) if n is not ONE}
    from prims.spec import expr as ex

    step = ONE
    while left:
        found = next((pair for pair in left if pair[0] is step), None)
        if found is None:
            return False
        left.remove(found)
        step = ex.mul(step, found[1])
    return True
