"""Custom operators: called as they are, on operands laid out as eager lays them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor_gen.extern.functions import checked, cloned, twin_in_place, with_own_memory
from inductor_gen.loops.graph import Node
from prims.collectives import is_transfer, is_wait
from prims.twins import twin_form, twin_of

__all__ = ["EMPTY", "custom_function", "is_custom", "reported_name"]


#: Memory that a custom operator is given to fill.
EMPTY = "aten.empty_strided.default"


def is_custom(node: Node) -> bool:
    """Is the node a call of an operator that somebody else has written?"""
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace not in ("aten", "prims")


def reported_name(node: Node) -> str:
    """``lib.add_one_.default`` for an extern node; a functional twin goes by its operator's name."""
    original = twin_of(node.target) if is_custom(node) else None
    return node.op if original is None else str(original)


def custom_function(node: Node, owned: Sequence[int] = ()) -> tuple[str, Callable[..., Any]]:
    """``(readable name, callable)`` for a custom operator's node.

    Args:
        owned: for a twin, positions among its tensor operands that the operator may write to in place, because nobody
            reads them afterwards.
    """
    name = reported_name(node)
    target = node.target
    if is_wait(target):  # gives what it is given, which may be written anew unless it ends here
        return name, target if owned else cloned(target)
    if is_transfer(target):  # gives what it has begun to make, of which nobody else knows
        return name, target
    form = twin_form(target)
    if form is not None:
        return name, checked(twin_in_place(*form, tuple(owned)), name, tuple(owned))
    fresh = all(r.alias_info is None for r in target._schema.returns)
    return name, checked(target, name, ()) if fresh else with_own_memory(target)
