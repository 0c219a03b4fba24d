"""Memory: which buffers share it.

The most bytes alive at once are the lower bound of the order of the steps (:mod:`.peak`); the plan keeps to it.

Buffers lie at offsets in pieces, which are allocated and given back as one. They are placed in the order of the steps,
in the smallest interval that is free and large enough (best fit, neighbouring free intervals joined: Wilson,
Johnstone, Neely and Boles, Dynamic Storage Allocation, 1995), the largest of a step first as in Pisarchyk and Lee,
Efficient Memory Management for Deep Neural Net Inference, 2020. One arena for the whole graph would hold its memory
also where operators bring their own; here a piece lives no longer than its buffers, unless the bound leaves room: what
costs memory but saves time (memory kept for a later buffer, kernels launched together, so that nothing is given back
between them) happens only there.

Every function here takes time that grows with the steps and the buffers that they read as n log n at most.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field

from inductor_gen.kernel.ir import nbytes
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import Hint
from inductor_gen.plan.peak import Footprint, last_reads
from prims.errors import VerifierError
from prims.records import record
from prims.report import many
from prims.spec.expr import Expr

__all__ = ["CONSTRAINTS", "MemoryPlan", "Piece", "Sharing", "plan_memory", "text", "verify"]

CONSTRAINTS = {
    "MEMORY-C1": "Buffers that are needed at once lie apart, but where a kernel writes one where it reads the other.",
    "MEMORY-C2": "A buffer is aligned and within its piece, and the piece is there as long as the buffer.",
    "MEMORY-C3": "What outlives the graph, or may live on elsewhere, has its memory for itself.",
    "MEMORY-C4": "Memory is given back before an operator runs.",
    "MEMORY-C5": "The peak is that of the pieces, and not above the bound.",
    "MEMORY-C6": "An input is written when nobody reads it any more, and nothing that follows may fail.",
}

#: How many launches ahead an ended buffer's memory is kept for another one.
AHEAD = 64

#: Memory larger than a buffer is taken for it only where its life is no longer than this: each step of it is looked at.
LOOK = 512

#: Free intervals that are tried for a buffer, the smallest that are large enough.
TRIES = 4


def _spared(plan: MemoryPlan, hint: Hint) -> int:
    """The bytes that inputs' new values would take beside the inputs."""
    return sum(nbytes(node, hint) for node in plan.renewed)


@record
class Sharing:
    """How buffers may share memory.

    Attributes:
        size: a buffer's bytes.
        alignment: buffers begin at a multiple of so many bytes.
        small: buffers of at most so many bytes that kernels make between two operators are allocated as one.
        largest: memory is kept for later only up to this many bytes.
        hidden: returned buffers that the program does not get, but another graph.
    """

    size: Callable[[Node], Expr]
    alignment: int
    small: int = 0
    largest: int | None = None
    hidden: Collection[Node] = ()


@record(frozen=False, eq=False)
class Piece:
    """Memory that is allocated, and given back, as one.

    Attributes:
        size: bytes; of symbolic ones those for likely sizes.
        own: allocated for kernels; else it is an operator's result.
        begin: the step before which it is allocated.
        end: the last step that needs it.
        shared: what has ended of it may be used again.
        nodes: the buffers that lie in it, in the order in which they were placed.
        reach: the bytes from its beginning that they use.
        used: bytes in use, as far as the plan is made.
        free: offset -> bytes that nobody uses any more, likewise.
    """

    size: int
    own: bool
    begin: int
    end: int
    shared: bool
    nodes: list[Node] = field(default_factory=list)
    reach: int = 0
    used: int = 0
    free: dict[int, int] = field(default_factory=dict)


@record(frozen=False)
class MemoryPlan:
    """What :func:`plan_memory` decides.

    Attributes:
        place: buffer -> the piece that it lies in, and at which byte of it.
        launch_after: kernels up to and including each of these steps are launched together; pieces that have ended by
            then are given back.
        dies: buffer -> the last step that needs it (the number of steps for what is returned).
        bound: the most bytes that are alive at once; only where that lets inputs be written in place are more taken, at
            most what it spares.
        peak: the most bytes that pieces, inputs to be given up and workspaces take at once.
        pieces: in the order in which they are allocated.
        note: what kept memory from being shared.
        renewed: buffers that are inputs' new values and lie in the inputs' memory, each with its input.
    """

    place: dict[Node, tuple[Piece, int]] = field(default_factory=dict)
    launch_after: set[int] = field(default_factory=set)
    dies: dict[Node, int] = field(default_factory=dict)
    bound: int = 0
    peak: int = 0
    pieces: list[Piece] = field(default_factory=list)
    note: str | None = None
    renewed: dict[Node, Node] = field(default_factory=dict)


def plan_memory(
    steps: Sequence[Footprint], returned: Collection[Node], freed: Collection[Node], hint: Hint, sharing: Sharing
) -> MemoryPlan:
    """Which buffers share memory and where launches are cut.

    Args:
        steps: in the order in which they run.
        returned: buffers that outlive the steps.
        freed: the inputs that can be given up after their last use.
        hint: a likely number for each size.
        sharing: how buffers may share memory.
    """
    for last in (True, False):
        plan = MemoryPlan(dies=last_reads(steps, returned))
        _Planner(plan, steps, freed, hint, sharing, last).run()
        if _nothing_fails_after(plan, steps):
            break
    return plan


def _nothing_fails_after(plan: MemoryPlan, steps: Sequence[Footprint]) -> bool:
    """Does no step fail, nor an allocation, once the first input is written?"""
    first = min((k for k, step in enumerate(steps) if not plan.renewed.keys().isdisjoint(step.made)), default=None)
    if first is None:
        return True
    launched = min(k for k in plan.launch_after if k >= first)
    return not any(step.fails for step in steps[first:]) and all(p.begin <= launched for p in plan.pieces)


def _written_over(
    steps: Sequence[Footprint], dies: Mapping[Node, int], sharing: Sharing, last: bool
) -> dict[Node, Node]:  # fmt: skip
    """Buffers that kernels write over what ends with them, each with that buffer, which is of as many bytes; inputs
    only by the last steps, of which none can fail."""
    over: dict[Node, Node] = {}
    gone: set[Node] = set()
    safe = 1 + max((k for k, step in enumerate(steps) if step.fails), default=-1) if last else len(steps)
    for k, step in enumerate(steps):
        for made, read in step.overwrites:
            fits = dies.get(read) == k and made in step.made and sharing.size(made) is sharing.size(read)
            if fits and made not in over and read not in gone and (read.kind != "input" or k >= safe):
                over[made] = read
                gone.add(read)
    return over


@record
class _Block:
    """A buffer and those that are written over it, one after the other.

    Attributes:
        end: the last step that needs it.
        raw: its bytes.
        size: its bytes with what alignment adds.
        pool: blocks of one pool can take each other's memory.
        small: it may lie beside others that begin near it.
        alone: nobody else may use its memory afterwards, nor a part that it does not need.
        lasting: it outlives the graph.
    """

    nodes: tuple[Node, ...]
    end: int
    raw: int
    size: int
    pool: object
    small: bool
    alone: bool
    lasting: bool


class _Planner:
    """Walks the steps as they run.

    ``total`` has for each step the bytes of the pieces alive then, as far as they are placed, of the buffers that are
    not yet, of inputs to be given up and of workspaces: it never rises above the bound. What has ended within a launch
    (``ended``) comes on top of it until the launch. ``live`` has the sums for the steps so far.
    """

    def __init__(
        self, plan: MemoryPlan, steps: Sequence[Footprint], freed: Collection[Node], hint: Hint, sharing: Sharing,
        last: bool,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.steps = steps
        self.freed = freed
        self.hint = hint
        self.sharing = sharing
        over = _written_over(steps, plan.dies, sharing, last)
        plan.renewed = {made: read for made, read in over.items() if read.kind == "input"}
        self.over = set(over)
        self.next = {read: made for made, read in over.items()}
        self.ending: dict[int, list[tuple[Piece, int, _Block]]] = {}
        self.leaving: dict[int, int] = {}
        self.room: dict[object, list[tuple[int, int, int]]] = {}  # pool -> bytes, piece, offset
        self.past: dict[object, list[tuple[int, int, int]]] = {}  # pool -> bytes, minus the step, piece
        self.slabs: dict[object, Piece] = {}
        self.number: dict[Piece, int] = {}
        self.dead: dict[Piece, object] = {}  # -> pool
        self.ended = 0
        self.live: list[int] = []
        self.blocks = [[self._block(n) for n in step.made if n not in self.over] for step in steps]
        self.total = self._alive()
        self.bound = plan.bound = max(self.total, default=0)

    def _block(self, node: Node) -> _Block:
        nodes = [node]
        while nodes[-1] in self.next:
            nodes.append(self.next[nodes[-1]])
        end = self.plan.dies[nodes[-1]]
        exact = self.sharing.size(node)
        raw = self.hint(exact)
        size = -(-raw // self.sharing.alignment) * self.sharing.alignment
        lasting = end == len(self.steps)
        small = exact.is_const and size <= self.sharing.small
        alone = not (small and nodes[-1] in self.sharing.hidden) if lasting else self.steps[end].gives_away
        pool = node.device if exact.is_const else (node.device, exact)
        return _Block(tuple(nodes), end, raw, size, pool, small and not alone, alone, lasting)

    def _alive(self) -> list[int]:
        """The bytes alive during each step."""
        for node, k in self.plan.dies.items():
            if node.kind in ("input", "constant") and node in self.freed:
                self.leaving[k] = self.leaving.get(k, 0) + nbytes(node, self.hint)
        gone = dict(self.leaving)
        now = sum(gone.values())
        found = []
        for k, step in enumerate(self.steps):
            for block in self.blocks[k]:
                now += block.size
                gone[block.end] = gone.get(block.end, 0) + block.size
            found.append(now + step.extra)
            now -= gone.get(k, 0)
        return found

    def run(self) -> None:
        # From the first input that is written in place on nothing may fail, so that a cut, and an allocation after it,
        # would cost the memory of all new values: that much more than the bound is spent to launch the rest as one.
        written = [k for k, step in enumerate(self.steps) if not self.plan.renewed.keys().isdisjoint(step.made)]
        tail = written[0] if written else len(self.steps)
        spared = _spared(self.plan, self.hint)
        for k, step in enumerate(self.steps):
            together = k > 0 and step.kernel and self.steps[k - 1].kernel
            if k and not together:
                self._cut(k - 1)
            for block in sorted(self.blocks[k], key=lambda b: -b.size):
                piece, offset = self._placed(k, block) if step.kernel and block.size else (None, 0)
                if piece is None:
                    piece = Piece(block.size, step.kernel, k, block.end, step.kernel)
                    self.number[piece] = len(self.plan.pieces)
                    self.plan.pieces.append(piece)
                    if step.kernel and block.small:
                        self.slabs[block.pool, block.lasting] = piece
                self._put(block, piece, offset)
            if together and self.total[k] + self.ended > self.bound + (spared if k > tail else 0):
                self._cut(k - 1)
            self.live.append(self.total[k] + self.ended)
            self._finish(k)
        if self.steps:
            self._cut(len(self.steps) - 1)
        self.plan.peak = max(self.live, default=0)
        symbolic = sum(isinstance(block.pool, tuple) for blocks in self.blocks for block in blocks)
        if symbolic:
            what = many(symbolic, "buffer")
            self.plan.note = f"{what} with sizes known at run time: memory is shared only with the very same size"

    # ---- where a block goes -----------------------------------------------------------------------------

    def _placed(self, k: int, block: _Block) -> tuple[Piece | None, int]:
        """A piece with room for a block, and where; the accounts are as if it were there."""
        anywhere = block.alone or not block.lasting  # what lasts keeps nothing else from ending
        for intervals, kept in ((self.room, False), (self.past, True)) if anywhere else ():
            found = intervals.get(block.pool, [])
            at = bisect_left(found, (block.size,))
            for entry in found[at : at + TRIES]:
                piece = self.plan.pieces[entry[1 + kept]]
                if self._taken(k, block, piece, 0 if kept else entry[2], 1 - entry[1] if kept else k):
                    found.remove(entry)
                    return piece, 0 if kept else entry[2]
        slab = self.slabs.get((block.pool, block.lasting))
        if slab is None or not block.small or not slab.shared:  # a buffer that needs its piece alone may have come
            return None, 0
        past = self.live[slab.begin : k]
        if max(past, default=0) + block.size > self.bound or not self._extended(k, block, slab, block.size):
            return None, 0
        self.live[slab.begin : k] = [n + block.size for n in past]
        offset, slab.size = slab.size, slab.size + block.size
        if slab in self.dead:
            self.ended += block.size
        return slab, offset

    def _taken(self, k: int, block: _Block, piece: Piece, offset: int, since: int) -> bool:
        """Let a block use a part of a piece that was given back before step ``since``, if at all."""
        if block.alone and (piece.used or piece.reach > block.raw or piece.size != block.size):
            return False  # it would hold more than its own bytes
        between = self.live[since:k]
        if len(between) > AHEAD or (max(between, default=0) + piece.size > self.bound and between):
            return False
        if not self._extended(k, block, piece, 0):
            return False
        self.live[since:k] = [n + piece.size for n in between]
        free = piece.free.pop(offset)
        if free > block.size:
            self._add(piece, offset + block.size, free - block.size, block.pool)
        return True

    def _extended(self, k: int, block: _Block, piece: Piece, more: int) -> bool:
        """Let a piece, larger by ``more``, live as long as a block that comes into it, if the bound leaves room."""
        last = max(piece.end, k - 1)
        ranges = [(k, min(last, block.end), more - block.size), (block.end + 1, last, more)]
        ranges.append((last + 1, block.end, piece.size + more - block.size))
        ranges = [(a, min(b, len(self.steps) - 1), by) for a, b, by in ranges if a <= b and by]
        for a, b, by in ranges:
            if b - a >= LOOK or (by > 0 and max(self.total[a : b + 1], default=0) + by > self.bound):
                return False
        for a, b, by in ranges:
            self.total[a : b + 1] = [n + by for n in self.total[a : b + 1]]
        return True

    def _put(self, block: _Block, piece: Piece, offset: int) -> None:
        if piece in self.dead:
            del self.dead[piece]
            self.ended -= piece.size
        piece.end = max(piece.end, block.end)
        piece.used += block.size
        piece.reach = max(piece.reach, offset + block.raw)
        piece.shared = piece.shared and not block.alone
        piece.nodes += block.nodes
        self.plan.place.update((node, (piece, offset)) for node in block.nodes)
        self.ending.setdefault(block.end, []).append((piece, offset, block))

    # ---- what ends --------------------------------------------------------------------------------------

    def _finish(self, k: int) -> None:
        """What ends with a step: its memory is there for the next kernel, and goes back with the next cut."""
        for piece, offset, block in self.ending.pop(k, ()):
            piece.used -= block.size
            if piece.shared and block.size:
                self._add(piece, offset, block.size, block.pool)
            if not piece.used and piece.end == k:
                self.ended += piece.size
                if piece.shared:
                    self.dead[piece] = block.pool
        self.ended += self.leaving.get(k, 0)

    def _add(self, piece: Piece, offset: int, size: int, pool: object) -> None:
        """An interval that is free, as one with those beside it."""
        intervals = self.room.setdefault(pool, [])
        for start, length in list(piece.free.items()):
            if start + length == offset or offset + size == start:
                self._remove(piece, start, pool)
                offset, size = min(offset, start), size + length
        piece.free[offset] = size
        insort(intervals, (size, self.number[piece], offset))

    def _remove(self, piece: Piece, offset: int, pool: object) -> None:
        intervals = self.room[pool]
        del intervals[bisect_left(intervals, (piece.free.pop(offset), self.number[piece], offset))]

    def _cut(self, k: int) -> None:
        """Launch what has come since the last cut, and give back what has ended."""
        self.plan.launch_after.add(k)
        for piece, pool in self.dead.items():
            for offset in list(piece.free):
                self._remove(piece, offset, pool)
            piece.free = {0: piece.size}
            if piece.size and (self.sharing.largest is None or piece.size <= self.sharing.largest):
                insort(self.past.setdefault(pool, []), (piece.size, -k, self.number[piece]))
        self.dead.clear()
        self.slabs.clear()
        self.ended = 0


# ---- text and verifier -----------------------------------------------------------------------------------------


def text(plan: MemoryPlan) -> str:
    """The plan: its peak and the bound, and a line for each piece that more than one buffer lies in."""
    lines = [
        f"peak {plan.peak} bytes, {plan.bound} needed in this order; {len(plan.place)} buffers in "
        f"{len(plan.pieces)} pieces, {len(plan.launch_after)} cuts"
    ]
    for piece in plan.pieces:
        if len(piece.nodes) > 1:
            places = ", ".join(f"{node!r} at {plan.place[node][1]} to {plan.dies[node]}" for node in piece.nodes)
            lines.append(f"{piece.begin:4d} to {piece.end}: {piece.size} bytes: {places}")
    return "\n".join([*lines, *filter(None, [plan.note])])


def verify(plan: MemoryPlan, steps: Sequence[Footprint], freed: Collection[Node], hint: Hint, sharing: Sharing) -> None:
    """Check a plan against the steps, buffer by buffer.

    Raises:
        VerifierError: one of :data:`CONSTRAINTS` is broken.
    """
    for made, read in plan.renewed.items():
        (k,) = (k for k, step in enumerate(steps) if made in step.made)
        if plan.dies[read] != k or (made, read) not in steps[k].overwrites or not _nothing_fails_after(plan, steps):
            raise VerifierError("MEMORY-C6", f"{made!r} is written over the input {read!r}")
    begins = {node: k for k, step in enumerate(steps) for node in step.made}
    for piece in plan.pieces:
        nodes = sorted(piece.nodes, key=begins.__getitem__)
        for at, node in enumerate(nodes):
            _verify_place(plan, node, begins[node], hint, sharing)
            earlier = [other for other in nodes[:at] if plan.dies[other] >= begins[node]]
            _verify_apart(plan, node, earlier, steps[begins[node]], hint, sharing)
            end = plan.dies[node]
            given = end < len(steps) and steps[end].gives_away
            if (given and begins[nodes[-1]] > end) or (end == len(steps) and _shares(plan, node, hint, sharing)):
                raise VerifierError("MEMORY-C3", f"{node!r} does not have its memory for itself")
    for k, step in enumerate(steps):
        if not step.kernel and not {k, k - 1} - {-1} <= plan.launch_after:
            raise VerifierError("MEMORY-C4", f"step {k} runs within a launch")
    found = _replayed(plan, steps, freed, hint)
    if found != plan.peak or found > plan.bound + _spared(plan, hint):
        raise VerifierError("MEMORY-C5", f"the pieces take {found} bytes, not {plan.peak}, {plan.bound} at most")


def _verify_place(plan: MemoryPlan, node: Node, begin: int, hint: Hint, sharing: Sharing) -> None:
    piece, offset = plan.place[node]
    within = offset >= 0 and offset + hint(sharing.size(node)) <= piece.size
    if not within or offset % sharing.alignment or not piece.begin <= begin <= plan.dies[node] <= piece.end:
        raise VerifierError("MEMORY-C2", f"{node!r} at {offset} in {piece}")


def _verify_apart(
    plan: MemoryPlan, node: Node, others: Sequence[Node], step: Footprint, hint: Hint, sharing: Sharing
) -> None:  # fmt: skip
    first = plan.place[node][1]
    for other in others:
        start = plan.place[other][1]
        apart = first + hint(sharing.size(node)) <= start or start + hint(sharing.size(other)) <= first
        if not apart and (start != first or (node, other) not in step.overwrites):
            raise VerifierError("MEMORY-C1", f"{node!r} lies over {other!r}, which is still needed")


def _shares(plan: MemoryPlan, node: Node, hint: Hint, sharing: Sharing) -> bool:
    """Does a result hold more than its own bytes?"""
    piece, offset = plan.place[node]
    size = max(hint(sharing.size(node)), 0)  # the extent of what turns out empty is negative
    return piece.own and not (node in sharing.hidden and size <= sharing.small) and (offset, piece.reach) != (0, size)


def _replayed(plan: MemoryPlan, steps: Sequence[Footprint], freed: Collection[Node], hint: Hint) -> int:
    """The most bytes that pieces, inputs to be given up and workspaces take at once."""
    begin: dict[int, int] = {}
    end: dict[int, int] = {}
    for piece in plan.pieces:
        begin[piece.begin] = begin.get(piece.begin, 0) + piece.size
        end[piece.end] = end.get(piece.end, 0) + piece.size
    given = [node for node in plan.dies if node.kind in ("input", "constant") and node in freed]
    now = highest = sum(nbytes(node, hint) for node in given)
    for node in given:
        end[plan.dies[node]] = end.get(plan.dies[node], 0) + nbytes(node, hint)
    ended = 0
    for k, step in enumerate(steps):
        now += begin.get(k, 0)
        highest = max(highest, now + step.extra)
        ended += end.get(k, 0)
        if k in plan.launch_after:
            now, ended = now - ended, 0
    return highest
