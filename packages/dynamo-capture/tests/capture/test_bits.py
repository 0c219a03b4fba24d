"""Bit operators of ints that change: one graph for all values, with Python's answers."""

from __future__ import annotations

import pytest
import torch

EXPRESSIONS = [
    "n & 1", "n & 6", "n & 0b101101", "-3 & n", "n & -8", "n | 5", "12 | n", "n | -2", "n ^ 9", "7 ^ n", "n ^ -1",
    "n << 3", "n >> 2", "n >> 40", "~n", "n & True", "(n > 7) & (n < 12)", "(n > 7) | n", "(n > 7) ^ True", "-n & 12",
    "(5 - n) >> 1", "~(n & 3) | 1 << 4", "n.__and__(6)", "n & 0", "(n ^ 5) & 1 == 0",
]  # fmt: skip
VALUES = [5, 6, 7, 8, 9, 12, 31, 64, 1000003]


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("position", ["result", "operand", "size"])
def test_every_value_is_eagers(capture, expression, position):
    used = {"result": "n_, x * 2", "operand": "x * (n_ % 1000),", "size": "x.new_ones(abs(n_) % 7),"}[position]
    namespace: dict = {}
    exec(f"def fn(x, n):\n    n_ = {expression}\n    return {used}", namespace)
    fn = namespace["fn"]
    c = capture(fn, fullgraph=True, recompile_limit=16)
    x = torch.randn(3)
    for n in VALUES:
        for got, expected in zip(c(x, n), fn(x, n), strict=True):
            if isinstance(expected, torch.Tensor):
                assert torch.equal(got, expected), n
            else:
                assert got == expected and type(got) is type(expected), n


def test_a_counters_bits_take_two_graphs(capture):
    def fn(x, step):
        return x * ((step & 6) + (step >> 1) - (step << 2) + (step ^ 5) + (step | 9) + ~step)

    c = capture(fn, fullgraph=True)
    x = torch.randn(3)
    for step in range(5, 40):
        assert torch.equal(c(x, step), fn(x, step))
    assert len(c.graphs) == 2


def test_bits_that_only_the_running_program_knows(capture):
    def fn(x, n, m):
        y = x * 2
        return y + (n & m) + (m << n)

    c = capture(fn)
    x = torch.randn(3)
    for n in range(5, 30):
        assert torch.equal(c(x, n, n + 3), fn(x, n, n + 3))


def test_errors_are_eagers(capture):
    def fn(x, n):
        y = x * n
        try:
            return y, n << (3 - 5)
        except ValueError as error:
            return y, str(error)

    c = capture(fn)
    x = torch.randn(3)
    for n in range(5, 9):
        assert c(x, n)[1] == fn(x, n)[1]
