"""A lowered graph: what is left to do is to compile its sources and to write the function that runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inductor_gen.codegen.renderer import KernelSource
from inductor_gen.kernel import ir
from inductor_gen.kernel.ir import Call, nbytes
from inductor_gen.kernel.traffic import Alike, Traffic, least, together, traffic
from inductor_gen.layout.record import Layout, Prepared, whole
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import Hint
from inductor_gen.plan.launches import Launch
from inductor_gen.plan.memory import MemoryPlan
from inductor_gen.plan.peak import Footprint, footprint
from inductor_gen.unit import Least
from prims.ir import Envelope
from prims.options import Options
from prims.records import record

__all__ = ["KEPT", "Lowered", "Rendered"]

#: Kinds of inputs that outlive a call.
KEPT = ("parameter", "buffer", "constant")


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

    def traffic(self, prepared: Prepared, hint: Hint, known: Alike) -> tuple[Traffic, ...]:
        """What each source moves: what its kernels do with the buffers that it takes, and partial results whole."""
        kernels = self.launch.kernels
        whole_launch = together([traffic(kernel, prepared, hint, known) for kernel in kernels])
        if len(self.sources) == 1:
            return (whole_launch,)
        return tuple(_share(source, whole_launch, prepared, hint) for source in self.sources)

    def moves_nothing(self, renewed: Mapping[Node, Node]) -> bool:
        """Does it only copy inputs to where they are?"""
        bodies = [nest.body for kernel in self.launch.kernels for nest in kernel.nests]
        copies = [(body.stores[0].buffer, ir.copied(body)) for body in bodies if ir.copied(body) is not None]
        return bool(bodies) and len(copies) == len(bodies) and all(renewed.get(a) is b for a, b in copies)


def _share(source: KernelSource, launch: Traffic, prepared: Prepared, hint: Hint) -> Traffic:
    made, taken = (
        dict.fromkeys(map(prepared.storage, some))
        for some in (source.buffers[: source.outputs], source.buffers[source.outputs :])
    )
    known = {*launch.reads, *launch.writes}
    reads = {n: launch.reads.get(n, 0) if n in known else nbytes(n, hint) for n in taken}
    reads |= {n: launch.reads[n] for n in made if n in launch.reads}
    return Traffic(reads, {n: launch.writes.get(n, 0) if n in known else nbytes(n, hint) for n in made})


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

    def traffic(self) -> list[tuple[Traffic, ...]]:
        """What the sources of each launch, or its operator, move."""
        given = self.prepared, self.hint, Alike()
        return [c.traffic(*given) if isinstance(c, Rendered) else (traffic(c, *given),) for c in self.calls]

    def least(self, moved: Sequence[Sequence[Traffic]]) -> Least:
        """The least that the graph has to move, of what :meth:`traffic` gives."""
        steps = [together(some) for some in moved]
        inputs = [(n, d.kind in KEPT) for n, d in zip(self.prepared.graph.inputs, self.env.inputs, strict=True)]
        inputs += [(n, True) for n in self.prepared.graph.nodes if n.kind == "constant"]
        return least(steps, inputs, self.prepared.returned(), self.hint)

    def sources(self) -> list[KernelSource]:
        """The kernels' sources, in order."""
        return [s for call in self.calls if isinstance(call, Rendered) for s in call.sources]
