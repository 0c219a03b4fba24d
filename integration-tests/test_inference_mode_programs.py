"""Programs under ``torch.inference_mode``, where tensors have no version counters: what is written is written, and what
capture asks a counter is answered otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention
from torch.utils._pytree import tree_leaves

import compile_api

X = torch.linspace(-2, 2, 32).reshape(4, 8)
Q = torch.linspace(-1, 1, 256).reshape(1, 2, 16, 8)


def returned(shape: tuple[int, ...], call: Callable[..., Any]) -> Callable[..., Any]:
    """Three ways to use ``out=``: what the call gives, the tensor it was given, and what is made of that."""

    def program(x: torch.Tensor, way: int) -> Any:
        out = torch.empty(shape)
        found = call(x, out)
        return found if way == 0 else out if way == 1 else out * 2

    return program


OUT: dict[str, tuple[tuple[int, ...], Callable[..., Any]]] = {
    "add": ((4, 8), lambda x, out: torch.add(x, 1, out=out)),
    "mul": ((4, 8), lambda x, out: torch.mul(x, x, out=out)),
    "matmul": ((4, 4), lambda x, out: torch.matmul(x, x.t(), out=out)),
    "cat": ((8, 8), lambda x, out: torch.cat([x, x], out=out)),
    "sum": ((4,), lambda x, out: torch.sum(x, 1, out=out)),
    "cumsum": ((4, 8), lambda x, out: torch.cumsum(x, 1, out=out)),
    "where": ((4, 8), lambda x, out: torch.where(x > 0, x, -x, out=out)),
    "clamp": ((4, 8), lambda x, out: torch.clamp(x, 0, 1, out=out)),
    "exp": ((4, 8), lambda x, out: torch.exp(x, out=out)),
    "mm": ((4, 4), lambda x, out: torch.mm(x, x.t(), out=out)),
    "stack": ((2, 4, 8), lambda x, out: torch.stack([x, x], out=out)),
    "aten": ((4, 8), lambda x, out: torch.ops.aten.add.out(x, x, out=out)),
}


def in_list(x: torch.Tensor) -> Any:
    parts = [x.clone(), x + 1]
    torch._foreach_add_(parts, 1.0)
    return parts


def several_results(x: torch.Tensor) -> Any:
    values, places = torch.empty(4, 8), torch.empty(4, 8, dtype=torch.int64)
    torch.sort(x, out=(values, places))
    return values, places


def of_views(x: torch.Tensor) -> Any:
    y = x.clone()
    y[0].fill_(1.0)
    y[:, 1:3].mul_(2)
    y[y < 0] = 0.5
    y.t()[2] += 1
    return y


def searched(x: torch.Tensor) -> Any:
    return sum(x[0, i] for i in x[0].topk(3).indices)


def known(x: torch.Tensor) -> Any:
    t = torch.tensor([1.0, 2.0])
    return x + 1 if t[0] == 1 else x


def branching(x: torch.Tensor) -> Any:
    u = torch.full((1, 1), 0.25)
    u[0, 0] = x[0, 0]
    return x + 1 if u[0, 0] < 0.5 else x


def listed(x: torch.Tensor) -> Any:
    return [x[i] for i in torch.tensor([3, 1, 2]).tolist() if i > 1]


PROGRAMS: dict[str, Callable[..., Any]] = {
    "cond": lambda x: torch.cond(x.sum() > 100, lambda x: x.sin(), lambda x: x.cos(), (x,)),
    "flex attention": lambda x: flex_attention(Q, Q, Q, score_mod=lambda s, b, h, i, j: s + i - j),
    "in lists": in_list, "several results": several_results, "views": of_views, "searched": searched, "known": known,
    "branching": branching, "listed": listed,
    "random": lambda x: x if torch.rand(1) < 0.0 else x * 2,
    "in place": lambda x: x.clone().add_(1).mul_(2),
    "put": lambda x: x.clone().index_put_((torch.tensor([1]),), torch.tensor(3.0)),
    "data": lambda x: x[x > 0],
}  # fmt: skip


def checked(program: Callable[..., Any], x: torch.Tensor, *more: Any) -> Any:
    """The report of two calls that gave what eager gives."""
    compiled = compile_api.compile(program)
    for given in (x, x + 0.25):
        expected, found = tree_leaves(program(given, *more)), tree_leaves(compiled(given, *more))
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)
    report = compiled.report()
    assert "internal" not in report.verdict and not any("internal" in f.reason for f in report.fallbacks), report.verdict
    return report


@pytest.mark.parametrize("way", [0, 1, 2])
@pytest.mark.parametrize("name", OUT)
def test_results_are_in_the_tensor_that_is_given(name: str, way: int) -> None:
    program = returned(*OUT[name])
    with torch.inference_mode():
        report = checked(program, X.clone(), way)
    assert report.verdict == "compiled" and report.kernels + report.externs


@pytest.mark.parametrize("made", ["inside", "outside"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, made: str) -> None:
    x = X.clone()
    with torch.inference_mode():
        checked(PROGRAMS[name], X.clone() if made == "inside" else x)


@pytest.mark.parametrize("name", PROGRAMS)
def test_entered_by_the_program(name: str) -> None:
    def program(x: torch.Tensor) -> Any:
        with torch.inference_mode():
            return PROGRAMS[name](x)

    checked(program, X.clone())
