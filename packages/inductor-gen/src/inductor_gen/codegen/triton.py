"""Triton kernels.

A kernel works on blocks. Pointwise bodies run over one flattened axis ``x``, or over tiles ``y`` by ``x`` where the
operands' layouts disagree about the contiguous dimension; what is left of the loops is decoded from the program's
number. Reductions have rows ``x`` and a reduction axis ``r`` and come in three shapes:

* persistent: a block holds whole rows, everything is computed once (softmax, layer norm);
* looped: one loop over the row per stage, elementwise accumulators, recomputing cheap values as the C kernels do;
* split: too few rows to fill the device: per reduction a kernel whose programs share a row's columns and one that puts
  their results together, in a fixed order, so that results are reproducible; what is left along the rows is pointwise.

Sizes and strides are arguments, but for small ones and divisors; float16 and bfloat16 are computed in float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from inductor_gen.codegen.renderer import KernelSource, describe, kernel_name
from inductor_gen.codegen.tritonexpr import TritonNames, multiple_of, pointer_type, store_mode
from inductor_gen.device.record import Device
from inductor_gen.kernel.body import Body, Store, Val, linear, rounds_apart
from inductor_gen.kernel.nest import Nest
from inductor_gen.layout.record import Layout
from inductor_gen.loops.cost import op_cost, op_length
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import ONE, ZERO, Hint, contiguous_strides, product, upper
from prims.options import Options
from prims.records import record
from prims.spec import TensorSpec
from prims.spec import expr as ex
from prims.spec.expr import Expr

__all__ = ["POSITIONS", "Block", "Tiling", "TritonRenderer", "TritonSource", "as_one", "kernel_text"]

POSITIONS = 2**31 - 2**16  # positions stay below this, or are 64-bit: a block's last ones may lie beyond the end


@record(kw_only=True)
class TritonSource(KernelSource):
    """A Triton kernel.

    Attributes:
        warps: warps per program.
        stages: depth of the software pipeline of its loops; 0: Triton's own choice.
        registers: how many a thread may have; 0: ptxas's own choice.
        contract: whether a product may go unrounded into a sum.
        signature: per parameter ``(name, type, divisible by 16)``.
        bounds: symbolic counts that must stay below ``POSITIONS``, as positions are 32-bit.
        joined: the different kernels of which this one is made, if it is.
    """

    warps: int
    signature: tuple[tuple[str, str, bool], ...]
    stages: int = 0
    registers: int = 0
    contract: bool = True
    bounds: tuple[Expr, ...] = ()
    joined: tuple[TritonSource, ...] = ()
    language: str = "triton"

    def named(self) -> str:
        """The text with its name and comment."""
        return "".join(f"# {line}\n" for line in self.comment.splitlines()) + self.text.replace("KERNEL", self.name, 1)


def kernel_text(signature: Sequence[tuple[str, str, bool]], warps: int, lines: Iterable[str]) -> str:
    """A kernel of these parameters and statements; its comment tells apart what is compiled differently."""
    hints = " ".join(f"{name}:{kind}{'/16' if aligned else ''}" for name, kind, aligned in signature)
    head = f"# {hints} warps:{warps}\n@triton.jit\ndef KERNEL({', '.join(name for name, _, _ in signature)}):\n"
    return head + "\n".join(lines) + "\n"


def as_one(group: Sequence[TritonSource], text: str, ops: tuple[str, ...], **changes: Any) -> TritonSource:
    """A kernel of this text and these operators that does what several do; ``changes`` are its parameters."""
    return replace(
        group[0], name=kernel_name(ops, text), text=text, ops=ops, loops=sum(s.loops for s in group),
        bounds=tuple(dict.fromkeys(b for s in group for b in s.bounds)), **changes,
    )  # fmt: skip


@dataclass(frozen=True, order=True)
class Tiling:
    """How a kernel's blocks and warps depart from what the renderer would choose, as powers of two."""

    block: int = 0
    warps: int = 0

    def sized(self, block: int, least: int = 1, most: int = 8192) -> int:
        """The size of a block."""
        return min(max(_shifted(block, self.block), least), max(most, block))

    def teams(self, warps: int) -> int:
        """The number of warps."""
        return min(max(_shifted(warps, self.warps), 1), 16)


def _shifted(n: int, by: int) -> int:
    return n << by if by >= 0 else n >> -by


@record(frozen=False)
class _Axis:
    """A block axis: the loop variables flattened into it, outermost first."""

    name: str
    vars: list[Expr]
    block: int
    view: str = ""
    masked: bool = True


def _power(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def most_each(body: Body) -> int:
    """The most elements, a power of two, that a thread should have: compilers repeat a kernel's operations, loads and
    stores for each, and more of either would take more than a second or two."""
    length, accesses = sum(op_length(v.op) for v in body.vals), len(body.accesses())
    each = min(_LENGTH // max(length, 1), _ACCESSES // max(accesses, 1))
    return 1 << max(each, 1).bit_length() - 1


#: The length (``op_length``), and the loads and stores, of all of a thread's elements: Triton takes 1.5 seconds.
_LENGTH, _ACCESSES = 6000, 320


class TritonRenderer:
    """Renders loop nests as Triton over buffers with these layouts, in blocks that suit ``device``."""

    def __init__(
        self, hint: Hint, layouts: Mapping[Node, Layout], device: Device, options: Options,
        tiling: Tiling | None = None,
    ) -> None:  # fmt: skip
        self.hint = hint
        self.device = device
        self.contract = options.numerics == "fast"
        self.in_order = options.batch_invariant
        self.layouts = layouts
        self.tiling = tiling or Tiling()

    def render(self, nest: Nest) -> tuple[KernelSource, ...]:
        """The kernels of a nest: one, or one per stage of a split reduction.

        Raises:
            Unsupported: Triton has no expression for something in it.
        """
        if not nest.inner:
            return (_Pointwise(nest, self).finish(),)
        from inductor_gen.codegen.tritonreduce import reduction_kernels

        return reduction_kernels(nest, self)

    def together(self, pieces: Sequence[Sequence[KernelSource]]) -> Sequence[KernelSource]:
        """The kernels of nests that do not depend on each other, in as few launches as there can be."""
        from inductor_gen.codegen.tritonbranch import branched, joined

        found = [k for piece in pieces for k in piece]
        return found if any(len(piece) > 1 for piece in pieces) else branched(joined(found))


class Block:
    """What pointwise and reduction kernels share: axes, indices, loads and stores.

    ``whole_tiles``: stores write along all axes, whatever the value depends on.
    """

    whole_tiles = False

    def __init__(self, nest: Nest, renderer: TritonRenderer, written: list[Node] | None = None) -> None:
        self.nest = nest
        self.body: Body = nest.body
        self.renderer = renderer
        self.hint = renderer.hint
        if written is None:
            written = list(dict.fromkeys(s.buffer for s in self.body.stores))
        self.names = TritonNames(self.body, [*nest.outer, *nest.inner], written)
        self.axes: list[_Axis] = []
        self.axis_of: dict[Expr, _Axis] = {}
        self.lines: list[str] = []
        self.depth = 1
        self.group_start: str | None = None  # where the last axis's positions begin, if they are consecutive
        self.grouped = False  # whether every fourth of them has a name
        self.wide = self.names.wide = self._is_wide()

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def extent(self, variables: Iterable[Expr]) -> Expr:
        """The number of points of some loop variables."""
        return product(self.body.space[v] for v in variables)

    def _is_wide(self) -> bool:
        """Do positions need 64 bits?"""
        space = self.body.space
        if self.hint(self.extent(space)) >= POSITIONS:
            return True
        for at in self.body.indices():
            high = upper(at, space)
            if high is not None and self.hint(high) >= POSITIONS:
                return True
        return any(self.hint(self._reach(b)) >= POSITIONS for b, _ in self.body.accesses())

    def _reach(self, node: Node) -> Expr:
        """An upper bound of the distance between a buffer's elements, in elements."""
        layout = self.renderer.layouts.get(node)
        if layout is None or layout.strides == contiguous_strides(node.shape):
            return product(node.shape)
        reach = ONE
        for size, stride in zip(node.shape, layout.strides, strict=True):
            reach = ex.add(reach, ex.mul(ex.sub(size, ONE), stride))
        return reach

    def _bounds(self) -> tuple[Expr, ...]:
        """The symbolic counts that 32-bit positions rely on."""
        counts = [self.extent(self.body.space), *(self._reach(b) for b in self.names.buffers)]
        return tuple(dict.fromkeys(c for c in counts if not c.is_const))

    # ---- axes -------------------------------------------------------------------------------------------

    def add_axis(self, axis: _Axis) -> None:
        total = self.extent(axis.vars)
        axis.masked = total is ZERO or not multiple_of(total, axis.block)
        self.axes.append(axis)
        for v in axis.vars:
            self.axis_of[v] = axis
        self.line(f"{axis.name.upper()}BLOCK: tl.constexpr = {axis.block}")

    def program(self, axis: int = 0) -> str:
        """The program's number along a grid axis."""
        return f"tl.program_id({axis}).to(tl.int64)" if self.wide else f"tl.program_id({axis})"

    def decode(self, name: str, variables: list[Expr]) -> None:
        """Loop variables from a flat position: the last one varies fastest."""
        for k, v in enumerate(variables):
            step = self.extent(variables[k + 1 :])
            text = name if step is ONE else f"{name} // {self.names.divisor(step)}"
            if k:
                text = f"{text if step is ONE else f'({text})'} % {self.names.divisor(self.body.space[v])}"
            self.line(f"{self.names.var(v)} = {text}")

    def bound(self, axis: _Axis, total: str) -> None:
        """The axis's mask and loop variables."""
        if axis.masked:
            self.line(f"{axis.name}m = {axis.name} < {total}")
        self.decode(axis.name, axis.vars)

    def axes_of(self, deps: Iterable[Expr]) -> list[_Axis]:
        found = {id(self.axis_of[v]) for v in deps if v in self.axis_of}
        return [a for a in self.axes if id(a) in found]

    def zeros(self, axes: list[_Axis]) -> str:
        """A block of zeros with the shape of values that change along these axes."""
        sizes = ", ".join(f"{a.name.upper()}BLOCK" if a in axes else "1" for a in self.axes)
        return f"tl.zeros([{sizes}], tl.int32)"

    def mask(self, axes: list[_Axis], *more: str) -> str:
        terms = [f"{a.name}m" for a in axes if a.masked]
        terms += more
        return " & ".join(terms)

    # ---- values -----------------------------------------------------------------------------------------

    def index_deps(self, at: Expr) -> set[Expr]:
        deps: set[Expr] = set()
        for s in at.symbols:
            if s in self.body.space:
                deps.add(s)
            elif s in self.body.atoms:
                deps |= self.body.atoms[s].deps
        return deps

    def load(self, v: Val) -> str:
        assert v.at is not None
        node: Node = v.attr
        pointer_type(v.dtype)
        own = self.axes_of(self.index_deps(v.at))
        axes = self.axes_of(v.deps)
        zero = None if own == axes else self.zeros(axes)
        more = tuple(self.names.val(a) for a in v.args)
        mask = self.mask(axes, *more)
        address = self.names.address(node, v.at, zero)
        text = f"tl.load({address}, {mask}, other=0)" if mask else f"tl.load({address})"
        return self.names.loaded(text, v.dtype)

    def emit(self, v: Val) -> None:
        if v.id in self.names.passed:
            return
        if v.op == "bounded":
            self.line(self.assertion(v))
        text = self.load(v) if v.op == "load" else None
        if v.op == "random_uniform":
            from inductor_gen.codegen.tritonrandom import uniform_in_fours

            text = uniform_in_fours(self, v)
        self.line(f"{self.names.val(v)} = {self.names.expression(v) if text is None else text}")

    def assertion(self, v: Val) -> str:
        """The check of an index that the data gives: one out of range stops the kernel, as it does eager's."""
        index, *condition = (self.names.val(a) for a in v.args)
        holds = f"({index} >= 0) & ({index} < {self.names.size(v.attr)})"
        mask = self.mask(self.axes_of(v.deps), *condition)
        return f"tl.device_assert({holds}, 'index out of range'{', ' + mask if mask else ''})"

    def store(self, s: Store, *more: str, shaped: bool = False) -> None:
        """Write a value; ``shaped``: it is a block even where it depends on no variable. What is combined with
        others at its place is so once for every point, whatever it depends on."""
        pointer_type(s.value.dtype)
        own = self.axes_of(self.index_deps(s.at))
        every = s.mode != "set" or self.whole_tiles
        axes = self.axes if every else self.axes_of(self.index_deps(s.at) | set(s.value.deps))
        zero = self.zeros(axes) if shaped or own != axes else None
        mask = self.mask(axes, *more)
        value = self.names.stored(self.names.val(s.value), s.value.dtype)
        address = self.names.address(s.buffer, s.at, zero)
        self.line(f"{store_mode(s)}({address}, {value}{', ' + mask if mask else ''})")

    def values(self) -> None:
        """All values and stores of the body, in order."""
        for v in self.body.vals:
            self.emit(v)
        for s in self.body.stores:
            self.store(s)

    # ---- assembling -------------------------------------------------------------------------------------

    def source(self, grid: tuple[Expr, Expr], warps: int, loops: int) -> TritonSource:
        """The finished kernel."""
        names = self.names
        signature: list[tuple[str, str, bool]] = []
        for node in names.buffers:
            signature.append((names.pointer(node), pointer_type(node.dtype), True))  # type: ignore[arg-type]
        for k, e in enumerate(names.sizes):
            if e.is_float:
                signature.append((f"n{k}", "fp64", False))
            else:
                wide = self.wide or (e.is_const and abs(e.value) >= 2**31)
                signature.append((f"n{k}", "i64" if wide else "i32", multiple_of(e, 16)))
        text = kernel_text(signature, warps, self.lines)
        name, comment, ops = describe(self.nest, text)
        return TritonSource(
            name=name, text=text, comment=comment, buffers=tuple(names.buffers), outputs=names.outputs,
            sizes=tuple(names.sizes), ops=ops, loops=loops, grid=grid, warps=warps, signature=tuple(signature),
            bounds=() if self.wide else self._bounds(),
            contract=self.renderer.contract and not rounds_apart(self.body, looped=loops > 1),
        )  # fmt: skip

    def workspace(self, shape: tuple[Expr, ...], dtype: torch.dtype) -> Node:
        """A row-major buffer for partial results between two kernels."""
        node = Node(10**9, "pointwise", "partial", (), TensorSpec((), dtype, self.device()))
        node.shape = shape
        return node

    def device(self) -> torch.device:
        """The device that the kernel's results live on."""
        return self.body.stores[0].buffer.device  # type: ignore[return-value]


def flat_block(count: int, device: Device, operations: int = 0, moved: int = 4, streams: int = 3) -> int:
    """The positions that a program of four warps takes of ``count``; of each, it computes ``operations`` (as
    ``op_cost`` counts them) and moves that many bytes of so many buffers.

    Each thread's loads are in flight together, so that a quarter of the resident programs hides memory's latency with
    eight positions a thread; with four, an eighth is left to be filled by what runs beside. Arithmetic that takes
    longer than memory hides its own latency in more threads of fewer positions, as long as these begin fast enough; a
    little of it, in more positions a thread (``benchmarks/device_constants.py blocks`` on an H200: 20 sines in a row
    take 1.52 ms with 1,024 positions and 1.23 with 128, 4 take 0.27 with 1,024 and 0.25 with 512, one gelu 99 us with
    1,024 and 92 with 2,048).
    """
    slots = device.slots(4 * device.warp)
    computing, moving = operations / (device.flops32 / 4), moved / device.bandwidth
    block = 1024 if 4 * count >= 1024 * slots else 512 if 8 * count >= 512 * slots else 256
    if computing > 3 * moving:
        while block > 128 and device.begin_cost / device.multiprocessors / (block // 2) < 0.4 * computing:
            block //= 2
    elif computing > moving / 2 and streams <= 2 and count >= 4 * 2048 * slots:
        block = 2048
    return block


class _Pointwise(Block):
    def finish(self) -> TritonSource:
        loops = list(self.nest.outer)
        if not loops:
            return self._scalar()
        lane = loops[-1]
        cross = self._crossed(loops, lane)
        if cross is not None:
            return self._tiled([v for v in loops if v not in (cross, lane)], cross, lane)
        symbolic = any(not self.body.space[v].is_const for v in loops[1:])
        if symbolic and self.hint(self.body.space[lane]) >= 256:
            return self._tiled(loops[:-1], None, lane)
        return self._flat(loops)

    def _scalar(self) -> TritonSource:
        self.values()
        return self.source((ONE, ONE), 1, 1)

    def _flat(self, loops: list[Expr]) -> TritonSource:
        total = self.extent(loops)
        tiling = self.renderer.tiling
        buffers = {node for node, _ in self.body.accesses()}
        work, moved = sum(op_cost(v.op) for v in self.body.vals), sum(n.dtype.itemsize for n in buffers if n.dtype)
        block = flat_block(self.hint(total), self.renderer.device, work, moved, len(buffers))
        block = tiling.sized(min(block, 4 * self.renderer.device.warp * most_each(self.body)), 64)
        axis = _Axis("x", loops, block)
        self.add_axis(axis)
        self.line(f"x = {self.program()} * XBLOCK + tl.arange(0, XBLOCK)")
        self.group_start = f"{self.program()} * XBLOCK"
        self.bound(axis, self.names.size(total) if axis.masked else "")
        self.values()
        return self.source((ex.ceildiv(total, ex.const(block)), ONE), tiling.teams(4), 1)

    def _crossed(self, loops: list[Expr], lane: Expr) -> Expr | None:
        """Another variable that runs through memory in steps of one where the lane does not."""
        if self.hint(self.body.space[lane]) < 16:
            return None
        for _, at in self.body.accesses():
            step = linear(self.body, at, lane)
            if step is None or (step.is_const and step.value in (0, 1)):
                continue
            for v in loops[:-1]:
                if linear(self.body, at, v) is ONE and self.hint(self.body.space[v]) >= 16:
                    return v
        return None

    def _tiled(self, around: list[Expr], cross: Expr | None, lane: Expr) -> TritonSource:
        space = self.body.space
        tiling = self.renderer.tiling
        most = 4 * self.renderer.device.warp * most_each(self.body)
        if cross is None:
            width = tiling.sized(min(1024, most, max(_power(self.hint(space[lane])), 128)), 64)
            axes = [_Axis("x", [lane], width)]
        else:
            height = tiling.sized(min(64, most // 32, _power(self.hint(space[cross]))), 8, 256)
            wide = [_Axis("y", [cross], height), _Axis("x", [lane], 32)]
            wide[0].view, wide[1].view = "[:, None]", "[None, :]"
            axes = wide
        self.line(f"p = {self.program()}")
        grid = ONE
        for axis in reversed(axes):
            self.add_axis(axis)
        self.axes.reverse()
        for axis in reversed(axes):
            total = space[axis.vars[0]]
            count = ex.ceildiv(total, ex.const(axis.block))
            grid = ex.mul(grid, count)
            block = f"{axis.name.upper()}BLOCK"
            place = "p"
            if around or axis is not axes[0]:
                place = f"p % {self.names.divisor(count)}"
            self.line(f"{axis.name} = ({place} * {block} + tl.arange(0, {block})){axis.view}")
            if place != "p":
                self.line(f"p = p // {self.names.divisor(count)}")
            self.bound(axis, self.names.size(total) if axis.masked else "")
        self.decode("p", around)
        grid = ex.mul(grid, self.extent(around))
        self.values()
        return self.source((grid, ONE), tiling.teams(4), 1)
