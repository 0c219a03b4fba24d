"""The blocks and warps of generated Triton kernels."""

from __future__ import annotations

import functools
import math

from inductor_gen.codegen.renderer import KernelSource
from inductor_gen.codegen.triton import Tiling, TritonSource
from inductor_gen.fuse.cluster import Cluster
from inductor_gen.loops.graph import Node
from inductor_gen.pipeline import KernelCall, Unit, kernels_of
from inductor_gen.templates.problem import Candidate, Problem, Steps, layout_text, numbers, sizes_text

__all__ = ["find_tilings"]

#: Bytes that a kernel must move for its tiling to matter beside its launch.
LEAST = 1 << 20

#: Departures that are tried.
_TRIED = (Tiling(1), Tiling(-1), Tiling(2, 1), Tiling(0, 1), Tiling(0, -1), Tiling(-1, -1))


def find_tilings(unit: Unit, clusters: list[Cluster | None]) -> list[Problem]:
    """The kernels of a unit that may run faster with other blocks; ``clusters`` holds each call's, None to leave it."""
    found = []
    for at, (call, cluster) in enumerate(zip(unit.calls, clusters, strict=True)):
        if isinstance(call, KernelCall) and cluster is not None and cluster.loops:
            problem = _problem(unit, at, call, cluster)
            if problem is not None:
                found.append(problem)
    return found


def _bytes(unit: Unit, call: KernelCall) -> int:
    return sum(math.prod(numbers(unit.hint, n.shape)) * n.dtype.itemsize for n in call.buffers() if n.dtype is not None)


def _problem(unit: Unit, at: int, call: KernelCall, cluster: Cluster) -> Problem | None:
    if not all(isinstance(s, TritonSource) for s in call.parts) or _bytes(unit, call) < LEAST:
        return None
    candidates = [Candidate("as planned", call.parts)]
    for tiling in _TRIED:
        name = f"block x {2.0**tiling.block:g}, warps x {2.0**tiling.warps:g}"
        candidates.append(Candidate(name, functools.partial(_rendered, unit, cluster, tiling)))
    written = tuple(n for n in call.written() if not _workspace(n))
    if not written or written[0].device is None:
        return None
    ops = [op for s in call.parts for op in s.ops]
    text = f"{' '.join(ops[:8])}{' ...' if len(ops) > 8 else ''} {sizes_text(unit.hint, written[0].shape)}"
    names = " ".join(c.name for c in candidates)
    key = "\n".join([text, *_texts(call.parts), layout_text(unit, call.buffers()), names])
    return Problem(text, key, (at,), written[0].device, candidates, written)


def _rendered(unit: Unit, cluster: Cluster, tiling: Tiling) -> Steps:
    return tuple(kernels_of(unit, cluster, tiling))


def _texts(parts: tuple[KernelSource, ...]) -> tuple[str, ...]:
    return tuple(s.text for s in parts)


def _workspace(node: Node) -> bool:
    """Does a buffer hold partial results of a split reduction?"""
    return node.op == "partial"
