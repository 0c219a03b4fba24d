"""Graph breaks: numbered reasons, each with a hint for the user."""

from __future__ import annotations

import linecache
from dataclasses import dataclass

from prims.ir import SourceLoc

__all__ = ["REASONS", "BreakInfo", "GraphBreak", "Reason", "SkipFrame", "source_line"]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why capture may stop: a stable number, one line, and what the user can do."""

    number: str
    title: str
    hint: str


def _table(*rows: tuple[str, str, str]) -> dict[str, Reason]:
    return {number: Reason(number, title, hint) for number, title, hint in rows}


#: All reasons, by number. Numbers are never reused.
REASONS = _table(
    ("QB01", "data-dependent branch on a tensor's value", "Use torch.where, or keep the branch out of the region."),
    ("QB02", "data-dependent read of a tensor's value", "Keep the value a tensor, or read it outside the region."),
    ("QB03", "call of a function that capture does not know", "Move it out of the region, or use a torch function."),
    ("QB04", "call of a function under disable()", "Remove the disable() to capture it."),
    ("QB05", "unsupported bytecode instruction", "Rewrite the statement."),
    ("QB06", "unsupported operation on a Python object", "Move it out of the region."),
    ("QB07", "unsupported operation of a builtin", "Move it out of the region."),
    ("QB08", "a torch operator could not be captured", "Move it out of the region; please report it."),
    ("QB09", "a library outside torch is called on tensors", "Move it out of the region."),
    ("QB10", "an object of a kind that cannot be rebuilt is live here", "Let it end before the break."),
    ("QB11", "input or output (print, files, logging)", "Move it out of the region."),
    ("QB12", "autograd is driven from inside the region", "Call backward() outside the region."),
    ("QB13", "recursion or call depth too deep", "Flatten the calls."),
    ("QB14", "a loop ran too long to unroll", "Use a tensor operation instead of the loop."),
    ("QB15", "module, class or function definition or import at run time", "Move it out of the region."),
    ("QB16", "random numbers from outside torch", "Use torch's generators."),
    ("QB17", "a tensor subclass or a tensor of an unsupported kind", "Use plain tensors."),
    ("QB18", "generator or coroutine used in an unsupported way", "Use a list."),
    ("QB19", "the program raises an exception here", "It is run eagerly, so that the exception is the program's own."),
)


class GraphBreak(Exception):
    """Capture cannot go on at this instruction. Never leaves the package.

    Args:
        number: a key of :data:`REASONS`.
        detail: names the object or operation.
    """

    def __init__(self, number: str, detail: str = "") -> None:
        super().__init__(number, detail)
        self.number = number
        self.detail = detail
        self.where: SourceLoc | None = None

    @property
    def text(self) -> str:
        """The reason in one line."""
        title = REASONS[self.number].title
        return f"{title}: {self.detail} [{self.number}]" if self.detail else f"{title} [{self.number}]"


class SkipFrame(Exception):
    """The whole frame is left to eager.

    Args:
        reason: one line for the report.
        once: only this call; the next one is looked at again.
    """

    def __init__(self, reason: str, *, where: SourceLoc | None = None, once: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.where = where
        self.once = once


@dataclass(frozen=True, slots=True)
class BreakInfo:
    """A graph break as it is shown to the user.

    Attributes:
        place: the instruction at which it happens. The rounds of a loop, and recompilations, break at one place.
    """

    number: str
    reason: str
    where: SourceLoc | None
    stack: tuple[SourceLoc, ...] = ()
    place: tuple[int, int] = (0, 0)

    @property
    def hint(self) -> str:
        """What the user can do about it."""
        return REASONS[self.number].hint

    def describe(self) -> str:
        """The reason, the user's line with its text, and the hint, one per line."""
        lines = [self.reason]
        for loc in (*self.stack, *((self.where,) if self.where else ())):
            lines.append(f"  at {loc}")
            text = source_line(loc)
            if text:
                lines.append(f"      {text}")
        lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


def source_line(loc: SourceLoc | None) -> str:
    """The text of a source line, stripped; empty when it cannot be read."""
    return linecache.getline(loc.filename, loc.line).strip() if loc else ""
