"""``worth_it()``: is compiling a program worth its time, after how many calls, and what limits the gain?

Nothing here asks for another compiler: who wants to see one beside ours hands it over (``beside``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from compile_api.comparison import plain_of
from compile_api.compile import compile
from compile_api.trial import keeping_random_state, seconds_of_call, state_of
from prims.errors import UserError
from prims.records import record
from prims.report import Report

__all__ = ["Way", "Worth", "worth_it"]

#: Below this share a limit is not worth a line.
_SHARE = 0.05
#: Calls in which operators are timed.
_PROFILED = 3


@record
class Way:
    """One way to run the program.

    Attributes:
        first: seconds of the first call, with all that is compiled in it.
        call: seconds of a later call, the least of some rounds.
        pays_after: from how many calls on it has taken less time than eager in all; None where it never does.
    """

    name: str
    first: float
    call: float
    pays_after: int | None

    def __str__(self) -> str:
        pays = "" if self.name == "eager" else f"; pays after {self.pays_after} calls"
        if self.name != "eager" and self.pays_after is None:
            pays = "; never pays"
        return f"{self.name}: first call {_time(self.first)}, then {_time(self.call)}{pays}"


@record
class Worth:
    """What :func:`worth_it` found.

    Attributes:
        ways: eager, ours (``"quintet"``) and those handed over.
        limits: what keeps ours from being faster, a line each.
        report: ours.
    """

    ways: tuple[Way, ...]
    limits: tuple[str, ...]
    report: Report

    def __getitem__(self, name: str) -> Way:
        """The way of a name."""
        return next(way for way in self.ways if way.name == name)

    @property
    def speedup(self) -> float:
        """How many times as fast as eager a later call of ours is."""
        return self["eager"].call / self["quintet"].call

    def __str__(self) -> str:
        lines = [str(way) for way in self.ways]
        return "\n".join([*lines, f"{self.speedup:.3g} times as fast as eager", *(f"limit: {x}" for x in self.limits)])


def worth_it(
    model: Callable[..., Any], inputs: Any, *, kwargs: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None, mode: str | None = None, rounds: int = 10,
    beside: Mapping[str, Callable[[Any], Any]] | None = None,
) -> Worth:  # fmt: skip
    """Time calls of a program eagerly and compiled, in turn, their backward pass included where a result has one.

    Disk caches are used as ``options`` say: with a warm one the first call is a warm start's. Every call runs on copies
    of the inputs; a module's own state changes as by that many calls.

    Args:
        model: a function or module.
        inputs: its arguments, a tuple or list; anything else is the only one.
        beside: other compilers by name, ``{"torch.compile": torch.compile}``: each is called with the program.
        rounds: calls of each that are counted.

    Raises:
        UserError: ``inputs`` or ``beside`` are no such things, a bad option.
        Exception: what the program raises.
    """
    args = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    given = dict(kwargs or {})
    others = dict(beside or {})
    for name, compiler in others.items():
        if not callable(compiler) or name in ("eager", "quintet"):
            raise UserError(
                f"beside has {name!r}: {compiler!r}", todo="Give compilers by name: {'torch.compile': torch.compile}."
            )
    plain = plain_of(model)
    ours = compile(plain, options=options, mode=mode)
    runs = {"eager": plain, "quintet": ours, **{name: compiler(plain) for name, compiler in others.items()}}
    with keeping_random_state((args, given)):
        _call(plain, plain, args, given)  # what PyTorch does once in a process is no way's
        first = {name: _call(run, plain, args, given) for name, run in runs.items()}
        for run in runs.values():  # what a second call alone does
            _call(run, plain, args, given)
        best = dict.fromkeys(runs, math.inf)
        for _ in range(max(rounds, 1)):
            for name, run in runs.items():
                best[name] = min(best[name], _call(run, plain, args, given))
    ways = tuple(
        Way(name, first[name], best[name], _pays_after(first, best, name) if name != "eager" else None)
        for name in runs
    )  # fmt: skip
    report = ours.report()
    with keeping_random_state((args, given)):
        limits = _limits(report, ways, lambda: _call(plain, plain, args, given))
    return Worth(ways, tuple(limits), report)


def _pays_after(first: Mapping[str, float], call: Mapping[str, float], name: str) -> int | None:
    """The least number of calls that take less than eager's, the first of each included."""
    spared = call["eager"] - call[name]
    extra = first[name] - first["eager"]
    if extra <= 0:
        return 1
    return None if spared <= 0 else 2 + math.floor(extra / spared)


def _call(run: Callable[..., Any], plain: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """The seconds of a call and of its gradients."""
    return seconds_of_call(run, state_of(plain), args, kwargs)


# ---- what limits it ----------------------------------------------------------------------------------------------


def _limits(report: Report, ways: Sequence[Way], eager: Callable[[], Any]) -> list[str]:
    found = []
    if report.breaks:
        first = report.breaks[0]
        at = f" at {first.where}" if first.where else ""
        found.append(f"{len(report.breaks)} graph break(s), the first: {first.reason}{at}")
    elif report.verdict != "compiled":
        found.append(f"not all of it is compiled: {report.verdict}")
    if report.recompiles:
        found.append(f"it was captured {len(report.recompiles)} times again: {report.recompiles[0].reason}")
    share, names = _of_the_library(report, eager)
    if share >= _SHARE:
        most = "no faster" if share >= 0.99 else f"at most {1 / share:.3g} times as fast by fusing the rest"
        found.append(f"{share:.0%} of eager's time is in operators that stay the library's ({names}): {most}")
    seconds = dict(report.seconds)
    total = sum(seconds.values())
    if total > _SHARE * ways[1].first and seconds:
        longest = max(seconds, key=lambda name: seconds[name])
        found.append(f"of the first call {_time(seconds[longest])} are {longest} of {_time(total)} of compiling")
    if not report.kernels and not report.breaks and report.verdict == "compiled":
        found.append("nothing was fused: there are no generated kernels")
    return found


def _of_the_library(report: Report, eager: Callable[[], Any]) -> tuple[float, str]:
    """The share of eager's time in operators that the compiled program calls too, and their names."""
    from torch.autograd.profiler import profile  # torch.profiler's would import PyTorch's own compiler

    called = {name.removeprefix("aten.").partition(".")[0] for name in report.extern_counts()}
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    tries = []
    for _ in range(_PROFILED):  # the quickest counts, which other programs disturbed least
        with profile(use_device="cuda" if on_gpu else None) as profiled:
            eager()
        events = [e for e in profiled.key_averages() if e.key.startswith("aten::")]
        on_device = sum(e.self_device_time_total for e in events) > 0
        own = [e.self_device_time_total if on_device else e.self_cpu_time_total for e in events]
        whole = [e.device_time_total if on_device else e.cpu_time_total for e in events]
        tries.append((sum(own), {e.key.removeprefix("aten::"): t for e, t in zip(events, whole, strict=True)}))
    total, named = min(tries, key=lambda one: one[0])
    shares = {name: named[name] / total for name in called if name in named and total}
    names = ", ".join(sorted(shares, key=lambda name: -shares[name])[:4])
    return min(sum(shares.values()), 1.0), names


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
