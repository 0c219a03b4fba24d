"""Folders and files that nobody else can have written.

What is kept on disk is machine code that will run and choices that will be believed. So it is read only from regular
files of this user below folders that only this user (or root) can write, each checked up to the root of the file
system: who may write a folder may exchange everything in it. A folder of root's with the sticky bit (as ``/tmp``) is no
such danger, since only owners exchange its entries.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from pathlib import Path

from prims.eager import warn_user

__all__ = [
    "UnsafeFolder", "check_private", "forget_temporary", "private_folder", "read_private", "temporary_root", "warn_of",
    "write_private",
]  # fmt: skip

#: The user that stands for those of other user namespaces; in a container the system's own folders may be its.
_UNMAPPED = 65534
#: Bytes of a library or of an entry that is read at most.
MAX_BYTES = 1 << 30


class UnsafeFolder(PermissionError):
    """Somebody else could have written, or could exchange, what is in a folder."""


def private_folder(root: str | os.PathLike[str], *names: str) -> Path:
    """``root/names...``, made where it is missing, for its owner only.

    Raises:
        UnsafeFolder: it, or a folder on the way to it, belongs to somebody else or can be written by others.
        OSError: it cannot be made.
    """
    real = Path(os.path.realpath(root))
    real.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in names:
        real = real / name
        try:
            real.mkdir(mode=0o700)
        except FileExistsError:
            pass
    check_private(real)
    return real


def check_private(folder: Path) -> None:
    """Refuse a folder, with no links on the way to it, that others could have filled.

    Raises:
        UnsafeFolder: it, or a folder on the way to it, belongs to somebody else or can be written by others.
        OSError: it is not there.
    """
    for each in (folder, *folder.parents):
        _check(each, os.lstat(each))


def _check(folder: Path, info: os.stat_result) -> None:
    if not stat.S_ISDIR(info.st_mode):
        raise UnsafeFolder(f"{folder} is no folder")
    if info.st_uid not in (os.getuid(), 0, _UNMAPPED):
        raise UnsafeFolder(f"{folder} belongs to user {info.st_uid}")
    others = stat.S_IWOTH if _only_ours(info.st_gid) else stat.S_IWGRP | stat.S_IWOTH
    if info.st_mode & others and not (info.st_mode & stat.S_ISVTX and info.st_uid == 0):
        raise UnsafeFolder(f"{folder} can be written by others")


def _only_ours(group: int) -> bool:
    """Whether a group has this user only, as a user's private group has."""
    if group != os.getgid() or group == 0:
        return False
    try:
        import grp
        import pwd

        entry, user = grp.getgrgid(group), pwd.getpwuid(os.getuid())
    except (ImportError, KeyError):
        return False
    return user.pw_gid == group and user.pw_name == entry.gr_name and not set(entry.gr_mem) - {user.pw_name}


def read_private(path: str | os.PathLike[str], limit: int = MAX_BYTES) -> bytes:
    """The contents of a file that only this user can have written.

    Raises:
        FileNotFoundError: it is not there.
        OSError: it is none: a link, a FIFO (which is not waited for), a folder, somebody else's, too large.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise UnsafeFolder(f"{path} is no regular file")
        if info.st_uid != os.getuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise UnsafeFolder(f"{path} can be written by others")
        if info.st_size > limit:
            raise OSError(f"{path} has {info.st_size} bytes")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(info.st_size)
    finally:
        os.close(handle)


def write_private(path: Path, data: bytes) -> None:
    """Write a file so that it appears whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


_warned: set[str] = set()


def warn_of(folder: str | os.PathLike[str], what: str, todo: str) -> None:
    """Warn of what is wrong with a folder, once in a process. It costs time and nothing else."""
    if str(folder) not in _warned:
        _warned.add(str(folder))
        warn_user(f"The kernel cache {folder}: {what}. Programs are compiled anew where it could have helped. {todo}")


_TEMPORARY: list[tuple[int, str]] = []


def temporary_root() -> str:
    """A private folder of this process in place of a cache that cannot be used, removed at the end of the process.

    Raises:
        OSError: there is no place for one.
    """
    for owner, folder in _TEMPORARY:
        if owner == os.getpid() and os.path.isdir(folder):
            return folder
    folder = tempfile.mkdtemp(prefix="quintet-")
    _TEMPORARY[:] = [(os.getpid(), folder)]
    atexit.register(_remove, os.getpid(), folder)
    return folder


def forget_temporary() -> None:
    """Forget the temporary folder and what was warned of (for tests)."""
    _TEMPORARY.clear()
    _warned.clear()


def _remove(owner: int, folder: str) -> None:
    if owner == os.getpid():  # not in a process that was forked from the owner
        shutil.rmtree(folder, ignore_errors=True)
