"""Templates and tilings chosen by measurement (``Options.max_autotune``).

The way of a graph: it is lowered as usual; :mod:`problem` finds the matrix products in it, each with the pointwise
kernel that reads it, and renders for every :mod:`tiles` tile a :mod:`matmul` kernel that does both; :mod:`contest` runs
them and the library's kernel on random data (:mod:`bench`), drops what computes something else, and keeps the fastest
(:mod:`decisions`).
"""

from __future__ import annotations

from typing import Any

from inductor_gen.templates.contest import Measure, decide
from inductor_gen.templates.precision import float32_precision
from inductor_gen.templates.problem import find_products

__all__ = ["Measure", "autotune"]


def autotune(unit: Any, body_of: Any, report: Any = None, measure: Measure | None = None) -> dict[int, tuple[Any, ...]]:
    """For each call of a rendered unit that is to be replaced, its position and the kernels that take its place (none
    where an earlier or later call's kernel does its work).

    ``body_of(unit, cluster)`` gives a cluster's body; ``measure(run, device)`` the milliseconds of a callable.
    """
    problems = find_products(unit, body_of, float32_precision())
    replaced: dict[int, tuple[Any, ...]] = {}
    if not problems:
        return replaced
    for problem, winner in zip(problems, decide(problems, unit, report, measure), strict=True):
        if winner is not problem.candidates[0]:
            for at in problem.positions:
                replaced[at] = ()
            replaced[problem.positions[-1]] = winner.steps
    return replaced
