"""Processes that meet at a cold cache: what one compiles, the others wait for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from prims.disk import turns as module
from prims.disk.turns import turns_at

KEYS = [f"{number:064x}" for number in (3 << 196, 7 << 200, 1)]

PROGRAM = """
import sys, torch, compile_api
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Softmax(-1))
compiled = compile_api.compile(model)
x = torch.randn(4, 8)
found, wanted = compiled(x), model(x)
found.sum().backward()
torch.testing.assert_close(found, wanted)
print(compiled.report().verdict)
"""
COMPILER = """#!/bin/sh
case "$*" in *-shared*) echo run >> {log}; sleep {seconds};; esac
exec {real} "$@"
"""


def holder(folder: Path, key: str) -> subprocess.Popen[str]:
    """A process that has a turn until it is ended."""
    text = f"""
import sys, time, pathlib
from prims.disk.turns import turns_at
with turns_at(pathlib.Path({str(folder)!r})) as turns:
    print(turns.take({key!r}), flush=True)
    time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "True\n"
    return process


needs_locks = pytest.mark.skipif(module._SET is None, reason="this system has no locks of open files")


@needs_locks
def test_a_turn_is_one_holders(tmp_path):
    with turns_at(tmp_path) as mine, turns_at(tmp_path) as others:
        assert mine.take(KEYS[0]) and mine.take(KEYS[0]) and others.take(KEYS[1])
        assert not others.take(KEYS[0]) and not mine.take(KEYS[1]) and mine.take(KEYS[2])
        mine.leave()
        assert others.take(KEYS[0]) and others.take(KEYS[2])
    with turns_at(tmp_path) as again:
        assert all(map(again.take, KEYS))
    assert (tmp_path / "turns").stat().st_mode & 0o777 == 0o600


@needs_locks
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_turn_ends_with_its_process(tmp_path, how):
    process = holder(tmp_path, KEYS[0])
    with turns_at(tmp_path) as turns:
        assert not turns.take(KEYS[0]) and turns.take(KEYS[1])
        process.send_signal(how)
        process.wait()
        assert turns.take(KEYS[0])


@needs_locks
def test_a_forked_process_keeps_no_turn(tmp_path):
    with turns_at(tmp_path) as mine:
        assert mine.take(KEYS[0])
        child = os.fork()
        if not child:
            time.sleep(600)
            os._exit(0)
        try:
            mine.leave()
            with turns_at(tmp_path) as others:
                assert others.take(KEYS[0])
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@needs_locks
def test_threads(tmp_path):
    taken: list[str] = []

    def work() -> None:
        for key in [f"{number:064x}" for number in range(1 << 196, (1 << 196) + (50 << 196), 1 << 196)]:
            with turns_at(tmp_path) as turns:
                while not turns.take(key):
                    time.sleep(0.001)
                assert key not in inside
                inside.add(key)
                time.sleep(0.0005)
                inside.discard(key)
                taken.append(key)

    inside: set[str] = set()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 200


@pytest.mark.parametrize("folder", [None, "nowhere", "a file", "a link"])
def test_where_there_is_no_place_for_turns_everybody_has_one(tmp_path, folder):
    place = None
    if folder is not None:
        place = tmp_path / "folder"
        if folder == "a file":
            place.write_text("")
        elif folder == "a link":
            place.mkdir()
            (place / "turns").symlink_to(tmp_path / "elsewhere")
    with turns_at(place) as mine, turns_at(place) as others:
        assert mine.take(KEYS[0]) and others.take(KEYS[0])
    assert not (tmp_path / "elsewhere").exists()


def started(tmp_path: Path, count: int, seconds: float = 0.3) -> list[subprocess.Popen[str]]:
    """Processes that compile the same program with a slow compiler that counts its runs."""
    compiler, log = tmp_path / "cc", tmp_path / "log"
    log.touch()
    compiler.write_text(COMPILER.format(log=log, seconds=seconds, real=os.environ.get("CC", "cc")))
    compiler.chmod(0o755)
    env = {**os.environ, "CC": str(compiler), "QUINTET_CACHE_DIR": str(tmp_path / "cache"), "QUINTET_PROGRAM_CACHE": "0"}
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-W", "error", str(tmp_path / "program.py")]
    return [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(count)]


def runs(tmp_path: Path) -> int:
    return (tmp_path / "log").read_text().count("run")


def ended(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert out == "compiled\n"


@needs_locks
def test_what_many_processes_need_is_compiled_once(tmp_path):
    """At most twice is promised; locks make it once."""
    (tmp_path / "alone").mkdir()
    ended(started(tmp_path / "alone", 1))
    alone = runs(tmp_path / "alone")
    (tmp_path / "many").mkdir()
    ended(started(tmp_path / "many", 5))
    assert alone <= runs(tmp_path / "many") <= alone + 1  # a share of kernels may be cut in two
    ended(started(tmp_path / "many", 2))
    assert runs(tmp_path / "many") <= alone + 1


@needs_locks
def test_who_compiles_is_killed(tmp_path):
    first = started(tmp_path, 1, 2.0)[0]
    until = time.monotonic() + 120
    while not runs(tmp_path) and time.monotonic() < until:
        time.sleep(0.01)
    others = started(tmp_path, 2, 0.1)
    time.sleep(1.0)
    first.kill()
    first.communicate()
    ended(others)
