"""Device time, wall time and peak memory of eager, ``torch.compile`` and Quintet: ``device_time.py --out FILE``.

Every cell (model x stack) is a fresh process with caches of its own. ``--jobs`` cells build, compile and warm up beside
each other, then measure one at a time, when none of them uses the GPU any more (a lock that is shared until then): first
calls are therefore of a busy machine, steady figures are not. A cell is of inference, of training (forward and
backward), or of a whole step, that is with ``zero_grad`` and AdamW: eager's is the fused one, ``torch.compile`` gets the
model and ``optimizer.step``, Quintet one function. The largest difference of the results from eager's is kept for
inference, the loss of the tenth step for whole steps; gradients are not compared. Device
time is the sum of the kernels' and copies' own times per call from the profiler, whatever the host does.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "integration-tests")]
CALLS = 5


def device_time(step: Callable[[], object]) -> tuple[float, int, dict[str, float]]:
    """Milliseconds of device time a call (median of three profiles), launches a call, and the longest kernels' ms."""
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    totals = []
    for _ in range(3):
        with record(activities=[ProfilerActivity.CUDA], acc_events=True) as run:
            for _ in range(CALLS):
                step()
            torch.cuda.synchronize()
        events = [e for e in run.key_averages() if e.self_device_time_total > 0]
        totals.append((sum(e.self_device_time_total for e in events) / 1e3 / CALLS, events))
    total, events = sorted(totals, key=lambda pair: pair[0])[1]
    longest = sorted(events, key=lambda e: -e.self_device_time_total)[:12]
    launches = sum(e.count for e in events) // CALLS
    return total, launches, {f"{e.count // CALLS} x {e.key[:90]}": round(e.self_device_time_total / 1e3 / CALLS, 4) for e in longest}


def wall_time(step: Callable[[], object], seconds: float) -> float:
    """Median milliseconds a call, calls timed in bunches of five."""
    import torch

    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(CALLS):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begun) / CALLS * 1e3)
    return statistics.median(times)


def measure(name: str, stack: str, mode: str | None, kind: str, seconds: float, lock: str, autocast: bool) -> dict[str, Any]:
    """One cell, in this process."""
    with open(lock, "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_SH)
        return _measure_alone(name, stack, mode, kind, seconds, lambda: fcntl.flock(turn, fcntl.LOCK_EX), autocast)


def _measure_alone(
    name: str, stack: str, mode: str | None, kind: str, seconds: float, alone: Callable[[], None], autocast: bool
) -> dict[str, Any]:
    """One cell; ``alone`` returns when no other cell uses the GPU."""
    import torch
    import zoo
    from device_models import MODELS

    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
    train, dtype = kind != "inference", torch.float32 if autocast else torch.bfloat16
    move = lambda t: t.to("cuda", dtype if t.is_floating_point() else None)
    if isinstance(model, torch.nn.Module):
        model.to("cuda", dtype).train(train)
    args, kwargs = tuple(move(t) for t in args), {k: move(t) for k, t in kwargs.items()}
    if stack == "eager":
        compile_: Callable[..., Any] = lambda function: function
    elif stack == "torch":
        compile_ = functools.partial(torch.compile, mode=mode)
    else:
        import compile_api

        compile_ = functools.partial(compile_api.compile, mode=mode)
    if kind == "step":
        compiled, call = _whole_step(model, args, kwargs, stack, compile_, autocast)
    else:
        compiled = compile_(model)

        def call(target: Any) -> list[torch.Tensor]:
            if not train:
                with torch.no_grad():
                    return zoo.tensors(target(*args, **kwargs))
            model.zero_grad(set_to_none=True)
            loss(target(*args, **kwargs)).backward()
            return []

    begun = time.perf_counter()
    got = [t.detach().clone() for t in call(compiled)]
    torch.cuda.synchronize()
    first = time.perf_counter() - begun
    expected = call(model) if stack != "eager" and kind != "step" else got
    worst = max((float((a.float() - b.float()).abs().max() / b.float().abs().max().clamp_min(1e-9))
                 for a, b in zip(got, expected, strict=True) if a.is_floating_point()), default=0.0)  # fmt: skip
    del got, expected
    step = lambda: call(compiled) and None
    for _ in range(3 if kind != "step" else 8):
        step()
    last = float(call(compiled)[0]) if kind == "step" else None
    torch.cuda.synchronize()
    alone()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    kept = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    device, launches, longest = device_time(step)
    wall = wall_time(step, seconds)
    found = {"first_call_seconds": round(first, 3), "device_ms": round(device, 4), "wall_ms": round(wall, 4),
             "launches": launches, "peak_bytes": peak, "between_calls_bytes": kept,
             "reserved_bytes": torch.cuda.memory_reserved(), "longest": longest,
             "difference": None if train or stack == "eager" else worst, "loss": last}  # fmt: skip
    if stack == "quintet":
        report = compiled.report()
        found |= {"graphs": len(report.graphs), "breaks": len(report.breaks), "fallbacks": [f.reason[:300] for f in report.fallbacks]}
    return found


def loss(output: Any) -> Any:
    """The mean of what the results' elements are squared."""
    import zoo

    return sum(t.float().square().mean() for t in zoo.tensors(output) if t.requires_grad)


def _whole_step(
    model: Any, args: Any, kwargs: Any, stack: str, compile_: Callable[..., Any], autocast: bool
) -> tuple[Any, Callable[..., Any]]:
    """What is compiled and reported on, and a call of it, which gives the loss."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **({"fused": True} if stack == "eager" else {}))
    part = compile_ if stack == "torch" else lambda function: function
    forward, update = part(model), part(optimizer.step)

    def step() -> Any:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            output = forward(*args, **kwargs)
        found = loss(output)
        found.backward()
        update()
        return found.detach()

    compiled = compile_(step) if stack == "quintet" else step
    return compiled, lambda target: [target()]


def run_cell(cell: tuple[str, str, str], options: argparse.Namespace, folder: str, gpu: int) -> dict[str, Any]:
    """Start the cell's process, with caches and one GPU of its own."""
    name, kind, stack = cell
    own = tempfile.mkdtemp(dir=folder)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu), "QUINTET_CACHE_DIR": f"{own}/quintet",
                   "TORCHINDUCTOR_CACHE_DIR": f"{own}/inductor", "TRITON_CACHE_DIR": f"{own}/triton"}  # fmt: skip
    spec = json.dumps([name, stack, options.mode, kind, options.seconds, f"{folder}/gpu{gpu}", options.autocast])
    try:
        done = subprocess.run([sys.executable, __file__, "--cell", spec], env=environment, capture_output=True, text=True,
                              timeout=options.limit, check=False)  # fmt: skip
        found = json.loads(done.stdout.strip().splitlines()[-1]) if not done.returncode else {"error": done.stderr.strip()[-1500:]}
    except subprocess.TimeoutExpired:
        found = {"error": f"not finished after {options.limit:.0f} s"}
    return {"model": name, "kind": kind, "stack": stack, "mode": options.mode,
            "dtype": "autocast" if options.autocast else "bfloat16", **found}


def table(records: list[dict[str, Any]]) -> str:
    """A row per model: device ms, wall ms and peak MiB of the stacks, and ours over ``torch.compile``'s."""
    rows: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for record in records:
        rows.setdefault((record["model"], record["kind"]), {})[record["stack"]] = record
    lines = ["| model | device ms: eager / torch.compile / Quintet | ratio | wall ms | peak MiB | first s | launches |", "|---|---|---|---|---|---|---|"]
    ratios: list[float] = []
    for (name, kind), stacks in sorted(rows.items(), key=lambda row: (row[0][1], row[0][0])):
        ordered = [stacks.get(stack, {}) for stack in ("eager", "torch", "quintet")]

        def cell(key: str, form: str, scale: float = 1.0, ordered: list[dict[str, Any]] = ordered) -> str:
            return " / ".join(format(r[key] / scale, form) if key in r else "-" for r in ordered)

        ratio = "-"
        if "device_ms" in ordered[1] and "device_ms" in ordered[2]:
            ratios.append(ordered[2]["device_ms"] / ordered[1]["device_ms"])
            ratio = f"{ratios[-1]:.2f}"
        label = name if kind == "inference" else f"{name}, {kind}"
        lines.append(f"| {label} | {cell('device_ms', '.3f')} | {ratio} | {cell('wall_ms', '.3f')} | "
                     f"{cell('peak_bytes', '.0f', 1 << 20)} | {cell('first_call_seconds', '.1f')} | {cell('launches', '.0f')} |")  # fmt: skip
    if ratios:
        lines.append(f"| geometric mean | | {statistics.geometric_mean(ratios):.3f} | | | | |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", help="names in device_models.py; all by default")
    parser.add_argument("--train", nargs="*", help="models whose training step is measured; the five of TRAINED by default")
    parser.add_argument("--step", nargs="*", help="models whose whole step is measured; the six of STEPPED by default")
    parser.add_argument("--autocast", action="store_true", help="parameters in float32, under autocast")
    parser.add_argument("--stack", nargs="+", default=["torch", "eager", "quintet"], choices=("eager", "torch", "quintet"))
    parser.add_argument("--mode", help="the mode of compile()")
    parser.add_argument("--jobs", type=int, default=4, help="cells that build and compile beside each other on a GPU")
    parser.add_argument("--gpus", type=int, nargs="+", default=[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="how long to measure a cell's wall time")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which a cell is given up")
    parser.add_argument("--out", type=Path, help="append a JSON line per cell to this file")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        print(json.dumps(measure(*json.loads(options.cell))))
        return
    from bench import facts
    from device_models import MODELS, STEPPED, TRAINED

    options.device = "cuda"
    known = facts(options) | {"command": "python benchmarks/device_time.py " + " ".join(sys.argv[1:])}
    infer = list(MODELS) if options.model is None else options.model
    train = list(TRAINED) if options.train is None else options.train
    step = list(STEPPED) if options.step is None else options.step
    kinds = ((step, "step"), (train, "training"), (infer, "inference"))
    cells = [(name, kind, stack) for stack in options.stack for names, kind in kinds for name in names]
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs * len(options.gpus)) as pool:
        # All stacks of a model on one GPU: the rest of the machine is the same for them.
        gpu_of = {key: options.gpus[i % len(options.gpus)] for i, key in enumerate(dict.fromkeys((n, t) for n, t, _ in cells))}
        at_once = options.jobs * len(options.gpus)
        for begin in range(0, len(cells), at_once):  # a cell that began while others wait to be alone would hold them up
            batch = cells[begin : begin + at_once]
            for record in pool.map(lambda cell: run_cell(cell, options, folder, gpu_of[cell[:2]]), batch):
                records.append({**record, **known})
                print(json.dumps({k: v for k, v in record.items() if k != "longest"}), flush=True)
                if options.out:
                    with options.out.open("a") as file:
                        file.write(json.dumps(records[-1]) + "\n")
    print(table(records))


if __name__ == "__main__":
    main()
