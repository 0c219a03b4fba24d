"""Eager against Quintet on a GPU, many models in one process: ``gpu_models.py bert:batch=16,length=512``.

For a quick look with little device time; ``bench.py`` measures every cell in a process of its own. Prints per model
the first call, steady times, the error of both against float32, and with ``--profile`` the kernels that take longest.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "integration-tests"))

import zoo

import compile_api


def timed(step: Any, seconds: float = 0.6) -> float:
    """Median milliseconds per call, calls timed in bunches of five."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        for _ in range(5):
            step()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) / 5)
    return sorted(times)[len(times) // 2]


def profile(step: Any, rows: int) -> None:
    """Print the kernels that take longest."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CUDA]) as run:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    found = sorted(run.key_averages(), key=lambda e: -e.self_device_time_total)[:rows]
    for e in found:
        print(f"    {e.self_device_time_total / 3e3:8.3f} ms {e.count // 3:5d}x  {e.key[:110]}")


def measure(text: str, dtype: torch.dtype, rows: int, mode: str | None, train: bool) -> dict[str, Any]:
    """One model: ``name:key=value,...``. Returns the record."""
    name, _, rest = text.partition(":")
    settings = {k: json.loads(v) for k, v in (p.split("=") for p in rest.split(",") if p)}
    case = zoo.build(name, **settings)
    module = isinstance(case.model, torch.nn.Module)

    def move(t: torch.Tensor) -> torch.Tensor:
        return t.to("cuda", dtype if t.is_floating_point() else None)

    if module:
        case.model.to("cuda", dtype).train(train)
    case.args = tuple(move(t) for t in case.args)
    case.kwargs = {k: move(t) for k, t in case.kwargs.items()}

    def call(model: Any) -> Any:
        if not train:
            with torch.no_grad():
                return zoo.tensors(model(*case.args, **case.kwargs))
        case.model.zero_grad(set_to_none=True)
        out = zoo.tensors(model(*case.args, **case.kwargs))
        sum(t.float().square().mean() for t in out if t.requires_grad).backward()
        return [p.grad for p in case.model.parameters() if p.grad is not None]

    expected = call(case.model)
    torch.cuda.reset_peak_memory_stats()
    eager = timed(lambda: call(case.model))
    eager_peak = torch.cuda.max_memory_allocated()
    compiled = compile_api.compile(case.model, mode=mode)
    start = time.perf_counter()
    got = call(compiled)
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    worst = max((float((a.float() - b.float()).abs().max() / b.float().abs().max().clamp_min(1e-9))
                 for a, b in zip(got, expected, strict=True) if a.is_floating_point()), default=0.0)  # fmt: skip
    torch.cuda.reset_peak_memory_stats()
    ours = timed(lambda: call(compiled))
    peak = torch.cuda.max_memory_allocated()
    report = compiled.report()
    kind = "train " if train else ""
    print(f"{text} {kind}first {first:.2f} s  eager {eager:.3f} ms  ours {ours:.3f} ms  "
          f"x{eager / ours:.2f}  difference {worst:.2e}  peak {eager_peak >> 20} -> {peak >> 20} MiB", flush=True)  # fmt: skip
    print(f"    graphs {len(report.graphs)} kernels {len(report.kernels)} externs {sum(report.extern_counts().values())} "
          f"fallbacks {[f.reason[:300] for f in report.fallbacks][:3]} breaks {len(report.breaks)}")  # fmt: skip
    print("    " + " ".join(f"{k}={v:.2f}" for k, v in report.seconds.items() if v > 0.05))
    start = time.perf_counter()
    for _ in range(10):
        call(compiled)
    print(f"    host {(time.perf_counter() - start) * 100:.3f} ms per call")
    torch.cuda.synchronize()
    if rows:
        profile(lambda: call(compiled), rows)
    return {
        "model": text, "dtype": str(dtype), "mode": mode, "train": train, "first_call_seconds": round(first, 3),
        "eager_ms": round(eager, 4), "quintet_ms": round(ours, 4), "speedup": round(eager / ours, 3), "difference": worst,
        "eager_peak_bytes": eager_peak, "quintet_peak_bytes": peak, "kernels": len(report.kernels),
        "fallbacks": [f.reason for f in report.fallbacks], "device": torch.cuda.get_device_name(),
        "torch": torch.__version__, "python": sys.version.split()[0],
    }  # fmt: skip


def bandwidth() -> Iterator[dict[str, Any]]:
    """Softmax, layer norm and gelu of 64 M elements, as a share of the bandwidth of a copy: a record for each."""
    for dtype in (torch.bfloat16, torch.float32):
        x = torch.randn(64 << 20, device="cuda", dtype=dtype).view(-1, 1024)
        copy = timed(functools.partial(torch.empty_like(x).copy_, x), 0.3)
        for name, fn in PROGRAMS.items():
            compiled = compile_api.compile(fn)
            torch.testing.assert_close(compiled(x), fn(x), rtol=2e-2, atol=2e-2 if name != "sum" else 1e4)
            ours, eager = timed(functools.partial(compiled, x), 0.2), timed(functools.partial(fn, x), 0.2)
            reasons = [f.reason[:200] for f in compiled.report().fallbacks]
            share = 100 * copy / ours
            print(f"{name:12}{str(dtype)[6:]:10} copy {copy:.4f} eager {eager:.4f} ours {ours:.4f} ms, "
                  f"{share:.0f}% of copy {reasons}", flush=True)  # fmt: skip
            yield {
                "model": f"{name} of {x.numel()} elements", "dtype": str(dtype), "copy_ms": round(copy, 4),
                "eager_ms": round(eager, 4), "quintet_ms": round(ours, 4), "share_of_copy": round(share / 100, 3),
                "fallbacks": reasons, "device": torch.cuda.get_device_name(), "torch": torch.__version__,
            }  # fmt: skip


PROGRAMS = {
    "softmax": lambda x: torch.softmax(x, -1),
    "softmax4096": lambda x: torch.softmax(x.view(-1, 4096), -1),
    "layernorm": lambda x: torch.nn.functional.layer_norm(x, (1024,)),
    "gelu": torch.nn.functional.gelu,
    "sum": lambda x: x.sum(),
    "sum0": lambda x: x.sum(0),
    "transpose": lambda x: x.t().contiguous() + 1,
}


def keep(record: dict[str, Any], out: Path | None) -> None:
    """Append a record to the file, where there is one."""
    if out is not None:
        with out.open("a") as file:
            file.write(json.dumps(record) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="*")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--profile", type=int, default=0, metavar="ROWS")
    parser.add_argument("--mode", default=None)
    parser.add_argument("--train", nargs="*", default=[], metavar="MODEL")
    parser.add_argument("--out", type=Path, help="append a JSON line per model to this file")
    parser.add_argument("--bandwidth", action="store_true")
    options = parser.parse_args()
    if options.bandwidth:
        try:
            for record in bandwidth():
                keep(record, options.out)
        except Exception:
            traceback.print_exc(limit=8)
    for train, models in ((False, options.model), (True, options.train)):
        for text in models:
            try:
                record = measure(text, getattr(torch, options.dtype), options.profile, options.mode, train)
                keep(record, options.out)
            except Exception:
                print(text, "FAILED", flush=True)
                traceback.print_exc(limit=12)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
