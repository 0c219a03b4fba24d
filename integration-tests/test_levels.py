"""Graph breaks inside dual numbers, and what is kept of a derivative after it: as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fw
from torch import nn

import compile_api

LINEAR = nn.Linear(3, 2)


def by_data(x: torch.Tensor, v: torch.Tensor) -> Any:
    with fw.dual_level():
        y = fw.make_dual(x, v).sin()
        if y.sum() > 0:
            y = y * 2
        return fw.unpack_dual(y).tangent


def breaking(x: torch.Tensor, v: torch.Tensor) -> Any:
    y = x * 2
    with fw.dual_level():
        dual = fw.make_dual(y, v)
        compile_api.graph_break()
        return fw.unpack_dual(dual.exp()).tangent + y


def without_gradients(x: torch.Tensor, v: torch.Tensor) -> Any:
    with fw.dual_level(), torch.no_grad():
        return fw.unpack_dual(LINEAR(fw.make_dual(x, v))).tangent


def pulled_after_a_break(x: torch.Tensor, v: torch.Tensor) -> Any:
    y, pull = torch.func.vjp(torch.sin, x)
    compile_api.graph_break()
    return y, pull(v)[0]


def broken_before_and_after(x: torch.Tensor, v: torch.Tensor) -> Any:
    compile_api.graph_break()
    with fw.dual_level():
        y = fw.unpack_dual(fw.make_dual(x, v).exp()).tangent
    compile_api.graph_break()
    return y * 2


PROGRAMS = [by_data, breaking, without_gradients, pulled_after_a_break, broken_before_and_after]


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_breaks(fn: Callable[..., Any]) -> None:
    compiled = compile_api.compile(fn)
    for seed in range(2):
        torch.manual_seed(seed)
        x, v = torch.randn(3), torch.randn(3)
        mine, eager = compiled(x, v), fn(x, v)
        pairs = zip(mine, eager, strict=True) if isinstance(eager, tuple) else [(mine, eager)]
        for a, b in pairs:
            torch.testing.assert_close(a, b)
            assert a.requires_grad == b.requires_grad
    assert "internal error" not in str(compiled.report())


def test_a_pull_back_that_is_handed_out() -> None:
    fn = lambda x: torch.func.vjp(torch.sin, x)
    x, v = torch.randn(3), torch.randn(3)
    mine, eager = compile_api.compile(fn)(x), fn(x)
    torch.testing.assert_close(mine[1](v), eager[1](v))
    assert not mine[0].requires_grad and not mine[1](v)[0].requires_grad


def test_a_pull_back_inside_is_compiled() -> None:
    fn = lambda x, v: torch.func.vjp(torch.sin, x)[1](v)[0] * 2
    compiled = compile_api.compile(fn)
    x, v = torch.randn(3), torch.randn(3)
    torch.testing.assert_close(compiled(x, v), fn(x, v))
    assert compiled.report().verdict == "compiled" and compiled.report().kernels


def test_a_tensor_of_inference_mode_is_not_written_outside() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    compiled = compile_api.compile(fn)
    with torch.inference_mode():
        x = torch.zeros(3)
        assert compiled(x).tolist() == [2, 2, 2] and x.tolist() == [1, 1, 1]
    for run in (fn, compiled):
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
            run(x)
