"""Rewrites of claimed composites, whose arguments are known to be simpler than the program says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
