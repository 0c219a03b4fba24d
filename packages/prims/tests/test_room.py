"""A folder's size limit: kept by all writers together, without looking at the files for each of them."""

import os
import threading
import time
from pathlib import Path

import pytest

from prims.disk.cache import KernelCache
from prims.disk.room import Room

SIZE = 1000


def write(room, name, *, used=None, size=SIZE):
    """A file that was last used at a time; what had to go for it."""
    path = room.folder / name
    path.write_bytes(bytes(size))
    if used is not None:
        os.utime(path, (used, used))
    return room.written(path, size)


def names(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_what_was_used_least_recently_goes_and_what_was_written_stays(tmp_path):
    room = Room(tmp_path, "*.bin", 4500)
    (tmp_path / "note.txt").write_bytes(bytes(9000))  # no such file
    for k, used in enumerate((40, 10, 30)):
        assert write(room, f"{k}.bin", used=used) == []
    removed = [path.name for k in (3, 4) for path in write(room, f"{k}.bin", used=k)]
    assert removed == ["3.bin", "1.bin"]
    assert names(tmp_path) == ["0.bin", "2.bin", "4.bin", "note.txt"]


def test_files_are_not_looked_at_while_there_is_room(tmp_path, monkeypatch):
    looked = []
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda *args: looked.append(args) or glob(*args))
    for k in range(50):  # each as another process would
        write(Room(tmp_path, "*.bin", 60 * SIZE), f"{k}.bin")
    first = len(looked)
    assert first <= 2  # the folder as it was found, and what killed writers left
    for k in range(50, 250):  # full now: an eighth is free each time that it was looked at
        write(Room(tmp_path, "*.bin", 60 * SIZE), f"{k}.bin", used=k)
        assert sum(path.stat().st_size for path in glob(tmp_path, "*.bin")) <= 60 * SIZE
    assert len(looked) - first <= 2 * 200 / 7


def test_writers_count_together(tmp_path):
    def write_some(worker):
        room = Room(tmp_path, "*.bin", 1 << 30)
        for k in range(40):
            write(room, f"{worker}-{k}.bin")

    write(Room(tmp_path, "*.bin", 1 << 30), "first.bin")
    threads = [threading.Thread(target=write_some, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert write(Room(tmp_path, "*.bin", 160 * SIZE), "last.bin")


STRANGE = {
    "a folder": lambda path: path.mkdir(),
    "a FIFO": lambda path: os.mkfifo(path),
    "a link": lambda path: path.symlink_to("/nowhere"),
    "too long": lambda path: path.write_bytes(bytes(1 << 16)),
    "not ours to write": lambda path: (path.write_bytes(b""), path.chmod(0o400)),
}


@pytest.mark.parametrize("what", STRANGE)
def test_anything_else_in_its_place(what, tmp_path):
    STRANGE[what](tmp_path / ".held")
    room = Room(tmp_path, "*.bin", 2500)
    for k in range(4):
        write(room, f"{k}.bin", used=k)
    assert names(tmp_path) == ["2.bin", "3.bin"]
    assert what == "a folder" or (tmp_path / ".held").stat().st_size * 256 <= 2500


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path):
    room = Room(tmp_path / "missing", "*.bin", 10)
    assert room.written(tmp_path / "missing" / "x.bin", 1) == []


def test_files_of_killed_writers_go_in_time(tmp_path):
    (tmp_path / ".new-old").write_bytes(b"x")
    (tmp_path / ".new-now").write_bytes(b"x")
    hours_ago = time.time() - 2 * 3600
    os.utime(tmp_path / ".new-old", (hours_ago, hours_ago))
    write(Room(tmp_path, "*.bin", 10), "1.bin")
    assert not (tmp_path / ".new-old").exists() and (tmp_path / ".new-now").exists()


def test_entries_go_with_their_libraries(tmp_path):
    cache = KernelCache(tmp_path, limit=2500)
    cache.prepare()
    for k in range(4):
        lib = cache.add(bytes([k]) * SIZE, {f"a{k}": "f", f"b{k}": "g"})
        os.utime(lib, (k, k))
    assert sorted(path.stem for path in (tmp_path / "entries").iterdir()) == ["a2", "a3", "b2", "b3"]
    assert cache.find("a3") == (lib, "f") and cache.find("a1") is None
    cache.add(bytes([3]) * SIZE, {"c3": "h"})  # is there: nothing is counted again
    assert cache.find("a2") is not None and cache.find("c3") == (lib, "h")
