"""Size expressions as ONNX nodes: int64 arithmetic on what `Shape` says of the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from compile_api.deploy.interchange.walk import NotMapped
from prims.ir.symbols import expr_of
from prims.spec import expr as ex

if TYPE_CHECKING:
    from compile_api.deploy.interchange.onnx.builder import Builder, T

__all__ = ["Sizes"]

_INT, _FLOAT = torch.int64, torch.float64

#: Kinds of expressions that are one operator of the same numbers.
_SAME = {
    "min": "Min", "max": "Max", "fadd": "Add", "fsub": "Sub", "fmul": "Mul", "fdiv": "Div", "fquot": "Div",
    "fpow": "Pow", "fmin": "Min", "fmax": "Max", "fneg": "Neg", "fabs": "Abs", "fsqrt": "Sqrt", "fround": "Round",
    "and": "And", "or": "Or", "not": "Not",
}  # fmt: skip


class Sizes:
    """Each expression is computed once, as a line of one element, so that shapes are lines one after another."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.done: dict[ex.Expr, T] = {}

    def line(self, sizes: Sequence[Any]) -> T:
        """Sizes one after another."""
        b = self.builder
        if all(expr_of(n) is None for n in sizes):
            return b.ints([int(n) for n in sizes])
        parts = [b.ints([int(n)]) if expr_of(n) is None else self.one(expr_of(n)) for n in sizes]
        return parts[0] if len(parts) == 1 else b.op("Concat", *parts, axis=0)

    def scalar(self, size: Any) -> T:
        """A size, or a number computed from sizes, without dimensions."""
        b = self.builder
        return b.op("Squeeze", self.one(expr_of(size)), b.ints([0]))

    def one(self, e: ex.Expr) -> T:
        """An expression as a line of one element."""
        if e not in self.done:
            self.done[e] = self._made(e)
        return self.done[e]

    def _made(self, e: ex.Expr) -> T:
        b = self.builder
        if e.kind == "const":
            return b.ints([e.value])
        if e.kind == "fconst":
            return b.tensor(torch.tensor([e.value], dtype=_FLOAT), e.value)
        if e.kind == "symbol":
            place = b.program.symbols.get(e.name)
            if place is None or place[0] not in b.names:
                raise NotMapped(f"the size {e.name} is not one of an input")
            from compile_api.deploy.interchange.onnx.builder import T as Value

            node, dim = place
            return b.op("Shape", Value(b.names[node], _INT), dtype=_INT, start=dim, end=dim + 1)
        if e.kind == "poly":
            return self._sum(e)
        if e.kind in ("eq", "ne", "le"):
            (difference,) = e.args
            kind = {"eq": "Equal", "ne": "Equal", "le": "LessOrEqual"}[e.kind]
            found = b.op(kind, self.one(difference), b.ints([0]), dtype=torch.bool)
            return b.op("Not", found) if e.kind == "ne" else found
        if e.kind in ("feq", "flt", "fle"):
            kind = {"feq": "Equal", "flt": "Less", "fle": "LessOrEqual"}[e.kind]
            return b.op(kind, *map(self.one, e.args), dtype=torch.bool)
        return self._atom(e)

    def _sum(self, e: ex.Expr) -> T:
        b = self.builder
        total: T | None = None
        for monomial, coefficient in e.terms:
            part: T | None = None if coefficient == 1 and monomial else b.ints([coefficient])
            for atom, power in monomial:
                for _ in range(power):
                    factor = self.one(atom)
                    part = factor if part is None else b.op("Mul", part, factor)
            assert part is not None
            total = part if total is None else b.op("Add", total, part)
        assert total is not None
        return total

    def _atom(self, e: ex.Expr) -> T:
        b = self.builder
        args = [self.one(ex.to_expr(a)) for a in e.args]
        if e.kind in _SAME:
            return b.op(_SAME[e.kind], *args)
        if e.kind == "mod":
            return b.op("Mod", *args)
        if e.kind == "floordiv":  # Div truncates; the sign of Mod is the divisor's, so that this division is exact
            return b.op("Div", b.op("Sub", args[0], b.op("Mod", *args)), args[1])
        if e.kind == "ite":
            return b.op("Where", *args, dtype=args[1].dtype)
        if e.kind == "tofloat":
            return b.cast(args[0], _FLOAT)
        if e.kind == "fsingle":
            return b.cast(b.cast(args[0], torch.float32), _FLOAT)
        if e.kind == "trunc":
            return b.cast(args[0], _INT)
        if e.kind in ("ffloor", "fceil"):
            return b.cast(b.op("Floor" if e.kind == "ffloor" else "Ceil", args[0]), _INT)
        raise NotMapped(f"the size {e} has no form in shape arithmetic")
