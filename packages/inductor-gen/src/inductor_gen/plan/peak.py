"""The order of kernels that keeps the fewest bytes alive at once.

The bytes of every buffer count from the step that makes it to the last step that reads it. The most alive at once (a
result that lies over an operand counts once) are the lower bound of what an order takes.

Every function here takes time that grows with the steps and the buffers that they read as n log n at most.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate

from inductor_gen.kernel.ir import Call, Kernel, nbytes
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import Hint
from inductor_gen.plan.launches import Launch
from prims.records import record

__all__ = ["Footprint", "Orders", "footprint", "largest_at_peak", "last_reads"]

#: Of the peak, what an order must be below to be taken for another one, and how often one is made of the last.
WORTH, ROUNDS = 0.999, 8

#: A result of at least this share of the peak is a large one.
LARGE = 16


@record
class Footprint:
    """The buffers of a launch or of an operator's call.

    Attributes:
        made: the buffers that begin with it.
        read: the buffers that it needs, those that it updates included.
        kernel: it is generated and runs on memory that it is given; an operator brings its own.
        overwrites: ``(made, read)`` buffers that may share memory.
        extra: bytes that it takes while it runs.
        gives_away: memory of buffers that end here may live on elsewhere.
        fails: it may end the call, which is then run again in another way.
    """

    made: tuple[Node, ...]
    read: tuple[Node, ...]
    kernel: bool = True
    overwrites: tuple[tuple[Node, Node], ...] = ()
    extra: int = 0
    gives_away: bool = False
    fails: bool = False


def footprint(step: Kernel | Launch | Call, partial: Sequence[Node] = ()) -> Footprint:
    """What a step makes and needs; ``partial``: buffers of its own between the kernels that it is rendered as."""
    if isinstance(step, Call):
        return Footprint(step.writes, step.reads, False, (), step.workspace, step.custom, fails=True)
    kernels = step.kernels if isinstance(step, Launch) else (step,)
    fails = any(k.checks and (k.device is None or k.device.type == "cpu") for k in kernels)
    return Footprint((*step.writes, *partial), step.reads, overwrites=step.overwrites, fails=fails)


def largest_at_peak(
    steps: Sequence[Footprint], dies: Mapping[Node, int], size: Callable[[Node], int], count: int = 8
) -> list[tuple[int, Node]]:
    """The largest buffers that the steps make and that are alive when most bytes are, with their bytes."""
    born = {node: k for k, step in reversed(list(enumerate(steps))) for node in step.made}
    sizes = {node: size(node) for node in born}
    change = [0] * (len(steps) + 2)
    for node, k in born.items():
        change[k] += sizes[node]
        change[min(dies.get(node, k), len(steps)) + 1] -= sizes[node]
    alive = list(accumulate(change))
    peak = max(range(len(alive)), key=alive.__getitem__)
    held = [(sizes[node], node) for node, k in born.items() if k <= peak <= dies.get(node, k) and sizes[node]]
    return sorted(held, key=lambda pair: -pair[0])[:count]


def last_reads(steps: Sequence[Footprint], returned: Collection[Node]) -> dict[Node, int]:
    """The last step that needs each buffer: the number of steps for what is returned."""
    dies = {node: k for k, step in enumerate(steps) for node in (*step.made, *step.read)}
    dies.update(dict.fromkeys(returned, len(steps)))
    return dies


class Orders:
    """The orders in which a graph's steps may run, and the bytes that each keeps alive.

    Args:
        steps: by number.
        needs: the steps that must run before each of them.
        returned: buffers that outlive the steps.
        freed: the inputs that can be given up after their last use.
        hint: a likely number for each size.
        renewed: buffers that lie in inputs' memory.
    """

    def __init__(
        self, steps: Mapping[int, Footprint], needs: Mapping[int, Collection[int]], returned: Collection[Node],
        freed: Collection[Node], hint: Hint, renewed: Collection[Node] = (),
    ) -> None:  # fmt: skip
        self.steps = steps
        self.needs = needs
        self.returned = set(returned)
        self.freed = freed
        self.hint = hint
        self.renewed = renewed
        self._sizes: dict[Node, int] = {}
        self._given: dict[Node, int] = {}
        self._peaks: dict[tuple[int, ...], int] = {}

    def lightest(self, order: Sequence[int]) -> list[int]:
        """The order with the lowest peak: ``order``, or a variation of it.

        A variation runs as soon as it can whatever frees as much as it takes. The second one also puts off to the end
        large results that nothing else reads, where making them frees little: the gradient of an embedding table, say.
        In the best of these, what is in memory at the peak without being read before it is then made after it.
        """
        first = self.peak(order)
        candidates = [list(order), *(self._varied(order, large) for large in (None, first // LARGE))]
        best = min(candidates, key=self.peak)
        # Not worth a change for a rounding error.
        return self.postponed(candidates[0] if self.peak(best) > first * WORTH else best)

    def postponed(self, order: Sequence[int]) -> list[int]:
        """The order with what is in memory at the peak without being read before it made after it, if that lowers
        it."""
        ids, cost = list(order), self.peak(order)
        for _ in range(ROUNDS):
            later = self._put_off(ids)
            lower = self.peak(later)
            if lower > cost * WORTH:
                break
            ids, cost = later, lower
        return ids

    def peak(self, order: Sequence[int]) -> int:
        """The most bytes alive at once."""
        key = tuple(order)
        found = self._peaks.get(key)
        if found is None:
            found = self._peaks[key] = max(self._profile(order), default=0)
        return found

    def _profile(self, order: Sequence[int]) -> list[int]:
        """The bytes alive during each step; a result counts once with an operand that it may lie over."""
        steps = [self.steps[i] for i in order]
        dies = last_reads(steps, self.returned)
        ending = [0] * (len(steps) + 1)
        given = self._given
        for node, k in dies.items():
            if node not in given:
                given[node] = self._bytes(node) if self._is_given_back(node) else 0
            ending[k] += given[node]
        live = sum(self._bytes(node) for node in self.freed if node in dies)
        found = []
        for k, step in enumerate(steps):
            live += sum(map(self._bytes, step.made))
            over = {m: r for m, r in step.overwrites if dies[r] == k and self._bytes(m) == self._bytes(r)}
            found.append(live + step.extra - sum(map(self._bytes, set(over.values()))))
            live -= ending[k]
        return found

    def _bytes(self, node: Node) -> int:
        found = self._sizes.get(node)
        if found is None:
            found = self._sizes[node] = 0 if node in self.renewed else nbytes(node, self.hint)
        return found

    def _is_given_back(self, node: Node) -> bool:
        return node.kind not in ("input", "constant") or node in self.freed

    def _put_off(self, order: Sequence[int]) -> list[int]:
        """Steps before the peak whose results are read only after it run just before they are, where no operand
        waits."""
        live = self._profile(order)
        top = live.index(max(live)) if live else 0
        first: dict[int, int] = {}
        last: dict[Node, int] = {}
        for k, i in enumerate(order):
            for source in self.needs[i]:
                first.setdefault(source, k)
            last.update((node, k) for node in self.steps[i].read)
        before: dict[int, list[int]] = {}
        gone = set()
        for i in order[:top]:
            to = first.get(i, 0)
            own = (n for n in self.steps[i].read if n not in self.returned and self._is_given_back(n))
            if to > top and all(last[node] >= to for node in own):
                before.setdefault(order[to], []).append(i)
                gone.add(i)
        return [j for i in order if i not in gone for j in (*before.get(i, ()), i)]

    def _varied(self, order: Sequence[int], large: int | None) -> list[int]:
        steps = self.steps
        position = {i: k for k, i in enumerate(order)}
        users: dict[int, list[int]] = {}
        readers: dict[Node, set[int]] = {}
        for i in order:
            for source in self.needs[i]:
                users.setdefault(source, []).append(i)
            for node in steps[i].read:
                if node not in self.returned and self._is_given_back(node):
                    readers.setdefault(node, set()).add(i)
        waiting = {i: sum(source in position for source in self.needs[i]) for i in order}
        done: set[int] = set()

        def key(i: int) -> tuple[int, int, int]:
            step = steps[i]
            taken = sum(self._bytes(n) for n in step.made if n in self.returned or readers.get(n))
            given = sum(self._bytes(n) for n in step.read if len(readers.get(n, ())) == 1)
            if taken <= given:
                return (0, 0, position[i])
            late = large is not None and taken >= large and i not in users
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
