"""What the stages say through ``logging``, at DEBUG: one logger for each subject, ``quintet.<name>``.

A logger's level is the switch: ``logging.getLogger("quintet.breaks").setLevel(logging.DEBUG)``. :func:`set_logs`,
``Options.logs`` and the variable ``QUINTET_LOGS`` set levels, and print to standard error in programs that have not set
up logging. A subject that nobody asked for costs one look at its level.
"""

from __future__ import annotations

import linecache
import logging
import re
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from prims.errors import UserError

if TYPE_CHECKING:
    from prims.report import Report

__all__ = ["LOGS", "parse_logs", "say", "set_logs", "show_logs", "shown", "wanted"]

#: What there is to see, by name.
LOGS = {
    "breaks": "where capture stops and why, what to do about it, and what is left to eager",
    "recompiles": "each repeated capture, with the guard that failed",
    "guards": "what each captured graph assumes, with the line that needs it",
    "graphs": "each graph: captured, ATen forward and backward, primitive",
    "schedule": "rewritten and fused graphs, kernels in order, memory plans",
    "code": "generated kernels with the lines that they compute, and the function that runs them",
    "cache": "programs loaded, missed and stored, with what differs; kernels found in memory, on disk, or compiled",
    "perf": "seconds of each phase, choices by measurement, memory at the peak",
}

_LOGGERS = {name: logging.getLogger(f"quintet.{name}") for name in LOGS}
_PLACE = re.compile(r"(.+):(\d+)(?: in .*)?")


class _ToStandardError(logging.StreamHandler[Any]):
    """Prints where the program has not set up logging; where it has, the root's handlers print."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.stream = sys.stderr  # as it is now: tests and notebooks exchange it
            super().emit(record)


_handler: _ToStandardError | None = None


def parse_logs(names: str | Iterable[str]) -> tuple[str, ...]:
    """The names in a text such as ``"breaks,code"``, or in a list, each once; ``"all"`` stands for every one.

    Raises:
        UserError: there is no such name; the nearest one is named.
    """
    given = names.split(",") if isinstance(names, str) else list(names)
    found: list[str] = []
    for name in (str(one).strip().lower() for one in given):
        if name == "all":
            found += LOGS
        elif name and name not in LOGS:
            import difflib

            near = difflib.get_close_matches(name, [*LOGS, "all"], n=1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            raise UserError(f"there is no log named {name!r}", todo=f"{hint}Logs are: {', '.join(LOGS)}; or all.")
        elif name:
            found.append(name)
    return tuple(dict.fromkeys(found))


def show_logs(names: str | Iterable[str]) -> None:
    """Set the level of these logs to DEBUG, and leave the others as they are."""
    global _handler
    wanted = parse_logs(names)
    if not wanted:
        return
    if _handler is None:
        _handler = _ToStandardError()
        _handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
        logging.getLogger("quintet").addHandler(_handler)
    for name in wanted:
        _LOGGERS[name].setLevel(logging.DEBUG)


def set_logs(*names: str) -> None:
    """Show these logs (see :data:`LOGS`), for the whole process, and no others; without names, none.

    Raises:
        UserError: there is no such name.
    """
    chosen = parse_logs(",".join(names))
    for name, logger in _LOGGERS.items():
        if name not in chosen:
            logger.setLevel(logging.NOTSET)
    show_logs(chosen)


def wanted(name: str) -> bool:
    """Whether anybody listens."""
    return _LOGGERS[name].isEnabledFor(logging.DEBUG)


def shown() -> tuple[str, ...]:
    """The logs that were asked for by name: by ``Options.logs``, :func:`set_logs`, or a level of their own loggers."""
    return tuple(name for name, logger in _LOGGERS.items() if logger.level == logging.DEBUG)


def say(name: str, report: Report | None, text: str | Callable[[], str], where: object = None) -> None:
    """Log a message at DEBUG, once for each report where it repeats.

    Args:
        name: one of :data:`LOGS`.
        text: the message, or what makes it where somebody listens.
        where: the user's source location; its line is added.
    """
    if not wanted(name):
        return
    message = text if isinstance(text, str) else text()
    message += f"\n  at {where}{_line(where)}" if where is not None else ""
    if report is None or report.is_new(f"{name}: {message}"):
        _LOGGERS[name].debug("%s", message)


def _line(where: object) -> str:
    """The text of a source line, below its place."""
    found = _PLACE.fullmatch(str(where))
    text = linecache.getline(found[1], int(found[2])).strip() if found else ""
    return f"\n      {text}" if text else ""
