"""What is kept on disk: records under a key (:class:`Entries`), and compiled kernels by their content.

``<dir>/entries/<key>.json`` names the library that holds a kernel; ``<dir>/lib/<digest>.so`` is the library, its
name the SHA-256 of its bytes, which is checked before it is loaded. An entry holds its own key and its content under
one checksum, so that none can be exchanged for another's; names are plain, so that none leads elsewhere. Files appear
by an atomic rename, folders are their owner's only (:mod:`.folders`), and the least recently used libraries go when the
size limit is passed. Losing any file at any time, or finding anything else in its place, costs doing its work again and
nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from prims.disk.folders import (
    UnsafeFolder,
    private_folder,
    read_private,
    temporary_root,
    warn_of,
    write_private,
)
from prims.disk.room import Room

__all__ = ["Entries", "KernelCache", "open_cache"]

_KEY = re.compile(r"[0-9a-z]{1,128}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_ENTRY = 1 << 20
_EMPTY_IT = "Remove it, so that it is made anew."


class Entries:
    """Small dicts in files of a folder that only this user can write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, key: str) -> dict[str, Any] | None:
        """What is kept under a key, None where nothing is.

        Raises:
            ValueError: it is damaged, another's, or no file of this user's.
        """
        if not _KEY.fullmatch(key):
            return None
        try:
            entry = json.loads(read_private(self.folder / f"{key}.json", _MAX_ENTRY))
            if entry["checksum"] != _checksum(entry) or entry["key"] != key:
                raise ValueError
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError("a damaged entry") from None
        return {name: value for name, value in entry.items() if name not in ("checksum", "key")}

    def keep(self, key: str, content: dict[str, Any]) -> None:
        """Keep a dict of strings, numbers and such dicts.

        Raises:
            OSError: it cannot be written.
        """
        entry = {**content, "key": key}
        write_private(self.folder / f"{key}.json", json.dumps({**entry, "checksum": _checksum(entry)}).encode())

    def limit(self, count: int) -> None:
        """Where there are more, remove the oldest quarter of as many."""
        files = list(self.folder.glob("*.json"))
        if len(files) > count:
            for path in sorted(files, key=lambda p: p.stat().st_mtime)[: count // 4]:
                _unlink(path)


class KernelCache:
    """Compiled kernels under ``folder``, at most about ``limit`` bytes of them, in files named with ``suffix``."""

    def __init__(self, folder: str | os.PathLike[str], limit: int = 4 << 30, suffix: str = ".so") -> None:
        self.root = Path(folder)
        self.suffix = suffix
        self.entries = Entries(self.root / "entries")
        self.libs = self.root / "lib"
        self._room = Room(self.libs, f"*{suffix}", limit)

    def prepare(self) -> None:
        """Create the folders, for their owner only.

        Raises:
            OSError: a folder cannot be made, or others can write it or one on the way to it.
        """
        for name in ("entries", "lib"):
            private_folder(self.root, name)

    def find(self, key: str) -> tuple[Path, str] | None:
        """``(library, symbol)`` of a kernel, or None. The library's content is not checked yet."""
        try:
            entry = self.entries.find(key)
            if entry is None:
                return None
            if set(entry) != {"lib", "symbol"} or not _DIGEST.fullmatch(entry["lib"]):
                raise ValueError
            if not isinstance(entry["symbol"], str):
                raise ValueError
        except (ValueError, TypeError):
            self._strange("an entry of it is damaged or is no file of this user's")
            return None
        lib = self.libs / f"{entry['lib']}{self.suffix}"
        return (lib, entry["symbol"]) if os.path.lexists(lib) else None

    def contents(self, lib: Path) -> bytes | None:
        """The bytes of a library, if they are what its name says. A damaged one is removed."""
        try:
            data = read_private(lib)
        except FileNotFoundError:
            return None
        except OSError:
            self._strange("a library of it is no file of this user's")
            return None
        if hashlib.sha256(data).hexdigest() == lib.stem:
            try:
                os.utime(lib)
            except OSError:
                pass
            return data
        self._strange("a library of it is damaged")
        _unlink(lib)
        return None

    def verified(self, lib: Path) -> bool:
        """Does the library hold what its name says? A damaged one is removed."""
        return self.contents(lib) is not None

    def add(self, data: bytes, symbols: dict[str, str]) -> Path:
        """Take in the bytes of a library; ``symbols`` maps kernel keys to symbol names. Returns its place.

        Raises:
            OSError: it cannot be written; the cause was warned of.
        """
        lib = self.libs / f"{hashlib.sha256(data).hexdigest()}{self.suffix}"
        new = False
        try:
            if not os.path.lexists(lib) or not self.verified(lib):  # one that is there may be damaged
                write_private(lib, data)
                new = True
            for key, symbol in symbols.items():
                self.entries.keep(key, {"lib": lib.stem, "symbol": symbol})
        except OSError as error:
            why = f"nothing can be written into it ({error.strerror or error})"
            self._strange(why, "Make room or give it write permission, or set QUINTET_CACHE_DIR to another folder.")
            raise
        if new:
            self._forget(self._room.written(lib, len(data)))
        return lib

    def _strange(self, what: str, todo: str = _EMPTY_IT) -> None:
        warn_of(self.root, what, todo)

    def _forget(self, libs: list[Path]) -> None:
        """The entries of libraries that were removed."""
        gone = {lib.stem for lib in libs}
        for path in self.entries.folder.glob("*.json") if gone else ():
            try:
                entry = self.entries.find(path.stem)
            except ValueError:
                continue
            if entry is not None and entry.get("lib") in gone:
                _unlink(path)


def open_cache(folder: str, kind: str, limit: int, suffix: str = ".so") -> KernelCache | None:
    """The cache in a sub-folder of ``folder``; a temporary one, and one warning, where that cannot be used.

    None where there is no place for files at all.
    """
    cache = KernelCache(os.path.join(folder, kind), limit, suffix)
    try:
        cache.prepare()
        return cache
    except OSError as error:
        if isinstance(error, UnsafeFolder):
            todo = f"Remove {folder} and make it anew with mode 700, or set QUINTET_CACHE_DIR to a folder of your own."
            warn_of(folder, f"it is not used, because {error}", todo)
        else:
            why = f"it is not used, because it cannot be made ({error.strerror or error})"
            warn_of(folder, why, "Set QUINTET_CACHE_DIR to a folder that you can write.")
    try:
        cache = KernelCache(os.path.join(temporary_root(), kind), limit, suffix)
        cache.prepare()
        return cache
    except OSError:
        return None


def _checksum(entry: dict[str, Any]) -> str:
    """Of all that an entry holds beside it."""
    held = {name: value for name, value in entry.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        pass
