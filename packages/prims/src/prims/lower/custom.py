"""Opaque calls (custom operators, what has no decomposition), whose operands keep the strides that eager gives them."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from prims.handlers import GraphHandler, GraphValue
from prims.spec import TensorSpec
from prims.twins import twin_of

__all__ = ["STRIDES", "custom_call", "opaque_call"]

STRIDES = "strides"
"""Key in the metadata of an opaque call's node: per tensor among its operands, in order, eager's strides.

Values of the prim dialect have no layout, but a kernel that somebody wrote may count on one. A back end that finds
none (the text form has none) gives row-major operands.
"""


def custom_call(p: GraphHandler, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call of a custom operator as one node; there is nothing to decompose, so that this is no fallback.

    A tensor that the program leaves uninitialised for the operator to fill stays memory without values.
    """
    if twin_of(node.target) is not None:
        args = tuple(_memory(p, old, new) for old, new in zip(node.args, args, strict=True))
    return opaque_call(p, node, args, kwargs)


def opaque_call(
    p: GraphHandler, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], changed: bool = False,
    target: Any = None,
) -> Any:  # fmt: skip
    """The call of an operator as one node, which notes the strides that its operands have in eager.

    An operator that nobody has looked into is given them; a back end may know better what one that it claims takes.
    ``changed``: the arguments ask for other results than the node's. ``target``: an operator in the node's place.
    """
    result = p.aten(target or node.target, *args, spec=None if changed else node.meta.get("spec"), **kwargs)
    made = _node_of(result)
    if made is not None:
        made.meta[STRIDES] = tuple(_strides((node.args, tuple(node.kwargs.values()))))
    return result


def _node_of(result: Any) -> torch.fx.Node | None:
    """The node that gave a value or a tuple of values."""
    if isinstance(result, GraphValue):
        source = result.node.args[0] if result.node.target is operator.getitem else result.node
        return source if isinstance(source, torch.fx.Node) else None
    found = (_node_of(r) for r in result) if isinstance(result, (tuple, list)) else ()
    return next((n for n in found if n is not None), None)


_EMPTY = frozenset(
    f"aten.{name}"
    for name in ("empty.memory_format", "empty_like.default", "new_empty.default", "empty_strided.default",
                 "new_empty_strided.default", "empty_permuted.default")
)  # fmt: skip


def _memory(p: GraphHandler, old: Any, new: Any) -> Any:
    if not isinstance(old, torch.fx.Node) or str(old.target) not in _EMPTY:
        return new
    spec = old.meta["spec"]
    return p.aten(
        torch.ops.aten.empty_strided.default, spec.shape, spec.strides, dtype=spec.dtype, device=spec.device, spec=spec
    )


def _strides(value: Any) -> list[Any]:
    if isinstance(value, torch.fx.Node):
        spec = value.meta.get("spec")
        return [spec.strides] if isinstance(spec, TensorSpec) else []
    if isinstance(value, (list, tuple)):
        return [strides for v in value for strides in _strides(v)]
    return []
