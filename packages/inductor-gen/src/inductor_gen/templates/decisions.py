"""Choices kept on disk: ``<cache_dir>/autotune/<key>.json``, its content under a checksum.

As with kernels, files appear by an atomic rename in a folder that its owner alone can write, and losing any at any time
costs measuring again and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from inductor_gen.runtime.folders import UnsafeFolder, private_folder, read_private, warn_of, write_private
from prims.options import Options

__all__ = ["Decisions"]

_KEY = re.compile(r"[0-9a-z]{1,128}")
_MAX_ENTRY = 1 << 20
LIMIT = 20000  # files; the oldest quarter goes when there are more


class Decisions:
    """The choices of a cache folder, and those made by this process."""

    _known: dict[str, dict[str, Any]] = {}

    def __init__(self, options: Options) -> None:
        self.folder: Path | None = None
        if options.cache:
            try:
                self.folder = private_folder(options.cache_dir, "autotune")
            except OSError as error:  # without a folder every process measures for itself
                why = f"choices by measurement are not kept in it ({error})"
                todo = "Make it anew with mode 700" if isinstance(error, UnsafeFolder) else "Give it write permission"
                warn_of(options.cache_dir, why, f"{todo}, or set QUINTET_CACHE_DIR to another folder.")

    def find(self, key: str) -> dict[str, Any] | None:
        """What was decided, None where nothing was or the file is damaged."""
        memory = self._known.get(f"{self.folder}:{key}")
        if memory is not None or self.folder is None or not _KEY.fullmatch(key):
            return memory
        path = self.folder / f"{key}.json"
        try:
            entry = json.loads(read_private(path, _MAX_ENTRY))
            decision = entry["decision"]
            if entry["checksum"] != _checksum(key, decision):
                raise ValueError
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            _unlink(path)
            return None
        return decision if _well_formed(decision) else None

    def keep(self, key: str, decision: dict[str, Any]) -> None:
        """Remember a decision here and, where that is possible, on disk."""
        self._known[f"{self.folder}:{key}"] = decision
        if self.folder is None:
            return
        try:
            entry = {"checksum": _checksum(key, decision), "decision": decision}
            write_private(self.folder / f"{key}.json", json.dumps(entry).encode())
            self._evict()
        except OSError as error:
            why = f"choices by measurement are not kept in it ({error.strerror or error})"
            warn_of(self.folder, why, "Make room or give it write permission, or set QUINTET_CACHE_DIR.")

    def _evict(self) -> None:
        assert self.folder is not None
        files = list(self.folder.glob("*.json"))
        if len(files) > LIMIT:
            for path in sorted(files, key=lambda p: p.stat().st_mtime)[: LIMIT // 4]:
                _unlink(path)

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


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        pass


def _checksum(key: str, decision: Any) -> str:
    return hashlib.sha256((key + json.dumps(decision, sort_keys=True)).encode()).hexdigest()
