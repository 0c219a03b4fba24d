"""``x.__new__(cls)``, which no instance is bound to, and functions of PyTorch's that are given a function of the program's."""

from __future__ import annotations

import collections

import pytest
import torch
import torch.distributions as td
import torch.nn.functional as F
from torch import nn


class Plain:
    def __init__(self, x):
        self.x = x

    def copy(self):
        made = self.__new__(type(self))
        made.x = self.x * 2
        return made


class Tagged(Plain):
    def __new__(cls, *args):
        made = super().__new__(cls)
        made.tag = 3
        return made


class Slots:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x

    def copy(self):
        made = self.__new__(Slots)
        made.x = self.x + 1
        return made


Pair = collections.namedtuple("Pair", "a b")

MADE = {
    "plain": lambda x: Plain(x).copy().x,
    "own": lambda x: Tagged(x).copy().x * Tagged(x).copy().tag,
    "slots": lambda x: Slots(x).copy().x,
    "tuple": lambda x: Pair(x, 1).__new__(Pair, x * 2, 2).a,
    "number": lambda x: x * (5.0).__new__(float, 2.5),
    "text": lambda x: x + len("a".__new__(str, "abc")),
    "normal": lambda x: td.Normal(x, x.abs() + 1).expand((2, 4, 6)).log_prob(x),
    "independent": lambda x: td.Independent(td.Normal(x, x.abs() + 1), 1).expand((2, 4)).log_prob(x.expand(2, 4, 6)),
    "categorical": lambda x: td.Categorical(logits=x).expand((2, 4)).entropy(),
    "mixture": lambda x: td.MixtureSameFamily(td.Categorical(torch.ones(6)), td.Normal(x, x.abs() + 1)).expand((2, 4)).mean,
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_an_instance_makes_another(capture, name):
    compiled, x = capture(MADE[name]), torch.randn(4, 6)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), MADE[name](x))
    assert compiled.report.breaks == [] and len(compiled.report.graphs) == 1


REFUSED = {
    "nothing": lambda x: Plain(x).__new__(),
    "no class": lambda x: Plain(x).__new__(3),
    "another's": lambda x: Plain(x).__new__(int),
    "more": lambda x: Plain(x).__new__(object, 3),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_python_refuses(capture, name):
    with pytest.raises(TypeError) as expected:
        REFUSED[name](torch.ones(2))
    with pytest.raises(TypeError) as got:
        capture(REFUSED[name])(torch.ones(2))
    assert str(got.value) == str(expected.value)


DISTANCE = nn.PairwiseDistance()
GIVEN = {
    "lambda": lambda a, b, c: F.triplet_margin_with_distance_loss(
        a, b, c, distance_function=lambda x, y: 1 - F.cosine_similarity(x, y)
    ),
    "module": lambda a, b, c: F.triplet_margin_with_distance_loss(a, b, c, distance_function=DISTANCE, swap=True),
    "torch's": lambda a, b, c: F.triplet_margin_with_distance_loss(a, b, c, distance_function=F.pairwise_distance),
    "none": lambda a, b, c: F.triplet_margin_with_distance_loss(a, b, c),
}


@pytest.mark.parametrize("name", GIVEN)
def test_functions_as_operands(capture, name):
    compiled, operands = capture(GIVEN[name]), [torch.randn(5, 8) for _ in range(3)]
    torch.testing.assert_close(compiled(*operands), GIVEN[name](*operands))
    assert compiled.report.breaks == [] and len(compiled.report.graphs) == 1
