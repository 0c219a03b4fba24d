"""The matrix product as a Triton template.

The textbook tiling: a program computes one tile of the result, walking the inner dimension in blocks and adding up in
float32; programs are numbered in groups of rows of tiles so that those running together share operands in the L2 cache
(as Triton's matrix multiplication tutorial explains). What reads the product, element by element, follows in registers:
its body is rendered by the code that renders pointwise kernels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from inductor_gen.codegen.triton import POSITIONS, Block, TritonRenderer, TritonSource, _Axis
from inductor_gen.codegen.tritonexpr import multiple_of
from inductor_gen.kernel.body import Body, Val
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
    whole_tiles = True  # even where a dimension of size 1 leaves no variable for an axis

    def __init__(
        self, nest: Nest, renderer: TritonRenderer, p: Product, fit: Fit, tile: Tile, precision: str
    ) -> None:
        self.product = p
        super().__init__(nest, renderer)
        self.fit = fit
        self.tile = tile
        self.precision = precision

    def _is_wide(self) -> bool:
        p = self.product
        sizes = [product((*p.batch, p.m, p.k)), product((*p.batch, p.k, p.n))]
        sizes += [product(ref.base.shape) for ref in (p.a, p.b)]
        return super()._is_wide() or any(self.hint(s) >= POSITIONS for s in sizes)

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
        if not self.renderer.contract and p.node.dtype != torch.float32:
            self.line(f"acc = acc.to({ROWS[p.node.dtype].in_triton}).to(tl.float32)")
        self.values()
        self.depth = 1
        made = self.source((grid, ONE), tile.warps, 1)
        return dataclasses.replace(made, name=made.name.replace(".", "_"), stages=tile.stages)

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

    def _start(self, ref: ViewRef, index: Sequence[str]) -> str:
        """Where the part of an operand begins that these names are the first places of."""
        parts = [self.names.pointer(ref.base)]
        if ref.offset is not ZERO:
            parts.append(self.names.size(ref.offset))
        return " + ".join([*parts, *(self._along(i, stride) for i, stride in _moving(ref, index).items())])

    def _along(self, index: str, stride: Expr) -> str:
        return index if stride is ONE else f"{index} * {self.names.size(stride)}"

    def _multiply(self) -> None:
        """The product of this tile, added up in ``acc`` over the inner dimension, a block at a time.

        For one row they are products of vectors, added up at the end. Where the loop over tiles is one pipeline with
        this one no pointers are carried along, and places outside the matrices read the last row or column instead of
        being masked.
        """
        p, names, lasting, single = self.product, self.names, self.tile.lasting, self.tile.m == 1
        depth, whole = names.size(p.k), multiple_of(p.k, self.tile.k)
        row, column, k = "y0[:, None]", "x0[None, :]", ("k[None, :]", "k[:, None]")
        masks: dict[str, list[str]] = {"a": [], "b": []}
        if single:
            row, column, k = "py", "x0[:, None]", ("k", "k")
            self.line("k = tl.arange(0, KBLOCK)[None, :]")
        elif not lasting:
            self.line("k = tl.arange(0, KBLOCK)")
        for axis, name, size, view in zip(self.axes, "ab", (p.m, p.n), ("[:, None]", "[None, :]"), strict=True):
            if axis.masked and lasting:
                self.line(f"{axis.name}1 = tl.minimum({axis.name}0, {names.size(size)} - 1)")
                row, column = (x.replace(f"{axis.name}0", f"{axis.name}1") for x in (row, column))
            elif axis.masked and not (single and name == "a"):
                masks[name].append(f"({axis.name}0 < {names.size(size)}){'[:, None]' if single else view}")
        for name, view in (("a", "[None, :]"), ("b", "[:, None]")) if not whole else ():
            inside = f"(k < {depth})" if lasting else f"(k < {depth} - k0)"
            masks[name].insert(0 if single else len(masks[name]), inside + ("" if single else view))
        (am, ak), (bk, bn) = p.a.strides[-2:], p.b.strides[-2:]
        batch = [f"z{d}" for d in range(len(p.batch))]
        places = {
            "left": f"{self._start(p.a, batch)} + ({self._along(row, am)} + {self._along(k[0], ak)})",
            "right": f"{self._start(p.b, batch)} + ({self._along(k[1], bk)} + {self._along(column, bn)})",
        }
        if not lasting:
            for name, place in places.items():
                self.line(f"{name} = {place}")
        self.line(f"acc = tl.zeros([{'XBLOCK, KBLOCK' if single else 'YBLOCK, XBLOCK'}], tl.float32)")
        self.line(f"for k0 in range(0, {depth}, KBLOCK):")
        self.depth += 1
        if lasting:
            self.line("k = k0 + tl.arange(0, KBLOCK)")
        for name, (pointer, place) in zip("ab", places.items(), strict=True):
            mask = f", {' & '.join(masks[name])}, other=0.0" if masks[name] else ""
            load = f"tl.load({place if lasting else pointer}{mask})"
            self.line(f"{name} = {load}.to(tl.float32)" if single else f"{name} = {load}")
        how = f", input_precision='{self.precision}'" if p.node.dtype == torch.float32 else ""
        self.line("acc += a * b" if single else f"acc = tl.dot(a, b, acc{how})")
        for name, stride in (("left", ak), ("right", bk)) if not lasting else ():
            self.line(f"{name} += {self._along('KBLOCK', stride)}")
        self.depth -= 1
        if single:
            self.line("acc = tl.sum(acc, 1)[None, :]")

    def _scale(self) -> None:
        """``alpha`` and the added operand."""
        p = self.product
        if p.alpha != 1:
            self.line(f"acc = acc * {p.alpha!r}")
        if p.bias is None:
            return
        index = [*(f"z{d}" for d in range(len(p.batch))), "y", "x"][len(p.node.shape) - len(p.bias.shape) :]
        mask = self.mask([axis for axis in self.axes if axis.name in _moving(p.bias, index)])
        place = self._start(p.bias, index)
        text = f"tl.load({place}, {mask}, other=0)" if mask else f"tl.load({place})"
        text = self.names.loaded(text, p.bias.base.dtype)  # type: ignore[arg-type]
        self.line(f"acc = acc + {text}" if p.beta == 1 else f"acc = acc + {text} * {p.beta!r}")

    # ---- what follows -----------------------------------------------------------------------------------

    def emit(self, v: Val) -> None:
        if v.op == "load" and v.attr is self.product.node:
            self.line(f"{self.names.val(v)} = acc")
        else:
            super().emit(v)


def _moving(ref: ViewRef, index: Sequence[str]) -> dict[str, Expr]:
    """The names among an index's first places along which a view's element moves, with their strides."""
    places = zip(index, ref.shape, ref.strides, strict=False)
    return {i: stride for i, n, stride in places if n is not ONE and stride is not ZERO}


def matmul_kernel(
    p: Product, body: Body, fit: Fit, tile: Tile, renderer: TritonRenderer, precision: str
) -> TritonSource:
    """The kernel that computes a product in tiles and what ``body`` makes of it.

    ``precision`` is that of float32 operands (``"ieee"`` or ``"tf32"``). Where the renderer contracts nothing, the
    product takes its own dtype before the body reads it, as when it goes through memory.

    Raises:
        Unsupported: Triton has no expression for something in the body.
    """
    fit = Fit(*(collapse(body, list(group)) for group in (fit.batch, fit.rows, fit.columns)))
    body.refresh()
    nest = Nest(body, [*fit.batch, *fit.rows, *fit.columns], [], None)
    return _Matmul(nest, renderer, p, fit, tile, precision).finish()
