"""Branches on random numbers that go one way whatever is drawn: layers are dropped at a rate that is 0 by default."""

from __future__ import annotations

import operator

import pytest
import torch

DRAWS = {
    "single": (lambda: torch.rand([]), True),
    "double": (lambda: torch.rand((), dtype=torch.float64), True),
    "written": (lambda: torch.rand([]).mul_(3), False),
    "computed": (lambda: torch.rand([]) * 3, False),
    "normal": (lambda: torch.randn([]), False),
}
RATES = (-0.5, -0.0, 0, 0.3, 1, 1.0, 2.5)


def decided(op, rate) -> bool:
    """Whether all numbers in [0, 1) compare the same with the rate, by numbers near the ends."""
    return len({op(x, rate) for x in (0.0, 1e-30, 0.25, 0.5, 1 - 2**-53)}) == 1


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("op", [operator.lt, operator.le, operator.gt, operator.ge])
def test_what_is_drawn_decides_only_where_it_can(op, draw, capture):
    make, is_uniform = DRAWS[draw]
    for rate in RATES:
        for mirrored in (False, True):

            def program(x, rate=rate, mirrored=mirrored):
                p = make()
                if op(rate, p) if mirrored else op(p, rate):
                    return x + torch.rand(2)
                return x * torch.rand(2)

            captured = capture(program)
            runs = []
            for call in (program, captured):
                torch.manual_seed(3)
                runs.append(([call(torch.ones(2)) for _ in range(4)], torch.get_rng_state()))
            torch.testing.assert_close(runs[1], runs[0], rtol=0, atol=0)
            mirror = {operator.lt: operator.gt, operator.le: operator.ge, operator.gt: operator.lt, operator.ge: operator.le}
            known = is_uniform and decided(mirror[op] if mirrored else op, rate)
            assert known == (not captured.report.breaks), (rate, mirrored)


def test_a_rate_that_changes_is_looked_at_again(capture):
    class Layers:
        drop = 0.0

    layers = Layers()

    def program(x):
        return x * 2 if torch.rand([]) < layers.drop else x + 1

    captured = capture(program)
    for rate in (0.0, 1.0, 0.5, 0.0):
        layers.drop = rate
        for seed in range(4):
            runs = []
            for call in (program, captured):
                torch.manual_seed(seed)
                runs.append(call(torch.ones(2)))
            assert torch.equal(*runs)
