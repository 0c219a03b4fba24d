"""Inputs of a region whose history has no derivative: ``x.unique()``, behind a graph break.

One autograd node is before all inputs of a region, so that the engine comes to the history of every input, though the
results that have a gradient may not be computed from it. A node without a derivative raises whenever it is run, also
where no gradient has come to it; in eager there is no way to it. So a stand-in goes through the region's gate, which
ends the way, and raises where a gradient has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from aot_autograd.runtime.emitted import gate_tensor

__all__ = ["standing_in"]

#: Whether nodes of a type raise, as found by one of them.
_REFUSES: dict[type, bool] = {}
#: Nodes that save tensors and have no derivative in their first operand. To run one would unpack what it has saved, by
#: the program's own hooks: a checkpoint would run its function again.
_BY_OPERAND = frozenset(("IgammaBackward0", "IgammacBackward0", "SpecialZetaBackward0"))


def standing_in(args: Sequence[Any], places: Sequence[int]) -> Sequence[Any]:
    """The arguments, with stand-ins for those at ``places`` whose history refuses to be differentiated."""
    refusing = [i for i in places if _refuses(args[i].grad_fn)]
    if not refusing:
        return args
    made = list(args)
    for i in refusing:
        made[i] = _StandIn.apply(gate_tensor(requires_grad=True), args[i].detach(), args[i].grad_fn)
    return made


def _refuses(node: Any) -> bool:
    if node is None:
        return False
    if type(node).__name__ in _BY_OPERAND:
        return node.next_functions[0][0] is not None
    found = _REFUSES.get(type(node))
    if found is None:
        found = _REFUSES[type(node)] = _raises(node)
    return found


def _raises(node: Any) -> bool:
    """Whether a node of PyTorch's own operators raises that it has no derivative; no other node may be run to see."""
    name = type(node).__name__
    known = getattr(torch._C._functions, name, None) is type(node)  # type: ignore[attr-defined]
    if not known or any(each.startswith("_raw_saved_") for each in dir(node)):
        return False
    try:
        node(None)
    except NotImplementedError:
        return True
    except Exception:  # it takes several gradients, or what it saved is freed: it has a derivative
        return False
    return False


class _StandIn(torch.autograd.Function):
    """The value of an input, with a history that ends here."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, value: torch.Tensor, node: Any) -> torch.Tensor:
        ctx.node = node
        ctx.set_materialize_grads(False)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[None, None, None]:  # type: ignore[override]
        if gradient is not None:
            ctx.node(gradient)
        return None, None, None
