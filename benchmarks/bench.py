"""Measure stacks against each other: ``python benchmarks/bench.py --model bert resnet50 --stack eager torch quintet``.

Every cell (model x stack) is one fresh subprocess with cold caches of its own, so that no cell warms another. A cell
measures the first call, then the steady time per call (median over rounds), the peak memory, and the largest error of
the output against eager's. One JSON line per cell goes to standard output and, with ``--out``, to a file; a table of
ratios follows on standard error.

CPU time is read from ``time.perf_counter``, GPU time from CUDA events.
"""

from __future__ import annotations

import argparse
import datetime
import fcntl
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
STACKS = ("eager", "torch", "quintet")
DTYPES = ("float32", "bfloat16", "float16")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["sine", "bert", "resnet50"], metavar="NAME[:KEY=VALUE,...]",
                        help="names in the model zoo, each with settings of its own if need be: bert:batch=16,length=512")  # fmt: skip
    parser.add_argument("--stack", nargs="+", default=list(STACKS), choices=STACKS)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of all models: batch=32")
    parser.add_argument("--mode", default=None, help="the mode of compile()")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--train", action="store_true", help="forward, loss and backward instead of inference")
    parser.add_argument("--threads", type=int, default=None, help="torch.set_num_threads")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to measure the steady state of a cell")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which a cell is given up")
    parser.add_argument("--warm", action="store_true", help="share one cache per stack, filled by an unmeasured run")
    parser.add_argument("--repeat", type=int, default=1, help="cells per model and stack, interleaved")
    parser.add_argument("--ahead", type=int, default=0, metavar="N",
                        help="start up to N further cells early: they import and build their models while another is "
                             "measured, and wait for its end before they touch the device")  # fmt: skip
    parser.add_argument("--out", type=Path, default=None, help="append the JSON lines to this file")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def settings_of(pairs: list[str]) -> dict[str, Any]:
    """``["batch=32", "small=True"]`` as keyword arguments."""
    result: dict[str, Any] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        result[key] = json.loads(value.lower())
    return result


# --- one cell, in its own process -----------------------------------------------------------------------------------


def run_cell(spec: dict[str, Any]) -> dict[str, Any]:
    """Measure one model on one stack in this process."""
    sys.path.insert(0, str(HERE.parent / "integration-tests"))
    import torch
    import zoo

    if spec["threads"]:
        torch.set_num_threads(spec["threads"])
    dtype = getattr(torch, spec["dtype"])
    case = zoo.build(spec["model"], **spec["settings"])
    start = time.perf_counter()
    if spec["stack"] == "torch":
        import torch._dynamo
    dynamo_seconds = time.perf_counter() - start
    if spec["turn"]:
        _wait_for_turn(spec["turn"], spec["limit"])
    move = lambda t: t.to(spec["device"], dtype if t.is_floating_point() else None)
    if isinstance(case.model, torch.nn.Module):
        case.model.to(spec["device"], dtype)
        case.model.train(spec["train"])
    case.args = tuple(move(t) for t in case.args)
    case.kwargs = {name: move(t) for name, t in case.kwargs.items()}

    start = time.perf_counter()
    compiled = _compile(spec, case.model)
    imported = time.perf_counter() - start + dynamo_seconds

    step = _training_step(zoo, case, compiled) if spec["train"] else _inference_step(zoo, case, compiled)
    with torch.set_grad_enabled(spec["train"]):
        first, output = _timed(torch, spec["device"], step)
        output = [t.clone() for t in output]  # torch.compile's CUDA graphs write over their outputs
        expected = [] if spec["train"] else zoo.tensors(case())
        _reset_peak(torch, spec["device"])
        steady, rounds = _steady(torch, spec["device"], step, spec["seconds"])
        peak = _peak_bytes(torch, spec["device"])
    difference = max((float((a.double() - b.double()).abs().max()) for a, b in zip(output, expected) if a.numel()), default=0.0)
    record = {
        "import_seconds": round(imported, 4), "first_call_seconds": round(first, 4), "steady_ms": steady * 1e3,
        "rounds": rounds, "peak_bytes": peak, "largest_difference": difference,
    }  # fmt: skip
    if spec["stack"] == "quintet":
        record["report"] = _summary(compiled.report())
    return record


def _wait_for_turn(path: str, limit: float) -> None:
    """Wait until no other cell measures; this one then ends within ``limit`` seconds, or is ended."""
    turn = open(path, "w")  # noqa: SIM115 - held, and with it the lock, until the process ends
    fcntl.flock(turn, fcntl.LOCK_EX)
    _held.append(turn)
    signal.setitimer(signal.ITIMER_REAL, limit)


_held: list[Any] = []


def _compile(spec: dict[str, Any], model: Any) -> Any:
    """The stack's callable for ``model``."""
    if spec["stack"] == "eager":
        return model
    if spec["stack"] == "torch":
        import torch

        if spec["mode"]:
            return torch.compile(model, mode=spec["mode"])
        return torch.compile(model)
    import compile_api

    return compile_api.compile(model, mode=spec["mode"])


def _inference_step(zoo: Any, case: Any, compiled: Any) -> Any:
    return lambda: zoo.tensors(compiled(*case.args, **case.kwargs))


def _training_step(zoo: Any, case: Any, compiled: Any) -> Any:
    def step() -> list[Any]:
        for parameter in case.model.parameters():
            parameter.grad = None
        outputs = zoo.tensors(compiled(*case.args, **case.kwargs))
        sum(t.float().square().mean() for t in outputs if t.requires_grad).backward()
        return []

    return step


def _timed(torch: Any, device: str, step: Any) -> tuple[float, Any]:
    _synchronise(torch, device)
    start = time.perf_counter()
    output = step()
    _synchronise(torch, device)
    return time.perf_counter() - start, output


def _steady(torch: Any, device: str, step: Any, seconds: float) -> tuple[float, int]:
    """Median seconds per call. On a GPU, calls are timed in bunches between two events, without waiting in between."""
    for _ in range(3):
        step()
    _synchronise(torch, device)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        if device.startswith("cuda"):
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            first.record()
            for _ in range(10):
                step()
            last.record()
            last.synchronize()
            times.append(first.elapsed_time(last) / 10e3)
        else:
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2], len(times)


def _synchronise(torch: Any, device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _reset_peak(torch: Any, device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()


def _peak_bytes(torch: Any, device: str) -> int | None:
    """Peak bytes of the CUDA allocator; on the CPU the process's high-water mark, which includes compilation."""
    if device.startswith("cuda"):
        return int(torch.cuda.max_memory_allocated())
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _summary(report: Any) -> dict[str, Any]:
    return {
        "graphs": len(report.graphs), "breaks": len(report.breaks), "kernels": len(report.kernels),
        "externs": report.extern_counts(), "fallbacks": [item.reason for item in report.fallbacks],
        "seconds": {name: round(value, 4) for name, value in report.seconds.items()},
    }  # fmt: skip


# --- the driver -----------------------------------------------------------------------------------------------------


def start_cell(spec: dict[str, Any], cache: str, limit: float) -> dict[str, Any]:
    """Run one cell in a fresh process whose caches live in ``cache``."""
    environment = dict(os.environ)
    for name, folder in (("QUINTET_CACHE_DIR", "quintet"), ("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("TRITON_CACHE_DIR", "triton")):
        environment[name] = os.path.join(cache, folder)
    try:
        done = subprocess.run([sys.executable, __file__, "--cell", json.dumps(spec)], env=environment,
                              capture_output=True, text=True, timeout=None if spec["turn"] else limit, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"not finished after {limit:.0f} s"}
    if done.returncode == -signal.SIGALRM:
        return {"error": f"not finished after {limit:.0f} s"}
    if done.returncode:
        return {"error": done.stderr.strip()[-2000:]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def hardware(device: str) -> str:
    """The processor's (and GPU's) name."""
    name = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    name = f"{name}, {os.cpu_count()} cores"
    if device.startswith("cuda"):
        import torch

        name += f", {torch.cuda.get_device_name()}"
    return name


def facts(options: argparse.Namespace) -> dict[str, Any]:
    """What a result must say to be read later."""
    from importlib.metadata import PackageNotFoundError, version

    def installed(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    commit = subprocess.run(["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "date": datetime.date.today().isoformat(), "command": "python benchmarks/bench.py " + " ".join(sys.argv[1:]),
        "hardware": hardware(options.device), "python": platform.python_version(), "commit": commit.stdout.strip(),
        **{name: installed(name) for name in ("torch", "triton", "transformers", "torchvision")},
    }  # fmt: skip


def cells(options: argparse.Namespace) -> list[tuple[int, dict[str, Any]]]:
    """``(round, spec)`` of every cell, in order."""
    found = []
    for round_ in range(options.repeat):
        for text in options.model:
            model, _, own = text.partition(":")
            settings = settings_of([*options.set, *filter(None, own.split(","))])
            for stack in options.stack:
                spec = {
                    "model": model, "stack": stack, "settings": settings, "mode": options.mode,
                    "dtype": options.dtype, "device": options.device, "train": options.train,
                    "threads": options.threads, "seconds": options.seconds,
                }  # fmt: skip
                found.append((round_, spec))
    return found


def main(argv: list[str] | None = None) -> None:
    options = arguments(argv)
    if options.cell:
        print(json.dumps(run_cell(json.loads(options.cell))))
        return
    known = facts(options)
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1 + options.ahead) as pool:
        turn = os.path.join(folder, "turn") if options.ahead else None

        def measure(cell: tuple[int, dict[str, Any]]) -> dict[str, Any]:
            round_, spec = cell
            name = f"{spec['model']}-{spec['stack']}-{'-'.join(f'{k}={v}' for k, v in spec['settings'].items())}"
            cache = os.path.join(folder, name if options.warm else f"{name}-{round_}")
            spec = {**spec, "turn": turn, "limit": options.limit}
            if options.warm and round_ == 0:
                start_cell({**spec, "seconds": 0.0}, cache, options.limit)
            return start_cell(spec, cache, options.limit)

        todo = cells(options)
        for (_, spec), result in zip(todo, pool.map(measure, todo), strict=True):
            record = {**spec, "warm": options.warm, **result, **known}
            records.append(record)
            line = json.dumps(record)
            print(line, flush=True)
            if options.out:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                with options.out.open("a") as stream:
                    stream.write(line + "\n")
    print(table(records), file=sys.stderr)


def table(records: list[dict[str, Any]]) -> str:
    """First call and steady time per model, as figures and as ratios to eager and ``torch.compile``."""
    lines = [f"{'model':18}{'stack':9}{'first s':>9}{'steady ms':>11}{'x eager':>9}{'first / torch':>15}"]
    for record in records:
        if "error" in record:
            lines.append(f"{record['model']:18}{record['stack']:9} {record['error'].splitlines()[-1][:80]}")
            continue
        key = (record["model"], record["settings"])
        same = [r for r in records if (r["model"], r["settings"]) == key and "error" not in r]
        eager = next((r["steady_ms"] for r in same if r["stack"] == "eager"), None)
        other = next((r["first_call_seconds"] for r in same if r["stack"] == "torch"), None)
        speed = f"{eager / record['steady_ms']:.2f}" if eager else "-"
        first = f"{record['first_call_seconds'] / other:.3f}" if other else "-"
        lines.append(f"{record['model']:18}{record['stack']:9}{record['first_call_seconds']:9.2f}{record['steady_ms']:11.3f}{speed:>9}{first:>15}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
