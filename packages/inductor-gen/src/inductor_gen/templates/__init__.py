"""Templates, tilings and library kernels chosen by measurement (``Options.max_autotune``).

A graph is lowered as usual; then problems are found in it: on a GPU :mod:`products` (a matrix product, and the
pointwise kernel that reads it, as one :mod:`matmul` kernel in one of several :mod:`tiles`) and :mod:`tilings` of
generated kernels, on the CPU :mod:`operators`. :mod:`contest` runs the candidates on random data (:mod:`bench`), drops
what computes something else than the usual way, and keeps the fastest (:mod:`decisions`).
"""

from __future__ import annotations

from inductor_gen.pipeline import ExternCall, KernelCall, Unit
from inductor_gen.schedule.fusion import Cluster
from inductor_gen.templates.contest import decide
from inductor_gen.templates.operators import find_operators
from inductor_gen.templates.precision import float32_precision
from inductor_gen.templates.problem import Operator, Problem
from inductor_gen.templates.products import find_products
from inductor_gen.templates.tilings import find_tilings

__all__ = ["autotune"]


def autotune(unit: Unit) -> None:
    """Replace calls of a rendered unit by faster ones that do the same."""
    assert unit.plan is not None
    clusters: list[Cluster | None] = list(unit.plan.order)
    clusters = _replace(unit, clusters, find_products(unit, float32_precision()))
    clusters = _replace(unit, clusters, find_tilings(unit, clusters))
    _replace(unit, clusters, find_operators(unit))


def _replace(unit: Unit, clusters: list[Cluster | None], problems: list[Problem]) -> list[Cluster | None]:
    """Put the winners in their places; returns the clusters of the calls that are left."""
    if not problems:
        return clusters
    replaced: dict[int, list[KernelCall | ExternCall]] = {}
    for problem, winner in zip(problems, decide(problems, unit), strict=True):
        if winner is problem.candidates[0]:
            continue
        for at in problem.positions:
            replaced[at] = []
        replaced[problem.positions[-1]] = winner.calls()
        for step in winner.steps:
            if isinstance(step, Operator):
                unit.functions[step.node] = (step.name, step.function)
    calls: list[KernelCall | ExternCall] = []
    left: list[Cluster | None] = []
    for k, (call, cluster) in enumerate(zip(unit.calls, clusters, strict=True)):
        new = replaced.get(k)
        calls += [call] if new is None else new
        left += [cluster] if new is None else [None] * len(new)
    unit.calls = calls
    return left
