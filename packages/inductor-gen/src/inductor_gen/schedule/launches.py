"""Neighbouring small kernels that do not depend on each other are launched as one, where the language can."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from inductor_gen.codegen.renderer import KernelSource
from inductor_gen.codegen.triton import TritonSource
from inductor_gen.codegen.tritonbranch import branched, may_branch
from inductor_gen.device.record import Asked
from inductor_gen.fuse.cluster import Cluster
from inductor_gen.loops.graph import Node
from inductor_gen.schedule.loopnest import Hint

if TYPE_CHECKING:
    from inductor_gen.pipeline import ExternCall, KernelCall

__all__ = ["launched_together"]

Pair = tuple["KernelCall | ExternCall", "Cluster | None"]


class _Group:
    """Calls in a row that may be one."""

    def __init__(self, hint: Hint, owner: Callable[[Node], Node], devices: Asked) -> None:
        self.hint = hint
        self.devices = devices
        self.owner = owner
        self.pairs: list[Pair] = []
        self.written: set[Node] = set()
        self.touched: set[Node] = set()

    def takes(self, parts: tuple[KernelSource, ...]) -> bool:
        """May the kernels run beside those that are here already?"""
        made = {self.owner(n) for p in parts for n in p.buffers[: p.outputs]}
        used = {self.owner(n) for p in parts for n in p.buffers}
        return not used & self.written and not made & self.touched

    def add(self, pair: Pair, parts: tuple[KernelSource, ...]) -> None:
        self.pairs.append(pair)
        self.written.update(self.owner(n) for p in parts for n in p.buffers[: p.outputs])
        self.touched.update(self.owner(n) for p in parts for n in p.buffers)

    def small(self, parts: tuple[KernelSource, ...]) -> bool:
        """Do the kernels move no more than their device could while two of them are being started?"""
        if not parts or not all(may_branch(p) for p in parts):
            return False
        nodes = dict.fromkeys(n for p in parts for n in p.buffers)
        moved = sum(math.prod(map(self.hint, n.shape)) * n.dtype.itemsize for n in nodes if n.dtype is not None)
        return moved <= 2 * self.devices(_device(parts)).launch_bytes

    def close(self) -> Iterator[Pair]:
        """The calls, as one where that is possible."""
        pairs, self.pairs = self.pairs, []
        self.written, self.touched = set(), set()
        alike: dict[int, list[Pair]] = {}
        for pair in pairs:
            alike.setdefault(pair[0].parts[0].warps, []).append(pair)  # type: ignore[union-attr]
        for some in alike.values():
            sources = [p for call, _ in some for p in call.parts]  # type: ignore[union-attr]
            made = branched(sources) if len(some) > 1 else sources
            if len(made) >= len(sources):
                yield from some
            else:
                yield type(some[0][0])(tuple(made)), Cluster(-1, loops=False)  # type: ignore[arg-type]


def launched_together(
    calls: Iterable[Pair], hint: Hint, owner: Callable[[Node], Node], devices: Asked
) -> Iterator[Pair]:
    """The calls, each with its cluster, as they come, neighbouring small and independent ones as one.

    ``owner`` gives the node whose buffer a node has. What was made of several calls comes with a cluster that is no
    loop nest, so that nothing later takes it for one.
    """
    group = _Group(hint, owner, devices)
    for pair in calls:
        parts: Any = getattr(pair[0], "parts", ())
        if not group.small(parts):
            yield from group.close()
            yield pair
            continue
        if group.pairs and not (group.takes(parts) and _device(parts) == _device(group.pairs[0][0].parts)):  # type: ignore[union-attr]
            yield from group.close()
        group.add(pair, parts)
    yield from group.close()


def _device(parts: tuple[KernelSource, ...]) -> Any:
    first = parts[0]
    assert isinstance(first, TritonSource)
    return first.buffers[0].device
