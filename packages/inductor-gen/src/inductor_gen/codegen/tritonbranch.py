"""Different Triton kernels that do not depend on each other, as one launch.

Each kernel becomes a function; the joined one branches on the program's number, of which each function has a range.
Small kernels cost more to launch than to run: the halves of a rotary embedding, of queries and of keys, are four of
about two microseconds each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from inductor_gen.codegen.renderer import KernelSource
from inductor_gen.codegen.triton import TritonSource, kernel_text
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import ONE, ZERO
from prims.spec import expr as ex
from prims.spec.expr import Expr

__all__ = ["MOST", "branched", "may_branch"]

#: Functions of one kernel, and lines of them all: kernels of their own compile side by side, one's functions do not.
MOST = 8
LINES = 200

#: Lines that a function of libdevice counts as: a cosine with its exact reduction of large angles is long.
LIBRARY = 40


def may_branch(source: KernelSource) -> bool:
    """Can the kernel be one of several that are joined?"""
    return (
        isinstance(source, TritonSource) and source.grid[1] is ONE and source.stages == 0
        and "program_id(1)" not in source.text
    )  # fmt: skip


def branched(sources: Sequence[KernelSource]) -> list[KernelSource]:
    """Independent kernels, those with equally many warps joined; what they read none of them may write."""
    groups: list[list[TritonSource]] = []
    done: list[list[KernelSource]] = []
    latest: dict[int, tuple[list[TritonSource], int]] = {}
    for source in (part for s in sources for part in (s.joined if isinstance(s, TritonSource) and s.joined else (s,))):
        if not may_branch(source):
            done.append([source])
            continue
        assert isinstance(source, TritonSource)
        lines = source.text.count("\n") + LIBRARY * source.text.count("libdevice.")
        group, total = latest.get(source.warps, ([], 0))
        if not group or len(group) == MOST or total + lines > LINES:
            group, total = [], 0
            groups.append(group)
            done.append(group)  # type: ignore[arg-type]
        group.append(source)
        latest[source.warps] = (group, total + lines)
    for group in groups:
        if len(group) > 1:
            group[:] = [_branched(group)]
    return [source for part in done for source in part]


class _Parameters:
    """The parameters of a joined kernel: what several functions take is passed once."""

    def __init__(self, group: Sequence[TritonSource]) -> None:
        self.found: dict[object, str] = {}
        self.signature: list[tuple[str, str, bool]] = []
        self.buffers: list[Node] = []
        self.sizes: list[Expr] = []
        written = {n: None for s in group for n in s.buffers[: s.outputs]}
        self.outputs = len(written)
        kinds = {n: s.signature[k] for s in group for k, n in enumerate(s.buffers)}
        for node in dict.fromkeys([*written, *(n for s in group for n in s.buffers)]):
            _, kind, aligned = kinds[node]
            self.found[node] = f"{'out' if node in written else 'in'}{len(self.buffers)}"
            self.signature.append((self.found[node], kind, aligned))
            self.buffers.append(node)

    def size(self, e: Expr, kind: str, aligned: bool) -> str:
        """The parameter that holds a number."""
        key = (e, kind, aligned)
        if key not in self.found:
            self.found[key] = f"n{len(self.sizes)}"
            self.sizes.append(e)
            self.signature.append((self.found[key], kind, aligned))
        return self.found[key]

    def of(self, source: TritonSource) -> list[str]:
        """What is passed to a kernel's function."""
        count = len(source.buffers)
        numbers = zip(source.sizes, source.signature[count:], strict=True)
        return [*(self.found[n] for n in source.buffers), *(self.size(e, k, a) for e, (_, k, a) in numbers)]


def _branched(group: Sequence[TritonSource]) -> TritonSource:
    parameters = _Parameters(group)
    functions: dict[str, str] = {}
    lines = ["    program = tl.program_id(0)"]
    stop: Expr = ZERO
    for k, source in enumerate(group):
        _, _, rest = source.text.partition("@triton.jit\ndef KERNEL(")
        names, _, body = rest.partition("):\n")
        name = f"{source.name}_part"
        functions[name] = f"@triton.jit\ndef {name}({names}, program):\n{body}".replace("tl.program_id(0)", "program")
        arguments = ", ".join(parameters.of(source))
        first = f" - {parameters.size(stop, 'i32', False)}" if k else ""
        stop = ex.add(stop, source.grid[0])
        if k < len(group) - 1:
            lines.append(f"    {'el' if k else ''}if program < {parameters.size(stop, 'i32', False)}:")
        else:
            lines.append("    else:")
        lines.append(f"        {name}({arguments}, program{first})")
    text = "\n\n".join([*functions.values(), kernel_text(parameters.signature, group[0].warps, lines)])
    ops = tuple(op for s in group for op in s.ops)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return replace(
        group[0], name="_".join(["k", *list(dict.fromkeys(ops))[:6], digest]), text=text,
        buffers=tuple(parameters.buffers),
        comment="\n".join(dict.fromkeys(line for s in group for line in s.comment.splitlines())),
        outputs=parameters.outputs, sizes=tuple(parameters.sizes), ops=ops, loops=sum(s.loops for s in group),
        grid=(stop, ONE), signature=tuple(parameters.signature),
        bounds=tuple(dict.fromkeys(b for s in group for b in s.bounds)), joined=tuple(group),
    )  # fmt: skip
