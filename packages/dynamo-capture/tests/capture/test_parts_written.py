"""Objects of the standard library whose parts a program writes to or asks for by name: partials, exceptions, and
subclasses of containers that call their base's methods."""

from __future__ import annotations

import collections
import functools
import itertools

import pytest
import torch


def times(a, b=1, c=0):
    return a * b + c


def set_keyword(x, p):
    p.keywords["b"] = 5
    return p(x)


def update_keywords(x, p):
    before = p.keywords
    p.keywords.update(b=7, c=2)
    return p(x), dict(before), before is p.keywords


def drop_keyword(x, p):
    p.keywords.pop("b")
    return functools.partial(p, c=1)(x), p(x), len(p.keywords)


def of_its_own(x, p):
    made = functools.partial(times, b=2)
    kept = made.keywords
    kept["c"] = x
    made.extra = 3
    return made(x), made.keywords is kept, made.extra, functools.partial(made, b=4).keywords["b"]


def handed_out(x, p):
    made = functools.partial(times, b=2)
    made.keywords["c"] = 1
    return made, made.keywords, x + 1


@pytest.mark.parametrize("fn", [set_keyword, update_keywords, drop_keyword, of_its_own, handed_out])
def test_keywords_of_a_partial(capture, fn):
    compiled = capture(fn)
    for _ in range(2):
        mine, eager = functools.partial(times, b=2), functools.partial(times, b=2)
        x = torch.ones(2)
        assert repr(compiled(x, mine)) == repr(fn(x, eager)) and repr(mine.keywords) == repr(eager.keywords)
    assert not compiled.report.breaks


def test_keywords_of_a_partial_that_is_handed_out(capture):
    made, keywords, _ = capture(handed_out)(torch.ones(2), None)
    assert made.keywords is keywords and made(3) == 7


BASES = {
    "dict": (dict, ({"a": 1}, {"a": 2}, {"a": 1, "b": 2}, {"b": 2, "a": 1})),
    "OrderedDict": (collections.OrderedDict, ({"a": 1}, {"a": 2}, {"a": 1, "b": 2}, {"b": 2, "a": 1})),
    "defaultdict": (functools.partial(collections.defaultdict, int), ({"a": 1}, {"a": 2})),
    "Counter": (collections.Counter, ("a", "b", "ab", "ba")),
    "list": (list, ((1,), (2,), (1, 2))),
    "set": (set, ((1,), (2,), (1, 2))),
    "tuple": (tuple, ((1,), (2,), (1, 2))),
    "deque": (collections.deque, ((1,), (2,), (1, 2))),
}


def with_own_equality(base):
    """A class that asks its base."""

    class Own(base):
        def __eq__(self, other):
            return bool(super().__eq__(other)) and True

        def __ne__(self, other):
            return bool(super().__ne__(other)) or False

        __hash__ = None

    return Own


@pytest.mark.parametrize("name", BASES)
def test_a_subclass_asks_its_base_whether_it_is_equal(capture, name):
    make, contents = BASES[name]
    base = make.func if isinstance(make, functools.partial) else make
    own = with_own_equality(base)
    given = make.args if isinstance(make, functools.partial) else ()

    def fn(x, a, b):
        return x + 1, a == b, a != b, base.__eq__(a, b), base.__ne__(a, b), 2 if a == b else 3

    for cls, other in itertools.product((own, base), repeat=2):
        compiled = capture(fn)
        for one, two in itertools.product(contents, repeat=2):
            a, b = cls(*given, one), other(*given, two)
            assert compiled(torch.ones(1), a, b)[1:] == fn(torch.ones(1), a, b)[1:], (a, b)


class Shape(tuple):
    """A tuple of its own class."""


def test_parts_of_tuples(capture):
    def fn(x, s, t):
        whole = [s[:], s * 1, 1 * s, s + (), () + s, s.__mul__(1), s[0:], s[::1]]
        mine = [t[:] is t, t * 1 is t, t + () is t, () + t is t, t[::-1] is t, t[1:] is t, tuple(t) is t]
        return x + 1, [type(part).__name__ for part in whole], [part is s for part in whole], whole, mine

    compiled = capture(fn)
    for s, t in ((Shape((1, 2)), (1, 2)), (Shape(), (3,)), (Shape((3,)), ([1], 2, 2))):
        assert compiled(torch.ones(1), s, t)[1:] == fn(torch.ones(1), s, t)[1:]


def test_an_exception_is_made_again(capture):
    def fn(x, error):
        error.__init__("new", 2)
        made = ValueError("a")
        made.__init__("b")
        return x + 1, error.args, made.args

    compiled = capture(fn, strict=False)
    for _ in range(2):
        mine, eager = ValueError("old"), ValueError("old")
        assert compiled(torch.ones(1), mine)[1:] == fn(torch.ones(1), eager)[1:] and mine.args == eager.args
