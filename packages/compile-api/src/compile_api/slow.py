"""How long a compiled program takes beside eager: calls of both in turn, on copies, the fastest of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree

from compile_api.backends import Backend, raw_backend
from compile_api.surroundings import Modes
from compile_api.trial import copies_of, keeping_random_state, tangents_for
from prims.options import Options
from prims.records import record
from prims.report import Report

__all__ = ["Slowness", "recording_times", "seconds_of", "time_region", "timed"]

#: Calls of each that are not counted, and rounds that are.
_WARM, _ROUNDS = 2, 7


@record(eq=False)
class Slowness:
    """The seconds of a call of a program, compiled and eager, its backward pass included where there is one.

    Attributes:
        gm: the captured graph; None of a whole program.
        args: copies of its inputs.
        error: what compiling or running it raised.
        modes: those in which it ran.
    """

    compiled: float
    eager: float
    gm: torch.fx.GraphModule | None = None
    args: tuple[Any, ...] = ()
    error: Exception | None = None
    modes: Modes | None = None

    @property
    def ratio(self) -> float:
        """How many times eager's seconds the compiled program takes."""
        return self.compiled / max(self.eager, 1e-9)

    @property
    def lost(self) -> float:
        """The seconds that are lost by compiling."""
        return self.compiled - self.eager

    @property
    def name(self) -> str:
        """The captured function's name."""
        return "program" if self.gm is None else str(self.gm.meta.get("name", "graph"))

    def __str__(self) -> str:
        if self.error is not None:
            return f"{self.name}: {type(self.error).__name__}: {self.error}"
        ours, eager = (f"{1e3 * seconds:.3g} ms" for seconds in (self.compiled, self.eager))
        return f"{self.name}: {ours} compiled, {eager} eager ({self.ratio:.3g} times)"


def seconds_of(runs: Sequence[Callable[..., Any]], args: Sequence[Any], rounds: int = _ROUNDS) -> list[float]:
    """The seconds of a call of each on copies of ``args``, in turn; the least of some rounds."""
    best = [float("inf")] * len(runs)
    with keeping_random_state(args):
        for k in range(_WARM + rounds):
            for n, run in enumerate(runs):
                seconds = _call(run, args)
                if k >= _WARM:
                    best[n] = min(best[n], seconds)
    return best


def _call(run: Callable[..., Any], args: Sequence[Any]) -> float:
    copies = copies_of(tuple(args))
    _wait(args)
    began = time.perf_counter()
    outputs = pytree.tree_leaves(run(*copies.args))
    roots = [y for y in outputs if isinstance(y, torch.Tensor) and y.grad_fn is not None]
    if copies.leaves and roots:
        torch.autograd.grad(roots, copies.leaves, tangents_for(roots), allow_unused=True)
    _wait(args)
    return time.perf_counter() - began


def _wait(args: Any) -> None:
    if any(isinstance(x, torch.Tensor) and x.is_cuda for x in pytree.tree_leaves(args)):
        torch.cuda.synchronize()


def time_region(gm: torch.fx.GraphModule, args: Sequence[Any], backend: Backend) -> Slowness:
    """Compile a graph and time calls of it; ``args`` stay as they are."""
    kept = copies_of(tuple(args)).args
    try:
        ours, eager = seconds_of([backend(gm, list(args)), gm.forward], args)
    except Exception as error:
        return Slowness(0.0, 0.0, gm, kept, error, Modes.now())
    return Slowness(ours, eager, gm, kept, modes=Modes.now())


def recording_times(backend: str | Backend, options: Options, found: list[Slowness]) -> Backend:
    """A backend that times the first call of each graph, and goes on with eager's results."""
    inner = raw_backend(backend, options, Report())

    def record_graph(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        seen = False

        def run(*args: Any) -> Any:
            nonlocal seen
            if not seen:
                seen = True
                found.append(time_region(gm, args, inner))
            return gm.forward(*args)

        return run

    record_graph.supports_dynamic_shapes = getattr(inner, "supports_dynamic_shapes", False)  # type: ignore[attr-defined]
    return record_graph


def timed(
    fn: Callable[..., Any], *args: Any, backend: str | Backend = "inductor", options: Mapping[str, Any] | None = None
) -> Slowness:
    """The seconds of a call of ``fn``, compiled and eagerly.

    Raises:
        UserError: a bad backend or option.
        Exception: what the program raises.
    """
    from compile_api.compile import compile

    ours, eager = seconds_of([compile(fn, backend=backend, options=options), fn], args)
    return Slowness(ours, eager)
