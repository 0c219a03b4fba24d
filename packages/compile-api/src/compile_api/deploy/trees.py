"""Nested arguments and results as plain data: JSON says where the leaves are.

A structure is an int (a leaf's number) or an object of one key: ``{"tuple": [...]}``, ``{"list": [...]}``,
``{"dict": [[key, part], ...]}``, ``{"namedtuple": [name, [field, ...], [part, ...]]}``.
"""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prims.errors import UserError

__all__ = ["Structure", "build", "flatten", "matches", "paths"]

#: Plain data, as ``json`` reads and writes it.
Structure = Any

_KEYS = (str, int, bool, type(None))


def flatten(value: Any, leaves: list[Any], is_leaf: Callable[[Any], bool], name: str = "result") -> Structure:
    """The structure of a value; its leaves are appended to ``leaves``.

    Mappings and dataclasses of other types than ``dict`` (a model's output, say) become dictionaries; fields that are
    None are left out of those.

    Raises:
        UserError: something in it is neither a container that plain data can say nor a leaf.
    """

    def part(value: Any, name: str) -> Structure:
        return flatten(value, leaves, is_leaf, name)

    if is_leaf(value):
        leaves.append(value)
        return len(leaves) - 1
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = list(value._fields)
        parts = [part(v, f"{name}.{f}") for f, v in zip(fields, value, strict=True)]
        return {"namedtuple": [type(value).__name__, fields, parts]}
    if isinstance(value, (tuple, list)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [part(v, f"{name}[{k}]") for k, v in enumerate(value)]}
    if isinstance(value, Mapping):
        if bad := [key for key in value if not isinstance(key, _KEYS)]:
            raise UserError(f"{name} has the key {bad[0]!r}", todo="Use strings or integers as keys.")
        return {"dict": [[key, part(v, f"{name}[{key!r}]")] for key, v in value.items()]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {"dict": [[key, part(v, f"{name}.{key}")] for key, v in found.items() if v is not None]}
    raise UserError(
        f"{name} is a {type(value).__module__}.{type(value).__qualname__}, which an exported program cannot take or "
        "give",
        todo="Use tensors, numbers, strings and None in tuples, lists, dictionaries and named tuples.",
    )


def build(structure: Structure, leaves: Sequence[Any]) -> Any:
    """The value of a structure with these leaves."""
    if isinstance(structure, int):
        return leaves[structure]
    ((kind, parts),) = structure.items()
    if kind == "tuple":
        return tuple(build(p, leaves) for p in parts)
    if kind == "list":
        return [build(p, leaves) for p in parts]
    if kind == "dict":
        return {key: build(p, leaves) for key, p in parts}
    name, fields, inner = parts
    return namedtuple(name, fields)(*(build(p, leaves) for p in inner))  # type: ignore[misc]


def paths(structure: Structure, name: str = "") -> list[str]:
    """How a person writes each leaf: ``batch['ids'][0]``."""
    if isinstance(structure, int):
        return [name]
    ((kind, parts),) = structure.items()
    if kind == "dict":
        return [path for key, p in parts for path in paths(p, f"{name}[{key!r}]")]
    if kind == "namedtuple":
        return [path for f, p in zip(parts[1], parts[2], strict=True) for path in paths(p, f"{name}.{f}")]
    return [path for k, p in enumerate(parts) for path in paths(p, f"{name}[{k}]")]


def matches(structure: Structure, value: Any, leaves: list[Any], name: str) -> None:
    """Take a value of this structure apart; its leaves are appended to ``leaves``.

    Raises:
        UserError: the value has another structure.
    """
    if isinstance(structure, int):
        leaves.append(value)
        return
    ((kind, parts),) = structure.items()
    if kind == "dict":
        if not isinstance(value, Mapping):
            raise UserError(f"{name} is a {type(value).__name__}, expected a dictionary")
        keys = [key for key, _ in parts]
        if missing := [key for key in keys if key not in value]:
            raise UserError(f"{name} lacks the key {missing[0]!r}", todo=f"Its keys are {keys}.")
        if extra := [key for key in value if key not in keys]:
            raise UserError(f"{name} has a key {extra[0]!r} too many", todo=f"Its keys are {keys}.")
        for key, p in parts:
            matches(p, value[key], leaves, f"{name}[{key!r}]")
        return
    inner = parts[2] if kind == "namedtuple" else parts
    if not isinstance(value, (tuple, list)) or len(value) != len(inner):
        found = f"of {len(value)}" if isinstance(value, (tuple, list)) else ""
        raise UserError(f"{name} is a {type(value).__name__} {found}, expected a {kind} of {len(inner)}")
    for k, (p, v) in enumerate(zip(inner, value, strict=True)):
        matches(p, v, leaves, f"{name}.{parts[1][k]}" if kind == "namedtuple" else f"{name}[{k}]")
