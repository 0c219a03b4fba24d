"""What is looked for in captured graphs: the names of the calls, their arguments, and what stands between them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from prims.spec import TensorSpec

__all__ = [
    "IN_PLACE", "Unlike", "argument", "changes", "check_alone", "is_floating", "name_of", "require", "shape_of",
]  # fmt: skip

#: Methods and operators that write their first operand.
IN_PLACE = frozenset("imul mul_ itruediv div_ iadd add_ isub sub_ masked_fill_".split())


class Unlike(Exception):
    """The graph is not what is looked for."""


def name_of(node: Any) -> str:
    """The function or method that a node calls, if it is one of torch's."""
    if not isinstance(node, Node) or node.op not in ("call_function", "call_method"):
        return ""
    if node.op == "call_method":
        return str(node.target)
    name = getattr(node.target, "__name__", "")
    known = any(getattr(place, name, None) is node.target for place in (torch, operator, F)) or node.target is getattr
    return name if known else ""


def require(holds: Any) -> None:
    if not holds:
        raise Unlike


def shape_of(node: Any) -> tuple[Any, ...]:
    spec = node.meta.get("spec") if isinstance(node, Node) else None
    if not isinstance(spec, TensorSpec):
        raise Unlike
    return tuple(spec.shape)


def argument(node: Node, at: int, name: str, default: Any = None) -> Any:
    return node.args[at] if len(node.args) > at else node.kwargs.get(name, default)


def is_floating(node: Any) -> bool:
    spec = node.meta.get("spec")
    return isinstance(spec, TensorSpec) and spec.dtype.is_floating_point


def changes(node: Node) -> bool:
    """Does a node change one of its operands, or the state of PyTorch?"""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if node.op not in ("call_function", "call_method"):
        return node.op == "call_module"
    writes = (name.endswith("_") and not name.endswith("__")) or name in IN_PLACE or "setitem" in name
    return writes or "out" in node.kwargs or name.startswith(("set_", "_set", "_enter", "_exit", "_saved"))


def check_alone(nodes: Sequence[Node], order: Sequence[Node], place: Mapping[Node, int]) -> None:
    """Nothing else reads what is computed on the way, and nothing that changes something stands between.

    Args:
        nodes: the way, in order; what is computed last may be read.
        order: all nodes of the graph, and ``place`` where each stands.

    Raises:
        Unlike: something does.
    """
    inside = set(nodes)
    require(len(inside) == len(nodes) and all(set(node.users) <= inside for node in nodes[:-1]))
    between = order[place[nodes[0]] : place[nodes[-1]]]
    require(not any(changes(node) for node in between if node not in inside))
