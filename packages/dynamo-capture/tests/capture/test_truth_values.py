"""Numbers that change, beside other numbers and in their place: truth values of them are Python's True and False, 1 and 0."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch

OTHERS = ["-1", "0", "1", "2", "True", "False", "0.5", "1.0", "-1.0", "float('nan')", "'a'", "None", "[1]", "1j", "t", "u",
          "n", "m", "f", "n > 1"]  # fmt: skip
OPERATORS = ["==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "//", "%", "**", "&", "|", "^", "<<", ">>", "and", "or",
             "is", "in"]  # fmt: skip
USES = [
    "[t].index(-1)", "[t].index(1)", "[t].index(True)", "[t].count(-1)", "-1 in [t]", "t in [-1, 2]", "t in (1, 0)",
    "(2, -1).count(t)", "{1: 'a', 0: 'b'}[t]", "{1: 'a'}.get(t)", "{t, 1}", "{-1, t}", "[5, 6][t]", "'xy'[t]", "sum([t, u, t])",
    "sum([t, u], 5)", "max(t, 3)", "max(t, -1)", "min(t, u)", "sorted([t, u, -1, 2])", "any([t])", "all([t, u])", "any([u, n])",
    "[t] == [1]", "[t] == [-1]", "(t, n) == (True, 1)", "(t, n) < (u, 2)", "{t: 1} == {-1: 1}", "round(t)", "abs(t)", "int(t)",
    "float(t)", "complex(t)", "bool(t)", "hash(t)", "str(t)", "repr(t)", "f'{t}'", "f'{t:d}'", "'%d' % t", "'%s' % t",
    "format(t, '3d')", "bin(t)", "math.sqrt(t)", "math.floor(t)", "math.isclose(t, -1)", "divmod(t, 2)", "divmod(7, t + 1)",
    "pow(t, 2)", "pow(2, t)", "pow(2, t, 5)", "-t", "+t", "~t", "not t", "range(t)", "list(range(t, 3))", "'a' * t", "[1] * t",
    "isinstance(t, bool)", "isinstance(t, int)", "type(t)", "t.bit_length()", "t.real", "t.numerator", "t.conjugate()",
    "t.__eq__(-1)", "t.__and__(1)", "t.__add__(1)", "int.__eq__(t, -1)", "bool.__and__(t, True)", "t is True", "t == (n == 1)",
    "1 if t == -1 else 2", "[i for i in (-1, 0, 1) if i == t]", "[7, 8, 9][t:]", "[7, 8, 9][-t]", "x[t + 0]", "slice(t, -1)",
    "Fraction(t)", "Fraction(1, 2) + t", "Fraction(-1) == t", "x.sum() * t", "(x * t).tolist()", "(x == t).tolist()",
    "(t - x).tolist()", "torch.tensor(t)", "torch.full((2,), t)", "x.new_tensor([t, 2])", "torch.where(x > 0, x, t).tolist()",
]  # fmt: skip
NUMBERS = [(0, 1, 0.5), (1, 1, 1.5), (2, -1, 2.5), (1, 3, -1.0), (-1, 1, 1.0), (3, 3, 3.0)]
FUNCTIONS = sorted(name for name in dir(math) if callable(getattr(math, name)) and not name.startswith("_"))


def outcome(fn: Any, *args: Any) -> tuple[str, Any]:
    """What a call comes to, comparable: the value with its type, or the error's type and text."""
    try:
        return "value", described(fn(*args))
    except Exception as error:
        return type(error).__name__, str(error)


def described(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value), [described(v) for v in value]
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.tolist()
    if isinstance(value, (set, frozenset)):
        return type(value), [described(v) for v in value]  # in their order, and which of two equal ones stayed
    return type(value), repr(value)


def check(capture: Any, expression: str, kind: str = "n == 1") -> None:
    namespace: dict[str, Any] = {"math": math, "Fraction": Fraction, "torch": torch}
    exec(f"def fn(x, n, m, f):\n    t = {kind}\n    u = m > n\n    return x + 1, {expression}", namespace)
    fn = namespace["fn"]
    captured = capture(fn, dynamic=True, recompile_limit=64)
    x = torch.tensor([0.0, 1.0, -1.0])
    for numbers in NUMBERS:
        assert outcome(captured, x, *numbers) == outcome(fn, x, *numbers), numbers


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_operators(capture, operator, other):
    check(capture, f"t {operator} {other}")
    check(capture, f"{other} {operator} t")


@pytest.mark.parametrize("use", USES)
def test_uses(capture, use):
    check(capture, use)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(capture, name):
    for arguments in ("t", "t, 2", "3, t", "[t, u]"):
        check(capture, f"math.{name}({arguments})")


@pytest.mark.parametrize("kind", ["n + 1", "f * 2", "n / 2", "n * f"])
@pytest.mark.parametrize("use", [use for use in USES if use != "slice(t, -1)"])
def test_other_numbers(capture, use, kind):
    check(capture, use, kind)


@pytest.mark.parametrize("kind", ["n == 1", "n + 1", "f * 2", "n / 2"])
@pytest.mark.parametrize("call", ["float.__add__(t, 1.0)", "int.__add__(t, 1)", "bool.__or__(t, True)", "str.upper(t)",
                                  "list.append(t, 1)", "list.count((t,), 1)", "dict.get([t], 0)", "set.add({t: 1}, 2)"])  # fmt: skip
def test_methods_of_other_classes(capture, call, kind):
    check(capture, call, kind)
