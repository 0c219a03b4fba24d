"""What more equal layers cost the first call: ``python benchmarks/equal_layers.py --out results.jsonl``.

Every measurement is a fresh process with one thread and an empty cache. A small model of other layers is compiled first,
so that imports and what is set up once are not counted; then a decoder of the zoo (Llama's, small) with ``--layers`` blocks
is called for the first time, with gradients a whole step. A JSON line holds, of the least of ``--repeat`` processes by
their sum, processor seconds, which other work on the machine changes less than elapsed ones:

- ``stages``: of the compiling thread, by the report's phases;
- ``compilers``: of the C compilers;
- ``kernels``: how many kernels the call launches, and ``sources``: how many different ones there are;
- ``ratio`` (a last line for each mode): the most layers' seconds over the least layers', by stage and together.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import facts
from first_calls import _first_tensor

HERE = Path(__file__).resolve().parent


class _ProcessorTime:
    """Stands for ``time`` in the report: phases in processor seconds of the thread."""

    perf_counter = staticmethod(time.thread_time)


def _compilers() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(layers: int, train: bool) -> dict[str, Any]:
    """The figures of one process."""
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, str(HERE.parent / "integration-tests"))
    import zoo

    import compile_api
    import prims.report

    prims.report.time = _ProcessorTime  # type: ignore[assignment,attr-defined]
    case = zoo.build("llama", small=True, length=16, layers=layers)
    other = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.SiLU(), torch.nn.LayerNorm(8), torch.nn.Softmax(-1))
    with torch.set_grad_enabled(train):
        first = compile_api.compile(other)(torch.randn(2, 8))
        if train:
            first.sum().backward()
        case.model(*case.args, **case.kwargs)
        model = compile_api.compile(case.model)
        compilers, begun = _compilers(), time.thread_time()
        result = model(*case.args, **case.kwargs)
        if train:
            _first_tensor(result).float().sum().backward()
    spent = time.thread_time() - begun
    report = model.report()
    assert report.verdict == "compiled" and report.kernels, report
    return {
        "layers": layers, "train": train, "thread": spent, "compilers": _compilers() - compilers,
        "kernels": len(report.kernels), "sources": len({kernel.source for kernel in report.kernels}),
        "stages": {name: round(spent, 4) for name, spent in report.seconds.items()},
    }  # fmt: skip


def _process(layers: int, train: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "QUINTET_CACHE_DIR": folder}
        command = [sys.executable, __file__, "--measure", str(layers), *(["--train"] if train else [])]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, cwd=HERE)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 24])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--measure", type=int)
    parser.add_argument("--train", action="store_true")
    args = parser.parse_args()
    if args.measure is not None:
        print(json.dumps(measure(args.measure, args.train)))
        return
    known = {**facts(argparse.Namespace(device="cpu")), "repeat": args.repeat}
    known["command"] = "python benchmarks/equal_layers.py " + " ".join(sys.argv[1:])
    lines = []
    for train in (False, True):
        runs = []
        for layers in args.layers:
            processes = [_process(layers, train) for _ in range(args.repeat)]
            runs.append(min(processes, key=lambda run: float(run["thread"]) + float(run["compilers"])))
        few, many = runs[0], runs[-1]
        ratio = {key: round(many[key] / few[key], 2) for key in ("thread", "compilers")}
        ratio["together"] = round((many["thread"] + many["compilers"]) / (few["thread"] + few["compilers"]), 2)
        stages = {name: round(many["stages"][name] / few["stages"][name], 1) for name in many["stages"] if few["stages"].get(name)}
        lines += [*runs, {"layers": args.layers, "train": train, "ratio": ratio, "by_stage": stages}]
    lines = [{"benchmark": "equal layers", **line, **known} for line in lines]
    for line in lines:
        print(json.dumps(line))
    if args.out is not None:
        with args.out.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
