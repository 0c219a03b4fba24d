"""``heapq``, ``operator``'s getters, ``str.format`` and equality by identity, as the program's own calls."""

from __future__ import annotations

import collections
import dataclasses
import heapq
import operator
import random

import pytest
import torch

FIRST = operator.itemgetter(0)
FIELDS = operator.itemgetter("x", "k")
NESTED = operator.attrgetter("inner.scale", "name")
MEAN = operator.methodcaller("mean", dim=0)


@dataclasses.dataclass(order=True)
class Job:
    """Compared by priority alone."""

    priority: int
    what: object = dataclasses.field(compare=False)


def test_a_queue_of_jobs(capture):
    def fn(x):
        queue = []
        for priority in (5, 2, 8, 1, 2):
            heapq.heappush(queue, Job(priority, x * priority))
        found = [heapq.heapreplace(queue, Job(9, x)), heapq.heappushpop(queue, Job(0, x - 1))]
        while queue:
            found.append(heapq.heappop(queue))
        return torch.stack([job.what for job in found]), [job.priority for job in found]

    compiled = capture(fn)
    x = torch.randn(3)
    assert torch.equal(compiled(x)[0], fn(x)[0]) and compiled(x)[1] == fn(x)[1]
    assert len(compiled.graphs) == 1 and not compiled.report.breaks


@pytest.mark.parametrize("seed", range(6))
def test_the_lists_come_out_in_the_same_order(capture, seed):
    draw = random.Random(seed)
    given = [draw.randrange(8) for _ in range(draw.randrange(1, 12))]
    more = [draw.randrange(8) for _ in range(4)]

    def fn(x, heap):
        trace = []
        heapq.heapify(heap)
        trace.append(list(heap))
        for item in more:
            trace.append((heapq.heappushpop(heap, item), list(heap)))
            heapq.heappush(heap, item)
            trace.append((heapq.heapreplace(heap, item // 2), list(heap)))
        trace.append([heapq.nlargest(3, heap), heapq.nsmallest(2, heap, key=lambda v: -v)])
        trace.append(collections.Counter(map(str, heap)).most_common(2))
        while len(heap) > 1:
            trace.append((heapq.heappop(heap), list(heap)))
        return x + 1, trace

    compiled = capture(fn)
    mine, eager = list(given), list(given)
    assert compiled(torch.zeros(1), mine)[1] == fn(torch.zeros(1), eager)[1] and mine == eager
    assert not compiled.report.breaks


@pytest.mark.parametrize("push", [lambda heap: heapq.heappop([]), lambda heap: heapq.heappush(heap, "text")])
def test_what_raises_raises_as_in_eager(capture, push):
    heap, wanted = [1, 2], [1, 2]
    with pytest.raises((IndexError, TypeError)) as eager:
        push(wanted)
    compiled = capture(lambda x: (x + 1, push(heap)))
    with pytest.raises(type(eager.value), match=str(eager.value).replace("'", ".")):
        compiled(torch.zeros(1))
    assert heap == wanted


class Config:
    """What a getter looks into."""

    def __init__(self, scale):
        self.inner, self.name, self.scale = self, "name", scale


def test_getters_from_outside(capture):
    config = Config(2.0)

    def fn(x):
        a, k = FIELDS({"x": x, "k": 3})
        scale, name = NESTED(config)
        return MEAN(a * k * scale), name, max([(1, 5), (2, 3)], key=FIRST)

    compiled = capture(fn)
    x = torch.randn(3, 2)
    for scale in (2.0, 3.0):
        config.scale = scale
        result, wanted = compiled(x), fn(x)
        assert torch.equal(result[0], wanted[0]) and result[1:] == wanted[1:]
    assert not compiled.report.breaks


def test_getters_that_are_passed(capture):
    compiled = capture(lambda x, get: get([x, x + 1, x + 2]).sum())
    x = torch.ones(2)
    for key, wanted in ((0, 2.0), (1, 4.0), (0, 2.0), (True, 4.0)):
        assert compiled(x, operator.itemgetter(key)).item() == wanted
    assert len(compiled.graphs) == 3  # 1 and True are two
    assert compiled(x, operator.methodcaller("pop", 0)).item() == 2.0


def test_format_of_sizes_stays_symbolic(capture):
    def fn(x):
        return x + 1, "{:>5d}|{:,} {:.1f}% {}".format(x.shape[0], x.numel(), 100 / 3, "of"), "{0[0]}".format((7,))

    compiled = capture(fn, dynamic=True)
    for n in (3, 4, 2000):
        assert compiled(torch.ones(n, 2))[1:] == fn(torch.ones(n, 2))[1:]
    assert len(compiled.graphs) == 1 and not compiled.report.breaks


def test_a_tensor_is_equal_to_itself_in_containers(capture):
    def fn(x):
        table = {"a": x}
        return x + 1, x in [x], [x].index(x), (x, 1) == (x, 1), table == table.copy(), [x].count(x)

    compiled = capture(fn)
    x = torch.randn(3)
    assert compiled(x)[1:] == fn(x)[1:] == (True, 0, True, True, 1)
    assert not compiled.report.breaks
