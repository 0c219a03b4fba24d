"""Progress on long work: on a terminal, of work that takes a while, for whoever wants it; nothing anywhere else."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import threading
import time

import pytest
import torch

import compile_api
from compile_api import progress
from prims.options import Options
from prims.report import Report

PROGRAM = """
import torch, compile_api
compiled = compile_api.compile(lambda x: (x.sin() * 2.75).softmax(-1), options={"cache": False})
compiled(torch.ones(3, 5))
print(compiled.report().verdict)
"""


@pytest.fixture
def slow_compiler(tmp_path):
    """A C compiler that takes two seconds for a library."""
    path = tmp_path / "slow-cc"
    path.write_text('#!/bin/sh\ncase "$*" in *--version*) ;; *) sleep 2 ;; esac\nexec gcc "$@"\n')
    path.chmod(0o755)
    return str(path)


def on_a_terminal(script: str, **variables: str) -> tuple[str, str]:
    """What a program writes to standard output, and to a terminal that is its standard error."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", **variables}
    job = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=slave, env=environment, text=True)
    os.close(slave)
    seen = b""
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        seen += part
    os.close(master)
    output, _ = job.communicate(timeout=60)
    assert job.returncode == 0, seen.decode()
    return output, seen.decode()


def test_kernels_so_many_of_so_many_on_a_terminal(slow_compiler):
    output, seen = on_a_terminal(PROGRAM, CC=slow_compiler)
    assert output == "compiled\n"
    assert "compiling kernels 0 of " in seen and "\x1b[2K" in seen  # what was drawn is wiped out
    _, quiet = on_a_terminal(PROGRAM, CC=slow_compiler, QUINTET_PROGRESS="0")
    assert quiet == ""


def test_nothing_where_standard_error_is_no_terminal(slow_compiler):
    environment = {**os.environ, "CC": slow_compiler}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=True)
    assert done.stderr == "" and done.stdout == "compiled\n"


def test_who_watches(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    assert progress.watcher(Options()) is None or sys.stderr.isatty()
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    bar = progress.watcher(Options())
    assert isinstance(bar, progress.Bar) and progress.watcher(Options()) is bar
    assert progress.watcher(Options(progress=False)) is None
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert progress.watcher(Options()) is None
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("TERM", "dumb")
    assert progress.watcher(Options()) is None


def test_short_work_is_not_shown_and_starts_no_display(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    bar = progress.Bar(patience=60)
    report = Report(progress=bar)
    with report.counting("compiling kernels", 3) as more:
        assert bar.timer is not None
        more(2)
    assert bar.timer is None and bar.shown is None and not bar.works and sys.stderr.getvalue() == ""


def test_works_of_several_threads_side_by_side(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    bar = progress.Bar(patience=0.01)
    report = Report(progress=bar)
    begun, end = threading.Barrier(3), threading.Event()

    def work():
        with report.counting("compiling kernels", 4) as more:
            more(1)
            begun.wait(30)
            end.wait(30)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    begun.wait(30)
    until = time.monotonic() + 30
    while bar.shown is None and time.monotonic() < until:
        time.sleep(0.01)
    with bar.lock:  # all of it is drawn
        assert [task.completed for task in bar.shown.tasks] == [1, 1]
    end.set()
    for thread in threads:
        thread.join()
    assert bar.shown is None and not bar.works


def test_what_fails_is_over_too():
    seen = []
    report = Report(progress=lambda *told: seen.append(told))
    with pytest.raises(ZeroDivisionError), report.counting("compiling kernels", 3) as more:
        more()
        raise ZeroDivisionError
    assert seen == [("compiling kernels", 0, 3), ("compiling kernels", 1, 3), ("compiling kernels: ended", 3, 3)]


def test_a_terminal_that_takes_nothing_breaks_nothing(monkeypatch):
    class Broken(io.StringIO):
        def write(self, text):
            raise UnicodeEncodeError("ascii", text, 0, 1, "not in range")

    monkeypatch.setattr(sys, "stderr", Broken())
    bar = progress.Bar(patience=0.01)
    with Report(progress=bar).counting("compiling kernels", 3) as more:
        until = time.monotonic() + 30
        while not bar.broken and time.monotonic() < until:
            time.sleep(0.01)
        more(2)
    assert bar.broken and not bar.works


def test_time_left():
    assert progress.time_left(10, 0, 6) == "" and progress.time_left(10, 6, 6) == ""
    assert progress.time_left(10, 2, 6) == ", about 20 s left"
    assert progress.time_left(300, 1, 3) == ", about 10 min left"


def test_every_kernel_is_counted_once(monkeypatch):
    """However many processes compile them."""
    seen = []
    monkeypatch.setattr(sys.modules["compile_api.compile"], "watcher", lambda options: lambda *told: seen.append(told))

    def program(x):
        for k in range(20):  # kernels that cannot be one
            x = (x * ((k + 1) / 8)).softmax(k % 2).cumsum(1 - k % 2)
        return x

    made = compile_api.compile(program, options={"cache": False, "compile_workers": 3})
    made(torch.randn(33, 35))
    cache = made.report().caches[0]
    totals = {total for what, _, total in seen if what == "compiling kernels"}
    assert totals == {cache.compiled} and cache.compiled > 16
    done = [done for what, done, _ in seen if what == "compiling kernels"]
    assert done == sorted(done) and done[0] == 0 and done[-1] == cache.compiled and len(set(done)) >= 4
