"""Attention masks that are constants: left out, or turned into the causal flag, before anything runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gen_support import build

import inductor_gen
from inductor_gen.schedule.prepare import prepare

CUDNN = torch.ops.aten._scaled_dot_product_cudnn_attention.default
EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention.default
LOWEST = torch.finfo(torch.bfloat16).min


def triangle(p: Any, size: int, hidden: float, ahead: int = 0) -> Any:
    """``[1, 1, size, size]``: 0 where a column is at most ``ahead`` columns after its row, else ``hidden``."""
    device = torch.device("cpu")
    place = p.iota(size, 0, 1, torch.int64, device)
    rows, columns = (p.broadcast(place, (1, 1, size, size), (d,)) for d in (2, 3))
    seen = p.le(columns, p.add(rows, ahead))
    dtype = torch.bfloat16
    return p.where(seen, p.full((1, 1, size, size), 0.0, dtype, device), p.full((1, 1, size, size), hidden, dtype, device))


def prepared_args(mask_of: Any, op: Any = CUDNN) -> tuple[Any, ...]:
    """The operator's arguments after preparation, where ``mask_of(p, x)`` makes the mask."""
    q = torch.randn(2, 3, 16, 8).bfloat16()
    x = torch.randn(1, 1, 16, 16).bfloat16()

    def fn(p: Any, a: Any, given: Any) -> Any:
        mask = p.broadcast(mask_of(p, given), (2, 3, 16, 16), (0, 1, 2, 3))
        return p.aten(op, a, a, a, mask, False)[0]

    prepared = prepare(build(fn, [q, x], claims=inductor_gen.claims("cuda")), None)
    (node,) = [n for n in prepared.graph.nodes if n.kind == "extern"]
    return prepared.externs[node][0]


@pytest.mark.parametrize("op", [CUDNN, EFFICIENT])
@pytest.mark.parametrize("hidden", [float("-inf"), LOWEST])
def test_a_triangle_is_the_causal_flag(op: Any, hidden: float) -> None:
    args = prepared_args(lambda p, x: triangle(p, 16, hidden), op)
    assert args[3] is None and args[5] == 0.0 and args[6] is True


def test_a_mask_that_hides_nothing_is_left_out() -> None:
    args = prepared_args(lambda p, x: triangle(p, 16, float("-inf"), ahead=16))
    assert args[3] is None and args[6] is False


@pytest.mark.parametrize(
    "mask",
    [
        lambda p, x: triangle(p, 16, float("-inf"), ahead=1),
        lambda p, x: triangle(p, 16, float("-inf"), ahead=-1),
        lambda p, x: triangle(p, 16, -5.0),
        lambda p, x: p.add(triangle(p, 16, float("-inf")), 1.0),
        lambda p, x: p.add(triangle(p, 16, float("-inf")), x),
        lambda p, x: x,
    ],
)
def test_other_masks_stay(mask: Any) -> None:
    args = prepared_args(mask)
    assert args[3] is not None and (len(args) < 7 or args[6] is False)
