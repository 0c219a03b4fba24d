"""Turning an envelope into a module that runs, symbolic sizes included."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from prims.ir.printable import make_printable
from prims.ir.symbols import expr_of, made_symbols, symbols_in
from prims.spec.expr import bits_of_float

if TYPE_CHECKING:
    from prims.ir.envelope import Envelope

__all__ = ["evaluate_size", "make_module", "value_made"]


def evaluate_size(size: Any, names: tuple[str, ...], *values: int | float) -> Any:
    """The value of a symbolic int, float or bool, given its symbols' values."""
    expr = expr_of(size)
    return expr.evaluate(dict(zip(names, values, strict=True)))


class _Size:
    """A size expression as a callable of its symbols' values, so that ``fx`` can hold it in a target."""

    def __init__(self, size: Any, names: tuple[str, ...]) -> None:
        self.size = size
        self.names = names
        self.__name__ = "size_expression"
        self.__qualname__ = "size_expression"
        self.__module__ = __name__

    def __call__(self, *values: int | float) -> Any:
        return evaluate_size(self.size, self.names, *values)


def make_module(env: Envelope) -> torch.fx.GraphModule:
    """A ``GraphModule`` over the flat inputs of ``env``.

    In the aten and prim dialects a symbolic size is an expression, not a node; here it becomes a node that reads
    the bound symbols from the inputs, so that the module runs on any sizes.
    """
    root = dict(env.constants)
    if not len(env.symbols) or env.dialect == "torch":
        graph, _ = env.copy_graph()
        make_printable(graph)
        module = torch.fx.GraphModule(root, graph)
        if env.dialect == "torch":
            module.meta["envelope"] = env  # as capture hands it over
        return module
    graph = torch.fx.Graph()
    mapping: dict[torch.fx.Node, torch.fx.Node] = {}
    symbol_nodes: dict[str, torch.fx.Node] = {}
    expression_nodes: dict[Any, torch.fx.Node] = {}

    def resolve(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return mapping[value]
        if isinstance(value, (tuple, list)):
            return type(value)(resolve(item) for item in value)
        if isinstance(value, dict):
            return {key: resolve(item) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(resolve(value.start), resolve(value.stop), resolve(value.step))
        names = tuple(sorted(symbols_in(value)))
        if not names:
            return value
        key = expr_of(value)
        if key not in expression_nodes:
            args = tuple(symbol_nodes[name] for name in names)
            expression_nodes[key] = graph.call_function(_Size(value, names), args)
        return expression_nodes[key]

    made = made_symbols(env.graph)
    bound = False
    for node in env.graph.nodes:
        if node.op != "placeholder" and not bound:
            bound = True
            placeholders = list(mapping.values())
            for entry in env.symbols:
                if entry.binding is None:
                    continue
                source = placeholders[entry.binding.input_index]
                if entry.binding.dim is not None:
                    source = graph.call_function(_size_of, (source, entry.binding.dim))
                symbol_nodes[entry.name] = source
        if node.op == "output":
            graph.output(resolve(_plain(node.args[0])))
            continue
        new = graph.create_node(
            node.op, node.target, resolve(_plain(node.args)), resolve(_plain(node.kwargs)), name=node.name
        )
        new.meta = dict(node.meta)
        mapping[node] = new
        for one in made.get(node, ()):
            symbol_nodes[one.name] = graph.call_function(value_made, (new, one.element, one.dim))
    make_printable(graph)
    return torch.fx.GraphModule(root, graph)


def value_made(result: Any, element: int | None, dim: int | None) -> int:
    """The value of an unbacked symbol, given the result of the node that makes it (:class:`prims.ir.symbols.Made`)."""
    if element is not None:
        result = result[element]
    if dim is not None:
        return operator.getitem(result.shape, dim)
    return bits_of_float(result) if isinstance(result, float) else result


def _size_of(tensor: torch.Tensor, dim: int) -> int:
    return operator.getitem(tensor.shape, dim)


def _plain(value: Any) -> Any:
    """``fx``'s immutable containers as ordinary ones."""
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
