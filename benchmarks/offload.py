"""Training with saved values in host memory, on a GPU: ``python benchmarks/offload.py --out FILE``.

A GPT-2 of ``--layers`` layers in bfloat16, forward and backward, by eager, eager under
``torch.autograd.graph.save_on_cpu(pin_memory=True)``, ``torch.compile``, and ours without ``offload``, with all and with
sizes. A line holds the milliseconds of a step (the median of ``--rounds``), the peak of memory, and what was saved where.
The last is whole steps with AdamW, each one graph.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench import hardware

import compile_api

#: How a step is run: ``(name, offload)``.
WAYS: list[tuple[str, Any]] = [
    ("eager", None), ("eager, save_on_cpu", None), ("torch.compile", None),
    ("quintet", False), ("quintet, offload", True), ("quintet, offload", "1GB"),
]  # fmt: skip


def model_of(layers: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=layers, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
    return GPT2LMHeadModel(config).cuda().to(torch.bfloat16).train()


def prepared(way: str, offload: Any, layers: int, whole: bool) -> tuple[Callable[[torch.Tensor], float], Any]:
    """A step, and what gives the report."""
    model = model_of(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True) if whole else None
    aside = torch.autograd.graph.save_on_cpu(pin_memory=True) if "save_on_cpu" in way else nullcontext()

    def step(ids: torch.Tensor) -> torch.Tensor:
        (model if optimizer is None else optimizer).zero_grad()
        loss = call(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        return loss.detach()

    options = {} if offload is None else {"offload": offload}
    compiles = {"torch.compile": torch.compile, "quintet": lambda f: compile_api.compile(f, options=options)}
    compiled = compiles.get(way.partition(",")[0], lambda f: f)
    call = model if whole else compiled(model)
    run = compiled(step) if whole else step
    held = run if whole else call

    def timed(ids: torch.Tensor) -> float:
        with aside:
            return float(run(ids))

    return timed, getattr(held, "report", lambda: None)


def measured(way: str, offload: Any, given: argparse.Namespace, whole: bool) -> dict[str, Any]:
    run, report = prepared(way, offload, given.layers, whole)
    ids = torch.randint(0, 50257, (given.batch, given.length), device="cuda")
    losses = [run(ids) for _ in range(3)]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(given.rounds):
        begun = time.perf_counter()
        run(ids)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    told = report()
    return {
        "way": way, "offload": offload, "whole": whole, "batch": given.batch, "length": given.length,
        "layers": given.layers, "ms": statistics.median(times) * 1e3, "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
        "first_loss": losses[0], "third_loss": losses[-1],
        "saved": None if told is None else [(s.bytes, s.on_host) for s in told.saved],
        "verdict": None if told is None else told.verdict,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    said = {"torch": torch.__version__, "hardware": hardware("cuda"), "date": datetime.date.today().isoformat()}
    first = {**said, "command": " ".join(sys.argv)}
    lines = [first]
    print(json.dumps(first))
    for whole in (False, True):
        for way, offload in WAYS:
            if whole and way.startswith("eager, "):
                continue
            lines.append(measured(way, offload, given, whole))
            print(json.dumps(lines[-1]), flush=True)
            torch.cuda.empty_cache()
            torch._dynamo.reset()
    if given.out is not None:
        given.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
