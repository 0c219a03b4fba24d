"""Fusion: which nodes share a loop nest.

A *cluster* is a set of nodes computed in one iteration space: outer variables ``P`` and, once it holds a
reduction, inner variables ``R``. Each node has a *home*: the index, over those variables, at which the cluster
computes it. A node joins the cluster of a producer when its home follows from the producer's through the views
between them, when every value of the cluster that it reads is read at that value's own home, and when no cycle
arises. A reduction's result has a home over ``P`` alone; broadcasting it back over dimensions that match ``R``
re-enters the inner space, so a softmax or a layer norm is one cluster with all its pointwise neighbours.

Nodes are visited once in topological order; legality is a bit test on sets of ancestors, so the cost stays
linear in the size of the graph for the shapes of graphs that models have.
"""

from __future__ import annotations

from collections.abc import Iterable

from inductor_gen.loops.graph import Graph, Node, draws_random
from inductor_gen.loops.index import ONE, ZERO, flatten, product, range_atoms, substitute
from inductor_gen.loops.views import Index, pull, push
from prims.spec import expr as ex
from prims.spec.expr import Expr

__all__ = ["Cluster", "Fusion", "fuse"]

LOOP_KINDS = frozenset({"pointwise", "reduce", "scan", "create"})

#: Nodes in one kernel beyond which a new one is begun: compilers are superlinear in a function's length.
MAX_NODES = 600


class Cluster:
    """One kernel to be, or one extern call (then ``space`` is empty and ``nodes`` has one element)."""

    __slots__ = ("anc", "homes", "id", "inner", "loops", "nodes", "operands", "space")

    def __init__(self, id: int, loops: bool) -> None:
        self.id = id
        self.loops = loops
        self.nodes: list[Node] = []
        self.homes: dict[Node, Index] = {}
        self.operands: dict[Node, Index] = {}
        self.space: dict[Expr, Expr] = {}
        self.inner: tuple[Expr, ...] = ()
        self.anc = 0

    def outer(self) -> tuple[Expr, ...]:
        """The variables outside the reduction, in order."""
        return tuple(v for v in self.space if v not in self.inner)

    def __repr__(self) -> str:
        return f"Cluster({self.id}, {self.nodes})"


class Fusion:
    """The clusters of a graph, and which nodes are computed inside their consumers instead."""

    def __init__(self, graph: Graph, kept: Iterable[Node] = (), fuel: int | None = None) -> None:
        self.graph = graph
        self.kept = set(kept)
        self.fuel = fuel
        self.clusters: dict[int, Cluster] = {}
        self.of: dict[Node, Cluster] = {}
        self.inlined: set[Node] = set()
        self.random: list[Node] = []
        self._count = 0
        self._vars = 0

    # ---- variables --------------------------------------------------------------------------------------

    def variable(self) -> Expr:
        """A fresh loop variable."""
        self._vars += 1
        return ex.symbol(f"i{self._vars}")

    def _fresh_index(self, cluster: Cluster, shape: Iterable[Expr]) -> Index:
        index: list[Expr] = []
        for extent in shape:
            if extent is ONE:
                index.append(ZERO)
            else:
                v = self.variable()
                cluster.space[v] = extent
                index.append(v)
        return tuple(index)

    def split(self, cluster: Cluster, variable: Expr, inner_size: Expr) -> bool:
        """Replace a variable by an outer and an inner one of size ``inner_size``, where that divides its size.

        Not where an index map, taken over the new variables, would no longer lead a node to the home of another.
        """
        extent = cluster.space[variable]
        count = ex.floordiv(extent, inner_size) if inner_size is not ZERO else ZERO
        if inner_size is ONE or count is ONE or ex.mul(count, inner_size) is not extent or extent is ZERO:
            return False
        outer, inner = self.variable(), self.variable()
        space: dict[Expr, Expr] = {}
        for v, n in cluster.space.items():
            if v is variable:
                space[outer], space[inner] = count, inner_size
            else:
                space[v] = n
        whole = {variable: ex.add(ex.mul(outer, inner_size), inner)}
        before = cluster.space, cluster.homes, cluster.operands
        cluster.space = space
        cluster.homes = _substituted(cluster.homes, whole)
        cluster.operands = _substituted(cluster.operands, whole)
        if not self._agrees(cluster):
            cluster.space, cluster.homes, cluster.operands = before
            return False
        if variable in cluster.inner:
            at = cluster.inner.index(variable)
            cluster.inner = (*cluster.inner[:at], outer, inner, *cluster.inner[at + 1 :])
        return True

    def _agrees(self, cluster: Cluster) -> bool:
        """Does every node of a cluster read the others where they are computed?"""
        return all(
            self.of.get(base) is not cluster or (exact and index == cluster.homes[base])
            for node in cluster.nodes
            for base, index, exact in self.reads(node, cluster.operands[node], cluster.space)
        )

    # ---- clusters ---------------------------------------------------------------------------------------

    def new_cluster(self, loops: bool) -> Cluster:
        """An empty cluster."""
        cluster = Cluster(self._count, loops)
        self._count += 1
        self.clusters[cluster.id] = cluster
        return cluster

    def bases(self, node: Node) -> list[Node]:
        """The nodes that computing ``node`` reads, through views and values computed in place."""
        out: dict[int, Node] = {}
        todo = list(node.ins)
        while todo:
            x = todo.pop()
            if x.kind in ("view", "create") or x in self.inlined:
                todo.extend(x.ins)
            elif x.kind == "item":
                todo.append(x.args[0])
            else:
                out[x.id] = x
        return list(out.values())

    def add(self, cluster: Cluster, node: Node, operand: Index) -> None:
        """Put a node into a cluster; ``operand`` is the index at which it reads its operands: its home, or for a
        reduction the index before the reduction."""
        cluster.nodes.append(node)
        cluster.operands[node] = operand
        cluster.homes[node] = _home_of(node, operand)
        self.of[node] = cluster
        new = 0
        for base in self.bases(node):
            other = self.of.get(base)
            if other is not None and other is not cluster:
                new |= other.anc | (1 << other.id)
        self._depend(cluster, new)

    def _depend(self, cluster: Cluster, ancestors: int) -> None:
        grown = cluster.anc | ancestors
        if grown == cluster.anc:
            return
        cluster.anc = grown
        bit = 1 << cluster.id
        for other in self.clusters.values():
            if other.anc & bit:
                other.anc |= grown

    def depends(self, later: Cluster, earlier: Cluster) -> bool:
        """Must ``earlier`` run before ``later``?"""
        return bool(later.anc >> earlier.id & 1)

    # ---- reading ----------------------------------------------------------------------------------------

    def reads(self, node: Node, index: Index, space: dict[Expr, Expr]) -> list[tuple[Node, Index, bool]]:
        """``(base, index, exact)`` of each value that ``node`` at ``index`` reads; ``exact`` is False for an access
        whose index depends on data or that stands under a condition."""
        found: list[tuple[Node, Index, bool]] = []
        seen: set[tuple[int, Index]] = set()
        todo: list[tuple[Node, Index, bool]] = list(operand_indices(node, index, space))
        while todo:
            x, at, exact = todo.pop()
            if (x.id, at) in seen:
                continue
            seen.add((x.id, at))
            if x.kind == "view":
                branches = pull(x, at, space)
                for b in branches:
                    if b.node is not None:
                        todo.append((b.node, b.index, exact and len(branches) == 1))
            elif x in self.inlined:
                todo.extend((n, i, exact and e) for n, i, e in operand_indices(x, at, space))
            elif x.kind != "create":
                found.append((x, at, exact))
        return found

    # ---- placing nodes ----------------------------------------------------------------------------------

    def place(self, node: Node) -> None:
        """Find the cluster of a loop node."""
        if node.kind == "pointwise" and not self.bases(node) and node not in self.kept:
            self.inlined.add(node)  # made of constants and iotas: cheaper to recompute than to load
            return
        owners = {
            self.of[b].id: self.of[b]
            for b in self.bases(node)
            if b in self.of and self.of[b].loops and b.kind in LOOP_KINDS
        }
        if ZERO in node.shape or any(ZERO in x.shape for x in node.ins):
            owners = {}  # nothing to compute, and sizes that no longer tell index maps apart
        for cluster in sorted(owners.values(), key=lambda c: -c.id):
            if len(cluster.nodes) >= MAX_NODES or any(
                self.depends(o, cluster) for b in self.bases(node) if (o := self.of.get(b)) not in (None, cluster)
            ):
                continue
            home = self._operand_in(node, cluster)
            if home is not None and self.may_fuse():
                self.add(cluster, node, home)
                self._absorb(node, cluster)
                return
        self._start(node)

    def may_fuse(self) -> bool:
        """May another fusion be made? Counting them down bisects a miscompilation."""
        if self.fuel is None:
            return True
        self.fuel -= 1
        return self.fuel >= 0

    def _start(self, node: Node) -> None:
        cluster = self.new_cluster(loops=True)
        shape = node.args[0].shape if node.kind == "reduce" else node.shape
        index = self._fresh_index(cluster, shape)
        if node.kind in ("reduce", "scan"):
            cluster.inner = tuple(index[d] for d in inner_dims(node) if index[d] is not ZERO)
        self.add(cluster, node, index)
        self._refine(node, cluster)

    def add_extern(self, node: Node) -> None:
        """A cluster of one operator. Those that draw random numbers stay in the order of the graph."""
        cluster = self.new_cluster(loops=False)
        self.add(cluster, node, ())
        if draws_random(node):
            if self.random:
                last = self.of[self.random[-1]]
                self._depend(cluster, last.anc | (1 << last.id))
            self.random.append(node)

    def start_scatter(self, node: Node) -> None:
        """A cluster that runs over the values that a scatter writes."""
        cluster = self.new_cluster(loops=False)
        shape = node.args[1].shape if node.op == "scatter" else node.args[3].shape
        self.add(cluster, node, self._fresh_index(cluster, shape))
        self._refine(node, cluster)

    def _refine(self, node: Node, cluster: Cluster) -> None:
        """Split variables so that what the node reads needs no division, where sizes allow it."""
        for _ in range(6):
            read = self.reads(node, cluster.operands[node], cluster.space)
            if not self._split_for(cluster, (i for _, i, _ in read)):
                return

    def _split_for(self, cluster: Cluster, indices: Iterable[Index]) -> bool:
        for index in indices:
            for i in index:
                for variable, divisor in range_atoms(i, cluster.space):
                    if self.split(cluster, variable, divisor):
                        return True
        return False

    def _operand_in(self, node: Node, cluster: Cluster) -> Index | None:
        for _ in range(6):
            split = False
            for x in _aligned(node):
                at = self._forward(x, cluster)
                if at is None:
                    continue
                if self._split_for(cluster, (at,)):
                    split = True
                    break
                home = self._fits(node, at, cluster)
                if home == "split":
                    split = True
                    break
                if home is not None:
                    return home  # type: ignore[return-value]
            if not split:
                return None
        return None

    def _forward(self, x: Node, cluster: Cluster) -> Index | None:
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

    def _fits(self, node: Node, at: Index, cluster: Cluster) -> Index | str | None:
        """The node's home when its operands are read at ``at``, if that is legal in the cluster."""
        used = {v for i in at for v in i.symbols if v in cluster.space}
        outer = set(cluster.outer())
        inner = set(cluster.inner)
        if not outer <= used or (used & inner and not inner <= used):
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
        for base, index, exact in self.reads(node, at, cluster.space):
            if self.of.get(base) is cluster and (not exact or index != cluster.homes[base]):
                return "split" if self._split_for(cluster, (index,)) else None
        if over and not inner:
            cluster.inner = tuple(over)
        return at

    # ---- merging clusters -------------------------------------------------------------------------------

    def _absorb(self, node: Node, cluster: Cluster) -> None:
        """Merge the clusters of the node's other operands into its own, where legal."""
        for _ in range(8):
            for base, index, exact in self.reads(node, cluster.operands[node], cluster.space):
                other = self.of.get(base)
                if other is None or other is cluster or not other.loops or not exact:
                    continue
                if base.kind not in LOOP_KINDS:
                    continue
                if self._merge(other, cluster, other.homes[base], index):
                    break
                if other.inner and not cluster.inner and self._merge(cluster, other, index, other.homes[base]):
                    cluster = other
                    break
            else:
                return

    def _merge(self, other: Cluster, cluster: Cluster, theirs: Index, ours: Index) -> bool:
        """Move ``other`` into ``cluster``, where ``theirs`` over its variables is ``ours`` over the cluster's."""
        if len(other.nodes) + len(cluster.nodes) > MAX_NODES or not self.independent(other, cluster):
            return False
        mapping = _unify(other, theirs, ours, cluster)
        if mapping is None:
            return False
        inner = {v for w in other.inner for v in mapping[w].symbols if v in cluster.space}
        if cluster.inner and inner and inner != set(cluster.inner):
            return False
        final_inner = set(cluster.inner) or inner
        outer = set(cluster.space) - final_inner
        homes = _substituted(other.homes, mapping)
        for home in (*homes.values(), *cluster.homes.values()):
            used = {v for i in home for v in i.symbols if v in cluster.space}
            if not outer <= used or (used & final_inner and not final_inner <= used):
                return False
        order = cluster.inner or tuple(v for v in cluster.space if v in final_inner)
        operands = {**cluster.operands, **_substituted(other.operands, mapping)}
        if not all(in_order(n, at, order, cluster.space) for n, at in operands.items() if n.kind == "scan"):
            return False
        if not self._reads_at_home(cluster, other, operands, {**cluster.homes, **homes}):
            return False
        self.merge_into(cluster, other, mapping, order)
        return True

    def _reads_at_home(
        self, cluster: Cluster, other: Cluster, operands: dict[Node, Index], homes: dict[Node, Index]
    ) -> bool:
        """Would every value of one cluster that the other reads be read at its home?"""
        for reader, source in ((cluster, other), (other, cluster)):
            if not self.depends(reader, source):
                continue
            for node in reader.nodes:
                if not any(self.of.get(base) is source for base in self.bases(node)):
                    continue
                for base, index, exact in self.reads(node, operands[node], cluster.space):
                    if self.of.get(base) is source and (not exact or index != homes[base]):
                        return False
        return True

    def merge_into(
        self, cluster: Cluster, other: Cluster, mapping: dict[Expr, Expr], inner: tuple[Expr, ...]
    ) -> None:
        """Move the nodes of ``other`` into ``cluster``, its variables replaced by ``mapping``."""
        cluster.inner = inner
        cluster.homes.update(_substituted(other.homes, mapping))
        cluster.operands.update(_substituted(other.operands, mapping))
        cluster.nodes = sorted({*cluster.nodes, *other.nodes}, key=lambda n: n.id)
        for n in other.nodes:
            self.of[n] = cluster
        del self.clusters[other.id]
        old, new = 1 << other.id, 1 << cluster.id
        for c in self.clusters.values():
            if c.anc & old:
                c.anc = (c.anc & ~old) | new
        cluster.anc &= ~new
        self._depend(cluster, other.anc & ~new)
        for c in self.clusters.values():
            if c.anc & new:
                c.anc |= cluster.anc

    def independent(self, a: Cluster, b: Cluster) -> bool:
        """Can ``a``'s nodes and ``b``'s become one kernel: does no path between them pass through a third?"""
        first, last = (a, b) if self.depends(b, a) else (b, a)
        if self.depends(first, last):
            return False
        if not self.depends(last, first):
            return True
        bit = 1 << first.id
        return not any(
            c.anc & bit and last.anc >> c.id & 1 for c in self.clusters.values() if c is not first and c is not last
        )


def inner_dims(node: Node) -> tuple[int, ...]:
    """The dimensions of its operand that a reduction drops, or that a scan runs along."""
    dims = node.args[1]
    return (dims,) if isinstance(dims, int) else tuple(dims)


def in_order(node: Node, operand: Index, inner: Iterable[Expr], space: dict[Expr, Expr]) -> bool:
    """Do the inner loops, nested in this order and counting up, walk a scan's dimension from its first element on?"""
    position = operand[node.args[1]]
    loops = [v for v in inner if v in position.symbols]
    return position is flatten(loops, [space[v] for v in loops])


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


def _home_of(node: Node, operand: Index) -> Index:
    if node.kind != "reduce":
        return operand
    dims = inner_dims(node)
    return tuple(i for d, i in enumerate(operand) if d not in dims)


def _substituted(indices: dict[Node, Index], mapping: dict[Expr, Expr]) -> dict[Node, Index]:
    return {node: tuple(substitute(i, mapping) for i in index) for node, index in indices.items()}


def operand_indices(node: Node, index: Index, space: dict[Expr, Expr]) -> list[tuple[Node, Index, bool]]:
    """Where a loop node at ``index`` (for a reduction: its operand's index) reads its operands. An operand read at
    an index that depends on data has the zero index and is not exact."""
    if node.op == "gather":
        x, positions, _ = node.args
        return [(positions, index, True), (x, (ZERO,) * len(x.shape), False)]
    if node.op == "index":
        x, indices, _ = node.args
        rank = len(indices[0].shape)
        return [*((i, index[:rank], True) for i in indices), (x, (ZERO,) * len(x.shape), False)]
    if node.op == "scatter":
        _, positions, src, _, _ = node.args
        return [(positions, index, True), (src, index, True)]
    if node.op == "index_put":
        _, indices, _, values, _ = node.args
        rank = len(indices[0].shape)
        return [*((i, index[:rank], True) for i in indices), (values, index, True)]
    if node.op.startswith("random_"):
        return [(n, (ZERO,) * len(n.shape), True) for n in node.ins]
    return [(x, index, True) for x in node.ins]


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
    if product(other.space.values()) is not product(cluster.space[v] for v in used):
        return None
    return mapping


def fuse(graph: Graph, kept: Iterable[Node] = (), fuel: int | None = None) -> Fusion:
    """Cluster the nodes of a graph. ``kept`` must end up in memory; ``fuel`` limits the number of fusions."""
    fusion = Fusion(graph, kept, fuel)
    for node in graph.nodes:
        if node.kind in ("pointwise", "reduce", "scan"):
            fusion.place(node)
        elif node.kind == "extern":
            fusion.add_extern(node)
        elif node.kind == "scatter":
            fusion.start_scatter(node)
    return fusion
