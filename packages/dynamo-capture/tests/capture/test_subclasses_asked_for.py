"""``cls.__subclasses__()``: an answer that later calls check."""

from __future__ import annotations

import gc
import weakref

import torch


class Base:
    scale = 1


class First(Base):
    scale = 2


class Second(Base):
    scale = 3


def total(x):
    return x * sum(cls.scale for cls in Base.__subclasses__()), [cls.__name__ for cls in Base.__subclasses__()]


def made_here(x):
    class Own(Base):
        scale = 10

    return x * sum(cls.scale for cls in Base.__subclasses__() if cls.__name__ != "Own") + Own.scale


def same(a, b):
    return torch.equal(a[0], b[0]) and a[1] == b[1]


def test_others_come_and_go(capture):
    compiled = capture(total, fullgraph=True)
    x = torch.ones(2)
    assert same(compiled(x), total(x)) and same(compiled(x), total(x)) and len(compiled.graphs) == 1
    third = type("Third", (Base,), {"scale": 7})
    assert same(compiled(x), total(x)) and compiled(x)[1][-1] == "Third"
    gone = weakref.ref(third)
    del third
    gc.collect()
    assert same(compiled(x), total(x))
    assert len(compiled.graphs) <= 3
    if gone() is None:
        assert compiled(x)[1] == ["First", "Second"]
    Second.scale = 5
    assert same(compiled(x), total(x))
    Second.scale = 3


def test_where_one_is_made(capture):
    compiled = capture(made_here, strict=False)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(2)), made_here(torch.ones(2)))
        gc.collect()


def test_classes_of_one_name(capture):
    def make(count):
        class Base:
            pass

        return Base, [type("Sub", (Base,), {}) for _ in range(count)]

    (one, _), (two, kept) = make(1), make(2)
    compiled = capture(lambda x: x + len(one.__subclasses__()) * 10 + len(two.__subclasses__()), fullgraph=True)
    assert compiled(torch.zeros(1)).item() == 12
    kept.append(type("Sub", (two,), {}))
    assert compiled(torch.zeros(1)).item() == 13
