"""Symbolic ints, bools and floats, usable from Python and as the nodes of ``torch.SymInt`` and its kin.

A :class:`Sym` is used in two ways. Python's operators on it give ``int | Sym`` (comparisons decide, and guard),
for our own metadata rules. The methods named as in PyTorch's ``c10::SymNodeImpl`` take and give nodes, for the
dispatcher: ``torch.SymInt(sym)`` is a size PyTorch accepts, and ``symint.node`` is the ``Sym`` again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from prims.spec import expr as E
from prims.spec.context import SizeGuard, SymbolContext, SymbolInfo, user_location
from prims.spec.expr import Expr
from prims.spec.exprtext import parse

__all__ = [
    "Expr",
    "Sym",
    "SymBool",
    "SymFloat",
    "SymbolContext",
    "SymbolInfo",
    "SizeGuard",
    "float_from_bits",
    "float_to_single",
    "formulas",
    "from_torch",
    "parse_expr",
    "sym_max",
    "sym_min",
    "to_torch",
    "user_location",
]


_Text = str  # SymNode has a method of that name


class _Formulas(threading.local):
    depth = 0


_FORMULAS = _Formulas()


@contextmanager
def formulas() -> Iterator[None]:
    """Symbolic numbers are divided by PyTorch's C++, in a derivative's formula, and not by the program's Python: a
    division by zero (a deviation of one number has) is an infinity there, and no ``ZeroDivisionError``."""
    _FORMULAS.depth += 1
    try:
        yield
    finally:
        _FORMULAS.depth -= 1


class SymNode:
    """What symbolic ints, bools and floats share: an expression and the context that decides on it."""

    __slots__ = ("ctx", "expr")

    def __init__(self, expr: Expr, ctx: SymbolContext) -> None:
        self.expr = expr
        self.ctx = ctx

    def __repr__(self) -> _Text:
        return _Text(self.ctx.simplify(self.expr))

    def __hash__(self) -> int:
        return hash(self.expr)

    def __deepcopy__(self, memo: Any) -> SymNode:
        return self

    def __copy__(self) -> SymNode:
        return self

    @property
    def hint(self) -> Any:
        """The value in the call being compiled; None if known only at run time."""
        return self.ctx.hint(self.expr)

    # ---- what kind of node ---------------------------------------------------------------------------------

    def is_int(self) -> bool:
        return False

    def is_bool(self) -> bool:
        return False

    def is_float(self) -> bool:
        return False

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    def nested_int_coeff(self) -> None:
        return None

    def is_symbolic(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return self.ctx.simplify(self.expr).is_const

    def maybe_as_int(self) -> int | None:
        e = self.ctx.simplify(self.expr)
        return e.args[0] if e.kind == "const" else None

    def constant_int(self) -> int | None:
        return self.maybe_as_int()

    def constant_bool(self) -> bool | None:
        e = self.ctx.simplify(self.expr)
        return e.value if e.kind in ("true", "false") else None

    def has_hint(self) -> bool:
        return self.hint is not None

    def require_hint(self, fallback: Any = None) -> Any:
        value = self.hint
        return fallback if value is None else value

    def clone(self) -> SymNode:
        return self

    def str(self) -> _Text:
        return repr(self)

    def _graph_repr(self) -> _Text:
        return repr(self)

    def wrap_int(self, value: int) -> Sym:
        return Sym(E.const(value), self.ctx)

    def wrap_bool(self, value: bool) -> SymBool:
        return SymBool(E.to_expr(bool(value)), self.ctx)

    def wrap_float(self, value: float) -> SymFloat:
        return SymFloat(E.fconst(value), self.ctx)

    # ---- deciding ------------------------------------------------------------------------------------------

    def guard_int(self, file: _Text = "", line: int = 0) -> int:
        return int(self.ctx.specialise(self.expr))

    def guard_float(self, file: _Text = "", line: int = 0) -> float:
        return float(self.ctx.specialise(self.expr))

    def guard_bool(self, file: _Text = "", line: int = 0) -> bool:
        return self.ctx.evaluate(self.expr)

    def guard_size_oblivious(self, file: _Text = "", line: int = 0) -> bool:
        return self.ctx.evaluate(self.expr)

    def expect_true(self, file: _Text = "", line: int = 0) -> bool:
        return self.ctx.evaluate(self.expr)

    def expect_size(self, file: _Text = "", line: int = 0) -> bool:
        return self.ctx.evaluate(E.ge(self.expr, 0))

    def statically_known_true(self, file: _Text = "", line: int = 0) -> bool:
        return self.ctx.statically_known(self.expr) is True

    def guard_or_false(self, file: _Text = "", line: int = 0) -> bool:
        return self._guard_or(False)

    def guard_or_true(self, file: _Text = "", line: int = 0) -> bool:
        return self._guard_or(True)

    def _guard_or(self, default: bool) -> bool:
        known = self.ctx.statically_known(self.expr)
        if known is not None:
            return known
        if self.hint is None or self.ctx.may_be_one(self.expr):
            return default  # which is right for every size, if not the shortest way for all
        return self.ctx.evaluate(self.expr)

    def int_(self) -> int:
        return self.guard_int()

    def bool_(self) -> bool:
        return self.guard_bool()

    def float_(self) -> float:
        return self.guard_float()

    # ---- arithmetic of nodes -------------------------------------------------------------------------------

    def _float(self, kind: _Text, *operands: Any) -> SymFloat:
        return SymFloat(E.float_op(kind, *operands), self.ctx)

    def _bool(self, e: Expr) -> SymBool:
        return SymBool(e, self.ctx)

    def sym_float(self) -> SymFloat:
        return SymFloat(E.to_float(self.expr), self.ctx)

    def truediv(self, other: SymNode) -> SymFloat:
        return self._float("fquot" if _FORMULAS.depth else "fdiv", self.expr, other.expr)

    int_truediv = truediv
    float_truediv = truediv

    def float_pow(self, other: SymNode) -> SymFloat:
        return self._float("fpow", self.expr, other.expr)

    def sym_sqrt(self) -> SymFloat:
        return self._float("fsqrt", self.expr)

    def sym_cos(self) -> SymFloat:
        return self._float("fcos", self.expr)

    def sym_cosh(self) -> SymFloat:
        return self._float("fcosh", self.expr)

    def sym_sin(self) -> SymFloat:
        return self._float("fsin", self.expr)

    def sym_sinh(self) -> SymFloat:
        return self._float("fsinh", self.expr)

    def sym_tan(self) -> SymFloat:
        return self._float("ftan", self.expr)

    def sym_tanh(self) -> SymFloat:
        return self._float("ftanh", self.expr)

    def sym_asin(self) -> SymFloat:
        return self._float("fasin", self.expr)

    def sym_acos(self) -> SymFloat:
        return self._float("facos", self.expr)

    def sym_atan(self) -> SymFloat:
        return self._float("fatan", self.expr)

    def sym_log2(self) -> SymFloat:
        return self._float("flog2", self.expr)


class Sym(SymNode):
    """A symbolic int: behaves as the int it stands for. ``ctx.make`` gives an int for a constant, so a ``Sym``
    held by a spec is never constant when it is made (later guards may make it so).

    Deciding anything about it (comparison, ``bool``, ``int``, ``range``, indexing) asks the context, which
    records a guard unless the symbols' ranges settle it. ``hash`` is structural and records nothing.
    """

    __slots__ = ()
    __hash__ = SymNode.__hash__

    def is_int(self) -> bool:
        return True

    # Nodes of torch.SymInt: take and give nodes.

    def _node(self, e: Expr) -> Sym:
        made = self.ctx.make(e)
        if isinstance(made, Sym):
            return made
        return Sym(E.const(made), self.ctx)

    def add(self, other: SymNode) -> Sym:
        return self._node(E.add(self.expr, other.expr))

    def sub(self, other: SymNode) -> Sym:
        return self._node(E.sub(self.expr, other.expr))

    def mul(self, other: SymNode) -> Sym:
        return self._node(E.mul(self.expr, other.expr))

    def floordiv(self, other: SymNode) -> Sym:
        return self._node(E.floordiv(self.expr, other.expr))

    int_floordiv = floordiv

    def mod(self, other: SymNode) -> Sym:
        return self._node(E.mod(self.expr, other.expr))

    def pow_by_natural(self, other: SymNode) -> Sym:
        exponent = self.ctx.specialise(other.expr, "the exponent of a size")
        return self._node(E.power(self.expr, exponent))

    pow = pow_by_natural

    def neg(self) -> Sym:
        return self._node(E.neg(self.expr))

    def pos(self) -> Sym:
        return self

    def abs(self) -> Sym:
        return self._node(E.maximum(self.expr, E.neg(self.expr)))

    def sym_min(self, other: SymNode) -> Sym:
        return self._node(E.minimum(self.expr, other.expr))

    def sym_max(self, other: SymNode) -> Sym:
        return self._node(E.maximum(self.expr, other.expr))

    def sym_sum(self, nodes: Any) -> Sym:
        total: Expr = E.const(0)
        for n in nodes:
            total = E.add(total, n.expr)
        return self._node(total)

    def sym_int(self) -> Sym:
        return self

    def ceil(self) -> Sym:
        return self

    floor = trunc = round = ceil

    def eq(self, other: SymNode) -> SymBool:
        return self._bool(E.eq(self.expr, other.expr))

    def ne(self, other: SymNode) -> SymBool:
        return self._bool(E.ne(self.expr, other.expr))

    def lt(self, other: SymNode) -> SymBool:
        return self._bool(E.lt(self.expr, other.expr))

    def le(self, other: SymNode) -> SymBool:
        return self._bool(E.le(self.expr, other.expr))

    def gt(self, other: SymNode) -> SymBool:
        return self._bool(E.gt(self.expr, other.expr))

    def ge(self, other: SymNode) -> SymBool:
        return self._bool(E.ge(self.expr, other.expr))

    # Layout questions of the dispatcher; sizes and strides are nodes.

    def is_contiguous(self, sizes: Any, strides: Any) -> SymBool:
        return self._layout(sizes, strides, range(len(sizes) - 1, -1, -1))

    def is_channels_last_contiguous_2d(self, sizes: Any, strides: Any) -> SymBool:
        return self._layout(sizes, strides, (1, 3, 2, 0) if len(sizes) == 4 else None)

    def is_channels_last_contiguous_3d(self, sizes: Any, strides: Any) -> SymBool:
        return self._layout(sizes, strides, (1, 4, 3, 2, 0) if len(sizes) == 5 else None)

    def is_channels_last_strides_2d(self, sizes: Any, strides: Any) -> SymBool:
        return self._channels_last(sizes, strides, 4)

    def is_channels_last_strides_3d(self, sizes: Any, strides: Any) -> SymBool:
        return self._channels_last(sizes, strides, 5)

    def is_non_overlapping_and_dense(self, sizes: Any, strides: Any) -> SymBool:
        from prims.spec.layout import is_dense

        answer = is_dense(tuple(self._plain(s) for s in sizes), tuple(self._plain(s) for s in strides))
        return self._bool(E.to_expr(answer))

    def _plain(self, node: Any) -> Any:
        return self.ctx.make(node.expr) if isinstance(node, SymNode) else node.int_()

    def _layout(self, sizes: Any, strides: Any, order: Any) -> SymBool:
        from prims.spec.layout import is_contiguous_in_order

        if order is None:
            return self._bool(E.FALSE)
        shape, steps = tuple(map(self._plain, sizes)), tuple(map(self._plain, strides))
        return self._bool(E.to_expr(is_contiguous_in_order(shape, steps, order)))

    def _channels_last(self, sizes: Any, strides: Any, ndim: int) -> SymBool:
        from prims.spec.layout import is_channels_last_strides

        if len(sizes) != ndim:
            return self._bool(E.FALSE)
        shape, steps = tuple(map(self._plain, sizes)), tuple(map(self._plain, strides))
        return self._bool(E.to_expr(is_channels_last_strides(shape, steps)))

    # Python's operators: give int | Sym.

    def __add__(self, other: Any) -> Any:
        return _binary(E.add, self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return _binary(E.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return _binary(E.sub, other, self)

    def __mul__(self, other: Any) -> Any:
        return _binary(E.mul, self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return _binary(E.floordiv, self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _binary(E.floordiv, other, self)

    def __mod__(self, other: Any) -> Any:
        return _binary(E.mod, self, other)

    def __rmod__(self, other: Any) -> Any:
        return _binary(E.mod, other, self)

    def __truediv__(self, other: Any) -> Any:
        return _float_result("fdiv", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _float_result("fdiv", other, self)

    def __pow__(self, exponent: Any) -> Any:
        if isinstance(exponent, float) or isinstance(exponent, int) and exponent < 0:
            return _float_result("fpow", self, exponent)
        return self.ctx.make(E.power(self.expr, int(exponent)))

    def __rpow__(self, base: Any) -> Any:
        return base ** int(self)

    def __neg__(self) -> Any:
        return self.ctx.make(E.neg(self.expr))

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self.ctx.make(E.maximum(self.expr, E.neg(self.expr)))

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def _compare(self, relation: Any, kind: str, swap: bool, other: Any) -> Any:
        if isinstance(other, (Sym, int)):
            return self.ctx.evaluate(relation(self.expr, _expr(other)))
        if isinstance(other, float):
            a, b = (other, self.expr) if swap else (self.expr, other)
            return self.ctx.evaluate(E.float_compare(kind, a, b))
        return NotImplemented

    def __eq__(self, other: object) -> Any:
        if other is self:
            return True
        return self._compare(E.eq, "feq", False, other)

    def __ne__(self, other: object) -> Any:
        result = self.__eq__(other)
        return result if result is NotImplemented else not result

    def __lt__(self, other: Any) -> Any:
        return self._compare(E.lt, "flt", False, other)

    def __le__(self, other: Any) -> Any:
        return self._compare(E.le, "fle", False, other)

    def __gt__(self, other: Any) -> Any:
        return self._compare(E.gt, "flt", True, other)

    def __ge__(self, other: Any) -> Any:
        return self._compare(E.ge, "fle", True, other)

    def __bool__(self) -> bool:
        return self.ctx.evaluate(E.ne(self.expr, 0))

    def __int__(self) -> int:
        return self.guard_int()

    __index__ = __int__
    __trunc__ = __int__

    def __float__(self) -> float:
        return float(self.guard_int())

    def __round__(self, ndigits: Any = None) -> Any:
        return self

    def __ceil__(self) -> Any:
        return self

    __floor__ = __ceil__


class SymBool(SymNode):
    """A symbolic bool, the node of ``torch.SymBool``."""

    __slots__ = ()

    def is_bool(self) -> bool:
        return True

    def __bool__(self) -> bool:
        return self.ctx.evaluate(self.expr)

    def sym_and(self, other: SymNode) -> SymBool:
        return self._bool(E.and_(self.expr, other.expr))

    and_ = sym_and

    def sym_or(self, other: SymNode) -> SymBool:
        return self._bool(E.or_(self.expr, other.expr))

    or_ = sym_or

    def sym_not(self) -> SymBool:
        return self._bool(E.not_(self.expr))

    def eq(self, other: SymNode) -> SymBool:
        a, b = self.expr, other.expr
        return self._bool(E.or_(E.and_(a, b), E.and_(E.not_(a), E.not_(b))))

    def ne(self, other: SymNode) -> SymBool:
        return self.eq(other).sym_not()

    def sym_ite(self, then: SymNode, otherwise: SymNode) -> SymNode:
        if then.is_int():
            return Sym(self.ctx.simplify(E.ite(self.expr, then.expr, otherwise.expr)), self.ctx)
        return then if self else otherwise

    def _number(self) -> Sym:
        return Sym(self.ctx.simplify(E.ite(self.expr, E.const(1), E.const(0))), self.ctx)


def _of_numbers(name: _Text) -> Any:
    """An operator of ints on a bool: PyTorch asks the left operand's node, before 2.13 of a plain bool a bool's."""

    def operator(self: SymBool, other: SymNode) -> SymNode:
        number = other._number() if isinstance(other, SymBool) else other
        return getattr(self._number(), name)(number)  # type: ignore[no-any-return]

    return operator


for _name in ("add", "sub", "mul", "floordiv", "int_floordiv", "mod", "pow", "pow_by_natural", "lt", "le", "gt", "ge",
              "sym_min", "sym_max"):  # fmt: skip
    setattr(SymBool, _name, _of_numbers(_name))


class SymFloat(SymNode):
    """A symbolic float, the node of ``torch.SymFloat``."""

    __slots__ = ()

    def is_float(self) -> bool:
        return True

    def is_constant(self) -> bool:
        """No, not even where guards have left one value: PyTorch's operators take out ints and bools alone."""
        return False

    def __float__(self) -> float:
        return self.guard_float()

    def __bool__(self) -> bool:
        return self.guard_float() != 0.0

    def add(self, other: SymNode) -> SymFloat:
        return self._float("fadd", self.expr, other.expr)

    def sub(self, other: SymNode) -> SymFloat:
        return self._float("fsub", self.expr, other.expr)

    def mul(self, other: SymNode) -> SymFloat:
        return self._float("fmul", self.expr, other.expr)

    def mod(self, other: SymNode) -> SymFloat:
        return self._float("fmod", self.expr, other.expr)

    def floordiv(self, other: SymNode) -> SymFloat:
        return self._float("ffloordiv", self.expr, other.expr)

    def pow(self, other: SymNode) -> SymFloat:
        return self._float("fpow", self.expr, other.expr)

    def neg(self) -> SymFloat:
        return self._float("fneg", self.expr)

    def pos(self) -> SymFloat:
        return self

    def abs(self) -> SymFloat:
        return self._float("fabs", self.expr)

    def round(self, ndigits: Any = None) -> SymNode:
        if ndigits is not None:
            return SymFloat(E.fconst(round(self.guard_float(), ndigits)), self.ctx)
        return Sym(E.round_to_int("trunc", E.float_op("fround", self.expr)), self.ctx)

    def sym_min(self, other: SymNode) -> SymFloat:
        return self._float("fmin", self.expr, other.expr)

    def sym_max(self, other: SymNode) -> SymFloat:
        return self._float("fmax", self.expr, other.expr)

    def ceil(self) -> Sym:
        return Sym(E.round_to_int("fceil", self.expr), self.ctx)

    def floor(self) -> Sym:
        return Sym(E.round_to_int("ffloor", self.expr), self.ctx)

    def trunc(self) -> Sym:
        return Sym(E.round_to_int("trunc", self.expr), self.ctx)

    sym_int = trunc

    def is_integer(self) -> SymBool:
        rounded = E.round_to_int("trunc", self.expr)
        return self._bool(E.float_compare("feq", self.expr, E.to_float(rounded)))

    def _float_compare(self, kind: str, a: SymNode, b: SymNode) -> SymBool:
        return self._bool(E.float_compare(kind, a.expr, b.expr))

    def eq(self, other: SymNode) -> SymBool:
        return self._float_compare("feq", self, other)

    def ne(self, other: SymNode) -> SymBool:
        return self.eq(other).sym_not()

    def lt(self, other: SymNode) -> SymBool:
        return self._float_compare("flt", self, other)

    def le(self, other: SymNode) -> SymBool:
        return self._float_compare("fle", self, other)

    def gt(self, other: SymNode) -> SymBool:
        return self._float_compare("flt", other, self)

    def ge(self, other: SymNode) -> SymBool:
        return self._float_compare("fle", other, self)

    def __add__(self, other: Any) -> Any:
        return _float_result("fadd", self, other)

    def __radd__(self, other: Any) -> Any:
        return _float_result("fadd", other, self)

    def __sub__(self, other: Any) -> Any:
        return _float_result("fsub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _float_result("fsub", other, self)

    def __mul__(self, other: Any) -> Any:
        return _float_result("fmul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _float_result("fmul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _float_result("fdiv", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _float_result("fdiv", other, self)

    def __pow__(self, other: Any) -> Any:
        return _float_result("fpow", self, other)

    def __abs__(self) -> Any:
        return self.abs()

    def __neg__(self) -> Any:
        return self.neg()

    def __int__(self) -> int:
        return self.trunc().guard_int()

    __hash__ = SymNode.__hash__

    def _decide(self, kind: str, a: Any, b: Any) -> Any:
        if not isinstance(a, (SymNode, int, float)) or not isinstance(b, (SymNode, int, float)):
            return NotImplemented
        return self.ctx.evaluate(E.float_compare(kind, _expr(a), _expr(b)))

    def __eq__(self, other: object) -> Any:
        return self._decide("feq", self, other)

    def __ne__(self, other: object) -> Any:
        result = self._decide("feq", self, other)
        return result if result is NotImplemented else not result

    def __lt__(self, other: Any) -> Any:
        return self._decide("flt", self, other)

    def __le__(self, other: Any) -> Any:
        return self._decide("fle", self, other)

    def __gt__(self, other: Any) -> Any:
        return self._decide("flt", other, self)

    def __ge__(self, other: Any) -> Any:
        return self._decide("fle", other, self)


def _expr(x: Any) -> Expr:
    return x.expr if isinstance(x, SymNode) else E.to_expr(x)


def _binary(op: Any, a: Any, b: Any) -> Any:
    if type(b) is int:
        if type(a) is Sym:
            return a.ctx.make(op(a.expr, E.const(b)))
    elif type(b) is Sym and type(a) is Sym:
        return a.ctx.make(op(a.expr, b.expr))
    ctx = a.ctx if isinstance(a, Sym) else b.ctx
    for x in (a, b):
        if isinstance(x, float):
            return _FLOAT_OPERATORS[op](a, b, ctx)
        if not isinstance(x, (Sym, int)):
            return NotImplemented
    return ctx.make(op(_expr(a), _expr(b)))


def _float_result(kind: str, a: Any, b: Any) -> Any:
    if not isinstance(a, (SymNode, int, float)) or not isinstance(b, (SymNode, int, float)):
        return NotImplemented
    ctx = next(x.ctx for x in (a, b) if isinstance(x, SymNode))
    e = E.float_op(kind, _expr(a), _expr(b))
    return e.value if e.is_const else SymFloat(e, ctx)


_FLOAT_OPERATORS = {
    op: (lambda a, b, ctx, kind=kind: _float_result(kind, a, b))
    for op, kind in (
        (E.add, "fadd"),
        (E.sub, "fsub"),
        (E.mul, "fmul"),
        (E.floordiv, "ffloordiv"),
        (E.mod, "fmod"),
    )
}


def sym_min(a: Any, b: Any) -> Any:
    """The smaller of two ``int | Sym``, without a guard."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return (a if isinstance(a, Sym) else b).ctx.make(E.minimum(_expr(a), _expr(b)))


def sym_max(a: Any, b: Any) -> Any:
    """The larger of two ``int | Sym``, without a guard."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return (a if isinstance(a, Sym) else b).ctx.make(E.maximum(_expr(a), _expr(b)))


def parse_expr(text: str, ctx: SymbolContext) -> Any:
    """The ``int | Sym`` of a text that ``str(expr)`` wrote; its symbols must be declared in ``ctx``."""
    e = parse(text)
    for name in e.free_symbols():
        ctx.info(name)
    return ctx.make(e)


_TORCH_TYPES = {Sym: torch.SymInt, SymBool: torch.SymBool, SymFloat: torch.SymFloat}


def to_torch(x: Any) -> Any:
    """A ``torch.SymInt``/``SymBool``/``SymFloat`` for a symbolic value; anything else as it is."""
    wrapper = _TORCH_TYPES.get(type(x))
    return x if wrapper is None else wrapper(x)


def from_torch(x: Any) -> Any:
    """The plain number or ``Sym``/``SymBool``/``SymFloat`` of a torch symbolic value; anything else as it is."""
    if isinstance(x, torch.SymInt):
        node = x.node
        return node.ctx.make(node.expr) if isinstance(node, Sym) else x
    if isinstance(x, (torch.SymBool, torch.SymFloat)):
        node = x.node
        if isinstance(node, SymNode):
            e = node.ctx.simplify(node.expr)
            return e.value if e.is_const else node
    return x


def float_from_bits(bits: Any) -> Any:
    """The float with these bits, symbolic if they are: a float of the program is an integer input of its graph."""
    if not isinstance(bits, torch.SymInt):
        return E.float_of_bits(bits)
    node = bits.node
    return torch.SymFloat(SymFloat(E.from_bits(node.expr), node.ctx))


def float_to_single(x: Any) -> Any:
    """A float, symbolic or not, rounded to 32 bits: what a tensor of float32 holds of it."""
    if not isinstance(x, torch.SymFloat):
        return E.round_to_single(x)
    return torch.SymFloat(SymFloat(E.float_op("fsingle", x.node.expr), x.node.ctx))
