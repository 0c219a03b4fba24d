"""Operators that stand for graphs: branches and loops, whose bodies are envelopes of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prims.ir.envelope import Envelope

__all__ = ["bodies_of", "keep_bodies"]

_BODIES: dict[Any, tuple[Envelope, ...]] = {}


def keep_bodies(overload: Any, bodies: tuple[Envelope, ...]) -> None:
    """Say which graphs an operator runs."""
    _BODIES[overload] = bodies


def bodies_of(target: Any) -> tuple[Envelope, ...]:
    """The graphs that an operator runs; none for other targets."""
    return _BODIES.get(target, ())
