"""Compilation beside the program: a thread that does one job after another while the program goes on.

Python runs one thread at a time, so the worker takes time from the program's calls. While it works, a thread that waits
for the interpreter gets it after :data:`_PATIENCE` seconds, not after Python's 5 ms: a step of a hundred operators
waits for it up to a hundred times. C compilers run as processes of their own, for which the worker only waits. The
worker is not made nicer than the program's threads: on a busy machine it would be kept from running while it has the
interpreter, and they would wait for it (measured: twice the time until the program is ready).

What a job warns of is kept, and given to the thread that asks for the job's outcome: it knows the user's line, and
filters of warnings there decide. At the end of the process a job that runs is stopped between two of Python's
instructions, and not waited for longer than :data:`_LAST` seconds. A forked child has no worker and no jobs.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from prims.forking import beside, lock

__all__ = ["Job", "is_worker", "keep_warning", "submit", "wait"]

#: Seconds after which a thread that waits for the interpreter gets it while a job runs.
_PATIENCE = 1e-4
#: Seconds that the end of the process waits for a job to stop.
_LAST = 10.0


class _Stopped(BaseException):
    """The process ends."""


class Job:
    """Something to be done by the worker: ``run()``.

    Attributes:
        error: what it raised.
        warnings: what it wanted the user to be told.
        seconds: how long it took.
        dropped: nobody wants it any more; it is not begun.
    """

    def __init__(self, run: Callable[[], None]) -> None:
        self._run: Callable[[], None] | None = run
        self.error: BaseException | None = None
        self.warnings: list[str] = []
        self.seconds = self._begun = 0.0
        self.dropped = False
        self._ended = threading.Event()

    @property
    def done(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self._ended.is_set()

    def spent(self) -> float:
        """Seconds that it took, or has taken so far."""
        return time.perf_counter() - self._begun if self._begun and not self.done else self.seconds

    def _do(self) -> None:
        run, self._run = self._run, None
        self._begun = time.perf_counter()
        _here.job = self
        try:
            if run is not None and not self.dropped:
                run()
        except _Stopped:
            raise
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # which hold what was compiled
            self.error = error
        finally:
            del run
            _here.job = None
            self.seconds = time.perf_counter() - self._begun


_here = threading.local()
_lock = lock()
_jobs: deque[Job] = deque()
_thread: threading.Thread | None = None
_running: Job | None = None
_ending = False


def is_worker() -> bool:
    """Whether this is the thread that does jobs."""
    return getattr(_here, "job", None) is not None


def keep_warning(message: str) -> bool:
    """Keep a warning of the job that runs on this thread; False where none does."""
    job: Job | None = getattr(_here, "job", None)
    if job is not None:
        job.warnings.append(message)
    return job is not None


def submit(job: Job) -> Job:
    """Have a job done after those that were submitted before."""
    global _thread
    with _lock:
        _jobs.append(job)
        if _thread is None and not _ending:
            _thread = threading.Thread(target=_work, name="quintet background", daemon=True)
            _thread.start()
    return job


def wait(timeout: float | None = None, jobs: list[Job] | None = None) -> bool:
    """Wait until jobs have ended; whether they have.

    Args:
        timeout: seconds; None waits as long as it takes.
        jobs: those to wait for; by default all that are submitted by now.
    """
    if is_worker():
        return False
    if jobs is None:
        with _lock:
            jobs = [*([_running] if _running is not None else []), *_jobs]
    until = None if timeout is None else time.monotonic() + timeout
    return all(job._ended.wait(None if until is None else max(until - time.monotonic(), 0.0)) for job in jobs)


def _next() -> Job | None:
    """The next job; None ends the thread."""
    global _running, _thread
    with _lock:
        _running = _jobs.popleft() if _jobs and not _ending else None
        if _running is None:
            _thread = None
        return _running


def _work() -> None:
    global _running
    with contextlib.suppress(_Stopped), _often():
        while (job := _next()) is not None:
            try:
                with beside():
                    job._do()
            finally:
                job._ended.set()  # when others may compile again, so that who has waited for it can
            _running = job = None


@contextlib.contextmanager
def _often() -> Iterator[None]:
    """Whoever waits for the interpreter gets it soon; what another thread sets meanwhile stays."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _PATIENCE))
    ours = sys.getswitchinterval()
    try:
        yield
    finally:
        if sys.getswitchinterval() == ours:
            sys.setswitchinterval(before)


def _end() -> None:
    global _ending
    with _lock:
        _ending = True
        _jobs.clear()
        thread = _thread
    if thread is None or thread.ident is None:
        return
    sys.unraisablehook = _quiet(sys.unraisablehook)
    threading.excepthook = _quiet(threading.excepthook)
    until = time.monotonic() + _LAST
    while thread.is_alive() and time.monotonic() < until:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Stopped))
        thread.join(0.2)


def _quiet(hook: Callable[[Any], object]) -> Callable[[Any], None]:
    """A hook that is not told of the stop: where it meets a destructor or a callback, Python reports and drops it."""

    def told(args: Any) -> None:
        if args.exc_type is not _Stopped:
            hook(args)

    return told


def _forget() -> None:
    """In a forked child: there is no worker."""
    global _thread, _running
    if _thread is not None and sys.getswitchinterval() <= _PATIENCE * 1.01:
        sys.setswitchinterval(0.005)
    _jobs.clear()
    _thread = _running = None


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
