"""What a user sees of long work on a terminal: a bar for each, how much is done, and what time is left.

Nothing is shown of what takes less than a second, and nothing stays: what was done is in the report and in the logs.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from prims.forking import lock
from prims.options import Options
from prims.records import record

__all__ = ["Bar", "time_left", "watcher"]

log = logging.getLogger("quintet")

#: Seconds that work must take to be shown.
PATIENCE = 1.0
_WIDTH = 60


@record(frozen=False)
class _Work:
    began: float
    text: str
    done: int
    total: int
    task: Any = None


class Bar:
    """``progress(what, done, total)`` as bars on standard error that are gone when all is done.

    A program has one, for several threads may compile at once.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self.patience = patience
        self.works: dict[tuple[int, str], _Work] = {}
        self.shown: Any = None
        self.timer: threading.Timer | None = None
        self.broken = False
        self.lock = lock()

    def __call__(self, what: str, done: int, total: int) -> None:
        key = (threading.get_ident(), what.partition(":")[0])
        with self.lock, self._harmless():
            work = self.works.get(key)
            if done >= total:
                self._end(key, work)
                return
            if work is None:
                work = self.works[key] = _Work(time.monotonic(), what, done, total)
                self._wait()
            work.text, work.done, work.total = what, done, total
            if self.shown is not None and not self.broken:
                self._draw(work)

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """A terminal that nothing can be drawn on is no reason for anything to fail: nothing is drawn any more."""
        try:
            yield
        except Exception:
            log.info("progress cannot be shown", exc_info=True)
            self.broken = True

    def _wait(self) -> None:
        """Begin to show what there is after a while."""
        if self.timer is None and self.shown is None and not self.broken:
            self.timer = threading.Timer(self.patience, self._show)
            self.timer.daemon = True
            self.timer.start()

    def _show(self) -> None:
        with self.lock, self._harmless():
            self.timer = None
            if not self.works:
                return
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (TextColumn("{task.description}"), BarColumn())
            self.shown = Progress(*columns, console=Console(stderr=True), transient=True)
            self.shown.start()
            for work in self.works.values():
                self._draw(work)

    def _draw(self, work: _Work) -> None:
        kind, _, detail = work.text.partition(":")
        left = time_left(time.monotonic() - work.began, work.done, work.total)
        text = f"{kind} {work.done} of {work.total}{left}{':' if detail else ''}{detail}"
        text = text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."
        if work.task is None:
            work.task = self.shown.add_task(text, total=work.total, completed=work.done)
        self.shown.update(work.task, description=text.replace("[", "\\["), completed=work.done, total=work.total)

    def _end(self, key: tuple[int, str], work: _Work | None) -> None:
        self.works.pop(key, None)
        if self.shown is not None and work is not None and work.task is not None:
            self.shown.remove_task(work.task)
        if self.works:
            return
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.shown is not None:
            self.shown.stop()
            self.shown = None


def time_left(spent: float, done: int, total: int) -> str:
    """``", about 12 s left"`` at the rate so far; nothing where there is no rate yet."""
    if not 0 < done < total:
        return ""
    left = round(spent / done * (total - done))
    return f", about {left // 60} min left" if left >= 120 else f", about {max(left, 1)} s left"


_bar: Bar | None = None


def watcher(options: Options) -> Callable[[str, int, int], None] | None:
    """What to hand to ``Report.progress``: a bar where a person looks, wants one, and rich is installed."""
    global _bar
    if not (options.progress and sys.stderr is not None and sys.stderr.isatty()):
        return None
    if os.environ.get("TERM") == "dumb" or os.environ.get("LOCAL_RANK", "0") != "0":  # one of several processes tells
        return None
    import importlib.util

    if importlib.util.find_spec("rich") is None:
        return None
    if _bar is None:
        _bar = Bar()
    return _bar
