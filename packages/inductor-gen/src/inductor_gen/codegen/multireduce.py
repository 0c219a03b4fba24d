"""Triton kernels that reduce many tensors: norms of gradients, whether one of them is infinite.

As in :mod:`.multitensor`, tensors of any sizes share a launch over a table of addresses. A first kernel takes each
tensor in chunks and writes what each comes to; a second one puts a tensor's parts together, in order, so that results
are reproducible, and computes what follows from them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inductor_gen.codegen.multitensor import (
    Row,
    RowBlock,
    finding,
    indented,
    multi_tensor,
    one_axis,
    pointer,
    starts,
    walked,
    with_table,
)
from inductor_gen.codegen.reductions import REDUCTIONS, neutral, partial_dtype
from inductor_gen.codegen.triton import TritonRenderer, TritonSource
from inductor_gen.kernel.body import Val
from inductor_gen.kernel.nest import Nest
from inductor_gen.loops.cost import op_cost
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import ZERO
from prims.dtypes import ROWS
from prims.ops import templates
from prims.records import record
from prims.spec import TensorSpec
from prims.spec import expr as ex
from prims.spec.expr import Expr

__all__ = ["multi_tensor_kernels", "reduced_row_of"]

#: Elements of a block, and blocks of a chunk: 2,048 elements in four warps are what split rows take at once, and eight
#: of them leave few parts to be put together. No sweep has been made.
BLOCK, BLOCKS = 2048, 8

#: Parts that the second kernel takes at once.
PARTS = 1024


@record
class Part:
    """A reduction in the kernels' words: the name of its value, of its operand, the types and the row."""

    name: str
    op: str
    dtype: torch.dtype
    start: str
    takes: tuple[str, str]
    settled: str = ""

    @property
    def kind(self) -> str:
        """Triton's type of partial results."""
        return ROWS[partial_dtype(self.dtype)].triton

    def combined(self, block: str) -> str:
        """The statement that takes a block into the accumulator."""
        return f"{self.name}a = {REDUCTIONS[self.op].triton.format(f'{self.name}a', block)}"

    def begun(self, width: int) -> str:
        """The statement that makes the accumulator."""
        return f"{self.name}a = tl.full([1, {width}], {self.start}, {self.kind})"

    def collapsed(self) -> str:
        """The statement that makes the value of the accumulator: a sum of one is what it is, without dimensions."""
        return f"{self.name} = tl.sum({REDUCTIONS[self.op].collapsed(f'{self.name}a', self.dtype)}, 0)"


@record
class Reduced:
    """What follows from a tensor's parts.

    Attributes:
        parts: the reductions.
        after: the statements that follow.
        kinds: the dtypes of what these write and read.
        outputs: how many of them are written.
        sizes: the numbers that they take.
    """

    parts: tuple[Part, ...]
    after: tuple[str, ...]
    kinds: tuple[torch.dtype | None, ...]
    outputs: int
    sizes: tuple[Expr, ...]


@record(eq=False, kw_only=True)
class ReducedRow(Row):
    """A row, and the buffers of what follows."""

    last: tuple[Node, ...]


def reduced_row_of(nest: Nest, renderer: TritonRenderer) -> ReducedRow | None:
    """The row of a nest that reduces all of what it reads to numbers, None where it does something else.

    Raises:
        Unsupported: Triton has no expression for something in it.
    """
    body = nest.body
    if nest.outer or not nest.inner or not one_axis(body, nest.inner) or body.passes() != 1:
        return None
    reduces = [v for v in body.vals if v.op == "reduce"]
    if not any(v.op == "load" for v in body.cone(a for r in reduces for a in r.args)):
        return None  # a sum of a number, say: there is no tensor to give a table
    if any(REDUCTIONS[r.attr].place or not REDUCTIONS[r.attr].triton for r in reduces):
        return None
    moving = walked(body, nest.inner[0])
    if moving is None or any(s.at is not ZERO or not s.value.stage for s in body.stores):
        return None
    return _first(nest, renderer, reduces, moving)


def _first(nest: Nest, renderer: TritonRenderer, reduces: list[Val], moving: dict[Node, bool]) -> ReducedRow:
    block = RowBlock(nest, renderer, [])
    axis = block.along(nest.inner[0])
    names, body = block.names, nest.body
    inside = body.along(0)
    once = block.taken(v for v in body.cone(a for r in reduces for a in r.args) if not v.deps)
    axis.masked = False
    whole = block.taken(inside)
    axis.masked = True
    masked = block.taken(inside)
    parts = []
    for r in reduces:
        dtype = r.args[0].dtype
        x = names.val(r.args[0]) + (f".to({ROWS[partial_dtype(dtype)].triton})" if ROWS[dtype].summed else "")
        start = templates.triton_literal(neutral(r.attr, dtype), partial_dtype(dtype))
        full = f"tl.broadcast_to({x}, [1, {BLOCK}])"
        settled = " != 0" if r.dtype == torch.bool else f".to({names.type_of(r)})" if ROWS[r.dtype].summed else ""
        parts.append(Part(names.val(r), r.attr, dtype, start, (full, f"tl.where(xm, {full}, {start})"), settled))
    last = RowBlock(nest, renderer)
    for r, part in zip(reduces, parts, strict=True):
        last.names.call(r, f"{part.name}r")  # beside values that the first kernel has names for
    inner = {v.id for v in inside}
    roots = [v for s in body.stores for v in body.of_store(s)]
    rest = [v for v in body.cone(roots, through=lambda v: v.op != "reduce") if v.id not in inner and v.op != "reduce"]
    after = last.taken(rest, stores=True)
    buffers = tuple(names.buffers)
    made = Reduced(
        tuple(parts), after, tuple(n.dtype for n in last.names.buffers), last.names.outputs, tuple(last.names.sizes)
    )
    return ReducedRow(
        nest, once, whole, masked, buffers, 0, tuple(moving[n] for n in buffers),
        int(body.space[nest.inner[0]].value), tuple(names.sizes), sum(op_cost(v.op) for v in inside),
        sum(n.dtype.itemsize for n in buffers if n.dtype), made, last=tuple(last.names.buffers),
    )  # fmt: skip


def multi_tensor_kernels(rows: Sequence[Row], renderer: TritonRenderer) -> tuple[TritonSource, ...]:
    """The kernels of rows of one key, in order: one, or two of rows that are reduced."""
    some = [row for row in rows if isinstance(row, ReducedRow)]
    return _reduction(some, renderer) if some else (multi_tensor(rows, renderer),)


def _reduction(rows: Sequence[ReducedRow], renderer: TritonRenderer) -> tuple[TritonSource, TritonSource]:
    first = rows[0]
    reduced: Reduced = first.reduced
    chunk = BLOCK * BLOCKS
    room, words, programs = starts(rows, chunk)
    parts = [_workspace(first, p, programs) for p in reduced.parts]
    after_counts = room + len(parts)
    lines = [
        *finding(room, chunk), *_parts(reduced.parts, f"{room} + tensors"), *first.pointers(str(after_counts)),
        *first.once, *(p.begun(BLOCK) for p in reduced.parts),
        f"for part in range(0, left // {BLOCK}):",
        *indented([f"x = part * {BLOCK} + tl.arange(0, {BLOCK})[None, :]", *first.whole]),
        *indented(p.combined(p.takes[0]) for p in reduced.parts),
        f"if left % {BLOCK} != 0:",
        *indented([f"x = left // {BLOCK} * {BLOCK} + tl.arange(0, {BLOCK})[None, :]", "xm = x < left", *first.masked]),
        *indented(p.combined(p.takes[1]) for p in reduced.parts), *(p.collapsed() for p in reduced.parts),
        *(f"tl.store(part{k} + program, {p.name})" for k, p in enumerate(reduced.parts)),
    ]  # fmt: skip
    columns = [row.buffers[k] for k in range(len(first.buffers)) for row in rows]
    one = with_table(lines, rows, words, [*parts, *columns], len(parts), first.sizes, programs, renderer)
    return one, _second(rows, reduced, parts, [*words[: len(rows)], programs], renderer)


def _second(
    rows: Sequence[ReducedRow], reduced: Reduced, parts: list[Node], words: list[int], renderer: TritonRenderer
) -> TritonSource:  # fmt: skip
    """The kernel that puts each tensor's parts together: those between its first program and the next one's."""
    outputs = reduced.outputs
    written = [row.last[k] for k in range(outputs) for row in rows]
    read = [row.last[k] for k in range(outputs, len(reduced.kinds)) for row in rows]
    lines = [
        "t = tl.program_id(0)", "begin = tl.load(table + t).to(tl.int32)", "end = tl.load(table + t + 1).to(tl.int32)",
        *(pointer(f"out{k}", reduced.kinds[k], f"1 + {1 + k} * tensors + t") for k in range(outputs)),
        *_parts(reduced.parts, f"1 + {1 + outputs} * tensors"),
        *(
            pointer(f"in{k}", reduced.kinds[k], f"{1 + len(parts)} + {1 + k} * tensors + t")
            for k in range(outputs, len(reduced.kinds))
        ),
        *(p.begun(PARTS) for p in reduced.parts), f"for p in range(begin, end, {PARTS}):",
        *indented([f"q = p + tl.arange(0, {PARTS})[None, :]"]),
        *indented(
            p.combined(f"tl.load(part{k} + q, q < end, other={p.start})") for k, p in enumerate(reduced.parts)
        ),
        *(p.collapsed() for p in reduced.parts), *(f"{p.name}r = {p.name}{p.settled}" for p in reduced.parts),
        *reduced.after,
    ]  # fmt: skip
    return with_table(lines, rows, words, [*written, *parts, *read], len(written), reduced.sizes, len(rows), renderer)


def _parts(parts: Sequence[Part], place: str) -> list[str]:
    return [pointer(f"part{k}", partial_dtype(p.dtype), f"{place} + {k}") for k, p in enumerate(parts)]


def _workspace(row: ReducedRow, part: Part, programs: int) -> Node:
    """The buffer of a reduction's partial results."""
    node = Node(10**9, "pointwise", "partial", (), TensorSpec((), partial_dtype(part.dtype), row.buffers[0].device))
    node.shape = (ex.const(programs),)
    return node
