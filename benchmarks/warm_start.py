"""From a process's start to its first output: ``python benchmarks/warm_start.py --out results.jsonl``.

Every measurement is a fresh process with one thread that builds a model, calls it once and ends. Stacks: ``eager``,
``torch`` (``torch.compile``), ``kernels`` (Quintet without ``program_cache``: compiled kernels are kept) and ``programs``
(Quintet as it is by default). ``cold``: the stack's cache folder is empty; ``warm``: another process has run before.
A JSON line holds, least and median over ``--repeat`` processes, made in turn for all stacks,

- ``first``: processor seconds (user and system, compilers that it starts included) of the first call, with the stack's
  imports. A model's libraries are imported and its weights are made before;
- ``wall``: the same in elapsed seconds;
- ``start``: elapsed seconds from the process's start to the end of that call;
- ``stages``: the report's seconds of capture, aot, lower and inductor together;
- ``beyond``: ``first`` less eager's least (on a GPU: ``wall``).

Modules are read as bytecode, as those of installed packages are. With ``--device cuda`` the device is brought up before the first call (a product of two matrices).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import facts
from first_calls import _first_tensor, _processor_seconds

HERE = Path(__file__).resolve().parent
STACKS = ("eager", "torch", "kernels", "programs")
FIGURES = ("first", "wall", "start", "stages")
#: A model of the zoo, its settings, and whether gradients are taken.
MODELS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "bert": ("bert", {}, False),
    "bert training": ("bert", {}, True),
    "resnet50": ("resnet50", {}, False),
    "densenet121": ("densenet121", {}, False),
    "bert small": ("bert", {"small": True, "length": 16}, False),
    "llama 24": ("llama", {"small": True, "length": 16, "layers": 24}, False),
}
#: Phases whose names begin so are a stage's work.
STAGES = ("capture", "aot", "lower", "pass", "inductor", "codegen")


def measure(name: str, stack: str, began: float, device: str) -> dict[str, Any]:
    """The figures of one first call in this process, which began at that time of the system's clock."""
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, str(HERE.parent / "integration-tests"))
    import zoo

    key, settings, train = MODELS[name]
    case = zoo.build(key, **settings)
    model = case.model.train(train).to(device)
    args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), (case.args, case.kwargs))
    settle = torch.cuda.synchronize if device == "cuda" else lambda: None
    if device == "cuda":
        torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device)
        settle()
    before, wall = sum(_processor_seconds()), time.perf_counter()
    fn = model
    if stack == "torch":
        fn = torch.compile(model)
    elif stack != "eager":
        import compile_api

        fn = compile_api.compile(model, options={"program_cache": stack == "programs"})
    with torch.set_grad_enabled(train):
        result = fn(*args, **kwargs)
        if train:
            _first_tensor(result).float().square().mean().backward()
    settle()
    found = {
        "first": sum(_processor_seconds()) - before, "wall": time.perf_counter() - wall, "start": time.time() - began,
        "stages": 0.0, "fallbacks": 0, "kernels": 0,
    }  # fmt: skip
    if stack in ("kernels", "programs"):
        report = fn.report()
        found["stages"] = sum(s for phase, s in report.seconds.items() if phase.startswith(STAGES))
        found["fallbacks"], found["kernels"] = len(report.fallbacks), len(report.kernels)
        found["verdict"] = report.verdict
    return found


def process(name: str, stack: str, folder: str, device: str) -> dict[str, Any]:
    """One measurement in a fresh process with its caches in ``folder``."""
    paths = [*map(str, sorted(HERE.parent.glob("packages/*/src"))), *filter(None, [os.environ.get("PYTHONPATH")])]
    sources = os.pathsep.join(paths)
    environment = {
        **os.environ, "PYTHONPATH": sources, "QUINTET_CACHE_DIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder,
        "TRITON_CACHE_DIR": folder + "/triton", "PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, __file__, "--here", name, stack, str(time.time()), device]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} with {stack}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def compared(name: str, stacks: list[str], cache: str, repeat: int, device: str) -> dict[str, list[dict[str, Any]]]:
    """The measurements of each stack, made in turn."""
    found: dict[str, list[dict[str, Any]]] = {stack: [] for stack in stacks}
    with tempfile.TemporaryDirectory() as root:
        if cache == "warm":
            for stack in stacks:
                process(name, stack, f"{root}/{stack}", device)
        for turn in range(repeat):
            for stack in stacks if turn % 2 == 0 else stacks[::-1]:
                folder = f"{root}/{stack}" if cache == "warm" else f"{root}/{stack}-{turn}"
                found[stack].append(process(name, stack, folder, device))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--stack", nargs="+", default=list(STACKS), choices=STACKS)
    parser.add_argument("--cache", nargs="+", default=["cold", "warm"], choices=["cold", "warm"])
    parser.add_argument("--repeat", type=int, default=3, help="processes per stack and line")
    parser.add_argument("--out", type=Path, help="append the JSON lines to this file")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--here", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        name, stack, began, device = options.here
        print(json.dumps(measure(name, stack, float(began), device)))
        return
    known = {**facts(options), "command": "python benchmarks/warm_start.py " + " ".join(sys.argv[1:])}
    for name, cache in itertools.product(options.model, options.cache):
        runs = compared(name, options.stack, cache, options.repeat, options.device)
        costs = "first" if options.device == "cpu" else "wall"
        least = {stack: min(run[costs] for run in made) for stack, made in runs.items()}
        for stack, made in runs.items():
            figures = {f: {"least": round(min(values), 4), "median": round(statistics.median(values), 4)}
                       for f in FIGURES for values in [[run[f] for run in made]]}  # fmt: skip
            record = {"model": name, "cache": cache, "stack": stack, "repeat": options.repeat, **figures}
            if "eager" in least:
                record["beyond"] = round(least[stack] - least["eager"], 4)
            record.update({key: made[-1][key] for key in ("kernels", "fallbacks", "verdict") if key in made[-1]})
            line = json.dumps({**record, **known})
            print(f"{name:14} {cache:4} {stack:9}", *(f"{f} {figures[f]['least']:7.3f}" for f in FIGURES), flush=True)
            if options.out:
                with options.out.open("a") as stream:
                    stream.write(line + "\n")


if __name__ == "__main__":
    main()
