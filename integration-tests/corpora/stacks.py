"""The compilers that programs are measured under: ours, and, to have its figures beside, PyTorch's own capture."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

__all__ = ["STACKS", "Eager", "Ours", "Torch", "make_stack"]


class Ours:
    """``compile_api.compile`` with eager's random numbers, so that a program that draws can be compared."""

    def __init__(self, backend: str = "inductor") -> None:
        self.backend = backend

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        import compile_api

        compile_api.reset()
        self.compiled = compile_api.compile(function, backend=self.backend, options={"fallback_random": True})
        return self.compiled

    def facts(self) -> dict[str, Any]:
        """What the report says: ``left`` are parts that run in eager beside breaks, with the stage and the reason."""
        report = self.compiled.report()
        graphs = [graph for graph in report.graphs if graph.dialect == "torch"]
        return {
            "verdict": report.verdict[:400],
            "graphs": len(graphs),
            "nodes": sum(graph.nodes for graph in graphs),
            "breaks": [f"{_line(brk.reason)} @ {brk.where}" for brk in report.breaks],
            "left": [f"{left.stage}: {_line(left.reason)} @ {left.where}" for left in report.fallbacks if left.eager],
            "kernels": sum(kernel.parts for kernel in report.kernels),
            "recompiles": [_line(again.reason) for again in report.recompiles],
            "idle": not graphs and any(status.status == "nothing" for status in report.statuses),
        }


class Torch:
    """``torch.compile`` with a backend that counts the graphs and runs them as they are: capture alone."""

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        import torch
        from torch._dynamo.utils import counters

        torch._dynamo.reset()
        counters.clear()
        self.sizes: list[int] = []

        def count(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
            self.sizes.append(sum(node.op.startswith("call_") for node in gm.graph.nodes))
            return gm.forward

        return torch.compile(function, backend=count)

    def facts(self) -> dict[str, Any]:
        from torch._dynamo.utils import counters

        breaks = [f"{_line(reason)} x {count}" for reason, count in counters["graph_break"].items()]
        return {
            "graphs": len(self.sizes), "nodes": sum(self.sizes), "breaks": breaks, "left": [], "kernels": 0,
            "recompiles": [], "idle": False, "verdict": "",
        }  # fmt: skip


class Eager:
    """No compiler: what the corpus itself and the judge find in a program that is run twice."""

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function

    def facts(self) -> dict[str, Any]:
        return {"graphs": 1, "nodes": 0, "breaks": [], "left": [], "kernels": 0, "recompiles": [], "idle": False,
                "verdict": ""}  # fmt: skip


#: By name; ``capture`` is ours with the captured graphs run by PyTorch: it tells of breaks in a fraction of the time.
STACKS: dict[str, Callable[[], Ours | Torch | Eager]] = {
    "ours": Ours, "capture": lambda: Ours("eager"), "torch": Torch, "eager": Eager,
}  # fmt: skip


def make_stack(name: str) -> Ours | Torch | Eager:
    """The stack of a name."""
    return STACKS[name]()


def _line(text: str) -> str:
    """A reason on one line, without addresses of objects."""
    return re.sub(r"0x[0-9a-f]+", "0x", " ".join(str(text).split()))[:300]
