"""Attributes of objects of C types that the region makes, and other questions that classes and numbers answer."""

from __future__ import annotations

import collections
import functools

import pytest
import torch
from torch import nn


class Scaled:
    """With methods by ``partialmethod``."""

    def scale(self, x, by):
        return x * by

    three = functools.partialmethod(scale, by=3)


class Meta(type):
    """Gives what the class lacks."""

    def __getattr__(cls, name):
        if name.startswith("made_"):
            return len(name)
        raise AttributeError(name)


class Registry(metaclass=Meta):
    """Asked for attributes that it lacks."""

    real = 1


class Rows:
    """Walked by the old protocol."""

    def __init__(self, rows):
        self.rows = rows

    def __getitem__(self, at):
        return self.rows[at]


def state(x, model):
    held = model.state_dict(prefix="m.")
    held["extra"] = x
    return held, held._metadata, hasattr(held, "_metadata"), hasattr(collections.OrderedDict(held), "_metadata")


def averaged(x, model):
    with torch.no_grad():
        other = model.state_dict()
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                value.mul_(0.5).add_(other[name], alpha=0.25)
    return model(x)


def ordered(x, model):
    made = collections.OrderedDict(a=x)
    made.name, made.level = "first", 1
    del made.level
    return made, made.name, hasattr(made, "level")


def partials(x, model):
    made = functools.partial(torch.add, x)
    made.name = "plus"
    return made(1), made.name, hasattr(made, "other"), Scaled().three(x), made


def classes(x, model):
    return x + Registry.made_up, Registry.real, getattr(Registry, "none", None), hasattr(Registry, "made_it")


def walked(x, model):
    found = []
    try:
        x[x.shape[0]]
    except IndexError as error:
        found.append(str(error))
    return [row * 2 for row in Rows(x)], sum(Rows([1, 2])), found


def cast(x, model):
    return x.type(torch.IntTensor), x.type(dtype=torch.DoubleTensor), x.type()


PROGRAMS = [state, averaged, ordered, partials, classes, walked, cast]


def same(mine, eager):
    assert type(mine) is type(eager)
    if isinstance(eager, torch.Tensor):
        assert torch.equal(mine, eager) and mine.dtype == eager.dtype
    elif isinstance(eager, dict):
        same(list(mine), list(eager))
        same(list(mine.values()), list(eager.values()))
        same([*getattr(mine, "__dict__", {}).items()], [*getattr(eager, "__dict__", {}).items()])
    elif isinstance(eager, (list, tuple)):
        assert len(mine) == len(eager)
        for a, b in zip(mine, eager, strict=True):
            same(a, b)
    elif isinstance(eager, functools.partial):
        same([mine.func, mine.args, mine.__dict__], [eager.func, eager.args, eager.__dict__])
    else:
        assert mine == eager


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_one_graph(capture, fn):
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    compiled = capture(fn)
    for _ in range(2):
        x = torch.randn(4, 3)
        same(compiled(x, models[0]), fn(x, models[1]))
    assert not compiled.report.breaks


def test_bits_of_two_ints_that_change(capture):
    def fn(x, k):
        return x * (k | (k + 3)) + (k & (k // 2)), k ^ (k - 1), k << (k % 3)

    compiled = capture(fn)
    for k in (5, 6, 7, 5):
        mine, eager = compiled(torch.ones(2), k), fn(torch.ones(2), k)
        assert torch.equal(mine[0], eager[0]) and mine[1:] == eager[1:]
    assert not compiled.report.breaks
