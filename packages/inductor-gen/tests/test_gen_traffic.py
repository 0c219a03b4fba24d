"""The bytes that kernels and library calls move, and the least of a graph: counted from kernels, checked by hand."""

from __future__ import annotations

import torch
from gen_support import check

FLOAT = 4


def moved(case):
    """``(read, written)`` of each step, and the least: inputs, parameters and outputs."""
    (graph,) = case.report.moved
    steps = case.compiled.steps
    assert graph.moved == sum(s.read + s.written for s in steps) >= graph.least
    launches = [(k.read, k.written) for k in case.report.kernels]
    assert sum(map(sum, launches)) == sum(s.read + s.written for s in steps if s.kind == "kernel")
    assert all(k.graph == 0 for k in (*case.report.kernels, *case.report.externs))
    return [(s.read, s.written) for s in steps], (graph.inputs, graph.parameters, graph.outputs)


def test_one_kernel_moves_the_least():
    x = torch.randn(64, 128)
    steps, least = moved(check(lambda p, x: p.mul(p.sin(x), 2.0), [x]))
    size = 64 * 128 * FLOAT
    assert steps == [(size, size)] and least == (size, 0, size)


def test_what_is_read_at_several_places_counts_once():
    x = torch.randn(40, 50)

    def program(p, x):
        high = p.broadcast(p.amax(x, (1,)), (40, 50), (0,))
        e = p.exp(p.sub(x, high))
        return p.div(e, p.broadcast(p.sum(e, (1,)), (40, 50), (0,)))

    steps, least = moved(check(program, [x]))
    size = 40 * 50 * FLOAT
    assert steps == [(size, size)] and least == (size, 0, size)


def test_what_lies_between_kernels_and_calls_is_no_part_of_the_least():
    x, w = torch.randn(20, 30), torch.randn(30, 40)
    case = check(lambda p, x, w: p.cos(p.dot(p.sin(x), w)), [x, w])
    steps, least = moved(case)
    a, b, c = 20 * 30 * FLOAT, 30 * 40 * FLOAT, 20 * 40 * FLOAT
    assert steps == [(a, a), (a + b, c), (c, c)] and least == (a + b, 0, c)
    assert [(e.read, e.written) for e in case.report.externs] == [(a + b, c)]


def test_a_broadcast_operand_counts_its_own_elements():
    x, bias = torch.randn(30, 20), torch.randn(20)
    steps, least = moved(check(lambda p, x, b: p.add(x, p.broadcast(b, (30, 20), (1,))), [x, bias]))
    assert steps == [(30 * 20 * FLOAT + 20 * FLOAT, 30 * 20 * FLOAT)]
    assert least == (30 * 20 * FLOAT + 20 * FLOAT, 0, 30 * 20 * FLOAT)


def test_of_a_slice_and_of_picked_rows_only_these():
    x = torch.randn(1000, 16)
    steps, least = moved(check(lambda p, x: p.sin(p.slice(x, (5, 0), (15, 16), (1, 1))), [x]))
    assert steps == [(10 * 16 * FLOAT, 10 * 16 * FLOAT)] and least[0] == 10 * 16 * FLOAT
    rows = torch.randint(0, 1000, (7,))
    steps, least = moved(check(lambda p, x, i: p.sin(p.index(x, (i,), (0,))), [x, rows]))
    assert steps == [(7 * 16 * FLOAT + 7 * 8, 7 * 16 * FLOAT)] and least[0] == 7 * 16 * FLOAT + 7 * 8


def test_windows_that_overlap_read_no_more_than_there_is():
    x = torch.randn(4096)

    def program(p, x):
        a, b, c = (p.slice(x, (k,), (4096 - 2 + k,), (1,)) for k in range(3))
        return p.add(p.add(a, b), c)

    steps, least = moved(check(program, [x]))
    assert steps == [(4096 * FLOAT, 4094 * FLOAT)] and least == (4096 * FLOAT, 0, 4094 * FLOAT)


def test_a_scatter_writes_what_it_picks_and_what_it_copies():
    x, rows, values = torch.zeros(100, 8), torch.tensor([1, 5, 7]), torch.randn(3, 8)
    case = check(lambda p, x, i, v: p.index_put(x, (i,), (0,), v, False), [x, rows, values])
    steps, least = moved(case)
    whole, picked = 100 * 8 * FLOAT, 3 * 8 * FLOAT
    assert steps == [(whole, whole), (picked + 3 * 8, picked)] and least == (whole + picked + 3 * 8, 0, whole)


def test_likely_sizes_stand_for_symbols():
    x = torch.randn(6, 10)
    steps, least = moved(check(lambda p, x: p.sin(x), [x], dynamic={0: (0,)}))
    assert steps == [(240, 240)] and least == (240, 0, 240)
