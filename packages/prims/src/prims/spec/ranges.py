"""Interval arithmetic: bounds of an expression from the bounds of its symbols."""

from __future__ import annotations

import math
from collections.abc import Callable

from prims.spec import expr as E
from prims.spec.expr import Expr

Bound = int | float  # an int, or plus or minus infinity
Interval = tuple[Bound, Bound]
EVERYTHING: Interval = (-math.inf, math.inf)


def _times(x: Bound, y: Bound) -> Bound:
    return 0 if x == 0 or y == 0 else x * y


def multiply(a: Interval, b: Interval) -> Interval:
    corners = [_times(x, y) for x in a for y in b]
    return min(corners), max(corners)


def _power(a: Interval, p: int) -> Interval:
    if p % 2 == 0 and a[0] < 0:
        m = max(-a[0], a[1])
        return (0 if a[1] >= 0 else a[1] ** p), m**p
    return a[0] ** p, a[1] ** p


def _quotient(x: Bound, y: Bound) -> Bound:
    if math.isinf(y):
        return 0 if x == 0 or (x > 0) == (y > 0) else -1
    if math.isinf(x):
        return x if y > 0 else -x
    return x // y


def _floordiv(a: Interval, b: Interval) -> Interval:
    if b[0] <= 0 <= b[1]:
        return EVERYTHING
    corners = [_quotient(x, y) for x in a for y in b]
    return min(corners), max(corners)


def _mod(a: Interval, b: Interval) -> Interval:
    if b[0] > 0:
        if 0 <= a[0] and a[1] < b[0]:
            return a
        return 0, min(b[1] - 1, a[1]) if a[0] >= 0 else b[1] - 1
    if b[1] < 0:
        return b[0] + 1, 0
    return EVERYTHING


def interval(e: Expr, of_symbol: Callable[[Expr], Interval]) -> Interval:
    """Bounds of an integer expression, both inclusive."""
    kind = e.kind
    if kind == "const":
        return e.args[0], e.args[0]
    if kind == "symbol":
        return of_symbol(e)
    if kind == "poly":
        low: Bound = 0
        high: Bound = 0
        for mono, coeff in e.terms:
            term: Interval = (coeff, coeff)
            for atom, p in mono:
                term = multiply(term, _power(interval(atom, of_symbol), p))
            low += term[0]
            high += term[1]
        return low, high
    if kind == "floordiv":
        return _floordiv(interval(e.args[0], of_symbol), interval(e.args[1], of_symbol))
    if kind == "mod":
        return _mod(interval(e.args[0], of_symbol), interval(e.args[1], of_symbol))
    if kind in ("min", "max"):
        pick = min if kind == "min" else max
        parts = [interval(a, of_symbol) for a in e.args]
        return pick(p[0] for p in parts), pick(p[1] for p in parts)
    if kind == "ite":
        x, y = interval(e.args[1], of_symbol), interval(e.args[2], of_symbol)
        return min(x[0], y[0]), max(x[1], y[1])
    return EVERYTHING


def shifted_bounds(e: Expr, of_symbol: Callable[[Expr], Interval]) -> Interval:
    """Tighter bounds of a polynomial: with every atom written as its lower bound plus something nonnegative,
    coefficients of one sign bound it by its constant. Sees that ``s0*s1 - s0 >= 2`` for sizes of at least 2.
    """
    replacements: dict[Expr, E.IntLike] = {}
    for mono, _ in e.terms:
        for atom, _ in mono:
            low = interval(atom, of_symbol)[0]
            if math.isinf(low):
                return EVERYTHING
            replacements[atom] = E.add(atom, int(low))
    terms: dict[E.Monomial, int] = {}
    for mono, coeff in e.terms:
        factor: Expr = E.const(coeff)
        for atom, p in mono:
            factor = E.mul(factor, E.power(replacements[atom], p))
        for m, c in factor.terms:
            terms[m] = terms.get(m, 0) + c
    constant = terms.pop((), 0)
    low_bound: Bound = constant if all(c >= 0 for c in terms.values()) else -math.inf
    high_bound: Bound = constant if all(c <= 0 for c in terms.values()) else math.inf
    return low_bound, high_bound
