"""Triton kernels that do not depend on each other, as one launch.

Equal kernels compute the pieces of a concatenation on different buffers. A joined kernel takes the parameters of all of
them; the program's number along the grid's second axis says whose it works with. Its text depends on the number of
kernels only up to a power of two, so that a densenet's many concatenations need few texts.

Of different ones each becomes a function; the kernel branches on the program's number, of which each function has a
range. Small kernels cost more to launch than to run: the halves of a rotary embedding, of queries and of keys, are four
of about two microseconds each.
"""

from __future__ import annotations

from collections.abc import Sequence

from inductor_gen.codegen.renderer import KernelSource
from inductor_gen.codegen.triton import TritonSource, as_one, kernel_text
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import ONE, ZERO
from prims.spec import expr as ex
from prims.spec.expr import Expr

__all__ = ["MOST", "branched", "joined", "may_branch"]

#: Equal kernels in one launch: bounds its parameters.
MOST_EQUAL = 16

#: Functions of one kernel, and lines of them all: kernels of their own compile side by side, one's functions do not.
MOST = 8
LINES = 200

#: Lines that a function of libdevice counts as: a cosine with its exact reduction of large angles is long.
LIBRARY = 40


def may_branch(source: KernelSource) -> bool:
    """Can the kernel be one of several that are joined?"""
    return isinstance(source, TritonSource) and source.stages == 0 and _is_flat(source)


def _is_flat(source: TritonSource) -> bool:
    """Do its programs lie along one axis of the grid?"""
    return source.grid[1] is ONE and "program_id(1)" not in source.text


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
    return as_one(
        group, text, tuple(op for s in group for op in s.ops), buffers=tuple(parameters.buffers),
        comment="\n".join(dict.fromkeys(line for s in group for line in s.comment.splitlines())),
        outputs=parameters.outputs, sizes=tuple(parameters.sizes), grid=(stop, ONE),
        signature=tuple(parameters.signature), joined=tuple(group),
    )  # fmt: skip


def joined(sources: Sequence[KernelSource]) -> list[KernelSource]:
    """Independent kernels, those with one text and one grid joined."""
    groups: dict[object, list[TritonSource]] = {}
    done: list[KernelSource] = []
    for source in sources:
        if isinstance(source, TritonSource) and _is_flat(source):
            groups.setdefault((source.name, source.grid, source.outputs), []).append(source)
        else:
            done.append(source)
    for group in groups.values():
        for start in range(0, len(group), MOST_EQUAL):
            part = group[start : start + MOST_EQUAL]
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
    return as_one(
        group, text, first.ops, buffers=tuple(buffers), outputs=outputs, sizes=tuple(sizes),
        grid=(first.grid[0], ex.const(len(group))), signature=tuple(signature),
    )  # fmt: skip
