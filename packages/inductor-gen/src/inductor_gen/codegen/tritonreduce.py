"""Triton kernels for reductions and scans: persistent, looped and split."""

from __future__ import annotations

import copy
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from inductor_gen.codegen.reductions import REDUCTIONS, neutral, partial_dtype
from inductor_gen.codegen.renderer import KernelSource
from inductor_gen.codegen.triton import (
    Block,
    Tiling,
    TritonRenderer,
    TritonSource,
    _Axis,
    _power,
    most_each,
)
from inductor_gen.device.record import Device
from inductor_gen.kernel.body import Body, Store, Val
from inductor_gen.kernel.moments import one_pass
from inductor_gen.kernel.nest import Nest, arrange
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import ONE, Hint, flatten
from prims.dtypes import HALVES, ROWS
from prims.ops import templates
from prims.spec import expr as ex
from prims.spec.expr import Expr

__all__ = ["reduction_kernels"]

_FULL = "[XBLOCK, RBLOCK]"
_NOWHERE = str(2**63 - 1)  # behind every place


#: Programs of a loop over columns that a multiprocessor has at once.
_PROGRAMS = 4


class Shape:
    """How a reduction is cut into blocks: ``x`` rows by ``r`` columns, whether ``r`` is the whole row, into how many
    parts rows are split, and the warps per program.

    A whole row is a block's where its values stay in registers: an eighth of a multiprocessor's, a quarter where they
    spare another pass over memory. Programs are made smaller, and rows split, until there are two programs or more for
    each multiprocessor, so that one computes while another waits for memory; of fewer rows than a quarter of the
    multiprocessors even those are split that a block could hold, from eight elements for each of a program's threads.
    Of many whole rows each warp has its own, with no wait for others: two rows of 1,024 elements in two warps (a layer
    norm of [24576, 512], backward, takes 41 us instead of 48 on an H200, one of [49152, 197] 24, not 30). Long kernels
    have as few elements for each thread as ``most_each`` says, in more warps and smaller blocks.

    ``registers`` of a thread that loops over columns are an equal share of a multiprocessor's: ptxas, which is not told
    how many there may be, aims at more programs, and has one load wait for the last one's sum (a sum over the columns
    of [12608, 3072] takes 41 us instead of 74, a batch norm's gradient of [100352, 256] 46 instead of 69 on an H200).
    0: as many as ptxas likes.

    ``in_order``: the columns alone decide, so that a row is added up in one way whatever rows are beside it.
    """

    def __init__(self, nest: Nest, hint: Hint, tiling: Tiling, device: Device, in_order: bool = False) -> None:
        if in_order:
            self._by_columns(nest, hint, device)
            return
        body = nest.body
        rows, columns = (max(hint(ex.product(body.space[v] for v in g)), 1) for g in (nest.outer, nest.inner))
        stages = body.passes()
        known = all(body.space[v].is_const for v in nest.inner)
        scans = any(v.op == "scan" for v in body.vals)
        width = _power(columns)
        self.split, self.registers = 1, 0
        enough = 2 * device.multiprocessors
        most = device.warp * most_each(body)  # elements of a warp
        if nest.lane_is_inner or not nest.outer or rows < 8:
            limit = device.registers // (4 if stages > 1 else 8)
            few = rows < device.multiprocessors // 4 and columns >= 8 * 16 * device.warp and not scans
            self.persistent = known and width <= min(limit, max(16 * most, 2048)) and not few
            self.r = width if self.persistent else min(width, 2048, 16 * most)
            self.x = max(1, min(_power(rows), 2048 // self.r))
            while self.x > 1 and (-(-rows // self.x) < enough or self.x * self.r > 16 * most):
                self.x //= 2
            self.warps = min(16, max(1 if self.persistent else 4, self.x * self.r // min(512, most)))
            team = max(1024 // self.r, 2)
            if self.persistent and 128 <= self.r <= 1024 and rows >= 2 * enough * team:
                self.x, self.warps = team, team * self.r // min(1024, most)  # each warp has rows of its own
        else:
            self.persistent = known and width <= 64
            self.x = max(16, min(_power(rows), 64))
            each, registers = _share(nest, device)
            tile = min(4 * max(device.warp, 32) * each, 16 * most)  # a CPU, which interprets, has no warps
            self.r = width if self.persistent else tile // self.x
            while self.x > 8 and self.persistent and (
                -(-rows // self.x) < device.multiprocessors or self.x * self.r > 16 * most
            ):
                self.x //= 2  # down to what memory hands over at once
            most = min(most, 512 if self.persistent else device.warp * each)
            self.warps = min(16, max(1, self.x * self.r // most))
            if not self.persistent and self.warps <= 4:
                self.registers = registers
        if not self.persistent:
            programs = -(-rows // self.x)
            if not scans and programs < enough and columns >= 4 * self.r:
                wanted = -(-_PROGRAMS * device.multiprocessors // programs)
                self.split = max(1, min(wanted, -(-columns // (2 * self.r)), 1024))
        self._tile(tiling)

    def _by_columns(self, nest: Nest, hint: Hint, device: Device) -> None:
        """A row for each program: a nest of one row, which has no loop over rows, is laid out as one of many."""
        space = nest.body.space
        width = _power(max(hint(ex.product(space[v] for v in nest.inner)), 1))
        self.split, self.registers = 1, 0
        self.persistent = all(space[v].is_const for v in nest.inner) and width <= device.registers // 8
        self.r = width if self.persistent else 2048
        self.x = 1
        self.warps = min(16, max(1, self.r // min(512, device.warp * most_each(nest.body))))

    def of_rows(self) -> Shape:
        """The shape of kernels that put the parts of rows together: some rows, all parts of them."""
        shape = copy.copy(self)
        shape.x = min(max(1024 // _power(self.split), 1), 16, self.x)
        return shape

    def _tile(self, tiling: Tiling) -> None:
        """Depart from these sizes: in the rows of a block that holds whole rows, else in its columns."""
        if self.persistent:
            self.x = tiling.sized(self.x, 1, max(16384 // self.r, 1))
        elif self.split == 1:  # the parts of split rows are whole blocks
            self.r = tiling.sized(self.r, 16, 8192)
        self.warps = tiling.teams(self.warps)


def _share(nest: Nest, device: Device) -> tuple[int, int]:
    """The elements of a tile that each thread of a loop over columns has, and its registers, 0 where they would not do.

    Programs of four warps, four of them on a multiprocessor, leave a thread 128 registers; three quarters of them hold
    what it reads and what it adds up for each element, the rest addresses. Of 24 settings, over sums, a layer norm's
    and a batch norm's gradients, variances and greatest elements of [2048, 50257] to [401408, 64] on an H200, each
    case's best is 5% faster in geometric mean.
    """
    body = nest.body
    space = frozenset((*nest.outer, *nest.inner))
    held = [v.dtype.itemsize for v in body.vals if v.op == "load" and v.deps >= space]
    held += [s.value.dtype.itemsize for s in body.stores if s.value.deps >= space]
    for v in body.vals:
        if v.op == "reduce":
            own = partial_dtype(v.args[0].dtype).itemsize
            held.append(own + 8 if REDUCTIONS[v.attr].place else 2 * own if v.attr == "deviations" else own)
    registers = device.registers // (_PROGRAMS * 4 * device.warp)
    most = 4 * registers * 3 // 4  # bytes
    each = next((each for each in (32, 16, 8) if each * sum(held) <= most), 0)
    return each or 8, registers if each else 0


class _Reduction(Block):
    def __init__(
        self, nest: Nest, renderer: TritonRenderer, shape: Shape, written: list[Node] | None = None,
        parts: Mapping[int, list[Node]] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(nest, renderer, written)
        self.shape = shape
        self.parts = parts or {}
        self.inner = frozenset(nest.inner)
        self.stages = self.body.passes()
        self.rows = self.extent(nest.outer)
        self.columns = self.extent(nest.inner)
        self.spread: set[int] = set()

    def scans(self, stage: int) -> list[Val]:
        return [v for v in self.body.along(stage) if v.op == "scan"]

    # ---- axes -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The rows of this program."""
        x = _Axis("x", list(self.nest.outer), self.shape.x, "[:, None]")
        r = _Axis("r", list(self.nest.inner), self.shape.r, "[None, :]")
        self.add_axis(x)
        self.add_axis(r)
        if self.nest.outer:
            self.line(f"x = ({self.program()} * XBLOCK + tl.arange(0, XBLOCK)){x.view}")
            self.bound(x, self.names.size(self.rows) if x.masked else "")
        else:
            x.masked = False

    def columns_at(self, start: str | None, stop: str | None = None) -> None:
        """The columns of a block that begins at ``start``; None: of the whole row."""
        r = self.axes[1]
        place = "tl.arange(0, RBLOCK)[None, :]"
        self.line(f"r = {place}" if start is None else f"r = {start} + {place}")
        self.group_start, self.grouped = start or "0", False
        if stop is not None:
            r.masked = True
        self.bound(r, stop or (self.names.size(self.columns) if r.masked else ""))

    # ---- values of rows that loops read -----------------------------------------------------------------

    def spread_out(self, *stages: int) -> None:
        """Let the values of rows be blocks, as soon as they are made, that a loop of these stages reads beside others
        made of them. Triton 3.6 would move what they are made of before a loop to the layout that is wanted in it, and
        take a value's own move, which is in the loop, for a part of that: it fails."""
        for stage in stages:
            read = {v.id: v for v in self.around(stage)}
            for v in read.values():
                others = self.body.cone(a for a in self.body.inputs_of(v) if not self.body.is_inner(a))
                self.spread |= {a.id for a in others if a.id in read and (a.stage or a.deps)}  # others are scalars
        self.spread -= self.names.passed

    def emit(self, v: Val) -> None:
        super().emit(v)
        self.lay_out(v)

    def lay_out(self, v: Val) -> None:
        """Make a value's block, if it has one."""
        if v.id in self.spread:
            n = self.names.val(v)
            self.line(f"{n}b = tl.broadcast_to({n}, {_FULL})")

    # ---- reductions -------------------------------------------------------------------------------------

    def operand(self, r: Val) -> str:
        """A reduction's operand as a whole block, neutral outside the row."""
        v = r.args[0]
        name = self.names.val(v)
        if ROWS[v.dtype].summed:
            name = f"{name}.to({ROWS[partial_dtype(v.dtype)].triton})"
        return self.inside(name, self.start(r.attr, v.dtype))

    def inside(self, name: str, other: str) -> str:
        """A value as a whole block, another one outside the row."""
        block = f"tl.broadcast_to({name}, {_FULL})"
        return f"tl.where(rm, {block}, {other})" if self.axes[1].masked else block

    def start(self, op: str, dtype: torch.dtype) -> str:
        """The neutral element."""
        return templates.triton_literal(neutral(op, dtype), partial_dtype(dtype))

    def partial(self, r: Val) -> list[tuple[str, torch.dtype, str]]:
        """The names of a reduction's value and of what else it needs (for a place the element, for deviations the mean
        and what was taken off first), with types and neutral elements."""
        n, dtype = self.names.val(r), r.args[0].dtype
        own = (partial_dtype(dtype), self.start(r.attr, dtype))
        if REDUCTIONS[r.attr].place:
            return [(n, torch.int64, _NOWHERE), (f"{n}o", *own)]
        return [(n + more, *own) for more in (("", "o", "k") if r.attr == "deviations" else ("",))]

    def block(self, r: Val) -> list[str]:
        """The blocks that become a reduction's value."""
        x = self.operand(r)
        return [self.inside(self.names.val(r.args[1]), _NOWHERE), x] if REDUCTIONS[r.attr].place else [x]

    def collapse(self, r: Val, blocks: Sequence[str]) -> None:
        """Reduce blocks, as many as there are partial results, to the reduction's value, in its own type."""
        n, row = self.names.val(r), REDUCTIONS[r.attr]
        if row.place:
            self.line(f"{n}o, {n} = tl.reduce(({blocks[1]}, {blocks[0]}), 1, qt_{row.name})")
            self.line(f"{n}o, {n} = {n}o[:, None], {n}[:, None]")
            return
        if r.attr == "deviations":
            self.merge(n, blocks)
            return
        self.line(f"{n} = {row.collapsed(blocks[0], r.args[0].dtype)}[:, None]")

    def settle(self, r: Val) -> None:
        """Bring a reduced value to its own type."""
        n = self.names.val(r)
        if r.dtype == torch.bool:
            self.line(f"{n} = {n} != 0")
        elif ROWS[r.dtype].summed:
            self.line(f"{n} = {n}.to({self.names.type_of(r)})")
        self.lay_out(r)

    def combine(self, r: Val) -> None:
        """Take a block into the accumulators ``vKa`` (of the other value: ``vKoa``)."""
        n, row, blocks = self.names.val(r), REDUCTIONS[r.attr], self.block(r)
        if row.place:
            self.line(f"{n}oa, {n}a = qt_{row.name}({n}oa, {n}a, {blocks[1]}, {blocks[0]})")
        elif r.attr == "deviations":
            self.deviate(n, blocks[0])
        else:
            self.line(f"{n}a = {row.triton.format(f'{n}a', blocks[0])}")

    def accumulators(self, stage: int) -> None:
        for r in self.body.reduces(stage):
            for name, dtype, start in self.partial(r)[:2]:
                self.line(f"{name}a = tl.full({_FULL}, {start}, {ROWS[dtype].triton})")
            if r.attr == "deviations":
                n, kind = self.names.val(r), self.names.type_of(r)
                self.line(f"{n}c = tl.full((), 0.0, {kind})")
                self.line(f"{n}k = tl.zeros([XBLOCK, 1], {kind})")
        for s in self.scans(stage):
            kind = ROWS[partial_dtype(s.args[0].dtype)].triton
            self.line(f"{self.names.val(s)}c = tl.full([XBLOCK, 1], {self.start(s.attr, s.dtype)}, {kind})")

    def scan(self, v: Val, carried: bool) -> None:
        n, x, row = self.names.val(v), self.operand(v), REDUCTIONS[v.attr]
        self.line(f"{n}x = {x}")
        scan = f"tl.{v.attr}({n}x, 1)"
        if carried:
            total = row.collapsed(f"{n}x", v.args[0].dtype)
            self.line(f"{n} = ({row.triton.format(f'{n}c', scan)}).to({self.names.type_of(v)})")
            self.line(f"{n}c = {row.triton.format(f'{n}c', total + '[:, None]')}")
        else:
            self.line(f"{n} = {scan}.to({self.names.type_of(v)})")

    # ---- mean and squared deviations ----------------------------------------------------------------------

    def deviate(self, n: str, x: str) -> None:
        """Take a block into sums ``vKoa`` and squared deviations ``vKa`` of each lane, after ``vKc`` others.

        The updating formula of Youngs and Cramer 1971 (as in Chan, Golub, LeVeque 1983, (1.3)), for what is left of
        the elements when the first block's mean ``vKk`` is taken off: numbers that lie close together far from 0 keep
        their digits, and others lose none, as any number may be taken off.
        """
        masked = self.axes[1].masked
        self.line(f"{n}x = {x}")
        self.line(f"if {n}c == 0:")
        self.depth += 1
        count = "tl.sum(rm.to(tl.int32))" if masked else "RBLOCK"
        self.line(f"{n}k = (tl.sum({n}x, 1) / {count})[:, None]")
        self.line(f"{n}k = tl.where(tl.abs({n}k) < float('inf'), {n}k, 0.0)")
        self.depth -= 1
        rest = f"{n}x - {n}k"
        self.line(f"{n}x = tl.where(rm, {rest}, 0.0)" if masked else f"{n}x = {rest}")
        self.line(f"{n}d = {n}x - {n}oa * (1.0 / tl.maximum({n}c, 1.0))")
        square = f"{n}d * {n}d * ({n}c / ({n}c + 1.0))"
        self.line(f"{n}a += tl.where(rm, {square}, 0.0)" if masked else f"{n}a += {square}")
        self.line(f"{n}oa += {n}x")
        self.line(f"{n}c += 1.0")

    def merge(self, n: str, blocks: Sequence[str]) -> None:
        """The mean ``vKo`` and squared deviations of parts of ``vKw`` elements that have theirs, as Chan et al. do."""
        squares, means = blocks
        self.line(f"{n}o = (tl.sum({means} * {n}w, 1) / tl.maximum(tl.sum({n}w, 1), 1.0))[:, None]")
        self.line(f"{n}d = {means} - {n}o")
        self.line(f"{n} = tl.sum({squares} + {n}d * {n}d * {n}w, 1)[:, None]")

    def lanes(self, r: Val, start: str, stop: str) -> None:
        """Collapse the accumulators of a loop."""
        if r.attr == "deviations":
            n, kind = self.names.val(r), self.names.type_of(r)
            taken = f"({stop} - {start} - tl.arange(0, RBLOCK)[None, :] + RBLOCK - 1) // RBLOCK"
            self.line(f"{n}w = tl.maximum({taken}, 0).to({kind})")
            self.line(f"{n}oa = {n}oa / tl.maximum({n}w, 1.0)")
        self.collapse(r, [f"{name}a" for name, _, _ in self.partial(r)[:2]])

    # ---- kernels ----------------------------------------------------------------------------------------

    def persistent(self) -> TritonSource:
        """Everything once, on whole rows."""
        self.begin()
        self.columns_at(None)
        for v in self.body.vals:
            if v.op == "reduce":
                self.collapse(v, self.block(v))
                self.settle(v)
            elif v.op == "scan":
                self.scan(v, carried=False)
            else:
                self.emit(v)
        for s in self.body.stores:
            self.store(s, shaped=True)
        return self.source((ex.ceildiv(self.rows, ex.const(self.shape.x)), ONE), self.shape.warps, 1)

    def outside(self, stage: int) -> None:
        """The values of a stage that do not change along the row."""
        for v in self.body.vals:
            if v.stage == stage and v.op != "reduce" and not self.body.is_inner(v):
                self.emit(v)

    def outside_stores(self, stage: int, *more: str) -> None:
        """What is written beside the loops, in the order of its making: out of it, Triton 3.6 moves layouts of values
        of other widths before what they are made of, and fails."""
        for s in sorted(self.body.stores, key=lambda s: s.value.id):
            if not self.body.stores_inside(s) and s.value.stage == stage:
                self.store(s, *more, shaped=True)

    def loop(self, stage: int, start: str, stop: str | None) -> None:
        """One pass over the row."""
        self.accumulators(stage)
        self.line(f"for r0 in range({start}, {stop or self.names.size(self.columns)}, RBLOCK):")
        self.depth += 1
        self.columns_at("r0", stop)
        self.names.blocks = {v.id for v in self.body.vals if v.stage <= stage and v.id in self.spread}
        for v in self.body.along(stage):
            if v.op == "scan":
                self.scan(v, carried=True)
            else:
                self.emit(v)
        for r in self.body.reduces(stage):
            self.combine(r)
        for s in self.body.stores:
            if self.body.stores_inside(s) and s.value.stage == stage:
                self.store(s, shaped=True)
        self.names.blocks = set()
        self.depth -= 1
        for r in self.body.reduces(stage):
            self.lanes(r, start, stop or self.names.size(self.columns))

    def looped(self) -> TritonSource:
        """One loop over the row per stage."""
        self.begin()
        self.spread_out(*range(self.stages))
        for stage in range(self.stages + 1):
            self.outside(stage)
            self.outside_stores(stage)
            if stage < self.stages:
                self.loop(stage, "0", None)
                for r in self.body.reduces(stage):
                    self.settle(r)
        loops = max(self.stages, 1)
        source = self.source((ex.ceildiv(self.rows, ex.const(self.shape.x)), ONE), self.shape.warps, loops)
        return replace(source, registers=self.shape.registers)

    # ---- split ------------------------------------------------------------------------------------------

    def known(self, roots: Iterable[Val], saved: Mapping[int, Node]) -> None:
        """The values that do not change along the row and that ``roots`` need, those ``saved`` by an earlier kernel
        read from memory."""
        row, xm = self._row()
        for v in _cone(self.body, roots, saved):
            if v.id in saved:
                address = f"{self.names.pointer(saved[v.id])} + {row}"
                self.line(f"{self.names.val(v)} = {self.names.loaded(f'tl.load({address}{xm})', v.dtype)}")
                self.lay_out(v)
            elif v.op == "reduce":
                self._reload(v)
            else:
                self.emit(v)

    def _row(self) -> tuple[str, str]:
        """Where a row's value stands in a workspace, and the mask with its comma."""
        return "x" if self.nest.outer else "tl.zeros([1, 1], tl.int32)", ", xm" if self.axes[0].masked else ""

    def _reload(self, r: Val) -> None:
        """A reduced value from its parts."""
        n, count, (row, xm) = self.names.val(r), self.shape.split, self._row()
        mask = " & ".join(m for m in (xm[2:], f"(q < {count})") if m)
        parts = self.partial(r)
        for node, (name, _, start) in zip(self.parts[r.id], parts, strict=True):
            self.line(f"{name}a = tl.load({self.names.pointer(node)} + {row} * {count} + q, {mask}, other={start})")
        if r.attr == "deviations":
            chunk, kind = self.names.size(self.chunk()), self.names.type_of(r)
            rest = f"{self.names.size(self.columns)} - q * {chunk}"
            self.line(f"{n}w = tl.where(q < {count}, tl.minimum(tl.maximum({rest}, 0), {chunk}), 0).to({kind})")
            self.line(f"{n}k = tl.sum(tl.where(q == 0, {n}ka, 0.0), 1)[:, None]")
            self.line(f"{n}oa += {n}ka - {n}k")
        self.collapse(r, [f"{name}a" for name, _, _ in parts[:2]])
        self.settle(r)

    def chunk(self) -> Expr:
        """The columns of a part: whole blocks."""
        block = ex.const(self.shape.r)
        return ex.mul(ex.ceildiv(self.columns, ex.mul(block, ex.const(self.shape.split))), block)

    def part(self, stage: int, saved: Mapping[int, Node]) -> TritonSource:
        """The kernel that reduces parts of rows."""
        count = self.shape.split
        self.begin()
        self.line("part = tl.program_id(1)")
        self.spread_out(stage)
        self.known(self.around(stage), saved)
        if stage == 0:
            self.outside_stores(0, "(part == 0)")
        chunk = self.names.size(self.chunk())
        self.line(f"begin = part{'.to(tl.int64)' if self.wide else ''} * {chunk}")
        self.line(f"end = tl.minimum(begin + {chunk}, {self.names.size(self.columns)})")
        self.loop(stage, "begin", "end")
        row, xm = self._row()
        for r in self.body.reduces(stage):
            for node, (name, _, _) in zip(self.parts[r.id], self.partial(r), strict=True):
                self.line(f"tl.store({self.names.pointer(node)} + {row} * {count} + part, {name}{xm})")
        source = self.source((self._programs(), ex.const(count)), self.shape.warps, 1)
        return replace(source, registers=self.shape.registers)

    def _programs(self) -> Expr:
        return ex.ceildiv(self.rows, ex.const(self.shape.x))

    def rows_of(self, stage: int, saved: Mapping[int, Node]) -> TritonSource:
        """The kernel that puts the parts of a stage's rows together, and computes what follows for whole rows."""
        self.begin()
        self.line(f"q = tl.arange(0, {_power(self.shape.split)})[None, :]")
        mine = [v for v in self.body.vals if v.id in saved and v.stage == stage]
        stored = [s for s in self.body.stores if s.value.stage == stage and not self.body.stores_inside(s)]
        earlier = {k: node for k, node in saved.items() if all(v.id != k for v in mine)}
        self.known([*mine, *(v for s in stored for v in self.body.of_store(s))], earlier)
        self.outside_stores(stage)
        row, xm = self._row()
        for v in mine:
            self.line(f"tl.store({self.names.pointer(saved[v.id])} + {row}, {self.names.val(v)}{xm})")
        return self.source((self._programs(), ONE), 4, 1)

    def around(self, stage: int) -> list[Val]:
        """The values of whole rows that a pass along them, or a store before it, needs."""
        direct = [a for v in self.body.along(stage) for a in self.body.inputs_of(v)]
        direct += [a for r in self.body.reduces(stage) for a in r.args]
        stores = [s for s in self.body.stores if s.value.stage == stage and (stage == 0 or self.body.stores_inside(s))]
        return [v for v in (*direct, *(v for s in stores for v in self.body.of_store(s))) if not self.body.is_inner(v)]


def _cone(body: Body, roots: Iterable[Val], saved: Container[int]) -> list[Val]:
    """The values that ``roots`` are made of, in order, back to those saved and to reduced ones."""
    return body.cone(roots, through=lambda v: v.id not in saved and v.op != "reduce")


def _points(nest: Nest, stores: list[Store], saved: Mapping[int, Node], hint: Hint) -> Nest:
    """What is left after the last reduction: a nest of its own, which reads the rows' values from memory."""
    body = nest.body
    at = flatten(nest.outer, [body.space[v] for v in nest.outer])

    def read(v: Val, *_: object) -> Val | None:
        return Val("load", (), saved[v.id].dtype or v.dtype, saved[v.id], at) if v.id in saved else None

    return arrange(body.rewritten(stores, read, [*nest.outer, *nest.inner], ()), hint)


def _saved(probe: _Reduction) -> dict[int, Node]:
    """Workspaces for the values of whole rows that are made of reduced ones and needed by other kernels than the one
    that makes them; 16-bit ones are kept as they are computed."""
    vals: dict[int, Val] = {}
    for stage in range(probe.stages):
        vals |= {v.id: v for v in probe.around(stage) if v.stage}
    for stage in range(probe.stages, 0, -1):
        stores = [s for s in probe.body.stores if s.value.stage == stage and not probe.body.stores_inside(s)]
        roots = [v for v in vals.values() if v.stage == stage] + [v for s in stores for v in probe.body.of_store(s)]
        stop = {v.id for v in probe.body.vals if v.stage != stage}
        vals |= {v.id: v for v in _cone(probe.body, roots, stop) if 0 < v.stage < stage}
    dtypes = {i: torch.float32 if v.dtype in HALVES else v.dtype for i, v in vals.items()}
    return {i: probe.workspace((probe.rows,), dtypes[i]) for i in vals}


def _split_kernels(nest: Nest, renderer: TritonRenderer, shape: Shape) -> tuple[KernelSource, ...]:
    """Per reduction a kernel of parts and one of rows, then what is left to be computed along the rows.

    Each value of a row is made once: a later pass that put it together from the parts again would read more than its
    own elements (64 channels of 256 parts: four times as much), and runs through memory as any pointwise kernel does.
    """
    probe = _Reduction(nest, renderer, shape)
    saved = _saved(probe)
    size = (probe.rows, ex.const(shape.split))
    parts: dict[int, list[Node]] = {}
    kernels: list[KernelSource] = []
    whole = shape.of_rows()

    def buffers(stage: int, inside: bool) -> list[Node]:
        body = probe.body
        stores = (s for s in body.stores if s.value.stage == stage and (body.stores_inside(s) or not inside))
        return list(dict.fromkeys(s.buffer for s in stores))

    passes = probe.stages if probe.body.reduces(probe.stages - 1) else probe.stages - 1
    for stage in range(passes):
        for r in probe.body.reduces(stage):
            parts[r.id] = [probe.workspace(size, dtype) for _, dtype, _ in probe.partial(r)]
        made = [n for r in probe.body.reduces(stage) for n in parts[r.id]]
        kernel = _Reduction(nest, renderer, shape, buffers(stage, stage > 0) + made, parts)
        kernels.append(kernel.part(stage, saved))
        mine = [saved[v.id] for v in probe.body.vals if v.id in saved and v.stage == stage + 1]
        stored = [s for s in probe.body.stores if s.value.stage == stage + 1 and not probe.body.stores_inside(s)]
        written = [*dict.fromkeys(s.buffer for s in stored), *mine]
        kernels.append(_Reduction(nest, renderer, whole, written, parts).rows_of(stage + 1, saved))
    last = [s for s in probe.body.stores if s.value.stage == passes and probe.body.stores_inside(s)]
    if last:
        kernels += renderer.render(_points(nest, last, saved, renderer.hint))
    return tuple(kernels)


def reduction_kernels(nest: Nest, renderer: TritonRenderer) -> tuple[KernelSource, ...]:
    """The kernels of a nest with a reduction or a scan."""
    shape = Shape(nest, renderer.hint, renderer.tiling, renderer.device, renderer.in_order)
    body = one_pass(nest.body) if renderer.contract and not shape.persistent else None
    if body is not None:
        nest = Nest(body, nest.outer, nest.inner, nest.lane)
        shape = Shape(nest, renderer.hint, renderer.tiling, renderer.device)
    if shape.persistent:
        return (_Reduction(nest, renderer, shape).persistent(),)
    if shape.split > 1:
        return _split_kernels(nest, renderer, shape)
    return (_Reduction(nest, renderer, shape).looped(),)
