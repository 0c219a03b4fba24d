"""The steps of a graph's function, and timing them while the graph runs.

Nothing of that is in a function's text, so that it costs nothing where nobody asks. While :func:`timing` is on, the
names that the text finds are bound to what times their calls: programs of several kernels are run kernel by kernel.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import torch

from inductor_gen.runtime.launch import Launcher, Layout, Program
from inductor_gen.runtime.products import Product
from prims.errors import UserError
from prims.forking import lock
from prims.records import record

__all__ = ["Parts", "Step", "Timed", "note_parts", "timing"]


@record
class Step:
    """A kernel's launch, or a library's call, of a graph's function, which runs each once, in order.

    Attributes:
        kind: ``"kernel"`` or ``"library"``.
        name: the kernel's or the operator's.
        calls: the names in the function's text by which it runs; one of them does.
        ops: the operators fused into it.
        read: bytes that it reads, each element once, for likely sizes.
        written: bytes that it writes.
        lines: the user's lines that it computes.
        device: where it runs.
    """

    kind: str
    name: str
    calls: tuple[str, ...]
    ops: tuple[str, ...] = ()
    read: int = 0
    written: int = 0
    lines: tuple[str, ...] = ()
    device: str = "cpu"


@record(eq=False)
class Parts:
    """What of a graph's function can be timed: its steps, and the programs that launch kernels, by name."""

    steps: tuple[Step, ...]
    programs: Mapping[str, Program | Layout | Product]
    launch: Launcher


@record(eq=False)
class Timed:
    """A step that ran: when it began and ended by ``time.perf_counter``, the events around it on a GPU, and how many
    steps it is nested in."""

    step: Step
    began: float
    ended: float
    events: tuple[torch.cuda.Event, torch.cuda.Event] | None
    depth: int


_LOCK, _TURN = lock(), lock()
#: The functions of graphs that there are.
_KNOWN: weakref.WeakKeyDictionary[Any, Parts] = weakref.WeakKeyDictionary()


def note_parts(call: Any, parts: Parts) -> None:
    """Let a graph's function be timed."""
    with _LOCK:
        _KNOWN[call] = parts


@contextmanager
def timing() -> Iterator[list[Timed]]:
    """Time the steps of all graphs that run meanwhile, on any thread. CUDA graphs are not replayed: their kernels are
    launched one by one.

    Raises:
        UserError: somebody does so already.
    """
    if not _TURN.acquire(blocking=False):
        raise UserError("a call is being profiled already", todo="Profile one call at a time.")
    found: list[Timed] = []
    bound: list[tuple[dict[str, Any], dict[str, Any]]] = []
    graphs = sys.modules.get("inductor_gen.runtime.cuda_graphs")
    replayed = [one for one in graphs.ALL if one.usable] if graphs is not None else []
    with _LOCK:
        known = list(_KNOWN.items())
    clock = _Clock(found)
    try:
        for one in replayed:
            one.usable = False
        for call, parts in known:
            space = call.__globals__
            timed = _timed(space, parts, clock)
            bound.append((space, {name: space[name] for name in timed}))
            space.update(timed)
        yield found
    finally:
        for space, names in bound:
            space.update(names)
        for one in replayed:
            one.usable = True
        _TURN.release()


class _Clock:
    """Notes when a step ran."""

    def __init__(self, found: list[Timed]) -> None:
        self.found = found
        self.depths = threading.local()

    def run(
        self, step: Step, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], launches: bool
    ) -> Any:  # fmt: skip
        """Call a function, and note it as a step; not where one that ``launches`` says that it came to nothing."""
        events = None
        if step.device.startswith("cuda"):
            events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        depth = getattr(self.depths, "now", 0)
        self.depths.now = depth + 1
        began = time.perf_counter()
        try:
            if events:
                events[0].record()
            result = function(*args, **kwargs)
            if events:
                events[1].record()
        finally:
            self.depths.now = depth
        if not (launches and result):
            self.found.append(Timed(step, began, time.perf_counter(), events, depth))
        return result


def _timed(space: Mapping[str, Any], parts: Parts, clock: _Clock) -> dict[str, Callable[..., Any]]:
    """What times the steps, by the names that they are called by."""
    steps: dict[str, list[Step]] = {}
    for step in parts.steps:
        for name in step.calls:
            steps.setdefault(name, []).append(step)
    found: dict[str, Callable[..., Any]] = {}
    for name, some in steps.items():
        program = parts.programs.get(name)
        if isinstance(program, Program):
            found[name] = _by_kernel(program, parts.launch, some, clock)
        else:
            found[name] = _in_turn(space[name], some, clock, isinstance(program, Product))
    return found


def _by_kernel(program: Program, launch: Launcher, steps: Sequence[Step], clock: _Clock) -> Callable[..., int]:
    """A program as programs of one kernel each."""
    tensors, slots, numbers = program.tensors, program.slots, program.numbers
    runs = [launch(Program(tensors, slots, numbers, [call], program.gpu)) for call in program.calls]

    def run(*args: Any) -> int:
        for one, step in zip(runs, steps, strict=True):
            bad = clock.run(step, one, args, {}, True)
            if bad:
                return int(bad)
        return 0

    return run


def _in_turn(
    function: Callable[..., Any], steps: Sequence[Step], clock: _Clock, launches: bool
) -> Callable[..., Any]:  # fmt: skip
    """An operator's function, which a graph's function calls once for each of these steps."""
    turns = cycle(steps)
    return lambda *args, **kwargs: clock.run(next(turns), function, args, kwargs, launches)
