"""Choosing among candidates by measurement, once for each problem, device and version."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import traceback
from typing import Any

import torch

from inductor_gen.codegen.renderer import KernelSource
from inductor_gen.codegen.triton import TritonSource
from inductor_gen.device.record import device_of
from inductor_gen.templates import bench
from inductor_gen.templates.decisions import Decisions
from inductor_gen.templates.problem import Candidate, Draft, Problem
from prims.errors import InternalError, Unsupported
from prims.report import Report
from prims.spec.tensorspec import as_device

__all__ = ["Shortage", "decide"]

log = logging.getLogger("quintet")

#: How much faster than the usual way a candidate must be: less is noise.
GAIN = 0.97


class Shortage:
    """What could not be measured for want of memory, said once for a graph."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.why = ""

    def add(self, problem: str, error: torch.OutOfMemoryError) -> None:
        self.problems.append(problem)
        self.why = self.why or str(error).splitlines()[0]

    def tell(self, report: Report) -> None:
        """A warning, and a record in the report."""
        if self.problems:
            more = f" and {len(self.problems) - 1} more" if len(self.problems) > 1 else ""
            _note(
                report,
                f"out of memory while measuring {self.problems[0]}{more}: the usual kernels are used, and the others "
                f"measured when this is compiled again with more memory free. {self.why}",
            )


def _note(report: Report, reason: str) -> None:
    log.warning("autotuning: %s", reason)
    report.fallback("autotune", reason, eager=False)


def decide(problems: list[Problem], draft: Draft, shortage: Shortage) -> list[Candidate]:
    """The best candidate of each problem, from the cache or by measuring now; the report gets a record of each.

    While a CUDA graph is captured the usual way is taken, with the reason in the report; so it is where memory runs
    out, with the problem in ``shortage``.
    """
    report = draft.report
    decisions = Decisions(draft.options)
    keys = [_key(p) for p in problems]
    known = {key: decisions.find(key) for key in dict.fromkeys(keys)}
    cached = {key for key, decision in known.items() if decision is not None}
    open_ = {key: p for key, p in zip(keys, problems, strict=True) if known[key] is None}
    if open_:
        for key, decision in _Contest(draft, shortage).run(open_).items():
            known[key] = decision
            if decision["lasting"]:
                decisions.keep(key, decision)
    chosen = []
    for key, problem in zip(keys, problems, strict=True):
        decision = known[key] or {}
        names = {c.name: c for c in problem.candidates}
        winner = names.get(decision.get("winner", ""), problem.candidates[0])
        chosen.append(winner)
        times, dropped = decision.get("times", {}), decision.get("dropped", {})
        report.tuning(problem.text, winner.name, times=times, dropped=dropped, cached=key in cached)
    return chosen


def _key(problem: Problem) -> str:
    from inductor_gen.runtime.triton_check import triton_version

    parts = (problem.key, _device_name(problem.device), str(triton_version()), torch.__version__, "1")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _device_name(device: torch.device) -> str:
    """What measured times depend on: the device, and what runs on it."""
    record = device_of(device)
    beside = f"CUDA {torch.version.cuda}" if record.capability else f"{torch.get_num_threads()} threads"
    return f"{record}, {beside}"


class _Contest:
    """Measures the problems of one graph."""

    def __init__(self, draft: Draft, shortage: Shortage) -> None:
        self.draft = draft
        self.shortage = shortage
        self.report = draft.report
        self.options = draft.options

    def run(self, problems: dict[str, Problem]) -> dict[str, dict[str, Any]]:
        """A decision for each key."""
        if any(p.device.type == "cuda" for p in problems.values()) and torch.cuda.is_current_stream_capturing():
            why = "a CUDA graph is being captured, in which nothing can be measured: library kernels are used"
            _note(self.report, why)
            return {key: _usual(p) for key, p in problems.items()}
        problems = {key: dataclasses.replace(p, candidates=_distinct(p)) for key, p in problems.items()}
        by_device: dict[torch.device, list[TritonSource]] = {}
        for p in problems.values():
            by_device.setdefault(p.device, []).extend(
                s for c in p.candidates for s in c.steps if isinstance(s, TritonSource)
            )
        kernels: dict[str, Any] = {}
        refused: dict[str, str] = {}
        for device, sources in by_device.items():
            found, bad = bench.load_kernels(sources, as_device(device), self.options, self.report)
            kernels.update(found)
            refused.update(bad)
        return self._run(problems, kernels, refused)

    def _run(
        self, problems: dict[str, Problem], kernels: dict[str, Any], refused: dict[str, str]
    ) -> dict[str, dict[str, Any]]:  # fmt: skip
        decided = {}
        done, total = 0, sum(len(p.candidates) for p in problems.values())
        with self.report.counting("autotuning", total) as more:
            for key, p in problems.items():
                with torch.no_grad(), torch.amp.autocast(p.device.type, enabled=False):
                    decided[key] = self._problem(p, kernels, refused)
                done += len(p.candidates)
                said = f"{p.text}: {decided[key]['winner']}"
                more(len(p.candidates), said)
                log.info("autotuning [%d/%d] %s", done, total, said)
        return decided

    def _problem(self, p: Problem, kernels: dict[str, Any], refused: dict[str, str]) -> dict[str, Any]:
        if len(p.candidates) == 1:
            return {**_usual(p), "lasting": True}
        times: dict[str, float] = {}
        dropped: dict[str, str] = {}
        try:
            self._measure_all(p, kernels, refused, times, dropped)
        except torch.OutOfMemoryError as error:
            self.shortage.add(p.text, error)
            traceback.clear_frames(error.__traceback__)  # they hold the operands and results,
            error.__traceback__ = None  # and so do the closures that ran in them
            torch.cuda.empty_cache()
            return {**_usual(p), "times": times, "dropped": dropped}
        usual = p.candidates[0].name
        if usual not in times:
            return {**_usual(p), "times": times, "dropped": dropped}
        fastest = min(times, key=lambda name: times[name])
        winner = fastest if times[fastest] < GAIN * times[usual] else usual
        rounded = {name: round(ms, 5) for name, ms in times.items()}
        return {"winner": winner, "times": rounded, "dropped": dropped, "lasting": True}

    def _measure_all(
        self, p: Problem, kernels: dict[str, Any], refused: dict[str, str], times: dict[str, float],
        dropped: dict[str, str],
    ) -> None:  # fmt: skip
        device = as_device(p.device)
        data = bench.Bench(p, self.draft, device, self.options)
        wanted: list[torch.Tensor] | None = None
        for c in p.candidates:
            missing = [refused[s.name] for s in c.steps if isinstance(s, KernelSource) and s.name in refused]
            if missing:
                dropped[c.name] = missing[0]
                continue
            try:
                run = data.load(c, kernels)
                if wanted is not None:
                    data.poison()
                run()
                if wanted is None:
                    wanted = data.results()
                else:
                    wrong = bench.differs([data.buffer(n) for n in p.results], wanted, p.precision)
                    if wrong is not None:
                        dropped[c.name] = wrong
                        log.info("autotuning %s: %s is dropped, %s", p.text, c.name, wrong)
                        continue
                times[c.name] = bench.milliseconds(run, device)
            except torch.OutOfMemoryError:
                raise
            except (InternalError, RuntimeError) as error:
                dropped[c.name] = str(error).splitlines()[0][:300]
                if wanted is None:
                    return  # the usual way itself fails on random data: nothing to compare with


def _distinct(p: Problem) -> list[Candidate]:
    """The candidates that can be rendered, equal ones once."""
    found: dict[tuple[str, ...], Candidate] = {}
    for c in p.candidates:
        try:
            steps = c.steps
        except Unsupported:
            continue
        found.setdefault(tuple(s.text if isinstance(s, KernelSource) else s.name for s in steps), c)
    return list(found.values())


def _usual(p: Problem) -> dict[str, Any]:
    return {"winner": p.candidates[0].name, "times": {}, "dropped": {}, "lasting": False}
