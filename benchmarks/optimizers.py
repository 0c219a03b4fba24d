"""An optimizer's step alone on a GPU: ``python benchmarks/optimizers.py [--params bert ...] [--out FILE]``.

Device time and launches (profiler), wall time and the first step of eager's fused step, of ``torch.compile`` and of
Quintet, on parameters with gradients of a model's shapes. All in one process, one after the other.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench import facts
from device_time import CALLS, device_time

import compile_api

OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "AdamW": (torch.optim.AdamW, {}),
    "SGD with momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
}


def shapes(name: str) -> list[tuple[int, ...]]:
    """The shapes of the parameters of a model, or of a family of sizes."""
    if name == "bert":
        from transformers import BertConfig, BertModel

        with torch.device("meta"):
            return [tuple(p.shape) for p in BertModel(BertConfig()).parameters()]
    if name == "resnet50":
        import torchvision

        with torch.device("meta"):
            return [tuple(p.shape) for p in torchvision.models.resnet50().parameters()]
    return {
        "perceptron": [(512, 512), (512,)] * 4, "wide": [(4096, 4096)] * 12, "odd": [(997, 1001), (1001,), (50257, 64)] * 20,
    }[name]  # fmt: skip


def measure(params: str, optimizer: str, stack: str, clip: bool, more: dict[str, Any]) -> dict[str, Any]:
    """One row: ``stack`` is eager (fused), torch or quintet; ``clip`` adds clipping by the gradients' norm."""
    torch.manual_seed(0)
    made = [torch.nn.Parameter(torch.randn(shape, device="cuda")) for shape in shapes(params)]
    for p in made:
        p.grad = torch.randn_like(p) * 0.01
    kind, options = OPTIMIZERS[optimizer]
    instance = kind(made, **options, **({"fused": True} if stack == "eager" else more))

    def step() -> None:
        if clip:
            torch.nn.utils.clip_grad_norm_(made, 1.0)
        instance.step()

    function = {"eager": lambda f: f, "torch": torch.compile, "quintet": compile_api.compile}[stack](step)
    begun = time.perf_counter()
    function()
    torch.cuda.synchronize()
    first = time.perf_counter() - begun
    for _ in range(4 * CALLS):
        function()
    device, launches, longest = device_time(function)
    return {
        "params": params, "tensors": len(made), "optimizer": optimizer, "options": more, "clip": clip, "stack": stack,
        "first_call_seconds": round(first, 3), "device_ms": round(device, 4), "wall_ms": round(_wall(function), 4),
        "launches": launches, "longest": dict(list(longest.items())[:3]),
    }  # fmt: skip


def _wall(function: Callable[[], object]) -> float:
    """Milliseconds a step, the best of five runs of twenty."""
    found = []
    for _ in range(5):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(20):
            function()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - begun) / 20 * 1e3)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", nargs="+", default=["bert", "resnet50", "perceptron", "wide", "odd"])
    parser.add_argument("--optimizer", nargs="+", default=list(OPTIMIZERS), choices=OPTIMIZERS)
    parser.add_argument("--stack", nargs="+", default=["eager", "torch", "quintet"])
    parser.add_argument("--capturable", action="store_true", help="of torch's and Quintet's")
    parser.add_argument("--clip", action="store_true", help="clip by the norm of all gradients before the step")
    parser.add_argument("--out", type=Path, help="append a JSON line per row to this file")
    options = parser.parse_args()
    options.device, options.threads = "cuda", None
    known = facts(options) | {"command": "python benchmarks/optimizers.py " + " ".join(sys.argv[1:])}
    more = {"capturable": True} if options.capturable else {}
    for params in options.params:
        for optimizer in options.optimizer:
            for stack in options.stack:
                row = measure(params, optimizer, stack, options.clip, more)
                print(json.dumps(row), flush=True)
                if options.out:
                    with options.out.open("a") as file:
                        file.write(json.dumps(row | known) + "\n")


if __name__ == "__main__":
    main()
