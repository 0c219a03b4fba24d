"""Names of call targets in the text form and in JSON, and the way back from a name to the target."""

from __future__ import annotations

import builtins
import functools
import math
import operator
from typing import Any

import torch
import torch.nn.functional

from prims.errors import StoredGraphError
from prims.ir.bodies import bodies_of
from prims.ir.callables import listed, operator_of, registered, registered_name

__all__ = ["storable_name", "target_name", "target_of"]

#: Where a callable is looked for by its own name, in this order.
_HOMES: dict[str, Any] = {
    "torch": torch, "torch.nn.functional": torch.nn.functional, "operator": operator, "math": math,
    "builtins": builtins, "torch.linalg": torch.linalg, "torch.fft": torch.fft, "torch.special": torch.special,
    "torch._C._nn": torch._C._nn, "torch._C": torch._C,
}  # fmt: skip


def target_name(target: Any) -> str:
    """The name of a ``call_function`` target.

    ``aten.add.Tensor`` for overloads, ``prim.add`` for primitives, ``@torch.nn.functional.linear`` for callables.
    """
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if _is_primitive(target):
        return f"prim.{target.name}"
    if isinstance(target, torch._ops.OpOverloadPacket):
        return f"@torch.ops.{target!s}"
    return "@" + (registered_name(target) or _dotted_name(target))


def _is_primitive(target: Any) -> bool:
    # Asked by the class's name, so that printing an aten graph need not import the primitives.
    return type(target).__name__ == "PrimOp" and hasattr(target, "signature")


@functools.lru_cache(maxsize=4096)
def _dotted_name(target: Any) -> str:
    name = getattr(target, "__name__", None)
    if isinstance(name, str):
        for home, module in _HOMES.items():
            if vars(module).get(name) is target:
                return f"{home}.{name}"
        owner = getattr(target, "__objclass__", None) or getattr(target, "__self__", None)
        if isinstance(owner, type) and getattr(owner, name, None) == target:
            return f"{owner.__module__}.{owner.__qualname__}.{name}"
    module_name = getattr(target, "__module__", None) or type(target).__module__
    qualified = getattr(target, "__qualname__", None) or name or type(target).__qualname__
    return f"{module_name}.{qualified}"


def target_of(name: Any) -> Any:
    """The target of a name that :func:`target_name` gave, where a stored graph may name it (:mod:`prims.ir.callables`).

    Raises:
        StoredGraphError: no operator, primitive, listed or registered callable has that name.
    """
    found = None
    if not isinstance(name, str):
        raise StoredGraphError("FILE-C1", f"a target is a {type(name).__name__}")
    if name.startswith("@torch.ops."):
        found = operator_of(name[len("@torch.ops.") :])
    elif name.startswith("@"):
        found = registered(name[1:]) or listed(name[1:])
    elif name.startswith("prim."):
        from prims.ops import TABLE

        found = TABLE.get(name[len("prim.") :])
    elif name.count(".") == 2:
        found = operator_of(name)
    if found is None:
        raise StoredGraphError(
            "FILE-C1",
            f"no operator or listed callable is named {name[:200]!r}",
            todo="It may belong to a library that is not imported, or to another version of torch. A function of your "
            "own may be named after prims.ir.register_callable(fn).",
        )
    return found


def storable_name(target: Any) -> str:
    """The name under which a target is stored.

    Raises:
        StoredGraphError: the name would not lead back to the target.
    """
    name = target_name(target)
    if name.startswith("quintet."):
        if bodies_of(target):
            raise StoredGraphError("FILE-C1", f"{name}, a branch or loop, stands for graphs that a file does not hold")
    try:
        same = target_of(name) == target
    except StoredGraphError:
        same = False
    if not same:
        raise StoredGraphError(
            "FILE-C1",
            f"{name.removeprefix('@')} cannot be named in a file",
            todo="Register it with prims.ir.register_callable(fn), or store the graph of a later stage.",
        )
    return name
