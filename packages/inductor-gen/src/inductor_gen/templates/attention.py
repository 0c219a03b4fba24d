"""Attention with a function of its scores, and its gradient, as Triton kernels that keep no score in memory.

The tiling is FlashAttention's (Dao and others, 2022; Dao, 2023). A program holds a block of queries and walks the keys,
keeping for each query the largest score, the sum of the weights and the weighted sum of values; where a larger score
comes, what is kept shrinks. The gradient computes the scores again: a kernel that holds queries walks the keys for the
queries' gradient, one that holds keys walks the queries for the keys' and values'. The function is rendered by the code
that renders pointwise kernels, on the block of scores in registers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inductor_gen.codegen.triton import POSITIONS, Block, TritonRenderer, TritonSource, _Axis
from inductor_gen.device.record import Device
from inductor_gen.kernel.body import Body, Store
from inductor_gen.kernel.build import Builder
from inductor_gen.kernel.ir import Call, Kernel, Step, nbytes
from inductor_gen.kernel.nest import Nest, collapse
from inductor_gen.layout.record import ViewRef, strides_of
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import ONE, ZERO, product
from inductor_gen.templates.problem import Draft
from inductor_gen.templates.product import Fit, Product, Split, fit, laid_over
from prims.control import Control, control_of
from prims.dtypes import HALVES, ROWS
from prims.errors import Unsupported
from prims.ir import Envelope
from prims.records import record
from prims.spec import expr as ex
from prims.spec.expr import Expr

__all__ = ["in_kernels"]

_LOG2E = "1.4426950408889634"


@record
class _Tile:
    """Queries and keys of a block, warps per program, stages of the pipeline."""

    m: int
    n: int
    warps: int
    stages: int


#: For heads up to so wide, of the forward kernel and of those of its gradient; the first that fits is taken. Ms on an
#: H200 with linear biases, forward at 4 x 16 heads of 1,024 x 64: 128 x 64 0.070, 64 x 64 0.071, 128 x 128 0.086; at
#: 2 x 16 of 4,096 x 128: 128 x 64 with 8 warps 0.718, with 4 1.198. With gradients, 64 x 64 with 4 and 8 warps: 0.289
#: and 0.543, 2.78 and 5.50; larger blocks are slower still. Wider heads were not measured.
_FORWARD = {
    64: (_Tile(128, 64, 4, 3), _Tile(64, 64, 4, 2), _Tile(32, 32, 4, 1)),
    128: (_Tile(128, 64, 8, 3), _Tile(64, 64, 4, 2), _Tile(32, 32, 4, 1)),
    256: (_Tile(64, 64, 8, 2), _Tile(64, 32, 4, 2), _Tile(32, 32, 4, 1)),
}
_BACKWARD = {
    64: (_Tile(64, 64, 4, 2), _Tile(32, 32, 4, 1)),
    128: (_Tile(64, 64, 4, 2), _Tile(32, 64, 4, 1), _Tile(32, 32, 4, 1)),
    256: (_Tile(32, 32, 4, 1), _Tile(16, 16, 4, 1)),
}


def _power(n: int) -> int:
    return max(16, 1 << max(n - 1, 0).bit_length())


@record(eq=False)
class _Problem:
    """A call of ``attention`` or ``attention_backward`` with what it takes as it lies in memory.

    Attributes:
        operands: query, key, value; of the gradient also the result's gradient, the sums and the rest.
        results: its results' buffers by their positions; those that nobody reads are absent.
        widths: of keys and of values.
        group: heads of queries to a head of keys.
        tables: what says which blocks of scores are needed: for each block of queries, then of keys.
    """

    node: Node
    control: Control
    operands: tuple[ViewRef, ...]
    results: Mapping[int, Node]
    widths: tuple[int, int]
    group: int
    tables: tuple[tuple[ViewRef, ...], tuple[ViewRef, ...]] = ((), ())

    @property
    def is_backward(self) -> bool:
        """Is it the gradient?"""
        return self.control.form.kind == "attention_backward"

    @property
    def sizes(self) -> tuple[Expr, Expr, Expr, Expr]:
        """Batches, heads, queries and keys."""
        batch, heads, queries, _ = self.operands[0].shape
        return batch, heads, queries, self.operands[1].shape[2]

    @property
    def shared(self) -> bool:
        """Do all batches have the same keys?"""
        return self.operands[1].shape[0] is ONE and self.sizes[0] is not ONE

    def tile(self, renderer: TritonRenderer) -> _Tile:
        """The block that suits heads so wide and the device."""
        table = _BACKWARD if self.is_backward else _FORWARD
        tiles = table[next(w for w in table if w >= max(self.widths))]
        batch, heads, queries, _ = map(renderer.hint, self.sizes)
        fits = [t for t in tiles if self._fits(t, renderer.device)] or tiles[-1:]
        busy = [t for t in fits if batch * heads * -(-queries // t.m) >= renderer.device.multiprocessors]
        return busy[0] if busy else fits[:2][-1]

    def _fits(self, tile: _Tile, device: Device) -> bool:
        rows, columns = map(_power, self.widths)
        held = tile.m if not self.is_backward else tile.m + tile.n
        return 2 * (rows + columns) * (held + tile.stages * max(tile.m, tile.n)) <= device.shared_memory


class _Attention(Block):
    """What the three kernels share; ``body`` gives the changed scores, and of a gradient the scores' gradients too."""

    whole_tiles = True

    def __init__(
        self, nest: Nest, renderer: TritonRenderer, problem: _Problem, place: Fit, given: dict[Node, str],
        written: list[Node],
    ) -> None:  # fmt: skip
        self.problem = problem
        self.place = place
        self.given = given
        self.results = written
        self.tile = problem.tile(renderer)
        super().__init__(nest, renderer, written)

    def _reaches(self) -> list[Expr]:
        loads = [v.attr for v in self.body.vals if v.op == "load" and v.attr not in self.given]
        bases = [ref.base for ref in (*self.problem.operands, *self.problem.tables[0], *self.problem.tables[1])]
        return [self._reach(node) for node in dict.fromkeys((*bases, *self.problem.results.values(), *loads))]

    def _is_wide(self) -> bool:
        return any(self.hint(count) >= POSITIONS for count in self._reaches())

    def _bounds(self) -> tuple[Expr, ...]:
        return tuple(dict.fromkeys(count for count in self._reaches() if not count.is_const))

    # ---- places -----------------------------------------------------------------------------------------

    def begin(self, across: Expr, axis: str) -> Expr:
        """Constants, and a program's block ``p{axis}`` of ``across`` positions and batch ``z`` of what it holds;
        returns how many blocks there are."""
        block = self.tile.m if axis == "y" else self.tile.n
        y = _Axis("y", self.place.rows, self.tile.m, "[:, None]")
        x = _Axis("x", self.place.columns, self.tile.n, "[None, :]")
        for one in (y, x):
            self.add_axis(one)
        for name, width in zip("de", self.problem.widths, strict=True):
            self.line(f"{name.upper()}BLOCK: tl.constexpr = {_power(width)}")
            self.line(f"{name} = tl.arange(0, {name.upper()}BLOCK)")
        self.line(f"p = {self.program()}")
        self.blocks = blocks = ex.ceildiv(across, ex.const(block))
        self.line(f"z = p // {self.names.divisor(blocks)}")
        self.line(
            f"{axis}0 = p % {self.names.divisor(blocks)} * {axis.upper()}BLOCK + tl.arange(0, {axis.upper()}BLOCK)"
        )
        return blocks

    def split(self) -> None:
        """Batch and head of the queries' ``z``."""
        self.line(f"zb = z // {self.names.divisor(self.problem.sizes[1])}")
        self.line(f"zh = z % {self.names.divisor(self.problem.sizes[1])}")
        self.decode("z", self.place.batch)

    def span(self, axis: str, end: Expr) -> str:
        """The range of starts of blocks to walk for what a program holds along ``axis``: from the first that its block
        mask has to the last, all where there is none."""
        at = "yx".index(axis)
        tables, sizes = self.problem.tables[at], self.problem.control.form.block
        step = "XBLOCK" if axis == "y" else "YBLOCK"
        if not tables or sizes[at] % (self.tile.m, self.tile.n)[at]:
            return f"range(0, {self.names.size(end)}, {step})"
        for k, (count, which) in enumerate(zip(tables[::2], tables[1::2], strict=True)):
            width = int(which.shape[3].value)
            row = f"(p % {self.names.divisor(self.blocks)} * {axis.upper()}BLOCK // {sizes[at]})"
            self.line(f"c{k} = tl.arange(0, {_power(width)})")
            self.line(f"n{axis}{k} = tl.load({self.pointer(count, 'zb', 'zh', row)})")
            here = f"c{k} < n{axis}{k}"
            self.line(f"b{k} = tl.load({self.pointer(which, 'zb', 'zh', row, f'c{k}')}, {here}, other=0)")
            self.line(f"low{k} = tl.min(tl.where({here}, b{k}, {1 << 20}), 0)")
            self.line(f"high{k} = tl.max(tl.where({here}, b{k} + 1, 0), 0)")
        low, high = "low0", "high0"
        if len(tables) > 2:
            low, high = "tl.minimum(low0, low1)", "tl.maximum(high0, high1)"
        self.line(f"high = {high}")
        self.line(f"low = tl.minimum({low}, high)")
        other = sizes[1 - at]
        return f"range(low * {other}, tl.minimum(high * {other}, {self.names.size(end)}), {step})"

    def positions(self, axis: str) -> None:
        """Positions along an axis, whether they exist, and the loop variables that they stand for."""
        at = "yx".index(axis)
        self.line(f"{axis} = {axis}0{self.axes[at].view}")
        self.bound(self.axes[at], self.names.size(self.problem.sizes[2 + at]))

    def pointer(self, ref: ViewRef, batch: str, head: str, row: str, column: str = "") -> str:
        """Where elements are; ``row`` and ``column`` run along the last dimensions."""
        parts = [self.names.pointer(ref.base)]
        if ref.offset is not ZERO:
            parts.append(self.names.size(ref.offset))
        for index, size, stride in zip((batch, head, row, column), ref.shape, ref.strides, strict=False):
            if stride is not ZERO and not (size is ONE and index in (batch, head)):
                parts.append(index if stride is ONE else f"{index} * {self.names.size(stride)}")
        return " + ".join(parts)

    def tensor(self, name: str, at: int, axis: str, turned: bool = False) -> None:
        """Load a block of an operand's rows at the positions of an axis (``turned``: its columns)."""
        ref = self.problem.operands[at]
        wide = "e" if at in (2, 3) else "d"
        row, column = (f"{axis}0[None, :]", f"{wide}[:, None]") if turned else (f"{axis}0[:, None]", f"{wide}[None, :]")
        keys = at in (1, 2)
        place = self.pointer(ref, "kb" if keys else "zb", "kh" if keys else "zh", row, column)
        width = self.problem.widths[wide == "e"]
        masks = [f"({column} < {width})"] if width != _power(width) else []
        if self.axes["yx".index(axis)].masked:
            masks.append(f"({row} < {self.names.size(self.problem.sizes[2 + 'yx'.index(axis)])})")
        self.line(f"{name} = tl.load({place}{', ' + ' & '.join(masks) + ', other=0.0' if masks else ''})")

    def rowwise(self, name: str, at: int, other: str) -> None:
        """Load a number for each query."""
        mask = f", (y0 < {self.names.size(self.problem.sizes[2])}), other={other}" if self.axes[0].masked else ""
        self.line(f"{name} = tl.load({self.pointer(self.problem.operands[at], 'zb', 'zh', 'y0')}{mask})")

    def keys(self) -> None:
        """Batch and head of the keys of ``z``."""
        self.line(f"kb = {'0' if self.problem.shared else 'zb'}")
        self.line(f"kh = zh{'' if self.problem.group == 1 else f' // {self.problem.group}'}")

    @property
    def inside(self) -> str:
        """Whether a score exists; empty where all do."""
        return " & ".join(f"{a.name}m" for a in self.axes if a.masked)

    # ---- values -----------------------------------------------------------------------------------------

    def emit(self, v: Any) -> None:
        if v.op == "load" and v.attr in self.given:
            self.line(f"{self.names.val(v)} = {self.given[v.attr]}")
        else:
            super().emit(v)

    def changed(self) -> set[int]:
        """The scores of the block, changed, in ``s``; returns the numbers of what was emitted."""
        self.line(f"s = tl.dot(q, k) * {self.problem.control.form.scale!r}")
        first = self.body.cone([self.body.stores[0].value])
        for v in first:
            self.emit(v)
        self.line(f"s = {self.names.val(self.body.stores[0].value)} + tl.zeros([YBLOCK, XBLOCK], tl.float32)")
        return {v.id for v in first}

    def derived(self) -> None:
        """The weights ``w`` of the block and the scores' gradients ``t``."""
        emitted = self.changed()
        self.line(f"w = tl.exp2((s - sums[:, None]) * {_LOG2E})")
        if self.inside:
            self.line(f"w = tl.where({self.inside}, w, 0.0)")
        self.line("g = w * (tl.dot(o, v) - rest[:, None])")
        for v in self.body.vals:
            if v.id not in emitted:
                self.emit(v)
        self.line(f"t = {self.names.val(self.body.stores[1].value)} + tl.zeros([YBLOCK, XBLOCK], tl.float32)")
        if self.inside:
            self.line(f"t = tl.where({self.inside}, t, 0.0)")

    def half(self, text: str) -> str:
        """A value as products take it."""
        return f"{text}.to({ROWS[self.problem.operands[0].base.dtype].in_triton})"  # type: ignore[index]

    def give(self, at: int, text: str, axis: str, batch: str, head: str) -> None:
        """Store a result's block of rows."""
        node = self.problem.results.get(at)
        if node is None or node not in self.results:
            return
        ref = ViewRef(node, node.shape, strides_of(self.renderer.layouts, node), ZERO)
        size = self.names.size(self.problem.sizes[2 + "yx".index(axis)])
        masks = [f"({axis}0 < {size})"] if self.axes["yx".index(axis)].masked else []
        row, column = f"{axis}0", ""
        if len(node.shape) == 4:
            wide = (
                "d"
                if (node.shape[3] == self.problem.operands[0].shape[3] and at != 2 and self.problem.is_backward)
                else "e"
            )
            width = self.problem.widths[wide == "e"]
            masks = [f"{m}[:, None]" for m in masks]
            masks += [f"({wide} < {width})[None, :]"] if width != _power(width) else []
            row, column = f"{axis}0[:, None]", f"{wide}[None, :]"
            text = self.names.stored(text, node.dtype)  # type: ignore[arg-type]
        mask = f", {' & '.join(masks)}" if masks else ""
        self.line(f"tl.store({self.pointer(ref, batch, head, row, column)}, {text}{mask})")

    def made(self, blocks: Expr, batches: Sequence[Expr]) -> TritonSource:
        """The finished kernel."""
        self.depth = 1
        source = self.source((ex.mul(blocks, product(batches)), ONE), self.tile.warps, 1)
        return dataclasses.replace(source, name=source.name.replace(".", "_"), stages=self.tile.stages)

    # ---- kernels ----------------------------------------------------------------------------------------

    def _of_queries(self) -> Expr:
        """What a program that holds queries begins with; returns how many blocks there are."""
        blocks = self.begin(self.problem.sizes[2], "y")
        self.split()
        self.keys()
        self.positions("y")
        return blocks

    def forward(self) -> TritonSource:
        """The kernel of ``attention``."""
        batch, heads, _, keys = self.problem.sizes
        blocks = self._of_queries()
        self.tensor("q", 0, "y")
        self.line('top = tl.full([YBLOCK], -float("inf"), tl.float32)')
        self.line("total = tl.zeros([YBLOCK], tl.float32)")
        self.line("acc = tl.zeros([YBLOCK, EBLOCK], tl.float32)")
        self.line(f"for start in {self.span('y', keys)}:")
        self.depth = 2
        self.line("x0 = start + tl.arange(0, XBLOCK)")
        self.positions("x")
        self.tensor("k", 1, "x", turned=True)
        self.changed()
        if self.axes[1].masked:
            self.line('s = tl.where(xm, s, -float("inf"))')
        self.line("most = tl.maximum(top, tl.max(s, 1))")
        self.line('level = tl.where(most == -float("inf"), 0.0, most)')
        self.line(f"w = tl.exp2((s - level[:, None]) * {_LOG2E})")
        self.line(f"shrink = tl.exp2((top - level) * {_LOG2E})")
        self.line("total = total * shrink + tl.sum(w, 1)")
        self.tensor("v", 2, "x")
        self.line(f"acc = tl.dot({self.half('w')}, v, acc * shrink[:, None])")
        self.line("top = most")
        self.depth = 1
        self.line("total = tl.where(total == 0.0, 1.0, total)")  # of a query that sees nothing
        self.give(0, "(acc / total[:, None])", "y", "zb", "zh")
        self.give(1, "top + tl.log(total)", "y", "zb", "zh")
        return self.made(blocks, (batch, heads))

    def of_queries(self) -> TritonSource:
        """The kernel of the queries' gradient."""
        batch, heads, _, keys = self.problem.sizes
        blocks = self._of_queries()
        self._queries()
        self.line("acc = tl.zeros([YBLOCK, DBLOCK], tl.float32)")
        self.line(f"for start in {self.span('y', keys)}:")
        self.depth = 2
        self.line("x0 = start + tl.arange(0, XBLOCK)")
        self.positions("x")
        self.tensor("k", 1, "x", turned=True)
        self.tensor("v", 2, "x", turned=True)
        self.derived()
        self.line(f"acc = tl.dot({self.half('t')}, tl.trans(k), acc)")
        self.depth = 1
        self.give(0, f"(acc * {self.problem.control.form.scale!r})", "y", "zb", "zh")
        return self.made(blocks, (batch, heads))

    def of_keys(self) -> TritonSource:
        """The kernel of the keys' and values' gradients."""
        problem = self.problem
        batch, heads, queries, keys = problem.sizes
        blocks = self.begin(keys, "x")
        held = problem.operands[1].shape[1]
        self.line(f"kb = z // {self.names.divisor(held)}")
        self.line(f"kh = z % {self.names.divisor(held)}")
        self.positions("x")
        self.tensor("k", 1, "x", turned=True)
        self.tensor("v", 2, "x", turned=True)
        self.line("of_k = tl.zeros([XBLOCK, DBLOCK], tl.float32)")
        self.line("of_v = tl.zeros([XBLOCK, EBLOCK], tl.float32)")
        turns = ex.mul(batch if problem.shared else ONE, ex.const(problem.group))
        self.line(f"for turn in range(0, {self.names.size(turns)}):")
        self.depth = 2
        self.line(f"zb = {f'turn // {problem.group}' if problem.shared else 'kb'}")
        self.line(f"zh = kh * {problem.group} + turn % {problem.group}")
        self.line(f"z = zb * {self.names.size(heads)} + zh")
        self.decode("z", self.place.batch)
        self.line(f"for start in {self.span('x', queries)}:")
        self.depth = 3
        self.line("y0 = start + tl.arange(0, YBLOCK)")
        self.positions("y")
        self._queries()
        self.derived()
        self.line(f"of_v = tl.dot(tl.trans({self.half('w')}), o, of_v)")
        self.line(f"of_k = tl.dot(tl.trans({self.half('t')}), q, of_k)")
        self.depth = 1
        self.give(1, f"(of_k * {problem.control.form.scale!r})", "x", "kb", "kh")
        self.give(2, "of_v", "x", "kb", "kh")
        return self.made(blocks, problem.operands[1].shape[:2])

    def _queries(self) -> None:
        self.tensor("q", 0, "y")
        self.tensor("o", 3, "y")
        self.rowwise("sums", 4, "0.0")
        self.line('sums = tl.where(sums == -float("inf"), 0.0, sums)')  # of a query that sees nothing
        self.rowwise("rest", 5, "0.0")


# ---- in a graph --------------------------------------------------------------------------------------------------


_Plan = Callable[[Envelope], tuple[Builder, list[Step]]]


class _Functions:
    """The function of a problem's scores, as loop bodies over its operands' buffers."""

    def __init__(self, problem: _Problem, planned: tuple[Builder, list[Step]], read: Sequence[Any]) -> None:
        self.problem = problem
        self.builder, self.steps = planned
        made = problem.control.form.own[1]
        inputs = self.builder.prepared.graph.inputs
        self.scores = inputs[:made]
        self.read = dict(zip(inputs[made:], read, strict=True))

    def body(self) -> tuple[Body, Fit] | None:
        """A fresh body that lies over the scores, None where there is none."""
        found: tuple[Body, Fit] | None = None
        for step in self.steps:
            piece = self._piece(step) if isinstance(step, Kernel) else None
            if piece is not None and found is not None:
                piece = _together(found, piece)
            if piece is None:
                return None
            found = piece
        return found if found is not None and self._placed(found[0]) else None

    def _piece(self, kernel: Kernel) -> tuple[Body, Fit] | None:
        """The body of one of the function's kernels."""
        if len(kernel.nests) != 1 or kernel.updates or kernel.parts or kernel.origin.inner:
            return None
        found = laid_over(self.builder, kernel.origin, self._fit)
        if found is None:
            return None
        body, place = found
        return body, Fit(*(collapse(body, list(g)) for g in (place.batch, place.rows, place.columns)))

    def _fit(self, body: Body) -> Fit | Split | None:
        """How it lies over the blocks: of the scores and their gradients it must read each once."""
        found: Fit | Split | None = None
        batch, heads, queries, keys = self.problem.sizes
        read = {v.attr for v in body.vals if v.op == "load"}
        for node in self.scores:
            if node.shape != self.problem.sizes:
                return None
            if node in read:
                anything = ViewRef(node, (), (), ZERO)
                found = fit(body, Product(node, (batch, heads), queries, keys, ONE, anything, anything, None, 1.0, 1.0))
                if not isinstance(found, Fit):
                    return found
        return found

    def _placed(self, body: Body) -> bool:
        """Let its loads be of the graph's buffers, and its stores be in the order of its results."""
        for v in body.vals:
            if v.op != "load" or v.attr in self.scores:
                continue
            ref = self.read.get(v.attr)
            if not isinstance(ref, ViewRef) or ref.base.dtype != v.attr.dtype or ref.shape != v.attr.shape:
                return False
            if ref.strides != strides_of(self.builder.layouts, v.attr):
                return False
            v.attr, v.at = ref.base, ex.add(v.at, ref.offset)  # type: ignore[arg-type]
        stores: list[Store] = []
        for out in self.builder.prepared.outputs:
            mine = [s for s in body.stores if isinstance(out, ViewRef) and s.buffer is out.base]
            if len(mine) != 1 or mine[0].mode != "set":
                return False
            stores += mine
        body.stores = stores
        return True


def _together(first: tuple[Body, Fit], second: tuple[Body, Fit]) -> tuple[Body, Fit] | None:
    """Two bodies over the same blocks as one."""
    (body, place), (other, elsewhere) = first, second
    mapping: dict[Expr, Expr] = {}
    for ours, theirs in zip(
        (place.batch, place.rows, place.columns), (elsewhere.batch, elsewhere.rows, elsewhere.columns), strict=True
    ):
        if [body.space[v] for v in ours] != [other.space[v] for v in theirs]:
            return None
        mapping.update(zip(theirs, ours, strict=True))
    other.replace_index(mapping)
    last = max((v.id for v in body.vals), default=-1)
    for v in other.vals:
        v.id += last + 1
    body.vals += other.vals
    body.stores += other.stores
    body.atoms |= other.atoms
    body.nodes += other.nodes
    body.refresh()
    return body, place


def _problem_of(draft: Draft, node: Node) -> tuple[_Problem, list[Any]] | None:
    """The problem that an operator is, and the operands of its function."""
    control = control_of(node.target)
    if control is None or control.form.kind not in ("attention", "attention_backward"):
        return None
    args = list(draft.prepared.externs[node][0])
    taken, count = control.form.own[0], control.form.tables
    operands, tables, read = args[: taken - count], args[taken - count : taken], args[taken:]
    if not all(isinstance(x, ViewRef) and (len(x.shape) == 3 or x.shape[-1].is_const) for x in tables):
        tables = []
    if not all(isinstance(x, ViewRef) for x in operands) or operands[0].base.dtype not in HALVES:
        return None
    if any(x.base.dtype != operands[0].base.dtype for x in operands[:4]):
        return None
    heads, given, *widths = operands[0].shape[1], operands[1].shape[1], operands[0].shape[3], operands[2].shape[3]
    if not all(n.is_const and 0 < n.value <= max(_FORWARD) for n in widths):
        return None
    if heads is not given and not (heads.is_const and given.is_const and heads.value % given.value == 0):
        return None
    group = 1 if heads is given else int(heads.value) // int(given.value)
    results = {item.args[1]: item for item in node.users if item.kind == "item"}
    half = len(tables) // 2 if control.form.kind == "attention_backward" else len(tables)
    of = (tuple(tables[:half]), tuple(tables[half:]))
    return _Problem(
        node, control, tuple(operands), results, (int(widths[0].value), int(widths[1].value)), group, of
    ), read


def in_kernels(draft: Draft, steps: Sequence[Step], plan: _Plan) -> list[Step]:
    """The steps, with attention whose function is one pointwise kernel rendered as kernels.

    ``plan`` gives the kernels of a body's envelope (:func:`inductor_gen.pipeline.planned`). What no kernel can do stays
    a call, which has all scores in memory.
    """
    return [_rendered(draft, step, plan) or step if isinstance(step, Call) else step for step in steps]


def _rendered(draft: Draft, call: Call, plan: _Plan) -> Kernel | None:
    found = _problem_of(draft, call.node)
    device = call.node.users[0].device if call.node.users else None
    if found is None or not (draft.rendering.triton or (device is not None and device.type == "cuda")):
        return None
    problem, read = found
    functions = _Functions(problem, plan(problem.control.bodies[0]), read)
    known = draft.rendering.devices(device)  # type: ignore[arg-type]
    renderer = TritonRenderer(draft.hint, draft.layouts, known, draft.options)
    kernels = [_Attention.of_queries, _Attention.of_keys] if problem.is_backward else [_Attention.forward]
    parts = [(0,), (1, 2)] if problem.is_backward else [(0, 1)]
    sources: list[TritonSource] = []
    try:
        for make, mine in zip(kernels, parts, strict=True):
            written = [problem.results[at] for at in mine if at in problem.results]
            body = functions.body() if written else None
            if written and body is None:
                return None
            if body is not None:
                sources.append(_source(problem, renderer, make, functions, written, *body))
    except Unsupported:
        return None
    writes = tuple(problem.results.values())
    batch, heads, queries, keys = map(draft.hint, problem.sizes)
    kernel = Kernel(
        nests=(), nodes=(call.node, *writes), reads=call.reads, writes=writes,
        moved=sum(nbytes(n, draft.hint) for n in (*call.reads, *writes)),
        work=batch * heads * queries * keys * sum(problem.widths) // 4,
    )  # fmt: skip
    draft.rendering.choose(kernel, tuple(sources))
    return kernel


def _source(
    problem: _Problem, renderer: TritonRenderer, make: Callable[[_Attention], TritonSource], functions: _Functions,
    written: list[Node], body: Body, place: Fit,
) -> TritonSource:  # fmt: skip
    given = dict(zip(functions.scores, ("s", "g"), strict=False))
    body.refresh()
    body.nodes = [problem.node, *body.nodes]
    nest = Nest(body, [*place.batch, *place.rows, *place.columns], [], None)
    return make(_Attention(nest, renderer, problem, place, given, written))
