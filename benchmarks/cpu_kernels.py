"""Generated CPU kernels against eager's, one operation at a time on 4 M elements: ``python benchmarks/cpu_kernels.py``.

Eager and compiled calls alternate in one process. Prints a table, and with ``--out`` appends a JSON line per case.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench import hardware

import compile_api

N = 1 << 22
ROWS = 2048

Case = tuple[Callable[..., Any], tuple[Any, ...]]


def cases() -> dict[str, Case]:
    """Name -> function and arguments; every large argument has 4 M elements."""
    x, y = torch.randn(ROWS, ROWS), torch.randn(ROWS, ROWS)
    images = torch.randn(32, 64, 64, 32)
    vector = torch.randn(ROWS)
    mask = torch.rand(ROWS, ROWS) > 0.5
    classes = torch.randint(0, ROWS, (ROWS,))
    ids = torch.randint(0, 32_000, (N // 512,))
    table = torch.randn(32_000, 512)
    channel, running = torch.rand(64), (torch.zeros(64), torch.ones(64))
    columns = torch.randint(0, ROWS, (ROWS, ROWS))
    return {
        "softmax": (lambda a: a.softmax(-1), (x,)),
        "softmax over dim 0": (lambda a: a.softmax(0), (x,)),
        "log_softmax": (lambda a: a.log_softmax(-1), (x,)),
        "layer_norm": (lambda a, w, b: F.layer_norm(a, (ROWS,), w, b), (x, vector, vector)),
        "batch_norm, training": (
            lambda a, w, m, v: F.batch_norm(a, m, v, w, w, training=True), (images, channel, *running),
        ),
        "cross_entropy": (F.cross_entropy, (x, classes)),
        "gelu": (F.gelu, (x,)),
        "gelu, tanh": (lambda a: F.gelu(a, approximate="tanh"), (x,)),
        "silu(a) * b": (lambda a, b: F.silu(a) * b, (x, y)),
        "a + b": (lambda a, b: a + b, (x, y)),
        "a.t() + b": (lambda a, b: a.t() + b, (x, y)),
        "sum over dim 0": (lambda a: a.sum(0), (x,)),
        "sum over the last dim": (lambda a: a.sum(-1), (x,)),
        "sum of everything": (lambda a: a.sum(), (x,)),
        "amax over dim 0": (lambda a: a.amax(0), (x,)),
        "argmax over the last dim": (lambda a: a.argmax(-1), (x,)),
        "var over the last dim": (lambda a: a.var(-1), (x,)),
        "cumsum over the last dim": (lambda a: a.cumsum(-1), (x,)),
        "where(mask, a, b)": (torch.where, (mask, x, y)),
        "masks: (a > b) & m": (lambda a, b, m: (a > b) & m, (x, y, mask)),
        "mask.sum()": (lambda m: m.sum(), (mask,)),
        "masked_fill": (lambda a, m: a.masked_fill(m, -1.0), (x, mask)),
        "embedding, int64": (F.embedding, (ids, table)),
        "gather, int64": (lambda a, i: a.gather(1, i), (x, columns)),
        "cat": (lambda a, b: torch.cat([a, b], 1), (x, y)),
        "bfloat16: a * b + a": (lambda a, b: a * b + a, (x.bfloat16(), y.bfloat16())),
        "int32: a * 3 // 7": (lambda a: a * 3 // 7, (columns.int(),)),
        "avg_pool2d": (lambda a: F.avg_pool2d(a, 2), (images,)),
    }  # fmt: skip


def measure(function: Callable[..., Any], args: tuple[Any, ...], seconds: float) -> dict[str, Any]:
    """Medians in milliseconds of alternating calls, and what was generated."""
    torch.manual_seed(0)
    compiled = compile_api.compile(function)
    with torch.no_grad():
        for _ in range(2):
            half = any(a.dtype == torch.bfloat16 for a in args)  # rounded once by the kernel, after each step by eager
            tolerance = 0.07 if half else 1e-4
            torch.testing.assert_close(compiled(*args), function(*args), rtol=tolerance, atol=tolerance)
        times: dict[str, list[float]] = {"eager": [], "quintet": []}
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times["eager"]) < 7:
            for name, call in (("eager", function), ("quintet", compiled)):
                start = time.perf_counter()
                call(*args)
                times[name].append(1e3 * (time.perf_counter() - start))
    report = compiled.report()
    record: dict[str, Any] = {name: round(statistics.median(found), 3) for name, found in times.items()}
    record["ratio"] = round(record["eager"] / record["quintet"], 2)
    record["kernels"], record["externs"] = len(report.kernels), [e.name for e in report.externs]
    record["fallbacks"] = [r.reason for r in report.fallbacks]
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of the cases to run")
    parser.add_argument("--seconds", type=float, default=0.5, help="per case")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    facts = {
        "torch": torch.__version__, "python": platform.python_version(), "hardware": hardware("cpu"),
        "threads": options.threads, "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip
    print(f"{'':28}{'eager ms':>10}{'quintet ms':>12}{'speed':>8}  kernels")
    for name, (function, args) in cases().items():
        if options.only and not any(part in name for part in options.only):
            continue
        record = measure(function, args, options.seconds)
        extra = "".join(f" {e}" for e in record["externs"]) + (" FELL BACK" if record["fallbacks"] else "")
        print(
            f"{name:28}{record['eager']:10.3f}{record['quintet']:12.3f}{record['ratio']:8.2f}  {record['kernels']}{extra}",
            flush=True,
        )
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps({"case": name, **record, **facts}) + "\n")


if __name__ == "__main__":
    main()
