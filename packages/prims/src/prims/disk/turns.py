"""Turns at the entries of a cache: what one process (or thread) is making, others that need it wait for.

A turn is a lock on one byte of a file, whose place is the entry's key: a lock that belongs to an open file ("open file
description locks", Linux's ``fcntl(2)``), so that it ends with the process however that ends. Where there are none
(other systems, some network file systems) everybody has a turn at everything, and work is done more than once.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on this system
    fcntl = None  # type: ignore[assignment]

__all__ = ["Turns", "turns_at"]

_SET = getattr(fcntl, "F_OFD_SETLK", None)
#: ``struct flock``: type, whence, start, length, process.
_FLOCK = "hhqqi"


class Turns:
    """The turns of one holder.

    Args:
        file: an open file that its owner alone can write; None where there is none.
    """

    def __init__(self, file: int | None) -> None:
        self._file = file
        self._taken: set[str] = set()

    def take(self, key: str) -> bool:
        """Take the turn at an entry, by its hexadecimal key; False: another holder has it."""
        if key in self._taken or self._file is None:
            return True
        try:
            self._lock(key, fcntl.F_WRLCK)
        except BlockingIOError:
            return False
        except OSError:  # there are no such locks here
            self._file = None
            return True
        self._taken.add(key)
        return True

    def leave(self) -> None:
        """Let others have all turns that were taken."""
        for key in self._taken:
            try:
                self._lock(key, fcntl.F_UNLCK)
            except OSError:
                pass
        self._taken.clear()

    def _lock(self, key: str, kind: int) -> None:
        fcntl.fcntl(self._file, _SET, struct.pack(_FLOCK, kind, os.SEEK_SET, int(key[:15], 16), 1, 0))  # type: ignore[arg-type]


@contextmanager
def turns_at(folder: Path | None) -> Iterator[Turns]:
    """Turns at the entries of a cache in a folder; none is left taken. None: nobody waits for anybody."""
    file = None
    if folder is not None and _SET is not None:
        try:
            file = os.open(folder / "turns", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            pass
    turns = Turns(file)
    try:
        yield turns
    finally:
        turns.leave()  # not by closing alone: a process that was forked meanwhile has the file too
        if file is not None:
            os.close(file)
