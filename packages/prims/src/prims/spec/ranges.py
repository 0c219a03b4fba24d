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
        if a[0] >= 0 and a[1] < b[0]:
            return a
        return 0, min(b[1] - 1, a[1]) if a[0] >= 0 else b[1] - 1
    if b[1] < 0:
        return b[0] + 1, 0
    return EVERYTHING


class _Known:
    """What is known of atoms, and the bounds that were worked out by it: an operand that occurs in many places, each in
    one of the last, is looked at once."""

    __slots__ = ("found", "of_atom")

    def __init__(self, of_atom: Callable[[Expr], Interval | None]) -> None:
        self.of_atom = of_atom
        self.found: dict[Expr, Interval] = {}

    def __call__(self, atom: Expr) -> Interval | None:
        return self.of_atom(atom)


def interval(e: Expr, of_atom: Callable[[Expr], Interval | None]) -> Interval:
    """Bounds of an expression, both inclusive; ``of_atom`` tells what is known of an atom beyond its operands."""
    known = _Known(of_atom)
    found = _bounds(e, known)
    return _by_remainders(e, _by_choice(e, found, known), known) if e.kind == "poly" else found


def _bounds(e: Expr, of_atom: _Known) -> Interval:
    kind = e.kind
    if kind == "const":
        return e.args[0], e.args[0]
    known = of_atom(e)
    if kind == "symbol":
        return known or EVERYTHING
    found = of_atom.found.get(e)
    if found is None:
        low, high = _interval(e, of_atom)
        found = (low, high) if known is None else (max(low, known[0]), min(high, known[1]))
        of_atom.found[e] = found
    return found


def _interval(e: Expr, of_atom: _Known) -> Interval:
    kind = e.kind
    if kind == "poly":
        low: Bound = 0
        high: Bound = 0
        for mono, coeff in e.terms:
            term: Interval = (coeff, coeff)
            for atom, p in mono:
                term = multiply(term, _power(_bounds(atom, of_atom), p))
            low += term[0]
            high += term[1]
        return low, high
    if kind == "floordiv":
        return _floordiv(_bounds(e.args[0], of_atom), _bounds(e.args[1], of_atom))
    if kind == "mod":
        return _mod(_bounds(e.args[0], of_atom), _bounds(e.args[1], of_atom))
    if kind in ("min", "max"):
        pick = min if kind == "min" else max
        parts = [_bounds(a, of_atom) for a in e.args]
        return pick(p[0] for p in parts), pick(p[1] for p in parts)
    if kind == "ite":
        x, y = _bounds(e.args[1], of_atom), _bounds(e.args[2], of_atom)
        return min(x[0], y[0]), max(x[1], y[1])
    if e.is_float:
        return _float_interval(e, of_atom)
    return EVERYTHING


def _by_choice(e: Expr, known: Interval, of_atom: _Known) -> Interval:
    """Tighter bounds of a polynomial with a minimum or maximum, which is at most or at least what each operand would
    make of it: ``min(a, b) - a`` is at most 0."""
    low, high = known
    for mono, coeff in e.terms:
        if len(mono) != 1 or mono[0][1] != 1 or mono[0][0].kind not in ("min", "max"):
            continue
        atom = mono[0][0]
        others = E.sub(e, E.mul(atom, coeff))
        bounds = [_bounds(E.add(others, E.mul(operand, coeff)), of_atom) for operand in atom.args]
        if (atom.kind == "min") == (coeff > 0):
            high = min(high, *(bound[1] for bound in bounds))
        else:
            low = max(low, *(bound[0] for bound in bounds))
    return low, high


def _by_remainders(e: Expr, known: Interval, of_atom: _Known) -> Interval:
    """Tighter bounds of a polynomial with a multiple of a quotient, which is at most what was divided, and above that
    less the divisor: ``2 * (a // 2) - a`` is at most 0."""
    other = e
    for mono, coeff in e.terms:
        atom = mono[0][0] if len(mono) == 1 and mono[0][1] == 1 else None
        if atom is None or atom.kind != "floordiv" or atom.args[1].kind != "const" or coeff % atom.args[1].value:
            continue
        a, divisor = atom.args
        whole = E.mul(E.sub(a, E.mod(a, divisor)), coeff // divisor.value)
        other = E.add(E.sub(other, E.mul(atom, coeff)), whole)
    if other is e:
        return known
    low, high = _bounds(other, of_atom)
    return max(low, known[0]), min(high, known[1])


def _float_interval(e: Expr, of_atom: _Known) -> Interval:
    """Bounds of a float expression; wide where a function is not known to be monotonic."""
    kind = e.kind
    if kind == "fconst":
        value = e.args[0]
        return EVERYTHING if math.isnan(value) else (value, value)
    parts = [_bounds(x, of_atom) for x in e.args]
    a = parts[0]
    if kind == "tofloat":
        return EVERYTHING if e.args[0].is_bool else a
    if kind == "fneg":
        return -a[1], -a[0]
    if kind == "fsqrt" and a[0] >= 0:
        return math.sqrt(a[0]), math.sqrt(a[1])
    if kind in ("fmin", "fmax"):
        pick = min if kind == "fmin" else max
        return pick(p[0] for p in parts), pick(p[1] for p in parts)
    if kind == "fadd":
        return a[0] + parts[1][0], a[1] + parts[1][1]
    if kind == "fsub":
        return a[0] - parts[1][1], a[1] - parts[1][0]
    if kind == "fmul":
        return multiply(a, parts[1])
    if kind in ("fdiv", "fquot") and parts[1][0] > 0:
        return multiply(a, (1.0 / parts[1][1], 1.0 / parts[1][0]))
    if kind == "fpow" and a[0] >= 0 and parts[1][0] == parts[1][1] > 0:
        return a[0] ** parts[1][0], a[1] ** parts[1][0]
    return EVERYTHING


def shifted_bounds(e: Expr, of_atom: Callable[[Expr], Interval | None]) -> Interval:
    """Tighter bounds of a polynomial: with every atom written as its lower bound plus something nonnegative,
    coefficients of one sign bound it by its constant. Sees that ``s0*s1 - s0 >= 2`` for sizes of at least 2.
    """
    replacements: dict[Expr, E.IntLike] = {}
    for mono, _ in e.terms:
        for atom, _ in mono:
            low = interval(atom, of_atom)[0]
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
