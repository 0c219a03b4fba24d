"""The error types that all stages share.

Every message says what is wrong, where, and what to do about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prims.source import SourceLoc

__all__ = [
    "CompileWarning",
    "DataDependentError",
    "InternalError",
    "InvalidData",
    "LeftWhole",
    "NotCompiled",
    "QuintetError",
    "Refused",
    "StoredGraphError",
    "Unsupported",
    "UserError",
    "VerifierError",
]


class CompileWarning(UserWarning):
    """A program, or a part of it that was to be compiled, runs eagerly; the message says why."""


def _clipped(text: str) -> str:
    """A message that shows what a file says is no longer than people read."""
    return text if len(text) <= 1000 else text[:700] + " ... " + text[-200:]


class QuintetError(Exception):
    """Base of every error that Quintet raises on its own account."""


class UserError(QuintetError, ValueError):
    """Bad input from the user. Never swallowed by a fallback.

    Args:
        what: what is wrong; names the offending value.
        where: the user's source location, when there is one.
        todo: what to do about it.
    """

    def __init__(self, what: str, *, where: SourceLoc | str | None = None, todo: str | None = None) -> None:
        text = what
        if where is not None:
            text += f"\n  at {where}"
        if todo:
            text += f"\n  {todo}"
        super().__init__(text)
        self.what = what
        self.where = where
        self.todo = todo


class StoredGraphError(UserError):
    """A stored graph is not one that a stage wrote: it breaks a rule for files, and nothing of it was run.

    Args:
        label: the rule's label, such as ``FILE-C1`` (see ``docs/ir.md``).
        what, where, todo: as for :class:`UserError`.
    """

    def __init__(
        self, label: str, what: str, *, where: SourceLoc | str | None = None, todo: str | None = None
    ) -> None:
        super().__init__(f"[{label}] {_clipped(what)}", where=where, todo=todo)
        self.label = label


class Unsupported(QuintetError, RuntimeError):
    """A stage cannot do this. It becomes a graph break or a fallback to eager.

    Args:
        reason: one line that a user can act on.
        where: the user's source location, when known.
    """

    def __init__(self, reason: str, *, where: SourceLoc | str | None = None) -> None:
        super().__init__(reason if where is None else f"{reason}\n  at {where}")
        self.reason = reason
        self.where = where


class NotCompiled(Unsupported):
    """``fullgraph=True`` refuses what would run eagerly."""


class LeftWhole(Unsupported):
    """PyTorch's own kernel is the better way to compute this call; it stays one node, and that is no fallback."""


class DataDependentError(Unsupported):
    """The program needs a tensor's value where only its metadata is known."""


class InvalidData(QuintetError, RuntimeError):
    """Generated code met data that the program must not have: an index out of range, a division of integers by zero.

    Eager raises an error of its own there, which is the one to show.
    """


class VerifierError(QuintetError):
    """An envelope breaks a numbered constraint of its dialect.

    Args:
        label: the constraint's label, such as ``ATEN-C4`` (see ``docs/ir.md``).
        message: what is wrong.
        node: the name of the offending node or descriptor, when there is one.
        after: the pass after which it was found.
    """

    def __init__(self, label: str, message: str, *, node: str | None = None, after: str | None = None) -> None:
        message = _clipped(message)
        text = f"[{label}] {message}"
        if node:
            text += f" (at {node})"
        if after:
            text += f" (after pass {after!r})"
        super().__init__(text)
        self.label = label
        self.message = message
        self.node = node
        self.after = after


class InternalError(QuintetError, RuntimeError):
    """A defect in Quintet itself. Falls back to eager unless ``Options.strict``."""


class Refused(QuintetError, RuntimeError):
    """A library refused operands that eager would have given it too, and must not be given them again.

    It is the program's own error: the region is not run again.
    """
