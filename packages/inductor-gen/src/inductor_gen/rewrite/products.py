"""Products of 16-bit matrices on a GPU, given to the library in other pieces: aligned ones, and several as one.

A matrix whose rows do not begin at multiples of 16 bytes sends a product to kernels that load element by element: with
a vocabulary of 50,257 a ``[4096, 50257] @ [50257, 768]`` takes 2.3 ms on an H200, padded to 50,264 it takes 0.4. The
padding of a value that a kernel makes costs nothing, that of others a copy.

Products of one matrix with several weights are one product with the weights side by side: one launch, and more tiles to
share among the multiprocessors. Weights that lie apart are copied, in every call; products that are read much later
than the others stay apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from inductor_gen.device.record import Device
from inductor_gen.extern.cuda import is_half_product, misaligned
from inductor_gen.loops.cost import LIBRARY, TEMPLATE, product_seconds
from inductor_gen.loops.graph import Node, reached
from inductor_gen.rewrite.row import Context, Editor
from prims.records import record

__all__ = ["PRODUCTS", "Padded", "pad", "siblings", "together", "unaligned"]

PRODUCTS = ("aten.mm.default", "aten.addmm.default")

#: The share of its peak that a device comes to where the library loads element by element.
_UNALIGNED = 0.15

#: What must be gained, as a share of the time that the products take.
_LEAST = 0.1

_TILE = (64, 64)


@record
class Padded:
    """The rows, columns and depth of a product with its padding."""

    m: int
    n: int
    k: int


def _sizes(node: Node) -> tuple[int, int, int] | None:
    """The rows, columns and depth of a plain product of 16-bit matrices on a GPU."""
    if not is_half_product(node) or node.kwargs or any(x.dtype != node.dtype for x in node.ins):
        return None
    left, right = node.args[-2:]
    if not all(s.is_const and s.value > 0 for x in (left, right) for s in x.shape):
        return None
    if len(node.args) == 3 and (len(node.args[0].shape) != 1 or node.args[0].shape[0] is not right.shape[1]):
        return None
    return int(left.shape[0].value), int(right.shape[1].value), int(left.shape[1].value)


def _stored(x: Node) -> tuple[Node, bool]:
    """The matrix that lies in memory, and whether ``x`` is it transposed."""
    return (x.args[0], True) if x.op == "permute" else (x, False)


def _bytes(x: Node) -> int:
    return int(x.dtype.itemsize * x.spec.numel())  # type: ignore[union-attr]


def _copied(x: Node, device: Device) -> float:
    """The seconds that copying a matrix takes."""
    return device.launch_cost + 2 * _bytes(x) / device.bandwidth


def _is_returned(x: Node, c: Context) -> bool:
    """Does the graph give the value, or a view of it?"""
    return x in c.results or any(user.kind == "view" and _is_returned(user, c) for user in x.users)


def unaligned(node: Node, c: Context) -> Padded | None:
    """The sizes to which a product's matrices are padded, where that pays."""
    sizes = _sizes(node)
    if sizes is None:
        return None
    m, n, k = sizes
    (left, turned), (right, also_turned) = map(_stored, node.args[-2:])
    up = lambda size: -(-size // 8) * 8
    to = Padded(up(m) if turned else m, up(n), k if turned and not also_turned else up(k))
    if to == Padded(m, n, k):
        return None
    device = c.device(node)
    changed = [left] * ((m, k) != (to.m, to.k)) + [right] * ((k, n) != (to.k, to.n))
    extra = sum(_copied(x, device) for x in changed if x.kind not in ("pointwise", "reduce"))
    extra += _copied(node, device) if n != to.n and _is_returned(node, c) else 0
    work = product_seconds(m, n, k, _TILE, device)
    now = work / (TEMPLATE if misaligned(node) else _UNALIGNED)
    return to if now - work / LIBRARY - extra > _LEAST * now else None


def pad(p: Editor, node: Node, to: Padded) -> None:
    """The product of padded matrices, and the part of it that is the result."""
    *bias, left, right = node.args
    m, n = node.spec.shape
    operands = [_padded(p, left, (to.m, to.k)), _padded(p, right, (to.k, to.n))]
    bias = [p.pad(b, 0.0, (0,), (to.n - n,)) if to.n != n else b for b in bias]
    made = p.aten(node.target, *bias, *operands)
    p.replace(node, made if (to.m, to.n) == (m, n) else p.slice(made, (0, 0), (m, n), (1, 1)))


def _padded(p: Editor, x: Node, shape: tuple[int, int]) -> Node:
    """A matrix with zeros behind its rows and columns; several products read one."""
    stored, turned = _stored(x)
    wanted = shape[::-1] if turned else shape
    more = tuple(to - int(have.value) for to, have in zip(wanted, stored.shape, strict=True))
    if not any(more):
        return x
    args = (stored, 0.0, (0, 0), more)
    late = p.at.is_late  # a copy for the one is not kept for the other
    known = (user for user in stored.users if user.op == "pad" and user.args == args and user.is_late == late)
    made = next(known, None) or p.pad(*args)
    return p.permute(made, (1, 0)) if turned else made


def siblings(node: Node, c: Context) -> list[Node] | None:
    """The products of one matrix with weights, of which this is the first, that are faster as one."""
    sizes = _sizes(node)
    if sizes is None or _weight(node) is None:
        return None
    m, _, k = sizes
    left = node.args[-2]
    behind = [user for user in left.users if user.id >= node.id and user.is_late == node.is_late]
    same = [user for user in behind if user.op == node.op and user.args[-2] is left]
    group = [user for user in same if _sizes(user) and _weight(user) and not _is_returned(user, c)]
    group = [user for user in group if not _waits(user, node, group)]
    if len(group) < 2 or group[0] is not node:
        return None
    device = c.device(node)
    wide = [int(user.shape[1].value) for user in group]
    through = lambda n: 2 * (m * k + k * n + m * n) / device.bandwidth
    seconds = lambda n: device.launch_cost + max(product_seconds(m, n, k, _TILE, device) / LIBRARY, through(n))
    apart, one = sum(map(seconds, wide)), seconds(sum(wide))
    if _hull(group) is None:
        one += device.launch_cost + sum(2 * _bytes(user.args[-1]) for user in group) / device.bandwidth
    return group if apart - one > device.launch_cost else None  # what is less is not sure


def _waits(product: Node, first: Node, group: list[Node]) -> bool:
    """Is a product read only after other operators that come after the first of its group? Until then it would be in
    memory: keys of one matrix for each of many layers."""

    def waits(reader: Node) -> bool:
        before = reached(reader.ins, lambda x: x.ins if x.id >= first.id and x not in group else ())
        return any(x.kind == "extern" and x.id >= first.id and x not in group for x in before)

    loops = ("view", "pointwise")
    readers = reached(product.users, lambda x: x.users if x.kind in loops else ())
    return all(waits(reader) for reader in readers if reader.kind not in loops or not reader.users)


def _weight(node: Node) -> tuple[Node, int, int] | None:
    """An input, and from which to which of its rows it is the right matrix, transposed."""
    stored, turned = _stored(node.args[-1])
    rows = (0, int(node.shape[1].value))
    if stored.op == "slice":
        stored, starts, stops, steps = stored.args
        if (starts[1], steps) != (0, (1, 1)) or stops[1] != stored.spec.shape[1]:
            return None
        rows = (starts[0], stops[0])
    given = [x for x in node.args[:-2] if x.kind != "input"]
    return (stored, *rows) if turned and stored.kind == "input" and not given else None


def _weights(group: list[Node]) -> Iterator[tuple[Node, int, int]]:
    return (found for node in group if (found := _weight(node)) is not None)


def _hull(group: list[Node]) -> tuple[Node, int, int] | None:
    """The rows of one input that all the weights are, one behind the other."""
    first, *rest = _weights(group)
    base, start, stop = first
    for other, begin, end in rest:
        if other is not base or begin != stop:
            return None
        stop = end
    return base, start, stop


def together(p: Editor, node: Node, group: list[Node]) -> None:
    """One product, of which theirs are columns."""
    def rows(base: Node, start: int, stop: int) -> Node:
        return p.slice(base, (start, 0), (stop, base.spec.shape[1]), (1, 1))

    hull = _hull(group)
    weight = rows(*hull) if hull else p.concat(tuple(rows(*found) for found in _weights(group)), 0)
    bias = [p.concat(tuple(user.args[0] for user in group), 0)] if len(node.args) == 3 else []
    made: Any = p.aten(node.target, *bias, node.args[-2], p.permute(weight, (1, 0)))
    at, m = 0, node.spec.shape[0]
    for user in group:
        n = user.spec.shape[1]
        p.replace(user, p.slice(made, (0, at), (m, at + n), (1, 1)))
        at += n
