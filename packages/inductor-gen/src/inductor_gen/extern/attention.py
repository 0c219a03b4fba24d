"""Fused attention operators with a mask: where the mask and the causal flag stand among their arguments.

A mask that adds nothing (``"free"``) may be left out; one that hides exactly what comes later (``"causal"``) is the
operator's own causal mode, which skips half of the work. The results keep their meaning and shapes. A backward pass
does as its forward did: the forward's logarithms of sums, which every backward takes, carry a note of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from prims.records import record

if TYPE_CHECKING:
    from inductor_gen.loops.graph import Node

__all__ = [
    "BACKWARD", "FORWARD", "LOGSUMEXP", "Masked", "as_the_forward", "mask_of", "note", "noted", "spare_mask_of",
    "without_mask",
]  # fmt: skip

#: The item of a forward's results that its backward takes, whatever the operator.
LOGSUMEXP = 1


@record
class Masked:
    """Positions among an operator's arguments: of the mask (or its keyword), of the causal flag, in a backward of the
    forward's logarithms of sums; ``defaults`` are those of the arguments from ``first`` up to the flag."""

    mask: int | str
    causal: int
    first: int
    defaults: tuple[Any, ...] = ()
    logsumexp: int = -1


_CUDNN, _EFFICIENT = "aten._scaled_dot_product_cudnn_attention", "aten._scaled_dot_product_efficient_attention"
_CPU = "aten._scaled_dot_product_flash_attention_for_cpu"

FORWARD = {
    f"{_CUDNN}.default": Masked(3, 6, 5, (0.0, False)),
    f"{_EFFICIENT}.default": Masked(3, 6, 5, (0.0, False)),
    f"{_CPU}.default": Masked("attn_mask", 4, 3, (0.0, False)),
}
BACKWARD = {
    f"{_CUDNN}_backward.default": Masked(8, 14, 15, logsumexp=5),
    f"{_EFFICIENT}_backward.default": Masked(4, 11, 11, (False,), logsumexp=6),
    f"{_CPU}_backward.default": Masked("attn_mask", 7, 8, logsumexp=5),
}


def mask_of(node: Node) -> Node | None:
    """The mask of an attention operator; None where it has none, and of other operators."""
    at = FORWARD.get(node.op) or BACKWARD.get(node.op)
    if at is None:
        return None
    if isinstance(at.mask, str):
        return node.kwargs.get(at.mask)
    return node.args[at.mask] if len(node.args) > at.mask else None


def spare_mask_of(node: Node) -> Node | None:
    """The mask of an attention operator that might do without it; None for other operators."""
    at = FORWARD.get(node.op) or BACKWARD.get(node.op)
    if at is None or _wants_gradient(node):
        return None
    args = (*node.args, *at.defaults[len(node.args) - at.first :])
    return mask_of(node) if args[at.causal] is False else None


def _wants_gradient(node: Node) -> bool:
    """Does a backward give the mask's gradient too?"""
    return node.op == f"{_EFFICIENT}_backward.default" and bool(node.args[10][3])


def without_mask(at: Masked, verdict: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of a call without its mask; the keywords are changed where they are."""
    changed = [*args, *at.defaults[len(args) - at.first :]] if len(args) >= at.first else list(args)
    if isinstance(at.mask, str):
        kwargs[at.mask] = None
    else:
        changed[at.mask] = None
    changed[at.causal] = verdict == "causal"
    return tuple(changed)


def note(tensor: torch.Tensor, verdict: str) -> None:
    """Note on a forward's logarithms of sums that they were computed without the mask."""
    tensor._quintet_without_mask = verdict  # type: ignore[attr-defined]


def noted(tensor: Any) -> str | None:
    """What :func:`note` put there, else None."""
    return getattr(tensor, "_quintet_without_mask", None)


def as_the_forward(op: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call an attention's backward, without the mask where its forward was computed without it."""
    at = BACKWARD[op]
    verdict = noted(args[at.logsumexp])
    if verdict is not None:
        args = without_mask(at, verdict, args, kwargs)
    return function(*args, **kwargs)
