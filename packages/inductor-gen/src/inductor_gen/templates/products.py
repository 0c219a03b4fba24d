"""Matrix products on a GPU: the library's kernel, or a template that also does what reads the product."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from inductor_gen.codegen.renderer import KernelSource
from inductor_gen.codegen.triton import TritonRenderer, TritonSource
from inductor_gen.fuse.cluster import Cluster
from inductor_gen.kernel.body import Body
from inductor_gen.kernel.ir import Call, Kernel, Step
from inductor_gen.layout.record import ViewRef
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import product
from inductor_gen.templates.matmul import Tile, matmul_kernel
from inductor_gen.templates.problem import Candidate, Draft, Problem, Steps, numbers, sizes_text, usual_operator
from inductor_gen.templates.product import Fit, Product, fit, laid_over, plain_body, product_of, read_at, store_product
from inductor_gen.templates.tiles import tiles_for
from prims.errors import Unsupported

__all__ = ["find_products"]


#: The tiles to try for a product, and whether also where it goes to memory in any case.
Choose = Callable[[Product], tuple[Sequence[Tile], bool]]


class _Finder:
    def __init__(self, draft: Draft, steps: Sequence[Step], precision: str, choose: Choose | None) -> None:
        self.choose = choose or self._all
        self.draft = draft
        self.steps = steps
        self.hint = draft.hint
        self.prepared = draft.prepared
        self.precision = precision
        self.taken: set[int] = set()
        self.readers: dict[Node, list[int]] = {}
        for k, step in enumerate(steps):
            for n in dict.fromkeys((*step.writes, *step.reads)):
                self.readers.setdefault(n, []).append(k)
        self.outputs = {out.base for out in self.prepared.outputs if isinstance(out, ViewRef)}

    def run(self) -> list[Problem]:
        """From the last call on: a kernel that reads several products joins the last of them."""
        found: list[Problem] = []
        for at in reversed(range(len(self.steps))):
            call = self.steps[at]
            p = product_of(call.node, self.prepared, self.draft.layouts) if isinstance(call, Call) else None
            if p is not None and (self.draft.rendering.triton or p.node.device.type == "cuda"):  # type: ignore[union-attr]
                tiles, alone = self.choose(p)
                if not tiles:
                    continue
                problem = self._fused(p, at, tiles, alone) or (self._plain(p, at, tiles) if alone else None)
                if problem is not None:
                    found.append(problem)
        return found[::-1]

    # ---- with what reads the product --------------------------------------------------------------------

    def _fused(self, p: Product, at: int, tiles: Sequence[Tile], keeping: bool) -> Problem | None:
        later = [k for k in self.readers.get(p.node, ()) if k > at]
        if not self.draft.options.epilogue_fusion or not later or later[0] in self.taken:
            return None
        reader = self.steps[later[0]]
        if not isinstance(reader, Kernel) or len(reader.nests) != 1 or reader.origin.inner:
            return None
        if reader.updates or reader.parts:
            return None
        kept = len(later) > 1 or p.node in self.outputs
        if kept and not keeping:
            return None
        lies = lambda: laid_over(self.draft.builder, reader.origin, lambda body: fit(body, p))
        if lies() is None:
            return None

        def render(tile: Tile) -> Steps:
            found = lies()
            assert found is not None
            body, place = found
            if kept:
                store_product(body, p, read_at(body, p))
            return (self._kernel(p, body, place, tile),)

        made = self._candidates(tiles, render)
        if not made:
            return None
        self.taken.add(later[0])
        usual = Candidate(
            "library, then a kernel", (usual_operator(self.draft, p.node), *self.draft.rendering.of(reader))
        )
        results = (*reader.writes, *([p.node] if kept else []))
        return self._problem(p, (at, later[0]), [usual, *made], results)

    # ---- alone ------------------------------------------------------------------------------------------

    def _plain(self, p: Product, at: int, tiles: Sequence[Tile]) -> Problem | None:
        def render(tile: Tile) -> Steps:
            fresh = self.draft.builder.fusion.variables(Cluster(-1, True), *p.node.shape)
            body, place = plain_body(p, fresh)
            return (self._kernel(p, body, place, tile),)

        made = self._candidates(tiles, render)
        usual = Candidate("library", (usual_operator(self.draft, p.node),))
        return self._problem(p, (at,), [usual, *made], (p.node,)) if made else None

    # ---- both -------------------------------------------------------------------------------------------

    def _all(self, p: Product) -> tuple[Sequence[Tile], bool]:
        m, n, k, count = numbers(self.hint, (p.m, p.n, p.k, product(p.batch)))
        device = self.draft.rendering.devices(p.node.device)  # type: ignore[arg-type]
        return tiles_for(m, n, k, count, p.node.dtype, self.precision, device), True  # type: ignore[arg-type]

    def _candidates(self, tiles: Sequence[Tile], render: Callable[[Tile], Steps]) -> list[Candidate]:
        """A candidate for each tile, the first one rendered: what Triton cannot do it cannot do with any."""
        made = [Candidate(str(tile), functools.partial(render, tile)) for tile in tiles]
        try:
            return made if made and made[0].steps else []
        except Unsupported:
            return []

    def _kernel(self, p: Product, body: Body, place: Fit, tile: Tile) -> TritonSource:
        body.nodes = [p.node, *body.nodes]
        device = self.draft.rendering.devices(p.node.device)  # type: ignore[arg-type]
        renderer = TritonRenderer(self.hint, self.draft.layouts, device, self.draft.options)
        return matmul_kernel(p, body, place, tile, renderer, self.precision)

    def _problem(
        self, p: Product, positions: tuple[int, ...], candidates: list[Candidate], results: tuple[Node, ...]
    ) -> Problem:
        hint = self.hint
        left, right = sizes_text(hint, (*p.batch, p.m, p.k)), sizes_text(hint, (*p.batch, p.k, p.n))
        text = f"{p.node.op} {left} @ {right} {str(p.node.dtype).removeprefix('torch.')}"
        after = [op for s in candidates[0].steps if isinstance(s, KernelSource) for op in s.ops]
        if after:
            text += ", then " + " ".join(after[:8]) + (" ..." if len(after) > 8 else "")
        layouts = [numbers(hint, (*ref.strides, ref.offset)) for ref in (p.a, p.b, *([p.bias] if p.bias else []))]
        parts = [text, self.precision, repr((p.alpha, p.beta)), repr(layouts)]
        for source in (s for c in candidates[:2] for s in c.steps if isinstance(s, KernelSource)):
            parts += [source.text, repr(numbers(hint, [e for e in source.sizes if not e.is_float]))]
        parts.append(" ".join(c.name for c in candidates))
        assert p.node.device is not None
        scale = {p.b.base: max(hint(p.k), 1) ** -0.5}  # results of about one
        exact = 2.0**-10 if self.precision == "tf32" else 2.0**-18
        precision = exact if p.node.dtype == torch.float32 else torch.finfo(p.node.dtype).eps
        return Problem(text, "\n".join(parts), positions, p.node.device, candidates, results, scale, precision)


def find_products(draft: Draft, steps: Sequence[Step], precision: str, choose: Choose | None = None) -> list[Problem]:
    """The products among some steps that templates can compute, each with the kernel that reads it where it may join.

    ``precision`` is that of float32 products (``"ieee"`` or ``"tf32"``); ``choose`` gives the tiles to try instead of
    all those that suit a product.
    """
    return _Finder(draft, steps, precision, choose).run()
