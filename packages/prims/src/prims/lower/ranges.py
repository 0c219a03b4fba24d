"""Bounds of integer values that are made of iota and numbers, as index arithmetic and masks are."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

_KEEPS = frozenset({"broadcast", "reshape", "permute", "slice", "flip"})
_DEPTH = 12


class Bounds(NamedTuple):
    """All elements lie in [low, high]."""

    low: int
    high: int


def bounds_of(x: Any) -> Bounds | None:
    """Bounds of a graph value or a number; None when unknown (floats, data, dynamic sizes)."""
    if isinstance(x, int):
        return Bounds(x, x)
    node = getattr(x, "node", None)
    return _of_node(node, _DEPTH) if isinstance(node, torch.fx.Node) else None


def _of(arg: Any, depth: int) -> Bounds | None:
    if isinstance(arg, int):
        return Bounds(arg, arg)
    return _of_node(arg, depth) if isinstance(arg, torch.fx.Node) else None


def _of_node(node: torch.fx.Node, depth: int) -> Bounds | None:
    name = getattr(node.target, "name", None)
    if depth == 0 or node.op != "call_function" or not isinstance(name, str):
        return None
    args: Any = node.args
    if name == "full":
        return Bounds(args[1], args[1]) if isinstance(args[1], int) else None
    if name == "iota":
        length, start, step = args[:3]
        if not all(isinstance(v, int) for v in (length, start, step)) or length == 0:
            return None
        last = start + (length - 1) * step
        return Bounds(min(start, last), max(start, last))
    if name in _KEEPS:
        return _of_node(args[0], depth - 1)
    if name == "convert":
        source = args[0].meta["spec"].dtype
        if source.is_floating_point or args[1] != torch.int64:
            return None
        return Bounds(0, 1) if source == torch.bool else _of_node(args[0], depth - 1)
    if name in ("add", "sub", "mul", "maximum", "minimum"):
        if node.meta["spec"].dtype != torch.int64:
            return None
        x, y = _of(args[0], depth - 1), _of(args[1], depth - 1)
        return _combined(name, x, y)
    return None


def _combined(name: str, x: Bounds | None, y: Bounds | None) -> Bounds | None:
    if x is None or y is None:
        return None
    if name == "add":
        return Bounds(x.low + y.low, x.high + y.high)
    if name == "sub":
        return Bounds(x.low - y.high, x.high - y.low)
    if name == "maximum":
        return Bounds(max(x.low, y.low), max(x.high, y.high))
    if name == "minimum":
        return Bounds(min(x.low, y.low), min(x.high, y.high))
    corners = [a * b for a in (x.low, x.high) for b in (y.low, y.high)]
    return Bounds(min(corners), max(corners))
