"""The matrix product as a Triton template.

The textbook tiling: a program computes one tile of the result, walking the inner dimension in blocks and adding up in
float32; programs are numbered in groups of rows of tiles so that those running together share operands in the L2 cache
(as Triton's matrix multiplication tutorial explains). What reads the product, element by element, follows in registers:
its body is rendered by the code that renders pointwise kernels.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from inductor_gen.codegen.triton import Block, TritonRenderer, TritonSource, _Axis
from inductor_gen.codegen.tritonexpr import multiple_of, pointer_type
from inductor_gen.kernel.body import Body, Store, Val
from inductor_gen.kernel.nest import Nest, collapse
from inductor_gen.layout.record import ViewRef
from inductor_gen.loops.index import ONE, ZERO, product
from inductor_gen.templates.product import Fit, Product
from prims.dtypes import ROWS
from prims.spec import expr as ex
from prims.spec.expr import Expr

__all__ = ["Tile", "matmul_kernel"]


@dataclass(frozen=True, order=True)
class Tile:
    """Rows and columns of a tile, its depth along the inner dimension, warps per program, stages of the pipeline.

    Programs take tiles in groups of ``group`` rows of tiles. With ``lasting``, as many programs as the device has
    multiprocessors take one tile after the other: the next one's operands arrive while a result is stored.
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int
    group: int = 8
    lasting: bool = False

    def __str__(self) -> str:
        text = f"{self.m}x{self.n}x{self.k} warps {self.warps} stages {self.stages}"
        return f"{text} lasting" if self.lasting else text


class _Matmul(Block):
    def __init__(
        self, nest: Nest, renderer: TritonRenderer, p: Product, fit: Fit, tile: Tile, precision: str, rounded: bool
    ) -> None:
        self.product = p
        super().__init__(nest, renderer)
        self.fit = fit
        self.tile = tile
        self.precision = precision
        self.rounded = rounded

    def _is_wide(self) -> bool:
        p = self.product
        limit = 2**31 - 2**16
        sizes = [product((*p.batch, p.m, p.k)), product((*p.batch, p.k, p.n))]
        sizes += [product(ref.base.shape) for ref in (p.a, p.b)]
        return super()._is_wide() or any(self.hint(s) >= limit for s in sizes)

    # ---- the product ------------------------------------------------------------------------------------

    def finish(self) -> TritonSource:
        p, tile = self.product, self.tile
        self.line(f"# {tile}, groups of {tile.group}")
        y = _Axis("y", self.fit.rows, tile.m, "[:, None]")
        x = _Axis("x", self.fit.columns, tile.n, "[None, :]")
        for axis in (y, x):
            self.add_axis(axis)
        self.line(f"KBLOCK: tl.constexpr = {tile.k}")
        grid = self._place()
        self.line("y0 = py * YBLOCK + tl.arange(0, YBLOCK)")
        self.line("x0 = px * XBLOCK + tl.arange(0, XBLOCK)")
        self._multiply()
        self.line("y = y0[:, None]")
        self.line("x = x0[None, :]")
        self.bound(y, self.names.size(p.m) if y.masked else "")
        self.bound(x, self.names.size(p.n) if x.masked else "")
        if self.fit.batch:
            self.decode("z", self.fit.batch)
        self._scale()
        if self.rounded and p.node.dtype != torch.float32:
            self.line(f"acc = acc.to({ROWS[p.node.dtype].in_triton}).to(tl.float32)")
        self._values()
        self.depth = 1
        made = self.source((grid, ONE), tile.warps, 1)
        return dataclasses.replace(made, name=made.name.replace(".", "_"), stages=tile.stages)

    def _values(self) -> None:
        """What the body makes of the product."""
        for v in self.body.vals:
            self.emit(v)
        for s in self.body.stores:
            self.store(s)

    def _place(self) -> Expr:
        """The program's tile ``py, px`` and batch ``z``; returns the number of programs."""
        p, tile, names = self.product, self.tile, self.names
        count = product(p.batch)
        programs = ex.mul(ex.mul(ex.ceildiv(p.m, ex.const(tile.m)), ex.ceildiv(p.n, ex.const(tile.n))), count)
        # of sizes that are parameters: problems of several sizes share the kernel
        self.line(f"down = tl.cdiv({names.param(p.m)}, YBLOCK)")
        self.line(f"across = tl.cdiv({names.param(p.n)}, XBLOCK)")
        if tile.lasting:
            total = "down * across" if count is ONE else f"down * across * {names.size(count)}"
            programs = ex.minimum(programs, ex.const(self.renderer.device.multiprocessors))
            self.line(f"for turn in tl.range(tl.program_id(0), {total}, tl.num_programs(0), flatten=True):")
            self.depth += 1
            self.line(f"p = turn{'.to(tl.int64)' if self.wide else ''}")
        else:
            self.line(f"p = {self.program()}")
        if count is not ONE:
            self.line("z = p // (down * across)")
            self.line("p = p % (down * across)")
            for d, extent in enumerate(p.batch):
                if extent is ONE:
                    continue
                step = product(p.batch[d + 1 :])
                text = "z" if step is ONE else f"z // {names.divisor(step)}"
                self.line(f"z{d} = {text}" if d == 0 else f"z{d} = ({text}) % {names.divisor(extent)}")
        self.line(f"first = p // ({tile.group} * across) * {tile.group}")
        self.line(f"rows = tl.minimum(down - first, {tile.group})")
        self.line(f"p = p % ({tile.group} * across)")
        self.line("py = first + p % rows")
        self.line("px = p // rows")
        return programs

    def _start(self, ref: ViewRef) -> str:
        """Where a batch's matrix begins."""
        parts = [self.names.pointer(ref.base)]
        if ref.offset is not ZERO:
            parts.append(self.names.size(ref.offset))
        for d, extent in enumerate(self.product.batch):
            stride = ref.strides[d]
            if extent is not ONE and stride is not ZERO:
                parts.append(f"z{d}" if stride is ONE else f"z{d} * {self.names.size(stride)}")
        return " + ".join(parts)

    def _along(self, index: str, stride: Expr) -> str:
        return index if stride is ONE else f"{index} * {self.names.size(stride)}"

    def _multiply_row(self) -> None:
        """The same for one row: products of vectors, added up over the inner dimension at the end."""
        p, names = self.product, self.names
        (am, ak), (bk, bn) = p.a.strides[-2:], p.b.strides[-2:]
        depth = names.size(p.k)
        self.line("k = tl.arange(0, KBLOCK)[None, :]")
        self.line(f"left = {self._start(p.a)} + ({self._along('py', am)} + {self._along('k', ak)})")
        self.line(f"right = {self._start(p.b)} + ({self._along('k', bk)} + {self._along('x0[:, None]', bn)})")
        inside = [] if multiple_of(p.k, self.tile.k) else [f"(k < {depth} - k0)"]
        both = [*inside, *([f"(x0 < {names.size(p.n)})[:, None]"] if self.axes[1].masked else [])]
        self.line("acc = tl.zeros([XBLOCK, KBLOCK], tl.float32)")
        self.line(f"for k0 in range(0, {depth}, KBLOCK):")
        self.depth += 1
        for name, pointer, masks in (("a", "left", inside), ("b", "right", both)):
            mask = " & ".join(masks)
            text = f"tl.load({pointer}, {mask}, other=0.0)" if mask else f"tl.load({pointer})"
            self.line(f"{name} = {text}.to(tl.float32)")
        self.line("acc += a * b")
        self.line(f"left += {self._along('KBLOCK', ak)}")
        self.line(f"right += {self._along('KBLOCK', bk)}")
        self.depth -= 1
        self.line("acc = tl.sum(acc, 1)[None, :]")

    def _multiply(self) -> None:
        if self.tile.m == 1:
            return self._multiply_row()
        p, names = self.product, self.names
        (am, ak), (bk, bn) = p.a.strides[-2:], p.b.strides[-2:]
        if self.tile.lasting:
            return self._multiply_lasting()
        self.line("k = tl.arange(0, KBLOCK)")
        self.line(f"left = {self._start(p.a)} + ({self._along('y0[:, None]', am)} + {self._along('k[None, :]', ak)})")
        self.line(f"right = {self._start(p.b)} + ({self._along('k[:, None]', bk)} + {self._along('x0[None, :]', bn)})")
        even = multiple_of(p.k, self.tile.k)
        depth = names.size(p.k)
        masks: dict[str, list[str]] = {"a": [], "b": []}
        if self.axes[0].masked:
            masks["a"].append(f"(y0 < {names.size(p.m)})[:, None]")
        if self.axes[1].masked:
            masks["b"].append(f"(x0 < {names.size(p.n)})[None, :]")
        if not even:
            masks["a"].append(f"(k < {depth} - k0)[None, :]")
            masks["b"].append(f"(k < {depth} - k0)[:, None]")
        self.line("acc = tl.zeros([YBLOCK, XBLOCK], tl.float32)")
        self.line(f"for k0 in range(0, {depth}, KBLOCK):")
        self.depth += 1
        for name, pointer in (("a", "left"), ("b", "right")):
            mask = " & ".join(masks[name])
            self.line(f"{name} = tl.load({pointer}, {mask}, other=0.0)" if mask else f"{name} = tl.load({pointer})")
        self._dot()
        self.line(f"left += {self._along('KBLOCK', ak)}")
        self.line(f"right += {self._along('KBLOCK', bk)}")
        self.depth -= 1

    def _multiply_lasting(self) -> None:
        """The same where the loop over tiles is one pipeline with this one: no pointers are carried along, and places
        outside the matrices read the last row or column instead of being masked."""
        p, names = self.product, self.names
        (am, ak), (bk, bn) = p.a.strides[-2:], p.b.strides[-2:]
        depth = names.size(p.k)
        row, column = "y0", "x0"
        if self.axes[0].masked:
            row = "y1"
            self.line(f"y1 = tl.minimum(y0, {names.size(p.m)} - 1)")
        if self.axes[1].masked:
            column = "x1"
            self.line(f"x1 = tl.minimum(x0, {names.size(p.n)} - 1)")
        a = f"{self._start(p.a)} + ({self._along(f'{row}[:, None]', am)} + {self._along('k[None, :]', ak)})"
        b = f"{self._start(p.b)} + ({self._along('k[:, None]', bk)} + {self._along(f'{column}[None, :]', bn)})"
        inside = not multiple_of(p.k, self.tile.k)
        self.line("acc = tl.zeros([YBLOCK, XBLOCK], tl.float32)")
        self.line(f"for k0 in range(0, {depth}, KBLOCK):")
        self.depth += 1
        self.line("k = k0 + tl.arange(0, KBLOCK)")
        for name, address, view in (("a", a, "[None, :]"), ("b", b, "[:, None]")):
            mask = f", (k < {depth}){view}, other=0.0" if inside else ""
            self.line(f"{name} = tl.load({address}{mask})")
        self._dot()
        self.depth -= 1

    def _dot(self) -> None:
        how = f", input_precision='{self.precision}'" if self.product.node.dtype == torch.float32 else ""
        self.line(f"acc = tl.dot(a, b, acc{how})")

    def _scale(self) -> None:
        """``alpha`` and the added operand."""
        p = self.product
        if p.alpha != 1:
            self.line(f"acc = acc * {p.alpha!r}")
        if p.bias is None:
            return
        shift = len(p.node.shape) - len(p.bias.shape)
        parts = [self.names.pointer(p.bias.base)]
        if p.bias.offset is not ZERO:
            parts.append(self.names.size(p.bias.offset))
        index = [*(f"z{d}" for d in range(len(p.batch))), "y", "x"]
        used: list[_Axis] = []
        for d, (extent, stride) in enumerate(zip(p.bias.shape, p.bias.strides, strict=True)):
            if extent is ONE or stride is ZERO:
                continue
            name = index[d + shift]
            parts.append(self._along(name, stride))
            used += [axis for axis in self.axes if axis.name == name]
        mask = self.mask(used)
        text = f"tl.load({' + '.join(parts)}, {mask}, other=0)" if mask else f"tl.load({' + '.join(parts)})"
        text = self.names.loaded(text, p.bias.base.dtype)  # type: ignore[arg-type]
        self.line(f"acc = acc + {text}" if p.beta == 1 else f"acc = acc + {text} * {p.beta!r}")

    # ---- what follows -----------------------------------------------------------------------------------

    def emit(self, v: Val) -> None:
        if v.op == "load" and v.attr is self.product.node:
            self.line(f"{self.names.val(v)} = acc")
        else:
            super().emit(v)

    def store(self, s: Store, *more: str, shaped: bool = False) -> None:
        """Write a tile: whole even where a dimension of size 1 leaves no variable for an axis."""
        pointer_type(s.value.dtype)
        zero = None if self.axes_of(self.index_deps(s.at)) == self.axes else self.zeros(self.axes)
        mask = self.mask(self.axes)
        value = self.names.stored(self.names.val(s.value), s.value.dtype)
        address = self.names.address(s.buffer, s.at, zero)
        self.line(f"tl.store({address}, {value}{', ' + mask if mask else ''})")


def matmul_kernel(
    p: Product, body: Body, fit: Fit, tile: Tile, renderer: TritonRenderer, *, precision: str = "ieee",
    rounded: bool = False,
) -> TritonSource:  # fmt: skip
    """The kernel that computes a product in tiles and what ``body`` makes of it.

    ``precision`` is that of float32 operands (``"ieee"`` or ``"tf32"``); ``rounded``: the product takes its own dtype
    before the body reads it, as when it goes through memory.

    Raises:
        Unsupported: Triton has no expression for something in the body.
    """
    fit = Fit(*(collapse(body, list(group)) for group in (fit.batch, fit.rows, fit.columns)))
    body.refresh()
    nest = Nest(body, [*fit.batch, *fit.rows, *fit.columns], [], None)
    return _Matmul(nest, renderer, p, fit, tile, precision, rounded).finish()
