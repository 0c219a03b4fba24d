"""Concatenations in place: who makes an operand writes its part of the result too.

A concatenation that must be in memory is a kernel of one nest per operand (:mod:`inductor_gen.fuse.seams`). A nest that
only copies what another kernel has written reads it and writes it once more: that kernel stores the value into its part
of the result instead, beside its own buffer where somebody else reads that, and the nest goes. The result begins with
the first of its parts, which may keep more memory for longer: it is done where the peak does not rise, and where stores
run along the result's memory as they do along the operand's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise

from inductor_gen.kernel import ir
from inductor_gen.kernel.build import Builder
from inductor_gen.kernel.ir import Kernel, Step, nbytes
from inductor_gen.layout.record import Layout, Prepared, part_of, strides_of
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import ONE, ZERO, Hint, contiguous_strides
from inductor_gen.plan.order import dependencies
from inductor_gen.plan.peak import Footprint, Orders, footprint
from prims.spec import expr as ex

__all__ = ["in_parts"]

#: Bytes of which a part begins at a multiple: kernels count on it.
ALIGNED = 16

#: Concatenations that are looked at, the largest first: each is tried on the whole order.
MOST = 32


def in_parts(steps: Sequence[Step], builder: Builder, hint: Hint) -> list[Step]:
    """The steps with what producers can write themselves taken out of concatenations; where that lowers the peak, what
    is needed after it is made after it."""
    return _Joiner(steps, builder, hint).run()


def _joins(kernel: Kernel, prepared: Prepared) -> bool:
    """Is it nothing but a concatenation, of several operands?"""
    if len(kernel.nests) < 2 or len(kernel.writes) != 1 or kernel.updates:
        return False
    (node,) = kernel.writes
    return node.op == "copy" and _concat(node).op == "concat" and node not in prepared.scattered.values()


def _concat(copy: Node) -> Node:
    """What a copy has the elements of, in row-major order if it is reshaped."""
    x: Node = copy.args[0]
    return x.args[0] if x.op == "reshape" else x


def _parts(
    kernel: Kernel, steps: Sequence[Step], made: dict[Node, int], builder: Builder
) -> dict[Node, list[Node]]:  # fmt: skip
    """The operands that their makers can store themselves, and where."""
    (result,) = kernel.writes
    concat, strides = _concat(result), strides_of(builder.layouts, result)
    if concat is not result.args[0]:
        if strides != contiguous_strides(result.shape):
            return {}
        strides = contiguous_strides(concat.shape)
    xs, dim = concat.args
    copied = [ir.copied(nest.body) for nest in kernel.nests]
    places: dict[Node, list[Node]] = {}
    start = ZERO
    for x in xs:
        base, dims = _stripped(x)
        steps_of = {d: stride for d, stride in zip(dims, strides, strict=True) if d is not None}
        at = ex.mul(start, strides[dim])
        start = ex.add(start, x.shape[dim])
        if at.is_const and at.value * result.dtype.itemsize % ALIGNED == 0:  # type: ignore[union-attr]
            part = part_of(result, base, at.value)
            builder.layouts[part] = Layout(tuple(steps_of.get(d, ZERO) for d in range(len(base.shape))))
            places.setdefault(base, []).append(part)
    return {
        base: parts for base, parts in places.items()
        if copied.count(base) == len(parts) and _can_store(base, parts, steps, made, builder)
    }  # fmt: skip


def _stripped(x: Node) -> tuple[Node, tuple[int | None, ...]]:
    """The node of which a value has the elements, but for dimensions of one, and which dimension each of its is."""
    dims: list[int | None] = list(range(len(x.shape)))
    while x.kind == "view" and x.op == "reshape":
        source = x.args[0]
        if [n for n in source.shape if n is not ONE] != [n for n in x.shape if n is not ONE]:
            break
        kept = iter([d for d, n in enumerate(source.shape) if n is not ONE])
        inner = [next(kept) if n is not ONE else None for n in x.shape]
        dims = [None if d is None else inner[d] for d in dims]
        x = source
    return x, tuple(dims)


def _can_store(
    base: Node, parts: Sequence[Node], steps: Sequence[Step], made: dict[Node, int], builder: Builder
) -> bool:  # fmt: skip
    maker = steps[made[base]] if base in made else None
    if not isinstance(maker, Kernel) or len(maker.nests) != 1 or not maker.origin.loops:
        return False
    if base in builder.prepared.scattered.values():
        return False
    own = strides_of(builder.layouts, base)
    wide = [d for d, n in enumerate(base.shape) if n is not ONE]
    dense = [own[d] is ONE for d in wide]
    return all(dense == [builder.layouts[part].strides[d] is ONE for d in wide] for part in parts)


class _Joiner:
    """Steps by number, and the order in which they run."""

    def __init__(self, steps: Sequence[Step], builder: Builder, hint: Hint) -> None:
        self.steps = list(steps)
        self.order = list(range(len(steps)))
        self.builder = builder
        self.hint = hint
        self.made = {node: k for k, step in enumerate(steps) for node in step.writes}

    def run(self) -> list[Step]:
        prepared = self.builder.prepared
        found = [(k, s) for k, s in enumerate(self.steps) if isinstance(s, Kernel) and _joins(s, prepared)]
        found.sort(key=lambda pair: -nbytes(pair[1].writes[0], self.hint))
        for k, joined in found[:MOST]:
            parts = _parts(joined, self.steps, self.made, self.builder)
            if parts:
                self._try(k, joined, parts)
        return [self.steps[k] for k in self.order if self.steps[k].writes or self.steps[k].updates]

    def _try(self, k: int, joined: Kernel, parts: dict[Node, list[Node]]) -> None:
        """Let the operands' makers store them, where the peak stays."""
        (result,), prepared = joined.writes, self.builder.prepared
        makers = sorted({self.made[base] for base in parts}, key=self.order.index)
        rest = tuple(nest for nest in joined.nests if ir.copied(nest.body) not in parts)
        reads = ir.loads(nest.body for nest in rest)  # a nest that stays may compute something of an operand that goes
        needed = {n for j, step in enumerate(self.steps) if j != k for n in step.reads}
        gone = set(parts) - needed.union(prepared.returned(), reads)
        before = dict(enumerate(map(footprint, self.steps)))
        after = {**before, k: Footprint((), (*reads, result))}
        for at in makers:
            f = after[at]
            begun, went_on = ((result,), ()) if at == makers[0] else ((), (result,))
            after[at] = dataclasses.replace(
                f, made=(*(n for n in f.made if n not in gone), *begun), read=(*f.read, *went_on),
                overwrites=tuple(pair for pair in f.overwrites if pair[0] not in gone),
            )  # fmt: skip
        order = self._order(before, after, makers)
        if order is None:
            return
        self.order = order
        for base, where in parts.items():
            self.builder.parts.setdefault(base, []).extend(where)
        self.builder.unstored |= gone
        for at in makers:
            old = self.steps[at]
            assert isinstance(old, Kernel)
            self._put(at, self.builder.kernel(old.origin), (*old.parts, result))
        moved, work = (count([nest.body for nest in rest], self.hint) for count in (ir.bytes_moved, ir.work))
        left = dataclasses.replace(joined, nests=rest, reads=reads, overwrites=(), moved=moved, work=work)
        if rest:
            self._put(k, left, (result,))
        else:
            self.steps[k] = dataclasses.replace(left, writes=())

    def _order(
        self, before: dict[int, Footprint], after: dict[int, Footprint], makers: Sequence[int]
    ) -> list[int] | None:  # fmt: skip
        """An order of the new steps whose peak is not above that of the old ones."""
        ends = (self.builder.prepared.returned(), self.builder.prepared.freed, self.hint)
        most = Orders(before, {}, *ends).peak(self.order)
        if Orders(after, {}, *ends).peak(self.order) <= most:
            return self.order
        prepared = self.builder.prepared
        found = dependencies([self.steps[i] for i in self.order], prepared.renewed, prepared.renewing)
        needs = {i: {self.order[j] for j in earlier} for i, earlier in zip(self.order, found, strict=True)}
        for first, second in pairwise(makers):
            needs[second].add(first)
        orders = Orders(after, needs, *ends)
        order = orders.postponed(self.order)
        return order if orders.peak(order) <= most else None

    def _put(self, k: int, kernel: Kernel, parts: tuple[Node, ...]) -> None:
        """A kernel that writes parts of buffers, some of which others before it have begun."""
        before = [self.steps[j] for j in self.order[: self.order.index(k)]]
        begun = tuple(n for n in parts if any(n in step.writes for step in before))
        self.steps[k] = dataclasses.replace(
            kernel, parts=parts, updates=begun, writes=tuple(n for n in kernel.writes if n not in begun),
            reads=tuple(dict.fromkeys((*kernel.reads, *begun))),
            overwrites=tuple(pair for pair in kernel.overwrites if pair[0] not in begun),
        )  # fmt: skip
