"""C expressions for SSA values, indices and stores, with the parameters that they turn out to need."""

from __future__ import annotations

import functools
import math
import platform
import re
from collections.abc import Callable, Iterable
from typing import ClassVar

import torch

from inductor_gen.kernel.body import Body, Store, Val
from inductor_gen.kernel.contract import CONTRACTED
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import lift
from inductor_gen.unit import BAD_DIVISOR, BAD_INDEX
from prims.dtypes import HALVES, ROWS
from prims.ops import TABLE, templates
from prims.spec import expr as ex
from prims.spec.expr import Expr

__all__ = ["Names", "prelude", "storage_type"]

#: Integers up to this stand in the text; larger ones are parameters, so that kernels serve several sizes.
LITERAL = 16

_SINGLES = (torch.float32, torch.float64)


def storage_type(dtype: torch.dtype) -> str:
    """The C type of an element in memory."""
    return ROWS[dtype].in_c or ROWS[dtype].c


class Names:
    """Names of variables, values, pointers and sizes of one kernel, handed out in order of first use.

    What is told here of expressions holds in every language; the attributes are C's way to write them.
    """

    QUOTIENT = "/"
    GIVEN_NUMBERS = True  # numbers that the text gains nothing from are parameters
    NEGATED = "q_neg{bits}({x})"
    EXTREMES = {"min": "(({a}) < ({b}) ? ({a}) : ({b}))", "max": "(({a}) > ({b}) ? ({a}) : ({b}))"}
    convert = staticmethod(templates.c_convert)
    random = staticmethod(templates.c_random)
    applied: ClassVar[Callable[..., str]] = staticmethod(templates.c_expr)

    def __init__(self, body: Body, loops: list[Expr], written: Iterable[Node] | None = None) -> None:
        self.body = body
        self.space = dict(body.space)
        # Whether choices are to leave no branch, but for those of places, by which a compiler splits a loop in two.
        self.branchless = False
        self.sizes: list[Expr] = []
        self._size_names: dict[Expr, str] = {}
        self.buffers: list[Node] = []
        self._pointers: dict[Node, str] = {}
        self._vars = {v: f"i{k}" for k, v in enumerate(loops)}
        self._vals: dict[int, str] = {}
        #: Where the random words of values stand that are made before a stretch of their loop.
        self.words: dict[int, str] = {}
        self.rows: dict[int, str] = {}  # loads whose elements were converted before, by number: where they are
        self.made: dict[int, str] = {}  # stores whose elements are converted behind, by identity: where they go
        self.filled: set[int] = set()  # those that were written there
        #: Quotients and remainders whose values a loop around knows.
        self.known: dict[Expr, str] = {}
        #: Where elements stand that were brought elsewhere before they are loaded.
        self.elements: dict[int, str] = {}
        #: Names of the bits of halves that were only moved so far, where the text is now.
        self.bits: dict[int, str] = {}
        for node in dict.fromkeys(s.buffer for s in body.stores) if written is None else written:
            self._pointers[node] = f"out{len(self.buffers)}"
            self.buffers.append(node)
        self.outputs = len(self.buffers)
        self._divisors = {v.args[1].id for v in body.vals if v.op in ("div", "fmod", "remainder")}

    # ---- names ------------------------------------------------------------------------------------------

    def var(self, v: Expr) -> str:
        """A loop variable."""
        return self._vars[v]

    def val(self, v: Val) -> str:
        """An SSA value."""
        return self._vals.setdefault(v.id, f"v{len(self._vals)}")

    def call(self, v: Val, name: str) -> None:
        """Let an SSA value have a name."""
        self._vals[v.id] = name

    def pointer(self, node: Node) -> str:
        """A buffer's pointer."""
        name = self._pointers.get(node)
        if name is None:
            name = self._pointers[node] = f"in{len(self.buffers)}"
            self.buffers.append(node)
        return name

    def type_of(self, v: Val) -> str:
        """The C type a value is held in; bools are ints, which vectorise beside floats."""
        return "int" if v.dtype == torch.bool else templates.c_type(v.dtype)

    def param(self, e: Expr) -> str:
        """A size that is known at the call."""
        name = self._size_names.get(e)
        if name is None:
            name = self._size_names[e] = f"n{len(self.sizes)}"
            self.sizes.append(e)
        return name

    def extent(self, v: Expr) -> str:
        """The number of values of a loop variable."""
        return self.size(self.space[v])

    def size(self, e: Expr) -> str:
        """A size expression as a C atom."""
        if e.kind == "const" and -2 <= e.args[0] <= LITERAL:
            return str(e.args[0]) if e.args[0] >= 0 else f"({e.args[0]})"
        return self.param(e)

    def declarations(self) -> list[str]:
        """The statements that unpack the parameters."""
        lines = []
        for k, node in enumerate(self.buffers):
            const = "const " if k >= self.outputs else ""
            ctype = storage_type(node.dtype)  # type: ignore[arg-type]
            lines.append(f"{const}{ctype}* restrict {self._pointers[node]} = ({const}{ctype}*)p_[{k}];")
        for k, e in enumerate(self.sizes):
            if e.is_float:
                lines.append(f"double n{k}; memcpy(&n{k}, n_ + {k}, 8);")
            else:
                lines.append(f"const int64_t n{k} = n_[{k}];")
        return lines

    # ---- indices ----------------------------------------------------------------------------------------

    def _is_loop(self, atom: Expr) -> bool:
        return any(s in self._vars or s in self.body.atoms for s in atom.symbols)

    def index(self, e: Expr) -> str:
        """An index expression."""
        groups: dict[tuple[Expr, ...], dict[tuple[tuple[Expr, int], ...], int]] = {}
        for mono, coeff in e.terms:
            moving: list[Expr] = []
            fixed: list[tuple[Expr, int]] = []
            for atom, power in mono:
                if self._is_loop(atom):
                    moving += [atom] * power
                else:
                    fixed.append((atom, power))
            groups.setdefault(tuple(moving), {})[tuple(fixed)] = coeff
        parts = []
        for moving_atoms, terms in groups.items():
            factor = ex.from_terms(terms)
            names = [self._atom(a) for a in moving_atoms]
            if not names:
                parts.append(self.size(factor))
            elif factor.kind == "const" and factor.args[0] == 1:
                parts.append("*".join(names))
            else:
                parts.append("*".join([*names, self.size(factor)]))
        return " + ".join(parts) if parts else "0"

    def _atom(self, atom: Expr) -> str:
        if atom in self._vars:
            return self._vars[atom]
        if atom in self.known:
            return self.known[atom]
        found = self.body.atoms.get(atom)
        if found is not None:
            return self.gathered(found)
        if atom.kind in ("floordiv", "mod"):
            return self._division(atom)
        a, b = (self._operand(x) for x in atom.args[:2])
        return self.EXTREMES[atom.kind].format(a=a, b=b)

    def gathered(self, v: Val) -> str:
        """A value that is part of a position."""
        return self.val(v)

    def divisor(self, e: Expr) -> str:
        """A size to divide by."""
        return self.size(e)

    def _operand(self, e: Expr) -> str:
        return self.index(e) if self._is_loop(e) else self.size(e)

    def _division(self, atom: Expr) -> str:
        """A quotient or remainder rounded down, by an operator that rounds towards zero."""
        moved = lift(atom.args[0], atom.args[1], self.space)
        a, by, operator = self._operand(ex.add(atom.args[0], moved or ex.const(0))), atom.args[1], self.QUOTIENT
        b = self.index(by) if self._is_loop(by) else self.divisor(by)
        if moved is None:
            if atom.kind == "mod":
                return f"((({a}) % ({b}) + ({b})) % ({b}))"
            return f"(({a}) {operator} ({b}) - ((({a}) % ({b})) < 0))"
        if atom.kind == "mod":
            return f"(({a}) % ({b}))"
        steps = ex.floordiv(moved, atom.args[1])
        back = "" if steps is ex.const(0) else f" - {self.size(steps)}"
        return f"(({a}) {operator} ({b}){back})"

    # ---- values -----------------------------------------------------------------------------------------

    def expression(self, v: Val) -> str:
        """The expression of an SSA value over its operands' names."""
        args = [self.val(a) for a in v.args]
        match v.op:
            case "const":
                if v.dtype == torch.int64 and isinstance(v.attr, int) and abs(v.attr) > LITERAL:
                    # such as the place of a layer's random numbers: layers that differ in it alone share a kernel
                    return self.number(self.param(ex.const(v.attr)), v)
                if self.GIVEN_NUMBERS and v.dtype in _SINGLES and not _is_plain(float(v.attr), v.id in self._divisors):
                    return f"(({self.type_of(v)}){self.param(ex.fconst(v.attr))})"
                return self.literal(v)
            case "size":
                return self.number(self.size(v.attr), v)
            case "index":
                return self.place(v.at)  # type: ignore[arg-type]
            case "test":
                return f"(({self.index(v.at)}) >= 0)"  # type: ignore[arg-type]
            case "load" if v.id in self.rows:
                return self.rows[v.id]
            case "load" | "bitcast" if v.id in self.bits:
                return ROWS[v.dtype].reads.format(self.bits[v.id])
            case "load":
                return self._load(v, args)
            case "convert" | "rounded":
                return self.convert(args[0], v.args[0].dtype if v.op == "convert" else torch.float32, v.dtype)
            case "contracted":
                return self._contracted(v, *args)
            case "neg" | "mul" | "div" if (sum_ := _negated_sum(v)) is not None:
                return self._negated(v, args[sum_])
            case "bitcast":
                return self._bitcast(v, args[0])
            case "bounded" | "nonzero":
                return self.checked(v, args[0])
        if v.id in self.words:
            return templates.c_drawn(TABLE[v.op], self.words[v.id], v.dtype)
        if v.op.startswith("random_"):
            return self.random(TABLE[v.op], args[0], args[1], args[2], v.dtype)
        operand = v.args[1].dtype if v.op == "where" else v.args[0].dtype
        if self.branchless and not (v.op == "where" and _is_place(v.args[0])):
            return templates.c_expr(TABLE[v.op], args, operand, branchless=True)
        return self.applied(TABLE[v.op], args, operand)

    def _contracted(self, v: Val, x: str, y: str, z: str) -> str:
        """``x * y + z`` (see :mod:`.contract`), rounded once where the processor has an instruction for it."""
        if v.attr == "r":
            x = self._negated(v, x) if _may_be_contracted(v.args[0]) else f"-{x}"
        elif v.attr == "-":
            z = self._negated(v, z) if _may_be_contracted(v.args[2]) else f"-{z}"
        return f"q_fma{64 if v.dtype == torch.float64 else 32}({x}, {y}, {z})"

    def _negated(self, v: Val, x: str) -> str:
        """-x, where a compiler that saw a sign change would write another sum instead, whose zero has another sign."""
        return self.NEGATED.format(bits=64 if v.dtype == torch.float64 else 32, x=x)

    def literal(self, v: Val) -> str:
        """A number as the program has it."""
        return templates.c_literal(v.attr, v.dtype)

    def number(self, text: str, v: Val) -> str:
        """A size as a value."""
        return text if v.op == "const" else f"(({self.type_of(v)}){text})"

    def place(self, at: Expr) -> str:
        """An index as a value."""
        return self.index(at)

    def checked(self, v: Val, name: str) -> str:
        """A value that is used only where it holds what it is to."""
        return f"({self.holds(v)} ? {name} : {int(v.op == 'nonzero')})"

    def holds(self, v: Val) -> str:
        """The condition that a checked value is to meet."""
        name = self.val(v.args[0])
        return f"({name} != 0)" if v.op == "nonzero" else f"((uint64_t){name} < (uint64_t){self.size(v.attr)})"

    def failure(self, v: Val) -> str:
        """The statement that notes a checked value that fails."""
        fails = f"!{self.holds(v)}" if len(v.args) == 1 else f"({self.val(v.args[1])} && !{self.holds(v)})"
        return f"bad_ |= {fails} * {BAD_INDEX if v.op == 'bounded' else BAD_DIVISOR};"

    def _load(self, v: Val, args: list[str]) -> str:
        element = ROWS[v.dtype].reads.format(self.element(v))
        return f"{args[0]} ? {element} : 0" if args else element

    def element(self, v: Val) -> str:
        """The element of a buffer that is loaded."""
        return self.elements.get(v.id) or f"{self.pointer(v.attr)}[{self.index(v.at)}]"  # type: ignore[arg-type]

    def _bitcast(self, v: Val, arg: str) -> str:
        return ROWS[v.dtype].reads.format(self._cast(v, arg))

    def _cast(self, v: Val, arg: str) -> str:
        src, dst = v.args[0].dtype, v.dtype
        stored = self.bits.get(v.args[0].id) or self.stored(arg, src)
        return f"(union {{{storage_type(src)} a; {storage_type(dst)} b;}}){{.a = {stored}}}.b"

    def moved(self, v: Val) -> str | None:
        """The expression of the bits of a half that was not computed but moved, of operands that can be had."""
        if v.dtype not in HALVES:
            return None
        if v.op == "load":
            element = self.element(v)
            return f"{self.val(v.args[0])} ? {element} : 0" if v.args else element
        if v.op == "bitcast":
            return self._cast(v, self.val(v.args[0]))
        if v.op == "const" and v.attr == v.attr:
            return str(int(torch.tensor(v.attr, dtype=v.dtype).view(torch.int16)) & 0xFFFF)
        if v.op == "where" and all(a.id in self.bits for a in v.args[1:]):
            chosen = [self.val(v.args[0]), *(self.bits[a.id] for a in v.args[1:])]
            return templates.c_expr(TABLE["where"], chosen, torch.int16, branchless=self.branchless)
        return None

    def stored(self, name: str, dtype: torch.dtype) -> str:
        """A value as it goes to memory."""
        return ROWS[dtype].writes.format(name)

    def store(self, s: Store, rounds: bool = False) -> str:
        """The statement of a store; ``rounds``: what a value was converted from can be had, and is rounded once."""
        target = f"{self.pointer(s.buffer)}[{self.index(s.at)}]"
        name = self.val(s.value)
        dtype = s.value.dtype
        if s.mode == "set":
            if s.value.id in self.bits:
                return f"{target} = {self.bits[s.value.id]};"
            if rounds and s.value.op == "convert" and dtype in HALVES and s.value.args[0].dtype == torch.float32:
                name = self.val(s.value.args[0])
            if id(s) in self.made:
                self.filled.add(id(s))
                return f"{self.made[id(s)]} = {name};"
            return f"{target} = {self.stored(name, dtype)};"
        old = ROWS[dtype].reads.format(target)
        row = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}[s.mode]
        if dtype == torch.bool:
            row = {"add": "logical_or", "mul": "logical_and", "max": "logical_or", "min": "logical_and"}[s.mode]
        ctype = self.type_of(s.value)
        combined = templates.c_expr(TABLE[row], ["q_old", name], dtype)
        return f"{{ const {ctype} q_old = {old}; {target} = {self.stored(combined, dtype)}; }}"


def _negated_sum(v: Val) -> int | None:
    """Which operand, a sum that takes a product unrounded or a choice of such, a value is the negative of."""
    if not v.dtype.is_floating_point:
        return None
    for k, arg in enumerate(v.args[: 1 if v.op == "div" else 2]):
        other = v.args[1 - k] if v.op != "neg" else None
        if (other is None or (other.op == "const" and other.attr == -1)) and _may_be_contracted(arg):
            return k
    return None


def _may_be_contracted(v: Val) -> bool:
    """Is it a sum that takes a product unrounded, or a choice of such? A compiler moves a change of sign into these."""
    seen, stack = set(), [v]
    while stack:
        v = stack.pop()
        if v.op == CONTRACTED:
            return True
        if v.id not in seen:
            seen.add(v.id)
            stack += v.args[1:] if v.op == "where" else v.args if v.op == "convert" else ()
    return False


def _is_plain(number: float, divides: bool) -> bool:
    """Whether a number stands in the text: a special value, a power of two that something is divided by, of which a
    compiler makes a product, or a small multiple of an eighth. Others are often counts of elements, or made of them, in
    which kernels differ that are equal otherwise."""
    if not math.isfinite(number) or divides and abs(math.frexp(number)[0]) == 0.5:
        return True
    return abs(number) <= LITERAL and (8 * number).is_integer()


def _is_place(v: Val) -> bool:
    """Whether a value is computed of the loops' variables alone."""
    if not v.args or v.op == "load":
        return v.op in ("test", "index", "size", "const")
    return all(map(_is_place, v.args))


_HALF_HELPERS = """\
static inline float qi_from_bf16(uint16_t x) {
    return (union { uint32_t i; float f; }){ .i = (uint32_t)x << 16 }.f;
}
static inline uint16_t qi_to_bf16(float x) { /* to nearest, ties to even; NaN stays NaN */
    const uint32_t u = (union { float f; uint32_t i; }){ .f = x }.i;
    const uint16_t r = (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    return x != x ? (uint16_t)0x7fc0 : r;
}
"""


def _glibc() -> tuple[int, ...]:
    name, version = platform.libc_ver()
    return tuple(int(part) for part in version.split(".")[:2]) if name == "glibc" else (0, 0)


#: The exponential of float32 and what is made of it, as arithmetic alone, which comes to the same bits in vector lanes
#: and one by one. In double, with a polynomial that is right to 1e-10, and so rounded as well as libm's or better.
_ONE_BY_ONE = """
static inline double qo_exp(double x) {
    x = x < -110 ? -110 : x > 110 ? 110 : x;
    const double shifted = x * 0x1.71547652b82fep0 + 0x1.8p52, k = shifted - 0x1.8p52;
    const double r = (x - k * 0x1.62e42fefa0000p-1) - k * 0x1.cf79abc9e3b3ap-40;
    double p = 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    uint64_t n, bits;
    memcpy(&n, &shifted, 8);
    memcpy(&bits, &p, 8);
    bits += n << 52;  /* the low bits of `shifted` are the power of two */
    memcpy(&p, &bits, 8);
    return p;
}
static inline float qo_expf(float x) { return x != x ? x : (float)qo_exp(x); }
static inline float qo_tanhf(float x) {
    const double a = x < 0 ? -(double)x : (double)x, small = a - a * a * a / 3, large = 1 - 2 / (qo_exp(2 * a) + 1);
    const float y = (float)(a < 1e-4 ? small : large);
    return x != x ? x : copysignf(y, x);
}
#define expf qo_expf
#define tanhf qo_tanhf
""".strip()


@functools.lru_cache(maxsize=256)
def prelude(text: str, simd: bool = True) -> str:
    """The includes and helpers that C text needs. libm calls vectorise where glibc has all vector versions (2.35), and
    with ``simd``: those round otherwise than the scalar ones that a loop's last elements are computed by."""
    own = "" if simd or not re.search(r"exp|tanh|q_", text) else _ONE_BY_ONE
    head = templates.c_prelude(text, simd=simd and _glibc() >= (2, 35), own=own)
    return head + (_HALF_HELPERS if "qi_" in text else "")
