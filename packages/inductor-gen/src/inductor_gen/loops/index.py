"""Index arithmetic: size expressions over loop variables, with the ranges of those variables.

An index is a :class:`prims.spec.expr.Expr` whose symbols are loop variables (``i0 ...``), values read from
memory (``v0 ...``, for indirect indexing) and sizes. Expressions are hash-consed and in normal form, so equal
indices are the same object.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prims.ir.symbols import expr_of
from prims.spec import expr as ex
from prims.spec.context import least_by_name
from prims.spec.expr import Expr, product

__all__ = [
    "Hint",
    "ONE",
    "ZERO",
    "Ranges",
    "coefficient",
    "contiguous_strides",
    "distinct",
    "div",
    "flatten",
    "joined",
    "lift",
    "lower",
    "nonneg",
    "product",
    "range_atoms",
    "regroup",
    "rem",
    "simplified",
    "size",
    "substitute",
    "unflatten",
    "upper",
]

ZERO = ex.const(0)
ONE = ex.const(1)

#: A likely number for a size: what it was when the graph was captured.
Hint = Callable[[Expr], int]

#: Loop variable -> its number of values; every other symbol is a size (>= 1 where it matters).
Ranges = Mapping[Expr, Expr]


def size(value: Any) -> Expr:
    """An int, a ``Sym`` or an ``Expr`` as an ``Expr``."""
    if isinstance(value, int):
        return ex.const(value)
    found = value if isinstance(value, Expr) else expr_of(value)
    if not isinstance(found, Expr):
        raise TypeError(f"not a size: {value!r} (a {type(value).__name__})")
    return found


def contiguous_strides(shape: Sequence[Expr]) -> tuple[Expr, ...]:
    """Row-major strides in elements, as torch gives them (a size of 0 counts as 1)."""
    return _contiguous(tuple(shape))


@functools.lru_cache(maxsize=256)
def _contiguous(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    strides: list[Expr] = []
    step = ONE
    for extent in reversed(shape):
        strides.append(step)
        step = ex.mul(step, ONE if extent is ZERO else extent)
    return tuple(reversed(strides))


def _bound(e: Expr, ranges: Ranges, want_upper: bool) -> Expr | None:
    """An upper or lower bound as an expression over sizes, or None when none is known."""
    total = ZERO
    for mono, coeff in e.terms:
        factor = ex.const(coeff)
        use_upper = want_upper if coeff > 0 else not want_upper
        alone = len(mono) == 1 and mono[0][1] == 1
        for atom, power in mono:
            limit = _atom_bound(atom, ranges, use_upper)
            if limit is None or not (alone or nonneg(limit)):  # bounds multiply where neither is negative
                return None
            for _ in range(power):
                factor = ex.mul(factor, limit)
        total = ex.add(total, factor)
    return total


def _atom_bound(atom: Expr, ranges: Ranges, want_upper: bool) -> Expr | None:
    if atom.kind == "symbol":
        extent = ranges.get(atom)
        if extent is not None:
            return ex.sub(extent, ONE) if want_upper else ZERO
        return None if atom.name.startswith("v") else atom
    if not any(s in ranges for s in atom.symbols):
        return None if any(s.name.startswith("v") for s in atom.symbols) else atom
    if atom.kind == "mod":
        return ex.sub(atom.args[1], ONE) if want_upper else ZERO
    if atom.kind == "floordiv":
        inner = _bound(atom.args[0], ranges, want_upper)
        return None if inner is None else ex.floordiv(inner, atom.args[1])
    return None


def upper(e: Expr, ranges: Ranges) -> Expr | None:
    """The largest value the index takes."""
    return _bound(e, ranges, True)


def lower(e: Expr, ranges: Ranges) -> Expr | None:
    """The smallest value the index takes."""
    return _bound(e, ranges, False)


def nonneg(e: Expr | None) -> bool:
    """Is the size expression provably >= 0?"""
    least = None if e is None else _least(e)
    return least is not None and least >= 0


def _least(e: Expr) -> int | None:
    """A number that the size expression is never below: sizes are >= 1, but what is computed of them may be 0."""
    total = 0
    for mono, coeff in e.terms:
        if coeff < 0 and mono:
            return None
        for atom, power in mono:
            least = _least_atom(atom)
            if least is None or (least < 0 and len(mono) + power > 2):
                return None
            coeff *= least**power
        total += coeff
    return total


def _least_atom(atom: Expr) -> int | None:
    if atom.kind == "symbol":
        return least_by_name(atom.name)
    found = [_least(a) for a in atom.args] if atom.kind in ("floordiv", "mod", "min", "max") else []
    known = [x for x in found if x is not None]
    match atom.kind:
        case "floordiv" | "mod" if found[1] is None or found[1] < 1:
            return None
        case "mod":
            return 0
        case "floordiv":
            if found[0] is None or atom.args[1].is_const:
                return None if found[0] is None else found[0] // atom.args[1].value
            return 0 if found[0] >= 0 else None
        case "min":
            return min(known) if len(known) == len(found) else None
        case "max":
            return max(known, default=None)
    return None


def lift(e: Expr, divisor: Expr, ranges: Ranges) -> Expr | None:
    """A multiple of ``divisor`` that makes ``e`` provably >= 0 when added, or None when none is known.

    Generated code divides as C does, towards zero; indices mean Python's division. The normal form moves whole
    multiples out of a quotient, so that ``(16 - i) // 4`` has become ``4 + (-i) // 4``.
    """
    known = {atom: ONE for atom in e.symbols if atom.name.startswith("v") and atom not in ranges}  # in range, so >= 0
    if any(coeff < 0 and known.keys() & {a for a, _ in mono} for mono, coeff in e.terms):
        return None
    low = _bound(e, {**ranges, **known}, False)
    if nonneg(low):
        return ZERO
    if low is None or low.kind != "const" or divisor.kind != "const":
        return None
    return ex.const(-(low.args[0] // divisor.args[0]) * divisor.args[0])


def _within(e: Expr, extent: Expr, ranges: Ranges) -> bool:
    low = _bound(e, ranges, False)
    high = _bound(e, ranges, True)
    return nonneg(low) and high is not None and nonneg(ex.sub(ex.sub(extent, ONE), high))


def _split(e: Expr, divisor: Expr, ranges: Ranges) -> tuple[Expr, Expr]:
    """``q, r`` with ``e == q * divisor + r``, where q takes each term that divides exactly, and as many more as bring
    the least ``r`` into the range of a remainder: of ``s - 1 - i``, the last first, r is that itself."""
    quotient, rest = ZERO, ZERO
    for mono, coeff in e.terms:
        term = ex.from_terms({mono: coeff})
        part = ex.floordiv(term, divisor)
        if ex.mul(part, divisor) is term:
            quotient = ex.add(quotient, part)
        else:
            rest = ex.add(rest, term)
    low = _bound(rest, ranges, False)
    more = ZERO if low is None else ex.floordiv(low, divisor)
    if more is ZERO or not more.is_const:
        return quotient, rest
    return ex.add(quotient, more), ex.sub(rest, ex.mul(more, divisor))


def div(e: Expr, divisor: Expr, ranges: Ranges) -> Expr:
    """``e // divisor`` for ``e >= 0``, using the ranges of the loop variables."""
    if divisor is ONE:
        return e
    quotient, rest = _split(e, divisor, ranges)
    if _within(rest, divisor, ranges):
        return quotient
    if divisor.is_const:
        # Of ``3 * i + j`` with ``j < 3`` by 12, j does not count.
        for mono, coeff in rest.terms:
            if mono and coeff > 1 and divisor.value % coeff == 0:
                step = ex.const(coeff)
                whole, low = _split(rest, step, ranges)
                if _within(low, step, ranges):
                    return ex.add(quotient, ex.floordiv(whole, ex.const(divisor.value // coeff)))
    return ex.floordiv(e, divisor)


def rem(e: Expr, divisor: Expr, ranges: Ranges) -> Expr:
    """``e % divisor`` for ``e >= 0``, using the ranges of the loop variables."""
    if divisor is ONE:
        return ZERO
    if _within(e, divisor, ranges):
        return e
    _, rest = _split(e, divisor, ranges)
    if _within(rest, divisor, ranges):
        return rest
    return ex.mod(e, divisor)


def flatten(index: Sequence[Expr], shape: Sequence[Expr]) -> Expr:
    """The row-major position of a multi-dimensional index."""
    total = ZERO
    for i, stride in zip(index, contiguous_strides(shape), strict=True):
        if i is not ZERO:
            total = ex.add(total, ex.mul(i, stride))
    return joined(total)


def unflatten(position: Expr, shape: Sequence[Expr], ranges: Ranges) -> tuple[Expr, ...]:
    """The multi-dimensional index of a row-major position."""
    out: list[Expr] = []
    outermost = next((d for d, extent in enumerate(shape) if extent is not ONE), 0)
    rest = position
    strides = contiguous_strides(shape)
    for d, extent in enumerate(shape):
        if extent is ONE:
            out.append(ZERO)
            continue
        q = div(rest, strides[d], ranges)
        out.append(q if d == outermost else rem(q, extent, ranges))
        if d == outermost and strides[d] is not ONE:
            rest = rem(rest, strides[d], ranges)
    return tuple(out)


def regroup(index: Sequence[Expr], source: Sequence[Expr], target: Sequence[Expr], ranges: Ranges) -> tuple[Expr, ...]:
    """The index into shape ``target`` of the element that ``index`` names in ``source`` (a reshape).

    Both shapes are cut into the finest groups of equal size first, so that dimensions which the reshape does not
    touch keep their index as it is. The groups are found from the first dimension on, and from the last on for what is
    left: there is a reshape, so what lies between is equal, though normal forms do not show it (``4 * (s // 4)``).
    """
    whole = _as_if_exact if _are_exact(tuple(source), tuple(target)) else _without_exact_quotients
    first, rest = _groups(source, target, whole)
    last, between = _groups(rest[0][::-1], rest[1][::-1], whole)
    backwards = [*last, between] if any(between) else last
    out: list[Expr] = []
    at = 0
    for group, wanted in (*first, *((a[::-1], b[::-1]) for a, b in reversed(backwards))):
        part = index[at : at + len(group)]
        at += len(group)
        if len(group) == len(wanted) and all(a is b for a, b in zip(group, wanted, strict=True)):
            out.extend(part)
        else:
            out.extend(unflatten(flatten(part, group), wanted, ranges))
    return tuple(out)


_Shape = Sequence[Expr]


def _groups(
    source: _Shape, target: _Shape, whole: Callable[[Expr], Expr]
) -> tuple[list[tuple[_Shape, _Shape]], tuple[_Shape, _Shape]]:
    """The finest groups of equal size that two shapes begin with, and what is left of them; ``whole`` gives a size by
    what quotients are known to be exact."""
    found: list[tuple[_Shape, _Shape]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        first, second = i, j
        left = source[i] if i < len(source) else ONE
        right = target[j] if j < len(target) else ONE
        i, j = min(i + 1, len(source)), min(j + 1, len(target))
        while left is not right and whole(left) is not whole(right):
            grow_left = j >= len(target) or (i < len(source) and _smaller(left, right))
            if grow_left and i < len(source):
                left = ex.mul(left, source[i])
                i += 1
            elif j < len(target):
                right = ex.mul(right, target[j])
                j += 1
            else:
                return found, (source[first:], target[second:])
        found.append((source[first:i], target[second:j]))
    return found, ((), ())


@functools.lru_cache(maxsize=4096)
def _without_exact_quotients(e: Expr) -> Expr:
    """The same number with ``a`` for ``k * (a // k)`` where ``a`` is a multiple of ``k``, as what was padded is."""
    return _multiplied_out(e, lambda whole, k: ex.mod(whole, k) is ZERO)


@functools.lru_cache(maxsize=4096)
def _as_if_exact(e: Expr) -> Expr:
    """What a size were if ``k * (a // k)`` in it were ``a``."""
    return _multiplied_out(e, lambda whole, k: True)


def _multiplied_out(e: Expr, is_exact: Callable[[Expr, int], bool]) -> Expr:
    for mono, coeff in e.terms:
        for atom, power in mono:
            if atom.kind != "floordiv" or power != 1 or not atom.args[1].is_const:
                continue
            whole, k = atom.args[0], atom.args[1].value
            if coeff % k == 0 and is_exact(whole, k):
                others = tuple(each for each in mono if each[0] is not atom)
                term, made = ex.from_terms({mono: coeff}), ex.mul(ex.from_terms({others: coeff // k}), whole)
                return _multiplied_out(ex.add(ex.sub(e, term), made), is_exact)
    return e


@functools.lru_cache(maxsize=4096)
def _are_exact(source: tuple[Expr, ...], target: tuple[Expr, ...]) -> bool:
    """Whether a reshape tells that the quotients in its shapes are exact: of ``h, w`` to ``h // 4, 4, w // 4, 4``.

    There are as many elements in both. ``k * (a // k)`` is ``a`` at most; so where the one number is the other with
    ``a`` in its place, it is ``a``, unless there are no elements, of which nobody asks.
    """
    a, b = product(source), product(target)
    return a is not b and (_as_if_exact(a) is b or _as_if_exact(b) is a)


def _smaller(a: Expr, b: Expr) -> bool:
    if a.is_const and b.is_const:
        return bool(a.value < b.value)
    gap = ex.sub(b, a)
    if nonneg(gap):
        return True
    if nonneg(ex.neg(gap)):
        return False
    if nonneg(ex.sub(b, _with_whole(a))):
        return True
    if nonneg(ex.sub(a, _with_whole(b))):
        return False
    # Neither is known to be smaller: the one with fewer factors is more likely to need another.
    return len(a.terms[0][0]) <= len(b.terms[0][0])


@functools.lru_cache(maxsize=8192)
def joined(e: Expr) -> Expr:
    """The same number, in which a quotient and its remainder are what was divided: ``a // n * n + a % n``."""
    known = dict(e.terms)
    for mono, coeff in e.terms:
        for atom, power in mono:
            if atom.kind != "mod" or power != 1:
                continue
            whole, divisor = atom.args
            others = ex.from_terms({tuple(each for each in mono if each[0] is not atom): coeff})
            part = ex.mul(others, ex.mul(divisor, ex.floordiv(whole, divisor)))
            if all(known.get(m) == c for m, c in part.terms):
                rest = ex.sub(ex.sub(e, part), ex.mul(others, atom))
                return joined(ex.add(rest, ex.mul(others, whole)))
    return e


def simplified(e: Expr, ranges: Ranges) -> Expr:
    """The same number by what is known of the loop variables, which were others when the index was made."""
    if not any(atom.kind in ("floordiv", "mod") for mono, _ in e.terms for atom, _ in mono):
        return e
    made = ZERO
    for mono, coeff in e.terms:
        term = ex.const(coeff)
        for atom, power in mono:
            term = ex.mul(term, ex.power(_simplified_atom(atom, ranges), power))
        made = ex.add(made, term)
    return joined(made)


def _simplified_atom(atom: Expr, ranges: Ranges) -> Expr:
    if atom.kind not in ("floordiv", "mod") or any(s.name.startswith("v") and s not in ranges for s in atom.symbols):
        return atom  # a value from memory may be negative
    whole, divisor = (simplified(part, ranges) for part in atom.args)
    if not nonneg(_bound(whole, ranges, False)):
        return ex.floordiv(whole, divisor) if atom.kind == "floordiv" else ex.mod(whole, divisor)
    return div(whole, divisor, ranges) if atom.kind == "floordiv" else rem(whole, divisor, ranges)


def _with_whole(e: Expr) -> Expr:
    """A size with ``a`` in place of ``a // k``: it is that at least."""
    quotients = {a: a.args[0] for mono, _ in e.terms for a, _ in mono if a.kind == "floordiv" and a.args[1].is_const}
    return ex.to_expr(ex.substitute(e, quotients)) if quotients else e


def substitute(e: Expr, replacements: Mapping[Expr, Expr]) -> Expr:
    """The index with loop variables replaced."""
    if not replacements or not any(s in replacements for s in e.symbols):
        return e
    return ex.to_expr(ex.substitute(e, replacements))


def coefficient(e: Expr, variable: Expr) -> Expr | None:
    """The stride of ``variable`` in the index, or None where the index is not linear in it."""
    if variable not in e.symbols:
        return ZERO
    terms: dict[Any, int] = {}
    for mono, coeff in e.terms:
        left = []
        found = 0
        for atom, power in mono:
            if atom is variable:
                found = power
            elif variable in atom.symbols:
                return None
            else:
                left.append((atom, power))
        if found > 1:
            return None
        if found:
            terms[tuple(left)] = coeff
    return ex.from_terms(terms)


#: Points up to which indices are compared one by one.
_POINTS = 1 << 14


def distinct(index: Sequence[Expr], ranges: Ranges) -> bool | None:
    """Is the index another one at each point of its variables? None where that is not known.

    It is where each variable weighs more than all lighter ones can make up together, in each dimension apart, as the
    digits of a number do. Else the points are tried one by one, where they are numbers and not too many.
    """
    of_each = [v for i in index for v in i.symbols if v in ranges]
    variables = dict.fromkeys(of_each)
    if len(of_each) == len(variables) and all(_digits(i, ranges) for i in index):
        return True
    extents = [ranges[v] for v in variables]
    if not all(n.is_const for n in extents) or any(s not in ranges for i in index for s in i.symbols):
        return None
    if math.prod(n.value for n in extents) > _POINTS:
        return None
    names, seen = [v.name for v in variables], set()
    for point in itertools.product(*(range(n.value) for n in extents)):
        values = dict(zip(names, point, strict=True))
        at = tuple(i.evaluate(values) for i in index)
        if at in seen:
            return False
        seen.add(at)
    return True


def _digits(e: Expr, ranges: Ranges) -> bool:
    """Does each variable of an index weigh more than all those below it can sum up to?"""
    variables = [v for v in e.symbols if v in ranges]
    left = [(weight, ranges[v]) for v in variables if (weight := coefficient(e, v)) is not None]
    if len(left) < len(variables):
        return False
    reach = ZERO
    while left:
        digit = next((d for d in left if _beyond(d[0], reach)), None)
        if digit is None:
            return False
        left.remove(digit)
        weight, extent = digit
        reach = ex.add(reach, ex.mul(weight if nonneg(weight) else ex.neg(weight), ex.sub(extent, ONE)))
    return True


def _beyond(weight: Expr, reach: Expr) -> bool:
    return any(nonneg(ex.sub(ex.sub(w, reach), ONE)) for w in (weight, ex.neg(weight)))


def range_atoms(e: Expr, ranges: Ranges) -> list[tuple[Expr, Expr]]:
    """``(variable, divisor)`` of each floordiv or mod whose numerator is led by a plain loop variable."""
    found: list[tuple[Expr, Expr]] = []
    for mono, _ in e.terms:
        for atom, _power in mono:
            if atom.kind in ("floordiv", "mod"):
                numerator, divisor = atom.args
                for inner_mono, coeff in numerator.terms:
                    if len(inner_mono) == 1 and inner_mono[0][1] == 1 and inner_mono[0][0] in ranges and coeff == 1:
                        found.append((inner_mono[0][0], divisor))
                    elif inner_mono and inner_mono[0][0] in ranges and coeff > 1 and divisor.is_const:
                        if divisor.value % coeff == 0:
                            found.append((inner_mono[0][0], ex.const(divisor.value // coeff)))
    return found
