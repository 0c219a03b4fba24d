"""C expressions for SSA values, indices and stores, with the parameters that they turn out to need."""

from __future__ import annotations

import platform
from collections.abc import Callable

import torch

from inductor_gen.kernel.body import Body, Store, Val
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import lift
from prims.dtypes import ROWS
from prims.ops import TABLE, templates
from prims.spec import expr as ex
from prims.spec.expr import Expr

__all__ = ["BAD_DIVISOR", "BAD_INDEX", "Names", "prelude", "storage_type"]

#: What a kernel returns that met an index out of range, or an integer division by zero (both: their sum).
BAD_INDEX, BAD_DIVISOR = 1, 2

#: Integers up to this stand in the text; larger ones are parameters, so that kernels serve several sizes.
LITERAL = 16


def storage_type(dtype: torch.dtype) -> str:
    """The C type of an element in memory."""
    return ROWS[dtype].in_c or ROWS[dtype].c


class Names:
    """Names of variables, values, pointers and sizes of one kernel, handed out in order of first use."""

    def __init__(self, body: Body, loops: list[Expr]) -> None:
        self.body = body
        self.space = dict(body.space)
        self.sizes: list[Expr] = []
        self._size_names: dict[Expr, str] = {}
        self.buffers: list[Node] = []
        self._pointers: dict[Node, str] = {}
        self._vars = {v: f"i{k}" for k, v in enumerate(loops)}
        self._vals: dict[int, str] = {}
        written: list[Node] = []
        for s in body.stores:
            if s.buffer not in written:
                written.append(s.buffer)
        self.outputs = len(written)
        for node in written:
            self._pointers[node] = f"out{len(self.buffers)}"
            self.buffers.append(node)

    # ---- names ------------------------------------------------------------------------------------------

    def var(self, v: Expr) -> str:
        """A loop variable."""
        return self._vars[v]

    def val(self, v: Val) -> str:
        """An SSA value."""
        return self._vals.setdefault(v.id, f"v{len(self._vals)}")

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
        found = self.body.atoms.get(atom)
        if found is not None:
            return self.val(found)
        if atom.kind in ("floordiv", "mod"):
            return self._division(atom, self._operand)
        a, b = (self._operand(x) for x in atom.args[:2])
        match atom.kind:
            case "min":
                return f"(({a}) < ({b}) ? ({a}) : ({b}))"
            case "max":
                return f"(({a}) > ({b}) ? ({a}) : ({b}))"
        raise AssertionError(f"index atom {atom} of kind {atom.kind}")

    def _operand(self, e: Expr) -> str:
        return self.index(e) if self._is_loop(e) else self.size(e)

    def _division(self, atom: Expr, divisor: Callable[[Expr], str], operator: str = "/") -> str:
        """A quotient or remainder rounded down, by an operator that rounds towards zero."""
        moved = lift(atom.args[0], atom.args[1], self.space)
        a, b = self._operand(ex.add(atom.args[0], moved or ex.const(0))), divisor(atom.args[1])
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
        """The C expression of an SSA value over its operands' names."""
        args = [self.val(a) for a in v.args]
        match v.op:
            case "const":
                if v.dtype == torch.int64 and isinstance(v.attr, int) and abs(v.attr) > LITERAL:
                    # such as the place of a layer's random numbers: layers that differ in it alone share a kernel
                    return self.param(ex.const(v.attr))
                return templates.c_literal(v.attr, v.dtype)
            case "size":
                return f"(({self.type_of(v)}){self.size(v.attr)})"
            case "index":
                return self.index(v.at)  # type: ignore[arg-type]
            case "test":
                return f"(({self.index(v.at)}) >= 0)"  # type: ignore[arg-type]
            case "load":
                return self._load(v, args)
            case "convert":
                return templates.c_convert(args[0], v.args[0].dtype, v.dtype)
            case "rounded":
                return templates.c_convert(args[0], torch.float32, v.dtype)
            case "bitcast":
                return self._bitcast(v, args[0])
        if v.op in ("bounded", "nonzero"):
            return f"({self.holds(v)} ? {args[0]} : {int(v.op == 'nonzero')})"
        if v.op.startswith("random_"):
            return templates.c_random(TABLE[v.op], args[0], args[1], args[2], v.dtype)
        operand = v.args[1].dtype if v.op == "where" else v.args[0].dtype
        return templates.c_expr(TABLE[v.op], args, operand)

    def holds(self, v: Val) -> str:
        """The condition that a checked value is to meet."""
        name = self.val(v.args[0])
        return f"({name} != 0)" if v.op == "nonzero" else f"((uint64_t){name} < (uint64_t){self.size(v.attr)})"

    def failure(self, v: Val) -> str:
        """The statement that notes a checked value that fails."""
        fails = f"!{self.holds(v)}" if len(v.args) == 1 else f"({self.val(v.args[1])} && !{self.holds(v)})"
        return f"bad_ |= {fails} * {BAD_INDEX if v.op == 'bounded' else BAD_DIVISOR};"

    def _load(self, v: Val, args: list[str]) -> str:
        node: Node = v.attr
        element = f"{self.pointer(node)}[{self.index(v.at)}]"  # type: ignore[arg-type]
        element = ROWS[v.dtype].reads.format(element)
        return f"{args[0]} ? {element} : 0" if args else element

    def _bitcast(self, v: Val, arg: str) -> str:
        src, dst = v.args[0].dtype, v.dtype
        a, b = storage_type(src), storage_type(dst)
        bits = f"(union {{{a} a; {b} b;}}){{.a = {self.stored(arg, src)}}}.b"
        return ROWS[dst].reads.format(bits)

    def stored(self, name: str, dtype: torch.dtype) -> str:
        """A value as it goes to memory."""
        return ROWS[dtype].writes.format(name)

    def store(self, s: Store) -> str:
        """The statement of a store."""
        target = f"{self.pointer(s.buffer)}[{self.index(s.at)}]"
        name = self.val(s.value)
        dtype = s.value.dtype
        if s.mode == "set":
            return f"{target} = {self.stored(name, dtype)};"
        old = ROWS[dtype].reads.format(target)
        row = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}[s.mode]
        if dtype == torch.bool:
            row = {"add": "logical_or", "mul": "logical_and", "max": "logical_or", "min": "logical_and"}[s.mode]
        ctype = self.type_of(s.value)
        combined = templates.c_expr(TABLE[row], ["q_old", name], dtype)
        return f"{{ const {ctype} q_old = {old}; {target} = {self.stored(combined, dtype)}; }}"


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


def prelude(text: str) -> str:
    """The includes and helpers that C text needs. libm calls vectorise where glibc has all vector versions (2.35)."""
    head = templates.c_prelude(text, simd=_glibc() >= (2, 35))
    return head + (_HALF_HELPERS if "qi_" in text else "")
