"""Where in the user's program a node comes from."""

from __future__ import annotations

from prims.records import record

__all__ = ["SourceLoc"]


@record
class SourceLoc:
    """A line of the user's program; kept in ``node.meta["source"]``."""

    filename: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        inside = f" in {self.function}" if self.function else ""
        return f"{self.filename}:{self.line}{inside}"
