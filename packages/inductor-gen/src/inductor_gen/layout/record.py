"""Where values lie in memory: layouts of buffers, strided views of them, and a whole graph laid out."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import field
from typing import Any, NamedTuple

import torch

from inductor_gen.loops.graph import Graph, Node
from inductor_gen.loops.index import ONE, ZERO, contiguous_strides, joined, product
from inductor_gen.loops.views import Index
from prims.records import record
from prims.spec import expr as ex
from prims.spec.expr import Expr

__all__ = ["Layout", "Prepared", "ViewRef", "channels_last", "extent", "part_of", "strides_of", "whole"]


class Layout(NamedTuple):
    """Strides in elements of a buffer; the pointer that a kernel gets is that of element 0."""

    strides: tuple[Expr, ...]

    def position(self, index: Index) -> Expr:
        """The element's distance from element 0."""
        total = ZERO
        for i, stride in zip(index, self.strides, strict=True):
            if i is not ZERO:
                total = ex.add(total, ex.mul(i, stride))
        return joined(total)


@record
class ViewRef:
    """A strided view of a buffer; ``offset`` counts from the buffer's element 0."""

    base: Node
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr


def part_of(buffer: Node, value: Node, start: int) -> Node:
    """The part of a buffer, from its element ``start`` on, that is a value's; where, its layout says."""
    return Node(buffer.id, "part", "part", (buffer, start), value.spec, value.source)


def whole(node: Node) -> Node:
    """The buffer that a node is a part of, or it itself."""
    return node.args[0] if node.kind == "part" else node


@record(frozen=False)
class Prepared:
    """A graph with copies in place.

    Attributes:
        layouts: of every buffer: inputs, extern results, and nodes that kernels write.
        externs: per extern node, its arguments with a ViewRef for each tensor.
        outputs: per graph output a ViewRef, or the literal or size it is.
        scattered: scatter node -> the copy, or the input, whose buffer it updates.
        tangents: the inputs of a backward graph that are gradients of the forward's outputs.
        freed: the inputs that are given up after their last use: all but parameters and what else outlives the call.
        images: matrices ``[images * pixels, channels]`` that are images with channels last, and the images' shapes.
        renewed: the buffers of inputs' new values that may be the inputs', each with its input.
        renewing: the copies of inputs that scatters make their new values of, each with its input.
        held: what is scattered into those, made of what the inputs held before.
        forms: how each convolution on the CPU is computed (``extern.cpu.conv_form``), where the layouts allow a choice.
    """

    graph: Graph
    layouts: dict[Node, Layout] = field(default_factory=dict)
    externs: dict[Node, tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=dict)
    outputs: list[Any] = field(default_factory=list)
    scattered: dict[Node, Node] = field(default_factory=dict)
    tangents: set[Node] = field(default_factory=set)
    freed: set[Node] = field(default_factory=set)
    renewed: dict[Node, Node] = field(default_factory=dict)
    renewing: dict[Node, Node] = field(default_factory=dict)
    held: set[Node] = field(default_factory=set)
    forms: dict[Node, str] = field(default_factory=dict)
    images: dict[Node, tuple[Expr, ...]] = field(default_factory=dict)

    def call_of(self, node: Node) -> tuple[tuple[Any, ...], str | None]:
        """An operator's arguments, and how it is to be computed where there is a choice."""
        return self.externs[node][0], self.forms.get(node)

    def storage(self, node: Node) -> Node:
        """The node whose buffer holds a node's value."""
        return whole(self.scattered.get(node, node))

    def updates(self) -> list[Node]:
        """The scatters that write an input."""
        return [node for node, target in self.scattered.items() if target.kind == "input"]

    def returned(self) -> list[Node]:
        """The buffers that outlive the graph."""
        return list(dict.fromkeys(self.storage(out.base) for out in self.outputs if isinstance(out, ViewRef)))

    def kept(self) -> set[Node]:
        """Nodes that must be in memory whatever fusion does: outputs, and what operators and scatters take."""
        found = {out.base for out in self.outputs if isinstance(out, ViewRef)}
        for node in self.graph.nodes:
            if node.kind in ("extern", "item"):
                found.update(node.ins)
        return found | set(self.scattered.values()) | self.held


def channels_last(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The strides of an image of this shape with its channels innermost."""
    _, c, h, w = shape
    return (product((c, h, w)), ONE, product((w, c)), c)


def strides_of(layouts: Mapping[Node, Layout], node: Node) -> tuple[Expr, ...]:
    """A buffer's strides: row-major ones where none were chosen (partial results between two kernels)."""
    layout = layouts.get(node)
    return contiguous_strides(node.shape) if layout is None else layout.strides


@functools.lru_cache(maxsize=512)
def extent(shape: tuple[Expr, ...], strides: tuple[Expr, ...], dtype: torch.dtype) -> Expr:
    """The bytes from a tensor's first element to the end of its last."""
    if any(n is ZERO for n in shape):
        return ZERO
    total = ONE
    for n, stride in zip(shape, strides, strict=True):
        total = ex.add(total, ex.mul(ex.sub(n, ONE), stride))
    return ex.mul(total, ex.const(dtype.itemsize))
