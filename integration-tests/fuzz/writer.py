"""Writing programs: a random source, lines with indentation, and names by type."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["Writer"]


class Writer:
    """Lines of a program, and the variables of each type that are bound where the next line goes."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.depth = 0
        self.names: dict[str, list[str]] = {}
        self._counter = 0

    def chance(self, share: float) -> bool:
        """True with that probability."""
        return self.random.random() < share

    def pick(self, options: Sequence[Any]) -> Any:
        """One of the options."""
        return self.random.choice(options)

    def line(self, text: str) -> None:
        """Write a line where we are."""
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def block(self, header: str) -> Any:
        """A block: what is bound inside is (nearly always) not used after it."""
        self.line(header)
        self.depth += 1
        before = {kind: list(names) for kind, names in self.names.items()}
        start = len(self.lines)
        yield
        if len(self.lines) == start:
            self.line("pass")
        self.depth -= 1
        if not self.chance(0.04):
            self.names = before

    def fresh(self, prefix: str) -> str:
        """A new name."""
        self._counter += 1
        return f"{prefix}{self._counter}"

    def bind(self, kind: str, name: str) -> str:
        """Remember that ``name`` holds a value of that type."""
        pool = self.names.setdefault(kind, [])
        if name not in pool:
            pool.append(name)
        return name

    def has(self, kind: str) -> bool:
        """Whether a variable of that type is bound."""
        return bool(self.names.get(kind))

    def name(self, kind: str) -> str:
        """A bound variable of that type, later ones more often."""
        pool = self.names[kind]
        return self.random.choice(pool[-4:] + pool)

    def text(self) -> str:
        """Everything written."""
        return "\n".join(self.lines) + "\n"
