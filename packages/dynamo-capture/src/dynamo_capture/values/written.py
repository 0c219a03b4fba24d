"""What a region writes for somebody to read: ``print`` and logging. It is written when the region's graph has run.

The region sees nothing of that, as long as what is written can be told now or does not change until then, and who
writes it is known: the standard library, into a stream that is implemented in C. All of it comes in the program's
order, before what the program does next. Where an operator of the graph raises, the frame runs again without capture,
and writes what it writes before the exception.

Where this cannot be had the region ends before the first thing that it writes (:func:`too_early`).
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import sys
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.breaks import EarlierEnd, GraphBreak
from dynamo_capture.rules import is_library_class
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.builtin_functions import builtin
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import ListValue, TupleValue
from dynamo_capture.values.dicts import DictValue
from dynamo_capture.values.objects import ObjectValue
from dynamo_capture.values.tensor import SymValue, TensorValue
from dynamo_capture.values.text import TextValue, has_symbols, text_of
from dynamo_capture.values.texts import text_from
from dynamo_capture.values.torch_calls import ALLOWED, special
from dynamo_capture.versions import version_of

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["may_run_programs_code", "too_early", "write_later"]

#: Operators that write nothing for anybody to read.
_SILENT = ("aten", "prim", "prims", "quantized")
#: Formats that take nothing but ``str`` of their arguments.
_AS_TEXT = re.compile(r"(?:[^%]|%%|%-?\d*s)*", re.DOTALL)
_HANDLERS = (logging.StreamHandler, logging.FileHandler, logging.NullHandler, type(logging.lastResort))


def write_later(tx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value], what: str) -> Value:
    """``fn(*args, **kwargs)`` when the graph has run; ``what`` names it in the reason for a break.

    Raises:
        GraphBreak: the graph is inside another one.
    """
    if not tx.graph.is_outermost:
        raise GraphBreak("QB11", what)
    made = [each.example for each in map(Value.realize, args) if isinstance(each, TensorValue) and each.source is None]
    tx.read_later(GraphBreak("QB11", what), made)
    tx.side.call_later(fn, args, kwargs)
    return ConstantValue(None)


def too_early(tx: Capture) -> EarlierEnd | None:
    """The first that is to be written before the graph has run, for which the region ends there; None if none is.

    It is where the graph writes into inputs, so that it cannot run again should it raise; where an operator of the
    graph may write something itself; and where the region changes afterwards what is written or who writes.
    """
    if not tx.written:
        return None
    changed = (value.obj for value in tx.side.mutated_values() if isinstance(value, ObjectValue))
    unsteady = tx.graph.writes_inputs or any(map(_writes, changed))
    unsteady |= any(map(may_run_programs_code, tx.graph.graph.nodes))
    if unsteady or tx.side.stores_into(sys.__dict__) or tx.changed(sys.__dict__) is not None:
        return tx.written[0]
    return next((each for each in tx.written if any(version_of(t) != version for t, version in each.tensors)), None)


def may_run_programs_code(node: torch.fx.Node) -> bool:
    """Whether a node may run code of the program's, which may print, or draw random numbers."""
    target = node.target
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        space = target.namespace if isinstance(target, torch._ops.OpOverload) else target._qualified_op_name
        return space.partition("::")[0] not in _SILENT
    return node.op == "call_function" and (isinstance(target, torch._ops.HigherOrderOperator) or target in ALLOWED)


def _writes(obj: Any) -> bool:
    """Whether an object has a part in how things are written."""
    return (
        isinstance(obj, (logging.Filterer, logging.Formatter, logging.Manager)) or obj is torch._tensor_str.PRINT_OPTS
    )


def _in_c(stream: Any) -> bool:
    """Whether a stream writes without running code of the program's."""
    write = inspect.getattr_static(type(stream), "write", None)
    return stream is None or isinstance(write, types.MethodDescriptorType)


def _stays(tx: Capture, value: Value, what: str) -> Value:
    """A value that is written later as it would be now.

    Raises:
        GraphBreak: it may change, or only the running program knows how it looks.
    """
    value = value.realize()
    if isinstance(value, (TextValue, SymValue)) or type(value) is ConstantValue:
        return value
    if isinstance(value, TensorValue):
        # One that the graph computes has another function that made it than in eager.
        if value.source is None and (value.example.requires_grad or value.example.is_inference()):
            raise GraphBreak("QB11", what)
        return value
    if value.pytype in (list, tuple, dict) and not has_symbols(value):
        return TextValue([(part, None, "") for part in _contents(value, what)])
    return text_from(tx, str, value)


def _contents(value: Value, what: str) -> list[Value]:
    """The parts of what ``repr`` gives for a constant, a symbolic number or a container of such, as it is now."""
    value = value.realize()
    if type(value) is ConstantValue:
        return [ConstantValue(repr(value.value))]
    if isinstance(value, (SymValue, TextValue)):
        return [text_of(value, repr)]
    if isinstance(value, (ListValue, TupleValue)) and value.pytype in (list, tuple):
        items = [_contents(item, what) for item in value.items]
        begin, end = "[]" if value.pytype is list else ("(", ",)" if len(items) == 1 else ")")
    elif isinstance(value, DictValue) and value.pytype is dict and value.source is None:
        pairs = [(_contents(key, what), _contents(item, what)) for key, item in value.entries.values()]
        items = [[*key, ConstantValue(": "), *item] for key, item in pairs]
        begin, end = "{}"
    else:
        raise GraphBreak("QB11", f"{what} of {display(value)}")
    parts = [part for item in items for part in (ConstantValue(", "), *item)][1:]
    return [ConstantValue(begin), *parts, ConstantValue(end)]


# --- print ------------------------------------------------------------------------------------------------------------


@builtin(print)
def _print(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if tx.may_be_caught():  # a text that the stream cannot encode, a closed stream
        raise GraphBreak("QB11", "print inside try, which may raise")
    given = {name: value.realize() for name, value in kwargs.items()}
    file = given.pop("file", None)
    if any(type(value) is not ConstantValue for value in given.values()):
        raise GraphBreak("QB11", "print")
    if file is None or (type(file) is ConstantValue and file.value is None):
        read: Callable[[], Any] = _standard_output
        given.pop("file", None)
    else:
        source = file.source
        read = {"stderr": _standard_error, "stdout": _standard_output}.get(str(source and source.key), _nowhere)
        if source is None or read() is not file.real():
            raise GraphBreak("QB11", "print into a file")
        given["file"] = file
    in_c = _errors_are_in_c if read is _standard_error else _output_is_in_c
    if not tx.guards.now(in_c, "print writes into a stream that is implemented in C"):
        raise GraphBreak("QB11", "print into a stream of the program's")
    return write_later(tx, print, [_stays(tx, arg, "print") for arg in args], given, "print")


def _output_is_in_c() -> bool:
    return _in_c(sys.stdout)


def _errors_are_in_c() -> bool:
    return _in_c(sys.stderr)


def _standard_output() -> Any:
    return sys.stdout


def _standard_error() -> Any:
    return sys.stderr


def _nowhere() -> Any:
    return _nowhere


# --- logging ----------------------------------------------------------------------------------------------------------


@special(logging.Logger._log)
def _log(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = ("self", "level", "msg", "args", "exc_info", "extra", "stack_info", "stacklevel")
    given = {name: value.realize() for name, value in zip(names, args, strict=False)}
    given |= {name: value.realize() for name, value in kwargs.items()}
    for name in ("exc_info", "extra", "stack_info"):
        value = given.get(name)
        if value is not None and not (type(value) is ConstantValue and not value.value):
            raise GraphBreak("QB11", f"logging with {name}")
    logger, message = given["self"].real(), given["msg"]
    items = given["args"].unpack(tx)
    if type(logger) not in (logging.Logger, logging.RootLogger) or not tx.guards.now(
        lambda: _by_the_library(logger), f"the library alone writes what {logger!r} logs"
    ):
        raise GraphBreak("QB11", "logging by a handler, filter or logger of the program's")
    if message.pytype is not str:
        raise GraphBreak("QB11", "logging of an object that is no text")
    level = given.get("stacklevel", ConstantValue(1))
    where = _caller(tx, level.const())
    stays = [_stays(tx, item, "logging") for item in items]
    holds = [item for item in items if isinstance(item.realize(), (ListValue, TupleValue, DictValue, ObjectValue))]
    as_text = type(message) is ConstantValue and _AS_TEXT.fullmatch(message.value)
    if holds and (not as_text or any(isinstance(item.realize(), DictValue) for item in holds)):
        raise GraphBreak("QB11", "logging of an object in a format that may look into it")
    call = _LogCall(logger, given["level"].const(), *where)
    return write_later(tx, call, [message, *stays], {}, "logging")


class _LogCall:
    """Runs in the emitted code: a message of a logger, from where it was logged."""

    def __init__(self, logger: logging.Logger, level: int, file: str, line: int, function: str) -> None:
        self.logger, self.level, self.place, self.function = logger, level, (file, line), function

    def __call__(self, message: str, *args: Any) -> None:
        logger = self.logger
        made = logger.makeRecord(logger.name, self.level, *self.place, message, args, None, self.function, None, None)
        logger.handle(made)


def _caller(tx: Capture, level: int) -> tuple[str, int, str]:
    """File, line and function of the frame that logs, the ``level``-th one outside of the library.

    Raises:
        GraphBreak: it is a caller of the captured frame.
    """
    for frame in reversed(tx.frames):
        if os.path.normcase(frame.decoded.shown.co_filename) != logging._srcfile:  # type: ignore[attr-defined]
            level -= 1
            if level <= 0:
                return frame.decoded.shown.co_filename, frame.location().line, frame.decoded.shown.co_name
    raise GraphBreak("QB11", "logging in the name of a caller")


def _by_the_library(logger: logging.Logger) -> bool:
    """Whether nothing of what a message of the logger goes through is the program's."""
    if logging.getLogRecordFactory() is not logging.LogRecord or not _unfiltered([logger]):
        return False
    found: list[logging.Handler] = []
    at: logging.Logger | None = logger
    while at is not None:
        found += at.handlers
        at = at.parent if at.propagate else None
    if not found and logging.lastResort is not None:
        found = [logging.lastResort]
    return _unfiltered(found) and all(map(_is_plain, found))


def _unfiltered(parts: Iterable[Any]) -> bool:
    return not any(part.filters for part in parts)


def _is_plain(handler: logging.Handler) -> bool:
    formatter = handler.formatter
    known = type(handler) in _HANDLERS and (formatter is None or is_library_class(type(formatter)))
    return known and not vars(handler).keys() & {"emit", "handle", "format"} and _in_c(getattr(handler, "stream", None))
