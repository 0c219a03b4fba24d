"""A lowered graph: what is left to do is to compile its sources and to write the function that runs them."""

from __future__ import annotations

from collections.abc import Mapping

from inductor_gen.codegen.renderer import KernelSource
from inductor_gen.kernel import ir
from inductor_gen.kernel.ir import Call
from inductor_gen.layout.record import Layout, Prepared, whole
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import Hint
from inductor_gen.plan.launches import Launch
from inductor_gen.plan.memory import MemoryPlan
from inductor_gen.plan.peak import Footprint, footprint
from prims.ir import Envelope
from prims.options import Options
from prims.records import record

__all__ = ["Lowered", "Rendered"]


@record(eq=False)
class Rendered:
    """A launch with the sources that run for it, in order."""

    launch: Launch
    sources: tuple[KernelSource, ...]

    def written(self) -> list[Node]:
        """The buffers that it writes, those of partial results among them, each once."""
        return list(dict.fromkeys(whole(n) for s in self.sources for n in s.buffers[: s.outputs]))

    def footprint(self) -> Footprint:
        """What it makes and needs, the buffers of partial results among it, which nobody else needs."""
        known = {n for kernel in self.launch.kernels for n in kernel.touched()}
        return footprint(self.launch, [n for n in self.written() if n not in known])


    def moves_nothing(self, renewed: Mapping[Node, Node]) -> bool:
        """Does it only copy inputs to where they are?"""
        bodies = [nest.body for kernel in self.launch.kernels for nest in kernel.nests]
        copies = [(body.stores[0].buffer, ir.copied(body)) for body in bodies if ir.copied(body) is not None]
        return bool(bodies) and len(copies) == len(bodies) and all(renewed.get(a) is b for a, b in copies)


@record(eq=False)
class Lowered:
    """A graph as launches and calls in order.

    Attributes:
        layouts: of every buffer.
        calls: what runs, in order.
        memory: which of them share memory, and where it is given back.
        precision: that of the float32 products which generated kernels compute; None where there are none.
    """

    env: Envelope
    options: Options
    hint: Hint
    prepared: Prepared
    layouts: Mapping[Node, Layout]
    calls: tuple[Rendered | Call, ...]
    memory: MemoryPlan
    precision: str | None = None

    def sources(self) -> list[KernelSource]:
        """The kernels' sources, in order."""
        return [s for call in self.calls if isinstance(call, Rendered) for s in call.sources]
