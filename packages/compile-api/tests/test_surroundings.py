"""Stored programs of a script (``stored/script.py``) that is run again where something around it is different."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stored_programs import HERE

SCALED = "def scaled(x):\n    return x * {}\n"
ALL = ["same", "ordered", "ordered_names", "hashed", "written", "written_numbers", "asserted", "arguments", "folder", "helped",
       "of_main", "of_path", "drawn", "variable", "cell", "made"]  # fmt: skip


class Place:
    """A folder with the script, its helper and its programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home, self.work, self.other = (folder / name for name in ("home", "work", "another folder"))
        for each in (self.home, self.work, self.other):
            each.mkdir()
        (self.other / "marker").touch()
        shutil.copy(HERE / "script.py", self.home / "script.py")
        self.help_with(2)

    def help_with(self, factor: int) -> None:
        """Write the helper, at a time and of a size that are always the same."""
        path = self.home / "helper_of_script.py"
        path.write_text(SCALED.format(factor))
        os.utime(path, (1_000_000_000, 1_000_000_000))

    def run(self, *more: str, flags: tuple[str, ...] = (), cwd: Path | None = None, **variables: str) -> dict[str, Any]:
        """What a process of its own says, whose results are all eager's."""
        variables = {"PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **variables}
        command = [sys.executable, *flags, str(self.home / "script.py"), str(self.folder / "cache"), *more]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=600, cwd=cwd or self.work, env={**os.environ, **variables}
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        assert list(found) == ALL
        assert [name for name in found if not found[name]["right"]] == []
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    made = Place(tmp_path_factory.mktemp("script"))
    made.run()
    return made


def captured(found: dict[str, Any]) -> set[str]:
    """The functions that no stored program served."""
    return {name for name in found if found[name]["captured"]}


#: What is different, and the functions that notice.
ROWS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "nothing": ({}, set()),
    "how texts hash": ({"PYTHONHASHSEED": "3"}, {"ordered", "ordered_names", "hashed", "written"}),
    "assertions": ({"flags": ("-O",)}, set(ALL)),
    "threads": ({"OMP_NUM_THREADS": "2"}, set(ALL)),
    "numerics": ({"QUINTET_NUMERICS": "eager_exact"}, set(ALL)),
    "a variable": ({"A_FACTOR": "3"}, {"variable"}),
}


@pytest.mark.parametrize("what", ROWS)
def test_what_is_around_a_program(place: Place, what: str) -> None:
    settings, noticed = ROWS[what]
    unstored = captured(place.run())
    assert unstored <= {"folder", "drawn", "arguments", "of_path"}, unstored
    assert captured(place.run(**settings)) - unstored == noticed - unstored


def test_arguments_and_folder(place: Place) -> None:
    assert {"arguments", "cell"} <= captured(place.run("more"))
    assert "folder" in captured(place.run(cwd=place.other))


def test_texts_that_hash_anew_in_each_process(place: Place) -> None:
    for _ in range(2):
        found = place.run(PYTHONHASHSEED="random")
        assert captured(found) - {"ordered_names"} == {"ordered", "hashed", "written"}
        assert any("PYTHONHASHSEED" in (reason or "") for _, reason in found["hashed"]["told"])


def test_a_file_that_was_edited_and_has_the_same_time_and_size(place: Place) -> None:
    place.help_with(5)
    assert "helped" in captured(place.run())
    place.help_with(2)
    assert "helped" not in captured(place.run())


def test_another_script_of_the_same_functions(place: Place) -> None:
    path = place.home / "script.py"
    before = path.read_text()
    path.write_text(before.replace("return x * 3", "return x * 4"))
    assert "of_main" in captured(place.run())
    path.write_text(before)
