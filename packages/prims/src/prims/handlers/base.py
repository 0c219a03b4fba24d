"""One interface, several meanings: a decomposition is written once against a handler ``p``.

``p.exp(x)``, ``p.add(x, 1.0)``, ``p.sum(x, (0,))``: every primitive of `prims.ops.TABLE` is a method, with the row's
signature (positional or by keyword). `p.aten(op, ...)` (also named `p.extern`) is any ATen overload left as it is.
Values are the handler's own; all of them have ``shape``, ``dtype``, ``device`` and ``ndim``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch

from prims.ops import TABLE, PrimOp

__all__ = ["BaseHandler", "Handler"]

Value = Any


@runtime_checkable
class Handler(Protocol):
    """What a decomposition may ask of its handler, besides a method per primitive.

    Attributes:
        claims: names of composite overloads (``aten.mm.default``) that are to stay as they are.
        source: the `SourceLoc` of the user's line being worked on, or None; stamped on what is built.
    """

    claims: frozenset[str]
    source: Any

    def prim(self, op: PrimOp, *args: Any, **kwargs: Any) -> Value:
        """Apply a primitive given as a row."""
        ...

    def aten(self, op: torch._ops.OpOverload, *args: Any, spec: Any = None, **kwargs: Any) -> Any:
        """Apply an ATen overload as it is; several results come as a tuple."""
        ...

    def __getattr__(self, name: str) -> Callable[..., Value]: ...


class BaseHandler:
    """A handler whose primitive methods come from the table. Subclasses give `prim` and `aten`."""

    def __init__(self, claims: frozenset[str] = frozenset()) -> None:
        self.claims = claims
        self.source: Any = None

    def prim(self, op: PrimOp, *args: Any, **kwargs: Any) -> Value:
        """Apply a primitive given as a row; ``p.exp(x)`` is ``p.prim(prims.ops.exp, x)``."""
        raise NotImplementedError

    def aten(self, op: torch._ops.OpOverload, *args: Any, spec: Any = None, **kwargs: Any) -> Any:
        """Apply an ATen overload as it is.

        Args:
            args, kwargs: as in the overload's schema; values may stand in lists and tuples.
            spec: the results' metadata, where the caller knows it (else `prims.spec.infer`).

        Returns:
            One value, or a tuple of them for an overload of several results.
        """
        raise NotImplementedError

    def extern(self, op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
        """The same as `aten`."""
        return self.aten(op, *args, **kwargs)

    def __getattr__(self, name: str) -> Callable[..., Value]:
        op = TABLE.get(name)
        if op is None:
            raise AttributeError(f"{type(self).__name__} has no primitive {name!r} (see prims.ops.TABLE)")
        prim = self.prim

        def method(*args: Any, **kwargs: Any) -> Value:
            return prim(op, *args, **kwargs)

        method.__name__ = name
        method.__doc__ = f"{name}({op.signature}): {op.doc}"
        self.__dict__[name] = method
        return method


def map_values(fn: Callable[[Any], Any], tree: Any) -> Any:
    """`fn` on every leaf of nested tuples, lists and dicts (containers keep their type)."""
    kind = type(tree)
    if kind is tuple or kind is list:
        return kind(map_values(fn, x) for x in tree)
    if isinstance(tree, dict):
        return {k: map_values(fn, x) for k, x in tree.items()}
    if isinstance(tree, (tuple, list)):  # torch.Size, immutable lists of fx
        return tuple(map_values(fn, x) for x in tree)
    return fn(tree)
