"""What capture costs per torch call: ``python benchmarks/capture_time.py --out results.jsonl``.

Capture alone, under a backend that gives the graph back: ``quintet`` is :func:`dynamo_capture.optimize`, ``torch`` is
``torch.compile``. Every measurement is a fresh process with one thread that builds a model of the zoo, runs it eagerly
once, imports the stack and calls the model captured for the first time. A JSON line holds, least and median over
``--repeat`` processes made in turn, processor time (user and system) of that call less an eager one's, the calls in the
graphs, and microseconds per call; ``import`` is the processor time of the stack's import, which the first excludes.
``warmed``: another small model was captured before, so that what is imported and set up once is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench import facts

HERE = Path(__file__).resolve().parent
STACKS = ("quintet", "torch")
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {"length": 16}),
    "densenet121": ("densenet121", {"side": 64}),
    "bert small": ("bert", {"small": True, "length": 16}),
    "resnet50": ("resnet50", {"side": 64}),
    "llama small": ("llama", {"small": True, "length": 16, "layers": 24}),
}
FIGURES = ("import", "first", "warmed")


def measure(name: str, stack: str, warmed: bool) -> dict[str, Any]:
    """The figures of one capture in this process."""
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, str(HERE.parent / "integration-tests"))
    import zoo

    key, settings = MODELS[name]
    small = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.LayerNorm(4))
    case = zoo.build(key, **settings)
    calls: list[int] = []

    def backend(gm: Any, inputs: Any, **_: Any) -> Any:
        calls.append(sum(node.op.startswith("call") for node in gm.graph.nodes))
        return gm.forward

    with torch.no_grad():
        case.model(*case.args, **case.kwargs)
        begun = time.process_time()
        case.model(*case.args, **case.kwargs)
        eager = time.process_time() - begun
        begun = time.process_time()
        if stack == "torch":
            import torch._dynamo

            wrap = lambda fn: torch.compile(fn, backend=backend)
        else:
            import dynamo_capture

            wrap = lambda fn: dynamo_capture.optimize(fn, backend)
        imported = time.process_time() - begun
        if warmed:
            wrap(small)(torch.ones(2, 4))
            calls.clear()
        captured = wrap(case.model)
        begun = time.process_time()
        captured(*case.args, **case.kwargs)
        spent = time.process_time() - begun - eager
    return {"import": imported, "warmed" if warmed else "first": spent, "calls": sum(calls), "graphs": len(calls)}


def process(name: str, stack: str, warmed: bool) -> dict[str, Any]:
    """One measurement in a fresh process."""
    paths = [*map(str, sorted(HERE.parent.glob("packages/*/src"))), *filter(None, [os.environ.get("PYTHONPATH")])]
    sources = os.pathsep.join(paths)
    environment = {**os.environ, "PYTHONPATH": sources, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--here", name, stack, str(int(warmed))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} with {stack}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--stack", nargs="+", default=list(STACKS), choices=STACKS)
    parser.add_argument("--repeat", type=int, default=3, help="processes per stack, of each kind")
    parser.add_argument("--out", type=Path, help="append the JSON lines to this file")
    parser.add_argument("--here", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        name, stack, warmed = options.here
        print(json.dumps(measure(name, stack, warmed == "1")))
        return
    options.device = "cpu"
    known = {**facts(options), "command": "python benchmarks/capture_time.py " + " ".join(sys.argv[1:])}
    for name in options.model:
        runs: dict[str, list[dict[str, Any]]] = {stack: [] for stack in options.stack}
        for turn in range(options.repeat):
            for warmed in (False, True):
                for stack in options.stack if turn % 2 == 0 else options.stack[::-1]:
                    runs[stack].append(process(name, stack, warmed))
        for stack, made in runs.items():
            record: dict[str, Any] = {"model": name, "stack": stack, "repeat": options.repeat}
            for figure in FIGURES:
                values = [run[figure] for run in made if figure in run]
                record[figure] = {"least": round(min(values), 4), "median": round(statistics.median(values), 4)}
            record |= {"calls": made[-1]["calls"], "graphs": made[-1]["graphs"]}
            record["microseconds"] = round(1e6 * record["warmed"]["least"] / max(record["calls"], 1), 1)
            figures = " ".join(f"{figure} {record[figure]['least']:7.3f}" for figure in FIGURES)
            print(f"{name:12} {stack:8} {figures}  {record['calls']} calls in {record['graphs']} graphs, "
                  f"{record['microseconds']:.0f} us each", flush=True)  # fmt: skip
            if options.out:
                with options.out.open("a") as stream:
                    stream.write(json.dumps({**record, **known}) + "\n")


if __name__ == "__main__":
    main()
