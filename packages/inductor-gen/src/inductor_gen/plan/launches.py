"""Neighbouring small kernels that do not depend on each other are launched as one, where the device can."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from inductor_gen.kernel.ir import Call, Kernel, Step
from inductor_gen.loops.graph import Node
from prims.records import record

__all__ = ["Launch", "launches"]

#: Kernels in one launch.
MOST = 16


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


def launches(steps: Iterable[Step], together: Callable[[Kernel], bool]) -> list[Launch | Call]:
    """The steps, kernels as launches: independent neighbours that are to run ``together``, as one."""
    return list(_grouped(steps, together))


def _grouped(steps: Iterable[Step], together: Callable[[Kernel], bool]) -> Iterator[Launch | Call]:
    group: list[Kernel] = []
    written: set[Node] = set()
    touched: set[Node] = set()
    for step in steps:
        small = isinstance(step, Kernel) and together(step)
        if group and not (small and _joins(step, group, written, touched)):  # type: ignore[arg-type]
            yield Launch(tuple(group))
            group, written, touched = [], set(), set()
        if isinstance(step, Call):
            yield step
        elif not small:
            yield Launch((step,))
        else:
            group.append(step)
            written.update(step.writes, step.updates)
            touched.update(step.touched())
    if group:
        yield Launch(tuple(group))


def _joins(kernel: Kernel, group: list[Kernel], written: set[Node], touched: set[Node]) -> bool:
    """May a kernel run beside those of a group?"""
    if len(group) >= MOST or kernel.device != group[0].device:
        return False
    return written.isdisjoint(kernel.touched()) and touched.isdisjoint((*kernel.writes, *kernel.updates))
