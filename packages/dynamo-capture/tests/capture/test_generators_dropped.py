"""Generators to which nothing refers any more are closed there, in the order of the program, as Python closes them."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch

import dynamo_capture
from prims.options import Options
from prims.report import Report

pytestmark = pytest.mark.filterwarnings("ignore")

#: Statements with ``g(k, name)``, a generator of ``k`` numbers that tells ``log`` when it ends.
CAPTURED = r"""
v = next(g(2), 9); log.append(v)
v = list(zip(g(3, "a"), g(2, "b"))); log.append("e")
it = g(3); a = next(it); log.append("m"); it = None; log.append("e")
it = g(3); a = next(it); log.append("m")
it = iter(map(lambda q: q + 1, g(4, "m"))); next(it); del it; log.append("e")
a, *b = g(3); log.append("e")
t = any(q > 0 for q in g(5, "any")); log.append(t)
i = 2 in g(5, "in"); log.append(i)
v = [*zip(g(3, "a"), [1])]; log.append("e")
v = sum(1 for q in zip([1], g(3, "a"))); log.append("e")
v = dict(zip("ab", g(5))); log.append(v)
v = next(enumerate(g(4))); log.append(v)
v = list(itertools.islice(g(4), 2)); log.append(v)
v = next(filter(None, g(4))); log.append(v)
v = next(itertools.accumulate(g(4))); log.append(v)
v = next(itertools.pairwise(g(4))); log.append(v)
v = next(itertools.dropwhile(bool, g(4))); log.append(v)
v = next(itertools.cycle(g(4))); log.append(v)
v = [k for k, _ in itertools.islice(itertools.groupby(g(4)), 2)]; log.append(v)
g(3).send(None); log.append("e")
it = g(3); next(it); it = g(2, "second"); next(it); log.append("e")
it = g(3); next(it); o = [it]; it = None; log.append("e"); o.pop(); log.append("f")
it = g(3); next(it); o = (it,); del it; log.append(len(o)); del o; log.append("e")
v = max(g(3)), min(g(2), default=3); log.append(v)
v = functools.reduce(lambda a, b: a + b, itertools.takewhile(lambda q: q < 1, g(4))); log.append(v)
f = lambda: next(g(3)); log.append(f()); log.append("e")
d = {"k": g(3)}; next(d["k"]); d.clear(); log.append("e")
d = {"k": g(3)}; next(d["k"]); d["k"] = 1; log.append("e")
o = type(log)(); o.append(g(3)); next(o[0]); del o[0]; log.append("e")
for q in g(3): log.append(q); break
for q in g(3): log.append([r for r in g(3, "inner") if r])
log.append([next(q) for q in (g(2, "1"), g(2, "2"))]); log.append("e")
s = {next(g(3)) for _ in range(2)}; log.append("e")
a, b = g(2, "a"), g(2, "b"); next(a), next(b); log.append("e")
def k(a): next(a); log.append("in"); return 1
log.append(k(g(3))); log.append("e")
def k(a): next(a); b = g(3, "b"); c = g(3, "c"); next(b), next(c); return a
log.append(k(g(3)) is None); log.append("e")
def k(a): yield next(a)
w = k(g(3)); next(w); log.append("e"); w = None; log.append("f")
def k(): yield from g(3)
w = k(); next(w); log.append("e"); w = None; log.append("f")
def k(): it = g(2, "own"); next(it); yield 1
w = k(); next(w); log.append("e"); w = None; log.append("f")
""".replace("): ", "):\n        ").strip().replace("\ndef", "\x00def").replace("\nlog.append(k(", "\n    log.append(k(").replace("\nw = k(", "\n    w = k(")
#: Those that a traceback may refer to, that go together, or that live on across a break.
LEFT = r"""
def k(): it = g(2); next(it); raise ValueError
    try: k()
    except ValueError: log.append("e")
    log.append("f")
o = [g(2, "a"), g(2, "b")]; [next(q) for q in o]; q = None; o.clear(); log.append("e")
it = g(3); next(it); print(end=""); log.append("e"); del it; log.append("f")
it = g(3); next(it); other = it; print(end=""); it = None; log.append("e")
for q in g(3): print(end=""); log.append(q)
for q in g(3): print(end=""); log.append(q); break
v = next(g(3)); print(end=""); log.append("e"); v = next(g(2, "second")); log.append("f")
it = g(3); next(it); y = x + 1; log.append(float(y.sum())); print(end=""); log.append("e")
"""


def bodies(text):
    """The programs of a list: one a line, save that a function's continues in the lines that are indented."""
    found: list[str] = []
    for line in text.strip().replace("\x00", "\n").splitlines():
        if line.startswith(" ") and found:
            found[-1] += "\n" + line
        else:
            found.append(line)
    return found


def outcome(run, count):
    log: list[object] = []

    def g(k, name="g"):
        try:
            yield from range(k)
        finally:
            log.append("closed " + name)

    try:
        result = run(torch.ones(2), count, log, g)
    except Exception as error:
        return type(error), str(error), log
    log.append("returned")
    return result.tolist(), log


@pytest.mark.parametrize("tail", ["", "log.append(float(x.sum()))"], ids=["whole", "breaks"])
@pytest.mark.parametrize("body", [*bodies(CAPTURED), *bodies(LEFT)])
def test_when_generators_are_closed(body, tail):
    scope = {"functools": functools, "itertools": itertools, "torch": torch}
    exec(f"def f(x, n, log, g):\n    y = x * 2\n    {body}\n    {tail}\n    return y + x + n", scope)
    report = Report()
    compiled = dynamo_capture.optimize(scope["f"], lambda gm, _: gm.forward, options=Options(), report=report)
    for count in (1, 2, 3):
        assert outcome(compiled, count) == outcome(scope["f"], count)
    if not tail and body in bodies(CAPTURED):
        assert report.graphs
        assert not report.fallbacks
        assert not report.breaks
