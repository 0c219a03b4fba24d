"""Running candidates on random data of the real sizes and layouts, and timing them on their device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor_gen.codegen.renderer import KernelSource
from inductor_gen.codegen.triton import TritonSource
from inductor_gen.layout.record import ViewRef, strides_of
from inductor_gen.loops.graph import Node
from inductor_gen.runtime.compiler import launcher
from inductor_gen.runtime.cuda import driver_words
from inductor_gen.runtime.helpers import relayout
from inductor_gen.runtime.launch import Program
from inductor_gen.runtime.triton_interpret import interpreted
from inductor_gen.templates.problem import Candidate, Draft, Operator, Problem
from prims.errors import InternalError
from prims.options import Options
from prims.report import Report
from prims.spec.expr import Expr, bits_of_float

__all__ = ["Bench", "Run", "differs", "load_kernels", "milliseconds"]

Run = Callable[[], None]

_REPEATS = 12
_CACHE = 128 << 20  # bytes written between two runs, so that neither finds its operands in the cache


class Bench:
    """The buffers of one problem, and its candidates as callables on them."""

    def __init__(self, problem: Problem, draft: Draft, device: torch.device, options: Options) -> None:
        self.problem = problem
        self.draft = draft
        self.hint = draft.hint
        self.device = device
        self.options = options
        self.buffers: dict[Node, torch.Tensor] = {}
        self.generator = torch.Generator(device)  # the program's own random numbers stay as they are
        self.generator.manual_seed(0)

    # ---- data -------------------------------------------------------------------------------------------

    def buffer(self, node: Node) -> torch.Tensor:
        """A node's buffer, filled with random numbers (zeros for integers, which may be indices)."""
        node = self.draft.prepared.storage(node)
        found = self.buffers.get(node)
        if found is None:
            found = self.buffers[node] = self._made(node)
        return found

    def _made(self, node: Node) -> torch.Tensor:
        shape = [self.hint(s) for s in node.shape]
        strides = [self.hint(s) for s in strides_of(self.draft.layouts, node)]
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
        assert node.dtype is not None
        flat = torch.zeros(extent, dtype=node.dtype, device=self.device)
        if node.dtype.is_floating_point:
            flat.normal_(generator=self.generator).mul_(self.problem.scale.get(node, 1.0))
        return flat.as_strided(shape, strides)

    def poison(self) -> None:
        """Fill the results with what no candidate computes."""
        for node in self.problem.results:
            t = self.buffer(node)
            t.fill_(float("nan") if t.is_floating_point() else 1)

    def results(self) -> list[torch.Tensor]:
        """Copies of the results."""
        return [self.buffer(node).clone() for node in self.problem.results]

    # ---- candidates -------------------------------------------------------------------------------------

    def load(self, candidate: Candidate, kernels: dict[str, Any]) -> Run:
        """A candidate as a callable; ``kernels`` holds its kernels by name, loaded or in the interpreter."""
        parts = [
            self._operator(step) if isinstance(step, Operator) else self._launch(step, kernels[step.name])
            for step in candidate.steps
        ]
        if len(parts) == 1:
            return parts[0]

        def run() -> None:
            for part in parts:
                part()

        return run

    def _operator(self, operator: Operator) -> Run:
        node, function = operator.node, operator.function
        args, kwargs = self.draft.prepared.externs[node]
        strides = tuple(self.hint(s) for s in strides_of(self.draft.layouts, node))
        values = [self._argument(a) for a in args]
        keywords = {k: self._argument(v) for k, v in kwargs.items()}

        def run() -> None:
            result = function(*values, **keywords)
            self.buffers[node] = result if result.stride() == strides else relayout(result, strides)

        return run

    def _argument(self, x: Any) -> Any:
        if isinstance(x, ViewRef):
            base = self.buffer(x.base)
            sizes = ([self.hint(e) for e in part] for part in (x.shape, x.strides))
            return base.as_strided(*sizes, base.storage_offset() + self.hint(x.offset))
        return x

    def _launch(self, source: KernelSource, kernel: Any) -> Run:
        assert isinstance(source, TritonSource)
        numbers = [self._number(e) for e in (*source.sizes, *source.grid)]
        if self.device.type != "cuda":
            return lambda: kernel([self.buffer(n) for n in source.buffers], numbers)
        count = len(source.buffers)
        call = (kernel.function, kernel.threads, kernel.shared, list(range(count)), len(source.sizes), 0, ())
        sizes = [bits_of_float(x) if isinstance(x, float) else x for x in numbers]
        slots = [(k, 0) for k in range(count)]
        launch = launcher(self.options)(Program(count, slots, sizes, [call], driver_words(self.device)))
        for n in source.buffers:
            self.buffer(n)

        def run() -> None:
            stream = torch.cuda.current_stream(self.device).cuda_stream
            code = launch(*(self.buffer(n) for n in source.buffers), stream)
            if code:
                raise InternalError(f"the driver refused to launch it (error {code})")

        return run

    def _number(self, e: Expr) -> int | float:
        return float(e.value) if e.is_float else self.hint(e)


def load_kernels(
    sources: Sequence[TritonSource], device: torch.device, options: Options, report: Report
) -> tuple[dict[str, Any], dict[str, str]]:
    """The kernels by name, compiled side by side, and why others could not be had.

    Raises:
        Unsupported: no Triton or no suitable GPU.
    """
    if device.type != "cuda":
        return dict(interpreted(sources)) if sources else {}, {}
    from inductor_gen.runtime.triton_build import Build

    builds: dict[str, Build] = {}
    for source in sources:
        if source.name not in builds:
            builds[source.name] = Build(device, options)
            builds[source.name].add(source)
    found: dict[str, Any] = {}
    refused: dict[str, str] = {}
    with report.counting("compiling kernels to be measured", len(builds)) as more:
        for name, build in builds.items():
            try:
                found.update(build.collect()[0])
            except InternalError as error:
                refused[name] = str(error).splitlines()[0][:300]
            more()
    return found, refused


def milliseconds(run: Run, device: torch.device) -> float:
    """The time of a run on its device: the median of several, each with cold caches."""
    if device.type != "cuda":
        return _on_cpu(run)
    run()
    cold = torch.empty(_CACHE // 4, dtype=torch.int32, device=device)
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(_REPEATS)]
    torch.cuda.synchronize(device)
    torch.cuda._sleep(2_000_000)  # about a millisecond, in which all the rest is queued
    for begin, end in pairs:
        cold.zero_()
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize(device)
    times = sorted(begin.elapsed_time(end) for begin, end in pairs)
    return times[len(times) // 2]


def _on_cpu(run: Run) -> float:
    """The least of several times, which other programs disturbed least."""
    run()
    best, spent = float("inf"), 0.0
    while spent < 0.02:
        start = time.perf_counter()
        run()
        took = time.perf_counter() - start
        best, spent = min(best, took), spent + took
    return best * 1e3


def differs(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor], precision: float) -> str | None:
    """What is wrong with a candidate's results beside the usual ones; None where nothing is.

    Both round differently, and the usual way may round the product to 16 bits in between, so that a result may be off
    by a share of the largest one; a wrong element is off by about as much as elements are large. ``precision`` is the
    relative error that products of float32 have (with TF32, float16's).
    """
    for k, (x, y) in enumerate(zip(got, want, strict=True)):
        if not y.numel():
            continue
        if not y.is_floating_point():
            wrong = (x != y).sum().item() / y.numel()
            if wrong > 0.01:
                return f"result {k}: {wrong:.1%} of the elements differ"
            continue
        finite = torch.isfinite(y)
        if not bool((torch.isfinite(x) == finite).all()):
            return f"result {k}: not finite in the same places"
        if not bool(finite.any()):
            continue
        zero = torch.zeros((), dtype=y.dtype, device=y.device)
        off = (torch.where(finite, x, zero).double() - torch.where(finite, y, zero).double()).abs()
        size = torch.where(finite, y, zero).double().abs()
        unit = max(torch.finfo(y.dtype).eps, precision)
        worst, mean = off.max().item(), off.mean().item()
        if worst > 16 * unit * size.max().item() or mean > 4 * unit * size.mean().item():
            return f"result {k}: off by {worst:.3g} at most, {mean:.3g} on average, of {size.max().item():.3g}"
    return None
