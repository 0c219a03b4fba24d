"""``profile()``: one call of what is compiled, kernel by kernel and library call by library call."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from compile_api.in_place import report_of
from compile_api.trial import keeping_random_state, seconds_of_call, state_of
from prims.calls import CallRecord, StepRecord
from prims.eager import warn_user

if TYPE_CHECKING:
    from inductor_gen.runtime.steps import Timed

__all__ = ["profile"]

#: Calls before those that count: what is compiled, recorded and chosen in them is none of it.
_WARM = 4
#: Calls that are timed step by step: the quickest counts, which other programs disturbed least.
_TIMED = 6
#: Cycles of a GPU's clock in a second, more than it has, so that it waits long enough.
_CYCLES = 2.2e9


def profile(compiled: Any, /, *args: Any, **kwargs: Any) -> CallRecord:
    """Measure one call of what ``compile()`` returned: how long each kernel and each library call runs.

    The call is made a few times before, and six times with a clock around each step, of which the quickest counts;
    with its backward pass where a result has one. Arguments are copied for each call; a module's own state changes as
    by ten calls. The record is also in ``report().calls``, and with it in the report's page, as a timeline.

    On a CPU that is the wall clock around each kernel's call. On a GPU it is device time, by CUDA events around each
    launch while the device has more work queued: launches that the host is slow to make do not count, and kernels that
    calls replay as a CUDA graph are launched one by one.

    Raises:
        UserError: it is not compiled, or a call is being profiled already.
        Exception: what the program raises.
    """
    report = report_of(compiled)
    from inductor_gen.device.record import device_of
    from inductor_gen.runtime.steps import timing

    state = state_of(compiled)
    given = [x for x in (*pytree.tree_leaves((args, kwargs)), *state) if isinstance(x, torch.Tensor)]
    gpu = next((x.device for x in given if x.is_cuda), None)
    with keeping_random_state((args, kwargs)):
        warm = [seconds_of_call(compiled, state, args, kwargs) for _ in range(_WARM)]
        tries = []
        for _ in range(_TIMED):
            clock = _Clock() if gpu is None else _DeviceClock(gpu, min(warm[1:]))
            with timing() as found:
                seconds_of_call(compiled, state, args, kwargs, clock.around())
            tries.append((clock, found))
    clock, found = min(tries, key=lambda one: one[0].seconds())
    steps = tuple(_step(timed, clock) for timed in sorted(found, key=lambda timed: timed.began))
    if not steps:
        warn_user("profile() found no compiled graph that ran in the call: see report().verdict")
    bandwidth = {name: device_of(torch.device(name)).bandwidth for name in dict.fromkeys(s.device for s in steps)}
    call = CallRecord(clock.what(), clock.seconds(), min(warm[1:]), steps, bandwidth)
    report.profiled(call)
    return call


def _step(timed: Timed, clock: _Clock) -> StepRecord:
    step, (start, seconds) = timed.step, clock.span(timed)
    return StepRecord(
        step.kind, step.name, start, seconds, timed.depth, step.device, step.ops, step.read, step.written, step.lines
    )


class _Clock:
    """The wall clock, where a step has ended when its call has."""

    def __init__(self) -> None:
        self.began = self.ended = 0.0

    @contextmanager
    def around(self) -> Iterator[None]:
        """The call."""
        self.began = time.perf_counter()
        yield
        self.ended = time.perf_counter()

    def what(self) -> str:
        """What is measured."""
        threads = torch.get_num_threads()
        return f"wall clock around each step, {threads} thread{'s' if threads > 1 else ''}"

    def seconds(self) -> float:
        """Of the call."""
        return self.ended - self.began

    def span(self, timed: Timed) -> tuple[float, float]:
        """When a step began in the call, and its seconds."""
        return timed.began - self.began, timed.ended - timed.began


class _DeviceClock(_Clock):
    """Events on a GPU's stream, which waits until the host has queued the call.

    Args:
        host: seconds that the call takes at most without that.
    """

    def __init__(self, device: torch.device, host: float) -> None:
        super().__init__()
        self.device = device
        self.cycles = int(_CYCLES * (2 * host + 1e-3))
        self.first, self.last = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    @contextmanager
    def around(self) -> Iterator[None]:
        with torch.cuda.device(self.device):
            torch.cuda._sleep(self.cycles)
            self.first.record()
            with super().around():
                yield
            self.last.record()

    def what(self) -> str:
        return f"device time of {torch.cuda.get_device_name(self.device)} between events around each launch"

    def seconds(self) -> float:
        return self.first.elapsed_time(self.last) / 1e3

    def span(self, timed: Timed) -> tuple[float, float]:
        if timed.events is None:
            return super().span(timed)
        began, ended = timed.events
        return self.first.elapsed_time(began) / 1e3, began.elapsed_time(ended) / 1e3
