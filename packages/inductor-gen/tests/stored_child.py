"""Another process: restores the artefacts of a folder, runs them on the inputs beside them, and says what came of it.

It imports nothing of the code generator but what restoring imports.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import stored_ops  # noqa: F401
import torch

from prims.artefact import from_bytes, register_loader, restore, to_bytes
from prims.options import Options
from prims.report import Report

FORBIDDEN = ("fuse", "codegen", "plan", "rewrite", "layout", "kernel", "templates", "pipeline", "compiled", "runtime.triton")


def bits(values: list[Any]) -> list[Any]:
    """Tensors as their types and bytes."""
    return [(x.dtype, tuple(x.shape), x.stride(), x.contiguous().view(torch.uint8).tolist()) for x in map(dense, values)]


def dense(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(1) if not x.ndim else x


def imported() -> list[str]:
    """The modules that load nothing stored needs."""
    parts = tuple(f"inductor_gen.{part}" for part in FORBIDDEN)
    return sorted(m for m in sys.modules if m.startswith((*parts, "sympy", "triton", "prims.lower", "prims.decomp")))


def outcome(graph: Any, inputs: list[Any]) -> dict[str, Any]:
    """What a call gives, or the error that it raises, and what it leaves in the inputs."""
    given = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
    try:
        results, error = graph(*given), ""
    except Exception as raised:
        results, error = [], f"{type(raised).__name__}: {raised}"
    tensors = [x for x in given if isinstance(x, torch.Tensor)]
    same = [any(x is y for y in given) for x in results]
    return {"results": bits(results), "inputs": bits(tensors), "same": same, "error": error}


def main(folder: Path) -> None:
    register_loader("inductor_gen.graph", "inductor_gen.runtime.stored:load")
    restored, early = {}, {}
    for place in sorted(folder.glob("*.artefact")):
        report = Report()
        graph = restore(from_bytes(place.read_bytes()), options=Options(cache_dir=sys.argv[2]), report=report)
        again = to_bytes(graph.artefact()) == place.read_bytes()
        restored[place], early[place.stem] = (graph, report, again), imported()
    said: dict[str, Any] = {}
    for place, (graph, report, again) in restored.items():  # running them may import more: torch's own operators do
        calls = torch.load(place.with_suffix(".pt"))
        seconds = sorted(report.seconds)
        got = [outcome(graph, inputs) for inputs in calls["inputs"]]
        said[place.stem] = {
            "equal": [a == b for a, b in zip(got, calls["outcomes"], strict=True)], "imported": early[place.stem],
            "kernels": len(report.kernels), "externs": [e.name for e in report.externs], "seconds": seconds,
            "compiled": [c.compiled for c in report.caches], "again": again,
        }  # fmt: skip
    print(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
