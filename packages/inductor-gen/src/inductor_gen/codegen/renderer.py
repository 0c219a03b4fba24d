"""The interface between scheduled loop nests and a target language."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from inductor_gen.kernel.nest import Nest
from inductor_gen.loops.graph import Node
from inductor_gen.unit import Unit
from prims.records import record
from prims.spec.expr import Expr

__all__ = ["KernelSource", "Renderer", "Unit", "describe", "kernel_name", "rebound"]


@record(kw_only=True)
class KernelSource(Unit):
    """A kernel's text, sizes and pointers as parameters, so that equal computations share one kernel, and what a call
    of it passes.

    Attributes:
        buffers: the buffers whose pointers are passed, in order; the first ``outputs`` of them are written.
        sizes: the int64 parameters, in order (floats travel as the bits of a double).
        ops: the operators fused, in order.
        loops: number of loop nests.
        language: ``"c"`` or ``"triton"``.
        grid: on a GPU the number of programs, along two axes.
        words: the numbers with which the table of a kernel over many tensors begins; the addresses of its buffers, but
            the first one, which is the table, follow them there and are no parameters of the kernel.
    """

    buffers: tuple[Node, ...]
    outputs: int
    sizes: tuple[Expr, ...]
    ops: tuple[str, ...]
    loops: int
    language: str = "c"
    grid: tuple[Expr, ...] = ()
    words: tuple[int, ...] = ()


class Renderer(Protocol):
    """Turns a scheduled loop nest into source text."""

    def render(self, nest: Nest) -> tuple[KernelSource, ...]:
        """The kernels of a nest, to run in order.

        Raises:
            Unsupported: the language cannot express something in it.
        """
        ...

    def together(self, pieces: Sequence[Sequence[KernelSource]]) -> Sequence[KernelSource]:
        """The kernels of several nests that do not depend on each other, in as few launches as pays."""
        ...


def describe(nest: Nest, text: str) -> tuple[str, str, tuple[str, ...]]:
    """``name, comment, ops`` of a kernel whose text (with ``KERNEL`` for its name) is given."""
    ops = tuple(n.op for n in nest.body.nodes)
    return kernel_name(ops, text), _comment(nest, ops), ops


def _comment(nest: Nest, ops: Sequence[str]) -> str:
    lines = ["ops: " + " ".join(ops[:40]) + (" ..." if len(ops) > 40 else "")]
    places = dict.fromkeys(str(node.source) for node in nest.body.nodes if node.source is not None)
    lines += [f"from {where}" for where in list(filter(None, places))[:12]]
    return "\n".join(lines).replace("*/", "* /")


def rebound(source: KernelSource, nodes: Mapping[Node, Node], nest: Nest) -> KernelSource:
    """A source for a nest that is as the one it was made of, but for its nodes."""
    buffers = tuple([nodes[n] for n in source.buffers])
    return replace(source, buffers=buffers, comment=_comment(nest, source.ops))


def kernel_name(ops: Sequence[str], text: str) -> str:
    """The name of a kernel of these operators: some of them, and a digest of its text."""
    return "_".join(["k", *list(dict.fromkeys(ops))[:6], hashlib.sha256(text.encode()).hexdigest()[:12]])
