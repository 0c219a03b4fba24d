"""Functions that look at the frames of the program: those frames have to be the program's own."""

from __future__ import annotations

import builtins
import inspect
import sys
import traceback
from typing import TYPE_CHECKING

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.rules import is_library_file
from dynamo_capture.values.base import Value
from dynamo_capture.values.builtin_functions import builtin
from dynamo_capture.values.callables import ClassValue
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import TupleValue
from dynamo_capture.values.objects import TracebackValue
from dynamo_capture.values.torch_calls import special

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__: list[str] = []


@builtin(locals)
def _locals(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise GraphBreak("QB21", "locals()", leaves="frame")


@builtin(eval, exec)
def _eval(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    # With a namespace they see nothing of the frame; before 3.13 it is given by position alone.
    own = len(args) + len(kwargs) < 2
    raise GraphBreak("QB21" if own else "QB03", "eval() or exec()", leaves="frame" if own else None)


@builtin(compile)
def _compile(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise GraphBreak("QB03", "compile()")


@builtin(builtins.__import__)
def _import(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise GraphBreak("QB15", "__import__()")


@builtin(sys._getframe)
def _getframe(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    code = tx.frames[-1].code
    if is_library_file(code.co_filename):
        # Libraries ask for the names of files and functions, which the frames of emitted code have too.
        raise GraphBreak("QB21", f"sys._getframe() in {code.co_qualname}")
    depth = args[0].realize() if args else ConstantValue(0)
    own = depth.is_const and depth.const() == 0
    raise GraphBreak("QB21", "sys._getframe()", leaves="frame" if own else "callers")


@builtin(sys.exc_info)
def _exc_info(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    error = _handled(tx)
    if type(error) is ConstantValue:
        return TupleValue([error] * 3)
    return TupleValue([ClassValue(error.pytype), error, TracebackValue()])


@builtin(sys.exception)
def _exception(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _handled(tx)


def _handled(tx: Capture) -> Value:
    """The exception being handled, or None, where that is so of the callers too (guarded)."""
    error = tx.handled()
    if error is not None:
        return error.realize()
    if tx.outer_error is not None:
        raise GraphBreak("QB21", "the exception that a caller is handling")
    tx.guards.state(sys.exception, None, "the exception that callers handle")
    return ConstantValue(None)


@special(inspect.currentframe)
def _currentframe(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise GraphBreak("QB21", "inspect.currentframe()", leaves="callers")  # its f_back is the caller


@special(inspect.stack, inspect.getouterframes, inspect.trace, traceback.walk_stack)
def _stack(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise GraphBreak("QB21", "the stack of frames", leaves="callers")
