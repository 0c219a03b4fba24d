"""Choices kept on disk: ``<cache_dir>/autotune/<key>.json``, its content under a checksum.

As with kernels, files appear by an atomic rename in a folder that its owner alone can write, and losing any at any time
costs measuring again and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from prims.options import Options

__all__ = ["Decisions"]

LIMIT = 20000  # files; the oldest quarter goes when there are more


class Decisions:
    """The choices of a cache folder, and those made by this process."""

    _known: dict[str, dict[str, Any]] = {}

    def __init__(self, options: Options) -> None:
        self.folder: Path | None = None
        if options.cache:
            folder = Path(options.cache_dir) / "autotune"
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                owner = folder.stat()
                if owner.st_uid == os.getuid() and not owner.st_mode & 0o022:
                    self.folder = folder
            except OSError:
                pass  # without a folder every process measures for itself

    def find(self, key: str) -> dict[str, Any] | None:
        """What was decided, None where nothing was or the file is damaged."""
        memory = self._known.get(f"{self.folder}:{key}")
        if memory is not None or self.folder is None:
            return memory
        path = self.folder / f"{key}.json"
        try:
            entry = json.loads(path.read_text())
            decision = entry["decision"]
            if entry["checksum"] != _checksum(key, decision):
                raise ValueError
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            path.unlink(missing_ok=True)
            return None
        return decision if isinstance(decision, dict) else None

    def keep(self, key: str, decision: dict[str, Any]) -> None:
        """Remember a decision here and, where that is possible, on disk."""
        self._known[f"{self.folder}:{key}"] = decision
        if self.folder is None:
            return
        try:
            handle, name = tempfile.mkstemp(dir=self.folder, prefix=".new-")
            with os.fdopen(handle, "w") as file:
                json.dump({"checksum": _checksum(key, decision), "decision": decision}, file)
            os.replace(name, self.folder / f"{key}.json")
            self._evict()
        except OSError:
            pass

    def _evict(self) -> None:
        assert self.folder is not None
        files = list(self.folder.glob("*.json"))
        if len(files) > LIMIT:
            for path in sorted(files, key=lambda p: p.stat().st_mtime)[: LIMIT // 4]:
                path.unlink(missing_ok=True)

    @classmethod
    def forget(cls) -> None:
        """Forget what this process decided, so that the disk is asked again (for tests)."""
        cls._known.clear()


def _checksum(key: str, decision: Any) -> str:
    return hashlib.sha256((key + json.dumps(decision, sort_keys=True)).encode()).hexdigest()
