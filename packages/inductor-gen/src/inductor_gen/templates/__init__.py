"""Templates, tilings and library kernels chosen by measurement (``Options.max_autotune``).

A graph is lowered as usual; then problems are found in it: on a GPU :mod:`products` (a matrix product, and the
pointwise kernel that reads it, as one :mod:`matmul` kernel in one of several :mod:`tiles`) and :mod:`tilings` of
generated kernels, on the CPU :mod:`operators`. :mod:`contest` runs the candidates on random data (:mod:`bench`), drops
what computes something else than the usual way, and keeps the fastest (:mod:`decisions`).
"""

from __future__ import annotations

from collections.abc import Sequence

from inductor_gen.extern.cuda import misaligned
from inductor_gen.fuse.cluster import Cluster
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import product as volume
from inductor_gen.pipeline import ExternCall, KernelCall, Unit
from inductor_gen.templates.contest import Shortage, decide
from inductor_gen.templates.matmul import Tile
from inductor_gen.templates.operators import find_operators
from inductor_gen.templates.precision import float32_precision
from inductor_gen.templates.problem import Candidate, Operator, Problem, numbers
from inductor_gen.templates.product import Product
from inductor_gen.templates.products import find_products
from inductor_gen.templates.tiles import odd_tile, shallow_tile, spared
from inductor_gen.templates.tilings import find_tilings

__all__ = ["autotune", "settle_products"]

#: Seconds of a call that a template of shallow products must spare to be worth its second of compilation.
LEAST = 14e-6


def autotune(unit: Unit) -> None:
    """Replace calls of a rendered unit by faster ones that do the same."""
    assert unit.plan is not None
    clusters: list[Cluster | None] = list(unit.plan.order)
    precision = float32_precision()
    shortage = Shortage()
    clusters = _contest(unit, clusters, find_products(unit, precision), shortage)
    if any(_computes_float32(call) for call in unit.calls):
        unit.precision = precision
    clusters = _contest(unit, clusters, find_tilings(unit, clusters), shortage)
    _contest(unit, clusters, find_operators(unit), shortage)
    shortage.tell(unit)


def settle_products(unit: Unit) -> None:
    """Templates in the place of products that they are sure to compute faster, without measuring.

    Those are products that the library does badly: a ``[4096, 768] @ [768, 50257]``, whose rows are misaligned, takes
    3.3 ms in cuBLAS on an H200, 0.54 as a template. (In cuBLAS with padded columns and a copy out of them it takes as
    long, and the memory of two results.) And shallow ones that a kernel reads, which spares a trip of the result
    through memory: ``[100352, 64] @ [64, 256]`` and what follows in a ResNet take 0.047 ms instead of 0.10.
    """
    assert unit.plan is not None
    gains: dict[Node, float] = {}

    def choose(p: Product) -> tuple[Sequence[Tile], bool]:
        device = unit.devices(p.node.device)  # type: ignore[arg-type]
        if misaligned(p.node):
            return (odd_tile(device),), True
        m, n, k, count = numbers(unit.hint, (p.m, p.n, p.k, volume(p.batch)))
        tile = shallow_tile(m, n, k, p.node.dtype, device) if count == 1 else None  # type: ignore[arg-type]
        if tile is None:
            return (), False
        gains[p.node] = spared(m, n, k, tile, device)
        return (tile,), False

    problems = find_products(unit, float32_precision(), choose)
    _replace(unit, list(unit.plan.order), problems, _worth_compiling(unit, problems, gains))


def _worth_compiling(unit: Unit, problems: list[Problem], gains: dict[Node, float]) -> list[Candidate]:
    """The templates, but those of shallow products only where one text serves enough of them; ``gains``: what each of
    these spares."""
    shallow = {id(p): gain for p in problems if (gain := gains.get(unit.calls[p.positions[0]].node))}  # type: ignore[union-attr]
    totals: dict[str, float] = {}
    for p in problems:
        if id(p) in shallow:
            totals[_text_of(p)] = totals.get(_text_of(p), 0) + shallow[id(p)]
    few = {id(p) for p in problems if id(p) in shallow and totals[_text_of(p)] < LEAST}
    return [p.candidates[0 if id(p) in few else 1] for p in problems]


def _text_of(problem: Problem) -> str:
    return problem.candidates[1].steps[-1].name


def _computes_float32(call: KernelCall | ExternCall) -> bool:
    """Is it a template's product of float32 matrices?"""
    return isinstance(call, KernelCall) and any("input_precision=" in part.text for part in call.parts)


def _contest(
    unit: Unit, clusters: list[Cluster | None], problems: list[Problem], shortage: Shortage
) -> list[Cluster | None]:
    """Put the winners of a contest in their places; returns the clusters of the calls that are left."""
    return _replace(unit, clusters, problems, decide(problems, unit, shortage)) if problems else clusters


def _replace(
    unit: Unit, clusters: list[Cluster | None], problems: list[Problem], winners: list[Candidate]
) -> list[Cluster | None]:
    """Put the winners in their places; returns the clusters of the calls that are left."""
    replaced: dict[int, list[KernelCall | ExternCall]] = {}
    for problem, winner in zip(problems, winners, strict=True):
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
