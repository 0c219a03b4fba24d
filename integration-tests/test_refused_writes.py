"""Tensors that autograd lets nobody write: a graph captured for others raises eager's error, and writes nothing first."""

from __future__ import annotations

import pytest
import torch

import compile_api


def no_history(w):
    base = w.clone()
    with torch.no_grad():
        return base[:]


class Pair(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x[:4], x[4:]

    @staticmethod
    def backward(ctx, a, b):
        return torch.cat([a, b])


#: Of a leaf, tensors of one size and layout.
MADE = {
    "leaf": lambda w: w,
    "view of a leaf": lambda w: w.view(4, 3),
    "one of a split": lambda w: torch.cat([w, w]).split(4)[0],
    "one of unbind": lambda w: torch.stack([w, w]).unbind(0)[0],
    "view without a history": no_history,
    "of a function": lambda w: Pair.apply(torch.cat([w, w]))[0],
    "detached": lambda w: w.detach(),
    "view of a leaf that is a view": lambda w: torch.arange(12.0).view(4, 3).requires_grad_()[:],
    "view of no leaf": lambda w: w.clone().view(4, 3),
}


def first(x, seen):
    x.mul_(2)
    seen.add_(1)
    return x.sum()


def last(x, seen):
    seen.add_(1)
    x.sigmoid_()
    return x.sum()


def by_value(x, seen):
    seen.add_(1)
    x[0] = seen
    return x.sum()


def outcome(program, made, seen):
    w = torch.ones(4, 3, requires_grad=True)
    x = MADE[made](w)
    try:
        program(x, seen).detach()
    except RuntimeError as error:
        return str(error).partition("\n")[0], x.detach().clone(), seen.clone()
    return "fine", x.detach().clone(), seen.clone()


@pytest.mark.filterwarnings("ignore::prims.errors.CompileWarning")
@pytest.mark.parametrize("program", [first, last, by_value], ids=lambda f: f.__name__)
@pytest.mark.parametrize("made", MADE)
def test_graph_of_a_tensor_that_may_be_written(program, made, capfd):
    compiled = compile_api.compile(program)
    ours, theirs = torch.zeros(1), torch.zeros(1)
    for kind in ("view of no leaf", "view of no leaf", made, "view of no leaf", made):
        got, expected = outcome(compiled, kind, ours), outcome(program, kind, theirs)
        assert got[0] == expected[0]
        torch.testing.assert_close(got[1:], expected[1:])
    report = compiled.report()
    assert report.kernels and len(report.fallbacks) <= 2 and (made != "view of no leaf" or not report.fallbacks), report
    assert "Traced Module" not in capfd.readouterr().err
