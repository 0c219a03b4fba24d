"""Hash-consed integer, boolean and float expressions over symbolic sizes.

Integer expressions are kept in one normal form: a sum of monomials, each an integer coefficient times powers
of *atoms*. An atom is a symbol or an opaque operation (``floordiv``, ``mod``, ``min``, ``max``, ``trunc`` of a
float expression ...). Equal expressions are therefore the same object, so equality is ``is`` and every cache
may be keyed by identity.

Comparisons are normalised to ``d == 0``, ``d != 0`` and ``d <= 0`` with integer ``d`` (``a < b`` is
``a - b + 1 <= 0``), divided by the greatest common divisor of their coefficients; the negation of a
comparison is again a comparison.

All functions here know nothing of the ranges of symbols; simplifications that need them are in
:mod:`prims.spec.context`.
"""

from __future__ import annotations

import ctypes
import math
import operator
import struct
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Union

IntLike = Union["Expr", int]
Monomial = tuple[tuple["Expr", int], ...]

INT_ATOMS = frozenset({"symbol", "floordiv", "mod", "min", "max", "trunc", "ffloor", "fceil", "ite"})
BOOL_KINDS = frozenset({"true", "false", "eq", "ne", "le", "and", "or", "not", "feq", "flt", "fle"})


def quotient(a: float, b: float) -> float:
    """``a / b`` as in C: of a division by zero the infinity of the signs, or NaN (IEEE 754)."""
    if b != 0:
        return a / b
    return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1.0, b)


FLOAT_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "fadd": operator.add,
    "fsub": operator.sub,
    "fmul": operator.mul,
    "fdiv": operator.truediv,
    "fquot": quotient,
    "fpow": operator.pow,
    "fmin": min,
    "fmax": max,
    "ffloordiv": operator.floordiv,
    "fmod": operator.mod,
    "fatan2": math.atan2,
}


def bits_of_float(x: float) -> int:
    """The 64 bits of a float (IEEE 754 binary64) as a signed integer."""
    return int(struct.unpack("q", struct.pack("d", x))[0])


def float_of_bits(bits: int) -> float:
    """The float with these bits."""
    return float(struct.unpack("d", struct.pack("q", bits))[0])


def round_to_single(x: float) -> float:
    """The float rounded to 32 bits (IEEE 754 binary32), beyond their range infinite."""
    return ctypes.c_float(x).value


FLOAT_UNARY: dict[str, Callable[[Any], Any]] = {
    "tofloat": float,
    "fbits": float_of_bits,
    "fneg": operator.neg,
    "fabs": abs,
    "fsqrt": math.sqrt,
    "fcos": math.cos,
    "fcosh": math.cosh,
    "fsin": math.sin,
    "fsinh": math.sinh,
    "ftan": math.tan,
    "ftanh": math.tanh,
    "fasin": math.asin,
    "facos": math.acos,
    "fatan": math.atan,
    "flog2": math.log2,
    "flog": math.log,
    "flog1p": math.log1p,
    "fexp": math.exp,
    "fexpm1": math.expm1,
    "fsingle": round_to_single,
    "fround": lambda x: float(round(x)),
}
FLOAT_KINDS = frozenset(FLOAT_BINARY) | frozenset(FLOAT_UNARY) | {"fconst"}

_TABLE: weakref.WeakValueDictionary[tuple[Any, ...], Expr] = weakref.WeakValueDictionary()


class Expr:
    """One node. Build it with the functions of this module or with Python's operators, never directly.

    ``kind`` is ``"const"``, ``"poly"``, an atom's kind, or a boolean or float kind; ``args`` are its operands
    (the value of a constant, the name of a symbol, the ``(monomial, coefficient)`` pairs of a polynomial). ``weight``
    is the number of nodes of its tree, in which a shared operand counts wherever it stands: its text is as long.
    """

    __slots__ = ("__weakref__", "_key", "_text", "args", "kind", "symbols", "terms", "weight")

    kind: str
    args: tuple[Any, ...]
    terms: tuple[tuple[Monomial, int], ...]
    symbols: frozenset[Expr]
    weight: int
    _text: str | None
    _key: tuple[int, int, str] | None

    # Python's operators on integer expressions.
    def __add__(self, other: IntLike) -> Expr:
        return add(self, other)

    __radd__ = __add__

    def __sub__(self, other: IntLike) -> Expr:
        return add(self, neg(other))

    def __rsub__(self, other: IntLike) -> Expr:
        return add(other, neg(self))

    def __mul__(self, other: IntLike) -> Expr:
        return mul(self, other)

    __rmul__ = __mul__

    def __neg__(self) -> Expr:
        return neg(self)

    def __floordiv__(self, other: IntLike) -> Expr:
        return floordiv(self, other)

    def __rfloordiv__(self, other: IntLike) -> Expr:
        return floordiv(other, self)

    def __mod__(self, other: IntLike) -> Expr:
        return mod(self, other)

    def __rmod__(self, other: IntLike) -> Expr:
        return mod(other, self)

    def __pow__(self, exponent: int) -> Expr:
        return power(self, exponent)

    def __str__(self) -> str:
        from prims.spec.exprtext import to_python

        return to_python(self)

    def __repr__(self) -> str:
        return f"Expr({self})"

    def __reduce__(self) -> Any:
        from prims.spec.exprtext import parse

        return parse, (str(self),)

    @property
    def is_const(self) -> bool:
        """Whether this is an integer or float constant, or ``true``/``false``."""
        return self.kind in ("const", "true", "false", "fconst")

    @property
    def value(self) -> Any:
        """The value of a constant; ValueError otherwise."""
        if self.kind in ("const", "fconst"):
            return self.args[0]
        if self.kind == "true":
            return True
        if self.kind == "false":
            return False
        raise ValueError(f"{self} is not a constant")

    @property
    def is_bool(self) -> bool:
        return self.kind in BOOL_KINDS

    @property
    def is_float(self) -> bool:
        return self.kind in FLOAT_KINDS

    @property
    def is_symbol(self) -> bool:
        return self.kind == "symbol"

    @property
    def name(self) -> str:
        """The name of a symbol."""
        if self.kind != "symbol":
            raise ValueError(f"{self} is not a symbol")
        return self.args[0]  # type: ignore[no-any-return]

    def sort_key(self) -> tuple[int, int, str]:
        """A deterministic order: symbols first (``s2`` before ``s10``), then by text."""
        key = self._key
        if key is None:
            text = str(self)
            key = self._key = (0 if self.kind == "symbol" else 1, len(text), text)
        return key

    @property
    def symbol_name(self) -> str | None:
        """The name if this is a bare symbol, else None."""
        return self.args[0] if self.kind == "symbol" else None

    def free_symbols(self) -> frozenset[str]:
        """The names of the symbols in it."""
        return frozenset(s.args[0] for s in self.symbols)

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """The number this denotes when each symbol, by name, has the value given; KeyError for a missing one."""
        return evaluate(self, values)

    def subs(self, replacements: Mapping[Expr, IntLike]) -> Expr:
        """This with atoms replaced, renormalised."""
        return substitute(self, replacements)

    def to_sympy(self) -> Any:
        """The equal sympy expression (for tests; imports sympy)."""
        from prims.spec.exprtext import to_sympy

        return to_sympy(self)


def _intern(kind: str, args: tuple[Any, ...]) -> Expr:
    key = (kind, *args) if kind != "fconst" else (kind, repr(args[0]))
    found = _TABLE.get(key)
    if found is not None:
        return found
    e = Expr.__new__(Expr)
    e.kind = kind
    e.args = args
    e._text = None
    e._key = None
    e.weight = 1
    if kind == "const":
        e.terms = (((), args[0]),) if args[0] else ()
        e.symbols = frozenset()
    elif kind == "symbol":
        e.terms = ((((e, 1),), 1),)
        e.symbols = frozenset((e,))
    elif kind == "poly":
        e.terms = args
        atoms = [atom for mono, _ in args for atom, _ in mono]
        e.symbols = frozenset().union(*(atom.symbols for atom in atoms))
        e.weight += len(args) + sum([atom.weight for atom in atoms])
    else:
        e.terms = ((((e, 1),), 1),) if kind in INT_ATOMS else ()
        operands = [a for a in args if isinstance(a, Expr)]
        e.symbols = frozenset().union(*(a.symbols for a in operands))
        e.weight += sum([a.weight for a in operands])
    _TABLE[key] = e
    return e


_SMALL = [_intern("const", (i,)) for i in range(-16, 257)]
TRUE = _intern("true", ())
FALSE = _intern("false", ())


def const(value: int) -> Expr:
    """The integer constant ``value``."""
    if -16 <= value <= 256:
        return _SMALL[value + 16]
    return _intern("const", (int(value),))


def fconst(value: float) -> Expr:
    """The float constant ``value``."""
    return _intern("fconst", (float(value),))


def symbol(name: str) -> Expr:
    """The symbol of that name (a Python identifier)."""
    return _intern("symbol", (name,))


def to_expr(x: Any) -> Expr:
    """An Expr from an Expr, bool, int or float."""
    if isinstance(x, Expr):
        return x
    if isinstance(x, bool):
        return TRUE if x else FALSE
    if isinstance(x, int):
        return const(x)
    if isinstance(x, float):
        return fconst(x)
    raise TypeError(f"cannot make a size expression of {x!r} (a {type(x).__name__})")


def _number(x: Any) -> Expr:
    """The same as a number: to arithmetic True is 1."""
    if type(x) is not Expr:
        return const(x) if isinstance(x, int) else to_expr(x)
    return const(int(x is TRUE)) if x is TRUE or x is FALSE else x


def _mono_key(mono: Monomial) -> tuple[Any, ...]:
    return (-sum(p for _, p in mono), tuple((a.sort_key(), -p) for a, p in mono))


def from_terms(terms: Mapping[Monomial, int]) -> Expr:
    """The polynomial with these coefficients (zeros dropped)."""
    items = [(m, c) for m, c in terms.items() if c]
    if not items:
        return _SMALL[16]
    if len(items) == 1:
        mono, coeff = items[0]
        if not mono:
            return const(coeff)
        if coeff == 1 and len(mono) == 1 and mono[0][1] == 1:
            return mono[0][0]
    else:
        items.sort(key=lambda t: _mono_key(t[0]))
    return _intern("poly", tuple(items))


def add(a: IntLike, b: IntLike) -> Expr:
    a, b = _number(a), _number(b)
    if a.kind == "const":
        if not a.args[0]:
            return b
        if b.kind == "const":
            return const(a.args[0] + b.args[0])
    elif b.kind == "const" and not b.args[0]:
        return a
    terms = dict(a.terms)
    for mono, coeff in b.terms:
        terms[mono] = terms.get(mono, 0) + coeff
    return from_terms(terms)


def neg(a: IntLike) -> Expr:
    a = _number(a)
    if a.kind == "const":
        return const(-a.args[0])
    return from_terms({m: -c for m, c in a.terms})


def sub(a: IntLike, b: IntLike) -> Expr:
    a, b = _number(a), _number(b)
    if b.kind == "const":
        return add(a, -b.args[0])
    terms = dict(a.terms)
    for mono, coeff in b.terms:
        terms[mono] = terms.get(mono, 0) - coeff
    return from_terms(terms)


def _mul_mono(x: Monomial, y: Monomial) -> Monomial:
    if not x:
        return y
    if not y:
        return x
    powers = dict(x)
    for atom, p in y:
        powers[atom] = powers.get(atom, 0) + p
    return tuple(sorted(powers.items(), key=lambda t: t[0].sort_key()))


def mul(a: IntLike, b: IntLike) -> Expr:
    a, b = _number(a), _number(b)
    if a.kind == "const":
        a, b = b, a
    if b.kind == "const":
        k = b.args[0]
        if a.kind == "const":
            return const(a.args[0] * k)
        if k == 1:
            return a
        if k == 0:
            return _SMALL[16]
        return from_terms({m: c * k for m, c in a.terms})
    terms: dict[Monomial, int] = {}
    for m1, c1 in a.terms:
        for m2, c2 in b.terms:
            m = _mul_mono(m1, m2)
            terms[m] = terms.get(m, 0) + c1 * c2
    return from_terms(terms)


def product(factors: Iterable[IntLike]) -> Expr:
    """The product of all factors (1 for none)."""
    out: Expr = _SMALL[17]
    for f in factors:
        out = mul(out, f)
    return out


def power(a: IntLike, exponent: int) -> Expr:
    """``a ** exponent`` for a constant ``exponent >= 0``."""
    if exponent < 0:
        raise ValueError(f"negative exponent {exponent} of an integer expression")
    return product([a] * exponent)


def _divide_mono(x: Monomial, y: Monomial) -> Monomial | None:
    powers = dict(x)
    for atom, p in y:
        left = powers.get(atom, 0) - p
        if left < 0:
            return None
        if left:
            powers[atom] = left
        else:
            del powers[atom]
    return tuple(powers.items())


def _split_by_monomial(a: Expr, mono: Monomial, k: int) -> tuple[Expr, Expr]:
    """``q, r`` with ``a == q * (k * mono) + r`` where q takes every term that divides exactly."""
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for m, c in a.terms:
        d = _divide_mono(m, mono) if c % k == 0 else None
        if d is None:
            rest[m] = c
        else:
            quotient[d] = c // k
    return from_terms(quotient), from_terms(rest)


def exact_quotient(a: Expr, b: Expr) -> Expr | None:
    """``q`` with ``a == q * b`` by multivariate long division, or None."""
    lead_mono, lead_coeff = b.terms[0]
    quotient: Expr = _SMALL[16]
    rest = a
    for _ in range(2 * len(a.terms) + 2):
        if not rest.terms:
            return quotient
        mono, coeff = rest.terms[0]
        d = _divide_mono(mono, lead_mono) if coeff % lead_coeff == 0 else None
        if d is None:
            return None
        step = from_terms({d: coeff // lead_coeff})
        quotient = add(quotient, step)
        rest = sub(rest, mul(step, b))
    return None


def _content(a: Expr, with_constant: bool) -> int:
    g = 0
    for mono, c in a.terms:
        if mono or with_constant:
            g = math.gcd(g, c)
    return g


def _common_monomial(exprs: Iterable[Expr]) -> Monomial:
    common: dict[Expr, int] | None = None
    for e in exprs:
        for mono, _ in e.terms:
            powers = dict(mono)
            if common is None:
                common = powers
            else:
                common = {a: min(p, powers[a]) for a, p in common.items() if a in powers}
            if not common:
                return ()
    return tuple((common or {}).items())


def _floordiv_const(a: Expr, k: int) -> Expr:
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for m, c in a.terms:
        if not m:
            quotient[m], rest[m] = divmod(c, k)
        elif c % k == 0:
            quotient[m] = c // k
        else:
            rest[m] = c
    q, r = from_terms(quotient), from_terms(rest)
    if r.kind == "const":
        return q
    g = math.gcd(_content(r, with_constant=False), k)
    if g > 1:
        # floor((g*x + c) / (g*k)) == floor((x + floor(c / g)) / k) for an integer x.
        r = from_terms({m: c // g for m, c in r.terms})
        k //= g
        if k == 1:
            return add(q, r)
    if r.kind == "floordiv" and r.args[1].kind == "const" and r.args[1].args[0] > 0:
        return add(q, floordiv(r.args[0], r.args[1].args[0] * k))
    if len(r.terms) == 2 and not r.terms[1][0] and r.terms[0][1] == 1:
        # (x // c + j) // k == (x + j*c) // (c*k)
        mono, j = r.terms[0][0], r.terms[1][1]
        if len(mono) == 1 and mono[0][1] == 1 and mono[0][0].kind == "floordiv":
            x, c = mono[0][0].args
            if c.kind == "const" and c.args[0] > 0:
                return add(q, floordiv(add(x, j * c.args[0]), c.args[0] * k))
    return add(q, _intern("floordiv", (r, const(k))))


def floordiv(a: IntLike, b: IntLike) -> Expr:
    """Python's ``a // b``. ZeroDivisionError for a constant zero divisor."""
    a, b = _number(a), _number(b)
    if b.kind == "const":
        k = b.args[0]
        if k == 0:
            raise ZeroDivisionError(f"{a} // 0")
        if a.kind == "const":
            return const(a.args[0] // k)
        if k < 0:
            a, k = neg(a), -k
        return a if k == 1 else _floordiv_const(a, k)
    if not a.terms:
        return a
    if len(b.terms) == 1:
        mono, k = b.terms[0]
        q, r = _split_by_monomial(a, mono, k)
    else:
        exact = exact_quotient(a, b)
        if exact is not None:
            return exact
        q, r = _SMALL[16], a
    if not r.terms:
        return q
    common = _common_monomial((r, b))
    if common:
        r, b = _split_by_monomial(r, common, 1)[0], _split_by_monomial(b, common, 1)[0]
    g = math.gcd(_content(r, True), _content(b, True))
    if g > 1:
        r = from_terms({m: c // g for m, c in r.terms})
        b = from_terms({m: c // g for m, c in b.terms})
    if common or g > 1:
        return add(q, floordiv(r, b))
    return add(q, _intern("floordiv", (r, b)))


def ceildiv(a: IntLike, b: IntLike) -> Expr:
    """``ceil(a / b)`` on integers, as ``-((-a) // b)``."""
    return neg(floordiv(neg(a), b))


def _congruent(a: Expr, k: int) -> Expr:
    """What has the same remainder by ``k``, without remainders by multiples of it: ``s + (-s % 7)`` is 0 modulo 7."""
    while True:
        for mono, coeff in a.terms:
            atom = mono[0][0] if len(mono) == 1 and mono[0][1] == 1 else None
            if atom is not None and atom.kind == "mod" and atom.args[1].is_const and atom.args[1].value % k == 0:
                a = add(sub(a, from_terms({mono: coeff})), mul(coeff, atom.args[0]))
                break
        else:
            return a


def mod(a: IntLike, b: IntLike) -> Expr:
    """Python's ``a % b``. ZeroDivisionError for a constant zero divisor."""
    a, b = _number(a), _number(b)
    if b.kind == "const":
        k = b.args[0]
        if k == 0:
            raise ZeroDivisionError(f"{a} % 0")
        if a.kind == "const":
            return const(a.args[0] % k)
        if k < 0:
            return neg(mod(neg(a), -k))
        r = from_terms({m: c % k for m, c in _congruent(a, k).terms})
        if r.kind == "const":
            return r
        g = math.gcd(_content(r, True), k)
        if g > 1:
            r = from_terms({m: c // g for m, c in r.terms})
            return mul(g, mod(r, k // g))
        return _intern("mod", (r, b))
    if not a.terms or a is b:
        return _SMALL[16]
    if len(b.terms) == 1:
        mono, k = b.terms[0]
        a = _split_by_monomial(a, mono, k)[1]
    elif exact_quotient(a, b) is not None:
        return _SMALL[16]
    if not a.terms:
        return a
    common = _common_monomial((a, b))
    if common:
        inner = mod(_split_by_monomial(a, common, 1)[0], _split_by_monomial(b, common, 1)[0])
        return mul(from_terms({common: 1}), inner)
    return _intern("mod", (a, b))


def _min_max(kind: str, items: Iterable[IntLike]) -> Expr:
    pick: Callable[[Any, Any], Any] = min if kind == "min" else max
    best: dict[Expr, int] = {}  # variable part -> constant part
    for item in items:
        e = _number(item)
        for x in e.args if e.kind == kind else (e,):
            c = next((k for m, k in x.terms if not m), 0)
            base = sub(x, c)
            best[base] = pick(best[base], c) if base in best else c
    exprs = [add(base, c) for base, c in best.items()]
    if len(exprs) == 1:
        return exprs[0]
    return _intern(kind, tuple(sorted(exprs, key=Expr.sort_key)))


def minimum(*items: IntLike) -> Expr:
    return _min_max("min", items)


def maximum(*items: IntLike) -> Expr:
    return _min_max("max", items)


def ite(condition: Expr, a: IntLike, b: IntLike) -> Expr:
    """``a if condition else b`` on integers."""
    a, b = _number(a), _number(b)
    if condition.is_const:
        return a if condition.value else b
    return a if a is b else _intern("ite", (condition, a, b))


# ---- comparisons -------------------------------------------------------------------------------------------


def _scaled(d: Expr, g: int) -> Expr:
    return from_terms({m: c // g for m, c in d.terms})


def _equation(kind: str, d: Expr) -> Expr:
    if d.kind == "const":
        return TRUE if (d.args[0] == 0) == (kind == "eq") else FALSE
    g = _content(d, with_constant=False)
    constant = next((c for m, c in d.terms if not m), 0)
    if constant % g:
        return FALSE if kind == "eq" else TRUE
    if d.terms[0][1] < 0:
        g = -g
    return _intern(kind, (_scaled(d, g) if g != 1 else d,))


def eq(a: IntLike, b: IntLike) -> Expr:
    return _equation("eq", sub(a, b))


def ne(a: IntLike, b: IntLike) -> Expr:
    return _equation("ne", sub(a, b))


def le(a: IntLike, b: IntLike) -> Expr:
    d = sub(a, b)
    if d.kind == "const":
        return TRUE if d.args[0] <= 0 else FALSE
    g = _content(d, with_constant=False)
    if g > 1:
        d = from_terms({m: (c // g if m else -((-c) // g)) for m, c in d.terms})
    return _intern("le", (d,))


def lt(a: IntLike, b: IntLike) -> Expr:
    return le(add(a, 1), b)


def ge(a: IntLike, b: IntLike) -> Expr:
    return le(b, a)


def gt(a: IntLike, b: IntLike) -> Expr:
    return lt(b, a)


def not_(a: Expr) -> Expr:
    if a.kind == "true":
        return FALSE
    if a.kind == "false":
        return TRUE
    if a.kind == "eq":
        return _intern("ne", a.args)
    if a.kind == "ne":
        return _intern("eq", a.args)
    if a.kind == "le":
        return ge(a.args[0], 1)
    if a.kind == "not":
        return a.args[0]  # type: ignore[no-any-return]
    if a.kind == "and":
        return or_(*(not_(x) for x in a.args))
    if a.kind == "or":
        return and_(*(not_(x) for x in a.args))
    return _intern("not", (a,))


def _junction(kind: str, unit: Expr, zero: Expr, items: Iterable[Expr]) -> Expr:
    parts: dict[Expr, None] = {}
    for item in items:
        for x in item.args if item.kind == kind else (item,):
            if x is zero or not_(x) in parts:
                return zero
            if x is not unit:
                parts[x] = None
    if not parts:
        return unit
    if len(parts) == 1:
        return next(iter(parts))
    return _intern(kind, tuple(sorted(parts, key=Expr.sort_key)))


def and_(*items: Expr) -> Expr:
    return _junction("and", TRUE, FALSE, items)


def or_(*items: Expr) -> Expr:
    return _junction("or", FALSE, TRUE, items)


# ---- floats ------------------------------------------------------------------------------------------------


def to_float(a: Any) -> Expr:
    """The float expression of an integer, boolean or float one."""
    a = to_expr(a)
    if a.is_float:
        return a
    if a.is_const:
        return fconst(float(a.value))
    return _intern("tofloat", (a,))


def from_bits(bits: Any) -> Expr:
    """The float expression of an integer one that gives its bits: how a float of the program is a symbol."""
    a = to_expr(bits)
    return fconst(float_of_bits(a.value)) if a.is_const else _intern("fbits", (a,))


def float_op(kind: str, *operands: Any) -> Expr:
    """The float operation ``kind`` (a key of ``FLOAT_UNARY`` or ``FLOAT_BINARY``), folded on constants."""
    args = tuple(to_float(x) for x in operands)
    if all(x.kind == "fconst" for x in args):
        fn: Callable[..., Any] = FLOAT_BINARY[kind] if len(args) == 2 else FLOAT_UNARY[kind]
        return fconst(fn(*(x.args[0] for x in args)))
    return _intern(kind, args)


_FLOAT_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "feq": operator.eq,
    "flt": operator.lt,
    "fle": operator.le,
}


def float_compare(kind: str, a: Any, b: Any) -> Expr:
    """``feq``, ``flt`` or ``fle`` of two float expressions."""
    a, b = to_float(a), to_float(b)
    if a.is_const and b.is_const:
        return TRUE if _FLOAT_COMPARE[kind](a.value, b.value) else FALSE
    return _as_integers(kind, a, b) or _intern(kind, (a, b))


def _as_integers(kind: str, a: Expr, b: Expr) -> Expr | None:
    """The integer comparison that a comparison of a size with a float constant, or of two sizes, amounts to."""
    if a.kind == "tofloat" and b.kind == "tofloat":
        relation = {"feq": eq, "flt": lt, "fle": le}[kind]
        return relation(a.args[0], b.args[0])
    size, bound = (a, b) if a.kind == "tofloat" else (b, a)
    if size.kind != "tofloat" or not bound.is_const or not math.isfinite(bound.value):
        return None
    e, c = size.args[0], bound.value
    if e.is_bool:
        return None
    if kind == "feq":
        return eq(e, int(c)) if c == int(c) else FALSE
    if size is a:
        return le(e, math.floor(c)) if kind == "fle" else lt(e, math.ceil(c))
    return ge(e, math.ceil(c)) if kind == "fle" else gt(e, math.floor(c))


_ROUNDING: dict[str, Callable[[Any], int]] = {"trunc": math.trunc, "ffloor": math.floor, "fceil": math.ceil}


def round_to_int(kind: str, a: Any) -> Expr:
    """``trunc``, ``ffloor`` or ``fceil`` of a float expression, an integer one."""
    a = to_float(a)
    if a.is_const:
        return const(_ROUNDING[kind](a.value))
    if a.kind == "tofloat":
        return a.args[0]  # type: ignore[no-any-return]
    return _intern(kind, (a,))


# ---- evaluation and substitution ---------------------------------------------------------------------------


def _evaluate_terms(e: Expr, value: Callable[[Expr], Any]) -> Any:
    total = 0
    for mono, coeff in e.terms:
        for atom, p in mono:
            coeff = coeff * value(atom) ** p
        total += coeff
    return total


def evaluate(e: Expr, values: Mapping[str, Any]) -> Any:
    """See :meth:`Expr.evaluate`."""

    def value(x: Expr) -> Any:
        return evaluate(x, values)

    kind, args = e.kind, e.args
    if kind == "symbol":
        return values[args[0]]
    if e.is_const:
        return e.value
    if kind == "poly":
        return _evaluate_terms(e, value)
    if kind == "floordiv":
        return value(args[0]) // value(args[1])
    if kind == "mod":
        return value(args[0]) % value(args[1])
    if kind == "min":
        return min(map(value, args))
    if kind == "max":
        return max(map(value, args))
    if kind == "ite":
        return value(args[1]) if value(args[0]) else value(args[2])
    if kind == "eq":
        return value(args[0]) == 0
    if kind == "ne":
        return value(args[0]) != 0
    if kind == "le":
        return value(args[0]) <= 0
    if kind == "and":
        return all(map(value, args))
    if kind == "or":
        return any(map(value, args))
    if kind == "not":
        return not value(args[0])
    if kind in _FLOAT_COMPARE:
        return _FLOAT_COMPARE[kind](value(args[0]), value(args[1]))
    if kind in _ROUNDING:
        return _ROUNDING[kind](value(args[0]))
    if kind in FLOAT_BINARY:
        return FLOAT_BINARY[kind](value(args[0]), value(args[1]))
    return FLOAT_UNARY[kind](value(args[0]))


def rebuild(kind: str, args: tuple[Expr, ...]) -> Expr:
    """The normal form of the operation ``kind`` on new operands."""
    if kind == "floordiv":
        return floordiv(*args)
    if kind == "mod":
        return mod(*args)
    if kind in ("min", "max"):
        return _min_max(kind, args)
    if kind == "ite":
        return ite(*args)
    if kind in ("eq", "ne"):
        return _equation(kind, args[0])
    if kind == "le":
        return le(args[0], 0)
    if kind == "and":
        return and_(*args)
    if kind == "or":
        return or_(*args)
    if kind == "not":
        return not_(args[0])
    if kind in _FLOAT_COMPARE:
        return float_compare(kind, *args)
    if kind in _ROUNDING:
        return round_to_int(kind, args[0])
    if kind == "tofloat":
        return to_float(args[0])
    if kind == "fbits":
        return from_bits(args[0])
    return float_op(kind, *args)


def substitute(e: Expr, replacements: Mapping[Expr, IntLike], memo: dict[Expr, Expr] | None = None) -> Expr:
    """``e`` with each atom that is a key replaced by its value; inner expressions are replaced first."""
    if memo is None:
        memo = {}
    found = memo.get(e)
    if found is not None:
        return found
    if e.is_const:
        out = e
    elif e.kind == "poly":
        out = _SMALL[16]
        for mono, coeff in e.terms:
            term: Expr = const(coeff)
            for atom, p in mono:
                term = mul(term, power(substitute(atom, replacements, memo), p))
            out = add(out, term)
    else:
        out = e
        if e.kind != "symbol":
            new = tuple(substitute(a, replacements, memo) for a in e.args)
            if any(x is not y for x, y in zip(new, e.args, strict=True)):
                out = rebuild(e.kind, new)
        if out in replacements:
            out = to_expr(replacements[out])
    memo[e] = out
    return out
