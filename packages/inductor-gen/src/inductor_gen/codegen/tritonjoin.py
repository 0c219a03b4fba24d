"""Equal Triton kernels that do not depend on each other, as one launch.

The pieces of a concatenation are computed by equal kernels on different buffers. A joined kernel takes the parameters
of all of them; the program's number along the grid's second axis says whose it works with. Its text depends on the
number of kernels only up to a power of two, so that a densenet's many concatenations need few texts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from inductor_gen.codegen.renderer import KernelSource
from inductor_gen.codegen.triton import TritonSource
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import ONE
from prims.spec import expr as ex

__all__ = ["joined"]

#: Kernels in one launch: bounds its parameters.
MOST = 16


def joined(sources: Sequence[KernelSource]) -> list[KernelSource]:
    """Independent kernels, those with one text and one grid joined."""
    groups: dict[object, list[TritonSource]] = {}
    done: list[KernelSource] = []
    for source in sources:
        if isinstance(source, TritonSource) and source.grid[1] is ONE and "program_id(1)" not in source.text:
            groups.setdefault((source.name, source.grid, source.outputs), []).append(source)
        else:
            done.append(source)
    for group in groups.values():
        for start in range(0, len(group), MOST):
            part = group[start : start + MOST]
            done.append(_join(part) if len(part) > 1 else part[0])
    return done


def _join(group: list[TritonSource]) -> TritonSource:
    first = group[0]
    room = 1 << (len(group) - 1).bit_length()
    filled = group + [group[-1]] * (room - len(group))  # the grid never gets to the repeated ones
    head, _, body = first.text.partition("):\n")
    signature: list[tuple[str, str, bool]] = []
    buffers: list[Node] = []
    sizes: list[ex.Expr] = []
    choice: list[str] = []
    outputs = 0
    for k, (name, kind, aligned) in enumerate(first.signature):
        pointer = k < len(first.buffers)
        values = [s.buffers[k] if pointer else s.sizes[k - len(first.buffers)] for s in filled]
        names = [name] if all(v is values[0] for v in values) else [name, *(f"{name}_{j}" for j in range(1, room))]
        signature += [(n, kind, aligned) for n in names]
        (buffers if pointer else sizes).extend(values[: len(names)])  # type: ignore[arg-type]
        outputs += len(names) if k < first.outputs else 0
        choice += [f"    if which == {j}:\n        {name} = {n}" for j, n in enumerate(names) if j]
    parameters = ", ".join(n for n, _, _ in signature)
    comment, _, rest = head.partition("\n")
    lines = ["    which = tl.program_id(1)", *choice]
    text = f"{comment} joined:{room}\n{rest.partition('(')[0]}({parameters}):\n" + "\n".join(lines) + "\n" + body
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return replace(
        first, name=f"{first.name.rpartition('_')[0]}_{digest}", text=text, buffers=tuple(buffers), outputs=outputs,
        sizes=tuple(sizes), grid=(first.grid[0], ex.const(len(group))), signature=tuple(signature),
        loops=sum(s.loops for s in group), bounds=tuple(dict.fromkeys(b for s in group for b in s.bounds)),
    )  # fmt: skip
