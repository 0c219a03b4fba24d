"""What a first call costs: ``python benchmarks/first_calls.py --against ../older-tree --out results.jsonl``.

Every measurement is a fresh process with one thread. It builds a small model, runs it eagerly once, imports
``compile_api`` and calls the compiled model for the first time, with gradients a whole step. A JSON line holds, for one
model and one state of the disk cache (``warm`` after an unmeasured run, or ``cold``), for each tree the least and the
median seconds of

- ``import``: processor time (user and system) of importing ``compile_api``;
- ``user``: processor time of the first call in user mode, that of the C compilers it starts included;
- ``cpu``: the same with the system's share;
- ``wall``: elapsed time;
- ``phases``: elapsed time of each phase of the report (median).

``--against`` names the root of a second source tree (its extension built with ``python hatch_build.py`` in
``packages/dynamo-capture``); its processes run in turn with this tree's, in changing order, and ``ratio`` is this tree's
least user time over the other's. The models and this script are this tree's in both cases.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import facts

HERE = Path(__file__).resolve().parent
FIGURES = ("import", "user", "cpu", "wall")

#: Name to the zoo's name and settings; the others are built in ``_built``.
ZOO: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet18": ("resnet18", {"side": 64}),
    "resnet50": ("resnet50", {"side": 64}),
    "vit": ("vit_b_16", {"small": True}),
    "gpt2": ("gpt2", {"length": 16, "small": True}),
    "bert": ("bert", {"length": 16, "small": True}),
    "llama": ("llama", {"length": 16, "small": True}),
    "t5": ("t5_encoder", {"length": 16, "small": True}),
}
MODELS = ("sin", "mlp", *ZOO)


def _built(name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A model, or a function, with its arguments."""
    import torch
    from torch import nn

    if name == "sin":
        return (lambda x: x.sin() + 1), (torch.randn(64, requires_grad=True),), {}
    if name == "mlp":
        layers = [nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)]
        return nn.Sequential(*layers), (torch.randn(4, 32),), {}
    sys.path.insert(0, str(HERE.parent / "integration-tests"))
    import zoo

    key, settings = ZOO[name]
    case = zoo.build(key, **settings)
    return case.model, case.args, case.kwargs


def _processor_seconds() -> tuple[float, float]:
    """User and system seconds of this process and of those it waited for."""
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(p.ru_utime for p in parts), sum(p.ru_stime for p in parts)


def measure(name: str, train: bool) -> dict[str, Any]:
    """The figures of one first call in this process."""
    import torch

    torch.set_num_threads(1)
    model, args, kwargs = _built(name)
    if isinstance(model, torch.nn.Module):
        model.train(train)

    def run(fn: Callable[..., Any]) -> None:
        with torch.set_grad_enabled(train):
            result = fn(*args, **kwargs)
            if train:
                _first_tensor(result).float().square().mean().backward()

    run(model)
    begun = _processor_seconds()
    import compile_api

    imported = sum(_processor_seconds()) - sum(begun)
    compiled = compile_api.compile(model)
    wall, (user, system) = time.perf_counter(), _processor_seconds()
    run(compiled)
    wall, after = time.perf_counter() - wall, _processor_seconds()
    report = compiled.report()
    phases = {phase: round(seconds, 5) for phase, seconds in report.seconds.items()}
    return {
        "import": imported, "user": after[0] - user, "cpu": sum(after) - user - system, "wall": wall, "phases": phases,
        "kernels": len(report.kernels), "fallbacks": len(report.fallbacks),
    }  # fmt: skip


def _first_tensor(value: Any) -> Any:
    while not hasattr(value, "backward"):
        value = next(iter(value.values() if hasattr(value, "values") else value))
    return value


def _process(tree: Path, name: str, train: bool, cache: str, compiled: str) -> dict[str, Any]:
    """One measurement in a fresh process that imports the packages of a tree, compiled as in an installation."""
    sources = [str(path) for path in sorted(tree.glob("packages/*/src"))]
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(sources), "QUINTET_CACHE_DIR": cache, "OMP_NUM_THREADS": "1",
        "PYTHONPYCACHEPREFIX": compiled, "PYTHONDONTWRITEBYTECODE": "",
    }  # fmt: skip
    command = [sys.executable, __file__, "--here", name, *(["--train"] if train else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} with {tree}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def _compared(
    trees: Sequence[Path], name: str, train: bool, warm: bool, repeat: int, compiled: str
) -> list[list[dict[str, Any]]]:
    """The measurements of each tree, made in turn; ``compiled`` is the folder of Python's compiled modules."""
    found: list[list[dict[str, Any]]] = [[] for _ in trees]
    with tempfile.TemporaryDirectory() as folder:
        for k, tree in enumerate(trees):
            _process(tree, name, train, f"{folder}/{k}", f"{compiled}/{k}")
        for turn in range(repeat):
            places = list(enumerate(trees))
            for k, tree in places if turn % 2 == 0 else places[::-1]:
                cache = f"{folder}/{k}" if warm else f"{folder}/{k}-{turn}"
                found[k].append(_process(tree, name, train, cache, f"{compiled}/{k}"))
    return found


def _summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    made = {
        figure: {"least": round(min(values), 5), "median": round(statistics.median(values), 5)}
        for figure in FIGURES
        for values in [[run[figure] for run in runs]]
    }
    phases = sorted({phase for run in runs for phase in run["phases"]})
    middle = {p: round(statistics.median(run["phases"].get(p, 0.0) for run in runs), 5) for p in phases}
    return {**made, "phases": middle, "kernels": runs[-1]["kernels"], "fallbacks": runs[-1]["fallbacks"]}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--kind", nargs="+", default=["inference", "training"], choices=["inference", "training"])
    parser.add_argument("--cache", nargs="+", default=["warm", "cold"], choices=["warm", "cold"])
    parser.add_argument("--against", type=Path, help="the root of a second source tree")
    parser.add_argument("--repeat", type=int, default=9, help="processes per tree and line")
    parser.add_argument("--out", type=Path, help="append the JSON lines to this file")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.here:
        print(json.dumps(measure(options.here, options.train)))
        return
    options.device = "cpu"
    known = {**facts(options), "command": "python benchmarks/first_calls.py " + " ".join(sys.argv[1:])}
    trees = [HERE.parent, *([options.against.resolve()] if options.against else [])]
    with tempfile.TemporaryDirectory() as compiled:
        for name, kind, cache in itertools.product(options.model, options.kind, options.cache):
            runs = _compared(trees, name, kind == "training", cache == "warm", options.repeat, compiled)
            record = {"model": name, "kind": kind, "cache": cache, "repeat": options.repeat, "this": _summary(runs[0])}
            if options.against:
                record["other"] = _summary(runs[1])
                record["ratio"] = round(record["this"]["user"]["least"] / record["other"]["user"]["least"], 3)
            print(_line(record), file=sys.stderr, flush=True)
            line = json.dumps({**record, **known})
            print(line, flush=True)
            if options.out:
                with options.out.open("a") as stream:
                    stream.write(line + "\n")


def _line(record: dict[str, Any]) -> str:
    """The least and median user milliseconds of each tree, for people."""
    parts = [f"{record['model']:10}{record['kind']:10}{record['cache']:5}"]
    for tree in ("this", "other"):
        if tree in record:
            user, imported = record[tree]["user"], record[tree]["import"]["least"]
            parts.append(f"{tree} {user['least'] * 1e3:8.1f} {user['median'] * 1e3:8.1f} ms, import {imported * 1e3:6.1f};")
    return " ".join([*parts, *([f"ratio {record['ratio']:.3f}"] if "ratio" in record else [])])


if __name__ == "__main__":
    main()
