"""Operators that a program brings with it, as captured nodes."""

from __future__ import annotations

import pytest
import torch

LIBRARY = torch.library.Library("capture_test", "DEF")


def _define(schema, function):
    name = schema.partition("(")[0]
    LIBRARY.define(schema)
    LIBRARY.impl(name, function, "CPU")
    return getattr(torch.ops.capture_test, name)


SEEN: list[float] = []
scale_ = _define("scale_(Tensor(a!) x, float s) -> ()", lambda x, s: None if x.mul_(s) is None else None)
tell = _define("tell(Tensor x) -> ()", lambda x: SEEN.append(float(x.sum())))
size_of = _define("size_of(Tensor x) -> int", lambda x: int((x > 0).sum()))


def test_a_write_without_version_counter_is_kept(capture):
    def f(x):
        y = x + 1
        scale_(y, 2.0)
        scale_(x, 3.0)
        return y

    compiled = capture(f, fullgraph=True)
    x = torch.ones(3)
    assert compiled(x).tolist() == [4.0] * 3
    assert x.tolist() == [3.0] * 3
    assert compiled.ops() == 3


def test_a_written_input_that_shares_memory_is_left_to_eager(capture):
    def f(x, y):
        scale_(x, 2.0)
        return y + 1

    compiled = capture(f)
    x = torch.ones(4)
    assert compiled(x[:2], x[2:]).tolist() == [2.0] * 2
    x = torch.ones(4)
    assert compiled(x, x).tolist() == [3.0] * 4


def test_an_effect_breaks_the_graph_in_its_place(capture):
    def f(x):
        y = x * 2
        tell(y)
        return y + 1

    SEEN.clear()
    compiled = capture(f)
    assert compiled(torch.ones(3)).tolist() == [3.0] * 3
    assert SEEN == [6.0]
    with pytest.raises(Exception, match="run for its effect"):
        capture(f, fullgraph=True)(torch.ones(3))


def test_a_number_from_an_operator_is_not_baked_in(capture):
    compiled = capture(lambda x: x * size_of(x))
    assert compiled(torch.tensor([1.0, 1.0, -1.0])).tolist() == [2.0, 2.0, -2.0]
    assert compiled(torch.tensor([1.0, -1.0, -1.0])).tolist() == [1.0, -1.0, -1.0]
