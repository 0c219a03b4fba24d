"""What guards imply of a size is in its expression: who asks whether a dimension is one, and is told so, looks there.

Random facts about a few sizes, that hold for their hints, are recorded as guards. What is then said to be known is
checked against all small sizes for which the guards hold, and a size that is known to be a number is that number.
"""

from __future__ import annotations

import itertools
import random

import pytest

from prims.spec import SymbolContext
from prims.spec import expr as E

SIZES = range(1, 7)


def fact(draw: random.Random, symbols: list[E.Expr]) -> E.Expr:
    """A comparison of a sum of products of the sizes with a number or with another one."""

    def term() -> E.Expr:
        chosen = draw.sample(symbols, draw.choice((1, 1, 2, min(3, len(symbols)))))
        product = E.const(draw.choice((1, 1, 1, 2, -1)))
        for symbol in chosen:
            product = E.mul(product, symbol)
        return product

    total = term()
    for _ in range(draw.choice((0, 0, 1, 2))):
        total = E.add(total, term())
    if draw.random() < 0.15:
        total = E.floordiv(total, 2)
    return draw.choice((E.eq, E.eq, E.le, E.ne))(total, E.const(draw.randint(0, 6)))


@pytest.mark.parametrize("seed", range(400))
def test_what_is_known_of_a_size_is_its_expression(seed: int) -> None:
    draw = random.Random(seed)
    ctx = SymbolContext()
    count = draw.choice((2, 2, 3))
    hints = [draw.choice((1, 1, 1, 2, 3)) for _ in range(count)]
    symbols = [ctx.new_symbol(hint, min=1).expr for hint in hints]
    for _ in range(draw.randint(1, 4)):
        ctx.evaluate(fact(draw, symbols), "a fact")
    for symbol in draw.sample(symbols, draw.randint(0, count - 1)):
        ctx.evaluate(E.eq(symbol, 1), "a dimension of one")
    names = [symbol.args[0] for symbol in symbols]
    allowed = [
        dict(zip(names, sizes, strict=True)) for sizes in itertools.product(SIZES, repeat=count)
        if all(guard.expr.evaluate(dict(zip(names, sizes, strict=True))) for guard in ctx.guards)
    ]  # fmt: skip
    assert dict(zip(names, hints, strict=True)) in allowed
    for _ in range(20):
        asked = fact(draw, symbols)
        known = ctx.statically_known(asked)
        if known is not None:
            assert all(bool(asked.evaluate(sizes)) is known for sizes in allowed), (asked, known, ctx.guards)
    for symbol, size in itertools.product(symbols, SIZES):
        if ctx.statically_known(E.eq(symbol, size)):
            assert ctx.simplify(symbol) is E.const(size), (symbol, size, ctx.guards)


@pytest.mark.parametrize("hints", [(1, 1), (1, 1, 1)])
def test_a_product_that_is_one_is_of_ones(hints: tuple[int, ...]) -> None:
    ctx = SymbolContext()
    symbols = [ctx.new_symbol(hint, min=1).expr for hint in hints]
    product = E.const(1)
    for symbol in symbols:
        product = E.mul(product, symbol)
    assert ctx.evaluate(E.eq(product, 1), "numel")
    assert [ctx.simplify(symbol) for symbol in symbols] == [E.const(1)] * len(symbols)
    assert len(ctx.guards) == 1
