"""An iterator that a region leaves behind is of its own type and gives what is left, wherever it stands."""

from __future__ import annotations

import collections
import itertools
import operator

import pytest
import torch

from dynamo_capture.frontend import optimize
from prims.options import Options
from prims.report import Report

ITERATORS = """
iter([1, n, 3])
iter((1, n))
iter({1, 2})
iter(frozenset([1, 2]))
iter({1: n, 2: 3})
iter({1: n}.values())
iter({1: n}.items())
iter(collections.OrderedDict(a=n, b=1).items())
iter(collections.deque([1, n]))
iter("abc")
iter(repr(n))
iter("%s %s" % (n, 1))
iter("é\u2020a")
iter(b"ab")
iter(range(3))
iter(lambda: 1, n)
reversed([1, n])
reversed((1, n))
reversed({1: n})
reversed({1: n}.values())
reversed(collections.deque([n, 1]))
reversed("abc")
reversed(b"ab")
reversed(range(0, 9, 2))
enumerate([n, 2])
zip([1, 2], [n, 3])
map(abs, [1, n])
filter(None, [1, n, 0])
itertools.chain([1], [n])
itertools.islice([1, n, 3], 2)
itertools.pairwise([1, n, 3])
itertools.accumulate([1, n, 3])
itertools.product([1, n], "ab")
itertools.product([1, n], repeat=2)
itertools.permutations([1, n, 2], 2)
itertools.combinations([1, n, 2], 2)
itertools.combinations_with_replacement([n, 2], 2)
itertools.takewhile(lambda q: q < 3, [1, n, 3, 4])
itertools.dropwhile(lambda q: q < 2, [1, n, 3])
itertools.filterfalse(None, [0, n, 0])
itertools.compress([1, n, 2], [1, 0, 1])
itertools.repeat(n, 2)
itertools.starmap(max, [(1, n)])
itertools.zip_longest([1], [n, 2])
"""


@pytest.mark.parametrize("steps", [0, 1, 2, 12])
@pytest.mark.parametrize("made", ITERATORS.strip().splitlines())
def test_an_iterator_that_is_left(made, steps):
    scope = {"collections": collections, "itertools": itertools}
    walk = f"for _ in range({steps}):\n        next(it, None)"
    exec(f"def f(x, n):\n    it = {made}\n    {walk}\n    return x + n, it", scope)
    compiled = optimize(scope["f"], lambda gm, xs: gm.forward, options=Options(fullgraph=True), report=Report())
    for n in (1, 2):
        _, ours = compiled(torch.ones(2), n)
        _, eager = scope["f"](torch.ones(2), n)
        assert type(ours) is type(eager)
        assert operator.length_hint(ours, -1) == operator.length_hint(eager, -1)
        assert list(itertools.islice(ours, 20)) == list(itertools.islice(eager, 20))
