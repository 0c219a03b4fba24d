"""The driver: worker processes, time limits, progress, floors, and the file of failures."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

__all__ = ["FLOORS", "Settings", "Totals", "run"]

#: Least share of the programs that compute anything on tensors which must have run compiled code, by kind, as (captured
#: graphs, generated kernels).
FLOORS = {
    "tensor": (0.95, 0.85), "python": (0.98, 0.0), "training": (0.90, 0.80), "mutation": (0.85, 0.20), "sizes": (0.9, 0.6),
}  # fmt: skip
#: Largest share of elements that rounding may leave undecided.
UNDECIDED = 0.02


@dataclass(frozen=True)
class Settings:
    """What to run. ``minutes`` bounds the whole run, ``limit`` (seconds) one program."""

    kinds: tuple[str, ...]
    seed: int = 0
    count: int = 1000
    jobs: int = 1
    minutes: float = 60.0
    device: str = "cpu"
    limit: float = 90.0
    shrinking: float = 40.0
    recycle: int = 400
    out: str | None = None
    interpreted: bool = False
    quiet: bool = False


@dataclass
class Totals:
    """Sums over the programs of a kind."""

    programs: int = 0
    graphs: int = 0
    kernels: int = 0
    breaks: int = 0
    raised: int = 0
    unstable: int = 0
    elements: int = 0
    undecided: int = 0
    refused: int = 0
    asserted: int = 0
    idle: int = 0
    withheld: int = 0  # kernels, from programs whose graphs were refused to see what takes their place
    seconds: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)

    def add(self, record: dict[str, Any]) -> None:
        """Count one program's record."""
        self.programs += 1
        if "graphs" not in record:
            self.failures[record.get("failed", "broken")] += 1
            return
        for name in ("graphs", "kernels", "breaks", "raised", "unstable", "refused", "asserted", "idle"):
            setattr(self, name, getattr(self, name) + bool(record[name]))
        self.withheld += record["withheld"] and not record["kernels"]
        self.elements += record["elements"]
        self.undecided += record["undecided"]
        self.seconds += record["seconds"]
        self.lost.update(record["lost"])
        self.fallbacks.update({text[:100] for text in record["fallbacks"]})
        if record["difference"] is not None:
            self.failures[record["difference"]["kind"]] += 1

    @property
    def eager(self) -> float:
        """The share of the programs that compute anything on tensors, of which nothing was captured."""
        computing = self.programs - self.idle
        return max(computing - self.graphs, 0) / max(computing, 1)

    def shortfalls(self, kind: str) -> list[str]:
        """What falls below the floors that keep silent fallbacks from passing for agreement."""
        found = []
        if self.programs < 20:
            return found
        for name, floor, apart in zip(("graphs", "kernels"), FLOORS[kind], (0, self.withheld), strict=True):
            share = getattr(self, name) / max(self.programs - self.idle - apart, 1)
            if share < floor:
                found.append(f"{kind}: {share:.1%} of programs that compute have {name}, the floor is {floor:.0%}")
        if self.undecided > UNDECIDED * max(self.elements, 1):
            found.append(f"{kind}: {self.undecided} of {self.elements} elements undecided, more than {UNDECIDED:.0%}")
        if self.unstable > 0.05 * self.programs:
            found.append(f"{kind}: {self.unstable} of {self.programs} programs decided by rounding, more than 5%")
        if self.refused > 0.05 * self.programs:
            found.append(
                f"{kind}: {self.refused} of {self.programs} programs refused a second derivative, more than 5%"
            )
        return found


@dataclass(frozen=True)
class Task:
    """A program, and how a process is to go on with it after a kernel's assertion ended the one before."""

    kind: str
    seed: int
    again: dict[str, Any] = field(default_factory=dict)


class Worker:
    """A worker process and the program it is busy with; a process that dies or hangs is a finding."""

    module = "fuzz.worker"

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.cache = Path(tempfile.mkdtemp(prefix="worker-", dir=folder))
        self.errors: TextIO = (self.cache / "stderr.txt").open("w+")
        environment = dict(
            os.environ, QUINTET_CACHE_DIR=str(self.cache / "cache"), OMP_NUM_THREADS="1",
            QUINTET_COMPILE_WORKERS="1",  # the other cores have programs of their own
        )  # fmt: skip
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(Path(__file__).parents[1]), *filter(None, [environment.get("PYTHONPATH")])]
        )
        environment["PYTHONHASHSEED"] = "0"
        command = [sys.executable, "-m", self.module, *["--interpreted"] * settings.interpreted]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=environment
        )
        self.settings = settings
        self.task: Task | None = None
        self.started = time.monotonic()
        self.done = 0
        self.ready = False

    def give(self, task: Task) -> None:
        """Start on a program, as soon as it is ready."""
        self.task, self.started = task, time.monotonic()
        if self.ready:
            self.send(task)

    def send(self, task: Task) -> None:
        """Tell the process. Of what it answers before, a line may be in a buffer already, which nobody would look into."""
        assert self.process.stdin is not None
        wanted = self.settings
        line = {
            "kind": task.kind,
            "seed": task.seed,
            "device": wanted.device,
            "shrinking": wanted.shrinking,
            "limit": wanted.limit,
            **task.again,
        }
        try:
            self.process.stdin.write(json.dumps(line) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # its end is met where its answers are read

    def late(self) -> bool:
        """Whether its program takes longer than any may."""
        limit = self.settings.limit + self.settings.shrinking + 20
        return self.task is not None and time.monotonic() - self.started > limit

    def last_words(self) -> str:
        """The end of what it wrote to stderr."""
        self.errors.flush()
        self.errors.seek(0)
        return self.errors.read()[-6000:]

    def close(self) -> None:
        """End the process and remove its folder."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass
        shutil.rmtree(self.cache, ignore_errors=True)


def tasks(settings: Settings) -> Iterator[Task]:
    """Kinds in turn, seeds ascending."""
    for seed in range(settings.seed, settings.seed + settings.count):
        for kind in settings.kinds:
            yield Task(kind, seed)


def run(settings: Settings) -> tuple[dict[str, Totals], list[dict[str, Any]]]:
    """Run the programs; totals by kind, and the records of those that failed.

    Raises:
        RuntimeError: worker processes cannot start here.
    """
    totals = {kind: Totals() for kind in settings.kinds}
    failures: list[dict[str, Any]] = []
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        for record in _records(settings, folder):
            totals[record["kind"]].add(record)
            if "graphs" not in record or record["difference"] is not None:
                failures.append(record)
                if settings.out:
                    with Path(settings.out).open("a") as out:
                        out.write(json.dumps(record) + "\n")
                if not settings.quiet:
                    print(describe(record), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return totals, failures


def _records(settings: Settings, folder: Path) -> Iterator[dict[str, Any]]:
    todo = tasks(settings)
    end = time.monotonic() + settings.minutes * 60
    selector = selectors.DefaultSelector()
    running: list[Worker] = []
    counted, told, begun = 0, time.monotonic(), time.monotonic()

    def start() -> None:
        worker = Worker(folder, settings)
        running.append(worker)
        selector.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]

    def stop(worker: Worker) -> None:
        running.remove(worker)
        selector.unregister(worker.process.stdout)  # type: ignore[arg-type]
        worker.close()

    def next_task() -> Task | None:
        return next(todo, None) if time.monotonic() < end else None

    try:
        for _ in range(settings.jobs):
            start()
        while running:
            ready = [key.data for key, _ in selector.select(timeout=1.0)]
            for worker in ready:
                line = worker.process.stdout.readline()
                record = json.loads(line) if line else None
                task = worker.task
                again = None
                if record is not None and "ready" in record:
                    worker.ready = True
                    if task is not None:
                        worker.send(task)
                        continue
                elif task is not None and record is not None and "again" in record:
                    again = Task(task.kind, task.seed, record["again"])
                elif task is not None:
                    counted += 1
                    worker.done += 1
                    worker.task = None
                    yield record or _lost(task, "crash", f"exit status {worker.process.wait()}\n{worker.last_words()}")
                elif record is None and not worker.done:
                    raise RuntimeError(f"a worker process ended before its first program:\n{worker.last_words()}")
                if record is None or record.get("retire") or worker.done >= settings.recycle:
                    stop(worker)
                    upcoming = again or (next_task() if task is not None else None)
                    if upcoming is not None:
                        start()
                        running[-1].give(upcoming)
                    continue
                upcoming = next_task()
                if upcoming is None:
                    stop(worker)
                else:
                    worker.give(upcoming)
            for worker in [w for w in running if w.late()]:
                task = worker.task
                assert task is not None
                stop(worker)
                counted += 1
                yield _lost(task, "hang", f"no answer within {settings.limit + settings.shrinking + 20:.0f} s")
                upcoming = next_task()
                if upcoming is not None:
                    start()
                    running[-1].give(upcoming)
            if not settings.quiet and time.monotonic() - told > 20:
                told = time.monotonic()
                print(
                    f"[{told - begun:6.0f} s] {counted} programs, {counted / (told - begun):.1f} a second", flush=True
                )
    finally:
        for worker in list(running):
            stop(worker)


def _lost(task: Task, why: str, words: str) -> dict[str, Any]:
    return {"kind": task.kind, "seed": task.seed, "failed": why, "broken": words}


def describe(record: dict[str, Any]) -> str:
    """A failure as text: what differs, and the program to run."""
    head = f"--- {record['kind']} program {record['seed']}: "
    if "graphs" not in record:
        return f"{head}{record.get('failed', 'the fuzzer itself failed')}\n{record['broken']}"
    found = record["difference"]
    return (
        f"{head}{found['kind']} at {found['where']}\n    eager {found['eager']}\n    ours  {found['ours']}\n"
        f"{record.get('shrunk', record.get('source', ''))}"
    )
