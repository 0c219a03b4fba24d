"""A graph compiled twice: for calls in which its attention masks are as usual, and for all others.

On a GPU the answer to whether they are comes from the device, and waiting for it before anything is launched would
leave the device idle meanwhile. So the question is launched first, its answer is copied to pinned memory, and the graph
for the expected answer is launched behind it. Before the call returns it reads the answer, which was first in the
queue. Where that is another than expected, the results are dropped and the other graph runs, on the same inputs, which
no graph writes, and from the same state of the random generator. Contents that change from call to call are not worth
it: after a wrong guess the general graph serves until the answer was yes a number of times, twice as many after every
wrong guess.

While a CUDA graph is captured the general graph serves: a replay cannot ask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from inductor_gen.extern.questions import Condition, Question, pattern_of
from inductor_gen.runtime.graph import CompiledGraph
from prims.forking import compiling, lock
from prims.records import record
from prims.spec.tensorspec import as_device

__all__ = ["Answer", "Asker", "ByMasks", "Choice", "DeviceAsker", "General", "asker_for"]

Call = Callable[[Any], list[Any]]

#: The most answers in a row that have to be yes before the graph for it is expected to serve again.
_MOST = 64


class Answer:
    """An answer that is known."""

    def __init__(self, value: bool) -> None:
        self.value = value

    def wait(self) -> bool:
        """The answer, as soon as it is there."""
        return self.value

    def ready(self) -> bool:
        """Is it there?"""
        return True


class Asker:
    """Asks a question where the answer is there at once: on the CPU."""

    #: Is it worth asking before the answer is needed?
    ahead = False

    def __init__(self, question: Question) -> None:
        self.question = question
        self.patterns: dict[Any, torch.Tensor] = {}

    def ask(self, inputs: Sequence[Any]) -> Answer:
        """The answer for a call's inputs."""
        return Answer(all(bool(flag) is wanted for flag, wanted in self.flags(inputs)))

    def flags(self, inputs: Sequence[Any]) -> list[tuple[torch.Tensor, bool]]:
        """Per condition a tensor with one truth value, and what it is if the condition holds."""
        with torch.no_grad():
            return [self._flag(condition, condition.value(inputs)) for condition in self.question.conditions]

    def _flag(self, condition: Condition, x: torch.Tensor) -> tuple[torch.Tensor, bool]:
        if condition.pattern == "zeros":
            return x.any(), False  # NaN is not zero
        if condition.pattern == "triangle":
            return x.eq(self._triangle(x)).all(), True
        return (x if x.dtype == torch.bool else x.eq(1)).all(), True

    def _triangle(self, x: torch.Tensor) -> torch.Tensor:
        key = (x.shape[-2:], x.dtype, x.device)
        made = self.patterns.get(key)
        if made is None:
            made = self.patterns[key] = pattern_of("triangle", x.shape[-2:], x.dtype, x.device)
        return made

    def unknowable(self) -> bool:
        """Can nothing be asked now?"""
        return False

    def state(self) -> Any:
        """What running a graph may change beside its results."""
        return None

    def restore(self, state: Any) -> None:
        """Put it back."""


class _Copied(Answer):
    """An answer on its way from a GPU. The memory that it arrives in is used again once it was read."""

    def __init__(self, slot: _Slot, wanted: list[bool], free: list[_Slot]) -> None:
        self.slot: _Slot | None = slot
        self.wanted = wanted
        self.free = free

    def ready(self) -> bool:
        return self.slot is None or self.slot.event.query()

    def wait(self) -> bool:
        slot = self.slot
        if slot is not None:
            slot.event.synchronize()
            self.value = slot.host.tolist() == self.wanted
            self.slot = None
            self.free.append(slot)
        return self.value


class _Slot:
    def __init__(self, count: int) -> None:
        self.host = torch.empty(count, dtype=torch.bool, pin_memory=True)
        self.event = torch.cuda.Event()


class DeviceAsker(Asker):
    """Asks where the answer comes from a GPU."""

    ahead = True

    def __init__(self, question: Question, device: torch.device, draws: bool) -> None:
        super().__init__(question)
        self.device = device
        self.draws = draws
        self.free: list[_Slot] = []

    def ask(self, inputs: Sequence[Any]) -> Answer:
        """Launch what answers, and return without waiting for it."""
        if torch.cuda.current_device() != self.device.index:
            with torch.cuda.device(self.device):
                return self._ask(inputs)
        return self._ask(inputs)

    def _ask(self, inputs: Sequence[Any]) -> Answer:
        flags = self.flags(inputs)
        try:
            slot = self.free.pop()
        except IndexError:
            slot = _Slot(len(flags))
        for k, (flag, _) in enumerate(flags):
            slot.host[k].copy_(flag, non_blocking=True)
        slot.event.record()
        return _Copied(slot, [wanted for _, wanted in flags], self.free)

    def unknowable(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def state(self) -> Any:
        """The state of the device's random generator, where the graph's operators draw from it."""
        return torch.cuda.default_generators[self.device.index].get_state() if self.draws else None

    def restore(self, state: Any) -> None:
        if state is not None:
            torch.cuda.default_generators[self.device.index].set_state(state)


def asker_for(question: Question, draws: bool) -> Asker:
    """The asker for the device of a question's masks; ``draws``: the graph's operators advance the random generator."""
    if question.device.type != "cuda":
        return Asker(question)
    return DeviceAsker(question, as_device(question.device), draws)


@record(eq=False)
class Choice:
    """What a call by masks is made of.

    Attributes:
        question: about the inputs.
        draws: do operators of the graph advance the random generator?
        repeatable: may the graph run twice for a call?
        in_place: may the two graphs write to inputs?
        usual: the graph for masks that are as the question says.
        general: the one for all masks.
    """

    question: Question
    draws: bool
    repeatable: bool
    in_place: bool
    usual: CompiledGraph
    general: General

    def graph(self) -> CompiledGraph:
        """The graph that is one or the other."""
        asker = asker_for(self.question, self.draws)
        call, usual = ByMasks(asker, self.usual.boxed, self.general, self.repeatable), self.usual
        return CompiledGraph(
            call, usual.source, usual.kernels, usual.externs, usual.compiled, usual.count, self, usual.steps,
            usual.least,
        )  # fmt: skip


class General:
    """The graph for all masks, made when it is first needed.

    Attributes:
        graph: once it is made.
        told: gives what it is made of in another process: JSON and constants of a graph of primitives; or raises
            ``NotPortable``.
    """

    def __init__(
        self, make: Callable[[], CompiledGraph], told: Callable[[], tuple[bytes, Mapping[str, torch.Tensor]]]
    ) -> None:  # fmt: skip
        self.make = make
        self.told = told
        self.graph: CompiledGraph | None = None

    def __call__(self) -> Call:
        self.graph = self.make()
        return self.graph.boxed


class ByMasks:
    """A compiled graph's call: by the graph for usual masks where they are, else by the general one.

    Args:
        usual: compiled for masks that are as the question says.
        general: makes the graph for all masks, when it is first needed.
        repeatable: may the graph run twice for a call? Operators that somebody else has written may do anything.
    """

    def __init__(self, asker: Asker, usual: Call, general: Callable[[], Call], repeatable: bool = True) -> None:
        self.asker = asker
        self.usual = usual
        self._make = general
        self._general: Call | None = None
        self._observing = lock()
        self.ahead = asker.ahead and repeatable
        # What is expected of the next answer; it is only a guess, so that threads need not agree about it.
        self.expected: bool | None = None
        self.wanted, self.seen = 1, 0
        self.asked: Answer | None = None

    def __call__(self, args: Any) -> list[Any]:
        if self.asker.unknowable():
            return self.general(args)
        # A list is given up: what it holds may be freed, so that there is no second run.
        if not self.ahead or type(args) is list or self.expected is None:
            answer = self.expected = self.asker.ask(args).wait()
            return self.usual(args) if answer else self.general(args)
        if self.expected:
            return self._guessing(args)
        self._observe(args)
        return self.general(args)

    def general(self, args: Any) -> list[Any]:
        """By the graph for all masks."""
        return self._made()(args)

    def _made(self) -> Call:
        call = self._general
        if call is None:
            with compiling():
                call = self._general
                if call is None:
                    call = self._general = self._make()
        return call

    def _guessing(self, args: Any) -> list[Any]:
        """The usual graph, and the answer before anybody sees what it gave."""
        answer, state = self.asker.ask(args), self.asker.state()
        try:
            results = self.usual(args)
        except Exception:
            if answer.wait():
                raise
            results = []
        if answer.wait():
            self.seen += 1
            if self.seen >= _MOST:
                self.wanted = 1
            return results
        results.clear()
        self.expected, self.seen = False, 0
        self.wanted = min(2 * self.wanted, _MOST)
        general = self._made()  # which may draw random numbers, for measurements
        self.asker.restore(state)
        return general(args)

    def _observe(self, args: Any) -> None:
        """Look at the answers without waiting for them: the general graph serves whatever they are."""
        if not self._observing.acquire(blocking=False):
            return  # another thread does
        try:
            asked = self.asked
            if asked is not None:
                if not asked.ready():
                    return
                self.seen = self.seen + 1 if asked.wait() else 0
                if self.seen >= self.wanted:
                    self.expected, self.seen = True, 0
            self.asked = self.asker.ask(args)
        finally:
            self._observing.release()
