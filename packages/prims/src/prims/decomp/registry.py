"""The table of decompositions: which ATen overload is written in terms of primitives, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from prims.registry import Definitions

Decomposition = Callable[..., Any]
"""``(p, *args, **kwargs) -> value | tuple of values``: arguments as in the overload's schema."""

F = TypeVar("F", bound=Decomposition)

_TABLE: Definitions[Decomposition] = Definitions()
_BY_OVERLOAD: dict[torch._ops.OpOverload, Decomposition | None] = {}


def decomposition(*names: str) -> Callable[[F], F]:
    """Register a function as the decomposition of the named overloads (``"aten.gelu.default"``).

    Raises `ValueError` when a name already has one: two meanings for one op are a mistake.
    """

    def register(fn: F) -> F:
        for name in names:
            _TABLE.define(name, fn, "the decomposition of")
        _BY_OVERLOAD.clear()
        return fn

    return register


def get(op: torch._ops.OpOverload) -> Decomposition | None:
    """The decomposition of an overload, or None when there is none."""
    try:
        return _BY_OVERLOAD[op]
    except KeyError:
        found = _BY_OVERLOAD[op] = _TABLE.get(str(op))
        return found


def by_name(name: str) -> Decomposition:
    """The decomposition registered under a name; `KeyError` when there is none."""
    return _TABLE[name]


def covered() -> tuple[str, ...]:
    """Names of all overloads that have a decomposition, sorted."""
    return tuple(sorted(_TABLE))


def overload(name: str) -> torch._ops.OpOverload:
    """The overload object of a name such as ``"aten.mm.default"``."""
    namespace, packet, variant = name.split(".")
    op: torch._ops.OpOverload = getattr(getattr(getattr(torch.ops, namespace), packet), variant)
    return op


def call(p: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """Use another overload inside a decomposition: one node where the handler's backend claims it or
    where it has no decomposition, its primitives otherwise.
    """
    fn = _TABLE.get(name)
    if fn is None or name in p.claims:
        return p.aten(overload(name), *args, **kwargs)
    return fn(p, *args, **kwargs)
