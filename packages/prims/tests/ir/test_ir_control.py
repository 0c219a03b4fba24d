"""Operators of control flow: their bodies are checked, verified and lowered with the graph, and no file holds them."""

from __future__ import annotations

import pytest
import torch
from ir_examples import Builder, aten, spec

from prims.control import Form, control_of, control_operator
from prims.errors import InternalError, StoredGraphError, VerifierError
from prims.ir import Mutation, to_json, verify
from prims.lower import lower
from prims.spec import infer


def body(target=aten.sin.default, shape=(3,)):
    b = Builder("aten")
    return b.finish(b.call(target, (b.input("x", spec(*shape)),), spec(*shape)))


def branch(true=None, false=None):
    overload = control_operator(Form("cond"), [true or body(), false or body(aten.cos.default)])
    b = Builder("aten")
    given = (b.input("p", spec()), b.input("x", spec(3)))
    return b.finish(b.call(overload, given, spec(3)))


def test_equal_bodies_share_an_operator():
    one, two = (control_operator(Form("cond"), [body(), body(aten.cos.default)]) for _ in range(2))
    assert one is two
    assert one is not control_operator(Form("cond"), [body(aten.cos.default), body()])
    assert control_of(torch.ops.aten.sin.default) is None


@pytest.mark.parametrize("predicate", [True, False])
def test_it_runs_as_it_is(predicate):
    x = torch.linspace(0, 1, 3)
    (found,) = branch().module()(torch.tensor(predicate), x)
    torch.testing.assert_close(found, x.sin() if predicate else x.cos())


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan(reverse):
    b = Builder("aten")
    carried, row = b.input("h", spec(3)), b.input("x", spec(3))
    total = b.call(aten.add.Tensor, (carried, row), spec(3))
    step = b.finish(total, b.call(aten.cos.default, (total,), spec(3)))
    overload = control_operator(Form("scan", carried=1, mapped=1, reverse=reverse), [step])
    assert [found.shape for found in infer(overload, (spec(3), spec(5, 3)))] == [(3,), (5, 3)]
    start, rows = torch.zeros(3), torch.randn(5, 3)
    last, stacked = overload(start, rows)
    sums = (rows.flip(0) if reverse else rows).cumsum(0)
    torch.testing.assert_close(last, sums[-1])
    torch.testing.assert_close(stacked, (sums.flip(0) if reverse else sums).cos())


def test_lowering_goes_into_the_bodies():
    lowered = lower(branch())
    (node,) = lowered.op_nodes
    assert [str(inner.target.name) for env in control_of(node.target).bodies for inner in env.op_nodes] == ["sin", "cos"]
    assert {env.dialect for env in control_of(node.target).bodies} == {"prim"}


def test_bodies_are_verified_with_the_graph():
    wrong = body()
    next(iter(wrong.op_nodes)).meta["spec"] = spec(3, dtype=torch.float64)
    with pytest.raises(VerifierError) as caught:
        verify(branch(true=wrong))
    assert caught.value.label == "ENV-C7"


@pytest.mark.parametrize(
    ("bodies", "text"),
    [
        (lambda: [body(), body(shape=(4,))], "different inputs"),
        (lambda: [body().replace(mutations=(Mutation(0, 0),))] * 2, "writes"),
    ],
)
def test_bodies_that_do_not_fit(bodies, text):
    with pytest.raises(InternalError, match=text):
        control_operator(Form("cond"), bodies())


def test_a_file_does_not_hold_them():
    with pytest.raises(StoredGraphError, match="a branch or loop") as caught:
        to_json(branch())
    assert caught.value.label == "FILE-C1"
