"""The size limit of a folder of files, which no writer has to look through to know how full it is.

The length of the file ``.held`` is the size of all files in blocks of :data:`_BLOCK` bytes: who writes a file appends
as many bytes, in one system call that no other writer can come between. Only where that passes the limit are the files
looked at, the least recently used removed, and the length set to what was found. Losing ``.held``, or finding anything
else in its place, costs looking at the files once; cut short, it lets the folder grow by what it no longer counts.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
from pathlib import Path

__all__ = ["Room"]

_BLOCK = 256
#: Seconds after which a file that is still being written has nobody who writes it.
_ABANDONED = 3600
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW


class Room:
    """A folder whose files together take at most about ``limit`` bytes.

    Args:
        folder: the folder, which only this user can write.
        pattern: which of the files in it count and may be removed (``Path.glob``).
        limit: bytes that they may take.
    """

    def __init__(self, folder: Path, pattern: str, limit: int) -> None:
        self.folder = folder
        self.pattern = pattern
        self.limit = limit
        self._held = folder / ".held"

    def written(self, path: Path, size: int) -> list[Path]:
        """Count a file that was just written; the files that were removed to make room for it."""
        held = self._counted(size)
        return [] if held is not None and held <= self.limit else self._make_room(keep=path)

    def _counted(self, size: int) -> int | None:
        """Add to the bytes that are held, and give them; None where nobody has counted yet."""
        try:
            handle = os.open(self._held, _FLAGS)
        except OSError:
            return None
        try:
            info = os.fstat(handle)
            if not stat.S_ISREG(info.st_mode):
                return None
            os.write(handle, bytes(-(-size // _BLOCK)))
            return os.fstat(handle).st_size * _BLOCK
        except OSError:
            return None
        finally:
            os.close(handle)

    def _make_room(self, keep: Path) -> list[Path]:
        """Remove what was used least recently, to an eighth below the limit, so that the files are not looked at again
        for the next one; and what killed writers left."""
        files = []
        for path in self.folder.glob(self.pattern):
            with contextlib.suppress(OSError):
                info = path.lstat()
                files.append((info.st_mtime, info.st_size, path))
        total = sum(size for _, size, _ in files)
        aim = self.limit - self.limit // 8
        removed = []
        for _, size, path in sorted(files):
            if total <= aim:
                break
            if path != keep:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
                    removed.append(path)
                    total -= size
        self._forget_abandoned()
        self._set(total)
        return removed

    def _forget_abandoned(self) -> None:
        for path in self.folder.glob(str(Path(self.pattern).parent / ".new-*")):
            with contextlib.suppress(OSError):
                if path.lstat().st_mtime < time.time() - _ABANDONED:
                    path.unlink(missing_ok=True)

    def _set(self, total: int) -> None:
        """A file of that length takes no place on disk."""
        name = ""
        with contextlib.suppress(OSError):
            handle, name = tempfile.mkstemp(dir=self.folder, prefix=".new-")
            try:
                os.ftruncate(handle, total // _BLOCK)
            finally:
                os.close(handle)
            os.replace(name, self._held)
            return
        if name:
            with contextlib.suppress(OSError):
                os.unlink(name)
