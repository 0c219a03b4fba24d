"""What a backward pass leaves for others of the same call.

In eager the results of a region whose autograd graphs share no node that saves anything can be differentiated one
after another: a pass frees the nodes that it comes to. The node of a compiled region is one for all results, and the
engine frees what it has saved after the first pass. So what other results may still need is kept beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from aot_autograd.partition.split import Partition

__all__ = ["Rests", "needed_for"]

_AGAIN = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Pass retain_graph=True to the first backward() or autograd.grad() of results that are computed from one "
    "another or from the same intermediate values."
)  # fmt: skip


def needed_for(partition: Partition) -> tuple[frozenset[int], ...]:
    """By saved tensor, the tangents (by position) of which something is computed with it.

    A backward pass is linear in its tangents: what a value of one tangent was computed with is no matter of another's
    that is added to it.
    """
    env = partition.backward
    of_tangents: dict[torch.fx.Node, frozenset[int]] = {}
    tangents = (node for node, desc in zip(env.placeholders(), env.inputs, strict=True) if desc.kind == "tangent")
    for k, node in enumerate(tangents):
        of_tangents[node] = frozenset((k,))
    none: frozenset[int] = frozenset()
    nodes = [node for node in env.graph.nodes if node.op == "call_function"]
    for node in nodes:
        called_by = frozenset(node.meta.get("called_by") or ())
        of_tangents[node] = called_by.union(*(of_tangents.get(source, none) for source in node.all_input_nodes))
    results = {node for node in env.results() if isinstance(node, torch.fx.Node)}
    every = frozenset(range(len(of_tangents) - len(nodes)))
    needed: dict[torch.fx.Node, frozenset[int]] = {}
    for node in reversed(env.graph.nodes):
        by = every if node in results and not of_tangents.get(node) else none
        needed[node] = by.union(*(of_tangents.get(user, none) or needed.get(user, none) for user in node.users))
    return tuple(needed[node] for node in env.placeholders()[: len(partition.saved)])


class Rests:
    """What is left of calls whose results can be differentiated one after another.

    Args:
        sharing: by tangent, those whose pass frees something that its own needs (``Joint.sharing``).
        needed: by saved tensor, the tangents that need it, whether by the compiled backward pass or by eager's.
        reading: by saved tensor, the tangents in whose pass a write to it is an error.
    """

    def __init__(
        self, sharing: Sequence[frozenset[int]], needed: Sequence[frozenset[int]], reading: Sequence[frozenset[int]]
    ) -> None:
        self._sharing = sharing
        self._needed = needed
        self._reading = reading

    def of(self, ctx: Any, tangents: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor] | None:
        """What earlier passes have left of what a call saved; None before the first.

        Args:
            ctx: the call's node.
            tangents: the gradients that have come.

        Raises:
            RuntimeError: an earlier pass has freed what these need, or it was written since.
        """
        spent = getattr(ctx, "spent", None)
        if spent is None:
            return None
        present = [k for k, tangent in enumerate(tangents) if tangent is not None]
        if any(not self._sharing[k].isdisjoint(spent) for k in present):
            raise RuntimeError(_AGAIN)
        for one, version, reading in zip(ctx.rest, ctx.versions, self._reading, strict=True):
            if one._version != version and not reading.isdisjoint(present):
                raise RuntimeError(_WRITTEN.format(shape=list(one.shape), now=one._version, then=version))
        return ctx.rest  # type: ignore[no-any-return]

    def leave(self, ctx: Any, saved: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]) -> None:
        """A pass has read all that it needs: keep what others may need, unless the graph is retained as it is."""
        if torch._C._autograd._get_current_graph_task_keep_graph():
            return
        present = {k for k, tangent in enumerate(tangents) if tangent is not None}
        spent = ctx.spent = present.union(getattr(ctx, "spent", None) or ())
        left = {k for k, others in enumerate(self._sharing) if others.isdisjoint(spent)}
        ctx.rest = [
            _husk(one) if needed.isdisjoint(left) else one.detach()  # which leads to no node: this one holds it
            for one, needed in zip(saved, self._needed, strict=True)
        ]  # fmt: skip


_WRITTEN = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor of shape "
    "{shape} is at version {now}; expected version {then} instead."
)


def _husk(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same sizes without memory of its own to speak of: nobody reads its elements."""
    return tensor.new_empty(()).expand(tensor.shape)
