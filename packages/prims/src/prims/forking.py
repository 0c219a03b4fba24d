"""``fork`` beside threads that compile.

A forked child has the thread that forked and no other: what another thread was doing, a lock that it held, a module
that it was importing, is never finished there. So a fork waits until no other thread compiles, for a while; and where
that is too long, the child leaves everything to eager, and says why. What is compiled
beside the program (:mod:`prims.background`) is to keep nobody waiting: a fork waits for the end of an import there, and
no longer.
"""

from __future__ import annotations

import _frozen_importlib
import _imp
import contextlib
import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

from prims.signals import letting_signals_through

__all__ = ["COMPILING", "at_once", "beside", "compiling", "lock", "why_cut_off"]

#: Held by the thread that compiles (or imports what compiling needs).
COMPILING = threading.RLock()
#: Seconds that a fork waits for other threads' compilations.
_WAIT = 30.0

_LOCKS: weakref.WeakSet[Any] = weakref.WeakSet()
_forking = threading.local()
_beside = threading.local()
_held_beside: list[int] = []  # by the thread that compiles beside the program, while it does
_cut_off: list[str] = []
_paused: list[tuple[int, int, int]] = []  # the cyclic collector's thresholds, while a compilation keeps it waiting


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Compile, or import what only compiling needs, alone; also a decorator. A module that is imported at its first use
    outside of this is half imported in a child that is forked meanwhile, for good.

    Meanwhile there are no collections of cycles: a full one looks through all objects of the program and its libraries,
    and takes as long as compiling a BERT (0.2 s of 0.5).

    Its threshold is what keeps it waiting, so that ``gc.disable()`` of another thread holds; thresholds that another
    thread has set meanwhile stay. What a handler of a signal raises meanwhile leaves the block as it is.
    """
    with COMPILING, letting_signals_through():
        threshold = gc.get_threshold()
        # A compilation within another, or the program's own wish; or the program goes on meanwhile, and makes cycles.
        if not threshold[0] or getattr(_beside, "works", False):
            yield
            return
        try:
            _paused.append(threshold)
            gc.set_threshold(0, *threshold[1:])
            yield
        finally:
            _resume()


@contextlib.contextmanager
def beside() -> Iterator[None]:
    """Compile alone, beside a program that goes on: neither its forks nor its collections of cycles wait."""
    with COMPILING:
        _beside.works = True
        _held_beside.append(threading.get_ident())
        try:
            yield
        finally:
            _held_beside.clear()
            _beside.works = False


@contextlib.contextmanager
def at_once() -> Iterator[bool]:
    """As :func:`compiling` where no other thread compiles; whether that is so, and else nothing may be compiled."""
    if not COMPILING.acquire(blocking=False):
        yield False
        return
    try:
        with compiling():
            yield True
    finally:
        COMPILING.release()


def _resume() -> None:
    threshold = _paused.pop()
    if gc.get_threshold() == (0, *threshold[1:]):
        gc.set_threshold(*threshold)


def lock() -> threading.Lock:
    """A lock for short sections; in a forked child it is free."""
    made = threading.Lock()
    _LOCKS.add(made)
    return made


def why_cut_off() -> str | None:
    """Why nothing is compiled in this process: it was forked in the middle of a compilation. None where it was not."""
    return _cut_off[0] if _cut_off else None


def _before() -> None:
    if _held_beside:
        _let_imports_end()
    _forking.held = COMPILING.acquire(timeout=0 if _held_beside else _WAIT)


def _let_imports_end() -> None:
    """Wait until the thread that compiles beside the program imports nothing: a child that imports the same would wait
    for it for ever. From then to the fork that thread does not run."""
    until = time.monotonic() + _WAIT
    while True:
        _forking.interval = sys.getswitchinterval()
        sys.setswitchinterval(_WAIT)
        if not _imports_beside() or time.monotonic() > until:
            return
        sys.setswitchinterval(_forking.interval)
        time.sleep(0.001)


def _imports_beside() -> bool:
    if _imp.lock_held():  # which it holds while it makes a module's lock
        return True
    # Python's locks of modules that are being imported; each has the thread that holds it.
    held = [reference() for reference in list(getattr(_frozen_importlib, "_module_locks", {}).values())]
    return any(getattr(one, "owner", None) in _held_beside for one in held if one is not None)


def _forked() -> None:
    interval = getattr(_forking, "interval", None)
    if interval is not None:
        _forking.interval = None
        sys.setswitchinterval(interval)


def _in_parent() -> None:
    _forked()
    if _forking.held:
        COMPILING.release()


def _in_child() -> None:
    _forked()
    for made in _LOCKS:
        made._at_fork_reinit()
    if _forking.held:
        COMPILING.release()
    else:
        COMPILING._at_fork_reinit()  # type: ignore[attr-defined]
        if _paused:
            _resume()
        which = "another thread compiled, for longer than the fork waited"
        if _held_beside:
            which = "the background compiled"
        _held_beside.clear()
        _cut_off.append(
            f"this process was forked while {which}; start processes before compiling, or by multiprocessing's spawn "
            "or forkserver"
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
