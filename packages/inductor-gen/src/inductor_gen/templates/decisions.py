"""Choices by measurement, kept on disk: ``<cache_dir>/autotune/<key>.json``."""

from __future__ import annotations

from typing import Any

from prims.disk.cache import Entries
from prims.disk.folders import UnsafeFolder, private_folder, warn_of
from prims.options import Options

__all__ = ["Decisions"]

LIMIT = 20000  # files


class Decisions:
    """The choices of a cache folder, and those made by this process."""

    _known: dict[str, dict[str, Any]] = {}

    def __init__(self, options: Options) -> None:
        self.entries: Entries | None = None
        if options.cache:
            try:
                self.entries = Entries(private_folder(options.cache_dir, "autotune"))
            except OSError as error:  # without a folder every process measures for itself
                why = f"choices by measurement are not kept in it ({error})"
                todo = "Make it anew with mode 700" if isinstance(error, UnsafeFolder) else "Give it write permission"
                warn_of(options.cache_dir, why, f"{todo}, or set QUINTET_CACHE_DIR to another folder.")

    def find(self, key: str) -> dict[str, Any] | None:
        """What was decided, None where nothing was or the file is damaged."""
        memory = self._known.get(self._place(key))
        if memory is not None or self.entries is None:
            return memory
        try:
            decision = self.entries.find(key)
        except ValueError:
            return None  # it is measured again, and written anew
        return decision if _well_formed(decision) else None

    def keep(self, key: str, decision: dict[str, Any]) -> None:
        """Remember a decision here and, where that is possible, on disk."""
        self._known[self._place(key)] = decision
        if self.entries is None:
            return
        try:
            self.entries.keep(key, decision)
            self.entries.limit(LIMIT)
        except OSError as error:
            why = f"choices by measurement are not kept in it ({error.strerror or error})"
            warn_of(self.entries.folder, why, "Make room or give it write permission, or set QUINTET_CACHE_DIR.")

    def _place(self, key: str) -> str:
        return f"{self.entries and self.entries.folder}:{key}"

    @classmethod
    def forget(cls) -> None:
        """Forget what this process decided, so that the disk is asked again (for tests)."""
        cls._known.clear()


def _well_formed(decision: Any) -> bool:
    """A winner's name, times by name, and reasons by name: what a contest leaves."""
    if not isinstance(decision, dict) or not isinstance(decision.get("winner"), str):
        return False
    times, dropped = decision.get("times", {}), decision.get("dropped", {})
    return (
        isinstance(times, dict)
        and isinstance(dropped, dict)
        and all(isinstance(t, (int, float)) for t in times.values())
        and all(isinstance(reason, str) for reason in dropped.values())
    )
