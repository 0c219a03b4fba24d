"""Results with nested containers, as a flat list and the structure that they had."""

from __future__ import annotations

from typing import Any

__all__ = ["flatten"]


def flatten(value: Any, leaves: list[Any]) -> Any:
    """Nested containers with leaf positions in place of the leaves."""
    if isinstance(value, (list, tuple)):
        parts = [flatten(v, leaves) for v in value]
        if hasattr(value, "_fields"):
            return ("namedtuple", type(value), parts)
        return ("tuple" if isinstance(value, tuple) else "list", None, parts)
    if isinstance(value, dict):
        return ("dict", list(value), [flatten(v, leaves) for v in value.values()])
    leaves.append(value)
    return len(leaves) - 1
