"""Whole programs in a second process: it interprets, traces and compiles nothing, and what changed is noticed.

Two processes run the tables in ``stored``. The backend is the captured graph run as it is, so that what is looked at is
what capture keeps.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import more_changes  # noqa: F401  # adds to the table of changes
import pytest
from cases import CASES, UNSTORED
from changes import CHANGES
from stored_programs import HERE, reasons, run

import compile_api
from compile_api.programs import ProgramFolder
from prims.artefact import Artefact
from prims.disk.folders import forget_temporary, private_folder
from prims.errors import CompileWarning

# --- the same program again -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("programs")
    first = run(HERE / "cases.py", folder / "cache", folder / "a.json")
    return first, run(HERE / "cases.py", folder / "cache", folder / "b.json")


@pytest.mark.parametrize("name", [name for name in CASES if name not in UNSTORED])
def test_a_second_process_captures_nothing(twice: Any, name: str) -> None:
    first, second = (each["cases"][name] for each in twice)
    assert "error" not in first and "error" not in second, (first, second)
    assert not first["wrong"] and not second["wrong"]
    assert first["capture"] > 0 and reasons(first, "not stored") == []
    assert second["capture"] == 0, reasons(second, "missed")
    assert second["graphs"] == 0
    assert any(program[1] == "loaded" for program in second["programs"])
    assert second["verdict"].split(":")[0] == first["verdict"].split(":")[0]


# --- with generated kernels -----------------------------------------------------------------------------------------

#: What a stored program's process does not do, by the report's phases.
WORK = re.compile(r"capture|aot|lower|pass:|codegen|inductor")


@pytest.fixture(scope="module")
def kernels_twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("kernels")
    first = run(HERE / "cases.py", folder / "cache", folder / "a.json", "inductor")
    return first, run(HERE / "cases.py", folder / "cache", folder / "b.json", "inductor")


@pytest.mark.parametrize("name", [name for name in CASES if name not in UNSTORED])
def test_a_second_process_compiles_nothing(kernels_twice: Any, name: str) -> None:
    """Results are the same to the last bit, and the report tells of the same kernels and operators."""
    first, second = (each["cases"][name] for each in kernels_twice)
    assert "error" not in first and "error" not in second, (first, second)
    assert second["results"] == first["results"]
    assert not first["wrong"] or name == "random_numbers"  # which are others than eager's, and the same again
    assert reasons(first, "not stored") == []
    assert [phase for phase in second["phases"] if WORK.match(phase)] == [], reasons(second, "missed")
    # Sizes that changed in the first process are symbolic from the start in the second, which has less to load.
    known = name in ("sizes_that_change", "ints_and_floats_that_change")
    for what in ("kernels", "externs"):
        assert all(one in first[what] for one in second[what])
        assert known or sorted(second[what]) == sorted(first[what])
    assert bool(second["kernels"]) is bool(first["kernels"])


def test_most_cases_have_kernels(kernels_twice: Any) -> None:
    first, _ = kernels_twice
    assert sum(bool(case.get("kernels")) for case in first["cases"].values()) > len(CASES) / 2


@pytest.mark.parametrize("name", UNSTORED)
def test_what_is_not_stored_is_captured_anew(twice: Any, name: str) -> None:
    for found in (each["cases"][name] for each in twice):
        assert "error" not in found and not found["wrong"], found
        assert found["capture"] > 0
        if UNSTORED[name]:
            assert any(UNSTORED[name] in reason for reason in reasons(found, "not stored")), found["programs"]


def test_a_second_process_does_not_import_the_interpreter(one: Path, tmp_path: Path) -> None:
    for which, imports in (("a", True), ("b", False)):
        found = run(one, tmp_path / "other", tmp_path / f"{which}.json")
        assert bool(found["interpreter"]) is imports


# --- a program that changed -----------------------------------------------------------------------------------------


def stem(name: str) -> str:
    return "c_" + re.sub(r"\W+", "_", name)


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("changes")
    found = []
    for which in ("a", "b"):
        table = folder / which
        table.mkdir()
        for name, case in CHANGES.items():
            text = case.text if which == "a" else case.text.replace(case.before, case.after)
            (table / f"{stem(name)}.py").write_text(text)
        found.append(run(table, folder / "cache", folder / f"{which}.json", "aot_eager"))
    return found[0], found[1]


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_between_processes_is_noticed(changed: Any, name: str) -> None:
    field = CHANGES[name].field
    first, second = (each["cases"][stem(name)] for each in changed)
    assert "error" not in first and "error" not in second, (first, second)
    assert not first["wrong"] and not second["wrong"]
    if field is None:  # it does not matter to the program
        assert reasons(first, "not stored") == [] and second["capture"] == 0, reasons(second, "missed")
        return
    assert second["capture"] > 0, "the stored program ran"
    if not reasons(first, "not stored"):
        assert any(reason.startswith(field) for reason in reasons(second, "missed")), reasons(second, "missed")


# --- the files ------------------------------------------------------------------------------------------------------

ONE = """
import torch
def make():
    def run(x):
        return x.sin() + 1
    return run, [((torch.ones(3),), {})]
CASES = {"one": make}
"""


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """A table of one program, which a first process has stored under ``cache``."""
    table = tmp_path / "one.py"
    table.write_text(ONE)
    first = run(table, tmp_path / "cache", tmp_path / "a.json")["cases"]["one"]
    assert reasons(first, "stored") == [None]
    return table


def stored_files(tmp_path: Path) -> list[Path]:
    found = sorted((tmp_path / "cache").rglob("*.program"))
    assert found
    return found


def again(one: Path, tmp_path: Path, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = run(one, tmp_path / "cache", tmp_path / "b.json", **options)["cases"]["one"]
    assert "error" not in found and not found["wrong"], found
    return found


def flipped(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


@pytest.mark.parametrize(
    "damage", [lambda d: b"", lambda d: d[:-10], flipped, lambda d: b"other" * 100, lambda d: d + b"x"],
    ids=["empty", "cut", "flipped", "foreign", "longer"],
)  # fmt: skip
def test_a_damaged_file_is_left_out(tmp_path: Path, damage: Any) -> None:
    forget_temporary()  # and what was warned of
    root, key = tmp_path / "programs", "1" * 64
    private_folder(tmp_path, "programs")
    folder = ProgramFolder(root, 1 << 30)
    folder.put(key, Artefact("some.kind", "1", {"a": 1}, {"b": bytes(1000)}))
    (path,) = root.rglob("*.program")
    assert [entry.text["a"] for entry in folder.find(key)] == [1]
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(CompileWarning, match="damaged"):
        assert list(folder.find(key)) == []
    assert not path.exists()


def test_a_damaged_file_is_a_miss(one: Path, tmp_path: Path) -> None:
    for path in stored_files(tmp_path):
        path.write_bytes(flipped(path.read_bytes()))
    assert again(one, tmp_path)["capture"] > 0
    assert again(one, tmp_path)["capture"] == 0  # it was made anew


def test_the_least_recently_used_go(tmp_path: Path) -> None:
    private_folder(tmp_path, "programs")
    folder = ProgramFolder(tmp_path / "programs", 12_000)
    for number in range(4):
        folder.put(f"{number}" * 64, Artefact("some.kind", "1", {}, {"b": bytes(5_000)}))
        os.utime(next((tmp_path / "programs" / (f"{number}" * 64)).iterdir()), (number, number))
        if number:
            list(folder.find("0" * 64))  # is used
    assert [bool(list(folder.find(f"{number}" * 64))) for number in range(4)] == [True, False, False, True]


def test_what_a_killed_writer_leaves_goes(tmp_path: Path) -> None:
    private_folder(tmp_path, "programs")
    key = "1" * 64
    left, fresh = (private_folder(tmp_path / "programs", key) / name for name in (".new-left", ".new-fresh"))
    for path in (left, fresh):
        path.write_bytes(bytes(100))
    os.utime(left, (1, 1))
    folder = ProgramFolder(tmp_path / "programs", 1 << 20)
    folder.put(key, Artefact("some.kind", "1", {}))
    assert not left.exists() and fresh.exists()
    assert len(list(folder.find(key))) == 1


KILLED = """
import os, signal, sys
import torch, compile_api
from prims.disk import folders
def run(x):
    return x.sin() + 1
before = os.replace
def killed(*args):
    os.kill(os.getpid(), signal.SIGKILL) if str(args[1]).endswith(".program") else before(*args)
if sys.argv[2] == "kill":
    os.replace = killed
compiled = compile_api.compile(run, backend="eager", options={"program_cache": True, "cache_dir": sys.argv[1]})
compiled(torch.arange(3.0))
print([program.status for program in compiled.report().programs])
"""


def test_a_writer_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    said = []
    for way in ("kill", "live", "live"):
        command = [sys.executable, str(script), str(tmp_path / "cache"), way]
        said.append(subprocess.run(command, capture_output=True, text=True, timeout=300, check=False).stdout.strip())
    assert said == ["", "['missed', 'stored']", "['loaded']"]


def test_a_file_under_another_key_is_a_miss(one: Path, tmp_path: Path) -> None:
    (path,) = stored_files(tmp_path)
    key, other = path.parent.name, "0" * 64
    folder = ProgramFolder(path.parent.parent, 1 << 30)
    assert [entry.text["key"] for entry in folder.find(key)] == [key]
    path.parent.rename(path.parent.with_name(other))
    forget_temporary()
    with pytest.warns(CompileWarning, match="damaged"):
        assert list(folder.find(other)) == []
    assert list(folder.find("../" + key)) == []
    assert again(one, tmp_path)["capture"] > 0


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(one: Path, tmp_path: Path) -> None:
    for path in stored_files(tmp_path):
        path.unlink()
        path.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert again(one, tmp_path)["capture"] > 0


@pytest.mark.parametrize("above", [0, 1, 2])
def test_nothing_is_loaded_from_a_folder_that_others_can_write(one: Path, tmp_path: Path, above: int) -> None:
    """Neither that of the programs of a key, nor one above it."""
    (path, *_) = stored_files(tmp_path)
    assert again(one, tmp_path)["capture"] == 0
    folder = path.parents[above]
    folder.chmod(0o777)
    assert again(one, tmp_path)["capture"] > 0
    root = path.parents[1]
    forget_temporary()
    with pytest.warns(CompileWarning, match="can be written by others"):
        assert list(ProgramFolder(root, 1 << 20).find(path.parent.name)) == []
    folder.chmod(0o700)
    assert again(one, tmp_path)["capture"] == 0


def test_a_folder_that_is_a_file(one: Path, tmp_path: Path) -> None:
    for path in stored_files(tmp_path):
        path.unlink()
        path.parent.rmdir()
        path.parent.write_text("in the way")
    found = again(one, tmp_path)
    assert found["capture"] > 0


def test_other_options_are_another_program(one: Path, tmp_path: Path) -> None:
    for options in ({"dynamic": True}, {"fullgraph": True}):
        assert again(one, tmp_path, **options)["capture"] > 0
    assert again(one, tmp_path, strict=False)["capture"] == 0  # which changes nothing
    for options in ({"debug": True}, {"verify": "every_pass"}, {"fuel": 3}, {"logs": "graphs"}):
        found = again(one, tmp_path, **options)  # who wants to see the stages has them run
        assert found["capture"] > 0 and found["programs"] == []
    assert again(one, tmp_path, program_cache=False)["programs"] == []


def test_two_writers(tmp_path: Path) -> None:
    table = tmp_path / "one.py"
    table.write_text(ONE)
    command = [sys.executable, str(HERE / "runner.py"), str(table), str(tmp_path / "cache"), "eager"]
    writers = [subprocess.Popen([*command, str(tmp_path / f"{i}.json")], stderr=subprocess.DEVNULL) for i in range(3)]
    assert [writer.wait(timeout=300) for writer in writers] == [0, 0, 0]
    for i in range(3):
        assert not json.loads((tmp_path / f"{i}.json").read_text())["cases"]["one"]["wrong"]
    assert again(table, tmp_path)["capture"] == 0


TRAVEL = """
import sys
import torch, compile_api
def run(x):
    y = x.sin() + 1
    compile_api.graph_break()
    return y * 2
path, folder, way = sys.argv[1:]
if way == "load":
    assert compile_api.cache.load_artifacts(path) == 2
compiled = compile_api.compile(run, backend="eager", options={"program_cache": True, "cache_dir": folder})
x = torch.arange(3.0)
assert torch.equal(compiled(x), run(x))
told = compile_api.cache.explain(compiled)
assert ("loaded" in str(told)) == (way == "load"), str(told)
assert ("capture" in compiled.report().seconds) == (way == "save")
if way == "save":
    assert compile_api.cache.save_artifacts(path) == 2
"""


def test_one_file_travels(tmp_path: Path) -> None:
    script = tmp_path / "travel.py"
    script.write_text(TRAVEL)
    for way in ("save", "load"):
        folder = tmp_path / way  # another folder, and another copy of the program
        folder.mkdir()
        copied = folder / "travel.py"
        copied.write_text(TRAVEL)
        command = [sys.executable, str(copied), str(tmp_path / "all.programs"), str(folder / "cache"), way]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr


def test_a_file_that_holds_no_programs(tmp_path: Path) -> None:
    import compile_api

    path = tmp_path / "other"
    path.write_bytes(b"no programs")
    with pytest.raises(compile_api.errors.UserError, match="holds no programs"):
        compile_api.cache.load_artifacts(path)
    with pytest.raises(compile_api.errors.UserError, match="is not compiled"):
        compile_api.cache.explain(len)


def test_artefacts_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        compile_api.cache.save_artifacts(tmp_path / "nowhere" / "programs")
    assert error.value.filename == str(tmp_path / "nowhere" / "programs")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="file/programs"):
        compile_api.cache.save_artifacts(tmp_path / "file" / "programs")
