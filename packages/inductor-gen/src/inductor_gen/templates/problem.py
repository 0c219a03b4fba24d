"""The choices that a lowered graph leaves: a product, what reads it, and the kernels that could compute both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from inductor_gen.codegen.renderer import KernelSource
from inductor_gen.codegen.triton import TritonRenderer, TritonSource
from inductor_gen.loops.body import Body
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import product
from inductor_gen.schedule.prepare import ViewRef
from inductor_gen.templates.matmul import Tile, matmul_kernel
from inductor_gen.templates.product import Fit, Product, Split, fit, plain_body, product_of, read_at, store_product
from inductor_gen.templates.tiles import tiles_for
from prims.errors import Unsupported
from prims.spec.expr import Expr

__all__ = ["Candidate", "Problem", "find_products"]


@dataclass(frozen=True)
class Candidate:
    """One way to compute a problem.

    Attributes:
        name: what the report and the cache call it.
        steps: nodes of operators to call and sources of kernels to launch, in order.
    """

    name: str
    steps: tuple[Node | KernelSource, ...]


@dataclass
class Problem:
    """What to choose for.

    Attributes:
        text: what it is, in a line.
        key: what the choice depends on, beyond device and versions.
        positions: the calls that a choice replaces; its kernels stand at the last of them.
        candidates: the first is what is taken without a choice.
        results: the buffers that are compared.
    """

    text: str
    key: str
    positions: tuple[int, ...]
    device: torch.device
    candidates: list[Candidate]
    results: tuple[Node, ...]
    scale: dict[Node, float] = field(default_factory=dict)


def _numbers(hint: Callable[[Expr], int], values: Sequence[Expr]) -> list[int]:
    return [hint(v) for v in values]


class _Finder:
    def __init__(self, unit: Any, body_of: Callable[[Any, Any], Body], precision: str) -> None:
        self.unit = unit
        self.body_of = body_of
        self.precision = precision
        self.taken: set[int] = set()
        self.readers: dict[Node, list[int]] = {}
        for k, call in enumerate(unit.calls):
            read = (
                [call.node, *call.node.ins]
                if not hasattr(call, "parts")
                else [n for part in call.parts for n in part.buffers]
            )
            for n in dict.fromkeys(read):
                self.readers.setdefault(n, []).append(k)
        self.outputs = {out.base for out in unit.prepared.outputs if isinstance(out, ViewRef)}

    def run(self) -> list[Problem]:
        found: list[Problem] = []
        for at in reversed(range(len(self.unit.calls))):
            node = getattr(self.unit.calls[at], "node", None)
            p = product_of(node, self.unit.prepared) if node is not None else None
            if p is not None:
                problem = self._fused(p, at) or self._plain(p, at)
                if problem is not None:
                    found.append(problem)
        return found[::-1]

    # ---- with what reads the product --------------------------------------------------------------------

    def _fused(self, p: Product, at: int) -> Problem | None:
        unit = self.unit
        later = [k for k in self.readers.get(p.node, ()) if k > at]
        if not unit.options.epilogue_fusion or not later or later[0] in self.taken:
            return None
        reader = unit.calls[later[0]]
        cluster = unit.plan.order[later[0]]
        if not cluster.loops or len(getattr(reader, "parts", ())) != 1 or cluster.inner:
            return None
        kept = len(later) > 1 or p.node in self.outputs
        made: list[Candidate] = []
        for tile in self._tiles(p):
            body, place = self._body(p, cluster)
            if place is None:
                return None
            if kept:
                store_product(body, p, read_at(body, p))
            source = self._kernel(p, body, place, tile, reader.parts[0].comment)
            if source is None:
                return None
            made.append(Candidate(str(tile), (source,)))
        if not made:
            return None
        self.taken.add(later[0])
        usual = Candidate("library, then a kernel", (p.node, *reader.parts))
        results = reader.parts[0].buffers[: reader.parts[0].outputs]
        return self._problem(p, (at, later[0]), [usual, *made], (*results, *([p.node] if kept else [])))

    def _body(self, p: Product, cluster: Any) -> tuple[Body, Fit | None]:
        for _ in range(6):
            body = self.body_of(self.unit, cluster)
            place = fit(body, p)
            if isinstance(place, Split):
                if not self.unit.fusion.split(cluster, place.variable, place.inner):
                    break
                continue
            return body, place
        return body, None

    # ---- alone ------------------------------------------------------------------------------------------

    def _plain(self, p: Product, at: int) -> Problem | None:
        made: list[Candidate] = []
        for tile in self._tiles(p):
            body, place = plain_body(p, [self.unit.fusion.variable() for _ in p.node.shape])
            body.nodes = []
            source = self._kernel(p, body, place, tile, f"ops: {p.node.op}\nfrom {p.node.source}")
            if source is None:
                return None
            made.append(Candidate(str(tile), (source,)))
        return self._problem(p, (at,), [Candidate("library", (p.node,)), *made], (p.node,)) if made else None

    # ---- both -------------------------------------------------------------------------------------------

    def _tiles(self, p: Product) -> list[Tile]:
        hint = self.unit.hint
        sizes = (hint(p.m), hint(p.n), hint(p.k), hint(product(p.batch)))
        return tiles_for(*sizes, p.node.dtype, self.precision)  # type: ignore[arg-type]

    def _kernel(self, p: Product, body: Body, place: Fit, tile: Tile, comment: str) -> TritonSource | None:
        body.nodes = [p.node, *body.nodes]
        renderer = TritonRenderer(self.unit.hint, self.unit.prepared.layouts)
        rounded = self.unit.options.numerics != "fast"
        try:
            return matmul_kernel(p, body, place, tile, renderer, precision=self.precision, rounded=rounded)
        except Unsupported:
            return None

    def _problem(
        self, p: Product, positions: tuple[int, ...], candidates: list[Candidate], results: tuple[Node, ...]
    ) -> Problem:
        hint = self.unit.hint
        sizes = (
            "x".join(map(str, _numbers(hint, (*p.batch, p.m, p.k))))
            + " @ "
            + "x".join(map(str, _numbers(hint, (*p.batch, p.k, p.n))))
        )
        after = [n for s in candidates[0].steps if isinstance(s, KernelSource) for n in s.ops]
        text = f"{p.node.op} {sizes} {str(p.node.dtype).removeprefix('torch.')}"
        if after:
            text += ", then " + " ".join(after[:8]) + (" ..." if len(after) > 8 else "")
        layouts = [_numbers(hint, (*ref.strides, ref.offset)) for ref in (p.a, p.b, *([p.bias] if p.bias else []))]
        parts = [text, self.precision, repr((p.alpha, p.beta)), repr(layouts)]
        for source in (s for c in candidates[:2] for s in c.steps if isinstance(s, KernelSource)):
            parts += [source.text, repr(_numbers(hint, [e for e in source.sizes if not e.is_float]))]
        parts.append(" ".join(c.name for c in candidates))
        root = max(hint(p.k), 1) ** -0.5  # products of random numbers with a variance of one
        return Problem(
            text,
            "\n".join(parts),
            positions,
            p.node.device,
            candidates,
            results,
            {p.b.base: root},  # type: ignore[arg-type]
        )


def find_products(unit: Any, body_of: Callable[[Any, Any], Body], precision: str) -> list[Problem]:
    """The products of a rendered unit that templates can compute, each with the kernel that reads it where it may join.

    ``body_of(unit, cluster)`` gives a fresh body; ``precision`` is that of float32 products.
    """
    return _Finder(unit, body_of, precision).run()
