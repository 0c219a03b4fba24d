"""Walking one graph while emitting another through a `GraphHandler`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from prims.handlers import GraphHandler, Rewrite
from prims.ir.envelope import Envelope
from prims.ir.passes import Fuel
from prims.lower.clean import erase_dead
from prims.spec import TensorSpec

Emit = Callable[[torch.fx.Node, tuple[Any, ...], dict[str, Any]], Any]


class Rebuild:
    """One pass over an envelope's graph into a new, hash-consed graph.

    `values` maps each old node to what it became: a value, a tuple of values, or a number.
    """

    def __init__(
        self, env: Envelope, claims: frozenset[str], rewrites: Mapping[str, Sequence[Rewrite]], fuel: Fuel
    ) -> None:
        self.env = env
        self.graph = torch.fx.Graph()
        self.p = GraphHandler(self.graph, claims=claims, rewrites=rewrites, fuel=fuel)
        self.values: dict[torch.fx.Node, Any] = {}

    def mapped(self, arg: Any) -> Any:
        """An argument with old nodes replaced by what they became."""
        if type(arg) is torch.fx.Node:
            return self.values[arg]
        if isinstance(arg, (list, tuple)):
            return tuple([self.mapped(a) for a in arg])
        if isinstance(arg, dict):
            return {k: self.mapped(v) for k, v in arg.items()}
        return arg

    def run(self, emit: Emit) -> Envelope:
        """Emit every node and the output; the envelope with the new graph."""
        descriptors = iter(self.env.inputs)
        for node in self.env.graph.nodes:
            if node.op == "placeholder":
                spec = next(descriptors).spec  # a size by the symbol that it binds, whatever it is known to be
                known = node.meta.get("spec") if isinstance(spec, TensorSpec) else None
                self.values[node] = self.p.placeholder(str(node.target), spec if known is None else known)
            elif node.op == "get_attr":
                copy = self.graph.get_attr(str(node.target))
                copy.meta.update(node.meta)
                self.values[node] = self.p.value(copy)
            elif node.op == "output":
                self._output(node)
            else:
                self.p.source = node.meta.get("source")
                self.p.late = node.meta.get("late")
                args = tuple([self.mapped(a) for a in node.args])
                kwargs = {k: self.mapped(v) for k, v in node.kwargs.items()} if node.kwargs else {}
                self.values[node] = emit(node, args, kwargs)
        return self.env.replace(graph=self.graph)

    def _output(self, node: torch.fx.Node) -> None:
        results = [getattr(v, "node", v) for v in self.mapped(node.args[0])]
        self.graph.output(tuple(results))
        # Rewrites leave their inputs behind; the graph is new, so they can go without a copy.
        erase_dead(self.graph)
