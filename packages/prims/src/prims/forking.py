"""``fork`` beside threads that compile.

A forked child has the thread that forked and no other: what another thread was doing, a lock that it held, a module
that it was importing, is never finished there. So a fork waits until no other thread compiles, for a while; and where
that is too long, the child leaves everything to eager, and says why.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

__all__ = ["COMPILING", "compiling", "lock", "why_cut_off"]

#: Held by the thread that compiles (or imports what compiling needs).
COMPILING = threading.RLock()
#: Seconds that a fork waits for other threads' compilations.
_WAIT = 30.0

_LOCKS: weakref.WeakSet[Any] = weakref.WeakSet()
_forking = threading.local()
_cut_off: list[str] = []
_paused: list[tuple[int, int, int]] = []  # the cyclic collector's thresholds, while a compilation keeps it waiting


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Compile, or import what only compiling needs, alone; also a decorator. A module that is imported at its first use
    outside of this is half imported in a child that is forked meanwhile, for good.

    Meanwhile there are no collections of cycles: a full one looks through all objects of the program and its libraries,
    and takes as long as compiling a BERT (0.2 s of 0.5).

    Its threshold is what keeps it waiting, so that ``gc.disable()`` of another thread holds; thresholds that another
    thread has set meanwhile stay.
    """
    with COMPILING:
        threshold = gc.get_threshold()
        if not threshold[0]:  # a compilation within another, or the program's own wish
            yield
            return
        try:
            _paused.append(threshold)
            gc.set_threshold(0, *threshold[1:])
            yield
        finally:
            _resume()


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
    _forking.held = COMPILING.acquire(timeout=_WAIT)


def _in_parent() -> None:
    if _forking.held:
        COMPILING.release()


def _in_child() -> None:
    for made in _LOCKS:
        made._at_fork_reinit()
    if _forking.held:
        COMPILING.release()
    else:
        COMPILING._at_fork_reinit()  # type: ignore[attr-defined]
        if _paused:
            _resume()
        _cut_off.append(
            "this process was forked while another thread compiled, for longer than the fork waited; start processes "
            "before compiling, or by multiprocessing's spawn or forkserver"
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
