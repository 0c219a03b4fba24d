"""Kernels that do not depend on each other are launched as one, where the device can.

Neighbouring small ones cost more to launch than to run. Those that do *alike* on tensors of their own, as an optimizer
does to each parameter, are one kernel over many tensors whatever their sizes; where they only wait for inputs they are
gathered from wherever they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

from inductor_gen.kernel.ir import Call, Kernel, Step
from inductor_gen.loops.graph import Node
from prims.records import record

__all__ = ["LEAST", "Launch", "launches"]

#: Different kernels in one launch, and kernels of one kind that are worth a table of their buffers.
MOST, LEAST = 16, 4


@record(eq=False)
class Launch:
    """Kernels that run together and do not depend on each other."""

    kernels: tuple[Kernel, ...]

    @property
    def reads(self) -> tuple[Node, ...]:
        """The buffers that the kernels need."""
        return tuple(dict.fromkeys(n for k in self.kernels for n in k.reads))

    @property
    def writes(self) -> tuple[Node, ...]:
        """The buffers that begin with it."""
        return tuple(dict.fromkeys(n for k in self.kernels for n in k.writes))

    @property
    def overwrites(self) -> tuple[tuple[Node, Node], ...]:
        """What may share memory: a kernel's pairs, unless another one beside it reads the buffer."""
        readers: dict[Node, int] = {}
        for kernel in self.kernels:
            for node in kernel.reads:
                readers[node] = readers.get(node, 0) + 1
        return tuple(pair for k in self.kernels for pair in k.overwrites if readers[pair[1]] == 1)


def launches(
    steps: Sequence[Step], together: Callable[[Kernel], bool],
    alike: Callable[[Kernel], tuple[Hashable, bool] | None] = lambda _: None,
) -> list[Launch | Call]:  # fmt: skip
    """The steps, kernels as launches: independent neighbours that are to run ``together`` as one, and independent
    kernels of one kind as one. ``alike`` gives a kernel's kind, and whether it may be put off until others of its kind
    run, not only beside them; None where it is like no other."""
    found = {step: kind for step in steps if isinstance(step, Kernel) and (kind := alike(step)) is not None}
    count = Counter(kind for kind, _ in found.values())
    kinds = {kernel: pair for kernel, pair in found.items() if count[pair[0]] >= LEAST}
    return list(_grouped(_gathered(steps, kinds) if kinds else steps, together))


def _gathered(steps: Sequence[Step], kinds: dict[Kernel, tuple[Hashable, bool]]) -> list[Step | list[Kernel]]:
    """The steps, those of a kind put off until the last of them where nothing between asks for it: lists of them."""
    placed: list[list[Any]] = []  # from the last to the first
    latest: dict[Hashable, int] = {}  # the place of a kind's latest list
    touched: dict[Node, int] = {}  # the first place so far at which something touches a buffer, and that changes it
    changed: dict[Node, int] = {}
    for step in reversed(steps):
        at = len(placed)
        kind, anywhere = kinds.get(step, (None, False))  # type: ignore[arg-type]
        if kind is not None:
            place = latest.get(kind, -1)
            near = anywhere or place == at - 1
            if place >= 0 and near and _may_wait(step, place, touched, changed):
                at = place
            latest[kind] = at
        if at == len(placed):
            placed.append([])
        placed[at].append(step)
        writes = (*step.writes, *step.updates)
        touched.update((n, max(at, touched.get(n, -1))) for n in (*step.reads, *writes))
        changed.update((n, max(at, changed.get(n, -1))) for n in writes)
    found: list[Step | list[Kernel]] = []
    for part in reversed(placed):
        found += [part[::-1]] if len(part) >= LEAST else part[::-1]
    return found


def _may_wait(step: Step, until: int, touched: dict[Node, int], changed: dict[Node, int]) -> bool:
    """May a step run at a later place? Places are counted from the end: what is later has a smaller number."""
    writes = (*step.writes, *step.updates)
    return all(touched.get(n, -1) < until for n in writes) and all(changed.get(n, -1) < until for n in step.reads)


def _grouped(parts: Iterable[Step | list[Kernel]], together: Callable[[Kernel], bool]) -> Iterator[Launch | Call]:
    group: list[Kernel] = []
    written: set[Node] = set()
    touched: set[Node] = set()
    for part in parts:
        some = part if isinstance(part, list) else [part] if isinstance(part, Kernel) and together(part) else []
        full = len(group) + len(some) > MOST and not isinstance(part, list)
        if group and not (some and not full and _joins(some, group, written, touched)):
            yield Launch(tuple(group))
            group, written, touched = [], set(), set()
        if isinstance(part, Call):
            yield part
        elif not some:
            yield Launch((part,))  # type: ignore[arg-type]
        else:
            group.extend(some)
            written.update(n for k in some for n in (*k.writes, *k.updates))
            touched.update(n for k in some for n in k.touched())
    if group:
        yield Launch(tuple(group))


def _joins(some: list[Kernel], group: list[Kernel], written: set[Node], touched: set[Node]) -> bool:
    """May kernels run beside those of a group?"""
    if some[0].device != group[0].device:
        return False
    reads = (n for k in some for n in k.touched())
    return written.isdisjoint(reads) and touched.isdisjoint(n for k in some for n in (*k.writes, *k.updates))
