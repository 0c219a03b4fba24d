"""``flex_attention`` on a GPU, forward and with gradients: ``python benchmarks/flex_attention.py [--out FILE]``.

Device time and peak memory of torch.compile's and Quintet's calls in one process, and of the fused kernel without any
function beside them (which does less). Each figure is the median of five runs of ten calls, by the device's clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench import facts

import compile_api

#: Batches, heads, heads of keys, length, width.
SHAPES = [(4, 16, 16, 1024, 64), (2, 16, 16, 4096, 128), (4, 32, 8, 2048, 64)]


def programs(heads: int, length: int) -> dict[str, Callable[..., Any]]:
    """Calls by name."""
    slopes = torch.exp2(-torch.arange(1, heads + 1, device="cuda") * 8 / heads)
    masks = {
        "causal": lambda b, h, i, j: i >= j,
        "window of 256": lambda b, h, i, j: (i >= j) & (i - j <= 256),
        "documents of 400": lambda b, h, i, j: i // 400 == j // 400,
    }
    made: dict[str, Callable[..., Any]] = {
        "linear biases": lambda q, k, v: flex_attention(
            q, k, v, score_mod=lambda s, b, h, i, j: s + slopes[h] * (j - i), enable_gqa=True
        ),
        "capped": lambda q, k, v: flex_attention(
            q, k, v, score_mod=lambda s, b, h, i, j: 20 * torch.tanh(s / 20), enable_gqa=True
        ),
    }
    for name, mask in masks.items():
        blocks = create_block_mask(mask, None, None, length, length, device="cuda")
        made[name] = lambda q, k, v, blocks=blocks: flex_attention(q, k, v, block_mask=blocks, enable_gqa=True)
    return made


def milliseconds(call: Callable[[], object]) -> float:
    """Of device time a call."""
    for _ in range(3):
        call()
    found = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(10):
            call()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) / 10)
    return round(statistics.median(found), 4)


def measured(call: Callable[..., torch.Tensor], operands: list[torch.Tensor]) -> dict[str, float]:
    """Figures of a call."""
    with torch.no_grad():
        tangent = torch.randn_like(call(*operands))

    def forward() -> None:
        with torch.no_grad():
            call(*operands)

    def both() -> None:
        for x in operands:
            x.grad = None
        call(*operands).backward(tangent)

    found = {"forward_ms": milliseconds(forward), "with_gradients_ms": milliseconds(both)}
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    both()
    torch.cuda.synchronize()
    return found | {"peak_mib": round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="append a JSON line per figure")
    options = parser.parse_args()
    options.device = "cuda"
    known = facts(options) | {"command": "python benchmarks/flex_attention.py", "dtype": "bfloat16"}
    for batch, heads, shared, length, width in SHAPES:
        shapes = [(batch, n, length, width) for n in (heads, shared, shared)]
        operands = [torch.randn(s, device="cuda", dtype=torch.bfloat16).requires_grad_() for s in shapes]
        calls: list[tuple[str, str, Callable[..., Any]]] = [
            (
                "no function",
                "scaled_dot_product_attention",
                lambda *x: F.scaled_dot_product_attention(*x, enable_gqa=True),
            )
        ]
        for name, call in programs(heads, length).items():
            calls.append((name, "quintet", compile_api.compile(call, fullgraph=True, options={"strict": True})))
            calls.append((name, "torch.compile", torch.compile(call, fullgraph=True, dynamic=False)))
        for name, stack, call in calls:
            record = {"program": name, "shape": [batch, heads, shared, length, width], "stack": stack}
            record |= measured(call, operands)
            if stack == "quintet":
                assert not [e for e in call.report().externs if "attention" in e.name]
            print(json.dumps(record), flush=True)
            if options.out:
                with options.out.open("a") as file:
                    file.write(json.dumps(record | known) + "\n")


if __name__ == "__main__":
    main()
