"""An entry goes away when a later one serves all its calls, and only then."""

from __future__ import annotations

import pytest
import torch

from dynamo_capture import _native


def entries(fn):
    return _native.entries(fn.__code__)


def check(compiled, fn, *args):
    torch.testing.assert_close(compiled(*args), fn(*args))


def test_a_symbolic_entry_replaces_those_of_single_sizes(capture):
    def fn(x, n):
        return x.sum(0) * n

    c = capture(fn)
    for rows, n in ((3, 2), (4, 2), (4, 5), (9, 7)):
        check(c, fn, torch.randn(rows, 2), n)
    assert len(c.graphs) == 3 and len(entries(fn)) == 1
    for rows, n in ((3, 2), (4, 5), (7, 1)):
        check(c, fn, torch.randn(rows, 2), n)
    assert len(entries(fn)) <= 2


def test_an_entry_of_another_branch_stays(capture):
    def fn(x):
        return x * 2 if x.shape[0] > 5 else x * 3

    c = capture(fn)
    for rows in (3, 8, 4, 9, 3, 8):
        check(c, fn, torch.randn(rows))
    assert len(entries(fn)) == 2 and len(c.graphs) == 3


@pytest.mark.parametrize(
    "first,second",
    [
        (lambda n: torch.randn(n), lambda n: torch.randn(n, dtype=torch.float64)),
        (lambda n: torch.randn(n), lambda n: torch.randn(n, requires_grad=True)),
        (lambda n: torch.randn(n, 4), lambda n: torch.randn(4, n).t()),
        (lambda n: torch.randn(n, 4), lambda n: torch.randn(n)),
    ],
)
def test_entries_of_other_tensors_stay(capture, first, second):
    def fn(x):
        return x.sin() + 1

    c = capture(fn)
    for n in (3, 5):
        for make in (first, second):
            check(c, fn, make(n))
    graphs = len(c.graphs)
    assert len(entries(fn)) == 2
    for n in (3, 5, 7):
        for make in (first, second):
            check(c, fn, make(n))
    assert len(c.graphs) == graphs


def test_what_is_told_by_an_object_or_a_value_keeps_its_entry(capture):
    def fn(x, how, function):
        return function(x) + len(how)

    c = capture(fn)
    for rows in (3, 4, 6):
        for how in ("a", "bb"):
            for function in (torch.sin, torch.cos):
                check(c, fn, torch.randn(rows), how, function)
    assert len(entries(fn)) == 4


def test_relations_between_sizes_are_not_dropped(capture):
    def fn(x, y):
        return x + y if x.shape == y.shape else x.sum() + y

    c = capture(fn)
    for a, b in ((3, 3), (4, 4), (4, 5), (3, 6), (7, 7), (3, 3), (5, 2)):
        check(c, fn, torch.randn(a), torch.randn(b))
    assert len(entries(fn)) == 2


def test_strides_that_a_later_entry_fixes_keep_the_earlier_one(capture):
    def fn(x):
        return x * 2

    c = capture(fn)
    base = torch.randn(40, 10)
    for x in (base[:3, :4], base[:5, :4], base[:3].t()[:4], torch.randn(3, 4), torch.randn(6, 4), base[:7, :4]):
        check(c, fn, x)
        assert c(x).stride() == fn(x).stride()


@pytest.mark.parametrize("flag", [lambda n: n > 4, lambda n: n == 5])
def test_a_flag_of_an_operator_may_be_computed_of_sizes(capture, flag):
    def fn(x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=flag(x.shape[1]))

    c = capture(fn)
    for rows in (3, 4, 5, 6, 9):
        check(c, fn, torch.randn(2, rows, 8))
    assert not c.report.breaks and not c.report.fallbacks
