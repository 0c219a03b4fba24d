"""Sizes that follow from others: known to be empty or not, and of a size themselves that stays small."""

from __future__ import annotations

import math
import operator

import pytest
import torch

from prims.spec import SymbolContext, TensorSpec, infer
from prims.spec import expr as E
from prims.spec.context import HEAVIEST
from prims.spec.ranges import interval

aten = torch.ops.aten
CPU = torch.device("cpu")


@pytest.mark.parametrize("hint", [1, 2, 5])
@pytest.mark.parametrize(
    "call",
    [
        lambda x: infer(aten.slice.Tensor, (x, 0, 1, 2**63 - 1)),
        lambda x: infer(aten.slice.Tensor, (x, 0, 0, -1)),
        lambda x: infer(aten.split_with_sizes.default, (x, [1, x.shape[0] - 1], 0)),
        lambda x: infer(aten.diagonal.default, (infer(aten.slice.Tensor, (x, 0, 1, 2**63 - 1)),)),
    ],
)
def test_a_size_is_empty_or_not_in_all_calls(call, hint):
    ctx = SymbolContext()
    made = call(TensorSpec((ctx.new_symbol(hint, min=1), 4), torch.float32, CPU))
    for spec in made if isinstance(made, (list, tuple)) else (made,):
        for size in spec.shape:
            some = ctx.statically_known(E.ge(E.to_expr(getattr(size, "expr", size)), 1))
            assert some is not None
            assert some is bool(ctx.hint(E.to_expr(getattr(size, "expr", size))) >= 1)


def test_a_size_that_only_the_data_tell_is_not_asked():
    ctx = SymbolContext()
    infer(aten.slice.Tensor, (TensorSpec((ctx.new_symbol(None, min=0), 4), torch.float32, CPU), 0, 1, 2**63 - 1))
    assert not ctx.guards


def test_an_operand_in_many_places_is_looked_at_once():
    """Each of the operands is twice in the next one: the first stands in a thousand places."""
    e, asked = E.symbol("s"), []
    for _ in range(10):
        e = E.mod(E.add(e, E.mul(E.floordiv(e, 3), 2)), 1000)

    def of_atom(atom):
        asked.append(atom)
        return (2, 50) if atom.is_symbol else None

    assert interval(e, of_atom) == (0, 999)
    assert e.weight > 5000 and len(asked) < 100


@pytest.mark.parametrize("fn", [lambda m: (m + 5) - 2 * (m // 3 % 8 - m % 2), lambda m: m * m % 1000 + m // 3])
def test_a_number_of_many_operations_is_what_it_is(fn):
    ctx = SymbolContext()
    first = m = ctx.new_symbol(7)
    value = 7
    for _ in range(60):
        m, value = fn(m), fn(value)
    assert m == value
    assert ctx.simplify(first.expr).is_const, "the guard is on the number it was made of"
    assert all(guard.expr.weight <= HEAVIEST for guard in ctx.guards)


def test_remainders_of_remainders_do_not_pile_up():
    """Each is one of the number itself, so that a number of many operations stays a light one."""
    ctx = SymbolContext()
    first = m = ctx.new_symbol(7)
    value = 7
    for _ in range(60):
        m, value = (m + 5) - 2 * (m % 8 - m % 2), (value + 5) - 2 * (value % 8 - value % 2)
    assert m == value
    assert not ctx.simplify(first.expr).is_const and all(guard.expr.weight <= HEAVIEST for guard in ctx.guards)


def test_sums_of_a_hundred_sizes_stay_symbols():
    ctx = SymbolContext()
    sizes = [ctx.new_symbol(n) for n in range(2, 102)]
    total = operator.add(sum(sizes), 1) // 2
    assert not ctx.guards and total.expr.weight < HEAVIEST


@pytest.mark.parametrize("divisor", [2, 3, 7])
def test_a_multiple_of_a_quotient_is_at_most_what_was_divided(divisor):
    ctx = SymbolContext()
    a = ctx.new_symbol(9).expr
    multiple = E.mul(E.floordiv(a, divisor), divisor)
    assert ctx.statically_known(E.le(multiple, a)) is True
    assert ctx.statically_known(E.le(a, E.add(multiple, divisor - 1))) is True
    assert ctx.statically_known(E.le(a, E.add(multiple, divisor - 2))) is None


@pytest.mark.parametrize(("low", "holds"), [(2, True), (3, None)])
def test_what_is_known_of_a_quotient_is_known_of_what_it_becomes(low, holds):
    ctx = SymbolContext()
    a, b = (ctx.new_symbol(hint, min=1).expr for hint in (2, 5))
    quotient = E.floordiv(E.mul(a, b), 2)
    assert ctx.evaluate(E.ge(quotient, 2)) and ctx.evaluate(E.le(quotient, 9))
    ctx.evaluate(E.eq(a, 2))
    assert ctx.simplify(quotient) is b
    assert ctx.statically_known(E.ge(b, low)) is holds
    assert ctx.statically_known(E.le(b, 9)) is True and ctx.statically_known(E.le(b, 8)) is None


EQUAL = {
    "a product": (lambda a, b, c: a * b, 8),
    "a sum": (lambda a, b, c: a + b + c, 9),
    "a product of three": (lambda a, b, c: a * b * c, 24),
}
INSIDE = [
    lambda e, c: e,
    lambda e, c: 2 * e,
    lambda e, c: 3 - 3 * e,
    lambda e, c: -(-16 // e),
    lambda e, c: 100 // (e * 2) + c,
    lambda e, c: c % e,
    lambda e, c: torch.sym_max(e, 5),
    lambda e, c: e * e + e,
    lambda e, c: torch.sym_float(e) / 2.5 + c,
    lambda e, c: math.floor(e * 0.3),
    lambda e, c: (e + c) / e,
]


@pytest.mark.parametrize("inside", range(len(INSIDE)))
@pytest.mark.parametrize("equation", EQUAL)
def test_what_an_equation_gives_is_put_in_wherever_it_is(equation, inside):
    ctx = SymbolContext()
    a, b, c = (ctx.new_symbol(hint) for hint in (4, 2, 3))
    compute, value = EQUAL[equation]
    assert compute(a, b, c) == value
    once = INSIDE[inside](compute(a, b, c), c)
    simple = ctx.simplify(E.to_expr(getattr(once, "expr", once)))
    told = INSIDE[inside](value, c)
    assert simple is ctx.simplify(E.to_expr(getattr(told, "expr", told)))


def test_a_product_is_put_in_where_it_is_a_factor():
    ctx = SymbolContext()
    a, b, c, d = (ctx.new_symbol(hint) for hint in (4, 2, 3, 5))
    assert a * b == 8
    assert ctx.simplify((a * b * c - d * c * b * a + 1).expr) is (8 * c - 8 * c * d + 1).expr
    assert ctx.simplify((a * c + 1).expr) is (a * c + 1).expr
