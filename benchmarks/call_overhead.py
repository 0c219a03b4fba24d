"""What a call costs where the mathematics costs nothing: `python benchmarks/call_overhead.py` prints a JSON line per stack.

Microseconds on one thread, the best of several rounds; every stack in a process of its own:

- `inference`: a three-layer MLP on 2 rows of 8 numbers, gradients off;
- `forward`: the same, recording gradients;
- `step`: forward, sum and backward;
- `pointwise`: `sin(x) + 1` of the same 16 numbers.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from bench import hardware

STACKS = ("eager", "torch", "quintet")


def best(fn: Callable[[], Any], calls: int = 2000, rounds: int = 9) -> float:
    """Microseconds per call."""
    for _ in range(50):
        fn()
    times = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        for _ in range(calls):
            fn()
        times.append((time.perf_counter_ns() - start) / calls)
    return round(min(times) / 1000, 2)


def compiler(stack: str) -> Callable[[Any], Any]:
    """The stack's way to compile."""
    import torch

    if stack == "eager":
        return lambda fn: fn
    if stack == "torch":
        return torch.compile
    import compile_api

    return compile_api.compile


def measure(stack: str) -> dict[str, Any]:
    """One stack's line."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    compiled = compiler(stack)
    model = compiled(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)))
    pointwise = compiled(lambda x: x.sin() + 1)
    x = torch.randn(2, 8)
    with torch.no_grad():
        inference, alone = best(lambda: model(x)), best(lambda: pointwise(x))
    return {
        "stack": stack, "date": datetime.date.today().isoformat(), "hardware": hardware("cpu"), "torch": torch.__version__,
        "python": platform.python_version(), "inference": inference, "forward": best(lambda: model(x)),
        "step": best(lambda: model(x).sum().backward(), 500), "pointwise": alone,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stack", nargs="+", choices=STACKS, default=STACKS)
    parser.add_argument("--here", action="store_true", help="measure the only stack in this process")
    args = parser.parse_args()
    if args.here:
        json.dump(measure(args.stack[0]), sys.stdout)
        print(flush=True)
        return
    for stack in args.stack:
        subprocess.run([sys.executable, __file__, "--here", "--stack", stack], check=True)


if __name__ == "__main__":
    main()
