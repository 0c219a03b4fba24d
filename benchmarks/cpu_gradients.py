"""Gradients of operations that read by index, generated and eager's, on a CPU: ``python benchmarks/cpu_gradients.py``.

A step is forward and backward. Eager and compiled steps alternate in one process, and the fastest of each counts, so
that another program on the machine does less harm. Prints a table, and with ``--out`` appends a JSON line per case.
"""

from __future__ import annotations

import argparse
import ctypes
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

Case = tuple[Callable[..., torch.Tensor], tuple[Any, ...]]


def _interpolate(mode: str, shape: tuple[int, ...], **how: Any) -> Case:
    return lambda x: F.interpolate(x, mode=mode, **how), (shape,)


def _pad(mode: str, shape: tuple[int, ...], *edge: int) -> Case:
    return lambda x: F.pad(x, edge, mode=mode), (shape,)


def _shuffle(x: torch.Tensor) -> torch.Tensor:
    n, c, h, w = x.shape
    left, right = x.chunk(2, 1)
    joined = torch.cat([left, right * 2], 1)
    return joined.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def known() -> dict[str, Case]:
    """Where each element comes from is known when compiled. Shapes stand for random tensors."""
    image, small, large = (2, 64, 64, 64), (2, 256, 16, 16), (2, 256, 32, 32)
    return {
        "bilinear x2": _interpolate("bilinear", large, scale_factor=2),
        "bilinear x2, align_corners": _interpolate("bilinear", large, scale_factor=2, align_corners=True),
        "bilinear 16 to 56": _interpolate("bilinear", (1, 64, 16, 16), size=56),
        "bilinear 64 to 37": _interpolate("bilinear", image, size=37),
        "bilinear x8, 21 channels": _interpolate("bilinear", (1, 21, 32, 32), scale_factor=8),
        "bilinear halved": _interpolate("bilinear", image, scale_factor=0.5),
        "nearest x2": _interpolate("nearest", large, scale_factor=2),
        "nearest 64 to 100": _interpolate("nearest", image, size=100),
        "nearest-exact 64 to 37": _interpolate("nearest-exact", image, size=37),
        "bicubic x2": _interpolate("bicubic", (1, 64, 32, 32), scale_factor=2),
        "bicubic 14 to 24, 768 channels": _interpolate("bicubic", (1, 768, 14, 14), size=24),
        "linear x4": _interpolate("linear", (8, 64, 256), scale_factor=4),
        "trilinear x2": _interpolate("trilinear", (1, 32, 16, 16, 16), scale_factor=2),
        "nearest x2, 3d": _interpolate("nearest", (1, 32, 16, 16, 16), scale_factor=2),
        "reflection pad 3": _pad("reflect", image, 3, 3, 3, 3),
        "reflection pad 1": _pad("reflect", small, 1, 1, 1, 1),
        "reflection pad, 1d": _pad("reflect", (8, 64, 1024), 7, 7),
        "reflection pad, 3d": _pad("reflect", (1, 16, 16, 32, 32), 1, 1, 1, 1, 1, 1),
        "replication pad 2": _pad("replicate", image, 2, 2, 2, 2),
        "replication pad, 3d": _pad("replicate", (1, 16, 16, 32, 32), 1, 1, 1, 1, 1, 1),
        "circular pad 2": _pad("circular", image, 2, 2, 2, 2),
        "F.unfold 3x3": (lambda x: F.unfold(x, 3, padding=1), ((2, 32, 56, 56),)),
        "F.unfold 7x7 stride 4": (lambda x: F.unfold(x, 7, padding=3, stride=4), ((2, 16, 56, 56),)),
        "F.fold 3x3": (lambda x: F.fold(x, 56, 3, padding=1), ((2, 32 * 9, 56 * 56),)),
        "Tensor.unfold 400, 160": (lambda x: x.unfold(1, 400, 160) * 2, ((8, 16000),)),
        "Tensor.unfold 8, 8": (lambda x: x.unfold(1, 8, 8) * 2, ((64, 16384),)),
        "x[..., ::2, ::2]": (lambda x: x[..., ::2, ::2] * 2, (image,)),
        "four strided slices joined": (
            lambda x: torch.cat([x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]], 1),
            (image,),
        ),
        "x[..., 3:, 5:]": (lambda x: x[..., 3:, 5:] * 2, (image,)),
        "roll": (lambda x: torch.roll(x, (3, -2), (1, 2)) * 2, ((8, 56, 56, 96),)),
        "flip": (lambda x: x.flip(2, 3) * 2, (image,)),
        "x[:, arange(..., -1)]": (lambda x: x[:, torch.arange(x.shape[1] - 1, -1, -1)] * 2, (image,)),
        "avg_pool2d 2": (lambda x: F.avg_pool2d(x, 2), (image,)),
        "avg_pool2d 3, stride 1": (lambda x: F.avg_pool2d(x, 3, 1, 1), (image,)),
        "adaptive_avg_pool2d 7 of 17": (lambda x: F.adaptive_avg_pool2d(x, 7), ((8, 128, 17, 17),)),
        "adaptive_avg_pool2d 1": (lambda x: F.adaptive_avg_pool2d(x, 1), (image,)),
        "channel shuffle": (_shuffle, (image,)),
        "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2) * 2, (image,)),
        "diagonal": (lambda x: x.diagonal(0, 1, 2) * 2, ((32, 256, 256),)),
        "as_strided windows": (lambda x: x.as_strided((8, 98, 400), (16000, 160, 1)) * 2, ((8, 16000),)),
        "repeat_interleave 3": (lambda x: x.repeat_interleave(3, 1) * 2, (image,)),
    }  # fmt: skip


def given() -> dict[str, Case]:
    """Where each element goes is data. Shapes stand for random tensors."""

    def ids(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape)

    places = ids(64 * 64, 2, 64, 4096)
    return {
        "embedding 30,000 x 256, 1,024 ids": (lambda w, i: F.embedding(i, w), ((30_000, 256), ids(30_000, 8, 128))),
        "embedding 1,000 x 64, 20,000 ids": (lambda w, i: F.embedding(i, w), ((1000, 64), ids(1000, 20_000))),
        "x[i], 4,096 rows of 256": (lambda x, i: x[i] * 2, ((4096, 256), ids(4096, 4096))),
        "x[i, j], 1 M of 1 M": (lambda x, i, j: x[i, j] * 2, ((1024, 1024), ids(1024, 1 << 20), ids(1024, 1 << 20))),
        "x[:, i], columns": (lambda x, i: x[:, i] * 2, ((512, 1024), ids(1024, 2048))),
        "gather along the last dim": (lambda x, i: x.gather(-1, i) * 2, ((2, 64, 4096), places)),
        "gather along the first dim": (lambda x, i: x.gather(0, i) * 2, ((1024, 256), ids(1024, 4096, 256))),
        "index_select, rows": (lambda x, i: x.index_select(0, i) * 2, ((4096, 256), ids(4096, 8192))),
        "index_select, columns": (lambda x, i: x.index_select(1, i) * 2, ((512, 1024), ids(1024, 2048))),
        "scatter_add, rows of a graph": (
            lambda x, i: torch.zeros(2000, 64).scatter_add(0, i[:, None].expand(-1, 64), x * 2),
            ((20_000, 64), ids(2000, 20_000)),
        ),
        "scatter_add, last dim": (
            lambda x, i: torch.zeros(2, 64, 4096).scatter_add(-1, i, x * 2), ((2, 64, 4096), places),
        ),
        "scatter_add into 10 M": (
            lambda x, i: torch.zeros(10_000_000).scatter_add(0, i, x * 2), ((1 << 20,), ids(10_000_000, 1 << 20)),
        ),
        "index_add": (
            lambda x, i: torch.zeros(2000, 64).index_add(0, i, x * 2), ((20_000, 64), ids(2000, 20_000)),
        ),
        "index_put, accumulated": (
            lambda x, i: torch.zeros(2000, 64).index_put((i,), x * 2, accumulate=True),
            ((20_000, 64), ids(2000, 20_000)),
        ),
        "index_put of single elements": (
            lambda x, i, j: torch.zeros(1024, 1024).index_put((i, j), x * 2, accumulate=True),
            ((1 << 18,), ids(1024, 1 << 18), ids(1024, 1 << 18)),
        ),
        "scatter_reduce amax": (
            lambda x, i: torch.zeros(2, 64, 4096).scatter_reduce(-1, i, x * 2, "amax"), ((2, 64, 4096), places),
        ),
        "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), ((2, 64, 64, 64),)),
        "cross_entropy": (F.cross_entropy, ((512, 1000), ids(1000, 512))),
    }  # fmt: skip


def measure(function: Callable[..., torch.Tensor], args: tuple[Any, ...], seconds: float) -> dict[str, Any]:
    """The fastest of alternating steps and of their forward parts, in milliseconds, and what was generated."""
    torch.manual_seed(0)
    x, *rest = (torch.randn(a) if isinstance(a, tuple) else a for a in args)
    x.requires_grad_()
    compiled = compile_api.compile(function)
    grad = torch.randn(function(x, *rest).shape)

    def step(call: Callable[..., torch.Tensor]) -> tuple[float, float, torch.Tensor]:
        x.grad = None
        start = time.perf_counter()
        out = call(x, *rest)
        middle = time.perf_counter()
        out.backward(grad)
        end = time.perf_counter()
        assert x.grad is not None
        return 1e3 * (middle - start), 1e3 * (end - start), x.grad

    for _ in range(2):
        torch.testing.assert_close(step(compiled)[2], step(function)[2], rtol=1e-3, atol=1e-3)
    times: dict[str, list[tuple[float, float]]] = {"eager": [], "quintet": []}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times["eager"]) < 7:
        for name, call in (("eager", function), ("quintet", compiled)):
            times[name].append(step(call)[:2])
    record: dict[str, Any] = {}
    for name, found in times.items():
        record[name] = round(min(t for _, t in found), 3)
        record[f"{name} forward"] = round(min(t for t, _ in found), 3)
    record["ratio"] = round(record["eager"] / record["quintet"], 2)
    report = compiled.report()
    record["kernels"], record["externs"] = len(report.kernels), [e.name for e in report.externs]
    record["fallbacks"] = [r.reason for r in report.fallbacks]
    return record


def _keep_pages() -> None:
    """Let glibc's heap keep what is freed, so that no call is charged with the mapping of another's pages."""
    trim_threshold, mmap_threshold = -1, -3
    library = ctypes.CDLL(None)
    library.mallopt(trim_threshold, 1 << 30)
    library.mallopt(mmap_threshold, 32 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of the cases to run")
    parser.add_argument("--seconds", type=float, default=0.5, help="per case")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    _keep_pages()
    facts = {
        "command": " ".join(["python", "benchmarks/cpu_gradients.py", *sys.argv[1:]]), "torch": torch.__version__,
        "python": platform.python_version(), "hardware": hardware("cpu"), "threads": options.threads,
        "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip
    print(f"{'ms per step, of it forward':36}{'eager':>18}{'quintet':>18}{'speed':>8}  kernels")
    for name, (function, args) in {**known(), **given()}.items():
        if options.only and not any(part in name for part in options.only):
            continue
        record = measure(function, args, options.seconds)
        shown = "".join(f"{record[s]:9.3f} ({record[s + ' forward']:6.3f})" for s in ("eager", "quintet"))
        extra = "".join(f" {e}" for e in record["externs"]) + (" FELL BACK" if record["fallbacks"] else "")
        print(f"{name:36}{shown}{record['ratio']:8.2f}  {record['kernels']}{extra}", flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps({"case": name, **record, **facts}) + "\n")


if __name__ == "__main__":
    main()
