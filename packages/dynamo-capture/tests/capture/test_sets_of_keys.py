"""Sets made of the keys of dicts of every kind have CPython's order."""

from __future__ import annotations

import collections
import random

import pytest
import torch

import dynamo_capture


class Derived(dict):
    pass


class Ordered(collections.OrderedDict):
    pass


SCOPE = {"Counter": collections.Counter, "OrderedDict": collections.OrderedDict, "Derived": Derived, "Ordered": Ordered}
KINDS = ["dict.fromkeys(s)", "Counter(s)", "OrderedDict.fromkeys(s)", "Derived(dict.fromkeys(s))", "Ordered.fromkeys(s)"]
MADE = [
    "d.keys() | set(xs)", "d.keys() | xs", "d.keys() - set(xs)", "d.keys() & set(s[1:])", "d.keys() ^ set(xs)",
    "set(xs) | d.keys()", "set(s[1:]) - d.keys()", "set(d)", "set(d.keys())", "set(d.keys()) | set(xs)", "set(xs).union(d.keys())",
    "set(xs).union(d)", "set(xs).symmetric_difference(d.keys())", "{*d, *xs}", "{*xs, *d.keys()}", "frozenset(d.keys()) | set(xs)",
]  # fmt: skip


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_a_set_of_keys(kind, made):
    scope = dict(SCOPE)
    exec(f"def f(x, s, xs):\n    d = {kind}\n    v = {made}\n    return x + 1, list(v), str(v)", scope)
    rng = random.Random(repr((kind, made)))
    for _ in range(20):
        s = "".join(rng.choice("abcdefghijkl7") for _ in range(rng.randrange(12)))
        xs = [rng.randrange(-3, 40) for _ in range(rng.randrange(12))]
        compiled = dynamo_capture.optimize(scope["f"], lambda gm, xs: gm.forward)
        assert compiled(torch.ones(2), s, xs)[1:] == scope["f"](torch.ones(2), s, xs)[1:]
