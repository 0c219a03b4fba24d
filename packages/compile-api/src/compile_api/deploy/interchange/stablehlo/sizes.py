"""Size expressions as StableHLO: int64 arithmetic on what `get_dimension_size` says of the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from compile_api.deploy.interchange.walk import NotMapped
from prims.ir.symbols import expr_of
from prims.spec import expr as ex

if TYPE_CHECKING:
    from compile_api.deploy.interchange.stablehlo.builder import Builder, V

__all__ = ["Sizes"]

#: Kinds of expressions that are one operation of the same numbers.
_SAME = {
    "min": "minimum", "max": "maximum", "fadd": "add", "fsub": "subtract", "fmul": "multiply", "fdiv": "divide",
    "fquot": "divide", "fpow": "power", "fmin": "minimum", "fmax": "maximum", "fneg": "negate", "fabs": "abs",
    "fsqrt": "sqrt", "fround": "round_nearest_even", "and": "and", "or": "or", "not": "not",
}  # fmt: skip


class Sizes:
    """Each expression is computed once, as a value without dimensions."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.done: dict[ex.Expr, V] = {}

    def line(self, sizes: Sequence[Any]) -> V:
        """Sizes one after another, a line of int64."""
        b = self.builder
        if all(expr_of(n) is None for n in sizes):
            return b.ints([int(n) for n in sizes])
        parts = [
            b.ints([int(n)]) if expr_of(n) is None else b.reshape(self.one(expr_of(n)), (1,)) for n in sizes
        ]  # fmt: skip
        return b.concatenate(parts, 0, (len(parts),))

    def one(self, e: ex.Expr) -> V:
        """An expression as a value without dimensions."""
        if e not in self.done:
            self.done[e] = self._made(e)
        return self.done[e]

    def _made(self, e: ex.Expr) -> V:
        b = self.builder
        if e.kind in ("const", "fconst"):
            return b.scalar(e.value, torch.int64 if e.kind == "const" else torch.float64)
        if e.kind == "symbol":
            place = b.program.symbols.get(e.name)
            if place is None or place[0] not in b.names:
                raise NotMapped(f"the size {e.name} is not one of an input")
            x = b.names[place[0]]
            size = b.to("get_dimension_size", [x], f", dim = {place[1]}", torch.int32, ())
            return b.convert(size, torch.int64)
        if e.kind == "poly":
            return self._sum(e)
        if e.kind in ("eq", "ne", "le"):
            return b.compare(e.kind.upper(), self.one(e.args[0]), b.scalar(0, torch.int64))
        if e.kind in ("feq", "flt", "fle"):
            return b.compare(e.kind[1:].upper(), *map(self.one, e.args))
        return self._atom(e)

    def _sum(self, e: ex.Expr) -> V:
        b = self.builder
        total: V | None = None
        for monomial, coefficient in e.terms:
            part: V | None = None if coefficient == 1 and monomial else b.scalar(coefficient, torch.int64)
            for atom, power in monomial:
                for _ in range(power):
                    factor = self.one(atom)
                    part = factor if part is None else b.op("multiply", part, factor)
            assert part is not None
            total = part if total is None else b.op("add", total, part)
        assert total is not None
        return total

    def _atom(self, e: ex.Expr) -> V:
        b = self.builder
        args = [self.one(ex.to_expr(a)) for a in e.args]
        if e.kind in _SAME:
            return b.op(_SAME[e.kind], *args)
        if e.kind in ("floordiv", "mod"):
            return _floored(b, e.kind, *args)
        if e.kind == "ite":
            return b.select(*args)
        if e.kind == "tofloat":
            return b.convert(args[0], torch.float64)
        if e.kind == "fsingle":
            return b.convert(b.convert(args[0], torch.float32), torch.float64)
        if e.kind == "trunc":
            return b.convert(args[0], torch.int64)
        if e.kind in ("ffloor", "fceil"):
            return b.convert(b.op("floor" if e.kind == "ffloor" else "ceil", args[0]), torch.int64)
        raise NotMapped(f"the size {e} has no form in shape arithmetic")


def _floored(b: Builder, kind: str, x: V, y: V) -> V:
    """Quotient and rest as Python's: both operations of StableHLO truncate."""
    rest, zero = b.op("remainder", x, y), b.scalar(0, torch.int64)
    other = b.compare("NE", b.compare("LT", rest, zero), b.compare("LT", y, zero))
    opposed = b.op("and", b.compare("NE", rest, zero), other)
    if kind == "mod":
        return b.select(opposed, b.op("add", rest, y), rest)
    quotient = b.op("divide", x, y)
    return b.select(opposed, b.op("subtract", quotient, b.scalar(1, torch.int64)), quotient)
