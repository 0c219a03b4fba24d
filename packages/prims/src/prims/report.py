"""What a compilation did: graphs, breaks, kernels, extern calls, fallbacks, recompilations and time."""

from __future__ import annotations

import dataclasses
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "BreakRecord",
    "ExternRecord",
    "FallbackRecord",
    "GraphRecord",
    "KernelRecord",
    "RecompileRecord",
    "Report",
    "TuningRecord",
]


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """A captured or derived graph: its name, dialect, number of operator nodes and their names."""

    name: str
    dialect: str
    nodes: int
    ops: tuple[str, ...] = ()
    where: str | None = None


@dataclass(frozen=True, slots=True)
class BreakRecord:
    """Where capture had to stop, and why."""

    reason: str
    where: str | None = None


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """A generated kernel: the operators fused into it and the number of its loop nests."""

    name: str
    ops: tuple[str, ...]
    loops: int = 1


@dataclass(frozen=True, slots=True)
class ExternRecord:
    """One call into a library kernel, by operator name."""

    name: str


@dataclass(frozen=True, slots=True)
class FallbackRecord:
    """A region or operator that a stage left to eager, and why."""

    stage: str
    reason: str
    where: str | None = None


@dataclass(frozen=True, slots=True)
class RecompileRecord:
    """A repeated capture of one code object, and the guard that failed."""

    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class TuningRecord:
    """A choice by measurement: what for, what won, milliseconds of each candidate, and why others were dropped.

    ``cached``: it was measured before, for an earlier graph or in another process.
    """

    problem: str
    winner: str
    times: Mapping[str, float]
    dropped: Mapping[str, str]
    cached: bool


@dataclass
class Report:
    """A collector that is handed from stage to stage.

    All fields are plain lists of frozen records, in the order in which things happened.

    Attributes:
        seconds: wall-clock seconds by phase, without the phases nested in it.
        progress: called as ``progress(what, done, total)`` while candidates are measured, where somebody looks.
    """

    graphs: list[GraphRecord] = field(default_factory=list)
    breaks: list[BreakRecord] = field(default_factory=list)
    kernels: list[KernelRecord] = field(default_factory=list)
    externs: list[ExternRecord] = field(default_factory=list)
    fallbacks: list[FallbackRecord] = field(default_factory=list)
    recompiles: list[RecompileRecord] = field(default_factory=list)
    tunings: list[TuningRecord] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    progress: Callable[[str, int, int], None] | None = field(default=None, repr=False, compare=False)
    _running: list[float] = field(default_factory=list, repr=False)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time spent inside to ``seconds[name]``, less that of nested phases."""
        self._running.append(0.0)
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            nested = self._running.pop()
            self.seconds[name] = self.seconds.get(name, 0.0) + spent - nested
            if self._running:
                self._running[-1] += spent

    def graph(
        self, name: str, *, dialect: str = "torch", nodes: int = 0, ops: Iterable[str] = (), where: object = None
    ) -> None:
        """Record a graph."""
        self.graphs.append(GraphRecord(name, dialect, nodes, tuple(ops), _text(where)))

    def graph_break(self, reason: str, where: object = None) -> None:
        """Record a graph break; ``where`` is the user's source location."""
        self.breaks.append(BreakRecord(reason, _text(where)))

    def kernel(self, name: str, ops: Iterable[str], loops: int = 1) -> None:
        """Record a generated kernel."""
        self.kernels.append(KernelRecord(name, tuple(ops), loops))

    def extern(self, name: str) -> None:
        """Record a call into a library kernel."""
        self.externs.append(ExternRecord(name))

    def fallback(self, stage: str, reason: str, where: object = None) -> None:
        """Record a region that runs eagerly."""
        self.fallbacks.append(FallbackRecord(stage, reason, _text(where)))

    def recompile(self, code: str, reason: str) -> None:
        """Record that ``code`` had to be captured again."""
        self.recompiles.append(RecompileRecord(code, reason))

    def tuning(
        self, problem: str, winner: str, *, times: Mapping[str, float], dropped: Mapping[str, str], cached: bool = False
    ) -> None:
        """Record a choice by measurement; ``times`` are milliseconds."""
        self.tunings.append(TuningRecord(problem, winner, dict(times), dict(dropped), cached))

    def extern_counts(self) -> dict[str, int]:
        """Extern calls by operator name."""
        return dict(Counter(record.name for record in self.externs))

    def clear(self) -> None:
        """Forget everything recorded so far."""
        for name in ("graphs", "breaks", "kernels", "externs", "fallbacks", "recompiles", "tunings", "seconds"):
            getattr(self, name).clear()

    def to_json(self) -> str:
        """All records as one JSON object."""
        data: dict[str, Any] = {
            name: [dataclasses.asdict(record) for record in getattr(self, name)]
            for name in ("graphs", "breaks", "kernels", "externs", "fallbacks", "recompiles", "tunings")
        }
        data["seconds"] = self.seconds
        return json.dumps(data, indent=1)

    def __str__(self) -> str:
        lines = [
            f"{len(self.graphs)} graphs, {len(self.breaks)} breaks, {len(self.kernels)} kernels, "
            f"{len(self.externs)} extern calls, {len(self.fallbacks)} fallbacks, "
            f"{len(self.recompiles)} recompiles"
        ]
        for graph in self.graphs:
            lines.append(f"  graph {graph.name} ({graph.dialect}): {graph.nodes} operators{_at(graph.where)}")
        for brk in self.breaks:
            lines.append(f"  break: {brk.reason}{_at(brk.where)}")
        for kernel in self.kernels:
            lines.append(f"  kernel {kernel.name} ({kernel.loops} loops): {' '.join(kernel.ops)}")
        for name, count in sorted(self.extern_counts().items()):
            lines.append(f"  extern {name} x {count}")
        for fallback in self.fallbacks:
            lines.append(f"  fallback in {fallback.stage}: {fallback.reason}{_at(fallback.where)}")
        for recompile in self.recompiles:
            lines.append(f"  recompile of {recompile.code}: {recompile.reason}")
        for tuning in self.tunings:
            ranked = sorted(tuning.times.items(), key=lambda pair: pair[1])
            timed = ", ".join(f"{name} {ms:.4f}" for name, ms in ranked[:4])
            lines.append(f"  tuned {tuning.problem}: {tuning.winner} ({timed} ms{', cached' if tuning.cached else ''})")
            lines += [f"    dropped {name}: {why}" for name, why in tuning.dropped.items()]
        for name, spent in self.seconds.items():
            lines.append(f"  {name}: {spent:.3f} s")
        return "\n".join(lines)


def _text(where: object) -> str | None:
    return None if where is None else str(where)


def _at(where: str | None) -> str:
    return f" at {where}" if where else ""
