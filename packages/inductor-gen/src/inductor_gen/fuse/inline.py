"""Inlining: what is computed again wherever it is read, rather than stored and loaded.

A pointwise cluster whose values are all read by other kernels through index maps that fusion could not follow
(a slice, a broadcast, a concatenation) disappears where its readers compute it faster than they load it.
A pointwise value of a cluster that another one reads, along other loops, is made of what both can read where that moves
fewer bytes: a layer norm's backward sums a product of its operands over rows, and the product is nowhere in memory.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from inductor_gen.fuse.cluster import Cluster, Fused, Fusion
from inductor_gen.fuse.score import Costs, Work
from inductor_gen.loops.graph import Node, reached

__all__ = ["inline_clusters", "recompute_shared"]

MAX_COPIES = 4

#: Nodes computed in place in one kernel, each as often as it is: bounds repeated work and the depth of what follows.
MAX_INLINED = 100

#: Nodes (each as often as it is), or cycles an element, of one value that is made again beside where it is made, and
#: the kernels that make it.
MAX_AGAIN, MAX_READERS = 16, 64

#: The bytes of a value that is nowhere in memory if it is made of little, and the share of their time that kernels may
#: lose by making it; a quarter of that where what it is made of waits no longer in memory than the value would.
LARGE, SLOWER = 1 << 20, 1 / 16

#: Operations that a load takes whose place is one of several, of a concatenation or a pad say, on a CPU and on a GPU.
#: Two steps of a stencil on a torus, 65,536 points, one thread of an AMD EPYC with vectors of 64 bytes: 0.3 ns a load
#: where the second step computes the first in place, 0.04 ns an operation.
CHOSEN = {True: 8, False: 2}

_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))


def inline_clusters(fusion: Fusion, costs: Costs) -> None:
    """Compute pointwise clusters inside their readers where that is faster."""
    consumers = costs.consumers
    staying = fusion.kept.union(fusion.refusing)
    carried: dict[int, tuple[int, int]] = {}  # nodes that a cluster already computes in place, and their operations
    works: dict[int, Work] = {}
    positional = frozenset(fusion.inlined)
    for cluster in sorted(fusion.clusters.values(), key=lambda c: max((n.id for n in c.nodes), default=0)):
        if not cluster.loops or any(n.kind != "pointwise" or n in staying for n in cluster.nodes):
            continue
        if fusion.olds and not fusion.olds.isdisjoint(b for n in cluster.nodes for b in fusion.bases(n)):
            continue  # its readers may come after the input is written
        users = list(dict.fromkeys(u for n in cluster.nodes for u in consumers.get(n, ()) if u in fusion.of))
        readers = {c.id: c for u in users if (c := fusion.of[u]) is not cluster}
        if any(_must_be_one(fusion, costs, n) for n in cluster.nodes):
            continue
        others = any(r.late != cluster.late or not (r.space or r.loops) for r in readers.values())
        if not 0 < len(readers) <= MAX_COPIES or others:
            continue
        inside, more = carried.get(cluster.id, (0, 0))
        count, operations = inside + len(cluster.nodes), more + costs.operations(cluster.nodes, 1)
        device = costs.device(cluster.nodes[0])
        at = {r: _places(costs, cluster.nodes, reader, device.warp == 1) for r, reader in readers.items()}
        if any(carried.get(r, (0, 0))[0] + count * len(places) > MAX_INLINED for r, places in at.items()):
            continue
        for c in (cluster, *readers.values()):
            works.setdefault(c.id, costs.work(c))
        before = costs.count(cluster.space.values()) / len(readers)
        spread = 0 if device.warp == 1 else _spread(costs, cluster, positional)
        each = {
            r: (operations + spread * (max(places.values()) > 1)) * len(places)
            + _more_loads(costs, cluster, readers[r], places, before)
            for r, places in at.items()
        }
        after = {r: _with(costs, cluster, each[r], reader, works) for r, reader in readers.items()}
        apart = sum(works[c].seconds(device) for c in (cluster.id, *readers))
        if sum(w.seconds(device) for w in after.values()) >= apart or not fusion.may_fuse():
            continue
        works.update(after)
        for r, places in at.items():
            known = carried.get(r, (0, 0))
            carried[r] = known[0] + count * len(places), known[1] + each[r]
        saved = sum(costs.size(n) for n in cluster.nodes if costs.stored(n)) * (1 + len(readers))
        fusion.inline(cluster, saved)
        for base in {b.id: b for n in cluster.nodes for b in fusion.bases(n)}.values():
            consumers.setdefault(base, []).extend(users)


def _must_be_one(fusion: Fusion, costs: Costs, value: Node) -> bool:
    """Whether a value meets itself behind a choice among its elements, their largest or those at some places, say: is
    compared with it, or taken from it under a root; or whether both are given to who may compare them.

    Made twice it may differ in its last places, as the vectors and scalars of kernels do: none were then the largest,
    and a gradient that is shared out among the largest is divided by none.
    """
    same: dict[Node, None] = {}  # what holds elements of the value as they are
    chosen, todo = False, [value]
    while todo:
        x = todo.pop()
        if x in same:
            continue
        same[x] = None
        for user in x.users:
            if user.kind in ("view", "item"):
                todo.append(user)
            elif _chooses(user, x):
                chosen = True
                todo.append(user)
    if not chosen:
        return False
    users = costs.consumers.get(value, ())
    if any(u.op in ("amax", "amin") for u in users) and any(u.op in _COMPARISONS or u in fusion.kept for u in users):
        return True
    return any(_meets(user, same) for x in same for user in x.users)


_CHOICES = ("amax", "amin", "gather", "index")
_CHOOSING_CALLS = ("sort", "topk", "max", "min", "kthvalue", "median", "nanmedian", "mode", "cummax", "cummin",
                   "index_select")  # fmt: skip


def _chooses(user: Node, x: Node) -> bool:
    """Does an operator give elements of ``x`` as they are?"""
    if user.kind == "extern":
        return user.op.split(".")[1] in _CHOOSING_CALLS
    return user.op in _CHOICES and bool(user.args) and user.args[0] is x


def _meets(user: Node, same: Collection[Node]) -> bool:
    operands = [x for x in user.args if isinstance(x, Node)]
    if len(operands) != 2 or not all(x in same for x in operands):
        return False
    return user.op in _COMPARISONS or (user.op == "sub" and any(u.op in _BOUNDED for u in user.users))


#: Functions that are not for numbers below 0.
_BOUNDED = frozenset(("sqrt", "rsqrt", "log", "log2", "log10", "pow", "acosh"))


def _places(costs: Costs, values: Collection[Node] | None, reader: Cluster, is_cpu: bool) -> dict[Any, int]:
    """The places at which a point of a reader takes some values, which are there together, or any that others make, and
    the operations that a load there is."""
    found: dict[Any, int] = {}
    for node in reader.nodes:
        for base, index, exact in costs.fusion.reads(node, reader.operands[node]):
            if base in values if values is not None else base not in reader.homes:
                place = index if values is not None else (base, index)
                found[place] = max(found.get(place, 0), 1 if exact else CHOSEN[is_cpu])
    return found or {(): 1}


def _spread(costs: Costs, cluster: Cluster, positional: Collection[Node]) -> int:
    """The operations of what a cluster makes of positions alone. A kernel of blocks makes it once for a row or a column
    of its own loops, as its shape is; one that chooses among parts makes it at each point."""
    through = lambda x: x.ins if x.kind == "view" or x in positional else ()
    found = {x for n in cluster.nodes for x in reached(n.ins, through) if x in positional}
    return costs.operations(found, 1)


def _more_loads(costs: Costs, cluster: Cluster, reader: Cluster, places: dict[Any, int], before: float) -> int:
    """Operations that loads are at a point of a reader that makes a cluster's values at some places, beyond those that
    it and the cluster, at so many points ``before``, are now.

    What the cluster reads is read for each place (a choice among choices counts as all), but where it is not told by
    what places that are known differ in: the scale of a channel for all pixels of a window.
    """
    own = _places(costs, None, cluster, costs.device(cluster.nodes[0]).warp == 1)
    if () in own:  # it reads nothing
        return 0
    homes = [cluster.homes[value] for value in cluster.nodes]
    first, *others = places
    if max(places.values()) == 1 and all(len(index) == len(first) for index in (*homes, *others)):
        moving = {d for d in range(len(first)) if any(index[d] is not first[d] for index in others)}
        moved = {s for home in homes for d in moving for s in home[d].symbols}
        still = sum(cost for (_, index), cost in own.items() if all(moved.isdisjoint(i.symbols) for i in index))
    else:
        still = 0
    read, points = sum(places.values()), max(costs.count(reader.space.values()), 1)
    return max(int((sum(own.values()) - still) * read + still - read - sum(own.values()) * min(before / points, 1)), 0)


def _with(costs: Costs, cluster: Cluster, operations: int, reader: Cluster, works: dict[int, Work]) -> Work:
    """The work of a reader that computes a cluster's nodes itself, by so many operations at each point."""
    points = costs.count(reader.space.values())
    read, base = costs.facts(reader).reads, costs.facts(cluster).reads
    spared = costs.bytes_of((v for v in cluster.nodes if v in read), points)
    extra = costs.bytes_of((b for b in base if b not in read), min(points, costs.count(cluster.space.values())))
    work = works[reader.id]
    if costs.device(cluster.nodes[0]).warp == 1:
        points //= _before_lanes(costs, cluster, reader)
    more = operations * max(points, 1) * costs.serial(reader.nodes)
    return replace(work, moved=work.moved - spared + extra, operations=work.operations + more)


def _before_lanes(costs: Costs, cluster: Cluster, reader: Cluster) -> int:
    """Of how many lanes a CPU's loop makes a cluster's values once, before it begins: all, where none changes along."""
    along, reads = costs.facts(reader).along, costs.facts(reader).reads
    indices = [reads[v] for v in cluster.nodes if v in reads]
    changing = {s for some in indices for index in some for i in index for s in i.symbols}
    if not along or not all(indices) or not changing.isdisjoint(along):
        return 1
    return max(min(costs.count([reader.space[v]]) for v in along), 1)


def recompute_shared(fusion: Fusion, costs: Costs) -> None:
    """Let clusters make again what others hold of values that both can read, where that moves fewer bytes."""
    for cluster in fusion.in_line():
        if not cluster.loops or len(cluster.nodes) < 2:
            continue
        for value in costs.facts(cluster).writes:
            users = costs.consumers.get(value, [])
            by_id = {c.id: c for u in users if (c := fusion.of.get(u)) is not None and c is not cluster}
            readers = list(by_id.values())
            found = _made_of(fusion, costs, cluster, value) if 0 < len(readers) <= MAX_READERS else None
            if found is None or not all(r.loops and r.late == cluster.late for r in readers):
                continue
            nodes, leaves = found
            if not fusion.olds.isdisjoint(leaves) or any(_must_be_one(fusion, costs, n) for n in nodes):
                continue
            is_cpu = costs.device(value).warp == 1
            most = MAX_AGAIN if is_cpu else 4 * MAX_AGAIN  # of several readings a thread's registers keep one
            if any(len(nodes) * len(_places(costs, [value], r, is_cpu)) > most for r in readers):
                continue
            # What the value is made of waits for the readers in memory: for one that can come next, in few bytes, or
            # in about as many as the value itself would.
            size = costs.size(value)
            small = size >= max(LARGE, 8 * sum(map(costs.size, leaves))) and costs.operations(nodes, 1) <= MAX_AGAIN
            waiting = sum(costs.size(v) for v in leaves if v not in costs.facts(readers[0]).reads)
            soon = 8 * waiting <= 9 * size or fusion.order.together(cluster.id, readers[0].id) is not None
            if not small and (len(readers) > 1 or not soon):
                continue
            apart, after = _seconds(costs, cluster, readers, nodes, leaves)
            slower = SLOWER if small else SLOWER / 4 if soon and size >= LARGE else 0
            if after < apart * (1 + slower) and fusion.may_fuse():
                _make_again(fusion, costs, cluster, readers, nodes, leaves)


def _made_of(fusion: Fusion, costs: Costs, cluster: Cluster, value: Node) -> tuple[list[Node], list[Node]] | None:
    """The nodes that make a value, itself first, and what these read: values in memory, and results of reductions."""
    nodes: dict[Node, None] = {}
    leaves: dict[Node, None] = {}
    todo = [value]

    def again(x: Node) -> bool:
        if x.kind != "pointwise" or x in fusion.kept or x in fusion.refusing or x not in cluster.homes:
            return False
        return x is value or not (costs.stored(x) or costs.size(x) * 8 <= costs.size(value))

    while todo:
        x = todo.pop()
        if x.kind in ("view", "create"):
            todo += x.ins
        elif x in fusion.inlined or again(x):
            nodes[x] = None
            if x.op in ("gather", "index") or x.op.startswith("random_") or len(nodes) > MAX_AGAIN:
                return None
            todo += x.ins
        else:
            leaves[x] = None
    return None if value not in nodes or value in fusion.inlined else (list(nodes), list(leaves))


def _seconds(
    costs: Costs, cluster: Cluster, readers: list[Cluster], nodes: list[Node], leaves: list[Node]
) -> tuple[float, float]:  # fmt: skip
    """How long all take as they are, and when the readers make the value. What a kernel of a reader's loops reads that
    may yet become one with it is read in any case."""
    value, device, of = nodes[0], costs.device(nodes[0]), costs.fusion.of
    cone = [node for node in nodes if node not in costs.fusion.inlined]
    written = sum(costs.size(v) for v in leaves if v in cluster.homes and not costs.stored(v))
    made, spared = costs.work(cluster), costs.operations(_unneeded(cluster, cone))
    left = replace(made, moved=made.moved - costs.size(value) + written, operations=made.operations - spared)
    apart, after = made.seconds(device), left.seconds(device)
    for reader in readers:
        read, points, taken = costs.facts(reader).reads, costs.count(reader.space.values()), costs.work(reader)
        places = _places(costs, [value], reader, device.warp == 1)
        again = costs.operations(nodes, 1) * len(places) + (len(leaves) - 1) * (sum(places.values()) - len(places))

        def beside(leaf: Node, reader: Cluster = reader) -> bool:
            return any(
                o is not None and o not in (cluster, reader) and o.loops and bool(o.inner) == bool(reader.inner)
                and costs.shape(o) == costs.shape(reader) for o in map(of.get, costs.consumers.get(leaf, ()))
            )  # fmt: skip

        extra = costs.bytes_of((v for v in leaves if v not in read and not beside(v)), points)
        moved = taken.moved - costs.bytes_of([value], points) + extra
        operations = taken.operations + again * points * costs.serial(reader.nodes)
        apart += taken.seconds(device)
        after += replace(taken, moved=moved, operations=operations).seconds(device)
    return apart, after


def _make_again(
    fusion: Fusion, costs: Costs, cluster: Cluster, readers: list[Cluster], nodes: list[Node], leaves: list[Node]
) -> None:
    cone = [node for node in nodes if node not in fusion.inlined]
    users = [u for u in costs.consumers[cone[0]] if fusion.of.get(u) in readers]
    for leaf in leaves:
        costs.consumers.setdefault(leaf, []).extend(u for u in users if u not in costs.consumers.get(leaf, ()))
    fusion.compute_in_place(cone)
    for node in _unneeded(cluster, cone):
        fusion.remove(cluster, node)
    for reader in readers:
        reader.fused.append(Fused("again", tuple(sorted(n.id for n in cone)), 2 * costs.size(cone[0])))
        fusion.order.link(reader.id, [c.id for u in users if fusion.of[u] is reader for c in fusion.owners(u)])
    costs.forget(cluster, *readers)
    if not cluster.nodes:
        fusion.inline(cluster, 0)


def _unneeded(cluster: Cluster, cone: list[Node]) -> list[Node]:
    """Of the nodes that make a value, those that nothing else of their cluster takes, the last first."""
    found: dict[Node, None] = {}
    for node in sorted(cone, key=lambda n: -n.id):
        if not any(u is not node and u not in found and node in _direct(u) for u in cluster.nodes):
            found[node] = None
    return list(found)


def _direct(node: Node) -> set[Node]:
    """What a node takes, through views alone."""
    return set(reached(node.ins, lambda x: x.ins if x.kind == "view" else ()))
