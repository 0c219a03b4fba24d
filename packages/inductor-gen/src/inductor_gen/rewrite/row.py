"""A rewrite of the typed graph as a row: what its match may ask, and how it makes new values where a node stands, in
its place or beside it.

An editor is a handler (``prims.handlers``): ``edit.permute(x, (1, 0))`` checks and types a primitive as it makes it,
``edit.aten(torch.ops.aten.mm.default, a, b)`` is an operator. What is left without readers is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from typing import Any

import torch

from inductor_gen.device.record import Asked, Device
from inductor_gen.loops.graph import Graph, Node, kind_of, overload_name, runs_once
from inductor_gen.loops.index import Hint
from prims.handlers import BaseHandler
from prims.handlers.base import map_values
from prims.ops import PrimOp
from prims.records import record
from prims.spec import TensorSpec, infer

__all__ = ["Context", "Editor", "Row", "specs"]


@record
class Context:
    """What is known besides the graph.

    Attributes:
        hint: a likely number for a size.
        devices: the record of a device.
        numerics: that of the options.
        masks: verdicts about attention masks, by the operator's place in the graph.
        training: are values saved for a backward pass, or does this graph read such?
        results: the nodes that the graph gives.
        deterministic: is everything to have the same bits on every run?
    """

    hint: Hint
    devices: Asked
    numerics: str = "fast"
    masks: Mapping[int, str] = field(default_factory=dict)
    training: bool = False
    results: set[Node] = field(default_factory=set)
    deterministic: bool = False

    def device(self, node: Node) -> Device:
        """The record of the device that a node's value lives on."""
        return self.devices(node.device or torch.device("cpu"))


@record
class Row:
    """A rewrite.

    Attributes:
        name: what the text of the graph and fuel call it.
        match: ``(node, context) -> what apply needs``, None where it does not apply.
        apply: ``(editor, node, what match found)``.
        numerics: the strictest setting that allows it.
        required: it is made without fuel too, as later stages rely on it.
        ops: the operators of the nodes that it may match; none where that may be any.
    """

    name: str
    match: Callable[[Node, Context], Any]
    apply: Callable[[Any, Node, Any], None]
    numerics: str = "fast"
    required: bool = False
    ops: Collection[str] = ()


class Editor(BaseHandler):
    """Makes nodes before the one that is looked at, ``at``.

    Attributes:
        results: the nodes that the graph gives.
        nodes: the graph's nodes up to there, with those made.
        gone: the nodes that nothing needs any more.
    """

    at: Node

    def __init__(self, graph: Graph, results: set[Node]) -> None:
        super().__init__()
        self.graph = graph
        self.results = results
        self.nodes: list[Node] = []
        self.gone: set[Node] = set()
        self.made: list[Node] = []

    def prim(self, op: PrimOp, *args: Any, **kwargs: Any) -> Node:
        """A primitive of nodes and numbers."""
        bound = op.bind(*args, **kwargs)
        return self._made(kind_of(op), op.name, bound, op.meta(*specs(bound)), op)

    def aten(self, op: torch._ops.OpOverload, *args: Any, spec: Any = None, **kwargs: Any) -> Any:
        """An operator; of several results there is a tuple."""
        if spec is None:
            spec = infer(op, specs(args), specs(kwargs))
        made = self._made("extern", overload_name(op), args, spec, op, kwargs)
        if not isinstance(spec, (tuple, list)):
            return made
        return tuple(
            self._made("item", "getitem", (made, i), s, None) if isinstance(s, TensorSpec) else s
            for i, s in enumerate(spec)
        )

    def call(self, function: Callable[..., Any], *args: Any, spec: TensorSpec) -> Node:
        """A function that stands for a call of a library."""
        return self._made("extern", f"library.{function.__name__}", args, spec, function)

    def _made(self, kind: str, op: str, args: Any, spec: Any, target: Any, kwargs: Any = None) -> Node:
        node = Node(self.at.id, kind, op, tuple(args), spec, self.at.source)
        node.target, node.kwargs, node.late = target, kwargs or {}, self.at.late
        node.link()
        self.nodes.append(node)
        self.made.append(node)
        return node

    def finish(self) -> None:
        """Drop what was made and is not read, such as further results of an operator."""
        for node in reversed(self.made):
            self._drop(node)

    def replace(self, old: Node, new: Node) -> None:
        """Let whatever takes ``old`` take ``new``."""
        swap = lambda x: new if x is old else x
        for user in list(old.users):
            self.change(user, map_values(swap, user.args), map_values(swap, user.kwargs))
        if old in self.results:
            self.graph.outputs = [swap(x) for x in self.graph.outputs]
            self.results.remove(old)
            self.results.add(new)
        self._drop(old)

    def change(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        """Give a node other arguments."""
        before = node.ins
        node.args, node.kwargs = args, node.kwargs if kwargs is None else kwargs
        for x in before:
            x.users.remove(node)
        node.link()
        for x in before:
            self._drop(x)

    def _drop(self, node: Node) -> None:
        """Leave out a node that nothing needs, and what was there for it alone."""
        todo = [node]
        while todo:
            x = todo.pop()
            needed = x.users or x in self.results or x in self.gone or x.kind in ("input", "size", "constant")
            if not needed and not runs_once(x):
                self.gone.add(x)
                for operand in x.ins:
                    operand.users.remove(x)
                todo += x.ins


def specs(tree: Any) -> Any:
    """Arguments with the metadata of logical arrays in the place of nodes."""
    logical = lambda spec: TensorSpec(spec.shape, spec.dtype, spec.device) if isinstance(spec, TensorSpec) else spec
    return map_values(lambda x: logical(x.spec) if isinstance(x, Node) else x, tree)
