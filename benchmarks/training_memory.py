"""Memory and time of a training step: bytes kept for the backward pass, the peak of live bytes, milliseconds, per stack.

    python benchmarks/training_memory.py [--models bert,resnet50] [--out benchmarks/results/training_memory.jsonl]

One subprocess per cell; one JSON line each. ``saved_bytes`` counts what autograd holds after the forward pass, without
parameters, buffers and inputs; ``peak_bytes`` is the highest sum of live allocations during one step (forward, backward;
gradients start as None), from the CPU allocator's events, above what was live before it; ``peaks`` has it for three
steps. ``step_ms`` is the median step.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import platform
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parents[1]
STACKS = {
    "eager": None,
    "default": {"partition": "default"},
    "min-cut": {},
    "budget 0.5": {"memory_budget": 0.5},
}


def build(model: str):
    """The training module of a zoo model at its full size, and a function that runs it to a loss."""
    sys.path.insert(0, str(ROOT / "integration-tests"))
    import zoo

    settings = {"batch": 2} if model.startswith("res") else {}
    case = zoo.build(model, **settings)
    case.model.train()

    def loss(module):
        outputs = zoo.tensors(module(*case.args, **case.kwargs))
        return sum(t.square().mean() for t in outputs if t.requires_grad)

    return case, loss


def compiled(module, settings):
    """The module compiled by Quintet, with a partitioner by name or a memory budget."""
    import compile_api

    settings = dict(settings)
    if settings.pop("partition", None) != "default":
        return compile_api.compile(module, options=settings)
    import aot_autograd

    aot_autograd.min_cut_partition = aot_autograd.default_partition
    return compile_api.compile(module)


def saved_bytes(module, loss, outside) -> int:
    """Bytes of distinct storages that autograd keeps for the backward pass."""
    import torch

    ignored = {t.untyped_storage()._cdata for t in outside}
    found = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in ignored:
            found[storage._cdata] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = loss(module)
    total = sum(size for size, _ in found.values())
    result.backward()
    return total


def peak_bytes(step) -> int:
    """The highest sum of live allocations while ``step`` runs."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def cell(model: str, stack: str) -> dict:
    """One measurement."""
    import torch

    torch.manual_seed(0)
    case, loss = build(model)
    module = case.model if STACKS[stack] is None else compiled(case.model, STACKS[stack])
    outside = [*case.model.parameters(), *case.model.buffers()]
    outside += [a for a in [*case.args, *case.kwargs.values()] if isinstance(a, torch.Tensor)]

    def step():
        case.model.zero_grad(set_to_none=True)
        loss(module).backward()

    step()
    saved = saved_bytes(module, loss, outside)
    peaks = []
    for _ in range(3):
        case.model.zero_grad(set_to_none=True)
        peaks.append(peak_bytes(lambda: loss(module).backward()))
    record = {"model": model, "stack": stack, "saved_bytes": saved, "peak_bytes": max(peaks), "peaks": peaks}
    record["step_ms"] = round(1e3 * steady(step), 1)
    if STACKS[stack] is not None:
        record["fallbacks"] = len(module.report().fallbacks)
    return record | {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
    }


def steady(step, seconds: float = 3.0) -> float:
    """The median time of a step, of at least five."""
    step()
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Run the cells and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="bert,resnet18,resnet50,gpt2,vit_b_16,t5_encoder")
    parser.add_argument("--out", default=str(ROOT / "benchmarks/results/training_memory.jsonl"))
    parser.add_argument("--cell", nargs=2, metavar=("MODEL", "STACK"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        print(json.dumps(cell(*options.cell)))
        return
    from bench import hardware

    records = []
    for model in options.models.split(","):
        for stack in STACKS:
            done = subprocess.run(
                [sys.executable, __file__, "--cell", model, stack], capture_output=True, text=True, timeout=600
            )
            if done.returncode:
                sys.exit(done.stderr)
            r = json.loads(done.stdout.splitlines()[-1]) | {"hardware": hardware("cpu")}
            records.append(r)
            saved, peak = r["saved_bytes"] / 1e6, r["peak_bytes"] / 1e6
            print(f"{model:12}{stack:12}saved {saved:8.1f} MB  peak {peak:8.1f} MB  {r['step_ms']:8.1f} ms", flush=True)
    path = pathlib.Path(options.out)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


if __name__ == "__main__":
    main()
