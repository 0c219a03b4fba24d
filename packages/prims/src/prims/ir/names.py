"""Names of call targets in the text form and in JSON, and the way back from a name to the target."""

from __future__ import annotations

import builtins
import functools
import importlib
import math
import operator
from typing import Any

import torch

from prims.errors import UserError

__all__ = ["target_name", "target_of"]

_HOMES = ("torch", "torch.nn.functional", "operator", "math", "builtins", "torch.linalg", "torch.fft",
          "torch.special", "torch._C._nn", "torch._C")  # fmt: skip
_MODULES = {"operator": operator, "math": math, "builtins": builtins, "torch": torch}


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
    return "@" + _dotted_name(target)


def _is_primitive(target: Any) -> bool:
    # Asked by the class's name, so that printing an aten graph need not import the primitives.
    return type(target).__name__ == "PrimOp" and hasattr(target, "signature")


@functools.lru_cache(maxsize=4096)
def _dotted_name(target: Any) -> str:
    name = getattr(target, "__name__", None)
    if isinstance(name, str):
        for home in _HOMES:
            if getattr(_resolve(home), name, None) is target:
                return f"{home}.{name}"
        owner = getattr(target, "__objclass__", None) or getattr(target, "__self__", None)
        if isinstance(owner, type) and getattr(owner, name, None) == target:
            return f"{owner.__module__}.{owner.__qualname__}.{name}"
    module = getattr(target, "__module__", None) or type(target).__module__
    qualified = getattr(target, "__qualname__", None) or name or type(target).__qualname__
    return f"{module}.{qualified}"


def target_of(name: str) -> Any:
    """The target of a name that :func:`target_name` gave.

    Raises:
        UserError: nothing is found under that name.
    """
    try:
        if name.startswith("@"):
            return _resolve(name[1:])
        if name.startswith("prim."):
            from prims.ops import TABLE

            return TABLE[name[len("prim.") :]]
        namespace, op, overload = name.split(".")
        return getattr(getattr(getattr(torch.ops, namespace), op), overload)
    except (AttributeError, ImportError, KeyError, ValueError) as error:
        raise UserError(
            f"no operator is named {name!r}",
            todo="It may belong to a library that is not imported, or to another version of torch.",
        ) from error


@functools.lru_cache(maxsize=4096)
def _resolve(dotted: str) -> Any:
    parts = dotted.split(".")
    value: Any = _MODULES.get(parts[0]) or importlib.import_module(parts[0])
    for index, part in enumerate(parts[1:], start=1):
        try:
            value = getattr(value, part)
        except AttributeError:
            value = importlib.import_module(".".join(parts[: index + 1]))
    return value
