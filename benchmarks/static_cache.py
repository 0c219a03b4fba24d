"""Writes to static key-value caches, and a decoding step that reads them: ``python benchmarks/static_cache.py``.

Each call writes one row of each of eight caches of 8 heads and 64 columns, or adds to it; ``step`` also attends over the
caches.
Eager, compiled and (with ``--torch-compile``) torch.compile's calls alternate in one process; the fastest counts. On a
GPU a call is timed with the queue full (device time where that is longer) and alone (wall time).
"""

from __future__ import annotations

import argparse
import json
import platform
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

CACHES, HEADS, WIDTH = 8, 8, 64


def index_copy(caches: list[torch.Tensor], row: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    for cache in caches:
        cache.index_copy_(2, at, row)
    return row


def set_item(caches: list[torch.Tensor], row: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    for cache in caches:
        cache[:, :, at] = row
    return row


def one_write(caches: list[torch.Tensor], row: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    caches[0][:, :, at] = row
    return row


def add_item(caches: list[torch.Tensor], row: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    for cache in caches:
        cache[:, :, at] += row
    return row


def index_add(caches: list[torch.Tensor], row: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    for cache in caches:
        cache.index_add_(2, at, row)
    return row


def add_part(caches: list[torch.Tensor], row: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    for cache in caches:
        cache[:, :, 5:6] = cache[:, :, 5:6] * 0.5 + row
    return row


def slots(caches: list[torch.Tensor], row: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """As a paged cache is written: its slots are one dimension of a view."""
    for cache in caches:
        cache.view(-1, WIDTH)[at] = row[0, 0]
    return row


def step(caches: list[torch.Tensor], row: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    x = row
    for key, value in zip(caches[::2], caches[1::2], strict=True):
        key.index_copy_(2, at, x)
        value.index_copy_(2, at, x * 0.5)
        x = x + F.scaled_dot_product_attention(x, key, value)
    return x


PROGRAMS = {
    "eight index_copy_": index_copy, "eight cache[:, :, at] = row": set_item, "one write": one_write,
    "eight cache[:, :, at] += row": add_item, "eight index_add_": index_add, "eight of cache[:, :, 5:6]": add_part,
    "eight cache.view(-1, width)[at] = row": slots,
    "step": step,
}  # fmt: skip


def timed(ways: dict[str, Callable[[], Any]], device: str, seconds: float) -> dict[str, float]:
    """Milliseconds of the fastest call of each way, the ways in turn."""
    best = dict.fromkeys([*ways, *(f"{name} queued" for name in ways)] if device == "cuda" else ways, float("inf"))
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop:
        for name, run in ways.items():
            if device == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
            run()
            if device == "cuda":
                torch.cuda.synchronize()
            best[name] = min(best[name], (time.perf_counter() - begin) * 1e3)
            if device == "cuda":
                pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                torch.cuda._sleep(5_000_000)
                pair[0].record()
                for _ in range(4):
                    run()
                pair[1].record()
                torch.cuda.synchronize()
                best[f"{name} queued"] = min(best[f"{name} queued"], pair[0].elapsed_time(pair[1]) / 4)
    return best


def measure(program: Callable[..., Any], rows: int, device: str, seconds: float, theirs: bool) -> dict[str, Any]:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    make = lambda: [torch.zeros(1, HEADS, rows, WIDTH, device=device, dtype=dtype) for _ in range(CACHES)]
    row, at = torch.randn(1, HEADS, 1, WIDTH, device=device, dtype=dtype), torch.tensor([rows // 2], device=device)
    functions = {"eager": program, "quintet": compile_api.compile(program)}
    if theirs:
        functions["torch.compile"] = torch.compile(program)
    ways = {}
    with torch.no_grad():
        for name, function in functions.items():
            caches = make()
            for _ in range(3):
                function(caches, row, at)
            ways[name] = lambda function=function, caches=caches: function(caches, row, at)
        times = timed(ways, device, seconds)
    report = functions["quintet"].report()
    counts = {"kernels": len(report.kernels), "fallbacks": len(report.fallbacks)}
    return {"ms": times, "ratio": times["quintet"] / times["eager"], **counts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rows", type=int, nargs="*", default=[256, 4096, 32768])
    parser.add_argument("--programs", nargs="*", choices=[f.__name__ for f in PROGRAMS.values()])
    parser.add_argument("--seconds", type=float, default=1.0, help="per case")
    parser.add_argument("--torch-compile", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    facts = {
        "command": " ".join(["python", "benchmarks/static_cache.py", *sys.argv[1:]]), "torch": torch.__version__,
        "python": platform.python_version(), "hardware": hardware(options.device), "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip
    for name, program in PROGRAMS.items():
        if options.programs and program.__name__ not in options.programs:
            continue
        for rows in options.rows:
            record = measure(program, rows, options.device, options.seconds, options.torch_compile)
            shown = ", ".join(f"{way} {ms:.4f}" for way, ms in record["ms"].items())
            print(f"{name}, {rows} rows: {shown} ms; {record['ratio']:.2f} of eager", flush=True)
            if options.out:
                with options.out.open("a") as file:
                    file.write(json.dumps({"case": name, "rows": rows, **record, **facts}) + "\n")


if __name__ == "__main__":
    main()
