"""``dynamic_shapes``: which sizes of which arguments may differ between calls, in the forms that people know."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from compile_api.deploy.contract import Dim
from prims.errors import UserError

__all__ = ["dims_of"]

_FORMS = "Give {dimension: Dim | name | (min, max) | int | None} or a list with one of them per dimension."


def dims_of(wanted: Any, names: Sequence[str], args: Sequence[Any]) -> list[dict[int, Dim]]:
    """For each tensor among the arguments, in the order of their leaves, its dimensions that may differ.

    Args:
        wanted: by argument's name, or one per argument: ``{dimension: what}`` or a list of what, nested as the argument
            is. What is a :class:`Dim` (or an object with ``__name__``, ``min`` and ``max``), a name, a range
            ``(min, max)``, True for any size; None or the very size for one that stays.
        names, args: of the arguments.

    Raises:
        UserError: it names no argument or no dimension, or is none of these.
    """
    if wanted is None:
        wanted = {}
    if isinstance(wanted, (tuple, list)):
        if len(wanted) > len(args):
            raise UserError(f"dynamic_shapes has {len(wanted)} entries for {len(args)} arguments")
        wanted = dict(zip(names, wanted, strict=False))
    if not isinstance(wanted, Mapping):
        raise UserError(f"dynamic_shapes is a {type(wanted).__name__}", todo="Give a dict from argument names.")
    if unknown := [name for name in wanted if name not in names]:
        raise UserError(
            f"dynamic_shapes names {unknown[0]!r}, which is no argument", todo=f"They are {', '.join(names)}."
        )
    found: list[dict[int, Dim]] = []
    known: dict[str, Dim] = {}
    for name, value in zip(names, args, strict=True):
        _walk(wanted.get(name), value, name, found, known)
    return found


def _walk(wanted: Any, value: Any, name: str, found: list[dict[int, Dim]], known: dict[str, Dim]) -> None:
    if isinstance(value, torch.Tensor):
        found.append(_of_tensor(wanted, value, name, known))
        return
    if isinstance(value, Mapping):
        parts: list[tuple[Any, Any, str]] = [(key, v, f"{name}[{key!r}]") for key, v in value.items()]
    elif isinstance(value, (tuple, list)):
        parts = [(k, v, f"{name}[{k}]") for k, v in enumerate(value)]
    elif dataclasses.is_dataclass(value):
        text = f"the argument {name} is a {type(value).__name__}, of which an exported program knows nothing"
        raise UserError(text, todo="Give what it holds in a dict, or as arguments of their own.")
    else:
        if wanted not in (None, {}, (), []):
            raise UserError(f"dynamic_shapes has {wanted!r} for {name}, which is no tensor")
        return
    keys = [key for key, _, _ in parts]
    if isinstance(wanted, Mapping) and (unknown := [key for key in wanted if key not in keys]):
        raise UserError(
            f"dynamic_shapes names {name}[{unknown[0]!r}], which is not there", todo=f"{name} has {keys}."
        )
    if isinstance(wanted, (tuple, list)) and len(wanted) > len(parts):
        raise UserError(f"dynamic_shapes has {len(wanted)} entries for {name}, which has {len(parts)}")
    for key, part, path in parts:
        inner = None
        if isinstance(wanted, Mapping):
            inner = wanted.get(key)
        elif isinstance(wanted, (tuple, list)) and isinstance(key, int) and key < len(wanted):
            inner = wanted[key]
        elif wanted is not None:
            raise UserError(f"dynamic_shapes has {wanted!r} for {name}", todo="Nest it as the argument is.")
        _walk(inner, part, path, found, known)


def _of_tensor(wanted: Any, value: torch.Tensor, name: str, known: dict[str, Dim]) -> dict[int, Dim]:
    if wanted is None:
        return {}
    if isinstance(wanted, (tuple, list)):
        if len(wanted) != value.dim():
            raise UserError(f"dynamic_shapes has {len(wanted)} entries for {name} of {value.dim()} dimensions")
        wanted = dict(enumerate(wanted))
    if not isinstance(wanted, Mapping):
        raise UserError(f"dynamic_shapes has {wanted!r} for {name}", todo=_FORMS)
    dims: dict[int, Dim] = {}
    for at, what in wanted.items():
        if type(at) is not int or not -value.dim() <= at < value.dim():
            raise UserError(f"dynamic_shapes names dimension {at!r} of {name}, which has {value.dim()}")
        at %= value.dim()
        dim = _dim(what, value.shape[at], f"{name}_{at}", f"dimension {at} of {name}")
        if dim is None:
            continue
        other = known.setdefault(dim.name, dim)
        if (other.min, other.max) != (dim.min, dim.max):
            if isinstance(what, str):
                dim = other
            else:
                raise UserError(f"dimension {dim.name} is {dim} and {other}", todo="Say one range.")
        dims[at] = dim
    return dims


def _dim(what: Any, size: int, name: str, where: str) -> Dim | None:
    if what is None or (type(what) is int and what == size):
        return None
    if type(what) is int:
        raise UserError(f"dynamic_shapes says that {where} is {what}, and it is {size}")
    name = "".join(c if c.isalnum() else "_" for c in name)
    if what is True:
        dim = Dim(name)
    elif isinstance(what, str):
        dim = Dim(what)
    elif isinstance(what, (tuple, list)) and len(what) == 2:
        dim = Dim(name, what[0], what[1])
    elif isinstance(what, Dim) or all(hasattr(what, part) for part in ("__name__", "min", "max")):
        own = isinstance(what, Dim)  # others begin at 0 unless they say so, and mean what our 2 means
        dim = Dim(what.name if own else what.__name__, what.min if own or what.min else 2, what.max)
    elif type(what).__name__ == "_DimHint" and getattr(getattr(what, "type", None), "name", "") in ("AUTO", "DYNAMIC"):
        dim = Dim(name)
    else:
        raise UserError(f"dynamic_shapes has {what!r} for {where}", todo=_FORMS)
    low = 2 if dim.min is None else dim.min
    if type(low) is not int or not (dim.max is None or (type(dim.max) is int and dim.max >= low)) or low < 0:
        raise UserError(f"dynamic_shapes has the range [{dim.min}, {dim.max}] for {where}")
    if not dim.name.isidentifier():
        raise UserError(f"{dim.name!r} is no name for a dimension", todo="Use letters, digits and underscores.")
    high = None if dim.max is None or dim.max >= 2**31 else dim.max
    dim = Dim(dim.name, low, high)
    if size < 2:
        raise UserError(
            f"{where} is {size}, and is to differ between calls: at an example of 0 or 1 programs do other things",
            todo="Export with an example whose size is at least 2.",
        )
    if size < low or (high is not None and size > high):
        raise UserError(f"{where} is {size}, outside of {dim}", todo="Export with an example in the range.")
    return dim
