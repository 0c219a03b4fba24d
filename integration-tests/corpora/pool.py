"""A pool of processes, one for each program: what crashes, hangs or takes too much memory is one row.

The processes are forked from this one, which has imported everything and computed nothing: a program costs what it
costs by itself. Each has a limit of time, kept by the parent, and one of memory, kept by the system, and cannot reach a
network.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import pkgutil
import resource
import selectors
import shutil
import signal
import socket
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Settings", "Task", "prepare", "run"]

PACKAGES = ("prims", "dynamo_capture", "aot_autograd", "inductor_gen", "compile_api")


@dataclass(frozen=True)
class Settings:
    """Processes at once, minutes after which no program begins, seconds and GiB for a program."""

    jobs: int = 1
    minutes: float = 60.0
    limit: float = 180.0
    memory: float = 8.0
    training: bool = True


@dataclass(frozen=True)
class Task:
    """A program under a stack."""

    kind: str
    name: str
    stack: str

    def row(self, **more: Any) -> dict[str, Any]:
        """A record of it."""
        return {"kind": self.kind, "name": self.name, "stack": self.stack, **more}


def prepare(kinds: Iterable[str]) -> None:
    """Set this process up for what it will fork: no device, no network, one thread, everything imported."""
    os.environ.update(
        CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1",
        QUINTET_COMPILE_WORKERS="1", PYTHONHASHSEED="0",
    )  # fmt: skip
    warnings.filterwarnings("ignore")
    import torch

    torch.set_num_threads(1)
    if {"timm", "transformers"} & set(kinds):
        import zoo

        zoo.import_torchvision()
    if "timm" in kinds:
        importlib.import_module("timm")
    if "transformers" in kinds:
        importlib.import_module("transformers.modeling_utils")
    for package in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
            with contextlib.suppress(ImportError):  # triton, where there is none
                importlib.import_module(module.name)
    importlib.import_module("corpora.measure")


def run(tasks: Iterable[Task], settings: Settings) -> Iterator[dict[str, Any]]:
    """The records of the programs, as they are done; those that time did not suffice for are left out."""
    folder = Path(tempfile.mkdtemp(prefix="corpora-"))
    os.environ["QUINTET_CACHE_DIR"] = str(folder / "cache")
    end = time.monotonic() + 60 * settings.minutes
    todo, running = iter(tasks), []
    selector = selectors.DefaultSelector()
    try:
        while True:
            while len(running) < settings.jobs and time.monotonic() < end:
                task = next(todo, None)
                if task is None:
                    break
                child = Child(task, settings, folder)
                running.append(child)
                selector.register(child.pipe, selectors.EVENT_READ, child)
            if not running:
                return
            for key, _ in selector.select(timeout=0.5):
                key.data.read()
            for child in [c for c in running if c.ended or c.late()]:
                selector.unregister(child.pipe)
                running.remove(child)
                yield child.finish()
    finally:
        for child in running:
            child.finish()
        shutil.rmtree(folder, ignore_errors=True)


class Child:
    """A forked process with one program."""

    def __init__(self, task: Task, settings: Settings, folder: Path) -> None:
        self.task, self.settings, self.begun = task, settings, time.monotonic()
        self.words = folder / f"{task.kind}-{task.stack}-{task.name.replace('/', '_')[:80]}.txt"
        self.text, self.ended = b"", False
        self.pipe, writing = os.pipe()
        self.process = os.fork()
        if not self.process:
            os.close(self.pipe)
            in_child(writing, self.words, settings, lambda: work(task, settings))
        os.close(writing)

    def read(self) -> None:
        """Take what has come."""
        chunk = os.read(self.pipe, 1 << 16)
        self.text += chunk
        self.ended = not chunk

    def late(self) -> bool:
        """Whether its time is up."""
        return time.monotonic() - self.begun > self.settings.limit

    def finish(self) -> dict[str, Any]:
        """Its record; it is ended if it is not."""
        late = not self.ended
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)
        _, state = os.waitpid(self.process, 0)
        os.close(self.pipe)
        spent = round(time.monotonic() - self.begun, 1)
        if late:
            return self.task.row(
                status="late", why=f"over {self.settings.limit:.0f} s", trace=self.last_words(), total_s=spent
            )
        try:
            return {**json.loads(self.text), "total_s": spent}
        except ValueError:
            ended = f"signal {os.WTERMSIG(state)}" if os.WIFSIGNALED(state) else f"exit status {os.WEXITSTATUS(state)}"
            return self.task.row(
                status="crash", why=f"the process ended: {ended}", trace=self.last_words(), total_s=spent
            )

    def last_words(self) -> list[str]:
        """The end of what it wrote: where it was, as a rule."""
        with contextlib.suppress(OSError):
            return self.words.read_text(errors="replace").splitlines()[-25:]
        return []


def in_child(writing: int, words: Path, settings: Settings, task: Callable[[], dict[str, Any]]) -> None:
    """Do the work within the limits, write the record, end the process."""
    status = 1
    try:
        os.setpgid(0, 0)
        os.chdir(words.parent)
        output = os.open(words, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        faulthandler.enable()
        faulthandler.dump_traceback_later(max(settings.limit - 3, 1))
        limit_memory(settings.memory)
        forbid_network()
        text = json.dumps(task(), default=str)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(text.encode())
        status = 0
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(status)


def limit_memory(gibibytes: float) -> None:
    """So much more address space than the process has now."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    most = now + int(gibibytes * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def forbid_network() -> None:
    """A program that asks for a download fails."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("no program of a corpus may use a network")

    socket.socket.connect = refuse  # type: ignore[method-assign]
    socket.socket.connect_ex = refuse  # type: ignore[method-assign]
    socket.getaddrinfo = refuse


def work(task: Task, settings: Settings) -> dict[str, Any]:
    """The program's record."""
    from corpora.measure import measured

    return measured(task.kind, task.name, task.stack, settings.training)
