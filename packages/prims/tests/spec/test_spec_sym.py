"""Symbols in use: guards and what they imply, Python's protocols, and torch.SymInt."""

from __future__ import annotations

import math

import pytest
import torch

from prims.errors import DataDependentError
from prims.spec import Sym, SymbolContext, SymFloat, from_torch, parse_expr, sym_max, sym_min, to_torch
from prims.spec import expr as E


@pytest.fixture
def ctx():
    return SymbolContext()


def guards(ctx):
    return [str(g.expr) for g in ctx.guards]


def test_arithmetic_gives_ints_when_constant(ctx):
    s = ctx.new_symbol(7)
    assert type(s - s) is int and s - s == 0
    assert (s * 768) // 768 is s
    assert (s * 12) % 12 == 0
    assert 3 + s - 1 is s + 2
    assert (-s + s) == 0
    assert not ctx.guards


def test_ranges_decide_without_a_guard(ctx):
    s, t = ctx.new_symbol(7), ctx.new_symbol(9)
    assert s != 1 and s > 0 and s >= 2 and not s < 2 and bool(s)
    assert s * t > s
    assert sym_max(s, 1) is s
    assert sym_min(s, 1) == 1
    assert s % 1 == 0
    assert not ctx.guards


def test_a_guard_narrows_what_follows(ctx):
    s = ctx.new_symbol(7)
    assert s <= 512
    assert s < 600 and s != 1000 and not s > 513
    assert guards(ctx) == ["s0 <= 512"]
    assert ctx.info("s0").max == 512
    assert s > 4
    assert s >= 3
    assert guards(ctx) == ["s0 <= 512", "5 <= s0"]


def test_equality_replaces(ctx):
    s, t = ctx.new_symbol(7), ctx.new_symbol(7)
    assert s == t
    assert (s * t - s * s) == 0
    assert s + 1 == t + 1
    assert guards(ctx) == ["s0 == s1"]
    assert t == 7
    assert type(s + 0) is int or (s + 0) == 7
    assert guards(ctx) == ["s0 == s1", "s0 == 7"]
    assert s.is_constant() and t.maybe_as_int() == 7


def test_false_comparisons_guard_the_negation(ctx):
    s, t = ctx.new_symbol(7), ctx.new_symbol(9)
    assert not s == t
    assert s != t
    assert guards(ctx) == ["s0 != s1"]
    assert not s == 8
    assert s != 8
    assert guards(ctx) == ["s0 != s1", "s0 != 8"]


def test_equation_with_divisibility(ctx):
    s = ctx.new_symbol(12)
    assert s % 4 == 0
    assert guards(ctx) == ["(s0 % 4) == 0"]
    assert s % 4 == 0
    assert len(ctx.guards) == 1


def test_python_protocols_specialise(ctx):
    s = ctx.new_symbol(3)
    assert list(range(s)) == [0, 1, 2]
    assert [10, 20, 30, 40][s] == 40
    assert "abcdef"[:s] == "abc"
    assert int(s) == 3 and float(s) == 3.0 and math.sqrt(s) == math.sqrt(3)
    assert guards(ctx) == ["s0 == 3"]
    assert hash(s) == hash(s + 0 if isinstance(s + 0, Sym) else s)


def test_floats(ctx):
    s = ctx.new_symbol(9)
    half = s / 2
    assert isinstance(half, SymFloat)
    assert float(1 / (s * 1.0)) == 1 / 9
    assert s**2 is s * s
    assert guards(ctx) == ["(1.0 / (float(s0) * 1.0)) == 0.1111111111111111"]


def test_guard_says_why_and_where(ctx):
    s = ctx.new_symbol(7, "L['x'].size(0)")
    ctx.evaluate(E.eq(s.expr, 7), "a shape check")
    (guard,) = ctx.guards
    assert guard.reason == "a shape check"
    assert guard.where.filename == __file__ and guard.where.function.endswith("test_guard_says_why_and_where")
    assert ctx.info("s0").source == "L['x'].size(0)"


def test_unknown_sizes_raise(ctx):
    u = ctx.new_symbol(None, min=0)
    assert u >= 0
    assert not E.eq(u.expr, 0).is_const
    with pytest.raises(DataDependentError, match="only at run time"):
        bool(u == 4)
    with pytest.raises(DataDependentError, match="only at run time"):
        int(u)
    assert not ctx.guards


def test_sums_come_to_what_an_equation_says(ctx):
    """Also where the equation is solved for none of its terms."""
    s, u, t = ctx.new_symbol(2), ctx.new_symbol(9), ctx.new_symbol(9)
    half = s // 2 + s % 2  # the size of tensor_split's first part
    assert half == 1 and guards(ctx) == ["(s0//2) + (s0 % 2) == 1"]
    assert ctx.make(half.expr) == 1 and 3 - half == 2 and type(3 - half) is int
    assert (half + 4 == 5) is True and (half == 2) is False and (half > 1) is False
    even = 2 * (t // 3) + 4 * (t % 5)
    assert even == 22 and ctx.make(even.expr) == 22 and even * 3 == 66 and -even == -22
    assert len(ctx.guards) == 2
    assert u == t and ctx.make(even.expr) == 22  # t is u from now on


def test_contradicting_hint():
    with pytest.raises(ValueError, match="outside"):
        SymbolContext().new_symbol(1)


def test_parse_expr(ctx):
    s = ctx.new_symbol(7)
    assert parse_expr(str((s * 3 + 1) // 2), ctx) is (s * 3 + 1) // 2
    assert parse_expr("12", ctx) == 12
    with pytest.raises(KeyError):
        parse_expr("s9 + 1", ctx)


# ---- torch.SymInt ------------------------------------------------------------------------------------------


def test_symint_round_trip(ctx):
    s = ctx.new_symbol(7)
    t = to_torch(s)
    assert isinstance(t, torch.SymInt) and t.node is s and from_torch(t) is s
    assert from_torch(t * 3 + 1) is s * 3 + 1
    assert type(t - t) is int
    assert from_torch(torch.sym_max(t, 1)) is s
    assert from_torch(-t) is -s
    assert from_torch(abs(t)) is s
    assert t // 2 * 2 + t % 2 >= 6
    assert to_torch(5) == 5 and from_torch("x") == "x"


def test_symint_comparisons_guard(ctx):
    t = to_torch(ctx.new_symbol(7))
    assert bool(t > 1) and not bool(t == 1)
    assert not ctx.guards
    assert bool(t == 7)
    assert guards(ctx) == ["s0 == 7"]


def test_symint_specialises_as_an_index(ctx):
    t = to_torch(ctx.new_symbol(3))
    assert list(range(t)) == [0, 1, 2]
    assert int(t) == 3 and guards(ctx) == ["s0 == 3"]


def test_symfloat_and_symbool(ctx):
    t = to_torch(ctx.new_symbol(16))
    root = torch.sym_sqrt(t)
    assert isinstance(root, torch.SymFloat)
    assert isinstance(t / 3, torch.SymFloat)
    both = (t > 20) | (t > 10)
    assert isinstance(both, torch.SymBool)
    assert bool(both)
    assert bool(torch.sym_not(t > 20))
    assert from_torch(torch.sym_int(t / 2.0)).hint == 8
    # torch.sym_ite itself takes torch's own nodes only; the dispatcher calls the node's method.
    assert (t > 20).node.sym_ite(t.node, (t + 1).node).hint == 17
