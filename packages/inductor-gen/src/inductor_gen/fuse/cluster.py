"""Clusters: the nodes of one kernel, where each is computed, what it reads, and which clusters read which.

A *cluster* is a set of nodes computed in one iteration space: outer variables ``P`` and, once it holds a
reduction, inner variables ``R``. Each node has a *home*: the index, over those variables, at which the cluster
computes it. A reduction's result has a home over ``P`` alone; broadcasting it back over dimensions that match ``R``
re-enters the inner space, so a softmax or a layer norm is one cluster with all its pointwise neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import NamedTuple

from inductor_gen.fuse.order import Move, Order
from inductor_gen.loops.graph import Graph, Node, inner_dims, may_refuse, reached
from inductor_gen.loops.index import ONE, ZERO, Ranges, flatten, range_atoms, regroup, substitute
from inductor_gen.loops.views import Branch, Index, pull
from prims.ir import Fuel
from prims.spec import expr as ex
from prims.spec.expr import Expr

__all__ = [
    "COMPUTED",
    "LOOP_KINDS",
    "Cluster",
    "Fused",
    "Fusion",
    "in_order",
    "operand_indices",
    "substituted",
]

LOOP_KINDS = frozenset({"pointwise", "reduce", "scan", "create"})

#: The kinds of nodes that are in a cluster, or computed in place.
COMPUTED = frozenset({"pointwise", "reduce", "scan", "scatter", "extern"})


class Fused(NamedTuple):
    """Why nodes are together: ``stage`` is vertical, sibling, horizontal, inline, or again (made elsewhere too),
    ``nodes`` are those that came to the kernel, and ``saved`` the bytes that need not be moved for that."""

    stage: str
    nodes: tuple[int, ...]
    saved: int


class Read(NamedTuple):
    """A value at an index; ``exact`` is False where that depends on data, or the access stands under a condition."""

    value: Node
    at: Index
    exact: bool


class Cluster:
    """One kernel to be, or one extern call (then ``space`` is empty and ``nodes`` has one element).

    Its nodes are all late or all early (``Node.late``): in one kernel with what is kept for it, what is computed again
    would be written as early, and kept as well. With as many nodes as ``fits`` it is known to be not too long.
    """

    __slots__ = ("fits", "fused", "homes", "id", "inner", "late", "loops", "nodes", "operands", "space")

    def __init__(self, id: int, loops: bool, late: bool = False) -> None:
        self.id = id
        self.loops = loops
        self.late = late
        self.fits = 0
        self.nodes: list[Node] = []
        self.homes: dict[Node, Index] = {}
        self.operands: dict[Node, Index] = {}
        self.space: dict[Expr, Expr] = {}
        self.inner: tuple[Expr, ...] = ()
        self.fused: list[Fused] = []

    def copy(self) -> Cluster:
        """A cluster of the same nodes, whose variables can be split without this one's."""
        made = Cluster(self.id, self.loops, self.late)
        made.nodes, made.homes, made.operands = self.nodes, dict(self.homes), dict(self.operands)
        made.space, made.inner = dict(self.space), self.inner
        return made

    def replace(self, variable: Expr, by: Expr, others: Mapping[Expr, Expr]) -> None:
        """Put an index over other variables, given with their sizes, in a variable's place."""
        extents = ((others if v is variable else {v: n}).items() for v, n in self.space.items())
        self.space = dict(chain.from_iterable(extents))
        self.homes, self.operands = (substituted(x, {variable: by}) for x in (self.homes, self.operands))

    def outer(self) -> tuple[Expr, ...]:
        """The variables outside the reduction, in order."""
        return tuple(v for v in self.space if v not in self.inner)

    def __repr__(self) -> str:
        return f"Cluster({self.id}, {self.nodes})"


class Fusion:
    """The clusters of a graph, and which nodes are computed inside their consumers instead.

    Attributes:
        kept: the nodes that must end up in memory.
        live: the nodes that something in memory, an operator or a write is made of; others get no cluster.
        updates: the scatters that write an input.
        renewing: copies that may turn out to be their inputs themselves, each with its input: alone in their clusters,
            behind those that read the input before in the program.
        olds: these inputs.
        refusing: the nodes before the last of these that may refuse the program's data. Each is computed before the
            updates that the program makes after it, which are not to be seen if it raises.
        fuel: is asked before each fusion.
        of: the cluster of each node that has one.
        inlined: the nodes that are computed wherever they are read; one that has a cluster, wherever else.
        ends: late pointwise nodes that lead to inputs' new values alone: as these, they wait for the end of the graph.
        random: the operators that draw random numbers, in their order.
        extents: the number of values of every loop variable; clusters share them.
    """

    def __init__(
        self, graph: Graph, kept: Iterable[Node] = (), fuel: Fuel | None = None, updates: Iterable[Node] = (),
        renewed: Iterable[Node] = (), renewing: Mapping[Node, Node] | None = None,
    ) -> None:  # fmt: skip
        self.graph = graph
        self.kept = set(kept)
        self.live = set(self.kept)
        for node in reversed(graph.nodes):
            if node in self.live or node.kind in ("extern", "scatter"):
                self.live.update((node, *node.ins))
        self.updates = set(updates)
        self.renewing = dict(renewing or {})
        self.olds = set(self.renewing.values())
        last = max((n.id for n in self.updates), default=-1)
        self.refusing = dict.fromkeys(n for n in graph.nodes if n.id < last and n in self.live and may_refuse(n))
        self.fuel = fuel or Fuel()
        self.clusters: dict[int, Cluster] = {}
        self.of: dict[Node, Cluster] = {}
        self.inlined: set[Node] = set()
        self.random: list[Node] = []
        self.extents: dict[Expr, Expr] = {}
        self._numbers: dict[Expr, int] = {}
        self._able: dict[Expr, list[int]] = {}  # the numbers of the variables of an extent, ascending
        self._regrouped: dict[tuple[Index, Index, Index], Index] = {}
        self.order = Order()
        self._count = 0
        self._pulled: dict[tuple[Node, Index], list[Branch]] = {}
        self._reads: dict[Node, dict[Index, list[Read]]] = {}
        self._bases: dict[Node, list[Node]] = {}
        self._sites: dict[Node, list[tuple[Node, Node]]] = {}
        self.ends = self._leading_to(set(renewed))

    def _leading_to(self, renewed: set[Node]) -> set[Node]:
        found: set[Node] = set()
        if any(node.is_late for node in renewed):
            consumers = self.consumers()
            for node in reversed(self.graph.nodes):
                ends = node in renewed or (node not in self.kept and node in consumers)
                if node.is_late and node.kind == "pointwise" and ends and found.issuperset(consumers.get(node, ())):
                    found.add(node)
        return found

    def may_fuse(self) -> bool:
        """May another fusion be made? Counting them down bisects a miscompilation."""
        return self.fuel.spend("fusion")

    def in_line(self) -> list[Cluster]:
        """The clusters, each behind what it reads."""
        return sorted(self.clusters.values(), key=lambda c: self.order.label(c.id))

    # ---- variables --------------------------------------------------------------------------------------

    def variables(self, cluster: Cluster, *extents: Expr) -> list[Expr]:
        """Loop variables of so many values with numbers above those of a cluster's. The first that there are: clusters
        that are made alike have the same ones, and what is known of the indices of one is known of all."""
        last, found = max((self._numbers[v] for v in cluster.space), default=0), []
        for extent in extents:
            able = self._able.setdefault(extent, [])
            number = next((n for n in able if n > last), None)
            if number is None:
                number = len(self.extents) + 1
                able.append(number)
                v = ex.symbol(f"i{number}")
                self.extents[v], self._numbers[v] = extent, number
            last = number
            found.append(ex.symbol(f"i{number}"))
        return found

    def fresh_index(self, cluster: Cluster, shape: Iterable[Expr]) -> Index:
        """An index of new variables, which become the cluster's."""
        shape = list(shape)
        fresh = self.variables(cluster, *(extent for extent in shape if extent is not ONE))
        cluster.space.update((v, self.extents[v]) for v in fresh)
        left = iter(fresh)
        return tuple(ZERO if extent is ONE else next(left) for extent in shape)

    def split(self, cluster: Cluster, variable: Expr, inner_size: Expr) -> bool:
        """Replace a variable by an outer and an inner one of size ``inner_size``, where that divides its size.

        Not where an index map, taken over the new variables, would no longer lead a node to the home of another.
        """
        extent = cluster.space[variable]
        count = ex.floordiv(extent, inner_size) if inner_size is not ZERO else ZERO
        if inner_size is ONE or count is ONE or ex.mul(count, inner_size) is not extent or extent is ZERO:
            return False
        outer, inner = self.variables(cluster, count, inner_size)
        before = cluster.space, cluster.homes, cluster.operands
        cluster.replace(variable, ex.add(ex.mul(outer, inner_size), inner), {outer: count, inner: inner_size})
        if not self.agrees(cluster):
            cluster.space, cluster.homes, cluster.operands = before
            return False
        if variable in cluster.inner:
            at = cluster.inner.index(variable)
            cluster.inner = (*cluster.inner[:at], outer, inner, *cluster.inner[at + 1 :])
        return True

    def split_for(self, cluster: Cluster, indices: Iterable[Index]) -> bool:
        """Split a variable so that one of the indices needs no division by it."""
        for index in indices:
            for i in index:
                for variable, divisor in range_atoms(i, cluster.space) if i.kind != "symbol" else ():
                    if self.split(cluster, variable, divisor):
                        return True
        return False

    def agrees(self, cluster: Cluster) -> bool:
        """Does every node of a cluster read the others where they are computed?"""
        return all(
            base not in cluster.homes or (exact and index == cluster.homes[base])
            for node in cluster.nodes
            for base, index, exact in self.reads(node, cluster.operands[node])
        )

    # ---- clusters ---------------------------------------------------------------------------------------

    def new_cluster(
        self, node: Node, loops: bool, shape: Iterable[Expr] = (), after: Iterable[Node] = ()
    ) -> Cluster:
        """A cluster of one node over variables of these extents, behind what it reads (and behind those ``after``)."""
        cluster = Cluster(self._count, loops, node.is_late)
        self._count += 1
        self.clusters[cluster.id] = cluster
        index = self.fresh_index(cluster, shape)
        if node.kind in ("reduce", "scan"):
            cluster.inner = tuple(index[d] for d in inner_dims(node) if index[d] is not ZERO)
        behind = [self.of[x].id for x in after if x in self.of]
        self.order.append(cluster.id, dict.fromkeys([*(c.id for c in self.owners(node)), *behind]))
        self._place(cluster, node, index)
        return cluster

    def add(self, cluster: Cluster, node: Node, operand: Index, move: Move, saved: int) -> None:
        """Put a node into a cluster; ``operand`` is the index at which it reads its operands: its home, or for a
        reduction the index before the reduction. ``move`` is what the order of clusters has asked for."""
        self.order.extend(cluster.id, [c.id for c in self.owners(node)], move)
        self._place(cluster, node, operand)
        cluster.fused.append(Fused("vertical", (node.id,), saved))

    def _place(self, cluster: Cluster, node: Node, operand: Index) -> None:
        cluster.nodes.append(node)
        cluster.operands[node] = operand
        cluster.homes[node] = home_of(node, operand)
        self.of[node] = cluster

    def merge(
        self, cluster: Cluster, other: Cluster, mapping: Mapping[Expr, Expr], inner: tuple[Expr, ...], move: Move,
        stage: str, saved: int,
    ) -> None:  # fmt: skip
        """Move the nodes of ``other`` into ``cluster``, its variables replaced by ``mapping``."""
        self.order.merge(cluster.id, other.id, move)
        cluster.fused += [*other.fused, Fused(stage, tuple(n.id for n in other.nodes), saved)]
        cluster.inner = inner
        cluster.homes.update(substituted(other.homes, mapping))
        cluster.operands.update(substituted(other.operands, mapping))
        cluster.nodes = sorted({*cluster.nodes, *other.nodes}, key=lambda n: n.id)
        for n in other.nodes:
            self.of[n] = cluster
        del self.clusters[other.id]

    def inline(self, cluster: Cluster, saved: int) -> None:
        """Let the readers of a cluster compute its nodes themselves."""
        note = Fused("inline", tuple(n.id for n in cluster.nodes), saved)
        for reader in self.order.readers(cluster.id) if cluster.nodes else ():
            self.clusters[reader].fused += [*cluster.fused, note]
        for node in cluster.nodes:
            del self.of[node]
        self.compute_in_place(cluster.nodes)
        del self.clusters[cluster.id]
        self.order.drop(cluster.id)

    def compute_in_place(self, nodes: Iterable[Node]) -> None:
        """Let nodes be computed wherever they are read, and forget what their readers were known to read."""
        nodes = list(nodes)
        self.inlined.update(nodes)
        for x in reached(nodes, lambda x: x.users if x.kind == "item" or self._is_through(x) else ()):
            self._reads.pop(x, None)
            self._bases.pop(x, None)
            self._sites.pop(x, None)

    def remove(self, cluster: Cluster, node: Node) -> None:
        """Take a node out of its cluster."""
        cluster.nodes.remove(node)
        del cluster.homes[node], cluster.operands[node], self.of[node]

    def owners(self, node: Node) -> list[Cluster]:
        """The clusters of what a node reads, each once."""
        return list({c.id: c for b in self.bases(node) if (c := self.of.get(b)) is not None}.values())

    # ---- reading ----------------------------------------------------------------------------------------

    def bases(self, node: Node) -> list[Node]:
        """The nodes that computing ``node`` reads, through views and values computed in place."""
        bases = self._bases.get(node)
        if bases is None:
            bases = self._bases[node] = list(dict.fromkeys(base for base, _ in self.sites(node)))
        return bases

    def sites(self, node: Node) -> list[tuple[Node, Node]]:
        """The pairs of a node that computing ``node`` reads, and the operand for which it does: two slices are two."""
        sites = self._sites.get(node)
        if sites is None:
            sites = self._sites[node] = []
            for operand in dict.fromkeys(reversed(node.ins)):
                seen: set[Node] = set()
                todo = [operand]
                while todo:
                    x = todo.pop()
                    if x not in seen:
                        seen.add(x)
                        if x.kind == "item":
                            todo += x.args[:1]
                        elif self._is_through(x):
                            todo += x.ins
                        else:
                            sites.append((x, operand))
        return sites

    def _is_through(self, x: Node) -> bool:
        return x.kind in ("view", "create") or x in self.inlined

    def consumers(self) -> dict[Node, list[Node]]:
        """The nodes that read each node, through views and values computed in place."""
        found: dict[Node, list[Node]] = {}
        for node in self.graph.nodes:
            if node.kind in COMPUTED and node in self.live and (node in self.of or node not in self.inlined):
                for base in self.bases(node):
                    found.setdefault(base, []).append(node)
        return found

    def reads(self, node: Node, index: Index) -> list[Read]:
        """Each value that ``node`` at ``index`` reads."""
        known = self._reads.setdefault(node, {})
        found = known.get(index)
        if found is None:
            inlined = self.inlined
            found = known[index] = [
                r for r in self.on_the_way(node, index)
                if r.value.kind not in ("view", "create") and r.value not in inlined
            ]  # fmt: skip
        return found

    def on_the_way(self, node: Node, index: Index) -> list[Read]:
        """What ``node`` at ``index`` reads, and the views and the values computed in place through which it does."""
        found: list[Read] = []
        seen: set[tuple[Node, Index]] = set()
        todo = operand_indices(node, index)
        while todo:
            x, at, exact = read = todo.pop()
            if (x, at) in seen:
                continue
            seen.add((x, at))
            found.append(read)
            if x.kind == "view":
                branches = self.pull(x, at)
                exact = exact and len(branches) == 1
                todo += [Read(b.node, b.index, exact) for b in branches if b.node is not None]
            elif x in self.inlined:
                todo += [Read(n, i, exact and e) for n, i, e in operand_indices(x, at)]
        return found

    def pull(self, view: Node, index: Index) -> list[Branch]:
        """Where an element of a view comes from, at an index over loop variables."""
        found = self._pulled.get((view, index))
        if found is None:
            found = self._pulled[view, index] = pull(view, index, self.extents, self._regroup)
        return found

    def _regroup(self, index: Index, source: Index, target: Index, _: Ranges) -> Index:
        """Each regrouping once: a variable has the same extent wherever it is."""
        key = index, source, target
        found = self._regrouped.get(key)
        if found is None:
            found = self._regrouped[key] = regroup(index, source, target, self.extents)
        return found


def home_of(node: Node, operand: Index) -> Index:
    """Where a node that reads its operands at an index is computed."""
    if node.kind != "reduce":
        return operand
    dims = inner_dims(node)
    return tuple(i for d, i in enumerate(operand) if d not in dims)


def in_order(node: Node, operand: Index, inner: Iterable[Expr], space: dict[Expr, Expr]) -> bool:
    """Do the inner loops, nested in this order and counting up, walk a scan's dimension from its first element on?"""
    position = operand[node.args[1]]
    loops = [v for v in inner if v in position.symbols]
    return position is flatten(loops, [space[v] for v in loops])


def substituted(indices: dict[Node, Index], mapping: Mapping[Expr, Expr]) -> dict[Node, Index]:
    """Indices with loop variables replaced."""
    if all(v is e for v, e in mapping.items()):
        return indices
    return {node: tuple(substitute(i, mapping) for i in index) for node, index in indices.items()}


def operand_indices(node: Node, index: Index) -> list[Read]:
    """Where a loop node at ``index`` (for a reduction: its operand's index) reads its operands. An operand read at
    an index that depends on data has the zero index and is not exact."""
    match node.op:
        case "gather":
            x, positions, _ = node.args
            return [Read(positions, index, True), Read(x, (ZERO,) * len(x.shape), False)]
        case "scatter":
            return [Read(x, index, True) for x in node.args[1:3]]
        case "index" | "index_put":
            x, indices, _, *values = node.args
            rank = len(indices[0].shape)
            other = Read(values[0], index, True) if values else Read(x, (ZERO,) * len(x.shape), False)
            return [*(Read(i, index[:rank], True) for i in indices), other]
        case "random_uniform" | "random_normal" | "random_bits":
            return [Read(n, (ZERO,) * len(n.shape), True) for n in node.ins]
    return [Read(x, index, True) for x in node.ins]
