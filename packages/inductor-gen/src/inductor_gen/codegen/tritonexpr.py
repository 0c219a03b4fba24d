"""Triton expressions for SSA values, indices and stores, with the parameters that they turn out to need."""

from __future__ import annotations

import math

import torch

from inductor_gen.codegen.cexpr import Names
from inductor_gen.codegen.reductions import REDUCTIONS, helpers
from inductor_gen.device.cuda import ATOMIC
from inductor_gen.kernel.body import Body, Store, Val
from inductor_gen.loops.graph import Node
from prims.dtypes import HALVES, KEPT_FLOATS, ROWS
from prims.errors import Unsupported
from prims.ops import templates
from prims.spec.expr import Expr

__all__ = ["TritonNames", "multiple_of", "pointer_type", "prelude", "store_mode"]

_HELPERS = {
    # 1 + erf(x); erfc(a) = 2^p(a) for a >= 0, a minimax fit on [0, 5]: relative error 6e-4 at most, absolute 6.4e-7
    "qt_one_plus_erf": (
        "def qt_one_plus_erf(x):\n"
        "    a = tl.abs(x)\n"
        "    p = -8.83980010257801e-06 * a + 0.00033107856870628893\n"
        "    p = ((p * a - 0.004453269764780998) * a + 0.03216493874788284) * a - 0.15058647096157074\n"
        "    p = ((p * a - 0.9179117679595947) * a - 1.6279468536376953) * a\n"
        "    tail = tl.exp2(p)\n"
        "    return tl.where(x < 0, tail, 2.0 - tail)"
    ),
    # 1 + tanh(x) = 2 / (1 + exp(-2 x)), which loses nothing for negative x
    "qt_one_plus_tanh": (
        "def qt_one_plus_tanh(x):\n    return libdevice.fast_dividef(2.0, 1.0 + tl.exp2(-2.8853900817779268 * x))"
    ),
    # x / (1 + exp(-x)) and 1 / (1 + exp(-x)); what is below 2**-119 may come out as 0
    "qt_silu": ("def qt_silu(x):\n    return libdevice.fast_dividef(x, 1.0 + tl.exp2(-1.4426950408889634 * x))"),
    "qt_sigmoid": (
        "def qt_sigmoid(x):\n    return libdevice.fast_dividef(1.0, 1.0 + tl.exp2(-1.4426950408889634 * x))"
    ),
    # a + b and a - b that take no product's rounding back, whoever multiplied: also a reduction, or libdevice
    **{
        f"qt_{op}{bits}": (
            f"def qt_{op}{bits}(a, b):\n"
            f"    return tl.inline_asm_elementwise(\"{op}.rn.f{bits} $0, $1, $2;\", \"={c},{c},{c}\", [a, b], "
            f"dtype=tl.float{bits}, is_pure=True, pack=1)"
        )
        for op in ("add", "sub") for bits, c in ((32, "f"), (64, "d"))
    },
    **{
        name: (
            f"def {name}(seed, counter):\n"
            "    a, b, c, d = q_philox4(seed, counter)\n"
            f"    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [{shape}])"
        )
        for name, shape in (
            ("qt_words", "4 * counter.shape[0]"), ("qt_words2", "counter.shape[0], 4 * counter.shape[1]")
        )
    },
}


def pointer_type(dtype: torch.dtype) -> str:
    """The pointer type of a buffer in a kernel's signature; bools are bytes."""
    return f"*{ROWS[dtype].pointer}"


def multiple_of(e: Expr, factor: int) -> bool:
    """Is the size certainly a multiple of ``factor``?"""
    return not e.is_float and all(coeff % factor == 0 for _, coeff in e.terms)


def prelude(text: str) -> str:
    """Imports and helper functions that kernels' text uses."""
    known = {**_HELPERS, **helpers()}
    used = [body for name, body in known.items() if f"{name}(" in text or f"{name})" in text]
    made = [f"\n\n@triton.jit\n{body}\n" for body in used]
    return templates.triton_prelude("\n".join([text, *used])) + "".join(made)


class TritonNames(Names):
    """Names of one Triton kernel; ``wide`` says that positions are 64-bit."""

    QUOTIENT = "//"
    GIVEN_NUMBERS = False  # a number in a register may cost more than another kernel
    NEGATED = "(-{x})"
    EXTREMES = {"min": "tl.minimum({a}, {b})", "max": "tl.maximum({a}, {b})"}
    convert = staticmethod(templates.triton_convert)
    random = staticmethod(templates.triton_random)
    applied = staticmethod(templates.triton_expr)

    def __init__(self, body: Body, loops: list[Expr], written: list[Node]) -> None:
        super().__init__(body, loops, written)
        self.from_one = _from_one(body)
        self.logistic = _logistic(body)
        self.rounded = _rounded(body)
        self.narrow = all(s.value.dtype in HALVES for s in body.stores)
        self.passed = {v.id for v in self.from_one.values()} | _divisors(body, self.logistic)
        self.blocks: set[int] = set()  # values of rows that are read as blocks, by number
        self.wide = False

    def val(self, v: Val) -> str:
        name = super().val(v)
        return f"{name}b" if v.id in self.blocks else name

    def rename(self, variable: Expr, name: str) -> str:
        """Give a loop variable another name; returns the one that it had."""
        had, self._vars[variable] = self._vars[variable], name
        return had

    # ---- sizes and indices ------------------------------------------------------------------------------

    def type_of(self, v: Val) -> str:
        """The Triton type that a value is computed in."""
        return templates.triton_type(v.dtype)

    def divisor(self, e: Expr) -> str:
        """A size to divide by: a literal where it is known, for that makes the division a multiplication."""
        return str(e.args[0]) if e.kind == "const" else self.param(e)

    def gathered(self, v: Val) -> str:
        """A value that is part of a position."""
        return f"{self.val(v)}.to(tl.int64)" if self.wide and v.dtype != torch.int64 else self.val(v)

    # ---- values -----------------------------------------------------------------------------------------

    def literal(self, v: Val) -> str:
        """A number as the program has it."""
        if v.dtype.is_floating_point and v.attr == 0 and math.copysign(1, v.attr) < 0:
            return f"(tl.full((), 0.0, {self.type_of(v)}) * -1.0)"  # a literal would lose its sign
        return self.number(templates.triton_literal(v.attr, v.dtype), v)

    def number(self, text: str, v: Val) -> str:
        """A size as a value."""
        return f"tl.full((), {text}, {self.type_of(v)})"

    def place(self, at: Expr) -> str:
        """An index as a value."""
        moving = any(s in self._vars or s in self.body.atoms for s in at.symbols)
        return f"({self.index(at)}).to(tl.int64)" if moving else f"tl.full((), {self.index(at)}, tl.int64)"

    def checked(self, v: Val, name: str) -> str:
        """It was checked before (``Block.assertion``)."""
        return name

    def expression(self, v: Val) -> str:
        """The Triton expression of an SSA value (all but loads, reductions and scans)."""
        if v.id in self.from_one:
            inner = self.from_one[v.id]
            return f"qt_one_plus_{inner.op}({self.val(inner.args[0])})"
        if v.id in self.logistic:
            return f"qt_{'sigmoid' if v.op == 'sigmoid' else 'silu'}({self.val(self.logistic[v.id])})"
        if v.op == "mean":
            return "({0}o + {0}k)".format(self.val(v.args[0]))
        if v.id in self.rounded:
            args = ", ".join(map(self.val, v.args))
            return f"qt_{v.op}{64 if v.dtype == torch.float64 else 32}({args})"
        if v.op == "exp" and self.narrow and v.dtype != torch.float64:
            return f"tl.exp({self.val(v.args[0])})"  # off by 2**-24 of its operand, which no 16-bit result shows
        return super().expression(v)

    def loaded(self, text: str, dtype: torch.dtype) -> str:
        """An element from memory as a value to compute with."""
        if dtype == torch.bool:
            return f"({text} != 0)"
        if dtype in KEPT_FLOATS:
            return ROWS[dtype].reads.format(text)
        return f"{text}.to(tl.float32)" if dtype in HALVES else text

    def stored(self, name: str, dtype: torch.dtype) -> str:
        """A value as it goes to memory."""
        if dtype in KEPT_FLOATS:
            return ROWS[dtype].writes.format(name)
        memory = ROWS[dtype].in_triton
        return f"{name}.to({memory})" if memory else name

    def _bitcast(self, v: Val, arg: str) -> str:
        src, dst = v.args[0].dtype, v.dtype
        bits = f"{self.stored(arg, src)}.to({ROWS[dst].in_triton or ROWS[dst].triton}, bitcast=True)"
        return f"{bits}.to(tl.float32)" if dst in HALVES else bits

    def address(self, node: Node, at: Expr, zero: str | None) -> str:
        """A pointer; ``zero`` is a block of zeros that gives it its shape, None for one that has it already."""
        text = f"{self.pointer(node)} + ({self.index(at)})"
        return text if zero is None else f"{text} + {zero}"


def _from_one(body: Body) -> dict[int, Val]:
    """Sums ``1 + erf(x)`` and ``1 + tanh(x)`` that are computed at once, by number, each with its inner value.

    They are where nothing else reads the inner value and all results are 16-bit, for which a fraction of the
    instructions of a full-precision function is enough.
    """
    if not all(s.value.dtype in HALVES for s in body.stores):
        return {}
    inner = {v.id for v in body.vals if v.op in ("erf", "tanh") and v.dtype != torch.float64}
    inner -= {s.value.id for s in body.stores}
    found: dict[int, Val] = {}
    for v in body.vals:
        if v.op == "add" and any(a.op == "const" and a.attr == 1 for a in v.args):
            found.update((v.id, a) for a in v.args if a.id in inner)
        else:
            inner -= {a.id for a in v.args}
    return {k: v for k, v in found.items() if v.id in inner}


#: Operators whose value is no product when another takes it: what is read, moved, added, chosen, rounded or counted.
_NO_PRODUCT = frozenset(
    "load const size index test add sub neg where maximum minimum fmax fmin abs sign copysign floor ceil trunc round "
    "convert bitcast rounded bounded".split()
)


def _rounded(body: Body) -> set[int]:
    """The sums in which a product meets what depends on it: ``x * y - max(x * y)``.

    Where such a product went into the sum unrounded, what is left of equal terms were its rounding error and not 0.
    Multiplications are also what reductions and the library's functions end with.
    """
    found: set[int] = set()
    reaches: dict[int, int] = {}  # the products that a value depends on, as bits
    bits: dict[int, int] = {}
    for v in body.vals:
        mask = 0
        for a in body.inputs_of(v):
            mask |= reaches[a.id]
        if v.op in ("add", "sub") and mask and v.dtype.is_floating_point:
            for term, other in (v.args, v.args[::-1]):
                while term.op == "neg":
                    term = term.args[0]
                if bits.get(term.id, 0) & reaches[other.id]:
                    found.add(v.id)
        elif v.dtype.is_floating_point and v.op not in _NO_PRODUCT and v.attr not in ("sum", "cumsum", "amax", "amin"):
            bits[v.id] = 1 << len(bits)
            mask |= bits[v.id]
        reaches[v.id] = mask
    return found


#: Operators through which a small error of an operand stays a small one (of a quotient's divisor it may not).
_SMOOTH = frozenset(
    "abs add const convert div erf exp index load maximum mean minimum mul neg reduce scan sigmoid size square sub "
    "tanh where".split()
)


def _logistic(body: Body) -> dict[int, Val]:
    """The values ``sigmoid(x)`` and ``x / (1 + exp(-x))`` that may be off in float32's last places, each with its x.

    They may where all results are 16-bit and nothing that jumps (a comparison, a rounding to integers, a position, a
    root's or a quotient's domain) depends on them. A correctly rounded quotient takes thirty instructions and branches.
    """
    found = {v.id: x for v in body.vals if v.dtype != torch.float64 and (x := _logistic_of(v)) is not None}
    if not found or not all(s.value.dtype in HALVES for s in body.stores):
        return {}
    exact: set[int] = set()
    for v in reversed(body.vals):
        jumps = v.op not in _SMOOTH or (v.op == "reduce" and REDUCTIONS[v.attr].place)
        jumps = jumps or (v.op == "convert" and not v.dtype.is_floating_point)
        if jumps or v.id in exact:
            exact.update(a.id for a in body.inputs_of(v))
        elif v.op == "div":
            exact.add(v.args[1].id)
    return {k: x for k, x in found.items() if k not in exact}


def _logistic_of(v: Val) -> Val | None:
    """x where the value is ``sigmoid(x)`` or ``x / (exp(-x) + 1)``."""
    if v.op == "sigmoid":
        return v.args[0]
    if v.op != "div" or v.args[1].op != "add":
        return None
    terms = v.args[1].args
    one = [a for a in terms if a.op == "const" and a.attr == 1]
    power = [a for a in terms if a.op == "exp" and a.args[0].op == "neg"]
    return v.args[0] if one and power and power[0].args[0].args[0] is v.args[0] else None


def _divisors(body: Body, logistic: dict[int, Val]) -> set[int]:
    """What would be computed for the divisors of these quotients alone."""
    readers: dict[int, int] = {}
    for v in body.vals:
        for a in body.inputs_of(v):
            readers[a.id] = readers.get(a.id, 0) + 1
    for s in body.stores:
        readers[s.value.id] = readers.get(s.value.id, 0) + 1
    found: set[int] = set()
    for v in body.vals:
        if v.id in logistic and v.op == "div":
            power = next(a for a in v.args[1].args if a.op == "exp")
            for x in (v.args[1], power, power.args[0]):
                if readers[x.id] > 1:
                    break
                found.add(x.id)
    return found


def store_mode(s: Store) -> str:
    """The Triton function for a store: ``tl.store`` or an atomic one.

    Raises:
        Unsupported: the hardware has no such atomic operation, or its order would show where it must not.
    """
    if s.mode == "set":
        return "tl.store"
    dtype = s.value.dtype
    if dtype.is_floating_point and s.mode == "add" and torch.are_deterministic_algorithms_enabled():
        raise Unsupported("deterministic algorithms are asked for; a generated kernel scatters its sums in any order")
    if dtype in ATOMIC.get(s.mode, ()):
        return f"tl.atomic_{s.mode}"
    raise Unsupported(f"scatter with {s.mode!r} of {dtype} has no atomic operation on the GPU")

