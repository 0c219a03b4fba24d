"""What the stages make, kept as files for a person to read (``Options.debug``)."""

from __future__ import annotations

import itertools
import os
import re
import sys
import time
from collections.abc import Callable

from prims.eager import warn_user
from prims.forking import lock
from prims.logs import say, wanted
from prims.options import Options
from prims.report import Report

__all__ = ["folder_of", "keep", "place_for"]

_lock = lock()
_numbers = itertools.count(1)
#: This process's folder, by the cache folder and the process (a fork has one of its own).
_folders: dict[tuple[str, int], str | None] = {}


def keep(
    options: Options, report: Report | None, what: str, text: Callable[[], str], suffix: str = ".txt",
    log: str = "graphs",
) -> None:  # fmt: skip
    """Log a stage's text, and under ``options.debug`` write it into a folder under ``cache_dir`` and print where it is.

    Args:
        report: gets a record of the file.
        what: names the text, such as ``"aten forward"``; part of the file's name.
        text: makes the text; an exception of it is kept in its place.
        suffix: of the file's name.
        log: the log that it belongs to (:data:`prims.logs.LOGS`); empty where it is logged elsewhere.
    """
    if log and wanted(log):
        say(log, report, lambda: f"{what}\n{_made(text)}")
    if not options.debug:
        return
    path = place_for(options, what, suffix)
    if path is None:
        return
    content = _made(text)
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(content if content.endswith("\n") else content + "\n")
    except OSError as error:
        warn_user(f"debug=True cannot write {path}: {error}")
        return
    print(f"quintet: {what}: {path}", file=sys.stderr)
    if report is not None:
        report.keep(what, path)


def place_for(options: Options, what: str, suffix: str) -> str | None:
    """The path of a new file in this process's folder under ``cache_dir``; None, and a warning, where there is none."""
    folder = folder_of(options.cache_dir)
    name = re.sub(r"[^A-Za-z0-9.]+", "-", what).strip("-")[:80]
    return None if folder is None else os.path.join(folder, f"{next(_numbers):04}-{name}{suffix}")


def _made(text: Callable[[], str]) -> str:
    try:
        return text()
    except Exception as error:
        return f"cannot be written down: {type(error).__name__}: {error}\n"


def folder_of(cache_dir: str) -> str | None:
    """This process's folder under ``cache_dir``, made where there is none; None, and a warning, where it cannot be."""
    key = (cache_dir, os.getpid())
    with _lock:
        if key not in _folders:
            path = os.path.join(cache_dir, "debug", f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
            try:
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
                os.mkdir(path, mode=0o700)  # a new one: nobody has put links into it
            except OSError as error:
                warn_user(f"debug=True cannot make the folder {path}: {error}")
                path = ""
            _folders[key] = path or None
        return _folders[key]
