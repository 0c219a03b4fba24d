"""Triton kernels over many tensors: one launch computes the same on each of hundreds of tensors of any sizes.

An optimizer does the same few operations to each parameter, its gradient and its state. A *row* is a kernel that walks
its buffers along one flat axis, rendered without its buffers' addresses and without its length; kernels of equal rows
become one, which takes a table instead: of each tensor the number of its first program, its length, and the addresses
of its buffers. The launcher writes the table on the device just before (``runtime/launch.py``), so that a call neither
copies nor waits, and a recorded CUDA graph holds the addresses. A program finds its tensor by bisection, as the chunks
of multi-tensor kernels are found elsewhere by a list of them (Apex's multi_tensor_apply, 2018).

A block within the tensor needs no mask, so that loads and stores stay wide whatever the length is; the last one has one.
Programs of several blocks, which would find their tensor once for all of them, were never faster: AdamW on the 199
parameters of a BERT-base takes an H200 0.73 ms with one block a program, 0.75 with four, 0.77 with sixteen (PyTorch's
fused kernel: 0.83).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from inductor_gen.codegen.renderer import describe, kernel_name
from inductor_gen.codegen.triton import Block, TritonRenderer, TritonSource, _Axis, flat_block, kernel_text
from inductor_gen.codegen.tritonexpr import pointer_type
from inductor_gen.kernel.body import Body, Store, Val
from inductor_gen.kernel.nest import Nest
from inductor_gen.loops.cost import op_cost
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import ONE, ZERO
from prims.dtypes import ROWS
from prims.records import record
from prims.spec import TensorSpec
from prims.spec import expr as ex
from prims.spec.expr import Expr

__all__ = ["Row", "multi_tensor", "row_of"]

#: What depends on where an element is, on its row's number, or on who comes first.
_PLACED = ("index", "test", "bounded", "nonzero", "scan", "reduce")

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

    def key(self) -> object:
        """Rows of equal keys are of one kernel."""
        kinds = tuple((n.dtype, moves) for n, moves in zip(self.buffers, self.moving, strict=True))
        return self.once, self.whole, self.masked, kinds, self.outputs, self.sizes, self.buffers[0].device


def row_of(nest: Nest, renderer: TritonRenderer) -> Row | None:
    """The row of a nest, None where its buffers are not walked along one axis of known length.

    Raises:
        Unsupported: Triton has no expression for something in it.
    """
    if nest.inner or len(nest.outer) > 1 or nest.body.atoms or not nest.body.stores:
        return None
    if any(v.op in _PLACED or v.op.startswith("random") for v in nest.body.vals):
        return None
    if any(s.mode != "set" for s in nest.body.stores):
        return None
    if not nest.outer:
        nest = _of_one_element(nest)
    body, (variable,) = nest.body, nest.outer
    length = body.space[variable]
    walked = _walked(body, variable)
    if not length.is_const or length is ZERO or walked is None or any(s.at is ZERO for s in body.stores):
        return None
    return _Renderer(nest, renderer).row(walked)


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


def _walked(body: Body, variable: Expr) -> dict[Node, bool] | None:
    """Of each buffer, whether it is walked in steps of one; None where one is walked otherwise, or both ways."""
    found: dict[Node, bool] = {}
    for node, at in body.accesses():
        moves = at is variable
        if not (moves or at is ZERO) or found.setdefault(node, moves) is not moves or node.kind == "part":
            return None
    return found


class _Renderer(Block):
    """Renders a row: the statements of :class:`Block`, taken where they come."""

    def row(self, walked: dict[Node, bool]) -> Row:
        (variable,) = self.nest.outer
        axis = _Axis("x", [variable], 1)
        self.axes.append(axis)
        self.axis_of[variable] = axis
        self.names.rename(variable, "x")
        fixed = [v for v in self.body.vals if not v.deps]
        moving = [v for v in self.body.vals if v.deps]
        once = self._taken(fixed, stores=False)
        axis.masked = False
        whole = self._taken(moving, stores=True)
        axis.masked = True
        masked = self._taken(moving, stores=True)
        names = self.names
        buffers = tuple(names.buffers)
        return Row(
            self.nest, once, whole, masked, buffers, names.outputs, tuple(walked[n] for n in buffers),
            int(self.body.space[variable].value), tuple(names.sizes), sum(op_cost(v.op) for v in moving), sum(n.dtype.itemsize for n in buffers if n.dtype),
        )  # fmt: skip

    def _taken(self, values: Sequence[Val], stores: bool) -> tuple[str, ...]:
        """The statements of values, and of the stores, without indentation."""
        self.depth, self.lines = 0, []
        for v in values:
            self.emit(v)
        for s in self.body.stores if stores else ():
            self.store(s)
        taken, self.lines = tuple(self.lines), []
        return taken


def multi_tensor(rows: Sequence[Row], renderer: TritonRenderer) -> TritonSource:
    """The kernel of rows of one key."""
    first = rows[0]
    total = sum(row.count for row in rows)
    block = flat_block(total, renderer.device, first.work, first.moved, len(first.buffers))
    block = renderer.tiling.sized(block, 64)
    room = 1 << (len(rows) - 1).bit_length()
    starts, begun = [], 0
    for row in rows:
        starts.append(begun)
        begun += -(-row.count // block)
    words = [*starts, *[_END] * (room - len(rows)), *(row.count for row in rows)]
    table = Node(10**9, "pointwise", "table", (), TensorSpec((), torch.int64, first.buffers[0].device))
    columns = [row.buffers[k] for k in range(len(first.buffers)) for row in rows]
    table.shape = (ex.const(len(words) + len(columns)),)
    signature = [("table", pointer_type(torch.int64), True), ("tensors", "i32", False)]
    signature += [(f"n{k}", "fp64" if e.is_float else "i64", False) for k, e in enumerate(first.sizes)]
    text = kernel_text(signature, 4, _lines(first, room, block))
    ops = describe(first.nest, text)[2]
    comments = dict.fromkeys(line for row in rows for line in describe(row.nest, text)[1].splitlines())
    return TritonSource(
        name=kernel_name(ops, text), text=text, comment="\n".join(list(comments)[:12]), buffers=(table, *columns),
        outputs=1 + first.outputs * len(rows), sizes=(ex.const(len(rows)), *first.sizes), ops=ops, loops=len(rows),
        grid=(ex.const(begun), ONE), warps=4, signature=tuple(signature), contract=renderer.contract,
        words=tuple(words),
    )  # fmt: skip


def _lines(row: Row, room: int, block: int) -> list[str]:
    lines = ["program = tl.program_id(0)", "t = program * 0"]
    step = room // 2
    while step:
        lines.append(f"t += tl.where(tl.load(table + t + {step}) <= program, {step}, 0)")
        step //= 2
    lines.append(f"first = (program - tl.load(table + t)) * {block}")
    lines.append(f"left = tl.minimum(tl.load(table + {room} + t) - first, {block}).to(tl.int32)")
    lines.append(f"x = tl.arange(0, {block})")
    for k, (node, moves) in enumerate(zip(row.buffers, row.moving, strict=True)):
        name = f"{'out' if k < row.outputs else 'in'}{k}"
        kind = ROWS[node.dtype].in_triton or ROWS[node.dtype].triton  # type: ignore[index]
        address = f"tl.load(table + {room} + {k + 1} * tensors + t).to(tl.pointer_type({kind}))"
        lines.append(f"{name} = tl.multiple_of({address}, 16){' + first' if moves else ''}")
    lines += row.once
    lines += [f"if left == {block}:", *_indented(row.whole), "else:", *_indented(["xm = x < left", *row.masked])]
    return _indented(lines)


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]
