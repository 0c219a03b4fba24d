"""What compiling in the background costs the calls meanwhile: ``python benchmarks/background.py --out results.jsonl``.

Every measurement is a fresh process with one thread that calls a model of the zoo over and over, inference or whole
training steps: ``eager`` as it is; ``ahead`` compiled by the first call; ``background`` compiled beside the calls
(``options={"background": True}``), with an empty cache. A JSON line holds, of the median process of ``--repeat`` by its
``ready``,

- ``eager``: milliseconds of an eager call before anything is compiled (median and mean);
- ``first``: milliseconds of the first compiled call (``ahead``: all of compiling; ``background``: its imports are
  the worker's), ``capture``: of the call that captures, by the report;
- ``during``: milliseconds of calls while the background works (median, mean, 99th percentile, the longest), and
  ``slowdown``, their mean over eager's;
- ``ready``: seconds from the first call to the first that runs compiled code; ``calls``: how many ran eagerly;
- ``swap``: milliseconds of the call that takes the program over; ``after``: of calls after it (median).

``--patience`` sets the seconds after which a waiting thread gets the interpreter while the background works.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import facts
from first_calls import _first_tensor

HERE = Path(__file__).resolve().parent
MODELS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "bert": ("bert", {"length": 64}, False),
    "resnet50": ("resnet50", {"side": 64}, False),
    "llama 24": ("llama", {"small": True, "length": 16, "layers": 24}, False),
    "llama 24 training": ("llama", {"small": True, "length": 16, "layers": 24}, True),
}
#: Seconds after which a measurement is given up, and calls that are timed before and after.
_LONGEST, _TIMED = 180.0, 40


def _times(call: Callable[[], None], count: int) -> list[float]:
    spent = []
    for _ in range(count):
        begun = time.perf_counter()
        call()
        spent.append(1e3 * (time.perf_counter() - begun))
    return spent


def _calls(case: Any, model: Any, train: bool) -> Callable[[], None]:
    import torch

    def infer() -> None:
        with torch.no_grad():
            model(*case.args, **case.kwargs)

    def step() -> None:
        _first_tensor(model(*case.args, **case.kwargs)).float().sum().backward()
        for parameter in case.model.parameters():
            parameter.grad = None

    return step if train else infer


def measure(name: str, way: str, patience: float | None) -> dict[str, Any]:
    """The figures of one process."""
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, str(HERE.parent / "integration-tests"))
    import zoo

    key, settings, train = MODELS[name]
    case = zoo.build(key, **settings)
    eager = _times(_calls(case, case.model, train), _TIMED)[_TIMED // 4 :]
    found: dict[str, Any] = {"eager": {"median": statistics.median(eager), "mean": statistics.mean(eager)}}
    if way == "eager":
        return found
    import compile_api

    beside = way == "background"
    if patience is not None:
        import prims.background

        prims.background._PATIENCE = patience
    model = compile_api.compile(case.model, options={"background": beside})
    call = _calls(case, model, train)
    begun = time.perf_counter()
    (found["first"],) = _times(call, 1)
    report, during = model.report(), []
    if beside:
        while sum(record.programs for record in report.background) == 0:
            during += _times(call, 1)
            if time.perf_counter() - begun > _LONGEST:
                raise SystemExit(f"not ready after {_LONGEST} s: {report}")
        found["swap"] = during.pop()
        ranked = sorted(during)
        found["during"] = {
            "median": statistics.median(during), "mean": statistics.mean(during), "p99": ranked[len(ranked) * 99 // 100],
            "longest": ranked[-1], "slowdown": statistics.mean(during) / found["eager"]["mean"],
        }  # fmt: skip
    found["ready"] = time.perf_counter() - begun
    found["calls"] = sum(record.calls for record in report.background)
    found["capture"] = 1e3 * report.seconds.get("capture", 0.0)
    found["after"] = statistics.median(_times(call, _TIMED))
    assert report.verdict == "compiled" and report.kernels, report
    return found


def _process(name: str, way: str, patience: float | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "QUINTET_CACHE_DIR": folder}
        command = [sys.executable, __file__, "--measure", name, "--way", way]
        command += [] if patience is None else ["--patience", str(patience)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, cwd=HERE)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--patience", type=float)
    parser.add_argument("--measure")
    parser.add_argument("--way")
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure, args.way, args.patience)))
        return
    lines = []
    for name in args.models:
        for way in ("ahead", "background"):
            processes = [_process(name, way, args.patience) for _ in range(args.repeat)]
            runs = sorted(processes, key=lambda run: float(run["ready"]))
            line = {"benchmark": "background", "model": name, "way": way, "repeat": args.repeat, **runs[len(runs) // 2]}
            line |= {"patience": args.patience, "load": os.getloadavg()[0], **facts(argparse.Namespace(device="cpu"))}
            line["command"] = "python benchmarks/background.py " + " ".join(sys.argv[1:])
            print(json.dumps(line), flush=True)
            lines.append(line)
    if args.out is not None:
        with args.out.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
