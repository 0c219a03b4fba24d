"""What a user sees while candidates are measured: a bar on a terminal. The log has a line for each, at INFO."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

__all__ = ["Bar", "watcher"]


class Bar:
    """``progress(what, done, total)`` as a bar on standard error that is gone when all is done."""

    def __init__(self) -> None:
        self.shown: Any = None
        self.task: Any = None

    def __call__(self, what: str, done: int, total: int) -> None:
        if self.shown is None:
            self._start()
        if len(what) > 60:
            what = what[:57] + "..."
        self.shown.update(self.task, description=f"autotuning: {what}", completed=done, total=total)
        if done >= total:
            self.shown.stop()
            self.shown = None

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self.shown = Progress(console=Console(stderr=True), transient=True)
        self.shown.start()
        self.task = self.shown.add_task("autotuning")


def watcher() -> Callable[[str, int, int], None] | None:
    """What to hand to ``Report.progress``: a bar where a person looks and rich is installed."""
    if not sys.stderr.isatty():
        return None
    import importlib.util

    return Bar() if importlib.util.find_spec("rich") is not None else None
