"""``check="nan"``: when a graph's results come to have a NaN or an infinity, the first operator that made one is named.

Every call's results are looked at, which waits for the device. Where one is not finite, the ATen graph runs once more,
operator by operator, on the same inputs: the first operator whose result has what none of its operands had is named,
with the user's line, in a warning and in the report, once for each graph. Forward and backward graphs alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree

from compile_api.trial import keeping_random_state
from prims.eager import warn_user
from prims.ir import Envelope
from prims.ir.reference import draws
from prims.records import record
from prims.report import Report

__all__ = ["nan_checked"]

#: Outputs that somebody sees; values saved for the backward pass may well be infinite, such as masks.
_SEEN = ("output", "mutation", "gradient")


def nan_checked(compiled: Callable[..., Any], env: Envelope, report: Report) -> Callable[..., Any]:
    """``compiled``, a compiled form of ``env`` that writes none of its inputs, with its results looked at."""
    return _Checked(compiled, env, report)


@record(eq=False)
class _Made:
    """Who made the first NaN or infinity: an operator, or else an input that it came in with."""

    node: torch.fx.Node
    infinite_before: torch.fx.Node | None


class _Checked:
    def __init__(self, compiled: Callable[..., Any], env: Envelope, report: Report) -> None:
        self.compiled = compiled
        self.env = env
        self.report = report
        self.told = False
        self.seen = [k for k, desc in enumerate(env.outputs) if desc.kind in _SEEN]
        self.draws = any(map(draws, env.op_nodes))

    def __call__(self, *inputs: Any) -> Any:
        if self.told:
            return self.compiled(*inputs)
        before = torch.get_rng_state() if self.draws else None
        results = self.compiled(*inputs)
        what = _worst([results[k] for k in self.seen])
        if what is not None:
            self.told = True
            self._tell(what, inputs, before)
        return results

    def _tell(self, what: str, inputs: Sequence[Any], before: torch.Tensor | None) -> None:
        with torch.no_grad(), keeping_random_state(inputs):
            if before is not None:
                torch.set_rng_state(before)
            made = _Finder(self.env.module(), what).find(inputs)
        where = None
        if made is None:
            text = f"a result has {what}, which eager's operators do not make of the same inputs"
        elif made.node.op == "placeholder":
            names = [node.name for node in self.env.placeholders()]
            desc = self.env.inputs[names.index(made.node.name)]
            text = f"{what} came in with {desc.source or desc.name}"
        else:
            where = made.node.meta.get("source")
            text = f"{made.node.target} makes {what} of operands that have none"
            if made.infinite_before is not None:
                at = made.infinite_before.meta.get("source")
                text += f", but an infinity, made by {made.infinite_before.target}" + (f" at {at}" if at else "")
        if self.report.finding("nan", text, where):
            warn_user(f"check='nan': {text}" + (f"\n  at {where}" if where else ""))


def _worst(values: Any) -> str | None:
    """``"a NaN"`` or ``"an infinity"`` among the values; None where all are finite."""
    tensors = [x for x in pytree.tree_leaves(values) if _floats(x) and not bool(x.isfinite().all())]
    if not tensors:
        return None
    return "a NaN" if any(bool(x.isnan().any()) for x in tensors) else "an infinity"


def _floats(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


class _Finder(torch.fx.Interpreter):
    """Runs a graph to the first operator that makes what is looked for."""

    def __init__(self, module: torch.fx.GraphModule, what: str) -> None:
        super().__init__(module)
        self.has = torch.isnan if what == "a NaN" else torch.isinf
        self.infinite: dict[torch.fx.Node, torch.fx.Node] = {}
        self.found: _Made | None = None

    def find(self, inputs: Sequence[Any]) -> _Made | None:
        try:
            self.run(*inputs)
        except _Stop:
            pass
        return self.found

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        operands = n.all_input_nodes
        if n.op == "output":
            return value
        origin = next((self.infinite[k] for k in operands if k in self.infinite), None)
        if origin is not None or self._any(value, torch.isinf):
            self.infinite[n] = origin or n
        if self._any(value, self.has) and not any(self._any(self.env.get(k), self.has) for k in operands):
            written = any(isinstance(x, float) and not math.isfinite(x) for x in pytree.tree_leaves((n.args, n.kwargs)))
            if self.has is torch.isnan or not written:  # an infinity that the program writes down is meant
                self.found = _Made(n, origin)
                raise _Stop
        return value

    @staticmethod
    def _any(value: Any, has: Callable[[torch.Tensor], torch.Tensor]) -> bool:
        return any(bool(has(x).any()) for x in pytree.tree_leaves(value) if _floats(x))


class _Stop(Exception):
    pass
