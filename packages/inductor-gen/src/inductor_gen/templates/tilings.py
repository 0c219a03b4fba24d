"""The blocks and warps of generated Triton kernels."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from inductor_gen.codegen.triton import Tiling
from inductor_gen.kernel.ir import Kernel, Step, nbytes
from inductor_gen.templates.problem import Candidate, Draft, Problem, layout_text, sizes_text

__all__ = ["find_tilings"]

#: The share of a launch's time that moving a kernel's bytes must take for its tiling to matter.
LEAST = 1 / 16

#: Departures that are tried.
_TRIED = (Tiling(1), Tiling(-1), Tiling(2, 1), Tiling(0, 1), Tiling(0, -1), Tiling(-1, -1))


def find_tilings(draft: Draft, steps: Sequence[Step]) -> list[Problem]:
    """The generated kernels among some steps that may run faster with other blocks."""
    found = []
    for at, step in enumerate(steps):
        if isinstance(step, Kernel) and step.nests and not step.updates and draft.rendering.in_triton(step):
            problem = _problem(draft, at, step)
            if problem is not None:
                found.append(problem)
    return found


def _problem(draft: Draft, at: int, kernel: Kernel) -> Problem | None:
    parts = draft.rendering.of(kernel)
    if sum(nbytes(n, draft.hint) for n in kernel.touched()) < LEAST * draft.rendering.device(kernel).launch_bytes:
        return None
    candidates = [Candidate("as planned", parts)]
    for tiling in _TRIED:
        name = f"block x {2.0**tiling.block:g}, warps x {2.0**tiling.warps:g}"
        candidates.append(Candidate(name, functools.partial(draft.rendering.tiled, kernel, tiling)))
    written = kernel.writes
    if written[0].device is None:
        return None
    ops = [op for s in parts for op in s.ops]
    text = f"{' '.join(ops[:8])}{' ...' if len(ops) > 8 else ''} {sizes_text(draft.hint, written[0].shape)}"
    buffers = list(dict.fromkeys(n for s in parts for n in s.buffers))
    names = " ".join(c.name for c in candidates)
    key = "\n".join([text, *(s.text for s in parts), layout_text(draft, buffers), names])
    return Problem(text, key, (at,), written[0].device, candidates, written)
