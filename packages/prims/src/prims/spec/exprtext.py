"""Text forms of size expressions: Python (also the parseable form), C, and sympy for tests."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

from prims.spec import expr as E
from prims.spec.expr import Expr, Monomial

# Semantics of Python's // and % on int64, for C sources that use :func:`to_c`.
C_PRELUDE = """\
static inline long qt_floordiv(long a, long b) { long q = a / b; return q - ((a % b != 0) && ((a < 0) != (b < 0))); }
static inline long qt_mod(long a, long b) { long r = a % b; return r + (((r != 0) && ((r < 0) != (b < 0))) ? b : 0); }
static inline long qt_min(long a, long b) { return a < b ? a : b; }
static inline long qt_max(long a, long b) { return a > b ? a : b; }
"""

_RELATIONS = {"eq": "==", "ne": "!=", "le": "<="}
_FLOAT_RELATIONS = {"feq": "==", "flt": "<", "fle": "<="}
_FLOAT_INFIX = {"fadd": "+", "fsub": "-", "fmul": "*", "fdiv": "/"}
# Function names in the Python text of the operations that have no infix form.
_FUNCTIONS = {
    "min": "min",
    "max": "max",
    "tofloat": "float",
    "trunc": "trunc",
    "fbits": "fbits",
    "ffloor": "floor",
    "fceil": "ceil",
    "ite": "ite",
}
_C_FUNCTIONS = {
    "fsqrt": "sqrt",
    "fabs": "fabs",
    "flog2": "log2",
    "fpow": "pow",
    "fmin": "fmin",
    "fmax": "fmax",
}


def _monomial(mono: Monomial, coeff: int, render: Callable[[Expr], str], power: str) -> str:
    factors = [] if coeff == 1 and mono else [str(coeff)]
    for atom, p in mono:
        text = render(atom)
        if p == 1:
            factors.append(text)
        elif power == "**":
            factors.append(f"{text}**{p}")
        else:
            factors.extend([text] * p)
    return "*".join(factors)


def _sum(terms: Any, render: Callable[[Expr], str], power: str) -> str:
    parts: list[str] = []
    for mono, coeff in terms:
        if not parts:
            text = _monomial(mono, abs(coeff), render, power)
            parts.append(f"-{text}" if coeff < 0 else text)
        else:
            parts.append(" - " if coeff < 0 else " + ")
            parts.append(_monomial(mono, abs(coeff), render, power))
    return "".join(parts) or "0"


def _relation(e: Expr, render: Callable[[Expr], str], power: str) -> str:
    """``d <= 0`` written with the negative terms on the right."""
    left = [(m, c) for m, c in e.args[0].terms if c > 0 and m]
    right = [(m, -c) for m, c in e.args[0].terms if c < 0 and m]
    constant = next((c for m, c in e.args[0].terms if not m), 0)
    if constant:
        if not left:
            left.append(((), constant))
        elif not right:
            right.append(((), -constant))
        elif constant > 0:
            left.append(((), constant))
        else:
            right.append(((), -constant))
    return f"{_sum(left, render, power)} {_RELATIONS[e.kind]} {_sum(right, render, power)}"


def _operand(e: Expr) -> str:
    text = to_python(e)
    return f"({text})" if e.kind == "poly" or text.startswith("-") else text


def to_python(e: Expr) -> str:
    """Python source that :func:`parse` reads back to the same object."""
    if e._text is None:
        e._text = _python(e)
    return e._text


def _python(e: Expr) -> str:
    kind, args = e.kind, e.args
    if kind == "symbol":
        return args[0]  # type: ignore[no-any-return]
    if kind in ("true", "false"):
        return kind.capitalize()
    if kind == "fconst":
        value = repr(args[0])
        return value if value not in ("inf", "-inf", "nan") else f"float('{value}')"
    if kind == "const":
        return str(args[0])
    if kind == "poly":
        return _sum(e.terms, _python_factor, "**")
    if kind in _RELATIONS:
        return _relation(e, _python_factor, "**")
    if kind in ("and", "or"):
        return f" {kind} ".join(f"({to_python(a)})" for a in args)
    if kind == "not":
        return f"not ({to_python(args[0])})"
    if kind == "floordiv":
        return f"({_operand(args[0])}//{_operand(args[1])})"
    if kind == "mod":
        return f"({_operand(args[0])} % {_operand(args[1])})"
    if kind in _FLOAT_INFIX:
        return f"({to_python(args[0])} {_FLOAT_INFIX[kind]} {to_python(args[1])})"
    if kind in _FLOAT_RELATIONS:
        return f"{to_python(args[0])} {_FLOAT_RELATIONS[kind]} {to_python(args[1])}"
    return f"{_FUNCTIONS.get(kind, kind)}({', '.join(to_python(a) for a in args)})"


def _python_factor(e: Expr) -> str:
    return to_python(e)


def to_c(e: Expr) -> str:
    """C source on ``long`` variables named as the symbols; uses the functions of :data:`C_PRELUDE`."""
    kind, args = e.kind, e.args
    if kind == "symbol":
        return args[0]  # type: ignore[no-any-return]
    if kind in ("true", "false"):
        return "1" if kind == "true" else "0"
    if kind == "const":
        return f"{args[0]}L"
    if kind == "fconst":
        return repr(args[0])
    if kind == "poly":
        return f"({_sum(e.terms, to_c, '*')})"
    if kind in _RELATIONS:
        return f"({_relation(e, to_c, '*')})"
    if kind in ("and", "or"):
        return "(" + (" && " if kind == "and" else " || ").join(map(to_c, args)) + ")"
    if kind == "not":
        return f"(!{to_c(args[0])})"
    if kind in ("floordiv", "mod"):
        return f"qt_{kind}({to_c(args[0])}, {to_c(args[1])})"
    if kind in ("min", "max"):
        text = to_c(args[0])
        for a in args[1:]:
            text = f"qt_{kind}({text}, {to_c(a)})"
        return text
    if kind == "ite":
        return f"({to_c(args[0])} ? {to_c(args[1])} : {to_c(args[2])})"
    if kind in _FLOAT_INFIX or kind == "fquot":
        return f"({to_c(args[0])} {_FLOAT_INFIX.get(kind, '/')} {to_c(args[1])})"
    if kind in _FLOAT_RELATIONS:
        return f"({to_c(args[0])} {_FLOAT_RELATIONS[kind]} {to_c(args[1])})"
    if kind == "tofloat":
        return f"((double){to_c(args[0])})"
    if kind == "fbits":
        return f"((union {{ long i; double f; }}){{ .i = {to_c(args[0])} }}.f)"
    if kind in ("trunc", "ffloor", "fceil"):
        return f"((long){kind.lstrip('f') if kind != 'trunc' else kind}({to_c(args[0])}))"
    if kind == "fsingle":
        return f"((double)(float){to_c(args[0])})"
    if kind == "fneg":
        return f"(-{to_c(args[0])})"
    return f"{_C_FUNCTIONS.get(kind, kind[1:])}({', '.join(map(to_c, args))})"


# ---- parsing -----------------------------------------------------------------------------------------------

_INT_BINARY: dict[type, Callable[[Any, Any], Expr]] = {
    ast.Add: E.add,
    ast.Sub: E.sub,
    ast.Mult: E.mul,
    ast.FloorDiv: E.floordiv,
    ast.Mod: E.mod,
}
_FLOAT_BINARY = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}
_COMPARE: dict[type, Callable[[Any, Any], Expr]] = {
    ast.Eq: E.eq,
    ast.NotEq: E.ne,
    ast.LtE: E.le,
    ast.Lt: E.lt,
    ast.GtE: E.ge,
    ast.Gt: E.gt,
}
_FLOAT_COMPARE = {ast.Eq: "feq", ast.LtE: "fle", ast.Lt: "flt"}
_NAMED = {name: kind for kind, name in _FUNCTIONS.items()}


#: Bounds of what a text may say: its length, its nesting (the terms of a sum do not nest), the terms of a product, an
#: exponent, and the bits of a coefficient. A size expression of a real program is far below each.
MAX_TEXT, MAX_DEPTH, MAX_TERMS, MAX_EXPONENT, MAX_BITS = 20_000, 60, 4096, 64, 256


def parse(text: str) -> Expr:
    """The expression of a text that :func:`to_python` wrote. ValueError for anything else, or beyond the bounds."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"a size expression of {len(text)} characters")
    try:
        return _parse(ast.parse(text.strip(), mode="eval").body, text, 0)
    except (SyntaxError, MemoryError, RecursionError) as error:  # Python's parser tells of deep nesting by each
        raise ValueError(f"not a size expression: {text[:200]!r}") from error
    except (TypeError, IndexError, ArithmeticError) as error:
        raise ValueError(f"not a size expression: {text[:200]!r}: {error}") from error


def _parse(node: ast.AST, text: str, depth: int) -> Expr:
    if depth > MAX_DEPTH:
        raise ValueError(f"a size expression nested more than {MAX_DEPTH} deep")
    result = _parse_node(node, text, depth)
    if any(coeff.bit_length() > MAX_BITS for _, coeff in result.terms):
        raise ValueError(f"a coefficient of more than {MAX_BITS} bits in a size expression")
    return result


def _parse_node(node: ast.AST, text: str, depth: int) -> Expr:
    deeper = depth + 1
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        return E.to_expr(node.value)
    if isinstance(node, ast.Name):
        return E.symbol(node.id)
    if isinstance(node, ast.UnaryOp):
        a = _parse(node.operand, text, deeper)
        if isinstance(node.op, ast.USub):
            return E.float_op("fneg", a) if a.is_float else E.neg(a)
        if isinstance(node.op, ast.Not):
            return E.not_(a)
    if isinstance(node, ast.BoolOp):
        parts = [_parse(v, text, deeper) for v in node.values]
        return E.and_(*parts) if isinstance(node.op, ast.And) else E.or_(*parts)
    if isinstance(node, ast.BinOp):
        flat = isinstance(node.op, (ast.Add, ast.Sub, ast.Mult))
        a, b = _parse(node.left, text, depth if flat else deeper), _parse(node.right, text, deeper)
        return _parse_binary(node, a, b, text)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        a, b = _parse(node.left, text, deeper), _parse(node.comparators[0], text, deeper)
        op = type(node.ops[0])
        if (a.is_float or b.is_float) and op in _FLOAT_COMPARE:
            return E.float_compare(_FLOAT_COMPARE[op], a, b)
        if op in _COMPARE:
            return _COMPARE[op](a, b)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _parse_call(node.func.id, node.args, text, deeper)
    raise ValueError(f"not a size expression: {type(node).__name__} in {text[:200]!r}")


def _parse_binary(node: ast.BinOp, a: Expr, b: Expr, text: str) -> Expr:
    if isinstance(node.op, ast.Pow) and b.kind == "const":
        if not 0 <= b.value <= MAX_EXPONENT or math.comb(len(a.terms) + b.value, b.value) > MAX_TERMS:
            raise ValueError(f"the exponent {b.value} in a size expression")
        return E.power(a, b.value)
    if (a.is_float or b.is_float or isinstance(node.op, ast.Div)) and type(node.op) in _FLOAT_BINARY:
        return E.float_op(_FLOAT_BINARY[type(node.op)], a, b)
    if type(node.op) in _INT_BINARY:
        if isinstance(node.op, ast.Mult) and len(a.terms) * len(b.terms) > MAX_TERMS:
            raise ValueError(f"a product of more than {MAX_TERMS} terms in a size expression")
        return _INT_BINARY[type(node.op)](a, b)
    raise ValueError(f"not a size expression: {type(node.op).__name__} in {text[:200]!r}")


def _parse_call(name: str, operands: list[ast.expr], text: str, depth: int) -> Expr:
    if name == "float" and isinstance(operands[0], ast.Constant) and isinstance(operands[0].value, str):
        return E.fconst(float(operands[0].value))
    kind = _NAMED.get(name, name)
    args = tuple(_parse(a, text, depth) for a in operands)
    if kind not in E.INT_ATOMS and kind not in E.FLOAT_KINDS:
        raise ValueError(f"unknown function {name!r} in the size expression {text!r}")
    return E.rebuild(kind, args)


# ---- sympy -------------------------------------------------------------------------------------------------


def to_sympy(e: Expr) -> Any:
    """The equal sympy expression; symbols are integers. Imports sympy: for tests and hard questions."""
    import sympy

    kind = e.kind
    if e.is_const:
        return sympy.sympify(e.value)
    if kind == "symbol":
        return sympy.Symbol(e.name, integer=True)
    if kind == "poly":
        return sympy.Add(*(c * sympy.Mul(*(to_sympy(a) ** p for a, p in m)) for m, c in e.terms))
    args = [to_sympy(a) for a in e.args]
    functions: dict[str, Callable[..., Any]] = {
        "floordiv": lambda a, b: sympy.floor(a / b),
        "mod": sympy.Mod,
        "min": sympy.Min,
        "max": sympy.Max,
        "eq": lambda d: sympy.Eq(d, 0),
        "ne": lambda d: sympy.Ne(d, 0),
        "le": lambda d: sympy.Le(d, 0),
        "and": sympy.And,
        "or": sympy.Or,
        "not": sympy.Not,
    }
    if kind not in functions:
        raise ValueError(f"no sympy form for {kind} in {e}")
    return functions[kind](*args)
