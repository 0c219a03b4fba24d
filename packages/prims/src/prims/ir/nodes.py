"""Making the nodes of graphs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch.fx

__all__ = ["call_node", "copy_node"]

#: Names as fx writes them in a graph, by the names of what is called: ``add_tensor`` for ``add.Tensor``.
_WRITTEN: dict[str, str] = {}
_NO_NAME = re.compile("[^0-9a-zA-Z_]+")

# A node looks itself up in its graph's table of targets, three times, whenever an attribute is set. Neither arguments
# nor metadata are in that table: they are set by what the class itself would call.
_set_args: Callable[[torch.fx.Node, Any], None] = torch.fx.Node.args.fset  # type: ignore[attr-defined]
_set_kwargs: Callable[[torch.fx.Node, Any], None] = torch.fx.Node.kwargs.fset  # type: ignore[attr-defined]


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
    if method:
        node = graph.create_node("call_method", target)
    else:
        called = target.__name__
        name = _WRITTEN.get(called)
        if name is None:
            name = _WRITTEN[called] = _NO_NAME.sub("_", graph._target_to_str(target))
        node = graph.create_node("call_function", target, name=name)
    if args:
        _set_args(node, args)
    if kwargs:
        _set_kwargs(node, kwargs)
    return node


def copy_node(
    graph: torch.fx.Graph, node: torch.fx.Node, new: Callable[[torch.fx.Node], torch.fx.Node]
) -> torch.fx.Node:
    """``graph.node_copy(node, new)``, in which ``new`` gives the nodes of the copy; see :func:`call_node`."""
    copied = graph.create_node(node.op, node.target, name=node.name, type_expr=node.type)
    if node.args:
        _set_args(copied, torch.fx.map_arg(node.args, new))
    if node.kwargs:
        _set_kwargs(copied, torch.fx.map_arg(node.kwargs, new))
    copied.meta.update(node.meta)
    return copied
