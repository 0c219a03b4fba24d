"""Rewrites of claimed composites, whose arguments are known to be simpler than the program says."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch.fx

from prims.handlers import GraphHandler
from prims.lower.custom import opaque_call
from prims.lower.rewrites import constant

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

COMPOSITES: dict[str, Callable[[Args, Kwargs], tuple[Args, Kwargs]]] = {}
"""Overload name to ``fn(args, kwargs) -> (args, kwargs)``."""


def composite(*names: str) -> Callable[[Any], Any]:
    """Register a rewrite of the arguments of overloads."""

    def register(fn: Callable[[Args, Kwargs], tuple[Args, Kwargs]]) -> Any:
        for name in names:
            COMPOSITES[name] = fn
        return fn

    return register


@composite("aten._scaled_dot_product_flash_attention_for_cpu.default")
def drop_open_mask(args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """A mask that lets everything through (all True, or 0 added everywhere) is no mask."""
    mask = kwargs.get("attn_mask")
    value = None if mask is None else constant(mask)
    if mask is not None and value is not None and (value[0] is True or value[0] == 0.0 and value[0] is not False):
        kwargs = {k: v for k, v in kwargs.items() if k != "attn_mask"}
    return args, kwargs


VECTORS = {"aten._linalg_svd.default": (2, 1), "aten._linalg_eigh.default": (2, 0)}
"""Overload name to the position of the argument that asks for vectors, and the result that comes without them."""


def values_alone(p: GraphHandler, node: torch.fx.Node, args: Args, kwargs: Kwargs) -> Any:
    """A decomposition whose vectors nobody reads, computed without them; None for any other call.

    ``linalg.svdvals`` and its like ask for vectors wherever a gradient might be wanted, and of abstract tensors always.
    """
    at, kept = VECTORS.get(str(node.target), (0, -1))
    if kept < 0:
        return None
    defaults = [argument.default_value for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    args = (*args, *defaults[len(args) : at + 1])
    if args[at] is not True:
        return None
    if any(user.target is not operator.getitem or user.args[1] != kept for user in node.users):
        return None
    bare = (*args[:at], False, *args[at + 1 :])
    return opaque_call(p, node, bare, kwargs, changed=True)
