"""What a fusion gains: the seconds that kernels take apart, less those that they take as one.

A kernel takes its launch, and the longer of the times that its bytes and its arithmetic take; both take longer where it
has fewer points to work at than the device has threads. Every stage asks this one model, in terms of the record of the
device that the values live on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch

from inductor_gen.device.record import Asked, Device
from inductor_gen.fuse.cluster import Cluster, Fusion
from inductor_gen.loops.cost import op_cost
from inductor_gen.loops.graph import Node, inner_dims
from inductor_gen.loops.index import ONE, ZERO, coefficient
from inductor_gen.loops.views import Index
from prims.records import record
from prims.spec.expr import Expr

__all__ = ["Costs", "Facts", "Work", "call_bytes", "steps_of_one"]

#: What of a launch is left on a device whose one core can work alone.
_CALL = 16

#: Threads of a program that works at one row, at most.
_TEAM = 512

#: Elements of one row that a program holds at once, at most.
_ROW = 8192

#: Streams of memory that a kernel may have at least, whatever its registers.
_STREAMS = 6


@record
class Work:
    """What a kernel does: bytes that it moves, operations (``op_cost``), and points that can be worked at at once."""

    moved: float
    operations: float
    parallel: float

    def seconds(self, device: Device) -> float:
        """How long the kernel takes, its launch included."""
        share = min(1.0, max(self.parallel, 1) / (device.multiprocessors * device.threads))
        rate = device.flops32 / 4  # an operation is no product with a sum, and goes to one of two units
        whole = max(self.moved / device.bandwidth, self.operations / rate)
        team = device.launch_cost + whole / share
        alone = device.launch_cost / _CALL + whole * device.multiprocessors  # one core, without a team of threads
        return team if device.warp > 1 else min(team, alone)


def call_bytes(device: Device) -> float:
    """The bytes that are moved while a small kernel starts: by the device, or by the one core that works at it."""
    return device.launch_bytes if device.warp > 1 else device.launch_bytes / _CALL / device.multiprocessors


@record
class Facts:
    """What a cluster reads from others, at which indices (none where these depend on data), and what it writes.

    ``along`` are the variables that run through memory in steps of one; ``marks`` what a kernel must have in common
    with another to keep its form: scans and picking by index are not vectorised, and copies may be transposed.
    """

    reads: Mapping[Node, frozenset[Index]]
    writes: tuple[Node, ...]
    along: frozenset[Expr]
    marks: tuple[bool, ...]

    @property
    def streams(self) -> int:
        """Buffers that the kernel touches."""
        return len(self.reads) + len(self.writes)


class Costs:
    """The figures of a graph's nodes and clusters, by likely sizes and by what is known about their devices."""

    def __init__(self, fusion: Fusion, hint: Callable[[Expr], int], asked: Asked) -> None:
        self.fusion = fusion
        self.hint = hint
        self.asked = asked
        self.consumers = fusion.consumers()
        self._sizes: dict[Node, int] = {}
        self._counts: dict[tuple[Expr, ...], int] = {}
        self._along: dict[tuple[tuple[Index, ...], tuple[Expr, ...]], frozenset[Expr]] = {}
        self._facts: dict[int, tuple[tuple[int, ...], Facts]] = {}

    def device(self, node: Node) -> Device:
        """The record of the device that a node's value lives on."""
        return self.asked(node.device or torch.device("cpu"))

    def count(self, sizes: Iterable[Expr]) -> int:
        """The product of likely sizes."""
        key = tuple(sizes)
        found = self._counts.get(key)
        if found is None:
            found = self._counts[key] = math.prod(map(self.hint, key))
        return found

    def size(self, node: Node) -> int:
        """The bytes of a node's value."""
        found = self._sizes.get(node)
        if found is None:
            found = self._sizes[node] = 0 if node.dtype is None else self.count(node.shape) * node.dtype.itemsize
        return found

    def bytes_of(self, nodes: Iterable[Node], points: int) -> int:
        """The bytes of buffers in a kernel of so many points, which reads no more elements of each."""
        return sum(min(self.size(n), points * n.dtype.itemsize) for n in nodes if n.dtype is not None)

    def stored(self, node: Node) -> bool:
        """Does a node of a cluster go to memory: is it kept, or read by another cluster?"""
        of = self.fusion.of
        return node in self.fusion.kept or any(of.get(u) is not of[node] for u in self.consumers.get(node, ()))

    # ---- clusters ---------------------------------------------------------------------------------------

    def may_join(self, node: Node, cluster: Cluster, bases: Iterable[Node]) -> bool:
        """Does a node gain by being computed in the cluster of what it reads? Always, but where a scan makes the
        cluster less parallel."""
        if node.kind != "scan" and all(n.kind != "scan" for n in cluster.nodes):
            return True
        device, theirs = self.device(node), self.work(cluster)
        points = self.count(node.shape)
        read = [b for b in bases if self.fusion.of.get(b) is cluster]
        saved = self.bytes_of([*read, *(b for b in read if self.consumers.get(b) == [node])], points)
        moved, work = self.bytes_of([*bases, node], points), self.operations([node])
        along = self.count(node.shape[d] for d in inner_dims(node)) if node.kind == "scan" else 1
        mine = Work(moved, work * self.serial([node]), points // max(along, 1) if along > 1 else points)
        together = self.serial([*cluster.nodes, node]) * (self.operations(cluster.nodes) + work)
        whole = Work(theirs.moved + moved - saved, together, min(mine.parallel, theirs.parallel))
        return whole.seconds(device) < mine.seconds(device) + theirs.seconds(device)

    def may_merge(self, one: Cluster, other: Cluster) -> bool:
        """Do two clusters, one of which reads the other, gain by being one? Always, but where a scan is in them."""
        nodes = [*one.nodes, *other.nodes]
        if all(n.kind != "scan" for n in nodes):
            return True
        inside, device = {one.id, other.id}, self.device(nodes[0])
        passed = [v for a, b in ((one, other), (other, one)) for v in self.facts(a).reads if v in b.homes]
        alone = [v for v in passed if v not in self.fusion.kept and not self._read_outside(v, inside)]
        first, second = self.work(one), self.work(other)
        moved = first.moved + second.moved - sum(self.size(v) for v in (*passed, *alone))
        together = self.serial(nodes) * self.operations(nodes)
        whole = Work(max(moved, 0), together, min(first.parallel, second.parallel))
        return whole.seconds(device) < first.seconds(device) + second.seconds(device)

    def _read_outside(self, value: Node, inside: set[int]) -> bool:
        of = self.fusion.of
        return any((c := of.get(u)) is None or c.id not in inside for u in self.consumers.get(value, ()))

    def serial(self, nodes: Iterable[Node]) -> int:
        """Of how many lanes a kernel on a CPU uses one: all, where a scan goes along the loop that vectors would."""
        for n in nodes:
            if n.kind == "scan" and n.args[1] == len(n.shape) - 1:
                device = self.device(n)
                return max(device.vector_bytes // 4, 1) if device.warp == 1 else 1
        return 1

    def may_wait(self, nodes: Iterable[Node], cluster: Cluster) -> bool:
        """May nodes, and a cluster that they are computed with, wait for the end of the graph if one of them does?

        Not where that keeps more in memory until then than the other would get: a gradient of many rows, rather than
        its sum, which is a bias's.
        """
        ends = self.fusion.ends
        if ends.isdisjoint(nodes) or not ends.isdisjoint(cluster.nodes):
            return True
        handed = [v for v in cluster.nodes if not ends.isdisjoint(self.consumers.get(v, ()))]
        read = (v for v in self.facts(cluster).reads if v.kind not in ("input", "constant"))
        held = sum(self.size(v) for v in read if ends.isdisjoint(self.consumers.get(v, ())))
        gains = sum(map(self.size, handed)) - held
        return gains > 0 or (gains == 0 and self.fusion.kept.isdisjoint(handed))

    def facts(self, cluster: Cluster) -> Facts:
        """What a cluster reads and writes."""
        state = len(cluster.nodes), len(cluster.space)
        known = self._facts.get(cluster.id)
        if known is None or known[0] != state:
            known = self._facts[cluster.id] = state, self._facts_of(cluster)
        return known[1]

    def forget(self, *clusters: Cluster) -> None:
        """Look again at clusters that read or write something else by now."""
        for cluster in clusters:
            self._facts.pop(cluster.id, None)

    def shape(self, cluster: Cluster) -> tuple[int, int]:
        """The rows and columns of a cluster's space."""
        columns = self.count(n for v, n in cluster.space.items() if v in cluster.inner)
        return self.count(cluster.space.values()) // max(columns, 1), columns

    def _facts_of(self, cluster: Cluster) -> Facts:
        reads: dict[Node, set[Index]] = {}
        for node in cluster.nodes:
            for base, index, exact in self.fusion.reads(node, cluster.operands[node]):
                if base not in cluster.homes:
                    reads.setdefault(base, set()).update([index] if exact else [])
        writes = tuple(n for n in cluster.nodes if self.stored(n))
        found = {b: frozenset(indices) for b, indices in reads.items()}
        accesses = [*(cluster.homes[n] for n in writes), *(i for indices in found.values() for i in indices)]
        ops = {n.op for n in cluster.nodes}
        marks = (
            any(n.kind == "scan" for n in cluster.nodes),
            bool(ops & {"gather", "index"}),
            any(n.op == "copy" for n in writes),
        )
        key = tuple(accesses), tuple(cluster.space)
        if key not in self._along:
            self._along[key] = _along(accesses, cluster.space)
        return Facts(found, writes, self._along[key], marks)

    def work(self, cluster: Cluster) -> Work:
        """What the cluster's kernel does."""
        facts, points = self.facts(cluster), self.count(cluster.space.values())
        moved = self.bytes_of([*facts.reads, *facts.writes], points)
        rows, columns = self.shape(cluster)
        if facts.marks[0]:  # a scan's row is one program's
            columns = min(columns, _TEAM if self.device(cluster.nodes[0]).warp > 1 else 1)
        return Work(moved, self.operations(cluster.nodes) * self.serial(cluster.nodes), rows * columns)

    def operations(self, nodes: Iterable[Node], times: int | None = None) -> int:
        """The operations of nodes, each computed so many times, by default once per element."""
        if times is not None:
            return times * sum(op_cost(n.op) for n in nodes)
        return sum(op_cost(n.op) * self.count((n.args[0] if n.kind == "reduce" else n).shape) for n in nodes)

    def room(self, cluster: Cluster) -> int:
        """How many buffers a kernel of a cluster's space may touch, by the registers of a thread that holds its part of
        each."""
        device = self.device(cluster.nodes[0])
        row = min(self.shape(cluster)[1], _ROW)
        if device.registers == 0 or row <= _TEAM:
            return 32
        return max(_STREAMS, device.registers // _TEAM * 3 // 4 * _TEAM // row)


def _along(accesses: Iterable[Index], space: Mapping[Expr, Expr]) -> frozenset[Expr]:
    """The variables that run in steps of one through what is accessed as often as there are points."""
    found: set[Expr] = set()
    for index in accesses:
        if all(any(v in i.symbols for i in index) for v in space):
            last = next((i for i in reversed(index) if i is not ZERO), ZERO)
            found.update(steps_of_one(last, space))
    return frozenset(found)


def steps_of_one(index: Expr, space: Mapping[Expr, Expr]) -> list[Expr]:
    """The variables with a stride of one."""
    return [v for v in index.symbols if v in space and coefficient(index, v) is ONE]
