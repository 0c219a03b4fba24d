"""Data that a program must not have: an index out of range, an integer divided by zero. Eager's error, from a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import compile_api

I64 = torch.int64


def _ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=I64)


X = torch.arange(6.0)
TABLE = torch.arange(12.0).reshape(4, 3)

BAD: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "index": (lambda x, i: x[i] * 2, (X, _ints(1, 6))),
    "index_below": (lambda x, i: x[i] * 2, (X, _ints(-7))),
    "index_of_nothing": (lambda x, i: x[i] + 1, (torch.zeros(0, 4), _ints(0))),
    "gather": (lambda x, i: x.gather(0, i).exp().sum(), (X, _ints(3, -1))),
    "gather_in_lanes": (lambda x, i: x.gather(1, i).tanh(), (torch.randn(8, 64), torch.full((8, 64), 64))),
    "gather_in_softmax": (lambda x, i: x.gather(1, i).softmax(1), (torch.randn(8, 64), torch.full((8, 64), 64))),
    "embedding": (lambda w, i: F.embedding(i, w).sin(), (TABLE, _ints(0, 4))),
    "embedding_from_the_end": (lambda w, i: F.embedding(i, w).sin(), (TABLE, _ints(-1))),
    "index_select_from_the_end": (lambda w, i: w.index_select(1, i).sin(), (TABLE, _ints(-1))),
    "cross_entropy": (lambda x, t: F.cross_entropy(x, t), (TABLE, _ints(0, 1, 2, 3))),
    "scatter": (lambda x, i: x.scatter(0, i, 1.0) + 1, (X, _ints(100000))),
    "index_add": (lambda x, i: torch.zeros(4).index_add(0, i, x[:2]), (X, _ints(0, 4))),
    "index_put": (lambda x, i: torch.index_put(x, (i,), x[:1]), (X, _ints(6))),
    "index_put_rows": (lambda x, i: torch.index_put(x, (i,), x[:1] + 1, accumulate=True), (TABLE, _ints(-5))),
    "floor_divide": (lambda x, y: x // y, (_ints(1, 2), _ints(1, 0))),
    "remainder": (lambda x, y: x % y, (_ints(1, 2), _ints(1, 0))),
    "fmod": (lambda x, y: torch.fmod(x, y), (_ints(1, 2), _ints(1, 0))),
    "truncated": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), (_ints(1, 2), _ints(1, 0))),
}


@pytest.mark.parametrize("name", BAD)
def test_error_of_eager(name: str) -> None:
    program, args = BAD[name]
    with pytest.raises(Exception) as expected:
        program(*args)
    compiled = compile_api.compile(program)
    for _ in range(2):
        with pytest.raises(type(expected.value)) as error:
            compiled(*args)
        assert str(error.value) == str(expected.value)
        assert error.value.__context__ is None
        (note,) = error.value.__notes__
        assert f'File "{__file__}", line {program.__code__.co_firstlineno}, in <lambda>' in note
    report = compiled.report()
    assert report.kernels and not report.fallbacks and not report.breaks


def test_what_no_data_can_make_good_is_raised_by_the_program_itself() -> None:
    """Capture sees that the operator refuses whatever it is given: the call runs eagerly, up to its own error."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x // 0

    with pytest.raises(Exception) as expected:
        program(_ints(1, 2))
    compiled = compile_api.compile(program)
    for _ in range(2):
        with pytest.raises(type(expected.value)) as error:
            compiled(_ints(1, 2))
        assert str(error.value) == str(expected.value) and error.value.__context__ is None
        assert any(entry.name == "program" and str(entry.path) == __file__ for entry in error.traceback)


def test_good_data_after_bad() -> None:
    """The kernels stay in use, in training too, and nothing of the bad call is seen."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 3))
    expected = torch.autograd.grad(model(_ints(1, 9)).sum(), list(model.parameters()))
    compiled = compile_api.compile(model)
    for bad in (10, -1):
        compiled(_ints(1, 9))
        with pytest.raises(IndexError, match="index out of range in self"):
            compiled(_ints(1, bad))
        for found, wanted in zip(
            torch.autograd.grad(compiled(_ints(1, 9)).sum(), list(model.parameters())), expected, strict=True
        ):
            torch.testing.assert_close(found, wanted)
    assert not compiled.report().fallbacks


@pytest.mark.parametrize(
    "program",
    [
        lambda x, i: F.pad(x[i], (2, 1)).sin(),
        lambda x, i: torch.cat([x[i], torch.where(i > 0, x, -x)]),
        lambda x, i: F.cross_entropy(x[None], torch.tensor([-100])),
        lambda x, i: x[(i + 1).clamp(max=5)],
        lambda x, i: x[i[:0]].sum() + torch.zeros(0, 3)[i[:0]].sum(),
        lambda x, i: F.interpolate(x[None, None], size=13, mode="linear"),
        lambda x, i: F.pad(x[None], (2, 2), mode="reflect").exp(),
        lambda x, i: torch.zeros(0)[i[:0]].exp().sum(),
        lambda x, i: i // (i + 1) + i % 3,
    ],
)
def test_nothing_is_refused_that_is_never_read(program: Callable[..., Any]) -> None:
    i = _ints(5, 4, 3, 2, 1, 0)
    compiled = compile_api.compile(program)
    torch.testing.assert_close(compiled(X, i), program(X, i), equal_nan=True)
    assert not compiled.report().fallbacks


def test_an_index_needed_on_both_sides_of_a_reduction() -> None:
    """Columns in lanes, a reduction of few rows in between: what was picked is picked again, and checked again."""

    def program(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        picked = x.gather(1, i)[:, 0]
        return picked, (picked - torch.where(i[:, 0] > 0, 0.0, y.amax(1)) * 0.5).abs()

    x, y, i = torch.randn(8, 2), torch.randn(8, 2), torch.randint(0, 2, (8, 1))
    compiled = compile_api.compile(program)
    for got, expected in zip(compiled(x, i, y), program(x, i, y), strict=True):
        torch.testing.assert_close(got, expected)
    with pytest.raises(RuntimeError, match="out of bounds"):
        compiled(x, i + 2, y)
    assert not compiled.report().fallbacks
