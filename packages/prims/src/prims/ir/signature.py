"""Whether a node's arguments fit an ATen schema or a primitive's signature. Checkers are built once per op."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from prims.ir.symbols import expr_of

__all__ = ["check_overload", "check_primitive", "is_functional", "is_number", "is_size"]

_Checker = Callable[[Any], bool]


def is_size(value: Any) -> bool:
    """An int (not a bool) or a ``Sym``."""
    return type(value) is int or (not isinstance(value, bool) and expr_of(value) is not None)


def is_number(value: Any) -> bool:
    """A Python number or a ``Sym``."""
    return isinstance(value, (bool, int, float, complex)) or expr_of(value) is not None


def _is_node(value: Any) -> bool:
    return isinstance(value, torch.fx.Node)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _is_dtype(value: Any) -> bool:
    # Schemas write dtype, layout and memory format as plain ints.
    return isinstance(value, (int, torch.dtype, torch.layout, torch.memory_format)) or is_size(value)


_SCHEMA_CHECKS: dict[str, _Checker] = {
    # The dispatcher hands a number over as itself where it stands for a tensor (`mul.Tensor(x, 2)`).
    "Tensor": lambda v: _is_node(v) or is_number(v),
    "int": lambda v: _is_dtype(v) or _is_node(v) or isinstance(v, bool),
    "number": lambda v: is_number(v) or _is_node(v),
    "float": lambda v: is_number(v) or _is_node(v),
    "bool": lambda v: isinstance(v, (bool, int)) or _is_node(v) or expr_of(v) is not None,
    "str": lambda v: isinstance(v, str),
    "Device": lambda v: isinstance(v, (torch.device, str)),
    "Generator": lambda v: v is None,
}


@functools.cache
def _schema_check(kind: str) -> _Checker:
    if kind.startswith("Optional["):
        inner = _schema_check(kind[len("Optional[") : -1])
        return lambda v: v is None or inner(v)
    if kind.startswith("List["):
        inner_kind = kind[len("List[") : -1]
        item = _is_node if inner_kind == "Tensor" else _schema_check(inner_kind)
        # A number stands for a list of equal ones where the schema says int[2].
        return lambda v: all(map(item, v)) if _is_sequence(v) else is_number(v)
    return _SCHEMA_CHECKS.get(kind, lambda v: True)


def _node_or_none(value: Any) -> bool:
    return value is None or _is_node(value)


_Schema = tuple[tuple[tuple[str, _Checker, bool, str], ...], dict[str, tuple[_Checker, bool, str]], int]


@functools.cache
def _schema_of(op: Any) -> _Schema:
    positional = []
    by_name: dict[str, tuple[_Checker, bool, str]] = {}
    for argument in op._schema.arguments:
        kind = str(argument.type)
        check = _schema_check(kind)
        if kind == "Tensor" and op._schema.name.endswith("_backward"):
            check = _node_or_none  # autograd passes undefined tensors to attention's backward
        required = not argument.has_default_value()
        by_name[argument.name] = (check, required, kind)
        if not argument.kwarg_only:
            positional.append((argument.name, check, required, kind))
    required_count = sum(required for _, required, _ in by_name.values())
    return tuple(positional), by_name, required_count


@functools.cache
def is_functional(op: Any) -> bool:
    """An overload that writes none of its arguments."""
    return not op._schema.is_mutable


def check_overload(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """None when the arguments fit ``op``'s schema, else what does not."""
    positional, by_name, required_count = _schema_of(op)
    if len(args) > len(positional):
        return f"{op} takes at most {len(positional)} positional arguments, got {len(args)}"
    for value, (name, check, _, kind) in zip(args, positional, strict=False):
        if not check(value):
            return f"argument {name!r} of {op} is {value!r}, the schema says {kind}"
    for name, value in kwargs.items():
        entry = by_name.get(name)
        if entry is None:
            return f"{op} has no argument {name!r}"
        if not entry[0](value):
            return f"argument {name!r} of {op} is {value!r}, the schema says {entry[2]}"
    if len(args) + len(kwargs) < len(by_name) or kwargs:
        given = {name for name, _, _, _ in positional[: len(args)]}
        for name in kwargs:
            if name in given:
                return f"argument {name!r} of {op} is given twice"
        if len(args) < required_count:
            for name, (_, required, _) in by_name.items():
                if required and name not in given and name not in kwargs:
                    return f"argument {name!r} of {op} is missing"
    return None


_PRIMITIVE_CHECKS: dict[str, _Checker] = {
    "T": _is_node,
    "V": lambda v: _is_node(v) or is_number(v),
    "Ts": lambda v: _is_sequence(v) and all(map(_is_node, v)),
    "S": is_size,
    "Ss": lambda v: _is_sequence(v) and all(map(is_size, v)),
    "ints": lambda v: _is_sequence(v) and all(type(item) is int for item in v),
    "dim": lambda v: type(v) is int and v >= 0,
    "dims": lambda v: _is_sequence(v) and all(type(item) is int and item >= 0 for item in v),
    "perm": lambda v: _is_sequence(v) and all(type(item) is int and item >= 0 for item in v),
    "scalar": is_number,
    "dtype": lambda v: isinstance(v, torch.dtype),
    "device": lambda v: isinstance(v, torch.device),
    "str": lambda v: isinstance(v, str),
    "bool": lambda v: isinstance(v, bool),
}


def check_primitive(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """None when the arguments are ``op``'s canonical ones (all positional), else what is wrong."""
    if kwargs:
        return f"prim.{op.name} has keyword arguments; the canonical form is positional"
    if len(args) != len(op.params):
        return f"prim.{op.name} takes {len(op.params)} arguments, got {len(args)}"
    for value, param in zip(args, op.params, strict=True):
        if not _PRIMITIVE_CHECKS[param.kind](value):
            return f"argument {param.name!r} of prim.{op.name} is {value!r}, its kind is {param.kind}"
    return None
