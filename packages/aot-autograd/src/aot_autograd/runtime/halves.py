"""A backward pass that is taken in two halves, as pipeline schedules without bubbles take it.

They ask for the gradients of a stage's inputs first, with ``retain_graph``, keep the gradients that come to the nodes
on the way where inputs and weights part, and start from those nodes for the weights' gradients. Of a compiled region
such a node is that of the inputs, and what comes to it, an empty tensor, has what the backward graph takes as an
attribute: a box that the graph empties. Where the graph is retained another list of the same is kept, for as long as
somebody keeps that tensor.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["keep_box", "kept_box"]

_MESSAGE = (
    "the backward pass of a compiled region is to start at the region's inputs, but not with the gradient that came to "
    "them before, or the graph was not retained then. Pass retain_graph=True there, or run this part eagerly "
    "(compile_api.disable)."
)


def keep_box(gate: Any) -> None:
    """Keep what is in the box of a gradient for the inputs' node, where the graph is retained."""
    gate.kept = list(gate.box) if torch._C._autograd._get_current_graph_task_keep_graph() else None


def kept_box(gate: Any) -> list[Any]:
    """The box of such a gradient, which was emptied.

    Raises:
        RuntimeError: nothing was kept, or it is another gradient.
    """
    kept = getattr(gate, "kept", None)
    if kept is None:
        raise RuntimeError(_MESSAGE)
    return list(kept)
