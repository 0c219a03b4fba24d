"""Custom operators: called as they are, on operands laid out as eager lays them out."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor_gen.loops.graph import Node, instances
from prims.collectives import is_wait
from prims.twins import functional_twin_in_place, twin_of

__all__ = ["EMPTY", "custom_function", "is_custom", "reported_name", "with_own_memory"]


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
        return name, target if owned else lambda x: target(x).clone()
    if twin_of(target) is not None:
        return name, _checked(functional_twin_in_place(target, frozenset(owned)), name, frozenset(owned))
    fresh = all(r.alias_info is None for r in target._schema.returns)
    return name, _checked(target, name, frozenset()) if fresh else with_own_memory(target)


def with_own_memory(target: Any) -> Callable[..., Any]:
    """An overload whose results are views, as copies: the memory of what it is given may be used anew."""
    if not isinstance(target, torch._ops.OpOverload) or all(r.alias_info is None for r in target._schema.returns):
        return target

    def call(*args: Any, **kwargs: Any) -> Any:
        out = target(*args, **kwargs)
        return out.clone() if isinstance(out, torch.Tensor) else [x.clone() for x in out]

    return call


def _checked(function: Callable[..., Any], name: str, owned: frozenset[int]) -> Callable[..., Any]:
    """``function`` with a look at what its schema promises: results of their own memory, untouched arguments.

    Memory that a result shares with an argument may be written again by the kernels that follow; such a result is
    copied.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        operands = instances(torch.Tensor, (args, kwargs))
        before = [-1 if x.is_inference() else x._version for x in operands]
        out = function(*args, **kwargs)
        for i, (x, version) in enumerate(zip(operands, before, strict=True)):
            if version >= 0 and x._version != version and i not in owned:
                _warn(name, "writes to an argument")
        taken = {_memory(x) for i, x in enumerate(operands) if i not in owned}
        return _apart(out, taken, name)

    return call


def _apart(out: Any, taken: set[int], name: str) -> Any:
    if isinstance(out, torch.Tensor):
        memory = _memory(out)
        if memory in taken and out.numel():
            _warn(name, "returns memory that it was given or has returned already")
            return out.clone()
        taken.add(memory)
        return out
    if isinstance(out, (tuple, list)):
        return type(out)([_apart(x, taken, name) for x in out])
    return out


def _memory(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()


@functools.cache
def _warn(name: str, what: str) -> None:
    warnings.warn(
        f"the custom operator {name} {what}, which its schema does not say. The compiled program works on copies and "
        "may differ from the eager one; correct the operator's schema (mutates_args) or clone the result.",
        stacklevel=2,
    )
