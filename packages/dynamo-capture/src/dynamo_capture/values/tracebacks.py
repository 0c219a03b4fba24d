"""Tracebacks of exceptions that the region raised and that live on: frames that show the program's files and lines."""

from __future__ import annotations

import sys
import types
from typing import Any

from dynamo_capture import _native

__all__ = ["Trail", "as_raised"]


class Trail:
    """Where an exception was raised and passed on.

    Args:
        places: (code, globals, line), innermost first.
    """

    __slots__ = ("places",)

    def __init__(self, places: list[tuple[types.CodeType, dict[str, Any], int]]) -> None:
        self.places = [(_shown_as(code), globals_, line) for code, globals_, line in places]

    def traceback(self) -> types.TracebackType | None:
        """A traceback of frames that show the same files, functions and lines, without their variables."""
        last: types.TracebackType | None = None
        frame: types.FrameType | None = None
        for code, globals_, line in self.places:
            frame = _native.activate(types.FunctionType(code, globals_, "", None, (_getframe,)), None)()
            last = types.TracebackType(last, frame, -1, line)
        try:
            return last
        finally:
            del last, frame  # whose caller is this frame


def as_raised(error: BaseException, trail: Trail, *context: BaseException | None) -> None:
    """Runs in the emitted code: gives an exception its traceback and context (else what is being handled)."""
    error.__traceback__ = trail.traceback()
    now = context[0] if context else sys.exception()
    error.__context__ = None if now is error else now
    del error, now, context  # whose traceback's frames were called from here


def _frame_of(getframe: Any) -> Any:
    def itself() -> Any:
        return getframe(0)

    return itself


_template = _frame_of(sys._getframe)
_getframe = _template.__closure__[0]


def _shown_as(code: types.CodeType) -> types.CodeType:
    """Code that gives its own frame, under another's name."""
    return _template.__code__.replace(  # type: ignore[no-any-return]
        co_name=code.co_name, co_qualname=code.co_qualname, co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
    )  # fmt: skip
