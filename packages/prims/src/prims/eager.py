"""The one way to leave to eager what was to be compiled: recorded, warned of once, refused under ``fullgraph``."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

from prims.background import keep_warning
from prims.errors import CompileWarning, NotCompiled, Unsupported, UserError
from prims.options import Options
from prims.report import Report
from prims.stance import current

__all__ = ["leave_to_eager", "run_instead", "warn_user"]

#: Whose frames stand between the user's line and a warning.
_NOT_THE_USERS = frozenset((
    "prims", "dynamo_capture", "aot_autograd", "inductor_gen", "compile_api", "torch",
    "contextlib", "functools", "threading", "concurrent",  # whose functions call those
))  # fmt: skip


def leave_to_eager(
    report: Report | None,
    options: Options | None,
    stage: str,
    reason: str,
    where: object = None,
    *,
    subject: str = "graph",
    todo: str | None = None,
    cause: BaseException | None = None,
    quiet: bool = False,
) -> None:
    """Record that a part of the program runs eagerly, and warn once for each report and reason.

    Args:
        stage: who leaves it.
        reason: one line that a user can act on.
        where: the user's source location, when known.
        subject: what is left, as in :class:`prims.report.StatusRecord`.
        todo: what to do about it; None for what there is to do about an error of the kind of ``cause``.
        cause: the exception behind it.
        quiet: no warning: a part of a call that else runs compiled.

    Raises:
        NotCompiled: under ``options.fullgraph``, and the stance ``"strict"``.
    """
    todo = _todo(cause) if todo is None else todo
    if current() == "strict" and not (options is not None and options.fullgraph):
        if report is not None:
            report.under_stance("strict", "refused", reason, where)
        at = None if where is None else str(where)
        advice = f"\n  {todo}" if todo else ""
        raise NotCompiled(f"the stance is 'strict', but this runs eagerly: {reason}{advice}", where=at) from cause
    refused = options is not None and options.fullgraph
    if report is not None:
        recorded = report.status(subject, "refused" if refused else "eager", reason, where)
        if recorded and not any(f.reason == reason for f in report.fallbacks):
            report.fallback(stage, reason, where, todo=todo)
        for policy in report.asked if recorded else ():
            report.policy(policy, stage, f"left to eager: {reason}", where, held=False)
    if refused:
        at = None if where is None else str(where)
        raise NotCompiled(
            f"fullgraph=True, but this runs eagerly: {reason}" + (f"\n  {todo}" if todo else ""), where=at
        ) from cause
    if not quiet:
        _tell(report, reason, where, todo)


def _tell(report: Report | None, reason: str, where: object, todo: str) -> None:
    if report is None or report.warns(reason):
        at = "" if where is None else f"\n  at {where}"
        warn_user(f"This runs eagerly, without compiled code: {reason}{at}" + (f"\n  {todo}" if todo else ""))


def run_instead(
    run: Callable[..., Any],
    report: Report | None,
    options: Options | None,
    stage: str,
    reason: str,
    where: object = None,
    *,
    cause: BaseException,
    todo: str | None = None,
) -> Callable[..., Any]:
    """As :func:`leave_to_eager`, with what runs instead; gives that, and the warning waits until it has run once.

    What a stage did not take may be a mistake of the program, such as operands that do not fit: ``run`` raises it as
    well, at the user's line, and there is nothing to be told.
    """
    leave_to_eager(report, options, stage, reason, where, todo=todo, cause=cause, quiet=True)
    untold, advice = [True], _todo(cause) if todo is None else todo  # nothing here holds the error and its frames

    def run_and_tell(*args: Any, **kwargs: Any) -> Any:
        result = run(*args, **kwargs)
        if untold:
            untold.clear()
            _tell(report, reason, where, advice)
        return result

    return run_and_tell


def _todo(error: BaseException | None) -> str:
    if error is None or isinstance(error, UserError):  # whose text says it
        return ""
    if isinstance(error, Unsupported):
        return "The results are eager's; to have the rest compiled, keep this out of the compiled function."
    return (
        "The results are eager's. Please report it: options={'strict': True} raises the error behind it, and "
        "compile_api.minify makes a small script of it."
    )


def warn_user(message: str) -> None:
    """A :class:`prims.errors.CompileWarning` at the user's line: the innermost frame that is not ours or torch's.

    What is compiled in the background has no such line: the call that takes it over warns.
    """
    if keep_warning(message):
        return
    level = 1
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        level += 1
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _NOT_THE_USERS:
            break
        frame = frame.f_back
    warnings.warn(message, CompileWarning, stacklevel=level)
