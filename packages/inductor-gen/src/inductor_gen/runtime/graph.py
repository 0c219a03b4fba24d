"""What a compilation returns: a graph's function, with what there is to know about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from inductor_gen.runtime.launch import Layout, Program
from inductor_gen.runtime.products import Product
from inductor_gen.runtime.steps import Step
from inductor_gen.unit import Least
from prims.artefact import Artefact, NotPortable
from prims.debug import keep
from prims.logs import say
from prims.options import Options
from prims.records import record
from prims.report import Report

__all__ = ["CompiledGraph", "Kernel", "Made", "tell"]


@record
class Kernel:
    """A generated kernel: its name, the primitives fused into it, its source and the number of its loop nests.

    ``parts``: how many kernels it is made of that share nothing but the launch. ``lines``: the user's lines that it
    computes. ``read``, ``written``: bytes from and to memory, each element once, for likely sizes. ``launches``: the
    names of the kernels that are launched for it, in order; each is a step of the graph.
    """

    name: str
    ops: tuple[str, ...]
    source: str
    loops: int = 1
    parts: int = 1
    lines: tuple[str, ...] = ()
    read: int = 0
    written: int = 0
    launches: tuple[str, ...] = ()


@record(eq=False)
class Made:
    """What a graph's function is made of again, with its text.

    Attributes:
        values: what the text names beside helpers and kernels: constants, operators' functions, devices.
        programs: what it launches, by the name in the text.
        launcher: the address of the function by which programs become callable.
        flags: of the compiler that made the kernels.
        rounds: how its numbers are rounded: ``Options.numerics``, and the policies about bits.
        gpu: where its Triton kernels run, if it has some.
    """

    values: Mapping[str, Any]
    programs: Mapping[str, Program | Layout | Product]
    launcher: int
    flags: tuple[str, ...]
    rounds: tuple[str, ...]
    gpu: torch.device | None = None


class CompiledGraph:
    """A callable of the envelope's flat inputs (tensors, ints for sizes) that returns the list of flat outputs.

    Attributes:
        source: the Python text of the function that runs the graph.
        kernels: the generated kernels, one entry per launch, in order.
        externs: names of the operators called, in order.
        compiled: how many kernels the C compiler had to be asked for (0 from a warm cache).
        count: how many inputs it takes.
        made: what its function is made of, or why it cannot be stored.
        steps: the kernels and operators that run, in order.
        least: the bytes that it has to move, however it is fused.
    """

    def __init__(
        self, call: Callable[[list[Any]], list[Any]], source: str, kernels: Sequence[Kernel], externs: Sequence[str],
        compiled: int, count: int = 0, made: Any = "nothing is known of its parts", steps: Sequence[Step] = (),
        least: Least = Least(),  # noqa: B008  (it never changes)
    ) -> None:  # fmt: skip
        self._call = call
        self.count = count
        self.source = source
        self.kernels = tuple(kernels)
        self.externs = tuple(externs)
        self.compiled = compiled
        self.made = made
        self.steps = tuple(steps)
        self.least = least

    def __call__(self, *inputs: Any) -> list[Any]:
        return self._call(inputs)  # type: ignore[arg-type]

    def boxed(self, inputs: list[Any]) -> list[Any]:
        """The same, emptying ``inputs``: what nobody else holds is freed after its last use."""
        return self._call(inputs)

    def artefact(self) -> Artefact:
        """What another process makes this graph of again (``inductor_gen.runtime.stored.load``).

        Raises:
            NotPortable: it is tied to this process; the reason says by what.
        """
        if isinstance(self.made, str):
            raise NotPortable(f"a compiled graph cannot be stored: {self.made}")
        from inductor_gen.runtime.stored import artefact_of_graph

        return artefact_of_graph(self)

    def surviving_inputs(self, error: BaseException) -> list[Any] | None:
        """The inputs of the :meth:`boxed` call that raised ``error``, unless some were freed already.

        A graph never writes to its inputs, or (``in_place``) only what it would write again, or after everything that
        may fail, so that whoever has them all can compute the results in another way.
        """
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code is not getattr(self._call, "__code__", None):
            trace = trace.tb_next
        if trace is None:
            return None
        found = trace.tb_frame.f_locals
        inputs = [found.get(f"a{k}") for k in range(self.count)]
        return None if any(value is None for value in inputs) else inputs

    def __repr__(self) -> str:
        return f"CompiledGraph({len(self.kernels)} kernels, {len(self.externs)} extern calls)"


def tell(graph: CompiledGraph, options: Options, report: Report, distinct: int) -> None:
    """Record a graph's kernels, ``distinct`` ones with the launcher, and the operators that it calls."""
    texts = lambda: "\n".join([graph.source, *(k.source for k in graph.kernels)])
    keep(options, report, "generated code", texts, log="")
    found = distinct - graph.compiled
    report.cache(found, graph.compiled)
    say("cache", None, lambda: f"{distinct} kernels: {found} found, {graph.compiled} compiled")
    moved = sum(step.read + step.written for step in graph.steps)
    number = report.moves(graph.least.inputs, graph.least.parameters, graph.least.outputs, moved)
    for k in graph.kernels:
        report.kernel(
            k.name, k.ops, k.loops, k.parts, lines=k.lines, source=k.source, read=k.read, written=k.written,
            graph=number, launches=k.launches,
        )  # fmt: skip
        say("code", report, lambda k=k: _told(k))  # type: ignore[misc]
    say("code", report, lambda: f"the function that runs the graph\n{graph.source}")
    for step in graph.steps:
        if step.kind == "library":
            report.extern(step.name, read=step.read, written=step.written, graph=number)


def _told(kernel: Kernel) -> str:
    """A kernel for the log."""
    head = [f"kernel {kernel.name}: {' '.join(kernel.ops)}", *(f"  of {line}" for line in kernel.lines)]
    return "\n".join([*head, kernel.source])
