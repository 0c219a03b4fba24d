"""Exceptions of a program's signal handlers (a time limit by ``SIGALRM``): no failures of what they interrupt.

A handler runs between two instructions of the main thread, whatever these are of. While something is compiled, code
that takes any ``Exception`` for a failure, and goes on without what failed, would swallow it.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # whose functions make no enums: compiling asks for every handler
import contextlib
import threading
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

__all__ = ["comes_of_signal", "letting_signals_through"]


class _Raised(BaseException):
    """Carries what a handler raised past code that takes exceptions for failures."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class _Handler:
    """Runs in the place of a program's handler."""

    def __init__(self, handler: Any) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        try:
            self.handler(number, frame)
        except Exception as error:
            raise _Raised(error) from None


def _handlers() -> Iterator[tuple[int, Any]]:
    """The handlers written in Python, but for Ctrl-C's usual one, whose exception is no ``Exception``."""
    for number in range(1, _signal.NSIG):
        handler = _signal.getsignal(number)
        if callable(handler) and handler is not _signal.default_int_handler:
            yield number, handler


_inside = False


@contextlib.contextmanager
def letting_signals_through() -> Iterator[None]:
    """What a handler raises meanwhile ends the block, past every ``except Exception`` in it.

    Only the main thread runs handlers, and only it may exchange them: for others nothing happens.
    """
    global _inside
    if _inside or threading.current_thread() is not threading.main_thread():
        yield
        return
    exchanged: list[tuple[int, _Handler]] = []
    _inside = True
    try:
        for number, handler in _handlers():
            own = _Handler(handler)
            exchanged.append((number, own))
            _signal.signal(number, own)
        yield
    except _Raised as raised:
        raise raised.error from raised.error.__cause__
    finally:
        _inside = False
        for number, own in exchanged:
            if _signal.getsignal(number) is own:  # the program may have set another one meanwhile
                _signal.signal(number, own.handler)


def comes_of_signal(error: BaseException) -> bool:
    """Whether a handler of a signal raised the error, by its traceback."""
    codes: set[CodeType] = set()
    for _, handler in _handlers():
        function = getattr(handler, "func", handler)  # of a partial
        function = getattr(function, "__func__", function)
        code = getattr(function, "__code__", None) or getattr(vars(type(function)).get("__call__"), "__code__", None)
        if code is not None:
            codes.add(code)
    at = error.__traceback__
    while at is not None:
        if at.tb_frame.f_code in codes:
            return True
        at = at.tb_next
    return False
