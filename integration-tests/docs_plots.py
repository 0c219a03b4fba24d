"""The plots of ``docs/benchmarks.md``, drawn from the records of ``benchmarks/results``.

A plot is a picture and the words below it, which name hardware, versions, date and file as the records do.
``python docs_tables.py`` writes both anew.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from docs_svg import bars

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
DEVICE_TIME = "2026-11-23-h200-bfloat16-device-time-run2.jsonl"
WHOLE_STEPS = "2026-11-25-h100-bfloat16-whole-steps.jsonl"
CPU = "2026-11-21-cpu-float32-onednn.jsonl"
QUIET = "2026-11-21-cpu-float32-quiet.jsonl"
WARM = "2026-11-26-cpu-warm-starts.jsonl"
POLICIES = "2026-11-26-cpu-policies.jsonl"

Row = dict[str, Any]


def records(name: str) -> list[Row]:
    """The lines of a file of results."""
    return [json.loads(line) for line in (RESULTS / name).read_text().splitlines()]


def measured(what: str, *names: str) -> str:
    """Where figures come from: hardware, versions and date of all records of files."""
    rows = [row for name in names for row in records(name)]

    def said(key: str, prefix: str = "") -> str:
        return " and ".join(prefix + v for v in sorted({str(row[key]) for row in rows if row.get(key)}))

    parts = [said("hardware"), said("torch", "torch "), said("triton", "triton "), said("python", "Python "),
             what, said("date"), said("commit", "commit ")]  # fmt: skip
    files = ", ".join(f"[{name}](../benchmarks/results/{name})" for name in names)
    return f"*{'; '.join(filter(None, parts))}. Records: {files}.*"


def geometric_mean(values: Iterable[float]) -> float:
    """The mean of ratios."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs))


def _by_model(rows: Iterable[Row], key: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.get(key) is not None:
            found.setdefault(row["model"], {})[row["stack"]] = row[key]
    return found


def _of_torch_compile(kind: str, name: str = DEVICE_TIME, key: str = "device_ms") -> dict[str, list[float | None]]:
    """Ours over torch.compile's by model, the largest first, and the geometric mean."""
    found = _by_model((r for r in records(name) if r["kind"] == kind), key)
    ratios = {model: v["quintet"] / v["torch"] for model, v in found.items() if {"quintet", "torch"} <= set(v)}
    rows: dict[str, list[float | None]] = {m: [ratios[m]] for m in sorted(ratios, key=lambda m: (-ratios[m], m))}
    return {**rows, "geometric mean": [geometric_mean(ratios.values())]}


_RATIO = "Quintet's over torch.compile's: left of the line Quintet takes less"


def device_time() -> str:
    """Inference on an H200."""
    return bars("Device time of inference", _of_torch_compile("inference"), ["ratio"], "", line=1.0, note=_RATIO)


def device_time_training() -> str:
    """Training on an H200: forward and backward, and whole steps."""
    steps = {f"{m}, whole step": v for m, v in _of_torch_compile("step").items()}
    both = {**_of_torch_compile("training"), **steps}
    return bars("Device time of training", both, ["ratio"], "", line=1.0, note=_RATIO)


def step_memory() -> str:
    """Peaks of whole steps on an H100."""
    rows = _of_torch_compile("step", WHOLE_STEPS, "peak_bytes")
    return bars("Peak memory of whole training steps", rows, ["ratio"], "", line=1.0, note=_RATIO)


def first_calls() -> str:
    """Cold first calls on an H200."""
    found = _by_model((r for r in records(DEVICE_TIME) if r["kind"] == "inference"), "first_call_seconds")
    names = sorted(found, key=lambda m: (-found[m]["torch"], m))
    rows = {m: [found[m]["torch"], found[m]["quintet"]] for m in names}
    return bars("First call, cold caches", rows, ["torch.compile", "Quintet"], "s", logarithmic=True,
                note="the axis is logarithmic")


def cpu() -> str:
    """Inference on two cores: the least of several processes where there are several, with nothing else running where
    torch.compile was measured beside them."""
    found: dict[str, dict[str, float]] = {}
    beside = {row["model"] for row in records(QUIET) if row["stack"] == "torch"}
    quiet = [row for row in records(QUIET) if row["model"] in beside]
    for row in [*(row for row in records(CPU) if row["model"] not in beside), *quiet]:
        times = found.setdefault(row["model"], {})
        times[row["stack"]] = min(row["steady_ms"], times.get(row["stack"], math.inf))
    speeds = {m: [t["eager"] / t["torch"] if "torch" in t else None, t["eager"] / t["quintet"]] for m, t in found.items()}
    rows = {m: speeds[m] for m in sorted(speeds, key=lambda m: (speeds[m][1], m))}
    note = "eager's time over the stack's: right of the line the stack is faster; torch.compile where it was measured"
    return bars("Speed on a CPU", rows, ["torch.compile", "Quintet"], "", line=1.0, note=note)


def warm_starts() -> str:
    """First calls of processes with warm caches."""
    found: dict[str, dict[str, float]] = {}
    for row in records(WARM):
        if row["cache"] == "warm":
            found.setdefault(row["model"], {})[row["stack"]] = row["first"]["least"]
    rows = {m: [t["eager"], t["torch"], t["programs"]] for m, t in found.items()}
    return bars("First call, warm caches", rows, ["eager", "torch.compile", "Quintet"], "s")


def policies() -> str:
    """What policies about bits cost, 32 rows."""
    ways = ("eager", "default", "deterministic", "batch_invariant")
    found: dict[str, dict[str, float]] = {}
    for row in records(POLICIES):
        if row["rows"] == 32:
            found.setdefault(row["model"], {})[row["way"]] = row["ms"]
    rows = {m: [t.get(way) for way in ways] for m, t in found.items()}
    return bars("What policies about bits cost, 32 rows", rows, list(ways), "ms")


#: By name: the picture, and what is said of how it was measured.
PLOTS = {
    "device-time": (device_time, lambda: measured("bfloat16, 24 models, sums of kernels' own times", DEVICE_TIME)),
    "device-time-training": (device_time_training, lambda: measured("bfloat16, sums of kernels' own times", DEVICE_TIME)),
    "step-memory": (step_memory, lambda: measured("bfloat16, AdamW", WHOLE_STEPS)),
    "first-calls": (first_calls, lambda: measured("a process for each cell, compiling beside others", DEVICE_TIME)),
    "cpu": (cpu, lambda: measured("float32, 2 threads, a process for each cell", CPU, QUIET)),
    "warm-starts": (warm_starts, lambda: measured("float32, processor seconds, one thread", WARM)),
    "policies": (policies, lambda: measured("one thread", POLICIES)),
}  # fmt: skip
