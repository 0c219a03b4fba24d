"""Compiling Triton kernels in a process of their own (``triton_worker``), begun before the kernels are known.

Started when a graph for a GPU comes in, the process imports Triton while the graph is lowered; it serves all later
graphs of the program and ends by itself when idle. Where it cannot be had, kernels are compiled in this process.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from prims.errors import InternalError
from prims.forking import lock

__all__ = ["Pool", "WorkerLost", "shared_pool"]

_WORKER = Path(__file__).with_name("triton_worker.py")


class WorkerLost(Exception):
    """The process ended or could not be reached; this says nothing about the kernel."""


class Pool:
    """A worker process and the jobs given to it.

    Raises:
        WorkerLost: the process could not be started.
    """

    def __init__(self, capability: tuple[int, int]) -> None:
        self.capability = capability
        self.owner = os.getpid()
        self.jobs: dict[int, tuple[Future[tuple[bytes, str, int]], Path]] = {}
        self.numbers = itertools.count()
        self.lock = threading.Lock()
        self.lost = False
        # -P: the worker's folder must not come first on its path, where its files would hide other modules
        command = [sys.executable, "-P", str(_WORKER), *map(str, capability)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
            )
        except (OSError, ValueError, TypeError) as error:
            raise WorkerLost(str(error)) from None
        threading.Thread(target=self._listen, name="quintet-triton", daemon=True).start()

    def usable(self) -> bool:
        """Can this process give it jobs? Not after a fork, nor when it ended."""
        return not self.lost and self.owner == os.getpid() and self.process.poll() is None

    def submit(
        self, file: Path, function: str, signature: Any, options: dict[str, Any], out: Path, at_once: int
    ) -> Future[tuple[bytes, str, int]]:
        """Begin to compile ``function`` of a file, ``at_once`` kernels side by side.

        The future gives ``(cubin, function name, bytes of shared memory)`` or raises ``WorkerLost``, or
        ``InternalError`` where Triton refused the kernel.
        """
        future: Future[tuple[bytes, str, int]] = Future()
        with self.lock:
            number = next(self.numbers)
            self.jobs[number] = (future, out)
            job = {
                "id": number, "file": str(file), "function": function, "signature": signature,
                "capability": self.capability, "options": options, "out": str(out), "at_once": at_once,
            }  # fmt: skip
            try:
                assert self.process.stdin is not None
                self.process.stdin.write((json.dumps(job) + "\n").encode())
                self.process.stdin.flush()
            except (OSError, ValueError):
                self.lost = True
            lost = self.lost
        if lost:
            self._lose()
        return future

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                record = json.loads(line)
                self._finish(record)
            except (ValueError, KeyError):
                break  # something else wrote there: what follows cannot be trusted
        self._lose()

    def _finish(self, record: dict[str, Any]) -> None:
        with self.lock:
            future, out = self.jobs.pop(record["id"])
        try:
            made = out.read_bytes()
            out.unlink()
        except OSError as error:
            made, record = b"", {"error": record.get("error", str(error))}
        if "refused" in record:
            future.set_exception(InternalError(made.decode(errors="replace")))
        elif "error" in record:
            future.set_exception(InternalError(record["error"]))
        else:
            future.set_result((made, record["name"], record["shared"]))

    def _lose(self) -> None:
        with self.lock:
            self.lost = True
            jobs, self.jobs = self.jobs, {}
        for future, _ in jobs.values():
            future.set_exception(WorkerLost("the process that compiles Triton kernels ended"))

    def close(self) -> None:
        """End the process."""
        if self.owner == os.getpid() and self.process.stdin is not None:
            try:
                self.process.stdin.close()
                self.process.wait(1)
            except OSError:
                pass
            except subprocess.TimeoutExpired:
                self.process.kill()


_POOL: Pool | None = None
_LOCK = lock()


def shared_pool(capability: tuple[int, int]) -> Pool | None:
    """The program's worker for GPUs of this capability, started where there is none; None where it cannot be."""
    global _POOL
    with _LOCK:
        if _POOL is None or _POOL.capability != capability or not _POOL.usable():
            if _POOL is None:
                atexit.register(_close)
            else:
                _POOL.close()
            try:
                _POOL = Pool(capability)
            except WorkerLost:
                _POOL = None
        return _POOL


def _close() -> None:
    if _POOL is not None:
        _POOL.close()
