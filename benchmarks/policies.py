"""What the policies about bits cost: ``python benchmarks/policies.py`` on a CPU.

The five models of ``integration-tests/invariant_models.py``, batches of 1 and 32: eager, the default, ``deterministic``
and ``batch_invariant`` (and ``numerics="eager_close"``, which it rests on) alternate in one process; the fastest of
``--rounds`` counts. ``differs`` are the batch sizes of 1, 2 and 7 in which some row has other bits than among 32.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration-tests"))

from invariant_models import MODELS, batch_of

import compile_api
from inductor_gen.device.cpu import facts

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {}, "eager_close": {"numerics": "eager_close"}, "deterministic": {"deterministic": True},
    "batch_invariant": {"batch_invariant": True},
}  # fmt: skip


def fastest(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Milliseconds of each, the least of some rounds in turn."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, run in ways.items():
            began = time.perf_counter()
            run()
            best[name] = min(best[name], 1e3 * (time.perf_counter() - began))
    return best


def differing(run: Callable[[torch.Tensor], torch.Tensor], batch: torch.Tensor) -> list[int]:
    whole = run(batch)

    def same(k: int, rows: int) -> bool:
        return torch.equal(run(batch[k : k + rows]), whole[k : k + rows])

    return [n for n in (1, 2, 7) if not all(same(k, n) for k in range(0, len(batch) - n, n))]


def measured(name: str, rounds: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    ways: dict[str, Any] = {"eager": model}
    for setting, options in SETTINGS.items():
        ways[setting] = compile_api.compile(model, options=options)
    lines = []
    with torch.no_grad():
        differs = {way: differing(run, batch_of(name, 32)) for way, run in ways.items()}
        for rows in (1, 32):
            batch = batch_of(name, rows)
            calls = {way: lambda run=run, batch=batch: run(batch) for way, run in ways.items()}
            for way, ms in fastest(calls, rounds).items():
                lines.append({"model": name, "rows": rows, "way": way, "ms": round(ms, 4), "differs": differs[way]})
    return lines


def hardware() -> str:
    flags = facts().get("flags", "").split()
    vectors = next((name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags), "no AVX2")
    count = os.cpu_count() or 1
    return f"{ {1: 'one', 2: 'two'}.get(count, count)} CPU cores, {vectors}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", help="append JSON lines to this file")
    args = parser.parse_args()
    common = {
        "torch": torch.__version__, "python": platform.python_version(), "threads": torch.get_num_threads(),
        "hardware": hardware(), "date": time.strftime("%Y-%m-%d"),
        "command": "python benchmarks/policies.py " + " ".join(sys.argv[1:]),
    }  # fmt: skip
    for name in args.model:
        lines = [json.dumps(line | common) for line in measured(name, args.rounds)]
        print("\n".join(lines), flush=True)
        if args.out:
            with open(args.out, "a", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
