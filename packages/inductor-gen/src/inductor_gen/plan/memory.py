"""Memory: the order of kernels that keeps the fewest bytes alive at once, and which buffer takes over whose memory.

Both count the bytes of every buffer from the step that makes it to the last step that reads it. What costs memory but
saves time (memory kept for a later buffer instead of going back to the allocator, kernels launched together so that
nothing is given back between them) happens only where it does not raise the peak.

Every function here takes time linear in the number of steps and of buffers that they read.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from inductor_gen.kernel.ir import Call, Kernel, nbytes
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import Hint
from inductor_gen.plan.launches import Launch

__all__ = ["Footprint", "MemoryPlan", "footprint", "lightest_order", "peak", "plan_memory"]

#: How many launches ahead an ended buffer is kept for another one.
AHEAD = 64

#: A result of at least this share of the peak is a large one.
LARGE = 16


@dataclass(frozen=True)
class Footprint:
    """The buffers of a launch or of an operator's call.

    Attributes:
        made: the buffers that begin with it.
        read: the buffers that it needs, those that it updates included.
        kernel: it is generated and runs on memory that it is given; an operator brings its own.
        overwrites: ``(made, read)`` buffers that may share memory.
        extra: bytes that it takes while it runs.
        gives_away: memory of buffers that end here may live on elsewhere.
    """

    made: tuple[Node, ...]
    read: tuple[Node, ...]
    kernel: bool = True
    overwrites: tuple[tuple[Node, Node], ...] = ()
    extra: int = 0
    gives_away: bool = False


def footprint(step: Kernel | Launch | Call) -> Footprint:
    """What a step makes and needs."""
    if isinstance(step, Call):
        return Footprint(step.writes, step.reads, kernel=False, extra=step.workspace, gives_away=step.custom)
    return Footprint(step.writes, step.reads, overwrites=step.overwrites)


@dataclass
class MemoryPlan:
    """What :func:`plan_memory` decides.

    Attributes:
        takes: buffer -> the ended buffer whose memory it takes over.
        launch_after: kernels up to and including each of these steps are launched together; what has ended by then and
            nobody takes over is given back.
        dies: buffer -> the last step that needs it (the number of steps for what is returned).
    """

    takes: dict[Node, Node] = field(default_factory=dict)
    launch_after: set[int] = field(default_factory=set)
    dies: dict[Node, int] = field(default_factory=dict)


# ---- order ---------------------------------------------------------------------------------------------------


def _last_reads(steps: Sequence[Footprint], returned: Collection[Node]) -> dict[Node, int]:
    dies: dict[Node, int] = {}
    for k, step in enumerate(steps):
        for node in (*step.made, *step.read):
            dies[node] = k
    for node in returned:
        dies[node] = len(steps)
    return dies


def peak(steps: Sequence[Footprint], returned: Collection[Node], freed: Collection[Node], hint: Hint) -> int:
    """The most bytes alive at once, ``freed`` being the inputs that can be given up after their last use."""
    dies = _last_reads(steps, returned)
    ending: dict[int, int] = {}
    for node, k in dies.items():
        ending[k] = ending.get(k, 0) + _size(node, freed, hint)
    live = sum(nbytes(node, hint) for node in freed if node in dies)
    highest = live
    for k, step in enumerate(steps):
        live += sum(nbytes(node, hint) for node in step.made)
        highest = max(highest, live + step.extra)
        live -= ending.get(k, 0)
    return highest


def _size(node: Node, freed: Collection[Node], hint: Hint) -> int:
    held = node.kind in ("input", "constant") and node not in freed
    return 0 if held else nbytes(node, hint)


def lightest_order(
    steps: Mapping[int, Footprint],
    order: Sequence[int],
    needs: Mapping[int, Collection[int]],
    returned: Collection[Node],
    freed: Collection[Node],
    hint: Hint,
) -> list[int]:
    """The order with the lowest peak: ``order``, or one of two variations of it.

    A variation runs as soon as it can whatever frees as much as it takes. The second one also puts off to the end large
    results that nothing else reads, where making them frees little: the gradient of an embedding table, say.
    """
    candidates = [list(order)]
    large = peak([steps[i] for i in order], returned, freed, hint) // LARGE
    candidates += [_varied(steps, order, needs, returned, freed, hint, size) for size in (None, large)]
    costs = [peak([steps[i] for i in ids], returned, freed, hint) for ids in candidates]
    best = min(range(len(candidates)), key=costs.__getitem__)
    # Not worth a change for a rounding error.
    return candidates[0 if costs[best] > costs[0] * 0.999 else best]


def _varied(
    steps: Mapping[int, Footprint], order: Sequence[int], needs: Mapping[int, Collection[int]],
    returned: Collection[Node], freed: Collection[Node], hint: Hint, large: int | None,
) -> list[int]:  # fmt: skip
    position = {i: k for k, i in enumerate(order)}
    users: dict[int, list[int]] = {}
    for i in order:
        for source in needs[i]:
            users.setdefault(source, []).append(i)
    kept = set(returned)
    readers: dict[Node, set[int]] = {}
    for i in order:
        for node in steps[i].read:
            if node not in kept and (node.kind not in ("input", "constant") or node in freed):
                readers.setdefault(node, set()).add(i)
    waiting = {i: sum(source in position for source in needs[i]) for i in order}
    result_only = {i for i in order if not users.get(i)}
    done: set[int] = set()

    def key(i: int) -> tuple[int, int, int]:
        step = steps[i]
        taken = sum(nbytes(n, hint) for n in step.made if n in kept or readers.get(n))
        given = sum(nbytes(n, hint) for n in step.read if len(readers.get(n, ())) == 1)
        if taken <= given:
            return (0, 0, position[i])
        late = large is not None and taken >= large and i in result_only
        return (2, -given, position[i]) if late else (1, 0, position[i])

    ready = [(key(i), i) for i in order if not waiting[i]]
    heapq.heapify(ready)
    out: list[int] = []
    while ready:
        _, i = heapq.heappop(ready)
        if i in done:
            continue
        done.add(i)
        out.append(i)
        for node in steps[i].read:
            left = readers.get(node)
            if left is not None:
                left.discard(i)
                if len(left) == 1:
                    (other,) = left
                    if not waiting[other] and other not in done:
                        heapq.heappush(ready, (key(other), other))
        for user in users.get(i, ()):
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, (key(user), user))
    return out


# ---- buffers -------------------------------------------------------------------------------------------------


def plan_memory(
    steps: Sequence[Footprint],
    returned: Collection[Node],
    freed: Collection[Node],
    key_of: Callable[[Node], Hashable],
    hint: Hint,
    largest: int | None = None,
) -> MemoryPlan:
    """Which buffers share memory and where launches are cut.

    Args:
        steps: in the order in which they run.
        returned: buffers that outlive the steps.
        freed: the inputs that can be given up after their last use.
        key_of: equal for buffers of which one can take the other's place.
        largest: keep memory for later only up to this many bytes per buffer.
    """
    plan = MemoryPlan(dies=_last_reads(steps, returned))
    _in_place(plan, steps)
    live = _live(plan, steps, freed, hint)
    _group(plan, steps, key_of, live, hint)
    _keep(plan, steps, key_of, live, hint, largest)
    return plan


def _in_place(plan: MemoryPlan, steps: Sequence[Footprint]) -> None:
    """Kernels that may write where they read do, where that ends with them."""
    gone: set[Node] = set()
    for k, step in enumerate(steps):
        for made, read in step.overwrites:
            if made in plan.takes or read in gone or plan.dies.get(read) != k or made not in step.made:
                continue
            plan.takes[made] = read
            gone.add(read)


def _live(plan: MemoryPlan, steps: Sequence[Footprint], freed: Collection[Node], hint: Hint) -> list[int]:
    """The bytes alive during each step."""
    ending: dict[int, int] = {}
    over = set(plan.takes.values())
    for node, k in plan.dies.items():
        if node not in over:
            ending[k] = ending.get(k, 0) + _size(node, freed, hint)
    now = sum(nbytes(node, hint) for node in freed if node in plan.dies)
    live = []
    for k, step in enumerate(steps):
        now += sum(nbytes(node, hint) for node in step.made if node not in plan.takes)
        live.append(now + step.extra)
        now -= ending.get(k, 0)
    return live


def _group(
    plan: MemoryPlan, steps: Sequence[Footprint], key_of: Callable[[Node], Hashable], live: list[int], hint: Hint
) -> None:
    """Join consecutive kernels to one launch; within one, a buffer takes the memory of one that has ended before.

    ``live`` becomes what is alive during each launch.
    """
    highest = max(live, default=0)
    over = set(plan.takes.values())
    ended: dict[Hashable, list[Node]] = {}
    for k, step in enumerate(steps):
        joined = k > 0 and step.kernel and steps[k - 1].kernel
        if joined:
            taken: dict[Node, Node] = {}
            grown = 0
            for node in step.made:
                if node not in plan.takes:
                    pool = [n for n in ended.get(key_of(node), ()) if n not in over]
                    if pool:
                        taken[node] = pool[-1]
                        over.add(pool[-1])
                    else:
                        grown += nbytes(node, hint)
            joined = live[k - 1] + grown <= highest
            if joined:
                live[k] = live[k - 1] + grown
                plan.takes.update(taken)
            else:
                over.difference_update(taken.values())
        if not joined:
            ended = {}
            if k:
                plan.launch_after.add(k - 1)
        for node in _ending(step, k, plan, over):
            ended.setdefault(key_of(node), []).append(node)
    if steps:
        plan.launch_after.add(len(steps) - 1)


def _ending(step: Footprint, k: int, plan: MemoryPlan, over: Collection[Node]) -> list[Node]:
    """The buffers whose memory is free for another kernel after a step."""
    if step.gives_away:
        return []
    nodes = dict.fromkeys((*step.made, *step.read))
    return [node for node in nodes if plan.dies[node] == k and node not in over and _own(node, plan)]


def _keep(
    plan: MemoryPlan, steps: Sequence[Footprint], key_of: Callable[[Node], Hashable], live: list[int], hint: Hint,
    largest: int | None,
) -> None:  # fmt: skip
    """Keep ended buffers for later ones like them where the peak leaves room in between."""
    highest = max(live, default=0)
    over = set(plan.takes.values())
    ended: dict[Hashable, list[tuple[Node, int]]] = {}
    begin = 0
    for k, step in enumerate(steps):
        for node in step.made if step.kernel else ():
            pool = ended.get(key_of(node))
            if node in plan.takes or not pool:
                continue
            old, since = pool[-1]
            size = nbytes(node, hint)
            between = range(since + 1, k)
            if len(between) > AHEAD or (largest is not None and size > largest):
                continue
            if all(live[j] + size <= highest for j in between):
                pool.pop()
                plan.takes[node] = old
                over.add(old)
                for j in between:
                    live[j] += size
        if k in plan.launch_after:
            for j in range(begin, k + 1):
                for node in _ending(steps[j], j, plan, over):
                    ended.setdefault(key_of(node), []).append((node, k))
            begin = k + 1


def _own(node: Node, plan: MemoryPlan) -> bool:
    """Was the buffer allocated for a kernel? (An operator's result may be a view of more than it shows.)"""
    while node in plan.takes:
        node = plan.takes[node]
    return node.kind not in ("input", "constant", "item", "extern")
