"""Indices that generated code computes by divisions, and reductions that do not depend on the loop around them."""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

import pytest
import torch
from gen_support import check

from inductor_gen.loops.index import (
    ZERO,
    distinct,
    div,
    joined,
    lift,
    lower,
    nonneg,
    rem,
    simplified,
    unflatten,
    upper,
)
from prims.spec import expr as ex
from prims.spec.expr import Expr


def test_divisions_of_what_runs_backwards() -> None:
    """A shifted, reversed walk over rows: (16 - i) // 4 as the normal form writes it, 4 + (-i) // 4."""

    def fn(p: Any, x: Any) -> Any:
        flat = p.flip(p.reshape(x, (16,)), (0,))
        behind = p.pad(flat, 1.0, (1,), (-1,))
        return p.cumprod(behind, 0), p.reshape(behind, (4, 4)), p.flip(p.cumsum(behind, 0), (0,))

    check(fn, [torch.rand(4, 4) + 0.5])


BACKWARDS = {
    "columns": lambda p, x, y: (_flat(p, y), p.flip(x, (1,))),
    "rows": lambda p, x, y: (_flat(p, y), p.flip(x, (0,))),
    "both": lambda p, x, y: (_flat(p, y), p.flip(x, (0, 1))),
    "what it is made of": lambda p, x, y: (_flat(p, y), p.flip(y, (1,))),
    "turned and flat": lambda p, x, y: (_flat(p, p.flip(y, (1,))), x),
    "grouped": lambda p, x, y: (p.reshape(_flat(p, y), (x.shape[1], x.shape[0])), p.flip(x, (1,))),
}


def _flat(p: Any, x: Any) -> Any:
    return p.add(p.reshape(x, (x.shape[0] * x.shape[1],)), 1.0)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", BACKWARDS)
def test_reshapes_in_kernels_that_run_backwards(name: str, dynamic: bool) -> None:
    """A value, flat, beside what is reversed: s0 * s1 positions in terms of s1 - 1 - i1."""
    fn = lambda p, x: BACKWARDS[name](p, x, p.convert(x, torch.float64))
    check(fn, [torch.randn(6, 8)], dynamic={0: (0, 1)} if dynamic else None)


def test_quotients_of_what_runs_backwards() -> None:
    s, i, j = ex.symbol("s1"), ex.symbol("i0"), ex.symbol("i1")
    ranges = {i: ex.symbol("s0"), j: s}
    last = ex.sub(ex.sub(s, ex.const(1)), j)
    assert div(ex.add(ex.mul(i, s), last), s, ranges) is i and rem(ex.add(ex.mul(i, s), last), s, ranges) is last
    ahead = ex.add(j, ex.mul(ex.const(3), s))
    assert div(ahead, s, ranges) is ex.const(3) and rem(ahead, s, ranges) is j
    two = ex.add(ex.mul(i, ex.const(4)), ex.const(9))  # 4 i + 9, of which 9 is two rows and one
    assert div(two, ex.const(4), ranges) is ex.add(i, ex.const(2)) and rem(two, ex.const(4), ranges) is ex.const(1)
    assert rem(ex.sub(s, j), s, ranges) is not ex.sub(s, j)  # it may be s


def test_how_far_a_numerator_is_lifted() -> None:
    i = ex.symbol("i0")
    ranges = {i: ex.const(16)}
    assert lift(i, ex.const(4), ranges) is ZERO
    assert lift(ex.neg(i), ex.const(4), ranges) is ex.const(16)
    assert lift(ex.sub(i, ex.const(1)), ex.const(4), ranges) is ex.const(4)
    assert lift(ex.neg(ex.symbol("v3")), ex.const(4), ranges) is None


SIZES = [ex.symbol("s0"), ex.symbol("s1"), ex.symbol("u2")]
LOOPS = [ex.symbol("i0"), ex.symbol("i1")]


def _some_size(draw: random.Random, depth: int = 2) -> Expr:
    """What shapes are computed as; positive as a divisor."""
    if depth == 0 or draw.random() < 0.3:
        return draw.choice([*SIZES, ex.const(draw.randrange(4)), ex.const(draw.randrange(1, 9))])
    a, b = _some_size(draw, depth - 1), _some_size(draw, depth - 1)
    match draw.randrange(7):
        case 0:
            return ex.add(a, b)
        case 1:
            return ex.sub(a, b)
        case 2:
            return ex.mul(a, b)
        case 3:
            return ex.floordiv(a, draw.choice([SIZES[0], SIZES[1], ex.const(2), ex.const(3)]))
        case 4:
            return ex.mod(a, draw.choice([SIZES[0], SIZES[1], ex.const(2), ex.const(3)]))
        case 5:
            return ex.minimum(a, b)
        case _:
            return ex.maximum(a, b)


@pytest.mark.parametrize("seed", range(8))
def test_what_is_known_of_sizes_and_indices_holds_for_all_of_them(seed: int) -> None:
    """Quotients, remainders and numbers of what the data picks may be 0: a half of ``s0`` is not a size of one at least."""
    draw = random.Random(seed)
    values = [dict(zip(("s0", "s1", "u2"), v, strict=True)) for v in itertools.product((1, 2, 3, 7), (1, 2, 5), (0, 1, 4))]
    decided = 0
    for _ in range(400):
        e = _some_size(draw, 3)
        if nonneg(e):
            decided += not e.is_const
            assert all(ex.evaluate(e, v) >= 0 for v in values), str(e)
    assert decided > 20
    decided = 0
    for _ in range(400):
        extents = [_some_size(draw, 1) for _ in LOOPS]
        ranges = dict(zip(LOOPS, extents, strict=True))
        scale, start = draw.choice([1, 2, 3, -1]), _some_size(draw, 1)
        position = ex.add(ex.add(ex.mul(LOOPS[0], _some_size(draw, 1)), ex.mul(LOOPS[1], scale)), start)
        divisor = draw.choice([SIZES[0], SIZES[1], ex.const(4)])
        parts = unflatten(position, (SIZES[1], SIZES[0], ex.const(3)), ranges)
        found = [position, div(position, divisor, ranges), rem(position, divisor, ranges), *parts]
        found += [ex.mul(LOOPS[0], ex.floordiv(position, SIZES[0])), ex.floordiv(position, divisor)]
        bounds = [(lower(e, ranges), upper(e, ranges)) for e in found]
        decided += sum(nonneg(low) for low, _ in bounds)
        for v in values:
            sizes = [ex.evaluate(n, v) for n in extents]
            for at in itertools.product(*(range(min(n, 3)) for n in sizes)):
                here = {**v, "i0": at[0], "i1": at[1]}
                for e, (low, high) in zip(found, bounds, strict=True):
                    assert low is None or ex.evaluate(low, v) <= ex.evaluate(e, here), (str(e), str(low), here)
                    assert high is None or ex.evaluate(high, v) >= ex.evaluate(e, here), (str(e), str(high), here)
                at_all = ex.evaluate(position, here)
                if at_all >= 0:
                    n = v[divisor.name] if divisor.is_symbol else divisor.value
                    assert ex.evaluate(found[1], here) == at_all // n, (str(position), str(divisor), str(found[1]), here)
                    assert ex.evaluate(found[2], here) == at_all % n, (str(position), str(divisor), str(found[2]), here)
    assert decided > 100


def test_a_reduction_that_is_the_same_in_all_rows() -> None:
    x = torch.randn(1, 4).expand(6, 4)
    check(lambda p, x: (p.sum(x, (1,)), p.add(p.sum(x, (1,)), 1.0)), [x])
    check(lambda p, x: (p.amax(x, (1,)), p.tanh(p.mul(p.amin(x, (1,)), 2.0))), [torch.randn(1, 300).expand(300, 300)])


def test_a_view_made_by_an_operator_outlives_its_base() -> None:
    """Its base's memory goes to the next buffers of that size."""

    def fn(p: Any, x: Any) -> Any:
        view = p.aten(torch.ops.aten.view.dtype, p.mul(x, 2.0), torch.int16)
        for _ in range(3):
            x = p.mul(p.aten(torch.ops.aten.sort.default, x)[0], 0.5)
        return x, p.add(view, 1)

    check(fn, [torch.randn(64)])


@pytest.mark.parametrize("seed", range(40))
def test_distinct_is_what_trying_all_points_says(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By weights alone it never says that an index is another one everywhere where it is not."""
    rng = random.Random(seed)
    ranges = {ex.symbol(f"i{k}"): ex.const(rng.choice((1, 2, 3, 5))) for k in range(3)}
    index = []
    for _ in range(rng.choice((1, 1, 2))):
        terms = [ex.mul(ex.const(rng.choice((-6, -1, 0, 1, 2, 3, 5, 10))), v) for v in ranges]
        e = functools.reduce(ex.add, terms, ex.const(rng.choice((0, 7))))
        index.append(rng.choice((e, e, ex.floordiv(e, ex.const(2)), ex.mod(e, ex.const(4)))))
    used = [v for v in ranges if any(v in i.symbols for i in index)]
    points = [dict(zip((v.name for v in used), at)) for at in itertools.product(*(range(ranges[v].value) for v in used))]
    found = [tuple(i.evaluate(at) for i in index) for at in points]
    assert distinct(index, ranges) is (len(set(found)) == len(found))
    monkeypatch.setattr("inductor_gen.loops.index._POINTS", 0)
    assert distinct(index, ranges) in (None, len(set(found)) == len(found))


def _random_index(draw: random.Random, variables: list[ex.Expr], sizes: list[ex.Expr], depth: int) -> ex.Expr:
    """An index of quotients, remainders and sums of loop variables, as chains of views make them; never negative."""
    kind = draw.choice(["variable", "sum", "quotient", "remainder"]) if depth else "variable"
    if kind == "variable":
        return ex.mul(draw.choice(variables), draw.choice([1, 2, 3, 4, 12, *sizes]))
    first = _random_index(draw, variables, sizes, depth - 1)
    if kind == "sum":
        return ex.add(first, _random_index(draw, variables, sizes, depth - 1))
    divisor = ex.product([draw.choice([2, 3, 4, 6]), *draw.sample(sizes, draw.randint(0, 1))])
    if draw.random() < 0.3:  # as a reshape makes them of one position
        return ex.add(ex.mul(ex.floordiv(first, divisor), divisor), ex.mod(first, divisor))
    return ex.floordiv(first, divisor) if kind == "quotient" else ex.mod(first, divisor)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_simplified_is_the_same_number(seed: int) -> None:
    """At random places of random loops, against Python's own arithmetic."""
    draw = random.Random(seed)
    for _ in range(25):
        sizes = [ex.symbol(f"s{k}") for k in range(2)]
        variables = [ex.symbol(f"i{k}") for k in range(3)]
        extents = [draw.choice([ex.const(2), ex.const(3), ex.const(4), ex.const(16), *sizes]) for _ in variables]
        index = _random_index(draw, variables, sizes, 4)
        made = simplified(index, dict(zip(variables, extents, strict=True)))
        again = joined(index)
        for _ in range(20):
            numbers = {size.name: draw.randint(2, 9) for size in sizes}
            places = {v.name: draw.randrange(e.evaluate(numbers)) for v, e in zip(variables, extents, strict=True)}
            wanted = index.evaluate(numbers | places)
            assert made.evaluate(numbers | places) == wanted == again.evaluate(numbers | places), (index, made, again)


def test_a_quotient_and_its_remainder_are_what_was_divided() -> None:
    i, j, n = (ex.symbol(name) for name in ("i0", "i1", "s0"))
    position = ex.add(ex.mul(i, ex.mul(n, 4)), j)
    apart = ex.add(ex.mul(ex.floordiv(position, ex.mul(n, 3)), ex.mul(n, 3)), ex.mod(position, ex.mul(n, 3)))
    assert joined(apart) is position
    assert joined(ex.add(ex.mul(apart, 5), j)) is ex.add(ex.mul(position, 5), j)
    assert joined(ex.add(ex.mul(ex.floordiv(position, n), 2), ex.mod(position, n))).kind == "poly"  # of another stride
    three = {i: ex.const(16), j: ex.const(3)}
    packed = ex.add(ex.mul(i, 3), j)
    assert simplified(ex.mod(packed, 3), three) is j and simplified(ex.floordiv(packed, 3), three) is i
    assert simplified(ex.floordiv(packed, 12), three) is ex.floordiv(i, 4)
    loaded = ex.floordiv(ex.symbol("v0"), 4)
    assert simplified(loaded, three) is loaded  # which may be negative
