"""Triton kernels over many tensors: one launch computes the same on each of hundreds of tensors of any sizes.

An optimizer does the same few operations to each parameter, its gradient and its state. A *row* is a kernel that walks
its buffers along one flat axis, rendered without its buffers' addresses and without its length; kernels of equal rows
become one, which takes a table instead: of each tensor the number of its first program, its length, and the addresses
of its buffers. The launcher writes the table on the device just before (``runtime/launch.py``), so that a call neither
copies nor waits, and a recorded CUDA graph holds the addresses. A program finds its tensor by bisection, as the chunks
of multi-tensor kernels are found elsewhere by a list of them (Apex's multi_tensor_apply, 2018).

A block within the tensor needs no mask, so that loads and stores stay wide whatever the length is; the last has one.
Programs of several blocks, which would find their tensor once for all of them, were never faster: AdamW on the 199
parameters of a BERT-base takes an H200 0.73 ms with one block a program, 0.75 with four, 0.77 with sixteen (PyTorch's
fused kernel: 0.83).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch

from inductor_gen.codegen.renderer import describe, kernel_name
from inductor_gen.codegen.triton import Block, TritonRenderer, TritonSource, _Axis, flat_block, kernel_text
from inductor_gen.codegen.tritonexpr import pointer_type
from inductor_gen.kernel.body import Body, Store, Val, rounds_apart
from inductor_gen.kernel.nest import Nest
from inductor_gen.loops.cost import op_cost
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import ONE, ZERO
from prims.dtypes import ROWS
from prims.records import record
from prims.spec import TensorSpec
from prims.spec import expr as ex
from prims.spec.expr import Expr

__all__ = [
    "Row", "RowBlock", "finding", "indented", "multi_tensor", "one_axis", "pointer", "row_of", "starts", "walked",
    "with_table",
]  # fmt: skip

#: What depends on where an element is, on its row's number, or on who comes first.
_PLACED = frozenset(("index", "test", "bounded", "nonzero", "scan"))

_END = 2**31 - 1  # behind every program


@record(eq=False)
class Row:
    """What a kernel does along one tensor, without the tensor.

    Attributes:
        once: the statements before the loop: values that are the same all along.
        whole, masked: those of a block within the tensor, and of one that goes beyond its end.
        buffers: a row of the table's addresses, those written first.
        moving: which of them are walked; of the others every program reads the only element.
        count: the tensor's elements.
        sizes: the numbers that are parameters of the kernel, the same for all rows.
        work, moved: operations and bytes of an element.
        reduced: what is made of a tensor as a whole, where something is.
    """

    nest: Nest
    once: tuple[str, ...]
    whole: tuple[str, ...]
    masked: tuple[str, ...]
    buffers: tuple[Node, ...]
    outputs: int
    moving: tuple[bool, ...]
    count: int
    sizes: tuple[Expr, ...]
    work: int
    moved: int
    reduced: Any = None

    def pointers(self, begin: str) -> list[str]:
        """The statements that read the row's pointers, whose columns come after that of the counts, at ``begin``."""
        return [
            pointer(f"{'out' if k < self.outputs else 'in'}{k}", n.dtype, f"{begin} + {k + 1} * tensors + t", moves)
            for k, (n, moves) in enumerate(zip(self.buffers, self.moving, strict=True))
        ]

    def key(self) -> object:
        """Rows of equal keys are of one kernel."""
        kinds = tuple((n.dtype, moves) for n, moves in zip(self.buffers, self.moving, strict=True))
        return self.once, self.whole, self.masked, kinds, self.outputs, self.sizes, self.buffers[0].device, self.reduced


def row_of(nest: Nest, renderer: TritonRenderer) -> Row | None:
    """The row of a nest, None where its buffers are not walked along one axis of known length.

    Raises:
        Unsupported: Triton has no expression for something in it.
    """
    if nest.inner or not one_axis(nest.body, nest.outer):
        return None
    if not nest.outer:
        nest = _of_one_element(nest)
    body, (variable,) = nest.body, nest.outer
    moving = walked(body, variable)
    if moving is None or any(s.at is ZERO for s in body.stores):
        return None
    return _Renderer(nest, renderer).row(moving)


def one_axis(body: Body, loops: Sequence[Expr]) -> bool:
    """Is a body one axis of known length at most, along which nothing depends on places?"""
    if len(loops) > 1 or body.atoms or not body.stores or any(s.mode != "set" for s in body.stores):
        return False
    if any(v.op in _PLACED or v.op.startswith("random") for v in body.vals):
        return False
    return all(body.space[v].is_const and body.space[v] is not ZERO for v in loops)


def _of_one_element(nest: Nest) -> Nest:
    """A body without loops as one along a tensor of one element; beside such tensors, those without dimensions are
    numbers that belong to no place."""
    variable = ex.symbol("one")
    only_numbers = all(not s.buffer.shape for s in nest.body.stores)
    at = lambda node: variable if node.shape or only_numbers else ZERO

    def change(v: Val, copies: Mapping[int, Val], _: object) -> Val | None:
        if v.op != "load":
            return None
        return Val("load", tuple(copies[a.id] for a in v.args), v.dtype, v.attr, at(v.attr))

    stores = [Store(s.buffer, at(s.buffer), s.value) for s in nest.body.stores]
    body = nest.body.rewritten(stores, change, outer=[variable])
    body.space[variable] = ONE
    body.refresh()
    return Nest(body, [variable], [], variable)


def walked(body: Body, variable: Expr) -> dict[Node, bool] | None:
    """Of each buffer, whether it is walked in steps of one; None where one is walked otherwise, or both ways."""
    found: dict[Node, bool] = {}
    for node, at in body.accesses():
        moves = at is variable
        if not (moves or at is ZERO) or found.setdefault(node, moves) is not moves or node.kind == "part":
            return None
    return found


class RowBlock(Block):
    """Renders parts of rows: the statements of :class:`Block`, taken where they come."""

    def along(self, variable: Expr) -> _Axis:
        """The axis of the tensor's elements, called ``x``."""
        axis = _Axis("x", [variable], 1)
        self.axes.append(axis)
        self.axis_of[variable] = axis
        self.names.rename(variable, "x")
        return axis

    def taken(self, values: Iterable[Val], stores: bool = False) -> tuple[str, ...]:
        """The statements of values, and of the stores, without indentation."""
        self.depth, self.lines = 0, []
        for v in values:
            self.emit(v)
        for s in self.body.stores if stores else ():
            self.store(s)
        taken, self.lines = tuple(self.lines), []
        return taken


class _Renderer(RowBlock):
    def row(self, walked: dict[Node, bool]) -> Row:
        (variable,) = self.nest.outer
        axis = self.along(variable)
        moving = [v for v in self.body.vals if v.deps]
        once = self.taken(v for v in self.body.vals if not v.deps)
        axis.masked = False
        whole = self.taken(moving, stores=True)
        axis.masked = True
        masked = self.taken(moving, stores=True)
        names = self.names
        buffers = tuple(names.buffers)
        count = int(self.body.space[variable].value)
        moved = sum(n.dtype.itemsize for n in buffers if n.dtype)
        return Row(
            self.nest, once, whole, masked, buffers, names.outputs, tuple(walked[n] for n in buffers), count,
            tuple(names.sizes), sum(op_cost(v.op) for v in moving), moved,
        )  # fmt: skip



def multi_tensor(rows: Sequence[Row], renderer: TritonRenderer) -> TritonSource:
    """The kernel of rows of one key."""
    first = rows[0]
    block = flat_block(sum(row.count for row in rows), renderer.device, first.work, first.moved, len(first.buffers))
    block = renderer.tiling.sized(block, 64)
    room, words, programs = starts(rows, block)
    lines = [
        *finding(room, block), f"x = tl.arange(0, {block})",
        *first.pointers(str(room)), *first.once,
        f"if left == {block}:", *indented(first.whole), "else:", *indented(["xm = x < left", *first.masked]),
    ]  # fmt: skip
    columns = [row.buffers[k] for k in range(len(first.buffers)) for row in rows]
    return with_table(lines, rows, words, columns, first.outputs * len(rows), first.sizes, programs, renderer)


def starts(rows: Sequence[Row], chunk: int) -> tuple[int, list[int], int]:
    """How many first programs a table begins with (a power of two), its words (these, and each tensor's elements), and
    the number of programs, each of which takes a chunk."""
    room = 1 << (len(rows) - 1).bit_length()
    begun = [0, *accumulate(-(-row.count // chunk) for row in rows)]
    return room, [*begun[:-1], *[_END] * (room - len(rows)), *(row.count for row in rows)], begun[-1]


def finding(room: int, chunk: int) -> list[str]:
    """The statements that find a program's tensor ``t``, its ``first`` element there and how many are ``left``."""
    lines = ["program = tl.program_id(0)", "t = program * 0"]
    step = room // 2
    while step:
        lines.append(f"t += tl.where(tl.load(table + t + {step}) <= program, {step}, 0)")
        step //= 2
    lines.append(f"first = (program - tl.load(table + t)) * {chunk}")
    lines.append(f"left = tl.minimum(tl.load(table + {room} + t) - first, {chunk}).to(tl.int32)")
    return lines


def pointer(name: str, dtype: torch.dtype | None, place: str, moves: bool = False) -> str:
    """The statement that reads a pointer from a table; of a buffer that is walked, at the program's first element."""
    kind = ROWS[dtype].in_triton or ROWS[dtype].triton  # type: ignore[index]
    address = f"tl.load(table + {place}).to(tl.pointer_type({kind}))"
    return f"{name} = tl.multiple_of({address}, 16){' + first' if moves else ''}"


def with_table(
    lines: Sequence[str], rows: Sequence[Row], words: Sequence[int], columns: Sequence[Node], outputs: int,
    sizes: tuple[Expr, ...], programs: int, renderer: TritonRenderer,
) -> TritonSource:  # fmt: skip
    """The kernel of these statements, which gets its buffers by a table of ``words`` and their addresses, the first
    ``outputs`` of which it writes."""
    table = Node(10**9, "pointwise", "table", (), TensorSpec((), torch.int64, rows[0].buffers[0].device))
    table.shape = (ex.const(len(words) + len(columns)),)
    signature = [("table", pointer_type(torch.int64), True), ("tensors", "i32", False)]
    signature += [(f"n{k}", "fp64" if e.is_float else "i64", False) for k, e in enumerate(sizes)]
    text = kernel_text(signature, 4, indented(lines))
    _, _, ops = describe(rows[0].nest, text)
    comments = dict.fromkeys(line for row in rows for line in describe(row.nest, text)[1].splitlines())
    return TritonSource(
        name=kernel_name(ops, text), text=text, comment="\n".join(list(comments)[:12]), buffers=(table, *columns),
        outputs=1 + outputs, sizes=(ex.const(len(rows)), *sizes), ops=ops, loops=len(rows),
        grid=(ex.const(programs), ONE), warps=4, signature=tuple(signature), words=tuple(words),
        contract=renderer.contract and not any(rounds_apart(row.nest.body, looped=True) for row in rows),
    )  # fmt: skip


def indented(lines: Iterable[str]) -> list[str]:
    """Statements of a block."""
    return [f"    {line}" for line in lines]
