"""The inner loops of a reduction kernel in C: one stage, its accumulators and its stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from inductor_gen.codegen.reductions import REDUCTIONS, neutral
from inductor_gen.kernel.body import Val, linear
from inductor_gen.loops.graph import is_whole_division
from inductor_gen.loops.index import ONE, ZERO
from prims.ops import TABLE, templates
from prims.spec import expr as ex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inductor_gen.codegen.c import _Kernel
    from prims.spec.expr import Expr

__all__ = ["TILE", "Stage"]

TILE = 256  # columns of a tile
CHAIN = 32  # additions in float, one after the other in a vector lane, before the sum goes on in double

#: Elements among which the best is found in vector lanes before its position is looked for.
NOTED = 512

#: From how many elements on that is faster than one by one, by a sweep over lengths from 8 to 500 and element types:
#: floats, whose comparisons ask for NaN, gain 1.5 to 9 times at all of them.
_LEAST_FLOATS, _LEAST_INTEGERS = 8, 32

#: Of what a compiler may make branches.
_CHOOSING = frozenset(("where", "maximum", "minimum", "fmax", "fmin"))

#: The extreme of two numbers, NaN if either is.
_OF_TWO = {"amax": "maximum", "amin": "minimum"}

#: Strides of loads that are vectors in memory, or one number.
_SIDE_BY_SIDE = (ZERO, ONE, ex.const(-1))


class Stage:
    """Emits one stage. Names: ``vKs`` collects over the whole reduction, ``vKc`` over a short stretch of it,
    ``vKn`` notes a NaN, ``vKb`` is the best value beside an arg-reduction's position ``vKs``.

    An arg-reduction along the lane goes by stretches: their values are kept in ``vKx`` and their best in ``vKm``, in
    vector lanes, and only a stretch that may hold a new best is gone through one by one."""

    def __init__(self, kernel: _Kernel, stage: int) -> None:
        self.k = kernel
        self.w = kernel.w
        self.stage = stage
        self.reduces = kernel.body.reduces(stage)
        self.vals = kernel.body.along(stage, kernel.rows)
        self.scans = [v for v in self.vals if v.op == "scan" and (v.stage == stage or v.id not in kernel.rows)]
        self.stores = kernel.body.inside(stage)
        self.tiled = kernel.tiled
        loops = list(kernel.nest.inner)
        self.loops = loops
        last = kernel._extent(loops[-1:])
        limit = CHAIN if self.tiled else CHAIN * kernel.lanes
        self.sums = [r for r in self.reduces if self._is_sum(r)]
        few = all(kernel.body.space[v].is_const for v in loops) and kernel._extent(loops) <= CHAIN
        # A loop with calls is vectorised where the compiler leaves no branch in it. Else a stretch is one chain.
        chooses = any(v.op in _CHOOSING for v in self.vals)
        calls = chooses and any(templates.calls_libm(v.op) or v.dtype == torch.float16 for v in self.vals)
        self.one_chain = calls or not (self.tiled or kernel.short) and any(self._is_scalar(v) for v in self.vals)
        self.blocked = kernel.split_inner and len(loops) == 1
        if self.sums and (last > limit or not kernel.body.space[loops[-1]].is_const):  # other calls' sizes are unknown
            self.blocked = True
        self.block = limit
        self.in_order = kernel.in_order and bool(self.sums)
        if self.in_order:
            self.blocked = False
        self.args = [r for r in self.reduces if REDUCTIONS[r.attr].place]
        ordered = bool(self.scans) or self.tiled or any(r.args[0].dtype == torch.bool for r in self.args)
        self.noted = bool(self.args) and not ordered and last >= max(map(_least_noted, self.args)) and not self.in_order
        if self.noted:
            self.blocked, self.block = True, NOTED
        self.two_level = (self.blocked or len(loops) > 1) and not few and not self.in_order and not kernel.short

    def _is_scalar(self, v: Val) -> bool:
        """Is the innermost loop not, or not surely, vectorised, by what computes a value or where it is?"""
        if not self.loops or self.loops[-1] not in v.deps:
            return False
        if v.op == "convert" and v.dtype.is_floating_point and v.args[0].dtype in (torch.int64, torch.uint64):
            return not self.k.converts_wide
        if is_whole_division(v.op, v.dtype):  # by a number of 32 bits, it is a product
            return v.args[1].op != "const" or v.dtype in (torch.int64, torch.uint64)
        if templates.stays_scalar(v.op):
            return True
        if v.op != "load" or v.at is None or v.id in self.k.names.elements:
            return False
        return linear(self.k.body, v.at, self.loops[-1]) not in _SIDE_BY_SIDE

    def _is_sum(self, r: Val) -> bool:
        """Is it collected over short stretches first, and over these in double?"""
        return REDUCTIONS[r.attr].stretches(r.dtype) and r.id not in self.k.exact

    # ---- names and types --------------------------------------------------------------------------------

    def name(self, r: Val) -> str:
        return self.k.names.val(r)

    def at(self, base: str) -> str:
        return f"{base}[l_]" if self.tiled else base

    def operand_type(self, r: Val) -> str:
        return self.k.names.type_of(r.args[0])

    def total_type(self, r: Val) -> str:
        double = self._is_sum(r) and (self.two_level or self.one_chain or r.op == "scan" or self.in_order)
        return "double" if double else self.k.names.type_of(r)

    def start(self, r: Val) -> str:
        """The literal that an accumulator begins with."""
        return templates.c_literal(neutral(r.attr, r.args[0].dtype), r.args[0].dtype)

    # ---- accumulators -----------------------------------------------------------------------------------

    def declare(self, accumulators: Sequence[tuple[str, str, str]]) -> None:
        """Accumulators by type, name and what they begin with."""
        if self.tiled:
            for ctype, name, _ in accumulators:
                self.w.line(f"{ctype} {name}[{TILE}];")
            count = str(TILE) if self.k.split_inner else "m_"
            self.for_each_lane([f"{name}[l_] = {value};" for _, name, value in accumulators], count)
            return
        for ctype, name, value in accumulators:
            self.w.line(f"{ctype} {name} = {value};")

    def for_each_lane(self, statements: Sequence[str], count: str = "m_") -> None:
        """Statements, for so many lanes of a tile in one loop: compilers make vectors of it once."""
        if self.tiled and statements:
            self.w.open(f"for (int64_t l_ = 0; l_ < {count}; l_++)")
        for statement in statements:
            self.w.line(statement)
        if self.tiled and statements:
            self.w.close()

    def begin(self) -> None:
        made, again = [], []
        for r in self.reduces:
            n = self.name(r)
            if REDUCTIONS[r.attr].place:
                made += [("int64_t", n + "s", "-1"), (self.operand_type(r), n + "b", "0")]
                continue
            made.append((self.total_type(r), n + "s", self.start(r)))
            if self._has_nan(r):
                made.append(("int", n + "n", "0"))
        for s in self.scans:
            if s.stage < self.stage:  # an earlier section ran it to its end
                again.append(f"{self.at(self.name(s) + 's')} = {self.start(s)};")
            else:
                made.append((self.total_type(s), self.name(s) + "s", self.start(s)))
        self.declare(made)
        self.for_each_lane(again)

    def _has_nan(self, r: Val) -> bool:
        """Is it noted apart whether there was a NaN?"""
        row = REDUCTIONS[r.attr]
        return row.notes_nan(r.args[0].dtype) and (row.place or not self._keeps_nan())

    def _keeps_nan(self) -> bool:
        """Does an extreme stay NaN once it is? Those of several lanes or threads are taken together by comparison."""
        return (self.tiled or self.k.short) and not self.k.split_inner

    def partial(self, r: Val) -> str:
        """The accumulator that the innermost loop updates."""
        return self.name(r) + ("c" if self._is_sum(r) and self.two_level else "s")

    def update(self, r: Val) -> None:
        row, x = REDUCTIONS[r.attr], self.k.names.val(r.args[0])
        if row.place and not self.noted:
            self._update_arg(r, x)
            return
        if row.place:
            self.w.line(f"{self.name(r)}x[{self.k.names.var(self.loops[-1])} - b_] = {x};")
        if self._has_nan(r):
            self.w.line(f"{self.at(self.name(r) + 'n')} |= ({x} != {x});")
        into = f"{self.name(r)}m" if row.place else self.at(self.partial(r))
        if row.notes_nan(r.args[0].dtype) and not self._has_nan(r):
            self.w.line(f"{into} = {templates.c_expr(TABLE[_OF_TWO[r.attr]], [x, into], r.args[0].dtype)};")
        else:
            self.w.line(row.c.format(into, x))

    def _begin_notes(self) -> None:
        for r in self.args if self.noted else ():
            n, ctype = self.name(r), self.operand_type(r)
            self.w.line(f"{ctype} {n}x[{NOTED}];")
            self.w.line(f"{ctype} {n}m = {self.start(r)};")
            self.w.line(f"int {n}n = 0;")

    def _end_notes(self) -> None:
        """Go through a stretch that holds a NaN, a better value, or an equal one whose position may come first."""
        name = self.k.names.var(self.loops[-1])
        for r in self.args if self.noted else ():
            n, position = self.name(r), r.args[1]
            rising = len(self.loops) == 1 and position.at is self.loops[-1]
            sign = REDUCTIONS[r.attr].better + ("" if rising else "=")
            better = f"{n}s < 0 || {n}m {sign} {n}b"
            if rising:
                self.w.open(f"if (!{n}n && ({better}))")
                # Compilers make no vectors of a search that ends early.
                self.w.line(f"int {n}f = {NOTED};")
                self.w.line(f"#pragma omp simd reduction(min:{n}f)")
                self.w.open("for (int j_ = 0; j_ < (int)(e_ - b_); j_++)")
                self.w.line(f"const int {n}j = {n}x[j_] == {n}m ? j_ : {NOTED};")
                self.w.line(f"{n}f = {n}j < {n}f ? {n}j : {n}f;")
                self.w.close()
                self.w.line(f"{n}s = b_ + {n}f;")
                self.w.line(f"{n}b = {n}m;")
                self.w.close()
            self.w.open(f"if ({n}n)" if rising else f"if ({n}n || {better})")
            self.k.loop(self.loops[-1], "b_", "e_")
            self.w.line(f"const {self.operand_type(r)} {n}y = {n}x[{name} - b_];")
            self.k.emit(position)
            self._update_arg(r, f"{n}y")
            self.w.close(2)

    def _update_arg(self, r: Val, x: str) -> None:
        best, at = self.at(self.name(r) + "b"), self.at(self.name(r) + "s")
        place = self.k.names.val(r.args[1])
        n = self.name(r)
        better = f"({x} {REDUCTIONS[r.attr].better} {best})"
        tie = f"(({x} == {best}) & ({place} < {at}))"
        if r.args[0].dtype.is_floating_point:
            nan = f"(({x} != {x}) & (({best} == {best}) | ({place} < {at})))"
            better = f"(({better} & ({best} == {best})) | {nan})"
        self.w.line(f"const int {n}t = ({at} < 0) | {better} | {tie};")
        self.w.line(f"{best} = {n}t ? {x} : {best};")
        self.w.line(f"{at} = {n}t ? {place} : {at};")

    def open_stretch(self) -> None:
        ctype = lambda r: "double" if self.one_chain else self.k.names.type_of(r)
        self.declare([(ctype(r), self.name(r) + "c", self.start(r)) for r in self.sums])

    def close_stretch(self) -> None:
        names = [(REDUCTIONS[r.attr], self.name(r)) for r in self.sums]
        self.for_each_lane([row.c.format(self.at(f"{n}s"), self.at(f"{n}c")) for row, n in names])

    def results(self) -> list[tuple[Val, str, str]]:
        """The reductions with the accumulators that have their results, and these results as expressions."""
        found = []
        for r in self.reduces:
            n, row = self.name(r), REDUCTIONS[r.attr]
            extreme = row.notes_nan(r.args[0].dtype) and not row.place
            zero = " + 0" if extreme and self.k.in_order else ""  # of 0 and -0, either may have come first
            value = f"({self.k.names.type_of(r)}){self.at(n + 's')}{zero}"
            if extreme and self._has_nan(r):
                value = f"{self.at(n + 'n')} ? ({self.k.names.type_of(r)})NAN : {self.at(n + 's')}{zero}"
            same = value == f"({self.total_type(r)}){self.at(n + 's')}"
            found.append((r, n + "s" if same else "", value))
        return found

    # ---- loops ------------------------------------------------------------------------------------------

    def clauses(self, names: str) -> list[str]:
        """OpenMP reduction clauses for the accumulators: ``names`` is "partial" (innermost) or "total"."""
        groups: dict[str, list[str]] = {}
        for r in self.reduces:
            n, place = self.name(r), REDUCTIONS[r.attr].place
            suffix = f"[:{TILE}]" if self.tiled else ""
            base = n + "m" if place else self.partial(r) if names == "partial" else n + "s"
            groups.setdefault(REDUCTIONS[r.attr].clause, []).append(base + suffix)
            if place or self._has_nan(r):
                groups.setdefault("|", []).append(n + "n" + suffix)
        return [f"reduction({op}:{','.join(items)})" for op, items in groups.items()]

    def emit(self) -> list[tuple[Val, str, str]]:
        """The stage's loops; what is left is to take the ``results``."""
        self.begin()
        self.done: set[int] = set()
        around, extent = self.loops[:-1], self.k.names.extent(self.loops[-1])
        if self.k.split_inner:
            self.w.line(self.k._team(1, " ".join(self.clauses("total"))))
        for depth, v in enumerate(around):
            self._unroll(v)
            self.k.loop(v)
            self.place(self.loops[: depth + 1])
        if self.blocked:
            self.w.open(f"for (int64_t b_ = 0; b_ < {extent}; b_ += {self.block})")
            self.w.line(f"const int64_t e_ = {extent} - b_ < {self.block} ? {extent} : b_ + {self.block};")
        if self.two_level:
            self.open_stretch()
        self.innermost(*("b_", "e_") if self.blocked else ("0", extent))
        if self.two_level:
            self.close_stretch()
        self.w.close(len(around) + self.blocked)
        return self.results()

    def place(self, bound: list) -> None:
        """Values that do not depend on loops further in."""
        have = frozenset(bound)
        for v in self.vals:
            ready = v.deps & self.k.inner <= have and (not self.tiled or self.k.lane not in v.deps)
            if v.id not in self.done and ready and v.op != "scan" and v.id not in self.k.rows:
                if all(not self.k.body.is_inner(a) or a.id in self.done for a in self.k.body.inputs_of(v)):
                    self.k.emit(v)
                    self.done.add(v.id)

    def innermost(self, start: str, stop: str) -> None:
        plain = not self.scans and (not self.args or self.noted) and not self.in_order
        if self.tiled:
            self.k.loop(self.loops[-1], start, stop)
            self.place(self.loops)
            self.k._lane_loop()
            extra = [r.args[0] for r in self.reduces if not self.k.body.is_inner(r.args[0])]
            self.k._reload([v for v in self.vals if v.id not in self.done], self.stores, extra)
            self.statements()
            self.w.close(2)
            return
        def emit(start: str, stop: str) -> None:
            if plain and not self.k.short:
                self.w.line(" ".join([self.k.simd(), *self.clauses("partial")]))
            self._unroll(self.loops[-1])
            self.k.loop(self.loops[-1], start, stop)
            self.statements()
            self.w.close()

        self._begin_notes()
        self.k.cut([v for v in self.vals if v.id not in self.done], self.loops[-1], start, stop, emit)
        self._end_notes()

    def _unroll(self, v: Expr) -> None:
        if self.k.short:
            self.w.line(f"#pragma GCC unroll {self.k.body.space[v].value}")

    def _row_position(self) -> str:
        position = ""
        for v in self.loops:
            name = self.k.names.var(v)
            position = name if not position else f"({position})*{self.k.names.extent(v)} + {name}"
        return position

    def statements(self) -> None:
        """The innermost loop's."""
        for v in self.vals:
            if v.id in self.done:
                continue
            row = self.k.rows.get(v.id)
            if row is not None and v.stage < self.stage:
                self.w.line(f"const {self.k.names.type_of(v)} {self.k.names.val(v)} = {row}[{self._row_position()}];")
                self.k.lost(v)
                continue
            if v.op == "scan":
                acc = self.at(self.name(v) + "s")
                self.w.line(REDUCTIONS[v.attr].c.format(acc, self.k.names.val(v.args[0])))
                ctype = self.k.names.type_of(v)
                self.w.line(f"const {ctype} {self.name(v)} = ({ctype}){acc};")
            else:
                self.k.emit(v)
            if row is not None:
                self.w.line(f"{row}[{self._row_position()}] = {self.k.names.val(v)};")
        for r in self.reduces:
            self.update(r)
        for s in self.stores:
            self.k.store(s)


def _least_noted(r: Val) -> int:
    """How many elements the search for an extreme's position is worth to be done in two steps for."""
    dtype = r.args[0].dtype
    if dtype.is_floating_point:
        return _LEAST_FLOATS
    return _LEAST_INTEGERS if dtype.itemsize >= 4 else 2 * _LEAST_INTEGERS
