"""Size expressions: normal form against brute force and sympy, text forms, ranges."""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prims.spec import expr as E
from prims.spec.context import SymbolContext
from prims.spec.expr import Expr, symbol
from prims.spec.exprtext import C_PRELUDE, parse, to_c

NAMES = ("s0", "s1", "s2")
VALUES = [dict(zip(NAMES, v, strict=True)) for v in itertools.product((2, 3, 7), (2, 5, 8), (1, 4))]


class Pair:
    """An expression, and the same computation on numbers."""

    def __init__(self, e: Expr, fn):
        self.e, self.fn = e, fn


leaves = st.one_of(
    st.sampled_from(NAMES).map(lambda n: Pair(symbol(n), lambda v, n=n: v[n])),
    st.integers(-6, 12).map(lambda k: Pair(E.const(k), lambda v, k=k: k)),
)


def _combine(children):
    def binary(op, number):
        return st.tuples(children, children).map(
            lambda ab: Pair(op(ab[0].e, ab[1].e), lambda v: number(ab[0].fn(v), ab[1].fn(v)))
        )

    def divided(op, number):
        divisors = st.one_of(
            st.sampled_from((1, 2, 3, 4, 6, 12, -2)).map(lambda k: Pair(E.const(k), lambda v, k=k: k)),
            st.sampled_from(NAMES).map(lambda n: Pair(symbol(n), lambda v, n=n: v[n])),
            st.sampled_from(NAMES).map(lambda n: Pair(symbol(n) * 4 + 4, lambda v, n=n: v[n] * 4 + 4)),
        )
        return st.tuples(children, divisors).map(
            lambda ab: Pair(op(ab[0].e, ab[1].e), lambda v: number(ab[0].fn(v), ab[1].fn(v)))
        )

    return st.one_of(
        binary(E.add, lambda a, b: a + b),
        binary(E.sub, lambda a, b: a - b),
        binary(E.mul, lambda a, b: a * b),
        binary(E.minimum, min),
        binary(E.maximum, max),
        divided(E.floordiv, lambda a, b: a // b),
        divided(E.mod, lambda a, b: a % b),
        divided(E.ceildiv, lambda a, b: -((-a) // b)),
    )


expressions = st.recursive(leaves, _combine, max_leaves=8)
relations = st.sampled_from(
    [
        (E.eq, lambda a, b: a == b),
        (E.ne, lambda a, b: a != b),
        (E.le, lambda a, b: a <= b),
        (E.lt, lambda a, b: a < b),
        (E.ge, lambda a, b: a >= b),
        (E.gt, lambda a, b: a > b),
    ]
)


@settings(max_examples=400, deadline=None)
@given(expressions)
def test_normal_form_keeps_the_value(p):
    for v in VALUES:
        assert p.e.evaluate(v) == p.fn(v), (str(p.e), v)


@settings(max_examples=300, deadline=None)
@given(expressions)
def test_text_round_trips_to_the_same_object(p):
    assert parse(str(p.e)) is p.e


@settings(max_examples=200, deadline=None)
@given(expressions, expressions, relations)
def test_relations(p, q, relation):
    make, number = relation
    e = make(p.e, q.e)
    for v in VALUES:
        expected = number(p.fn(v), q.fn(v))
        assert e.evaluate(v) is expected
        assert E.not_(e).evaluate(v) is not expected
    assert parse(str(e)) is e
    assert E.not_(E.not_(e)) is e


@settings(max_examples=200, deadline=None)
@given(expressions, st.sampled_from(NAMES), expressions)
def test_substitution(p, name, q):
    if symbol(name) in q.e.symbols:
        return
    try:
        e = p.e.subs({symbol(name): q.e})
    except ZeroDivisionError:
        return  # a divisor became the constant 0
    for v in VALUES:
        inner = {**v, name: q.fn(v)}
        try:
            expected = p.e.evaluate(inner)
        except ZeroDivisionError:
            continue
        assert e.evaluate(v) == expected


@settings(max_examples=300, deadline=None)
@given(expressions)
def test_ranges_contain_every_value(p):
    ctx = SymbolContext()
    for name in NAMES:
        ctx.declare(name, 3 if name != "s2" else 2, 1, 8)
    low, high = ctx.bounds(p.e)
    simple = ctx.simplify(p.e)
    for v in VALUES:
        assert low <= p.fn(v) <= high
        assert simple.evaluate(v) == p.fn(v)


@settings(max_examples=60, deadline=None)
@given(expressions)
def test_against_sympy(p):
    import sympy

    v = VALUES[5]
    number = p.e.to_sympy().subs({sympy.Symbol(n, integer=True): k for n, k in v.items()})
    assert int(number) == p.fn(v)


s0, s1, s2 = map(symbol, NAMES)


@pytest.mark.parametrize(
    ("got", "want"),
    [
        ((s0 * 768) // 768, s0),
        ((s0 * 12) % 12, E.const(0)),
        ((s0 * 12 + 5) % 12, E.const(5)),
        (s0 - s0, E.const(0)),
        ((s0 * s1) // s1, s0),
        ((s0 * s1 + s1) // s1, s0 + 1),
        ((s0 * s1 + s0) // (s1 + 1), s0),
        ((4 * s0 + 6) // 2, 2 * s0 + 3),
        ((s0 // 2) // 3, s0 // 6),
        ((6 * s0) % 4, 2 * ((3 * s0) % 2)),
        ((s0 + s1) * (s0 - s1), s0 * s0 - s1 * s1),
        (E.maximum(s0, s0 + 2), s0 + 2),
        (E.minimum(s0 + 1, s1, s0), E.minimum(s0, s1)),
        (E.ceildiv(s0 * 8, 8), s0),
        ((s0 * s1 * 4) // (s1 * 2), 2 * s0),
    ],
)
def test_simplifications(got, want):
    assert got is want


def test_comparisons_are_normalised():
    assert E.eq(2 * s0, 2 * s1) is E.eq(s1, s0)
    assert E.lt(s0, 5) is E.le(s0, 4)
    assert E.not_(E.le(s0, 4)) is E.ge(s0, 5)
    assert E.eq(2 * s0, 5) is E.FALSE
    assert E.ne(2 * s0 + 1, 4 * s1) is E.TRUE
    assert str(E.le(5, s0)) == "5 <= s0"
    assert str(E.eq(s0 * s1, 12)) == "s0*s1 == 12"
    assert E.and_(E.le(s0, 4), E.not_(E.le(s0, 4))) is E.FALSE
    assert E.or_(E.TRUE, E.eq(s0, s1)) is E.TRUE


def test_order_and_names_are_deterministic():
    code = (
        "from prims.spec.expr import symbol, maximum\n"
        "s = [symbol(f's{i}') for i in (10, 2, 0)]\n"
        "print(s[0] * s[1] + s[2] * 3 + maximum(*s) // 4 - 7)"
    )
    texts = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
        for _ in range(2)
    }
    assert texts == {"s2*s10 + 3*s0 + (max(s0, s2, s10)//4) - 7\n"}


@pytest.mark.parametrize("text", ["s0 +", "import os", "s0 ** s1", "foo(s0)", "s0.x", "'a'"])
def test_parse_rejects(text):
    with pytest.raises(ValueError, match="size expression"):
        parse(text)


def test_c_text(tmp_path):
    import ctypes
    import shutil

    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    cases = [
        (s0 * 3 - s1) // 4,
        (s0 - s1) % 7,
        E.maximum(s0, s1 * 2, s2) - s0 * s0,
        E.minimum(s0 // s1, s2 % s0),
        E.ite(E.le(s0, s1), s0, s1 + 1),
        E.round_to_int("trunc", E.float_op("fmul", s0, 1.5)),
    ]
    lines = [C_PRELUDE, "#include <math.h>"]
    for i, e in enumerate(cases):
        lines.append(f"long f{i}(long s0, long s1, long s2) {{ return {to_c(e)}; }}")
    source, library = tmp_path / "e.c", tmp_path / "e.so"
    source.write_text("\n".join(lines))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-lm"], check=True, timeout=60)
    lib = ctypes.CDLL(str(library))
    for i, e in enumerate(cases):
        f = getattr(lib, f"f{i}")
        f.argtypes, f.restype = [ctypes.c_long] * 3, ctypes.c_long
        for v in VALUES:
            assert f(*(v[n] for n in NAMES)) == e.evaluate(v), str(e)


def test_zero_divisor():
    with pytest.raises(ZeroDivisionError):
        s0 // 0
    with pytest.raises(ZeroDivisionError):
        s0 % 0


def test_a_float_by_its_bits():
    s = E.symbol("s0")
    e = E.float_op("fmul", E.from_bits(s), 2.0)
    assert e.is_float and parse(str(e)) is e and str(e) == "(fbits(s0) * 2.0)" and e.free_symbols() == {"s0"}
    for x in (1.5, -0.0, float("inf"), 1e-310, -3.25):
        bits = E.bits_of_float(x)
        assert -(2**63) <= bits < 2**63 and repr(E.float_of_bits(bits)) == repr(x)
        assert e.evaluate({"s0": bits}) == 2 * x
        assert E.substitute(e, {s: E.const(bits)}) is E.fconst(2 * x)
    assert E.float_of_bits(E.bits_of_float(float("nan"))) != E.float_of_bits(E.bits_of_float(float("nan")))


def test_bounds_of_minima_and_maxima() -> None:
    """Every value of random expressions is within their bounds, and a minimum is at most each of its operands."""
    from prims.spec.ranges import interval

    u, v = E.symbol("u"), E.symbol("v")
    within = {u: (0, 6), v: (1, 5)}
    draw = random.Random(0)

    def expression(depth: int) -> Any:
        if depth == 0 or draw.random() < 0.3:
            return draw.choice([u, v, E.const(draw.randint(-3, 5))])
        a, b = expression(depth - 1), expression(depth - 1)
        return draw.choice([E.minimum, E.maximum, E.add, E.sub, lambda a, b: E.mul(a, draw.randint(-2, 3))])(a, b)

    for _ in range(1000):
        e = expression(5)
        low, high = interval(e, within.get)
        values = [e.evaluate({"u": a, "v": b}) for a in range(7) for b in range(1, 6)]
        assert low <= min(values) and max(values) <= high, e
    unknown = {u: (0, math.inf)}
    assert interval(E.sub(E.minimum(u, E.maximum(0, E.sub(u, 1))), u), unknown.get)[1] == 0
    assert interval(E.sub(E.maximum(u, 7), u), unknown.get)[0] == 0
