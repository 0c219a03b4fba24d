"""Writes to the parts of functions, of those that the region defines and of those that are there before it.

Each program's lines come after the definition of ``d``; capture and eager agree on what ``d`` then gives, and is.
"""

from __future__ import annotations

import functools
import types

import pytest
import torch

DEFINED = """
    k = 4
    def d(a=1, b=[2], *, c=3, e=x.shape[0]):
        "Of a program."
        return a, b, c, e, k
"""
PROGRAMS = {
    "defaults": "d.__defaults__ = (7, 8)",
    "fewer defaults": "d.__defaults__ = (7,)",
    "no defaults": "d.__defaults__ = None",
    "defaults by setattr": "setattr(d, '__defaults__', (x.dim(), [4]))",
    "defaults without a tuple": "d.__defaults__ = [7]",
    "what a default holds": "d.__defaults__[1].append(5); d()[1].append(6)",
    "deleted defaults": "del d.__defaults__",
    "keyword defaults": "d.__kwdefaults__ = {'c': 9, 'e': x.shape[0]}",
    "fewer keyword defaults": "d.__kwdefaults__ = {'c': 9}",
    "no keyword defaults": "d.__kwdefaults__ = None",
    "one keyword default": "d.__kwdefaults__['c'] = 9",
    "a keyword default less": "d.__kwdefaults__.pop('e')",
    "keyword defaults under another name": "held = d.__kwdefaults__; d(); held.update(c=d()[0], e=6); same = held is d.__kwdefaults__",
    "code": "d.__code__ = other.__code__",
    "closure": "d.__closure__ = ()",
    "names": "d.__name__, d.__qualname__, d.__module__, d.__doc__ = 'n', 'q', 'm', 'doc'",
    "a name that is no text": "d.__name__ = 3",
    "annotations": "d.__annotations__['a'] = int; d.__annotations__.setdefault('b', []).append(1)",
    "an annotation that is missing": "d.__annotations__['nope']",
    "attributes": "d.u = [x.shape[0]]; d.u.append(2); d.w = d.u",
    "attributes by the dictionary": "d.__dict__['u'] = 3; vars(d).update(w=4)",
    "an attribute that is missing": "d.nope",
    "an attribute in the dictionary": "d.__dict__['u'] = 3; held = d.u",
    "a cleared dictionary": "d.u = 1; d.__dict__.clear(); held = d.u",
    "wraps": "d.u = 5; d = functools.wraps(d)(wrapping(d))",
}


def other(a=1, b=[2], *, c=3, e=4):
    return "other", a, b, c, e


def wrapping(inner):
    return lambda *args, **kwargs: (inner(*args, **kwargs), "wrapped")


def called(d):
    try:
        return d(), d(0, c=0)
    except TypeError as error:
        return str(error)


def seen(result):
    y, d, error, held = result
    own = {name: value for name, value in vars(d).items() if name != "__wrapped__"}
    names = d.__name__, d.__qualname__, d.__module__, d.__doc__
    return y.tolist(), error, held, d.__defaults__, d.__kwdefaults__, d.__annotations__, names, own, called(d)


def program(lines, defined):
    names = {"functools": functools, "other": other, "wrapping": wrapping, "__name__": __name__}
    text = f"""
def f(x, d=None):
    held = error = None
{defined}
    try:
        {lines}
    except (TypeError, AttributeError, KeyError, ValueError) as e:
        error = type(e).__name__, str(e)
    try:
        found = d()[0]
    except TypeError:
        found = "refused"
    return x * (found if type(found) is int else 10), d, error, held
"""
    exec(text, names)
    return names["f"]


@pytest.mark.parametrize("lines", PROGRAMS.values(), ids=PROGRAMS)
def test_of_a_function_made_here(lines, capture):
    fn = program(lines, DEFINED)
    compiled = capture(fn, strict=False)
    for size in (2, 3, 3):
        assert seen(compiled(torch.ones(size))) == seen(fn(torch.ones(size)))


def existing():
    k = 4

    def d(a=1, b=[2], *, c=3, e=2):
        "Of a program."
        return a, b, c, e, k

    d.__defaults__ = (1, [2])
    d.there = 1
    return d


@pytest.mark.parametrize("lines", PROGRAMS.values(), ids=PROGRAMS)
def test_of_a_function_from_outside(lines, capture):
    fn = program(lines, "")
    compiled = capture(fn, strict=False)
    for _ in range(3):
        assert seen(compiled(torch.ones(2), existing())) == seen(fn(torch.ones(2), existing()))


def test_what_is_written_needs_no_break(capture):
    def f(x):
        def d(a=1, *, c=3):
            return a + c

        d.__defaults__, d.__kwdefaults__["c"], d.tag = (4,), 5, "t"
        return x * d(), d.tag

    compiled = capture(f, fullgraph=True)
    assert compiled(torch.ones(1))[0].tolist() == [9] and isinstance(compiled(torch.ones(1))[1], str)
    assert len(compiled.graphs) == 1


HELD = types.ModuleType("held")


def sets_by_the_dictionary(x):
    HELD.__dict__["v"] = 3
    vars(HELD).update(late=4)
    return x * (HELD.v + HELD.late), getattr(HELD, "late", 0)


def deletes_by_the_dictionary(x):
    del HELD.__dict__["v"]
    try:
        return x * HELD.v
    except AttributeError as error:
        return x, str(error)


@pytest.mark.parametrize("fn", [sets_by_the_dictionary, deletes_by_the_dictionary])
def test_of_a_module_by_its_dictionary(fn, capture):
    compiled = capture(fn, strict=False)
    for _ in range(2):
        results = []
        for run in (compiled, fn):
            vars(HELD).pop("late", None)
            HELD.v = 1
            results.append((str(run(torch.ones(2))), HELD.__dict__.get("v"), HELD.__dict__.get("late")))
        assert results[0] == results[1]


def read(x):
    def g(v):
        return v + 1

    g.a = 2
    own = g.__dict__
    before = len(own), own.get("a"), "b" in own
    g.b = 3
    return g(x), before, len(own), own["b"], sorted(own), list(own.items()), g.__dict__ == {"a": 2, "b": 3}


def written(x):
    def g(v):
        return v + 1

    g.__dict__.update(z=5)
    g.__dict__["q"] = 1
    return g(x), g.z, g.q


def dropped(x):
    def g(v):
        return v + 1

    g.a, g.b = 1, 2
    own = g.__dict__
    found = own.pop("a"), own.pop("none", 7), own.setdefault("c", 9)
    del own["b"]
    return g(x), found, hasattr(g, "a"), sorted(g.__dict__), len(own)


@pytest.mark.parametrize("fn", [read, written, dropped], ids=lambda fn: fn.__name__)
def test_the_dictionary_of_a_function_made_here(fn, capture):
    ours, expected = capture(fn, fullgraph=True)(torch.ones(2)), fn(torch.ones(2))
    assert torch.equal(ours[0], expected[0]) and ours[1:] == expected[1:]
