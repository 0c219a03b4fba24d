"""What emitted code calls besides graphs, resume functions and the program's own objects.

Nothing here needs the interpreter, so that code which comes from a store runs without it.
"""

from __future__ import annotations

import sys
import traceback
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture import _native
from dynamo_capture.rules import code_of
from prims.errors import QuintetError

if TYPE_CHECKING:
    from prims.report import Report

__all__ = ["Again", "NextPart", "nest_autocast", "run_loop"]


class NextPart(tuple):  # type: ignore[type-arg]
    """What code resumed in a loop returns: the function that goes on, and its arguments.

    Were it called from there, a loop of a thousand rounds would be a thousand calls deep.
    """

    __slots__ = ()


def run_loop(fn: Callable[..., Any], *args: Any) -> Any:
    """Runs in the emitted code: what ``fn`` returns, when all parts of the loop that it is in have run."""
    result = fn(*args)
    while type(result) is NextPart:
        fn, *rest = result
        result = fn(*rest)
    return result


def nest_autocast(levels: int) -> None:
    """Runs in the emitted code: autocast regions that were entered (negative: left) since the frame began."""
    for _ in range(levels):
        torch.autocast_increment_nesting()
    for _ in range(-levels):
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()


_hooks_in_use = torch._C._autograd._top_saved_tensors_default_hooks


def _raised_where_saved(error: BaseException) -> bool:
    """Whether it comes from the program's ``saved_tensors_hooks``.

    A checkpoint's end the forward pass that it runs again so, once they have what they want. They are called when the
    graph has run, and has written, and are not to be called for it again.
    """
    hooks = _hooks_in_use(True)
    if hooks is None:
        return False
    code = code_of(hooks[0])
    return code is not None and any(frame.f_code is code for frame, _ in traceback.walk_tb(error.__traceback__))


class Again:
    """Runs in the emitted code where a graph has raised: the frame from its beginning, without capture.

    Args:
        code: the frame's code.
        names: the names of its parameters, in the order in which their values are given; after them come its cells.
        report: told once.
    """

    def __init__(self, code: types.CodeType, names: tuple[str, ...], report: Report | None, where: str) -> None:
        self.code = weakref.ref(code)  # which owns the emitted code, and lives as long as the frame
        self.names = names
        self.report = report
        self.where = where

    def __call__(self, error: BaseException, *values: Any) -> Any:
        if not isinstance(error, Exception) or isinstance(error, QuintetError) or _raised_where_saved(error):
            raise error
        if self.report is not None:
            todo = f"It raised {type(error).__name__}: see what the call was given there."
            self.report.fallback("capture", "an operator raised: such calls run eagerly", self.where, todo=todo)
            self.report = None
        code: Any = self.code()
        given = dict(zip(self.names, values, strict=False))
        globals_ = sys._getframe(1).f_globals
        function = types.FunctionType(code, globals_, code.co_name, None, values[len(self.names) :])
        positional = code.co_varnames[: code.co_argcount]
        by_name = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
        at = code.co_argcount + code.co_kwonlyargcount
        rest: tuple[Any, ...] = ()
        named: dict[str, Any] = {}
        if code.co_flags & 0x04:
            rest = given[code.co_varnames[at]]
            at += 1
        if code.co_flags & 0x08:
            named = given[code.co_varnames[at]]
        args = [given[name] for name in positional]
        return _native.activate(function, None)(*args, *rest, **{name: given[name] for name in by_name}, **named)
