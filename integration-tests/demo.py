"""See it work: a transformer and a convnet, eager and compiled, with what became of their operators.

``nox -s demo``, or ``python integration-tests/demo.py [--models bert resnet50] [--small] [--runs 10]``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import zoo


def median_seconds(calls: Sequence[Callable[[], Any]], runs: int) -> list[float]:
    """The median of ``runs`` timed calls of each, taken in turn so that other work on the machine slows all alike."""
    samples: list[list[float]] = [[] for _ in calls]
    for run in range(-1, runs):
        for call, taken in zip(calls, samples, strict=True):
            start = time.perf_counter()
            call()
            if run >= 0:  # the first round warms up
                taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in samples]


def relative_error(actual: Any, reference: Any) -> float:
    """The largest error over all outputs, relative to the largest reference value."""
    worst = 0.0
    for x, y in zip(zoo.tensors(actual), zoo.tensors(reference), strict=True):
        scale = y.abs().max().item() or 1.0
        worst = max(worst, (x.double() - y.double()).abs().max().item() / scale)
    return worst


def show(name: str, *, small: bool, runs: int, console: Any) -> None:
    """Compile one model and print what happened."""
    from rich.table import Table

    import compile_api

    case = zoo.build(name, small=small)
    with torch.no_grad():
        expected = case()
        compiled = compile_api.compile(case.model)
        start = time.perf_counter()
        actual = compiled(*case.args, **case.kwargs)
        first = time.perf_counter() - start
        eager, steady = median_seconds([case, lambda: compiled(*case.args, **case.kwargs)], runs)
    report = compiled.report()

    graphs = sum(graph.dialect == "torch" for graph in report.graphs)
    times = Table(title=f"{name}: {graphs} graphs, {len(report.breaks)} breaks", title_justify="left")
    for column in ("eager call", "compiled call", "speedup", "first call", "error against eager"):
        times.add_column(column, justify="right")
    times.add_row(
        f"{eager * 1e3:.1f} ms",
        f"{steady * 1e3:.1f} ms",
        f"{eager / steady:.2f}x",
        f"{first:.2f} s",
        f"{relative_error(actual, expected):.1e}",
    )
    console.print(times)

    fused = Table(title="Generated kernels (those with the most operators)", title_justify="left")
    for column in ("kernel", "calls", "loops", "operators fused into it"):
        fused.add_column(column)
    calls = Counter(report.kernels)
    for kernel in sorted(calls, key=lambda k: -len(k.ops))[:5]:
        ops = Counter(kernel.ops)
        text = ", ".join(f"{n} {op}" if n > 1 else op for op, n in ops.items())
        fused.add_row(kernel.name, str(calls[kernel]), str(kernel.loops), text)
    console.print(fused)
    total = sum(len(kernel.ops) for kernel in report.kernels)
    libraries = ", ".join(f"{n} {op}" for op, n in sorted(report.extern_counts().items()))
    console.print(f"{total} operators in {len(report.kernels)} kernels; library calls: {libraries or 'none'}")
    for fallback in report.fallbacks:
        console.print(f"fallback in {fallback.stage}: {fallback.reason}", style="red")
    phases = ", ".join(
        f"{phase} {seconds:.2f}" for phase, seconds in report.seconds.items() if not phase.startswith("pass:")
    )
    console.print(f"seconds: {phases}\n")


def main() -> None:
    """Parse the command line and show each model, with an empty kernel cache of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["bert", "resnet50"], choices=zoo.names())
    parser.add_argument("--small", action="store_true", help="shrunken models, for a quick look")
    parser.add_argument("--runs", type=int, default=10)
    options = parser.parse_args()
    from rich.console import Console

    console = Console()
    console.print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, cold kernel cache\n")
    with tempfile.TemporaryDirectory(prefix="quintet-demo-") as cache:
        os.environ["QUINTET_CACHE_DIR"] = cache
        for name in options.models:
            show(name, small=options.small, runs=options.runs, console=console)


if __name__ == "__main__":
    main()
