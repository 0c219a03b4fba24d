"""``mode="max-autotune"`` and ``"max-autotune-no-cudagraphs"`` beside the default mode on a GPU, and beside torch.compile.

``autotuning.py bert:batch=16,length=512`` prints for each model and mode the first call, the steady time and what won;
``--products`` measures single matrix products with what reads them, ``--against-torch`` also by ``torch.compile``. Every
model and mode has its own process (``--one-process``: all share one, for little device time; first calls then find the
process that compiles kernels running); ``--again`` runs each once more with the caches that the first left.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "integration-tests"))

MODES = ("default", "max-autotune-no-cudagraphs", "max-autotune")
PRODUCTS = ("linear_gelu:4096,4096,4096", "row_silu:1,4096,4096", "linear_gelu:8192,768,3072", "gated:4096,1024,2816")


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


def product_case(text: str) -> tuple[Any, tuple[torch.Tensor, ...]]:
    """A function and its bfloat16 arguments."""
    name, _, sizes = text.partition(":")
    m, k, n = map(int, sizes.split(","))
    generator = torch.Generator("cuda").manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", generator=generator).bfloat16()

    x, w, v, c = random(m, k), random(n, k) / k**0.5, random(n, k) / k**0.5, random(n)
    functional = torch.nn.functional
    if name == "linear_gelu":
        return lambda x, w, c: functional.gelu(functional.linear(x, w, c)), (x, w, c)
    if name == "row_silu":
        return lambda x, w: functional.silu(x @ w.t()), (x, w)
    return lambda x, w, v: functional.silu(x @ w.t()) * (x @ v.t()), (x, w, v)


def model_case(text: str) -> tuple[Any, Any]:
    """A model in bfloat16 and a call of anything that takes its inputs."""
    import zoo

    name, _, rest = text.partition(":")
    case = zoo.build(name, **{k: json.loads(v) for k, v in (p.split("=") for p in rest.split(",") if p)})

    def move(t: torch.Tensor) -> torch.Tensor:
        return t.to("cuda", torch.bfloat16 if t.is_floating_point() else None)

    case.model.to("cuda", torch.bfloat16).eval()
    args, kwargs = tuple(map(move, case.args)), {k: move(t) for k, t in case.kwargs.items()}
    return case.model, lambda model: zoo.tensors(model(*args, **kwargs))


def run_cell(spec: dict[str, Any]) -> dict[str, Any]:
    """One model or product, one mode, one stack."""
    if spec["product"]:
        target, inputs = product_case(spec["model"])

        def call(f: Any) -> Any:
            return [f(*inputs)]
    else:
        target, call = model_case(spec["model"])
    record = dict(spec)
    with torch.no_grad():
        expected = call(target)
        mode = None if spec["mode"] == "default" else spec["mode"]
        if spec["stack"] == "eager":
            compiled = target
        elif spec["stack"] == "torch":
            compiled = torch.compile(target, mode=mode)
        else:
            import compile_api

            compiled = compile_api.compile(target, mode=mode, options=spec.get("options"))
        torch.cuda.synchronize()
        start = time.perf_counter()
        got = call(compiled)
        torch.cuda.synchronize()
        record["first_call_seconds"] = round(time.perf_counter() - start, 3)
        record["difference"] = max(
            float((a.float() - b.float()).abs().max() / b.float().abs().max().clamp_min(1e-9))
            for a, b in zip(got, expected, strict=True)
            if a.is_floating_point()
        )
        record["ms"] = round(timed(lambda: call(compiled)), 4)
    if spec["stack"] == "quintet":
        report = compiled.report()
        record["fallbacks"] = [f.reason[:300] for f in report.fallbacks]
        record["kernels"], record["externs"] = len(report.kernels), sum(report.extern_counts().values())
        record["tunings"] = [
            {"problem": t.problem, "winner": t.winner, "times": dict(t.times), "dropped": dict(t.dropped), "count": n}
            for t, n in unique(report.tunings)
        ]
        record["measured"] = sum(not t.cached for t in report.tunings)
        record["autotune_seconds"] = round(report.seconds.get("inductor.autotune", 0.0), 3)
    record["device"], record["torch"] = torch.cuda.get_device_name(), torch.__version__
    return record


def unique(tunings: list[Any]) -> list[tuple[Any, int]]:
    """Each choice once, with how often it was met."""
    counts = Counter((t.problem, t.winner) for t in tunings)
    first = {}
    for t in tunings:
        first.setdefault((t.problem, t.winner), t)
    return [(t, counts[key]) for key, t in first.items()]


def start_cell(spec: dict[str, Any], cache: str, limit: float) -> dict[str, Any]:
    """Run a cell in a process of its own."""
    environment = dict(os.environ)
    for name in ("QUINTET_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        environment[name] = os.path.join(cache, name)
    try:
        done = subprocess.run([sys.executable, __file__, "--cell", json.dumps(spec)], env=environment,
                              capture_output=True, text=True, timeout=limit, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        return {**spec, "error": f"not finished in {limit} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {**spec, "error": done.stderr[-1500:]}


def run_here(spec: dict[str, Any], cache: str) -> dict[str, Any]:
    """Run a cell of ours in this process, with the caches in a folder."""
    import compile_api
    from inductor_gen.runtime.triton_build import forget_loaded
    from inductor_gen.templates.decisions import Decisions

    compile_api.reset()
    forget_loaded()
    Decisions.forget()
    try:
        return run_cell({**spec, "options": {"cache_dir": cache}}) | {"options": None, "process": "shared"}
    except Exception as error:
        return {**spec, "error": f"{type(error).__name__}: {error}"}


def show(record: dict[str, Any]) -> None:
    """A line for a record, and one for each choice."""
    if "error" in record:
        print(f"{record['model']} {record['stack']} {record['mode']}: {record['error']}", flush=True)
        return
    print(f"{record['model']:28} {record['stack']:8} {record['mode']:27} {'again' if record['again'] else 'cold ':5} first "
          f"{record['first_call_seconds']:6.2f} s  {record['ms']:8.4f} ms  difference {record['difference']:.1e} "
          f"{record.get('fallbacks', '')} measured {record.get('measured', '')}", flush=True)  # fmt: skip
    for t in record.get("tunings", ()) if not record["again"] else ():
        ranked = sorted(t["times"].items(), key=lambda pair: pair[1])
        times = ", ".join(f"{name} {ms:.4f}" for name, ms in ranked[:3])
        usual = next(iter(t["times"].items()), ("", 0.0))
        print(
            f"    {t['count']:3d}x {t['problem']}: {t['winner']} [{times}; usual {usual[1]:.4f}] {t['dropped'] or ''}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="*")
    parser.add_argument("--products", nargs="*", default=None, help="name:m,k,n")
    parser.add_argument("--modes", nargs="+", default=MODES)
    parser.add_argument("--against-torch", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--one-process", action="store_true")
    parser.add_argument("--limit", type=float, default=120)
    parser.add_argument("--out", type=Path, help="append a JSON line per cell to this file")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        print(json.dumps(run_cell(json.loads(options.cell))))
        return
    stacks = ("quintet", "torch") if options.against_torch else ("quintet",)
    products = () if options.products is None else options.products or PRODUCTS
    for model, product in (*((m, False) for m in options.model), *((p, True) for p in products)):
        for stack in stacks:
            for mode in options.modes:
                with tempfile.TemporaryDirectory() as cache:
                    for again in (False, True) if options.again and mode != "default" else (False,):
                        spec = {"model": model, "product": product, "stack": stack, "mode": mode, "again": again}
                        if options.one_process and stack == "quintet":
                            record = run_here(spec, cache)
                        else:
                            record = start_cell(spec, cache, options.limit)
                        show(record)
                        if options.out is not None:
                            with options.out.open("a") as file:
                                file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
