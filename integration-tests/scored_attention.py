"""``flex_attention`` against the formula in float64: programs that several judges of its kernels share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import compile_api

__all__ = ["MASKS", "SCORES", "judge", "masked", "scored"]

#: By name: from ``(heads, queries, keys, device)`` to a score function.
SCORES: dict[str, Callable[..., Any]] = {
    "none": lambda *_: None,
    "alibi": lambda h, q, k, device: _alibi(torch.linspace(0.1, 1, h, device=device)),
    "table": lambda h, q, k, device: _table(torch.linspace(-3, 3, h * q * k, device=device).reshape(h, q, k).sin()),
    "capped": lambda *_: lambda s, b, h, i, j: torch.tanh(s / 5) * 5,
    "documents": lambda h, q, k, device: _documents(torch.arange(k, device=device) // 13),
    "rows that see nothing": lambda *_: lambda s, b, h, i, j: torch.where((i > 3) & (i >= j), s, -float("inf")),
}

#: By name: a mask function and whether it differs from head to head.
MASKS: dict[str, tuple[Callable[..., Any], bool]] = {
    "causal": (lambda b, h, i, j: i >= j, False),
    "window": (lambda b, h, i, j: (i - j).abs() <= 20, False),
    "by head": (lambda b, h, i, j: (i + 100 * h) % 300 >= j, True),
}


def _alibi(slopes: torch.Tensor) -> Callable[..., Any]:
    return lambda s, b, h, i, j: s + slopes[h] * (j - i) * 0.1


def _table(table: torch.Tensor) -> Callable[..., Any]:
    return lambda s, b, h, i, j: s * 2 + table[h, i, j]


def _documents(documents: torch.Tensor) -> Callable[..., Any]:
    return lambda s, b, h, i, j: torch.where(documents[i] == documents[j], s, -float("inf"))


def scored(name: str, heads: int, queries: int, keys: int, device: str) -> Callable[..., Any]:
    """Attention with a score function, and the sums' logarithms."""
    score = SCORES[name](heads, queries, keys, device)
    return lambda q, k, v: flex_attention(
        q, k, v, score_mod=score, enable_gqa=q.shape[1] != k.shape[1], return_lse=True
    )


def masked(name: str, heads: int, length: int, device: str, block: Any = 128) -> Callable[..., Any]:
    """Attention with a block mask."""
    mask, by_head = MASKS[name]
    blocks = create_block_mask(mask, None, heads if by_head else None, length, length, device=device, BLOCK_SIZE=block)
    return lambda q, k, v: flex_attention(
        q, k, v, block_mask=blocks, enable_gqa=q.shape[1] != k.shape[1], return_lse=True
    )


def judge(
    function: Callable[..., Any], compiled: Callable[..., Any], heads: tuple[int, int], lengths: tuple[int, int],
    widths: tuple[int, int], dtype: torch.dtype, device: str,
) -> None:  # fmt: skip
    """Results and gradients of a compiled attention: no further from the formula in float64 than 16-bit operands leave
    them, measured against the largest element."""
    exact = compile_api.compile(function, fullgraph=True, backend="eager")
    found = [_run(fn, kind, heads, lengths, widths, dtype, device)
             for fn, kind in ((compiled, dtype), (exact, torch.float64))]  # fmt: skip
    for mine, right in zip(*found, strict=True):
        assert torch.equal(mine.isinf(), right.isinf())
        mine, right = (x.double().masked_fill(x.isinf(), 0) for x in (mine, right))
        assert (mine - right).abs().max() <= 4 * torch.finfo(dtype).eps * right.abs().max()


def _run(
    function: Callable[..., Any], kind: torch.dtype, heads: tuple[int, int], lengths: tuple[int, int],
    widths: tuple[int, int], dtype: torch.dtype, device: str,
) -> list[torch.Tensor]:  # fmt: skip
    shapes = [(2, heads[0], lengths[0], widths[0]), *((2, heads[1], lengths[1], width) for width in widths)]
    random = torch.Generator().manual_seed(0)
    leaves = [torch.randn(shape, generator=random).to(dtype).to(device, kind).requires_grad_() for shape in shapes]
    out, sums = function(*leaves)
    (out.double().square().sum() + sums.masked_fill(sums.isinf(), 0).double().sin().sum()).backward()
    return [out.detach(), sums.detach(), *(x.grad for x in leaves)]
