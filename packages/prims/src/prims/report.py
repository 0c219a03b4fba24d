"""What a compilation did: what runs compiled and what does not, graphs, breaks, kernels, extern calls, fallbacks,
recompilations and time."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any

from prims.calls import CallRecord
from prims.forking import lock, why_cut_off
from prims.logs import say
from prims.records import record

__all__ = [
    "BackgroundRecord",
    "BreakRecord",
    "ExternRecord",
    "FallbackRecord",
    "FindingRecord",
    "GraphRecord",
    "InexactRecord",
    "KeptRecord",
    "KernelRecord",
    "LoadedRecord",
    "MemoryRecord",
    "MovedRecord",
    "PolicyRecord",
    "RecompileRecord",
    "Report",
    "StanceRecord",
    "StatusRecord",
    "TuningRecord",
    "many",
]


@record
class GraphRecord:
    """A captured or derived graph: its name, dialect, number of operator nodes and their names.

    Attributes:
        lines: the user's line of each operator, where known.
        takes: the operators, by number, whose results each operator takes.
    """

    name: str
    dialect: str
    nodes: int
    ops: tuple[str, ...] = ()
    where: str | None = None
    lines: tuple[str | None, ...] = ()
    takes: tuple[tuple[int, ...], ...] = ()


@record
class BreakRecord:
    """Where capture had to stop, why, and what to do about it."""

    reason: str
    where: str | None = None
    hint: str = ""


@record
class KernelRecord:
    """A generated kernel.

    Attributes:
        ops: the operators fused into it.
        loops: the number of its loop nests.
        parts: how many kernels were pasted into it.
        lines: the user's lines that it computes.
        source: its text.
        read: bytes that it reads, each element once, for likely sizes.
        written: bytes that it writes.
        graph: which of ``Report.moved`` it belongs to; None where that is not known.
        launches: the names of the kernels that are launched for it, in order: a long sum of a few results takes one
            for its parts and one for the rest.
    """

    name: str
    ops: tuple[str, ...]
    loops: int = 1
    parts: int = 1
    lines: tuple[str, ...] = ()
    source: str = field(default="", repr=False)
    read: int = 0
    written: int = 0
    graph: int | None = None
    launches: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes from and to memory."""
        return self.read + self.written


@record
class MovedRecord:
    """The bytes that a compiled graph moves to and from memory, for likely sizes, beside the least that it has to move,
    however its operators are fused: inputs and parameters read once, results written once.

    Attributes:
        inputs: of inputs that come with the call.
        parameters: of parameters, buffers and constants.
        outputs: of results, and of what is written into inputs.
        moved: by all kernels and library calls, what each reads and writes counted once.
    """

    inputs: int
    parameters: int
    outputs: int
    moved: int

    @property
    def least(self) -> int:
        """The lower bound."""
        return self.inputs + self.parameters + self.outputs

    def __str__(self) -> str:
        parts = f"{self.inputs} inputs, {self.parameters} parameters, {self.outputs} results"
        times = f", {self.moved / self.least:.3g} times as many" if self.least else ""
        return f"moved: {self.moved} bytes, at least {self.least} needed ({parts}){times}"


@record
class LoadedRecord:
    """A compiled part that an earlier process kept and this one has loaded: nothing was traced or compiled for it.

    Attributes:
        what: the part: ``"graph"``.
        name: which of its kind, for people to read.
        key: under which it is kept.
    """

    what: str
    name: str
    key: str


@record
class ProgramRecord:
    """What became of a frame that was looked for among the stored programs.

    Attributes:
        name: the function.
        status: ``"loaded"``, ``"missed"`` (once for each stored variant), ``"stored"`` or ``"not stored"``.
        reason: what is different, or what ties it to this process.
    """

    name: str
    status: str
    reason: str | None = None
    where: str | None = None

    def __str__(self) -> str:
        return f"program {self.name}: {self.status}{f' ({self.reason})' if self.reason else ''}{_at(self.where)}"


@record
class ExternRecord:
    """One call into a library kernel, by operator name, with the bytes of its operands and results as in
    :class:`KernelRecord`."""

    name: str
    read: int = 0
    written: int = 0
    graph: int | None = None

    @property
    def bytes(self) -> int:
        """Bytes from and to memory."""
        return self.read + self.written


@record
class StatusRecord:
    """How a part of the program runs. :meth:`Report.verdict` is computed from these.

    Attributes:
        subject: ``"call"`` of the compiled callable, ``"frame"`` (code that capture looked at) or ``"graph"`` (what a
            backend got).
        status: ``"compiled"``, ``"eager"``, ``"refused"`` (``fullgraph=True``), ``"raised"`` (the program's own
            exception ended a call before it came to compiled code) or ``"nothing"`` (there is no tensor operation).
        reason: why it is not compiled.
    """

    subject: str
    status: str
    reason: str | None = None
    where: str | None = None


@record
class FallbackRecord:
    """A region or operator that a stage left to eager, and why.

    Attributes:
        eager: false where the region is compiled all the same, but not in the way that was asked for.
        todo: what the user can do about it.
    """

    stage: str
    reason: str
    where: str | None = None
    eager: bool = True
    todo: str = ""


@record
class InexactRecord:
    """An operator whose bits may differ from eager's although they were asked for, and why."""

    op: str
    reason: str
    where: str | None = None


@record
class KeptRecord:
    """A text that a stage made, kept in a file (``Options.debug``), or a folder of such files."""

    what: str
    path: str


@record
class MemoryRecord:
    """The memory that a graph takes beside inputs that the caller keeps, by plan, in bytes for likely sizes.

    Attributes:
        peak: the most at once.
        bound: the most that is needed at once in the order chosen.
        pieces: how many allocations it comes from.
        note: what kept memory from being shared.
        held: the largest values alive at the peak: ``(bytes, operator with type and shape, the user's line)``.
    """

    peak: int
    bound: int
    pieces: int
    note: str | None = None
    held: tuple[tuple[int, str, str | None], ...] = ()


@record
class SavedRecord:
    """What a graph saves for its backward pass, in bytes for likely sizes; parameters and other inputs do not count.

    Attributes:
        bytes: of all saved values.
        count: how many there are.
        largest: the largest few: ``(bytes, operator with type and shape, the user's line)``.
        on_host: how many of the bytes wait in host memory (``Options.offload``).
    """

    bytes: int
    count: int
    largest: tuple[tuple[int, str, str | None], ...]
    on_host: int = 0


@record
class RecompileRecord:
    """A repeated capture of one code object, and the guard that failed."""

    code: str
    reason: str
    where: str | None = None


@record
class CacheRecord:
    """Where a graph's kernels came from: how many were loaded from memory or disk, and how many were compiled."""

    found: int
    compiled: int


@record
class SpanRecord:
    """A phase as it ran: seconds since the report's first phase began, and how many phases it was nested in."""

    name: str
    start: float
    seconds: float
    depth: int


@record
class FindingRecord:
    """What a check of results found (``Options.check``): what is wrong, where, and the script that reproduces it."""

    check: str
    text: str
    where: str | None = None
    path: str | None = None


@record
class StanceRecord:
    """What was done because of a stance that was set (``set_stance``).

    Attributes:
        done: ``"ran eagerly"``, ``"refused"`` or ``"raised"``.
        reason: what would have been done otherwise, or what went wrong.
        count: how often.
    """

    stance: str
    done: str
    reason: str = ""
    where: str | None = None
    count: int = 1

    def __str__(self) -> str:
        times = f"{self.count} x " if self.count > 1 else ""
        why = f": {self.reason}" if self.reason else ""
        return f"stance {self.stance!r}: {times}{self.done}{why}{_at(self.where)}"


@record
class BackgroundRecord:
    """What compiling beside the program (``Options.background``) came to for a function.

    Attributes:
        status: of its newest program: ``"waiting"`` (for what compiling needs to be imported, or for another one to be
            compiled), ``"compiling"``, ``"ready"`` (the next call that its guards hold for takes it over), ``"in use"``
            ``"failed"``, or ``"nothing"`` (there turned out to be nothing to compile, or not now).
        calls: how many calls ran eagerly meanwhile.
        programs: how many programs calls have taken over.
        seconds: that the background has spent.
        reason: of what failed.
    """

    code: str
    where: str | None = None
    status: str = "waiting"
    calls: int = 0
    programs: int = 0
    seconds: float = 0.0
    reason: str | None = None

    @property
    def open(self) -> bool:
        """Whether there is a program to come."""
        return self.status in ("waiting", "compiling", "ready")

    def __str__(self) -> str:
        ran = f"{self.calls} calls ran eagerly: compiling in the background"
        why = f" ({self.reason})" if self.reason else ""
        made = f"{self.programs} programs in use after {self.seconds:.1f} s"
        return f"background {self.code}: {self.status}{why}; {ran}; {made}{_at(self.where)}"


@record
class PolicyRecord:
    """What a policy about bits (``Options.deterministic``, ``Options.batch_invariant``) came to at an operator.

    Attributes:
        policy: the option.
        held: whether it holds there.
        what: what was done, or why it is not known to hold.
        op: the operator.
        count: how often.
    """

    policy: str
    held: bool
    op: str
    what: str
    where: str | None = None
    count: int = 1

    def __str__(self) -> str:
        times = f"{self.count} x " if self.count > 1 else ""
        head = self.policy if self.held else f"not {self.policy.replace('_', ' ')}"
        return f"{head}: {times}{self.op}: {self.what}{_at(self.where)}"


@record
class TuningRecord:
    """A choice by measurement: what for, what won, milliseconds of each candidate, and why others were dropped.

    ``cached``: it was measured before, for an earlier graph or in another process.
    """

    problem: str
    winner: str
    times: Mapping[str, float]
    dropped: Mapping[str, str]
    cached: bool


@record(frozen=False)
class Report:
    """A collector that is handed from stage to stage.

    All fields are plain lists of frozen records, in the order in which things happened.

    Attributes:
        statuses: what runs compiled and what does not, each once.
        uncalled: what the verdict says beyond "not called yet".
        seconds: wall-clock seconds by phase, without the phases nested in it.
        asked: the policies about bits that were asked for (``Options.policies``).
        moved: the bytes that each compiled graph moves, beside the least.
        calls: those that were profiled.
        progress: called as ``progress(what, done, total)`` while kernels are compiled and candidates measured, where
            somebody looks; what stands before a colon in ``what`` names the work.
    """

    statuses: list[StatusRecord] = field(default_factory=list)
    graphs: list[GraphRecord] = field(default_factory=list)
    breaks: list[BreakRecord] = field(default_factory=list)
    kernels: list[KernelRecord] = field(default_factory=list)
    externs: list[ExternRecord] = field(default_factory=list)
    loaded: list[LoadedRecord] = field(default_factory=list)
    programs: list[ProgramRecord] = field(default_factory=list)
    fallbacks: list[FallbackRecord] = field(default_factory=list)
    inexact: list[InexactRecord] = field(default_factory=list)
    policies: list[PolicyRecord] = field(default_factory=list)
    recompiles: list[RecompileRecord] = field(default_factory=list)
    tunings: list[TuningRecord] = field(default_factory=list)
    moved: list[MovedRecord] = field(default_factory=list)
    calls: list[CallRecord] = field(default_factory=list)
    memory: list[MemoryRecord] = field(default_factory=list)
    saved: list[SavedRecord] = field(default_factory=list)
    kept: list[KeptRecord] = field(default_factory=list)
    findings: list[FindingRecord] = field(default_factory=list)
    stances: list[StanceRecord] = field(default_factory=list)
    caches: list[CacheRecord] = field(default_factory=list)
    background: list[BackgroundRecord] = field(default_factory=list)
    spans: list[SpanRecord] = field(default_factory=list)
    #: What each captured graph assumes: its name and its guards, whose text is made where it is shown.
    guards: list[tuple[str, Sequence[object]]] = field(default_factory=list, repr=False)
    seconds: dict[str, float] = field(default_factory=dict)
    uncalled: str = ""
    asked: tuple[str, ...] = ()
    progress: Callable[[str, int, int], None] | None = field(default=None, repr=False, compare=False)
    _warned: set[str] = field(default_factory=set, repr=False)
    _said: set[int] = field(default_factory=set, repr=False)
    _running: list[float] = field(default_factory=list, repr=False)
    _began: float | None = field(default=None, repr=False)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time spent inside to ``seconds[name]``, less that of nested phases."""
        self._running.append(0.0)
        start = time.perf_counter()
        if self._began is None:
            self._began = start
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            nested = self._running.pop()
            self.seconds[name] = self.seconds.get(name, 0.0) + spent - nested
            self.spans.append(SpanRecord(name, start - self._began, spent, len(self._running)))
            if self._running:
                self._running[-1] += spent
            say("perf", None, lambda: f"{name}: {spent:.4f} s")

    @contextmanager
    def counting(self, what: str, total: int) -> Iterator[Callable[..., None]]:
        """Let whoever looks (``progress``) see how much of a long work is done: gives a function that takes how much
        more of ``total`` is, and a text about it. The work has ended where this ends, whatever ended it."""
        done, look = 0, self.progress

        def more(count: int = 1, detail: str = "") -> None:
            nonlocal done
            done = min(done + count, total)
            if look is not None:
                look(f"{what}: {detail}" if detail else what, done, total)

        try:
            more(0)
            yield more
        finally:
            if done < total:
                more(total - done, "ended")

    def graph(
        self, name: str, *, dialect: str = "torch", nodes: int = 0, ops: Iterable[str] = (), where: object = None,
        lines: Iterable[object] = (), takes: Iterable[Iterable[int]] = (),
    ) -> None:  # fmt: skip
        """Record a graph; ``lines`` are the user's source locations of its operators, ``takes`` their operands."""
        places, operands = tuple(map(_text, lines)), tuple(map(tuple, takes))
        self.graphs.append(GraphRecord(name, dialect, nodes, tuple(ops), _text(where), places, operands))

    def graph_of(
        self, name: str, nodes: Sequence[Any], name_of: Callable[[Any], str], *, dialect: str, where: object = None
    ) -> None:
        """Record a graph by its operators, nodes of ``torch.fx``; ``name_of`` gives what an operator is called."""
        number = {node: k for k, node in enumerate(nodes)}
        self.graph(
            name, dialect=dialect, nodes=len(nodes), ops=map(name_of, nodes), where=where,
            lines=[node.meta.get("source") for node in nodes],
            takes=[[number[taken] for taken in node.all_input_nodes if taken in number] for node in nodes],
        )  # fmt: skip

    def graph_break(self, reason: str, where: object = None, hint: str = "") -> None:
        """Record a graph break, once; ``where`` is the user's source location."""
        record = BreakRecord(reason, _text(where), hint)
        if record not in self.breaks:
            self.breaks.append(record)
            say("breaks", self, f"graph break: {reason}" + (f"\n  hint: {hint}" if hint else ""), where)

    def kernel(
        self, name: str, ops: Iterable[str], loops: int = 1, parts: int = 1, *, lines: Iterable[object] = (),
        source: str = "", read: int = 0, written: int = 0, graph: int | None = None, launches: Iterable[str] = (),
    ) -> None:  # fmt: skip
        """Record a generated kernel, by default a launch of its name; see :class:`KernelRecord`."""
        places, runs = tuple(dict.fromkeys(map(str, lines))), tuple(launches) or (name,)
        self.kernels.append(KernelRecord(name, tuple(ops), loops, parts, places, source, read, written, graph, runs))

    def moves(self, inputs: int, parameters: int, outputs: int, moved: int) -> int:
        """Record what a compiled graph moves, as :class:`MovedRecord`; gives its number."""
        self.moved.append(MovedRecord(inputs, parameters, outputs, moved))
        say("perf", self, lambda: str(self.moved[-1]))
        return len(self.moved) - 1

    def profiled(self, call: CallRecord) -> None:
        """Record a call that was profiled."""
        self.calls.append(call)
        say("perf", None, lambda: str(call))

    def cache(self, found: int, compiled: int) -> None:
        """Record where a graph's kernels came from."""
        self.caches.append(CacheRecord(found, compiled))

    def guarded(self, name: str, guards: Sequence[object]) -> None:
        """Record what a captured graph assumes; ``guards`` have a text each."""
        self.guards.append((name, guards))

    def extern(self, name: str, *, read: int = 0, written: int = 0, graph: int | None = None) -> None:
        """Record a call into a library kernel."""
        self.externs.append(ExternRecord(name, read, written, graph))

    def load(self, what: str, name: str, key: str) -> None:
        """Record a part that was loaded, not compiled."""
        self.loaded.append(LoadedRecord(what, name, key))
        say("cache", self, f"{what} {name} is loaded, {key}")

    def program(self, name: str, status: str, reason: str | None = None, where: str | None = None) -> None:
        """Record what became of a frame that was looked for among the stored programs."""
        self.programs.append(ProgramRecord(name, status, reason, where))
        say("cache", self, lambda: str(self.programs[-1]))

    def planned_memory(
        self, peak: int, bound: int, pieces: int, note: str | None = None,
        held: Sequence[tuple[int, str, object]] = (),
    ) -> None:  # fmt: skip
        """Record a graph's memory plan."""
        named = tuple((size, what, _text(where)) for size, what, where in held)
        self.memory.append(MemoryRecord(peak, bound, pieces, note, named))
        say("perf", self, lambda: f"memory: {peak} bytes at most, {bound} needed, in {many(pieces, 'piece')}")

    def saved_for_backward(
        self, total: int, count: int, largest: Sequence[tuple[int, str, object]], on_host: int = 0
    ) -> None:
        """Record what a graph saves for its backward pass, and how many bytes of it wait in host memory."""
        named = tuple((size, what, _text(where)) for size, what, where in largest)
        self.saved.append(SavedRecord(total, count, named, on_host))

    def fallback(
        self, stage: str, reason: str, where: object = None, *, eager: bool = True, todo: str = ""
    ) -> None:
        """Record a region that runs eagerly, or (``eager=False``) that is not compiled as asked."""
        self.fallbacks.append(FallbackRecord(stage, reason, _text(where), eager, todo))
        what = "left to eager" if eager else "compiled in another way than asked"
        say("breaks", self, f"{what} by {stage}: {reason}" + (f"\n  hint: {todo}" if todo else ""), where)

    def status(self, subject: str, status: str, reason: str | None = None, where: object = None) -> bool:
        """Record how a part of the program runs, once; whether that is new. See :class:`StatusRecord`."""
        record = StatusRecord(subject, status, reason, _text(where))
        if record in self.statuses:
            return False
        self.statuses.append(record)
        return True

    def keep(self, what: str, path: str) -> None:
        """Record a file with what a stage made."""
        self.kept.append(KeptRecord(what, path))

    def warns(self, reason: str) -> bool:
        """Whether the user is to be warned of this: the first time, and no more."""
        new = reason not in self._warned
        self._warned.add(reason)
        return new

    def is_new(self, message: str) -> bool:
        """Whether a message is to be logged: the first time, and no more."""
        key = hash(message)
        new = key not in self._said
        self._said.add(key)
        return new

    def finding(self, check: str, text: str, where: object = None, path: str | None = None) -> bool:
        """Record what a check of results found, once; whether it is new."""
        record = FindingRecord(check, text, _text(where), path)
        new = not any((f.check, f.text, f.where) == (check, text, record.where) for f in self.findings)
        if new:
            self.findings.append(record)
        return new

    def under_stance(self, stance: str, done: str, reason: str = "", where: object = None) -> None:
        """Record what was done because of the stance that is set; what is done again is counted."""
        place = _text(where)
        for k, known in enumerate(self.stances):
            if (known.stance, known.done, known.reason, known.where) == (stance, done, reason, place):
                self.stances[k] = StanceRecord(stance, done, reason, place, known.count + 1)
                return
        self.stances.append(StanceRecord(stance, done, reason, place))

    def in_background(
        self, code: str, where: str | None, status: str | None = None, *, calls: int = 0, programs: int = 0,
        seconds: float = 0.0, reason: str | None = None,
    ) -> None:  # fmt: skip
        """Record what becomes of a function that is compiled beside the program: what is new, and what is added."""
        with _adding:  # also by the thread that compiles
            known = next((k for k, b in enumerate(self.background) if (b.code, b.where) == (code, where)), None)
            if known is None:
                known = len(self.background)
                self.background.append(BackgroundRecord(code, where))
            old = self.background[known]
            self.background[known] = BackgroundRecord(
                code, where, status or old.status, old.calls + calls, old.programs + programs, old.seconds + seconds,
                reason if status is not None else old.reason,
            )  # fmt: skip
        if status is not None:
            say("perf", None, lambda: f"background {code}: {status}{f' ({reason})' if reason else ''}")

    def background_ended(self, code: str, where: str | None, status: str, reason: str | None = None) -> None:
        """Record that no program of a function is to come, where one was."""
        known = next((b for b in self.background if (b.code, b.where) == (code, where)), None)
        if known is not None and known.open:
            self.in_background(code, where, status, reason=reason)

    def not_exact(self, op: str, reason: str, where: object = None) -> None:
        """Record an operator that ``numerics="eager_exact"`` cannot promise eager's bits for."""
        self.inexact.append(InexactRecord(op, reason, _text(where)))

    def policy(self, policy: str, op: str, what: str, where: object = None, *, held: bool = True) -> None:
        """Record what a policy about bits came to; what holds at several places is counted, the first place named."""
        for k, known in enumerate(self.policies):
            if (known.policy, known.held, known.op, known.what) == (policy, held, op, what):
                self.policies[k] = PolicyRecord(policy, held, op, what, known.where, known.count + 1)
                return
        self.policies.append(PolicyRecord(policy, held, op, what, _text(where)))

    def recompile(self, code: str, reason: str, where: object = None) -> None:
        """Record that ``code`` had to be captured again."""
        self.recompiles.append(RecompileRecord(code, reason, _text(where)))
        say("recompiles", self, f"{code} is captured again, because this did not hold: {reason}", where)

    def tuning(
        self, problem: str, winner: str, *, times: Mapping[str, float], dropped: Mapping[str, str], cached: bool = False
    ) -> None:
        """Record a choice by measurement; ``times`` are milliseconds."""
        self.tunings.append(TuningRecord(problem, winner, dict(times), dict(dropped), cached))
        say("perf", self, lambda: f"tuned {problem}: {winner} of {len(times)}{', cached' if cached else ''}")

    def extern_counts(self) -> dict[str, int]:
        """Extern calls by operator name."""
        return dict(Counter(record.name for record in self.externs))

    @property
    def verdict(self) -> str:
        """In one line: ``compiled``, ``partly: what is not and why``, ``eager: why`` or ``not called yet``."""
        return _verdict(self)

    def clear(self) -> None:
        """Forget everything recorded so far."""
        for name in (*_LISTS, "guards", "seconds"):
            getattr(self, name).clear()
        self._began = None

    def to_json(self) -> str:
        """The verdict and all records as one JSON object."""
        data: dict[str, Any] = {"verdict": self.verdict}
        data |= {name: [dict(vars(record)) for record in getattr(self, name)] for name in _LISTS}
        data["guards"] = [{"graph": name, "guards": list(map(str, guards))} for name, guards in self.guards]
        data["seconds"] = self.seconds
        return json.dumps(data, indent=1, default=vars)  # records in records

    def to_html(self, path: str | os.PathLike[str], title: str = "Compilation report") -> None:
        """Write the report as one HTML page that loads nothing from elsewhere.

        Raises:
            OSError: it cannot be written.
        """
        from prims.page import page

        with open(path, "w", encoding="utf-8") as file:
            file.write(page(self, title))

    @property
    def counts(self) -> str:
        """How many there are of what, in one line."""
        numbers = (
            (self.captured, "graph"), (len(self.breaks), "break"), (len(self.kernels), "kernel"),
            (len(self.externs), "library call"), (len(self.fallbacks), "fallback"),
            (len(self.recompiles), "recompilation"),
        )  # fmt: skip
        return ", ".join(many(*pair) for pair in numbers)

    @property
    def captured(self) -> int:
        """The number of captured graphs, each of which is recorded again as ATen; of a stage alone that of its own."""
        return sum(graph.dialect == "torch" for graph in self.graphs) or len(self.graphs)

    def __rich_console__(self, console: object, options: object) -> Iterator[str]:
        """The report for ``rich.print``: what needs a look in colours, what the program computes plain."""
        for k, line in enumerate(str(self).splitlines()):
            head = line.lstrip()
            kind = next((style for start, style in _STYLES.items() if head.startswith(start)), "")
            style = kind if k else "bold green" if self.verdict == "compiled" else "bold yellow"
            text = line.replace("\\", "\\\\").replace("[", "\\[")  # no markup
            yield f"[{style}]{text}[/]" if style else text

    def __str__(self) -> str:
        lines = [self.verdict, self.counts]
        texts = [f"graph {g.name} ({g.dialect}): {many(g.nodes, 'operator')}{_at(g.where)}" for g in self.graphs]
        texts += [f"loaded {part.what} {part.name}: {part.key}" for part in self.loaded]
        if self.programs:
            became = ", ".join(f"{n} {status}" for status, n in Counter(p.status for p in self.programs).items())
            texts.append(f"programs on disk: {became} (compile_api.cache.explain says which and why)")
        texts += [f"guards of {name}: {len(guards)}" for name, guards in self.guards]
        texts += [str(g) for _, guards in self.guards for g in guards if getattr(g, "kind", "") == "promised"]
        texts += [f"break: {brk.reason}{_at(brk.where)}{_hint(brk.hint)}" for brk in self.breaks]
        texts += _kernel_texts(self.kernels)
        texts += [f"extern {name} x {count}" for name, count in sorted(self.extern_counts().items())]
        if self.caches:
            found, compiled = sum(c.found for c in self.caches), sum(c.compiled for c in self.caches)
            texts.append(f"kernels in the cache: {found} found in memory or on disk, {compiled} compiled")
        texts += map(str, self.moved)
        largest = max((m.peak for m in self.memory), default=0)
        texts += [_memory_text(m, m.peak == largest) for m in self.memory]
        for s in filter(lambda s: s.count, self.saved):
            on_host = f", {s.on_host} bytes of them in host memory" if s.on_host else ""
            texts.append(f"saved for the backward pass: {s.bytes} bytes in {many(s.count, 'value')}{on_host}")
            texts += [f"saved: {size} bytes, {what}{_at(where)}" for size, what, where in s.largest]
        texts += [f"fallback in {f.stage}: {f.reason}{_at(f.where)}{_hint(f.todo)}" for f in self.fallbacks]
        texts += [
            f"found by check={f.check!r}: {f.text}{_at(f.where)}{f'; reproduced by {f.path}' if f.path else ''}"
            for f in self.findings
        ]
        texts += map(str, self.stances)
        texts += map(str, self.background)
        texts += [f"not eager's bits: {record.op}: {record.reason}{_at(record.where)}" for record in self.inexact]
        texts += map(str, self.policies)
        texts += [f"recompile of {record.code}: {record.reason}" for record in self.recompiles]
        # Equal lines are one line with their number, where the first of them stood.
        lines += [f"  {text}" if count == 1 else f"  {count} x {text}" for text, count in Counter(texts).items()]
        for tuning in self.tunings:
            ranked = sorted(tuning.times.items(), key=lambda pair: pair[1])
            timed = ", ".join(f"{name} {ms:.4f}" for name, ms in ranked[:4])
            lines.append(f"  tuned {tuning.problem}: {tuning.winner} ({timed} ms{', cached' if tuning.cached else ''})")
            lines += [f"    dropped {name}: {why}" for name, why in tuning.dropped.items()]
        lines += [f"  {line}" for call in self.calls for line in str(call).splitlines()]
        lines += [f"  kept {record.what}: {record.path}" for record in self.kept]
        lines += [f"  {name}: {spent:.3f} s" for name, spent in self.seconds.items() if spent >= 0.0005]
        return "\n".join(lines)


_LISTS = ("statuses", "graphs", "breaks", "kernels", "externs", "fallbacks", "inexact", "policies", "recompiles",
          "tunings", "moved", "calls", "memory", "saved", "kept", "loaded", "programs", "findings", "stances", "caches",
          "spans", "background")  # fmt: skip


#: So many of the values that are alive at a graph's peak are in the text; the page has them all.
_HOLDERS = 3

#: How lines of the report look where rich prints it, by what they begin with.
_STYLES = {
    "break": "yellow", "hint": "yellow", "fallback": "red", "found by": "bold red", "not ": "red",
    "recompile": "yellow", "stance": "magenta", "kernel": "cyan", "extern": "blue",
}  # fmt: skip


def _kernel_texts(kernels: Iterable[KernelRecord]) -> list[str]:
    """A text for each kernel. Those that compute the same for other shapes are told by one."""
    groups: dict[tuple[Any, ...], list[KernelRecord]] = {}
    for kernel in kernels:
        groups.setdefault((kernel.ops, kernel.loops), []).append(kernel)
    texts = []
    for (ops, loops), alike in groups.items():
        names = list(dict.fromkeys(kernel.name for kernel in alike))
        others = f" and {len(names) - 1} like it" if len(names) > 1 else ""
        texts += [f"kernel {names[0]}{others} ({loops} loops): {' '.join(ops)}"] * len(alike)
    return texts


def _verdict(report: Report) -> str:
    statuses = report.statuses
    if not (statuses or report.graphs or report.breaks or report.fallbacks or report.background):
        if report.stances:
            return f"eager: {report.stances[0]}"
        return f"not called yet: {report.uncalled}" if report.uncalled else "not called yet"
    by_backend = [record.status for record in statuses if record.subject == "graph"]
    by_capture = [record.status for record in statuses if record.subject == "frame"]
    ran = by_backend or by_capture or (["compiled"] if report.graphs else [])
    left = [f"{f.reason}{_at(f.where)}" for f in report.fallbacks if f.eager]
    left += [f"{s.reason}{_at(s.where)}" for s in statuses if s.status in ("eager", "refused")]
    left = list(dict.fromkeys(left))
    breaks = [f"{brk.reason}{_at(brk.where)}" for brk in report.breaks]
    coming = _in_background(report)
    if coming is not None and "compiled" not in by_capture:
        return f"eager: {coming}"
    if "compiled" not in ran:
        others = [f"{s.reason}{_at(s.where)}" for s in statuses if s.status in ("raised", "nothing")]
        return f"eager: {(left + breaks + others + ['no call has come to compiled code'])[0]}"
    parts = []
    if breaks:
        places = "a graph break" if len(breaks) == 1 else f"{len(breaks)} graph breaks, the first"
        parts.append(f"{places}: {breaks[0]}")
    if coming is not None:
        parts.append(coming)
    others = [text for text in left if text not in breaks]
    if others:
        parts.append(f"eager {'in part' if len(others) == 1 else f'in {len(others)} parts, the first'}: {others[0]}")
    return f"partly: {'; '.join(parts)}" if parts else "compiled"


def _memory_text(memory: MemoryRecord, is_largest: bool) -> str:
    """A plan, and who holds most of the report's largest."""
    note = f"; {memory.note}" if memory.note else ""
    lines = [f"memory: {memory.peak} bytes at most, {memory.bound} needed, in {many(memory.pieces, 'piece')}{note}"]
    held = memory.held[:_HOLDERS] if is_largest else ()
    lines += [f"    at the peak: {size} bytes, {what}{_at(where)}" for size, what, where in held]
    return "\n".join(lines)


def many(number: int, noun: str) -> str:
    """A number of things, in words."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _hint(text: str) -> str:
    return f"\n    hint: {text}" if text else ""


def _in_background(report: Report) -> str | None:
    """What the verdict says of programs that are still to come."""
    coming = [record for record in report.background if record.open]
    if not coming or why_cut_off() is not None:
        return None
    ran = sum(record.calls for record in coming)
    what = f"{coming[0].code}{f' and {len(coming) - 1} more' if len(coming) > 1 else ''}"
    return f"compiling in the background: {what}, {ran} calls ran eagerly meanwhile"


#: Held while a record takes the place of another that a second thread may replace, too.
_adding = lock()


def _text(where: object) -> str | None:
    return None if where is None else str(where)


def _at(where: str | None) -> str:
    return f" at {where}" if where else ""
