"""The stance of the process: what its compiled callables do with calls, for as long as it is set.

It is no option, since it is about calls, not about how something is compiled: nothing that is kept depends on it. It is
one for all threads. ``dynamo_capture.set_stance`` is how programs set it.
"""

from __future__ import annotations

import difflib
import threading
import weakref
from collections.abc import Callable
from typing import Any

from prims.errors import UserError
from prims.forking import lock
from prims.options import Options
from prims.records import record
from prims.report import Report

__all__ = ["STANCES", "Setting", "add", "current", "named", "raises_defects", "remove", "watch"]

#: What there is, by name.
STANCES = {
    "default": "calls are compiled, and captured again where their guards do not hold",
    "eager": "every call runs as if nothing were compiled; what is compiled stays for later",
    "fail_on_recompile": "compiled code serves where its guards hold; a call that would be captured is an error",
    "eager_on_recompile": "compiled code serves where its guards hold; a call that would be captured runs eagerly",
    "strict": "what would be left to eager is an error; graph breaks are not",
}
_OTHER_NAMES = {"force_eager": "eager"}
_NOT_NEEDED = {
    "eager_then_compile": "A size that changes becomes symbolic at its second capture; mark_dynamic() makes it so at "
    "the first.",
    "aot_eager_then_compile": "A size that changes becomes symbolic at its second capture; mark_dynamic() makes it so "
    "at the first.",
}


@record(frozen=False)
class Setting:
    """One stance that was set, and has not ended.

    Attributes:
        owner: the object that may yet enter and leave it as a context; dead where it was set for good.
        entered: it ends by itself, with its ``with`` statement or call.
    """

    stance: str
    thread: int
    owner: Callable[[], Any]
    entered: bool = False


_lock = lock()
#: The last one counts.
_settings: list[Setting] = []
_now = "default"
_watchers: list[Callable[[str], None]] = []


def current() -> str:
    """The stance of now: a key of :data:`STANCES`."""
    return _now


def named(name: str) -> str:
    """The stance of a name, which may be PyTorch's.

    Raises:
        UserError: there is none; the nearest name is said, or why there is none.
    """
    if name in _NOT_NEEDED:
        raise UserError(f"there is no stance {name!r}", todo=_NOT_NEEDED[name])
    found = _OTHER_NAMES.get(name, name) if isinstance(name, str) else name
    if found not in STANCES:
        near = difflib.get_close_matches(str(name), [*STANCES, *_OTHER_NAMES], n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise UserError(f"there is no stance {name!r}", todo=f"{hint}Stances are: {', '.join(STANCES)}.")
    return found


def watch(told: Callable[[str], None]) -> None:
    """``told(stance)`` is called now and at each change."""
    with _lock:
        _watchers.append(told)
        told(_now)


def add(stance: str, owner: Any, *, entered: bool = False) -> Setting:
    """Set a stance, until :func:`remove`."""
    setting = Setting(stance, threading.get_ident(), weakref.ref(owner), entered)
    with _lock:
        first = len(_settings)
        while first and not _settings[first - 1].entered and _settings[first - 1].owner() is None:
            first -= 1
        del _settings[first:-1]  # of those that were set for good, one after another, the last one counts
        _settings.append(setting)
        _changed()
    return setting


def remove(setting: Setting) -> None:
    """End one, with what its own thread has set for good since; what other threads have set stays."""
    with _lock:
        at = next((k for k, one in enumerate(_settings) if one is setting), None)
        if at is None:
            return
        later = _settings[at + 1 :]
        _settings[at:] = [one for one in later if one.entered or one.thread != setting.thread]
        _changed()


def _changed() -> None:
    global _now
    _now = _settings[-1].stance if _settings else "default"
    for told in _watchers:
        told(_now)


def raises_defects(options: Options, report: Report | None = None, error: BaseException | None = None) -> bool:
    """Whether a failure of ours is raised rather than left to eager: ``Options.strict``, or the stance ``"strict"``."""
    if options.strict:
        return True
    if _now != "strict":
        return False
    if report is not None:
        report.under_stance("strict", "raised", f"{type(error).__name__}: {error}" if error is not None else "")
    return True
