"""C kernels.

A kernel is one function ``int k(void* const* p, const int64_t* n)``: pointers and sizes as parameters, so that
equal layers share one function whatever their sizes. It returns 0, or what was wrong with the program's data
(``unit.BAD_INDEX``, ``BAD_DIVISOR``): it touches no memory out of range, but what it wrote is worth nothing then. Its
shape::

    outer loops (parallel)                 for a lane in the reduction    for an outer lane: tiles of TILE columns
      values that need no inner loop       scalars                        arrays over the tile
      stage 0: inner loops                 simd reduction                 acc[lane] op= value
      values after the first reduction     ...
      stage 1: inner loops ...

Over a reduction of up to STRIP steps each vector lane goes by itself, unrolled: one loop with scalars, not several with
arrays (a batch norm over 4 elements takes 0.6 of the time).

Sums run in float over short stretches and are collected in double, so that long reductions stay as accurate as
eager's cascaded ones; under ``Options.batch_invariant`` each goes through its terms one by one, in double, whichever
loop is vectorised. Values that are expensive and needed in several stages go to a per-thread row buffer.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from inductor_gen.codegen.cexpr import Names
from inductor_gen.codegen.creduce import TILE, Stage
from inductor_gen.codegen.pieces import (
    Emit,
    Seam,
    draws,
    halves,
    in_pieces,
    in_rows,
    in_runs,
    in_stretches,
    masked,
    run_along,
    seams,
)
from inductor_gen.codegen.reductions import REDUCTIONS
from inductor_gen.codegen.renderer import KernelSource, describe
from inductor_gen.codegen.turned import LINE, across, allocate, bring, crowds, strips, turn, turned
from inductor_gen.device.record import Device
from inductor_gen.kernel.body import Body, Store, Val, linear, narrowed
from inductor_gen.kernel.contract import contracted
from inductor_gen.kernel.nest import STRIP, Nest
from inductor_gen.layout.record import Layout
from inductor_gen.loops.cost import op_cost
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import ONE, Hint
from inductor_gen.unit import BAD_INDEX
from prims.ops import templates
from prims.options import Options
from prims.spec.expr import Expr

__all__ = ["CRenderer"]

PATCH = 32  # elements along each side of a patch of a transposition
GRAIN = 16384  # elements' worth of work below which a thread team costs more than it gains
LIGHT = 8  # cost of arithmetic per element up to which loads by index decide the time
WIDEST = 32  # bytes of the vectors that compilers take at most, unasked, on many processors that have wider ones
CUT = 32  # steps of a loop from which on it is worth cutting
TOGETHER = 4  # rows that a scatter goes through at a time, to look at an index once for all of them

class _Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def open(self, head: str) -> None:
        self.line(head + " {" if head else "{")
        self.depth += 1

    def close(self, count: int = 1) -> None:
        for _ in range(count):
            self.depth -= 1
            self.line("}")


class CRenderer:
    """Renders loop nests as C for the threads that the options say (0: unknown, plan for several) of a device."""

    def __init__(self, hint: Hint, _: Mapping[Node, Layout], device: Device, options: Options, *_tiling: Any) -> None:
        self.hint = hint
        self.device = device
        self.kept_bytes = device.shared_memory // 4  # what is kept of a row stays there beside what is read and written
        self.lanes = min(device.vector_bytes, WIDEST) // 4
        self.converts_wide = device.vector_bytes > WIDEST  # AVX-512 makes floats of vectors of 64-bit integers
        self.threads = options.threads or 8
        self.contract = options.numerics == "fast"


        self.alone = bool(options.policies)  # a sum is one thread's: parts come to it in the order in which threads end
        self.in_order = options.batch_invariant

    def render(self, nest: Nest) -> tuple[KernelSource, ...]:
        """The C kernel of a nest."""
        return (_Kernel(nest, self).finish(),)

    def together(self, pieces: Sequence[Sequence[KernelSource]]) -> Sequence[KernelSource]:
        """As they are: a call costs little here, and each spreads over all threads."""
        return [k for piece in pieces for k in piece]


class _Kernel:
    def __init__(self, nest: Nest, renderer: CRenderer) -> None:
        self.nest = nest
        self.kept_bytes, self.device = renderer.kept_bytes, renderer.device
        self.lanes, self.converts_wide = renderer.lanes, renderer.converts_wide
        self.body: Body = contracted(nest.body) if renderer.contract else nest.body
        self.hint = renderer.hint
        self.threads = renderer.threads
        self.alone, self.in_order = renderer.alone, renderer.in_order
        self.w = _Writer()
        self.inner = frozenset(nest.inner)
        self.lane = nest.lane
        self.names = Names(self.body, [*nest.outer, *nest.inner])
        outer_lane = bool(nest.inner) and self.lane is not None and not nest.lane_is_inner
        #: Is the reduction so short that each vector lane goes through it by itself, unrolled?
        self.short = outer_lane and self._is_short()
        self.tiled = outer_lane and not self.short
        if self.tiled:
            self._depend_on_lane()
        #: Tests whose outcome is known where the text is now, by their numbers.
        self.held: Mapping[int, bool] = {}
        self.rows: dict[int, str] = {}
        self.arrays: set[int] = set()
        #: Values that were computed where the text is now, or around it, and so what they were computed from is there.
        self.fresh: set[int] = set()
        self.reduces = [v for v in self.body.vals if v.op in ("reduce", "scan")]
        #: Sums that double holds as exactly as anything needs them, in whatever order.
        self.exact = narrowed(self.body) if self.reduces and not self.in_order else set[int]()
        self.stages = self.body.passes() if self.inner else 0
        self.scatter = any(s.mode != "set" or self._indirect(s) for s in self.body.stores)
        self.split_inner = self._parallel_inside()
        #: The loop along which operands are contiguous that the lane of a reduction jumps through, and their loads.
        self.turned = self._turned()
        self.checks = [v for v in self.body.vals if v.op in ("bounded", "nonzero")]
        #: The clause of a loop that may note a failed check.
        self.noting = " reduction(|:bad_)" if self.checks else ""
        self.scalar = self._picks()
        self.names.branchless = not self.scalar and self._calls_by_vectors()

    def _is_short(self) -> bool:
        """Is the reduction as short as a strip, with nothing that goes through it in order?"""
        extents = [self.body.space[v] for v in self.nest.inner]
        if not all(e.is_const for e in extents) or math.prod(e.value for e in extents) > STRIP:
            return False
        if self.lane is None:
            return False
        if any(map(self.body.stores_inside, self.body.stores)) and not self._comes_apart(self.lane, self.inner):
            return False
        return not any(v.op == "scan" or v.op == "reduce" and REDUCTIONS[v.attr].place for v in self.body.vals)

    def _turned(self) -> tuple[Expr, list[Val]] | None:
        """What a reduction along lanes turns before it begins, some rows at a time: where these stay in the cache, and
        the lines that a row is in would not stay until the next row."""
        lane = self.lane
        if lane is None or self.nest.inner != [lane] or self.tiled or self.short or self.split_inner or self.scatter:
            return None
        u = across(self.body, lane, self.nest.outer)
        if u is None or min(self._extent([u]), self._extent([lane])) < PATCH:
            return None
        steps = self._extent([lane])
        loads = [v for v in turned(self.body, lane, u) if crowds(self.body, v, lane, steps, self.device, self.hint)]
        row = sum(some[0].dtype.itemsize for some in strips(loads).values()) * steps
        return (u, loads) if loads and row * self._rows_of(loads) <= 2 * self.kept_bytes else None

    def _rows_of(self, loads: Sequence[Val]) -> int:
        """How many rows are turned at a time: as many as a line of the cache holds elements."""
        return LINE // min(v.dtype.itemsize for v in loads)

    def _depend_on_lane(self) -> None:
        """Tiles hold a result of every reduction per lane, of one that is the same for all lanes too."""
        moved: set[int] = set()
        for v in self.body.vals:
            if v.op in ("reduce", "scan") or any(a.id in moved for a in self.body.inputs_of(v)):
                moved.add(v.id)
                v.deps |= {self.lane}  # type: ignore[arg-type]

    # ---- facts ------------------------------------------------------------------------------------------

    def _indirect(self, s: Store) -> bool:
        return any(a in self.body.atoms for a in s.at.symbols)

    def _picks(self) -> bool:
        """Does it do little but load by index along its lane? Gathering into vectors is slower than one by one."""
        if self.inner or self.scatter or not self.nest.outer:
            return False
        places = self._places([v.at for v in self.body.vals if v.op == "load" and v.at is not None])
        if not any(self.lane in v.deps for v in places):
            return False
        shared = self._shared(self.nest.outer[-2:-1], places)
        return sum(op_cost(v.op) for v in self.body.vals if not shared or shared[0] in v.deps) <= LIGHT

    def _calls_by_vectors(self) -> bool:
        """Does it call functions that have vector versions, and nothing that has none?"""
        names = {v.op for v in self.body.vals}
        calls = any(map(templates.calls_libm, names)) or any(v.dtype == torch.float16 for v in self.body.vals)
        return calls and not any(map(templates.stays_scalar, names))

    def _places(self, indices: list[Expr]) -> list[Val]:
        """The values that indices go through."""
        return [self.body.atoms[a] for at in indices for a in at.symbols if a in self.body.atoms]

    def _shared(self, rows: list[Expr], places: list[Val]) -> list[Expr]:
        """The loop over rows, if all of them are read or written at the same places."""
        return rows if rows and self._extent(rows) >= TOGETHER and not any(rows[0] in v.deps for v in places) else []

    def _extent(self, variables: list[Expr]) -> int:
        return math.prod(max(self.hint(self.body.space[v]), 1) for v in variables)

    def _parallel_inside(self) -> bool:
        """Is there too little outer work to share among threads, and enough inside?"""
        if not self.inner or self.alone and any(REDUCTIONS[v.attr].stretches(v.dtype) for v in self.reduces):
            return False
        if any(v.op == "scan" or REDUCTIONS[v.attr].place for v in self.reduces):
            return False
        outer = self._extent([v for v in self.nest.outer if not (self.tiled and v is self.lane)])
        if self.tiled:
            outer *= -(-self._extent([self.lane]) // TILE)  # type: ignore[list-item]
        return outer < self.threads and self._extent(self.nest.inner) >= 4096

    # ---- assembling -------------------------------------------------------------------------------------

    def finish(self) -> KernelSource:
        if self.scatter:
            self._scatter()
        elif self.inner:
            self._choose_rows()
            self._reduction()
        else:
            self._pointwise()
        lines = self.w.lines
        before = self._before()
        head = [*self.names.declarations(), *before]
        text = '__attribute__((optimize("no-tree-vectorize")))\n' if self.scalar else ""
        text += "int KERNEL(void* const* p_, const int64_t* n_) {\n" + "\n".join(["    " + h for h in head] + lines)
        verdict = "0" if not self.checks else f"{self._work()} > 0 ? bad_ : 0" if self.reduces else "bad_"
        text += f"\n    return {verdict};\n}}\n"
        name, comment, ops = describe(self.nest, text)
        return KernelSource(
            name=name, text=text, comment=comment, buffers=tuple(self.names.buffers), outputs=self.names.outputs,
            sizes=tuple(self.names.sizes), ops=ops, loops=max(self.stages, 1),
        )  # fmt: skip

    def _before(self) -> list[str]:
        """The statements before the loops: no index is right, and nothing can be read, where a dimension is empty.

        Checks may stand outside of loops that do not run; they mean nothing where none of the work is to be done.
        """
        if not self.checks:
            return []
        extents = dict.fromkeys(v.attr for v in self.checks if v.op == "bounded")
        empty = [f"{self.names.size(e)} == 0" for e in extents if e.kind != "const" or not e.args[0]]
        some = f"if (({' || '.join(empty)}) && {self._work()} > 0) return {BAD_INDEX};"
        none = [] if self.reduces else [f"if ({self._work()} == 0) return 0;"]
        return ["int bad_ = 0;", *none, *([some] if empty else [])]

    def _work(self) -> str:
        """A C expression for the number of elements visited."""
        factors = [self.names.extent(v) for v in (*self.nest.outer, *self.nest.inner)]
        return " * ".join(factors) or "1"

    def _team(self, collapse: int, extra: str = "", simd: bool = False) -> str:
        """The directive of loops that threads share; ``simd``: whose steps are vector lanes too."""
        cost = sum(op_cost(v.op) for v in self.body.vals)
        grain = max(GRAIN * 4 // max(cost, 4), 512)
        parts = ["#pragma omp parallel for simd" if simd else "#pragma omp parallel for"]
        if collapse > 1:
            parts.append(f"collapse({collapse})")
        parts.append("schedule(static)")
        if extra or self.noting:
            parts.append((extra + self.noting).strip())
        parts.append(f"if (parallel: {self._work()} > {grain})")  # without the word, one thread would use no lanes
        return " ".join(parts)

    def loop(self, v: Expr, start: str = "0", stop: str | None = None) -> None:
        """A loop, or a stretch of it."""
        name = self.names.var(v)
        self.w.open(f"for (int64_t {name} = {start}; {name} < {stop or self.names.extent(v)}; {name}++)")

    def _blocks(self, v: Expr, size: int) -> None:
        """A loop over stretches of a loop; ``_within`` goes through one of them, and so does ``_together``."""
        name, extent = self.names.var(v), self.names.extent(v)
        self.w.open(f"for (int64_t {name}b = 0; {name}b < {extent}; {name}b += {size})")

    def _end(self, v: Expr, size: int) -> None:
        name, extent = self.names.var(v), self.names.extent(v)
        self.w.line(f"const int64_t {name}e = {extent} - {name}b < {size} ? {extent} : {name}b + {size};")

    def _within(self, v: Expr) -> None:
        self.loop(v, f"{self.names.var(v)}b", f"{self.names.var(v)}e")

    def _together(self, v: Expr) -> None:
        name = self.names.var(v)
        self.w.line(f"#pragma GCC unroll {TOGETHER}")
        self.loop(v, f"{name}b", f"{name}b + {TOGETHER}")
        self.w.open(f"if ({name} < {self.names.extent(v)})")

    def _around(self, loops: list[Expr], shared: int, done: set[int], rows: Sequence[Expr] = ()) -> None:
        """Loops, of which threads share so many, and in each what depends on no others. Over ``rows`` they go by
        stretches, through which others go."""
        self._hoist(done, [])
        for depth, v in enumerate(loops):
            if depth == 0 and shared:
                self._share(shared)
            if v in rows:
                self._blocks(v, TOGETHER)
            else:
                self.loop(v)
            if depth + 1 >= shared:
                self._hoist(done, [u for u in loops[: depth + 1] if u not in rows])

    def _rest(self, done: set[int]) -> None:
        """What is not done yet, and the stores."""
        for v in self.body.vals:
            if v.id not in done:
                self.emit(v)
        for s in self.body.stores:
            self.store(s)

    def _collapsed(self, loops: list[Expr]) -> int:
        """How many of the outermost loops to share: as few as give every thread several turns."""
        have = 1
        for count, v in enumerate(loops, 1):
            have *= max(self.hint(self.body.space[v]), 1)
            if have >= 8 * self.threads:
                return count
        return len(loops)

    def simd(self) -> str:
        """The directive of a loop over vector lanes."""
        return f"#pragma omp simd{self.noting}"

    def emit(self, v: Val) -> None:
        if v.id in self.held:
            self.known(v, self.held[v.id])
            return
        self.fresh.add(v.id)
        if v.op in ("bounded", "nonzero"):
            self.w.line(self.names.failure(v))
        bits = self.names.moved(v)
        self.names.bits.pop(v.id, None)
        if bits is not None:  # a load of its own: a compiler makes no vectors of a conversion under a condition
            self.names.bits[v.id] = f"{self.names.val(v)}b"
            self.w.line(f"const uint16_t {self.names.val(v)}b = {bits};")
        self.w.line(f"const {self.names.type_of(v)} {self.names.val(v)} = {self.names.expression(v)};")

    def lost(self, v: Val) -> None:
        """A value that is read back from where it was kept: what it was made from cannot be had."""
        self.fresh.discard(v.id)
        self.names.bits.pop(v.id, None)

    def known(self, v: Val, holds: bool) -> None:
        """A test whose outcome is known where it stands."""
        self.w.line(f"const int {self.names.val(v)} = {int(holds)};")

    def cut(self, vals: Sequence[Val], loop: Expr, start: str, stop: str, emit: Emit) -> None:
        """A loop, by ``emit``, over a range, or over the pieces of it in which tests among its values do not change, or
        over stretches for which random numbers are made before."""
        long = self._extent([loop]) >= CUT
        found = seams(self.body, vals, loop) if long else []
        places = [v.at for v in vals if v.at is not None] + [s.at for s in self.body.stores]
        run = run_along(self.body, places, loop, self.hint) if long and not draws(self.body, vals, loop) else None
        if run is None:
            stretched = self._stretched(vals, loop, emit) if long else None
            in_pieces(self, found, start, stop, stretched or emit)
        else:
            in_runs(self, run, loop, lambda first, last: in_pieces(self, found, first, last, emit))(start, stop)

    def _stretched(self, vals: Sequence[Val], loop: Expr, emit: Emit) -> Emit | None:
        """The loop over stretches of another for which something is made at once, if there is anything."""
        if drawn := draws(self.body, vals, loop):
            return in_stretches(self, drawn, loop, emit)
        found = halves(self.body, vals, loop)
        return in_rows(self, found, loop, emit) if found[0] or found[1] else None

    def store(self, s: Store) -> None:
        self.w.line(self.names.store(s, rounds=s.value.id in self.fresh))

    # ---- pointwise --------------------------------------------------------------------------------------

    def _pointwise(self) -> None:
        outer, done = self.nest.outer, set[int]()
        if not outer:
            self._rest(done)
            return
        around, lane = outer[:-1], outer[-1]
        across = self._across(around, lane)
        if across is not None:
            self._blocked_pointwise([v for v in around if v is not across], across, lane)
            return
        strip = self._strip(around, lane)
        if strip is not None:
            around = [v for v in around if v is not strip]
        rows = self._shared(around[-1:], self._places(self.body.indices())) if self.scalar else []
        few = self._extent(around) < 2 * self.threads and self._extent([lane]) > 2 * self._extent(around)
        inside = few and not rows
        self._around(around, 0 if inside else self._collapsed(around), done, rows)
        # The compiler knows what fills memory fastest.
        one_by_one = self.scalar or all(v.op == "const" for v in self.body.vals)
        left = [v for v in self.body.vals if v.id not in done]
        if inside and strip is None and self._stretched(left, lane, lambda *_: None):
            self.w.line(self._team(1))
            self._lanes(lane, done, one_by_one, whole=True)
            self.w.close(len(around))
            return
        directive = "" if one_by_one else self.simd()
        if inside:
            directive = self._team(1, simd=not one_by_one)
        if strip is not None:
            self._strips(strip, lane, directive, done)
            self.w.close(len(around))
            return
        if not inside and not rows:
            self._lanes(lane, done, one_by_one)
            self.w.close(len(around))
            return
        if directive:
            self.w.line(directive)
        self.loop(lane)
        if rows:
            self._hoist(done, [v for v in outer if v not in rows])
            self._together(rows[0])
        self._rest(done)
        self.w.close(len(outer) + 2 * len(rows))

    def _strips(self, strip: Expr, lane: Expr, directive: str, done: set[int]) -> None:
        """The innermost two loops: lanes, each with its steps of a strip, in pieces in which its conditions hold."""
        left = [v for v in self.body.vals if v.id not in done]
        found = self._conditions(lane, {strip})

        def emit(start: str, stop: str) -> None:
            if directive:
                self.w.line(directive)
            self.loop(lane, start, stop)
            for v in left:
                if strip not in v.deps:
                    self.emit(v)
            self.w.line(f"#pragma GCC unroll {STRIP}")
            self.loop(strip)
            for v in left:
                if strip in v.deps:
                    self.emit(v)
            for s in self.body.stores:
                self.store(s)
            self.w.close(2)

        in_pieces(self, found, "0", self.names.extent(lane), emit)

    def _lanes(self, lane: Expr, done: set[int], one_by_one: bool, whole: bool = False) -> None:
        """The innermost loop, with what is not done yet; ``whole``: it is the only one, shared by stretches."""
        def emit(start: str, stop: str) -> None:
            if not one_by_one:
                self.w.line(self.simd())
            self.loop(lane, start, stop)
            for v in left:
                self.emit(v)
            for s in self.body.stores:
                self.store(s)
            self.w.close()

        left = [v for v in self.body.vals if v.id not in done]
        if whole:
            stretched = self._stretched(left, lane, emit)
            assert stretched is not None
            stretched("0", self.names.extent(lane))
            return
        inside = [] if one_by_one else self._inside(left, done)
        if not inside:
            self.cut(left, lane, "0", self.names.extent(lane), emit)
            return
        self.w.open("if (" + " & ".join(f"({self.names.val(v)} != 0)" for v in inside if v.op == "test") + ")")
        for v in inside:
            self.known(v, True)
        self.cut(left, lane, "0", self.names.extent(lane), emit)
        self.w.close()
        self.w.open("else")
        emit("0", self.names.extent(lane))
        self.w.close()

    def _inside(self, left: Sequence[Val], done: Collection[int]) -> list[Val]:
        """The conditions of loads that were computed before a loop over lanes, and the tests that they are made of: all
        of them hold but at a border, and of loads under conditions a compiler makes slow vectors, or none."""
        found: dict[int, Val] = {}
        seen: set[int] = set()
        stack = [v.args[0] for v in left if v.op == "load" and v.args]
        while stack:
            v = stack.pop()
            if v.id not in seen and v.op in ("test", "logical_and"):
                seen.add(v.id)
                stack += v.args
                if v.id in done:
                    found[v.id] = v
        return [found[k] for k in sorted(found)]

    def _strip(self, around: list[Expr], lane: Expr) -> Expr | None:
        """A short loop that walks side by side what the lane jumps over: every other element, pairs, small blocks."""
        if self.scalar:
            return None
        for u in around:
            extent = self.body.space[u]
            if extent.is_const and 1 < extent.value <= STRIP:
                steps = [(linear(self.body, at, u), linear(self.body, at, lane)) for at in self.body.indices()]
                if any(along is ONE and across is extent for along, across in steps):
                    return u if self._comes_apart(lane, {u}) else None
        return None

    def _comes_apart(self, lane: Expr, steps: Collection[Expr]) -> bool:
        """Can a loop over lanes, each with unrolled steps, be cut into pieces in which the conditions of loads hold?"""
        held = {v.id for _, tests in self._conditions(lane, steps) for v, _ in tests}
        return not masked(self.body, lane, held)

    def _conditions(self, lane: Expr, steps: Collection[Expr]) -> list[Seam]:
        """Where along a lane the conditions of loads change, but for those that change within its steps."""
        if not masked(self.body, lane):
            return []
        return seams(self.body, [v for v in self.body.vals if v.deps.isdisjoint(steps)], lane)

    def _across(self, around: list[Expr], lane: Expr) -> Expr | None:
        """A loop along which some buffer is contiguous while the lane jumps through it: a transposition."""
        large = [u for u in around if min(self._extent([u]), self._extent([lane])) >= PATCH]
        return across(self.body, lane, large)

    def _blocked_pointwise(self, around: list[Expr], u: Expr, lane: Expr) -> None:
        """Square patches, so that the cache lines of a strided buffer are used up while they are there. Where they
        would not stay, each patch is copied first."""
        done: set[int] = set()
        self._hoist(done, [])
        self.w.line(self._team(len(around) + 2))
        for v in around:
            self.loop(v)
        self._blocks(u, PATCH)
        self._blocks(lane, PATCH)
        self._hoist(done, around)
        self._end(u, PATCH)
        self._end(lane, PATCH)
        loads = [v for v in turned(self.body, lane, u) if crowds(self.body, v, lane, PATCH, self.device, self.hint)]
        bring(self, loads, u, lane, PATCH)
        self._within(u)
        self._hoist(done, [*around, u])
        self.w.line(self.simd())
        self._within(lane)
        self._rest(done)
        self.w.close(len(around) + 4)

    def _hoist(self, done: set[int], bound: list[Expr]) -> None:
        """Emit what depends on the variables bound so far only."""
        have = frozenset(bound)
        for v in self.body.vals:
            if v.id not in done and v.deps <= have and v.stage == 0 and v.op not in ("reduce", "scan"):
                if self.tiled or not self.body.is_inner(v):
                    self.emit(v)
                    done.add(v.id)

    # ---- scatter ----------------------------------------------------------------------------------------

    def _scatter(self) -> None:
        """Serial over the variables that collide, parallel over those that address distinct elements. Of these the one
        along which the buffer is contiguous goes innermost; without one, several rows go together."""
        store = self.body.stores[0]
        if self.checks and store.buffer.kind == "input":
            self._check_first()
        strides = {v: linear(self.body, store.at, v) for v in self.nest.outer if v in store.at.symbols}
        free = [v for v, stride in strides.items() if stride is not None]
        serial = [v for v in self.nest.outer if v not in free]
        lane = [v for v in free if strides[v] is ONE]
        around = [v for v in free if v not in lane]
        rows = self._shared(around[-1:], self._places([store.at])) if serial and not lane else []
        loops, done = [*around, *serial, *lane], set[int]()
        self._around(loops, min(len(around), 1), done, rows)
        if rows:
            self._together(rows[0])
        self._hoist(done, loops)
        self.store(store)
        self.w.close(len(loops) + 2 * len(rows))

    def _check_first(self) -> None:
        """Look at every index before the first element of an input is written, as eager does."""
        vals = self.body.cone(self.checks)
        loops = [x for x in self.nest.outer if any(x in v.deps for v in vals)]
        self.w.open("")
        for variable in loops:
            self.loop(variable)
        for v in vals:
            self.emit(v)
        self.w.close(len(loops) + 1)
        self.w.line("if (bad_) return bad_;")

    # ---- reductions -------------------------------------------------------------------------------------

    def _choose_rows(self) -> None:
        """Find expensive values that later stages need again, and give them row buffers."""
        if self.tiled or self.short or self.split_inner:
            return
        for stage in range(1, self.stages):
            for v in self.body.along(stage, self.rows):
                if v.stage < stage and (op_cost(v.op) >= 8 or v.op == "scan") and v.id not in self.rows:
                    if v.op == "scan" or self._extent(self.nest.inner) * 8 * (len(self.rows) + 1) <= self.kept_bytes:
                        self.rows[v.id] = f"row{len(self.rows)}"

    def _turned_reduction(self, u: Expr, loads: list[Val]) -> None:
        """Stretches of a loop along which operands are contiguous; a thread turns the rows of each before it begins."""
        around, done = [v for v in self.nest.outer if v is not u], set[int]()
        rows = self._rows_of(loads)
        self._hoist(done, [])
        self.w.line(f"#pragma omp parallel if ({self._work()} > {GRAIN}){self.noting}")
        self.w.open("")
        self._allocate_rows()
        allocate(self, loads, self.lane, rows)  # type: ignore[arg-type]
        self.w.line("#pragma omp for" + (f" collapse({len(around) + 1})" if around else "") + " schedule(static)")
        for v in around:
            self.loop(v)
        self._blocks(u, rows)
        self._end(u, rows)
        self._hoist(done, around)
        turn(self, loads, u, self.lane)  # type: ignore[arg-type]
        self._within(u)
        self._hoist(done, self.nest.outer)
        self._sections(done)
        self.w.close(len(around) + 2)
        for name in (*self.rows.values(), *strips(loads)):
            self.w.line(f"free({name});")
        self.w.close()

    def _reduction(self) -> None:
        if self.turned is not None:
            self._turned_reduction(*self.turned)
            return
        tiles = self.tiled or self.short
        outer = [v for v in self.nest.outer if not (tiles and v is self.lane)]
        done: set[int] = set()
        self._hoist(done, [])
        shared = 0 if self.split_inner else self._collapsed(outer)
        if tiles and not self.split_inner and self._extent(outer) < 8 * self.threads:
            shared = len(outer) + 1
        if self.rows:
            self.w.line(f"#pragma omp parallel if ({self._work()} > {GRAIN}){self.noting}")
            self.w.open("")
            self._allocate_rows()
        self._around(outer, shared, done)
        if tiles:
            if not outer and shared:
                self._share(1)
            extent = self.names.extent(self.lane)  # type: ignore[arg-type]
            self.w.open(f"for (int64_t t_ = 0; t_ < {extent}; t_ += {TILE})")
            self.w.line(f"const int64_t m_ = {extent} - t_ < {TILE} ? {extent} - t_ : {TILE};")
            self._hoist(done, outer)
        if self.short:
            self._short_sections(done)
        else:
            self._sections(done)
        self.w.close(len(outer) + tiles)
        if self.rows:
            for name in self.rows.values():
                self.w.line(f"free({name});")
            self.w.close()

    def _short_sections(self, done: set[int]) -> None:
        """The lanes of a tile, each with its short reductions, in pieces in which the conditions of loads hold."""
        lane: Expr = self.lane  # type: ignore[assignment]
        found = self._conditions(lane, self.inner)

        def emit(start: str, stop: str) -> None:
            self.w.line(self.simd())
            self.loop(lane, start, stop)
            self._sections(set(done))
            self.w.close()

        in_pieces(self, found, "t_", "t_ + m_", emit)

    def _share(self, collapse: int) -> None:
        if self.rows:
            self.w.line("#pragma omp for" + (f" collapse({collapse})" if collapse > 1 else "") + " schedule(static)")
        else:
            self.w.line(self._team(collapse))

    def _allocate_rows(self) -> None:
        extents = " * ".join(self.names.extent(v) for v in self.nest.inner)
        by_id = {v.id: v for v in self.body.vals}
        for i, name in self.rows.items():
            ctype = self.names.type_of(by_id[i])
            self.w.line(f"{ctype}* const {name} = ({ctype}*)malloc(sizeof({ctype}) * ({extents}) + 64);")

    def _sections(self, done: set[int]) -> None:
        self._choose_arrays(done)
        results: list[tuple[Val, str, str]] = []
        for stage in range(self.stages + 1):
            self._outer_section(stage, done, results)
            if stage < self.stages:
                results = Stage(self, stage).emit()

    def _choose_arrays(self, done: set[int]) -> None:
        """With an outer lane: which outer values must outlive their loop over the tile."""
        if not self.tiled:
            return
        body = self.body
        passes = [v for stage in range(self.stages) for v in body.along(stage, self.rows)]
        needed = [a for v in passes for a in body.inputs_of(v) if a.id not in done]
        needed += [v.args[0] for v in self.reduces if v.op == "reduce"]
        needed += [s.value for s in body.stores if body.stores_inside(s)]
        needed += [a for s in body.stores for a in body.of_store(s)[1:]]
        outside = [(v, a) for v in body.vals if not body.is_inner(v) for a in body.inputs_of(v)]
        needed += [a for v, a in outside if a.stage != v.stage]
        of_tile = lambda a: not body.is_inner(a) and self.lane in a.deps
        self.arrays |= {a.id for a in needed if of_tile(a) and a.op != "load"}
        again = body.cone(needed, of_tile, lambda a: a.id not in self.arrays)  # loads, and the results in their indices
        self.arrays |= {a.id for a in again if a.op == "reduce"}

    def _outer_section(self, stage: int, done: set[int], results: Sequence[tuple[Val, str, str]]) -> None:
        """What is computed between the loops of two stages, from the earlier one's results (``Stage.results``)."""
        vals = [v for v in self.body.vals if not self.body.is_inner(v) and v.stage == stage and v.op != "reduce"]
        vals = [v for v in vals if v.id not in done]
        stores = [s for s in self.body.stores if not self.body.stores_inside(s) and s.value.stage == stage]
        if not self.tiled:
            for r, _, value in results:
                self.w.line(f"const {self.names.type_of(r)} {self.names.val(r)} = {value};")
            for v in vals:
                self.emit(v)
                done.add(v.id)
            for s in stores:
                self.store(s)
            return
        for r, same, _ in results:
            if same and r.id in self.arrays:
                self.w.line(f"const {self.names.type_of(r)}* const {self.names.val(r)}a = {same};")
        made = {r.id for r, same, _ in results if not same}
        for v in [*(r for r, _, _ in results if r.id in made), *vals]:
            if self.lane not in v.deps:
                self.emit(v)
                done.add(v.id)
            elif v.id in self.arrays:
                made.add(v.id)
                self.w.line(f"{self.names.type_of(v)} {self.names.val(v)}a[{TILE}];")
        rest = [v for v in vals if self.lane in v.deps]
        # Of others nothing stays: what takes them makes them again.
        if stores or made & self.arrays or any(v.op in ("bounded", "nonzero") for v in rest):
            self._tile_section(rest, stores, results, made & self.arrays)

    def _tile_section(
        self, vals: list[Val], stores: list[Store], results: Sequence[tuple[Val, str, str]], kept: set[int]
    ) -> None:
        """The loop over a tile between two stages; of what it makes, arrays keep some."""
        self._lane_loop()
        for r, _, value in results:
            self.w.line(f"const {self.names.type_of(r)} {self.names.val(r)} = {value};")
            self.lost(r)
        self._reload([*(r for r, _, _ in results), *vals], stores, [])
        for v in vals:
            self.emit(v)
        for v in [*(r for r, _, _ in results), *vals]:
            if v.id in kept:
                self.w.line(f"{self.names.val(v)}a[l_] = {self.names.val(v)};")
        for s in stores:
            self.store(s)
        self.w.close()

    def _reload(self, vals: list[Val], stores: list[Store], also: list[Val]) -> None:
        """Bring outer values of other sections, those in ``also`` among them, into a loop over the tile."""
        body, have = self.body, {v.id for v in vals}
        roots = [*also, *(a for v in vals if v.op != "reduce" for a in body.inputs_of(v))]
        roots += [a for s in stores for a in body.of_store(s)]
        missing = lambda a: a.id not in have and not body.is_inner(a) and self.lane in a.deps
        for a in body.cone(roots, missing, lambda a: not self._kept(a)):
            name = self.names.val(a)
            if self._kept(a):
                self.w.line(f"const {self.names.type_of(a)} {name} = {name}a[l_];")
                self.lost(a)
            else:
                self.emit(a)

    def _kept(self, a: Val) -> bool:
        """Is an outer value in an array over the tile? Elements of buffers, and what leads to them, are read again."""
        return a.id in self.arrays

    def _lane_loop(self) -> None:
        self.w.line(self.simd())
        self.w.open("for (int64_t l_ = 0; l_ < m_; l_++)")
        self.w.line(f"const int64_t {self.names.var(self.lane)} = t_ + l_;")  # type: ignore[arg-type]

