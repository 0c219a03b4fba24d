"""Kernels and calls: the steps of a graph, with what each reads, writes and costs.

A :class:`Kernel` is device-neutral: loop nests, the buffers that it reads and writes, those that it may write in place
of what it reads, and the bytes and operations that it takes. It is made once (:mod:`inductor_gen.kernel.build`), never
changed, and everything after it (order, launches, memory, templates, code) is a function of it.

Buffers are named by nodes: that of a scatter is the copy which it updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeAlias

import torch

from inductor_gen.kernel.body import Body
from inductor_gen.kernel.nest import Nest
from inductor_gen.layout.record import Layout, strides_of, whole
from inductor_gen.loops.cost import op_cost
from inductor_gen.loops.graph import Node, waits_on_host
from inductor_gen.loops.index import ZERO, Hint, distinct, product
from prims.errors import VerifierError
from prims.records import record
from prims.spec import expr as ex
from prims.spec.expr import Expr

__all__ = ["CONSTRAINTS", "Call", "Kernel", "Step", "nbytes", "text", "verify"]

CONSTRAINTS = {
    "KERNEL-C1": "A buffer is written before it is read.",
    "KERNEL-C2": "A buffer begins once.",
    "KERNEL-C3": "A kernel loads and stores only what it declares.",
    "KERNEL-C4": "A pair of buffers that may share memory is read and written by the kernel that says so.",
    "KERNEL-C5": "Every result is written.",
    "KERNEL-C6": "The parts that kernels write of a buffer make it up.",
    "KERNEL-C7": "A kernel that begins a buffer stores each of its elements, and once.",
}


@record(eq=False)
class Kernel:
    """Loop nests that run as one.

    Attributes:
        nests: one, or the pieces of a cut loop, which do not depend on each other; none where a template renders it.
        nodes: what it computes, in topological order.
        reads: the buffers whose values it needs, those that it updates among them.
        writes: the buffers that begin with it.
        updates: the buffers that go on with it: it changes some elements, the others stay.
        parts: the buffers that it writes a part of, others the rest.
        overwrites: ``(written, read)`` pairs that may be one buffer: each element is read before it is written, in the
            same iteration, and nowhere else.
        moved: bytes to and from memory, each element that it touches once, for likely sizes.
        work: rough cycles of its arithmetic, vectorised, for likely sizes.
        origin: the cluster that it was made of, from which a template may make another body.
    """

    nests: tuple[Nest, ...]
    nodes: tuple[Node, ...]
    reads: tuple[Node, ...]
    writes: tuple[Node, ...]
    updates: tuple[Node, ...] = ()
    parts: tuple[Node, ...] = ()
    overwrites: tuple[tuple[Node, Node], ...] = ()
    moved: int = 0
    work: int = 0
    origin: Any = field(default=None, repr=False)

    @property
    def device(self) -> torch.device | None:
        """Where it runs."""
        return self.nodes[-1].device

    @property
    def checks(self) -> bool:
        """Does it check what the program's data says, and may it refuse it?"""
        return any(v.op in ("bounded", "nonzero") for nest in self.nests for v in nest.body.vals)

    def touched(self) -> tuple[Node, ...]:
        """Every buffer that it reads or writes, each once."""
        return tuple(dict.fromkeys((*self.writes, *self.updates, *self.reads)))


@record(eq=False)
class Call:
    """An operator that runs through a library's kernel.

    Attributes:
        node: the operator.
        reads: the buffers among its operands.
        writes: its results.
        workspace: a guess of the bytes that it takes while it runs.
        custom: somebody else wrote it: its results may live on in its operands' memory.
        chosen: ``(name, function)`` in the place of the usual way to call it.
    """

    node: Node
    reads: tuple[Node, ...]
    writes: tuple[Node, ...]
    workspace: int = 0
    custom: bool = False
    chosen: tuple[str, Callable[..., Any]] | None = None
    updates: tuple[Node, ...] = ()

    @property
    def device(self) -> torch.device | None:
        """Where it runs."""
        return self.node.device


Step: TypeAlias = Kernel | Call


def nbytes(node: Node, hint: Hint) -> int:
    """The bytes of a node's value; of a node with several results, none: those are nodes too. Nor has a value any that
    waits in host memory for a GPU's: what is short is the other memory."""
    if node.dtype is None or getattr(node.spec, "shape", None) is None or waits_on_host(node):
        return 0
    return node.dtype.itemsize * math.prod(map(hint, node.shape))


# ---- facts about bodies ----------------------------------------------------------------------------------------


def loads(bodies: Iterable[Body]) -> tuple[Node, ...]:
    """The buffers that bodies load from, each once."""
    return tuple(dict.fromkeys(v.attr for body in bodies for v in body.vals if v.op == "load"))


def stores(bodies: Iterable[Body]) -> tuple[Node, ...]:
    """The buffers that bodies store to, or to parts of, each once."""
    return tuple(dict.fromkeys(whole(s.buffer) for body in bodies for s in body.stores))


def copied(body: Body) -> Node | None:
    """The buffer of which a body does nothing but copy."""
    plain = len(body.vals) == len(body.stores) == 1 and body.vals[0].op == "load" and not body.vals[0].args
    return body.vals[0].attr if plain else None


def overwritable(body: Body) -> tuple[tuple[Node, Node], ...]:
    """``(written, read)`` buffers of a body that may share memory.

    Every load of the buffer must be of the very element that the same iteration stores, under no condition, and in a
    body with a reduction the store must stand in the last pass over the row.
    """
    last = body.passes() - 1
    found = []
    for s in body.stores:
        if s.mode != "set" or any(a in body.atoms for a in s.at.symbols):
            return ()
        if body.inner and not (body.stores_inside(s) and s.value.stage == last):
            continue
        same: dict[Node, bool] = {}
        for v in body.vals:
            if v.op == "load" and v.attr.dtype == s.buffer.dtype:
                same[v.attr] = same.get(v.attr, True) and v.at is s.at and not v.args
        found += [(s.buffer, node) for node, here in same.items() if here]
    return tuple(found)


def bytes_moved(bodies: Iterable[Body], hint: Hint) -> int:
    """The bytes that loads and stores take when each element is touched once."""
    total = 0
    seen: set[tuple[Node, Expr]] = set()
    for body in bodies:
        for node, at in body.accesses():
            if node.dtype is None or (node, at) in seen:
                continue
            seen.add((node, at))
            through = any(a in body.atoms for a in at.symbols)
            points = math.prod(hint(n) for v, n in body.space.items() if through or v in at.symbols)
            total += node.dtype.itemsize * (points if through else min(points, math.prod(map(hint, node.shape)) or 0))
    return total


def work(bodies: Iterable[Body], hint: Hint) -> int:
    """Rough cycles of the arithmetic."""
    return sum(
        op_cost(v.op) * math.prod(hint(n) for x, n in body.space.items() if x in v.deps)
        for body in bodies for v in body.vals if v.op not in ("load", "const", "size", "index")
    )  # fmt: skip


# ---- text and verifier -----------------------------------------------------------------------------------------


def text(steps: Sequence[Step]) -> str:
    """The steps, one line each, and below a kernel its loops: the same for the same graph."""
    lines: list[str] = []
    for k, step in enumerate(steps):
        if isinstance(step, Call):
            lines.append(f"{k:4d} call {step.node!r} reads {_names(step.reads)} writes {_names(step.writes)}")
            continue
        more = f" updates {_names(step.updates)}" if step.updates else ""
        over = ", ".join(f"{a!r} over {b!r}" for a, b in step.overwrites)
        lines.append(
            f"{k:4d} kernel {' '.join(n.op for n in step.nodes)}: reads {_names(step.reads)} writes "
            f"{_names(step.writes)}{more}{' may put ' + over if over else ''}; {step.moved} bytes, {step.work} cycles"
        )
        for nest in step.nests:
            around, inside = (" ".join(f"{v}<{nest.body.space[v]}" for v in g) for g in (nest.outer, nest.inner))
            lines.append(f"       for {around or '-'}{' reduce ' + inside if inside else ''}")
            lines += [f"         {v.id} = {_value(v)}" for v in nest.body.vals]
            lines += [f"         {s.buffer!r}[{s.at}] {s.mode} {s.value.id}" for s in nest.body.stores]
    return "\n".join(lines)


def _value(v: Any) -> str:
    parts = [str(a.id) for a in v.args]
    if v.attr is not None:
        parts.append(repr(v.attr) if isinstance(v.attr, Node) else str(v.attr))
    where = f"[{v.at}]" if v.at is not None else ""
    return f"{v.op}({', '.join(parts)}){where} {str(v.dtype).removeprefix('torch.')}"


def _names(nodes: Iterable[Node]) -> str:
    return "[" + " ".join(map(repr, nodes)) + "]"


def verify(
    steps: Sequence[Step], given: Iterable[Node], returned: Iterable[Node], layouts: Mapping[Node, Layout]
) -> None:
    """Check steps that run in this order; ``given`` are the buffers that exist before them, and ``layouts`` are those
    that the kernels were made for.

    Raises:
        VerifierError: one of :data:`CONSTRAINTS` is broken.
    """
    have = set(given)
    _verify_parts(steps)
    for step in steps:
        missing = [n for n in (*step.reads, *step.updates) if n not in have]
        if missing:
            raise VerifierError("KERNEL-C1", f"{step} reads {missing[0]!r} before anything writes it")
        again = [n for n in step.writes if n in have]
        if again:
            raise VerifierError("KERNEL-C2", f"{step} makes {again[0]!r}, which exists")
        have.update(step.writes)
        if isinstance(step, Kernel):
            _verify_kernel(step, layouts)
    for node in returned:
        if node not in have:
            raise VerifierError("KERNEL-C5", f"the result {node!r} is never written")


def _verify_parts(steps: Sequence[Step]) -> None:
    kernels = [step for step in steps if isinstance(step, Kernel)]
    left = {node: product(node.shape) for kernel in kernels for node in kernel.parts}
    for store, body in ((s, nest.body) for kernel in kernels for nest in kernel.nests for s in nest.body.stores):
        buffer = whole(store.buffer)
        if buffer in left:
            points = product(n for v, n in body.space.items() if v in store.at.symbols)
            left[buffer] = ex.sub(left[buffer], points)
    for node, count in left.items():
        if count is not ZERO:
            raise VerifierError("KERNEL-C6", f"{count} elements of {node!r} are not those of one of its parts")


def _verify_kernel(kernel: Kernel, layouts: Mapping[Node, Layout]) -> None:
    bodies = [nest.body for nest in kernel.nests]
    written = {*kernel.writes, *kernel.updates}
    for node in loads(bodies):
        if node not in kernel.reads:
            raise VerifierError("KERNEL-C3", f"{kernel.nodes} loads {node!r}, which is not among what it reads")
    for node in stores(bodies):
        if node not in written:
            raise VerifierError("KERNEL-C3", f"{kernel.nodes} stores {node!r}, which is not among what it writes")
    _verify_stores(kernel, layouts)
    for made, read in kernel.overwrites:
        if made not in kernel.writes or read not in kernel.reads:
            raise VerifierError("KERNEL-C4", f"{made!r} over {read!r} in a kernel that does not make and read them")


def _verify_stores(kernel: Kernel, layouts: Mapping[Node, Layout]) -> None:
    left = {node: product(_apart(node, layouts).values()) for node in kernel.writes if node not in kernel.parts}
    for nest in kernel.nests:
        body = nest.body
        for store in body.stores:
            if store.buffer not in left or store.mode != "set":
                left.pop(store.buffer, None)
                continue
            if any(body.space[v] is ZERO for v in nest.outer):
                continue
            variables = {v: n for v, n in body.space.items() if v in store.at.symbols}
            left[store.buffer] = ex.sub(left[store.buffer], product(variables.values()))
            if distinct((store.at,), variables) is False and not _overlaps(store.buffer, layouts):
                twice = f"{kernel.nodes} stores elements of {store.buffer!r} twice: {store.at}"
                raise VerifierError("KERNEL-C7", twice)
    for node, count in left.items():
        if count.is_const and count is not ZERO:
            raise VerifierError("KERNEL-C7", f"{kernel.nodes} leaves {count} elements of {node!r} out")


def _apart(node: Node, layouts: Mapping[Node, Layout]) -> dict[int, Expr]:
    """The extents of the dimensions along which a buffer has more than one element, by dimension: an expanded one has
    one; an empty buffer has none along each."""
    if ZERO in node.shape:
        return {0: ZERO}
    steps = strides_of(layouts, node)
    return {d: n for d, (n, step) in enumerate(zip(node.shape, steps, strict=True)) if step is not ZERO}


def _overlaps(node: Node, layouts: Mapping[Node, Layout]) -> bool:
    """Are there elements of a buffer that share memory, as those of a copy of overlapping windows do?"""
    extents = _apart(node, layouts)
    index = tuple(ex.symbol(f"d{d}") if d in extents else ZERO for d in range(len(node.shape)))
    place = Layout(strides_of(layouts, node)).position(index)
    return distinct((place,), {index[d]: n for d, n in extents.items()}) is False
