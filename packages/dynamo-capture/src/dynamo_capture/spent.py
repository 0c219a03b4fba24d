"""Results of a region whose backward pass has been run in it.

In eager they need a gradient, and raise when one is asked for. The graph gives them without a history, so that it saves
nothing for a backward pass that never comes; the emitted code attaches one that raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["autograd_nodes", "is_spent", "let_go_of_own_leaves", "let_go_of_spent", "own_leaf", "spent"]


def autograd_nodes(roots: Iterable[torch.Tensor]) -> set[Any]:
    """The autograd nodes behind tensors."""
    stack = [tensor.grad_fn for tensor in roots]
    found: set[Any] = set()
    while stack:
        node = stack.pop()
        if node is not None and node not in found:
            found.add(node)
            stack.extend(next_node for next_node, _ in node.next_functions)
    return found


def is_spent(node: Any) -> bool:
    """Whether what an autograd node needs is gone: freed by a backward pass, or written over."""
    return _gone(node) is not None


def _gone(node: Any) -> str | None:
    """What autograd says where something that a node needs is gone."""
    for name in dir(node):
        if name.startswith("_saved_"):
            try:
                getattr(node, name)
            except RuntimeError as error:
                return _SPENT if _FREED in str(error) else str(error)
    return None


def let_go_of_spent(tx: Capture, outputs: Iterable[Any], last: bool) -> Mapping[int, str]:
    """Cut results whose backward pass cannot be run again off from their history; by their identities, what it says.

    Args:
        last: the function ends with the region. Else the program may go on to ask for a gradient of what it has
            written over, and is told so by autograd itself.
    """
    found: dict[int, str] = {}
    for value in outputs:
        if isinstance(value, TensorValue) and value.example.requires_grad:
            reasons = (_gone(node) for node in autograd_nodes([value.example]))
            reason = next((reason for reason in reasons if reason is not None and (last or reason is _SPENT)), None)
            if reason is not None:
                found[id(value)] = reason
    _cut_off(tx, [value for value in outputs if id(value) in found])
    return found


def let_go_of_own_leaves(tx: Capture, outputs: Iterable[Any]) -> frozenset[int]:
    """Give leaves that the region has made, and that have their gradients, as plain tensors; their identities."""
    return _cut_off(tx, [value for value in outputs if id(value) in tx.side.own_leaves and value.example.requires_grad])


def _cut_off(tx: Capture, found: list[TensorValue]) -> frozenset[int]:
    for value in found:
        node = tx.graph.graph.call_method("detach", (value.node,))
        node.meta |= {"spec": value.node.meta["spec"], "source": value.node.meta.get("source")}
        value.node = node
    return frozenset(map(id, found))


def own_leaf(tensor: torch.Tensor) -> torch.Tensor:
    """Runs in the emitted code: a leaf of autograd that the region has made."""
    return tensor.requires_grad_()


_FREED = "backward through the graph a second time"
_SPENT = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    "after calling backward."
)


class _Spent(torch.autograd.Function):
    """Runs in the emitted code: a tensor whose backward pass has been run."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, tensor: torch.Tensor, reason: str) -> torch.Tensor:
        ctx.reason = reason
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise RuntimeError(ctx.reason)


def spent(tensor: torch.Tensor, reason: str) -> torch.Tensor:
    """Runs in the emitted code: a result that needs a gradient, as in eager, and raises when one is asked for."""
    with torch.enable_grad():
        return _Spent.apply(torch.empty(0, requires_grad=True), tensor, reason)  # type: ignore[no-any-return]
