"""Requests of mixed batch, prompt length and generation mode: ``python benchmarks/serving.py --out results.jsonl``.

Small language models with random weights serve 36 requests (``integration-tests/serving_cases.py``) by ``generate()``,
eager and with a compiled ``forward`` in turn, in one thread. A JSON line holds, for one architecture and one cache, how
often ``forward`` was captured, how many entries are left, how many requests came to other tokens than in eager, and the
processor seconds of all requests: the first time, compilation included, and once more.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration-tests"))
import serving_cases as cases

import compile_api


def _timed(model: Any, cache: str, request: tuple[str, int, int], padded: bool) -> tuple[torch.Tensor, float]:
    start = time.process_time()
    tokens = cases.serve(model, cache, *request, padded=padded)
    return tokens, time.process_time() - start


def _served(eager: Any, model: Any, cache: str, requests: list[Any], padded: bool) -> tuple[int, float, float]:
    """How many requests got other tokens, and the seconds of all, eager and compiled."""
    different, seconds = 0, [0.0, 0.0]
    for request in requests:
        expected, first = _timed(eager, cache, request, padded)
        tokens, second = _timed(model, cache, request, padded)
        different += not torch.equal(tokens, expected)
        seconds = [seconds[0] + first, seconds[1] + second]
    return different, round(seconds[0], 2), round(seconds[1], 2)


def measure(architecture: str, cache: str, seed: int, padded: bool) -> dict[str, Any]:
    """One line."""
    eager, model = cases.model_of(architecture), cases.model_of(architecture)
    compiled = cases.compiled_forward(model, compile_api.compile)
    requests = cases.requests(seed=seed)
    different, first_eager, first = _served(eager, model, cache, requests, padded)
    recompiles = len(compiled.report().recompiles)
    again, second_eager, second = _served(eager, model, cache, requests, padded)
    report = compiled.report()
    return {
        "architecture": architecture, "cache": cache, "padded": padded, "requests": len(requests),
        "entries": len(cases.live_entries(compiled)), "recompiles": recompiles,
        "recompiles_later": len(report.recompiles) - recompiles, "different": different + again,
        "fallbacks": [item.reason for item in report.fallbacks],
        "eager_s": first_eager, "compiled_s": first, "eager_again_s": second_eager, "compiled_again_s": second,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--architecture", nargs="*", default=list(cases.ARCHITECTURES), choices=cases.ARCHITECTURES)
    parser.add_argument("--cache", nargs="*", default=["dynamic", "static"])
    parser.add_argument("--seed", type=int, default=0, help="of the order of the requests")
    parser.add_argument("--padded", action="store_true", help="a row of each batch is shorter")
    parser.add_argument("--out", type=Path)
    settings = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for architecture in settings.architecture:
        for cache in settings.cache:
            line = json.dumps(measure(architecture, cache, settings.seed, settings.padded))
            print(line, flush=True)
            if settings.out is not None:
                with settings.out.open("a") as out:
                    out.write(line + "\n")
            compile_api.reset()


if __name__ == "__main__":
    main()
