"""Shared by the capture tests: a backend that records graphs and runs them as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynamo_capture
from prims.options import Options


class Compiled:
    """A function under capture, with the graphs that it gave."""

    def __init__(self, fn: Any, **options: Any) -> None:
        self.fn = fn
        self.graphs: list[torch.fx.GraphModule] = []
        options.setdefault("strict", True)
        self.compiled: Any = dynamo_capture.optimize(fn, self._backend, options=Options(**options))

    @dynamo_capture.supports_dynamic_shapes
    def _backend(self, gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        self.graphs.append(gm)
        placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        assert len(placeholders) == len(inputs)
        return gm.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.compiled(*args, **kwargs)

    @property
    def report(self) -> Any:
        """The report of the compiled function."""
        return self.compiled.__quintet_optimizer__.report

    def ops(self) -> int:
        """Operators over all graphs."""
        return sum(n.op.startswith("call") for gm in self.graphs for n in gm.graph.nodes)


@pytest.fixture
def capture():
    """``capture(fn, **options)`` gives a :class:`Compiled`."""
    yield Compiled
    dynamo_capture.reset()
