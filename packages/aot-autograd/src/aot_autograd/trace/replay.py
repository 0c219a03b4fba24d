"""Random numbers in a checkpointed region that the backward pass runs a second time.

``torch.utils.checkpoint`` resets the generators before it runs a region again, so that the same numbers are drawn. In a
traced graph nothing is drawn yet; instead the second call is recognised as the first one (same operator on the same
values) and takes over its result, which is then saved.
"""

from __future__ import annotations

import sys
from typing import Any

import torch.fx
from torch._ops import OpOverload

from aot_autograd.trace.opinfo import runs_once
from prims.records import record

__all__ = ["Draw", "first_draw", "runs_a_checkpoint_again"]


def runs_a_checkpoint_again() -> bool:
    """Whether the calling code runs inside ``torch.utils.checkpoint``."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.utils.checkpoint":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


@record
class Draw:
    """A random call of the forward pass: its operator and arguments as graph values, and what it gave.

    ``result`` is the node, or for a seeded draw its first counter.
    """

    func: OpOverload
    args: Any
    kwargs: dict[str, Any]
    result: Any


def first_draw(graph: torch.fx.Graph, draws: list[Draw], func: OpOverload, args: Any, kwargs: Any) -> Draw | None:
    """The forward's draw by the same operator from the same values; None if there is none or more than one."""
    numbers = _Numbers()
    for node in graph.nodes:  # in order, so that no chain of operands is followed recursively
        numbers.of(node)
    wanted = numbers.key(func, args, kwargs)
    matches = [draw for draw in draws if numbers.key(draw.func, draw.args, draw.kwargs) == wanted]
    return matches[0] if len(matches) == 1 else None


class _Numbers:
    """Value numbers: equal for nodes that compute the same value from the same inputs."""

    def __init__(self) -> None:
        self.known: dict[torch.fx.Node, int] = {}
        self.table: dict[Any, int] = {}

    def of(self, node: torch.fx.Node) -> int:
        number = self.known.get(node)
        if number is None:
            unique = node.op != "call_function" or (
                isinstance(node.target, OpOverload) and runs_once(node.target, node.args, node.kwargs)
            )
            key = ("itself", node) if unique else self.key(node.target, node.args, node.kwargs)
            number = self.known[node] = self.table.setdefault(key, len(self.table))
        return number

    def key(self, target: Any, args: Any, kwargs: Any) -> Any:
        return (target, self._plain(args), tuple((name, self._plain(value)) for name, value in sorted(kwargs.items())))

    def _plain(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return ("value", self.of(value))
        if isinstance(value, (list, tuple)):
            return tuple(self._plain(item) for item in value)
        # Numbers of different types are different arguments: 1 is not 1.0.
        return (type(value), value)
