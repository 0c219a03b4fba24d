"""Custom operators that write to their arguments, through functionalisation."""

from __future__ import annotations

import pytest
import torch
from aot_checks import check

from aot_autograd import inference_graph
from prims.errors import Unsupported

LIBRARY = torch.library.Library("aot_test", "DEF")


def _define(schema, function):
    name = schema.partition("(")[0]
    LIBRARY.define(schema)
    LIBRARY.impl(name, function, "CPU")
    return getattr(torch.ops.aot_test, name)


def _swap(x, y):
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)


def _bump(xs, by):
    for x in xs:
        x.add_(1 if by is None else by)


def _add_one(x):
    x.add_(1)


scale_ = _define("scale_(Tensor(a!) x, float s) -> Tensor(a!)", lambda x, s: x.mul_(s))
swap = _define("swap(Tensor(a!) x, Tensor(b!) y) -> ()", _swap)
bump = _define("bump(Tensor(a!)[] xs, Tensor? by=None) -> ()", _bump)


def test_writes_to_inputs_views_and_intermediates():
    def f(x, y):
        z = x + 1
        scale_(z, 2.0)
        scale_(y[1], 3.0)
        swap(x, z)
        bump([y, z], x)
        return z * x, y.t()

    check(f, lambda: (torch.randn(3, 3), torch.randn(3, 3)))


def test_the_result_is_the_written_argument():
    def f(x):
        y = x * 2
        return scale_(y, 2.0) + y, y

    check(f, lambda: (torch.randn(3),))


def test_one_tensor_twice_and_halves_of_one():
    def f(x):
        swap(x, x)
        left, right = x.chunk(2, dim=1)
        swap(left, right)
        return x + 1

    check(f, lambda: (torch.randn(3, 4),))


def test_overlapping_arguments_are_refused():
    def f(x):
        swap(x[:3], x[1:])
        return x + 1

    with pytest.raises(Unsupported, match="'x' and 'y' share"):
        inference_graph(torch.fx.symbolic_trace(f), [torch.randn(4)])


def test_the_graph_is_functional():
    def f(x):
        scale_(x, 2.0)
        return x + 1

    env = inference_graph(torch.fx.symbolic_trace(f), [torch.randn(4)])
    env.verify("every_pass")
    assert [str(n.target) for n in env.graph.nodes if n.op == "call_function"] == [
        "quintet.aot_test__scale_.default", "aten.add.Tensor",
    ]  # fmt: skip
    assert len(env.mutations) == 1


def test_a_like_name_means_nothing():
    _define("same_name(Tensor x) -> Tensor", lambda x: x * 100)
    written = _define("same_name_(Tensor(a!) x) -> ()", _add_one)

    def f(x):
        written(x)
        return x * 1

    check(f, lambda: (torch.randn(3),))
