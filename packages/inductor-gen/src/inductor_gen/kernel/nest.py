"""The order of a body's loops: which one is vectorised, the order of the others, and which collapse into one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from inductor_gen.kernel.body import Body, linear
from inductor_gen.loops.cost import op_cost
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import ONE, ZERO, Hint, coefficient
from prims.spec import expr as ex
from prims.spec.expr import Expr

__all__ = ["STRIP", "Nest", "arrange", "collapse"]

STRIP = 4
"""Steps up to which a loop on a CPU is unrolled inside the lane rather than vectorised."""

#: Bytes that come from memory together: a line of a CPU's cache, a sector of a GPU's.
_TOGETHER = {"cpu": 64, "cuda": 32}

#: What lanes along a reduction's short row are worth, of as many that fill vectors. From a sweep over 66 shapes: along
#: rows of 4 they take 0.97 of the time that lanes across them do in the mean, along 5 to 7 1.3 times.
_FILLED = {5: 0.2, 6: 0.2, 7: 0.2}


class Nest:
    """A body with its loops in order.

    Attributes:
        lane: the variable that runs through vector lanes, innermost; None for a body of one point.
        lane_is_inner: whether it is a reduction variable.
        like: what nests have in common that differ in their nodes alone, and the nodes, in one order for all of them.
    """

    def __init__(self, body: Body, outer: list[Expr], inner: list[Expr], lane: Expr | None) -> None:
        self.body = body
        self.outer = outer
        self.inner = inner
        self.lane = lane
        self.lane_is_inner = lane is not None and lane in inner
        self.like: tuple[object, Sequence[Node]] | None = None


def _accesses(body: Body) -> list[tuple[Expr, float, int]]:
    """Places that are read and written, with their weights and the bytes of an element."""
    found = [(v.at, 1.0, v.dtype.itemsize) for v in body.vals if v.op == "load" and v.at is not None]
    return found + [(s.at, 1.5, s.value.dtype.itemsize) for s in body.stores]


def _traffic(body: Body, at: Expr, hint: Hint) -> float:
    """The share of the iteration space in which an access touches another element; 1 where an index decides."""
    share = 1.0
    for v, extent in body.space.items():
        if linear(body, at, v) is ZERO:
            share /= max(hint(extent), 1)
    return share


def _sharing(stride: Expr | None, bytes_: int, hint: Hint, together: int) -> float:
    """How far the steps of a lane share what memory hands over: from 1, next to each other, to -1, each its own."""
    if stride is None:
        return -1.0
    return max(1 - 2 * (abs(hint(stride)) * bytes_ - bytes_) / together, -1.0)


def _choose_lane(body: Body, hint: Hint) -> Expr | None:
    best: Expr | None = None
    best_score = float("-inf")
    device = body.nodes[0].device.type if body.nodes and body.nodes[0].device is not None else "cuda"
    on_cpu, together = device == "cpu", _TOGETHER.get(device, 32)
    accesses, weighed = _accesses(body), on_cpu or bool(body.inner)
    if weighed:
        # What most steps find again, a row of weights or a sum's place, counts for as little as it is touched; on a CPU
        # it stays in the cache whichever way it is walked.
        accesses = [(at, weight * max(_traffic(body, at, hint), 1 / 64), size) for at, weight, size in accesses]
    short = math.prod(hint(body.space[v]) for v in body.inner) <= STRIP
    for v in [*body.outer, *body.inner]:
        score = 0.0
        extent = hint(body.space[v])
        for at, weight, bytes_ in accesses:
            stride = linear(body, at, v)
            if stride is ONE:
                score += weight
            elif stride is not ZERO:
                score += weight * _sharing(stride, bytes_, hint, together) if weighed else -weight
        if on_cpu and v in body.inner and extent >= STRIP and not short:
            score *= _FILLED.get(extent, 1.0) if score > 0 else 1.0
        elif extent < 8:
            score -= 8.0 if on_cpu and extent <= STRIP else 2.0
        score += min(extent, 64) / 1000.0
        if score >= best_score:
            best, best_score = v, score
    return best


def _rank(body: Body, v: Expr, hint: Hint) -> int:
    total = 0
    for at, *_ in _accesses(body):
        stride = linear(body, at, v)
        total += hint(stride) if stride is not None else 1
    return total


def collapse(body: Body, order: list[Expr], became: dict[Expr, Expr] | None = None) -> list[Expr]:
    """Merge neighbours that every index walks as one, in place; returns the loops that are left.

    ``became`` is told which loop each merged one is part of now.
    """
    at = 0
    while at + 1 < len(order):
        first, second = order[at], order[at + 1]
        if _can_merge(body, first, second):
            merged = ex.symbol(f"{first.name}_{second.name}")
            body.space[merged] = ex.mul(body.space[first], body.space[second])
            body.replace_index({first: ZERO, second: merged})
            del body.space[first], body.space[second]
            for group in (body.outer, body.inner):
                if first in group:
                    group[group.index(first)] = merged
                    group.remove(second)
            if became is not None:
                became[first] = became[second] = merged
            order[at : at + 2] = [merged]
            at = max(at - 1, 0)
        else:
            at += 1
    return order


def _can_merge(body: Body, first: Expr, second: Expr) -> bool:
    extent = body.space[second]
    for at in body.indices():
        if first not in at.symbols and second not in at.symbols:
            continue
        a, b = coefficient(at, first), coefficient(at, second)
        if a is None or b is None or a is not ex.mul(b, extent):
            return False
    # A value that depends on the first alone would be computed for each step of the second.
    return not any(first in v.deps and second not in v.deps and op_cost(v.op) > 8 for v in body.vals)


def arrange(body: Body, hint: Hint, in_order: bool = False) -> Nest:
    """Order and collapse the loops of a body, in place; ``in_order``: what is added up is so in the program's order,
    whatever the sizes and layouts."""
    scans = any(v.op == "scan" for v in body.vals)
    outer, inner = list(body.outer), list(body.inner)
    if not in_order or all(s.mode == "set" for s in body.stores):
        outer.sort(key=lambda v: -_rank(body, v, hint))
    if not in_order and not scans:
        inner.sort(key=lambda v: -_rank(body, v, hint))
    outer, inner = collapse(body, outer), collapse(body, inner)  # a lane is as long as what it is walked with
    lane = _choose_lane(body, hint)
    if in_order and lane in inner:
        lane = inner[-1]
    for group in (outer, inner):
        if lane in group and not (scans and group is inner):
            group.remove(lane)
            group.append(lane)
    became: dict[Expr, Expr] = {}
    outer, inner = collapse(body, outer, became), collapse(body, inner, became)
    body.refresh()
    while lane in became:
        lane = became[lane]
    if scans and lane in inner:
        lane = inner[-1]
    return Nest(body, outer, inner, lane)
