"""Making the nodes of graphs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch.fx

__all__ = ["call_node", "copy_node"]


def call_node(
    graph: torch.fx.Graph,
    target: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    method: bool = False,
) -> torch.fx.Node:
    """A new call at the graph's insertion point, as ``graph.create_node`` makes it.

    It gets its arguments afterwards: ``create_node`` would go through them, in Python, to warn of symbolic numbers,
    which takes as long as all else that it does.
    """
    node = graph.create_node("call_method" if method else "call_function", target)
    if args:
        node.args = args
    if kwargs:
        node.kwargs = kwargs
    return node


def copy_node(
    graph: torch.fx.Graph, node: torch.fx.Node, new: Callable[[torch.fx.Node], torch.fx.Node]
) -> torch.fx.Node:
    """``graph.node_copy(node, new)``, in which ``new`` gives the nodes of the copy; see :func:`call_node`."""
    copied = graph.create_node(node.op, node.target, name=node.name, type_expr=node.type)
    if node.args:
        copied.args = torch.fx.map_arg(node.args, new)
    if node.kwargs:
        copied.kwargs = torch.fx.map_arg(node.kwargs, new)
    copied.meta = copy.copy(node.meta)
    return copied
