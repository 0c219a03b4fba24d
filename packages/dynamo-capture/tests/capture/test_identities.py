"""Tables of a capture go by the identities of values, which therefore live as long as the tables do."""

from __future__ import annotations

import torch

import dynamo_capture


class Kind(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


class First(Kind):
    pass


class Second(Kind):
    pass


class Third(Kind):
    pass


def deep_iterators_beside_classes(x, items):
    """Iterators inside iterators hold numbers that only planning makes; the classes are made when code is emitted."""
    chains = []
    for _ in range(3):
        found = iter(items)
        for _ in range(40):
            found = enumerate(found)
            next(found)
        chains.append(found)
    y = x + 1
    return y.as_subclass(Kind), (y * 2).as_subclass(First), (y * 3).as_subclass(Second), (y * 4).as_subclass(Third), chains


def test_what_planning_makes_keeps_its_identity(capture):
    for call in range(12):
        dynamo_capture.reset()
        compiled = capture(deep_iterators_beside_classes)
        given = torch.arange(4.0) + call, list(range(200))
        found, wanted = compiled(*given), deep_iterators_beside_classes(*given)
        assert [type(each) for each in found[:4]] == [type(each) for each in wanted[:4]]
        torch.testing.assert_close([each.as_subclass(torch.Tensor) for each in found[:4]],
                                   [each.as_subclass(torch.Tensor) for each in wanted[:4]])  # fmt: skip
        assert [next(each) for each in found[4]] == [next(each) for each in wanted[4]]
