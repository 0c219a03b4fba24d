"""Attention whose scores pass through a function of the program's (``flex_attention``).

In the torch dialect a node's target is a :class:`ScoredAttention`. In the aten and prim dialects it is a pair of
operators (:func:`prims.control.control_operator`) whose body is that function, so that a kernel can apply it to a block
of scores that never lie in memory::

    attention           (query, key, value, *tables, *read)                         -> result, sums
    attention_backward  (query, key, value, gradient, sums, rest, *tables, *read)   -> their three gradients

``query`` is ``(batch, heads, queries, width)``, ``key`` ``(batch or 1, key heads, keys, width)``, ``value`` ``(batch or
1, key heads, keys, value width)``; heads of keys serve equally many heads of queries each, in turn. ``sums`` are the
logarithms of the sums of the exponentiated scores, ``(batch, heads, queries)`` in float32; ``rest`` is what a score's
gradient is less than its weight's, for each query: the sum of ``result * gradient`` less the gradient of ``sums``. The
forward body takes ``(scores, *read)`` and gives the scores; the backward one takes ``(scores, gradients, *read)``
and gives what the forward one does and the gradients of what it is given. ``tables`` are those of a ``BlockMask``: how
many blocks of keys each block of queries may see, and which; once more for blocks that it sees whole; and in the
gradient's the same for the queries that see each block of keys. The formula ignores them. That of the gradients is
FlashAttention's (Dao and others, 2022), which needs no weight in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from prims.spec import TensorSpec

__all__ = ["ScoredAttention", "attend", "attention_results", "gradients", "places"]

_Body = Callable[..., Sequence[torch.Tensor]]


class ScoredAttention:
    """Attention with captured score and mask functions. The target of a graph node.

    ``attention(query, key, value, *read)`` returns the result in the query's memory order, the logarithms of the sums
    of the exponentiated scores and the largest scores, both ``(batch, heads, queries)``. Products of scores are
    computed in float32, in float64 for such queries; rows that see nothing give zeros. The formula is that of PyTorch's
    own implementation (``torch._higher_order_ops.flex_attention.math_attention``).

    Args:
        score: from ``(score, batch, head, query_index, key_index, *read)`` to the score, all broadcast; None: as it is.
        mask: from ``(batch, head, query_index, key_index, *read)`` to whether the query sees the key; None: always.
        reads: how many of ``read`` belong to ``score``; the rest is the mask's.
        scale: factor of the products.
        largest: whether the largest scores are asked for.
        tables: how many tables of blocks come before ``read``, of which half are the queries' of each block of keys.
        block: queries and keys of such a block.
    """

    def __init__(
        self, score: torch.fx.GraphModule | None, mask: torch.fx.GraphModule | None, reads: int, scale: float,
        largest: bool = True, tables: int = 0, block: tuple[int, int] = (0, 0),
    ) -> None:  # fmt: skip
        self.__name__ = self.__qualname__ = "flex_attention"
        self.__module__ = __name__
        self.score = score
        self.mask = mask
        self.reads = reads
        self.scale = scale
        self.largest = largest
        self.tables = tables
        self.block = block

    def __call__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *read: Any) -> Any:
        device = query.device.type
        if not torch.is_autocast_enabled(device):
            return self.formula(query, key, value, *read)
        operands = self.operands(query, key, value)
        with torch.autocast(device, enabled=False):
            return self.formula(*operands, *read)

    def operands(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Query, key and value as autocast wants them."""
        device = tensors[0].device.type
        if not torch.is_autocast_enabled(device):
            return tensors
        return tuple(tensor.to(torch.get_autocast_dtype(device)) for tensor in tensors)

    def formula(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *read: Any) -> Any:
        """What it computes, with every score in memory."""
        key, value = (_every_head(tensor, query) for tensor in (key, value))
        scores = self.changed(self._scores, scores_of(query, key, self.scale), *read[self.tables :])
        sums = scores.logsumexp(-1)
        out = torch._safe_softmax(scores, -1).to(query.dtype) @ value.to(query.dtype)
        return _in_order_of(query, out), sums, scores.amax(-1)

    def changed(self, run: Callable[..., Any], scores: torch.Tensor, *read: Any) -> torch.Tensor:
        """The scores after its functions, which ``run(graph, *args)`` runs: ``(batch, heads, queries, keys)``."""
        at, shape = places(scores), scores.shape
        seen = None if self.mask is None else run(self.mask, *at, *read[self.reads :])
        if self.score is not None:
            scores = run(self.score, scores, *at, *read[: self.reads])
        if seen is not None:
            scores = torch.where(seen, scores, -math.inf)
        return scores.expand(shape)

    @staticmethod
    def _scores(graph: torch.fx.GraphModule, *args: Any) -> Any:
        return graph(*args)

    def __repr__(self) -> str:
        return self.__name__


def places(scores: torch.Tensor) -> list[torch.Tensor]:
    """The positions of scores along their four dimensions, each broadcast."""
    return [
        torch.arange(n, device=scores.device).view([-1 if i == d else 1 for i in range(4)])
        for d, n in enumerate(scores.shape)
    ]


def scores_of(query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
    """The products of queries and keys, which have as many heads: ``(batch, heads, queries, keys)``."""
    working = torch.float64 if query.dtype == torch.float64 else torch.float32
    return (query.to(working) @ key.to(working).transpose(-2, -1)) * scale


def _every_head(tensor: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Keys or values with a head for each of the query's, which take turns: ``(batch, heads, keys, width)``."""
    batch, heads = query.shape[:2]
    given, keys, width = tensor.shape[1:]
    if given != heads:
        tensor = tensor.unsqueeze(2).expand(-1, given, heads // given, keys, width).flatten(1, 2)
    return tensor.expand(batch, heads, keys, width)


def _order(strides: Sequence[Any]) -> list[int]:
    """The dimensions as they lie in memory, outermost first."""
    return sorted(range(4), key=lambda d: (-strides[d], d))


def _in_order_of(query: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """``out`` with its dimensions in memory in the order of the query's."""
    order = _order(query.stride())
    inverse = [order.index(d) for d in range(4)]
    return out.permute(order).contiguous().permute(inverse)


# --- the operators ----------------------------------------------------------------------------------------------------


def attention_results(kind: str, args: Sequence[Any]) -> list[TensorSpec]:
    """The metadata of what an operator of this kind returns, of that of what it takes."""
    query, key, value = args[:3]
    if kind == "attention_backward":
        return [TensorSpec(x.shape, x.dtype, x.device) for x in (query, key, value)]
    shape = (*query.shape[:3], value.shape[3])
    strides, step = [0] * 4, 1
    for d in reversed(_order(query.strides)):
        strides[d], step = step, step * shape[d]
    return [
        TensorSpec(shape, query.dtype, query.device, strides),
        TensorSpec(shape[:3], torch.float32, query.device),
    ]


def attend(scale: float, body: _Body, args: Sequence[Any]) -> list[torch.Tensor]:
    """What ``attention`` returns, with every score in memory."""
    query, key, value, *read = args
    key, value = (_every_head(tensor, query) for tensor in (key, value))
    (scores,) = body(scores_of(query, key, scale), *read)
    weights = torch._safe_softmax(scores, -1).to(query.dtype)
    return [_in_order_of(query, weights @ value), scores.logsumexp(-1)]


def gradients(scale: float, body: _Body, args: Sequence[Any]) -> list[torch.Tensor]:
    """What ``attention_backward`` returns, with every score in memory."""
    query, key, value, tangent, sums, rest, *read = args
    keys, values = (_every_head(tensor, query) for tensor in (key, value))
    scores = scores_of(query, keys, scale)
    of_weights = tangent.float() @ values.float().transpose(-2, -1) - rest.unsqueeze(-1)
    (changed, *_) = body(scores, scores, *read)
    weights = torch.where(changed == -math.inf, 0.0, (changed - sums.unsqueeze(-1)).exp())
    _, of_scores = body(scores, weights * of_weights, *read)
    of_scores = of_scores * scale
    found = [
        of_scores @ keys.float(), of_scores.transpose(-2, -1) @ query.float(),
        weights.transpose(-2, -1) @ tangent.float(),
    ]  # fmt: skip
    return [_summed(x, given).to(given.dtype) for x, given in zip(found, (query, key, value), strict=True)]


def _summed(gradient: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """The gradient of a tensor of that of its copies for every head and batch."""
    heads = given.shape[1]
    if gradient.shape[1] != heads:
        gradient = gradient.unflatten(1, (heads, -1)).sum(2)
    return gradient.sum_to_size(given.shape)
