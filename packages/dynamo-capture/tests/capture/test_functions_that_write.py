"""C functions of the standard library with operands that can change: results, what the operands are then, and whether a
result is one of them, are eager's."""

from __future__ import annotations

import bisect
import collections
import copy
import functools
import heapq
import itertools
import math
import operator
import re
import struct

import pytest
import torch

MODULES = (operator, bisect, heapq, math, struct, itertools, functools, collections)
FUNCTIONS = {
    f"{module.__name__}.{name}": fn
    for module in MODULES
    for name, fn in vars(module).items()
    if callable(fn) and not name.startswith("_") and not isinstance(fn, type) and not hasattr(fn, "__code__")
}
OPERANDS = (
    lambda: [1, 2, 5], lambda: [], lambda: {1: "a", 2: "b"}, lambda: {1, 2}, lambda: collections.deque((1, 2)),
    lambda: bytearray(b"abcd"), lambda: collections.OrderedDict(a=1), lambda: [[1], [2]], lambda: ([1], [2]),
)  # fmt: skip
OTHERS = ((), (1,), ([2, 1],), ({9: 9},), ({1, 7},), (0, 1), ("b", 0, 5))


def outcome(fn, operands):
    """What it gives, or raises, with what its operands are then, and which of them it is."""
    try:
        result = fn(*operands)
        if hasattr(result, "__next__"):
            result = list(itertools.islice(result, 5))
    except Exception as error:
        return type(error), str(error), operands
    return re.sub(" at 0x[0-9a-f]+", "", repr(result)), [result is operand for operand in operands], operands


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_operands_are_written_to_as_in_eager(capture, name):
    fn = FUNCTIONS[name]

    def program(x, operands):
        result = fn(*operands)
        return x + 1, result, [result is operand for operand in operands]

    compared = 0
    for make in OPERANDS:
        for others in OTHERS:
            operands = (make(), *others)
            wanted = outcome(fn, copy.deepcopy(operands))
            if wanted[0] is TypeError:
                continue
            compiled = capture(program, strict=False)
            given = copy.deepcopy(operands)
            mine = outcome(lambda *some: compiled(torch.ones(1), some)[1], given)
            assert (mine[0], mine[2]) == (wanted[0], wanted[2]), (operands, wanted, mine)
            if isinstance(wanted[1], list):
                given = copy.deepcopy(operands)
                assert compiled(torch.ones(1), given)[2] == wanted[1], operands
            compared += 1
    assert compared or name not in WRITING


WRITING = {
    "operator.delitem", "operator.setitem", "operator.iadd", "operator.iconcat", "operator.ior", "operator.imul",
    "bisect.insort_left", "bisect.insort_right", "heapq.heappush", "heapq.heapify", "heapq.heappop",
}  # fmt: skip


def test_the_functions_that_write_are_among_them():
    assert WRITING <= set(FUNCTIONS)


def test_functions_that_search_and_insert_stay_in_the_graph(capture):
    def fn(x, scores):
        kept: list[float] = []
        for score in scores:
            bisect.insort(kept, score)
            if len(kept) > 3:
                operator.delitem(kept, 0)
        pairs = [(2, "b"), (5, "c")]
        bisect.insort(pairs, (3, "d"), key=lambda pair: pair[0])
        return x * kept[0], kept, bisect.bisect_left(kept, kept[1], 1), pairs

    compiled = capture(fn)
    x = torch.randn(3)
    for scores in ([3.0, 1.0, 2.0, 1.0, 9.0], [5.0, 4.0, 4.0]):
        mine, eager = compiled(x, list(scores)), fn(x, list(scores))
        assert torch.equal(mine[0], eager[0]) and mine[1:] == eager[1:]
    assert not compiled.report.breaks


def test_a_search_that_cannot_be_raises_as_in_eager(capture):
    for search in (lambda: bisect.bisect([1], "a"), lambda: bisect.insort([1], 2, -1), lambda: bisect.bisect(3, 1)):
        with pytest.raises((TypeError, ValueError)) as eager:
            search()
        with pytest.raises(type(eager.value)) as mine:
            capture(lambda x: (x + 1, search()), strict=False)(torch.ones(1))
        assert str(mine.value) == str(eager.value)
