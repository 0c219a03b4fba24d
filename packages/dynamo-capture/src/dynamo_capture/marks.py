"""Functions that mean something to capture, and next to nothing where the program runs eagerly."""

from __future__ import annotations

__all__ = ["graph_break", "is_compiling"]


def graph_break(msg: str = "") -> None:
    """Break the graph here; does nothing when the program runs eagerly."""


def is_compiling() -> bool:
    """Whether the program is being captured: True inside captured code, False when it runs eagerly."""
    return False
