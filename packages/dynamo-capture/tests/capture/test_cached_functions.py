"""Functions that keep their results, of sizes that change, after changes, and of objects that the region makes."""

from __future__ import annotations

import functools

import pytest
import torch

from dynamo_capture import optimize, supports_dynamic_shapes
from prims.report import Report

FACTOR = {"by": 2}


class Recipe:
    """What is to be done, as a library of patterns keeps it."""

    def __init__(self, pattern):
        self.left, self.right = (side.split() for side in pattern.split("->"))

    def order(self):
        return [self.left.index(name) for name in self.right]


@functools.lru_cache(64)
def recipe_of(pattern):
    return Recipe(pattern)


@functools.lru_cache(256)
def shapes_of(recipe, shape):
    if len(shape) != len(recipe.left):
        raise ValueError("another number of dimensions")
    order = recipe.order()
    return order, [shape[place] for place in order], shape[0] * shape[1]


def rearranged(x, pattern):
    order, shape, count = shapes_of(recipe_of(pattern), tuple(x.shape))
    return x.permute(order).reshape(shape) * count


@functools.lru_cache(8)
def by_a_global(shape):
    return shape[0] * FACTOR["by"]


@functools.lru_cache(8)
def counts(number):
    return [number]


def check(function, calls, **options):
    """The compiled function's report, once all calls have given eager's results."""
    report = Report()

    @supports_dynamic_shapes
    def backend(gm, inputs):
        return gm.forward

    compiled = optimize(function, backend, report=report, **options)
    for args in calls:
        torch.testing.assert_close(compiled(*args), function(*args))
    return report


def test_sizes_that_change_take_one_graph():
    report = check(lambda x: rearranged(x, "a b c -> c a b"), [(torch.randn(n, 3, n + 2),) for n in range(2, 14)])
    assert len(report.recompiles) == 1 and not report.breaks


def test_a_function_that_may_look_at_what_changes_is_asked():
    report = check(lambda x: x * by_a_global(tuple(x.shape)), [(torch.randn(n),) for n in (2, 3, 4)])
    assert not report.breaks and len(report.recompiles) == 2  # a graph for each size
    by_a_global.cache_clear()


@pytest.mark.parametrize("cold", [True, False])
def test_after_changes(cold):
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.count = 0
            self.register_buffer("mean", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            self.mean.add_(x.mean())
            return rearranged(x, "p q -> q p")

    recipe_of.cache_clear()
    shapes_of.cache_clear()
    if not cold:
        rearranged(torch.randn(3, 4), "p q -> q p")
    module = Counting()
    report = check(lambda x: module(x) * 0 + rearranged(x, "p q -> q p"), [(torch.randn(3, 4),) for _ in range(3)])
    assert not report.breaks


def test_what_the_region_makes_has_no_entry():
    before = shapes_of.cache_info().currsize

    def run(x):
        order, shape, _ = shapes_of(Recipe("a b -> b a"), (3, 4))
        return x.permute(order).reshape(shape)

    report = check(run, [(torch.randn(3, 4),), (torch.randn(3, 4),)])
    assert not report.breaks and shapes_of.cache_info().currsize - before <= 2  # eager's calls alone


def test_a_list_that_a_cache_keeps_for_a_number_is_the_caches():
    counts.cache_clear()
    report = Report()

    @supports_dynamic_shapes
    def backend(gm, inputs):
        return gm.forward

    compiled = optimize(lambda x, number: x * counts(number)[0], backend, report=report)
    x = torch.ones(1)
    for number in (2, 3, 4, 2):
        assert compiled(x, number).item() == number
    counts(2)[0] = 50
    assert compiled(x, 2).item() == 50


def test_an_error_of_the_function_is_the_programs():
    with pytest.raises(ValueError, match="another number of dimensions"):
        check(lambda x: rearranged(x, "a b c -> c a b"), [(torch.randn(2, 3, 4),), (torch.randn(5, 3, 4),), (torch.randn(5, 3),)])
