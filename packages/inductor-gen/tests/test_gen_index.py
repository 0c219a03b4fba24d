"""Indices that generated code computes by divisions, and reductions that do not depend on the loop around them."""

from __future__ import annotations

from typing import Any

import torch
from gen_support import check

from inductor_gen.loops.index import ZERO, lift
from prims.spec import expr as ex


def test_divisions_of_what_runs_backwards() -> None:
    """A shifted, reversed walk over rows: (16 - i) // 4 as the normal form writes it, 4 + (-i) // 4."""

    def fn(p: Any, x: Any) -> Any:
        flat = p.flip(p.reshape(x, (16,)), (0,))
        behind = p.pad(flat, 1.0, (1,), (-1,))
        return p.cumprod(behind, 0), p.reshape(behind, (4, 4)), p.flip(p.cumsum(behind, 0), (0,))

    check(fn, [torch.rand(4, 4) + 0.5])


def test_how_far_a_numerator_is_lifted() -> None:
    i = ex.symbol("i0")
    ranges = {i: ex.const(16)}
    assert lift(i, ex.const(4), ranges) is ZERO
    assert lift(ex.neg(i), ex.const(4), ranges) is ex.const(16)
    assert lift(ex.sub(i, ex.const(1)), ex.const(4), ranges) is ex.const(4)
    assert lift(ex.neg(ex.symbol("v3")), ex.const(4), ranges) is None


def test_a_reduction_that_is_the_same_in_all_rows() -> None:
    x = torch.randn(1, 4).expand(6, 4)
    check(lambda p, x: (p.sum(x, (1,)), p.add(p.sum(x, (1,)), 1.0)), [x])
    check(lambda p, x: (p.amax(x, (1,)), p.tanh(p.mul(p.amin(x, (1,)), 2.0))), [torch.randn(1, 300).expand(300, 300)])


def test_a_view_made_by_an_operator_outlives_its_base() -> None:
    """Its base's memory goes to the next buffers of that size."""

    def fn(p: Any, x: Any) -> Any:
        view = p.aten(torch.ops.aten.view.dtype, p.mul(x, 2.0), torch.int16)
        for _ in range(3):
            x = p.mul(p.aten(torch.ops.aten.sort.default, x)[0], 0.5)
        return x, p.add(view, 1)

    check(fn, [torch.randn(64)])
