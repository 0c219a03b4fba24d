"""A content-addressed disk cache of compiled kernels.

``<dir>/kernels/<key>.json`` names the library that holds a kernel; ``<dir>/lib/<digest>.so`` is the library, its
name the SHA-256 of its bytes, which is checked before it is loaded. Files appear by an atomic rename, folders are
readable by their owner only, and the least recently used libraries go when the size limit is passed. Losing any
file at any time costs a recompilation and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path

__all__ = ["KernelCache"]


class KernelCache:
    """Compiled kernels under ``folder``, at most about ``limit`` bytes of them, in files named with ``suffix``."""

    def __init__(self, folder: str | os.PathLike[str], limit: int = 4 << 30, suffix: str = ".so") -> None:
        self.root = Path(folder)
        self.limit = limit
        self.suffix = suffix
        self.kernels = self.root / "kernels"
        self.libs = self.root / "lib"

    def prepare(self) -> None:
        """Create the folders, for their owner only.

        Raises:
            OSError: the folder cannot be made or belongs to somebody else.
        """
        for folder in (self.root, self.kernels, self.libs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = self.libs.stat()
        if owner.st_uid != os.getuid() or owner.st_mode & 0o022:
            raise PermissionError(f"cache folder {self.libs} can be written by others")

    def find(self, key: str) -> tuple[Path, str] | None:
        """``(library, symbol)`` of a kernel, or None. The library's content is not checked yet."""
        try:
            entry = json.loads((self.kernels / f"{key}.json").read_text())
            lib = self.libs / f"{entry['lib']}{self.suffix}"
            symbol = entry["symbol"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return (lib, symbol) if isinstance(symbol, str) and lib.is_file() else None

    def verified(self, lib: Path) -> bool:
        """Does the library hold what its name says? A damaged one is removed."""
        try:
            data = lib.read_bytes()
        except OSError:
            return False
        if hashlib.sha256(data).hexdigest() == lib.stem:
            try:
                os.utime(lib)
            except OSError:
                pass
            return True
        lib.unlink(missing_ok=True)
        return False

    def add(self, built: Path, symbols: dict[str, str]) -> Path:
        """Take in a freshly built library; ``symbols`` maps kernel keys to symbol names. Returns its place."""
        data = built.read_bytes()
        lib = self.libs / f"{hashlib.sha256(data).hexdigest()}{self.suffix}"
        if not self.verified(lib):  # one that is there may be damaged
            self._write(lib, data)
        for key, symbol in symbols.items():
            entry = json.dumps({"lib": lib.stem, "symbol": symbol})
            self._write(self.kernels / f"{key}.json", entry.encode())
        self._evict(keep=lib)
        return lib

    def _write(self, path: Path, data: bytes) -> None:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def _evict(self, keep: Path) -> None:
        files = []
        for path in self.libs.glob(f"*{self.suffix}"):
            try:
                info = path.stat()
            except OSError:
                continue
            files.append((info.st_mtime, info.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self.limit:
                return
            if path != keep:
                path.unlink(missing_ok=True)
                total -= size
