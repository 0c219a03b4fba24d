"""View primitives as index maps: ``pull`` from an output index to the input's, ``push`` the other way."""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import ONE, ZERO, Ranges, lower, nonneg, product, regroup, rem, size, upper
from prims.errors import InternalError
from prims.spec import expr as ex
from prims.spec.expr import Expr

__all__ = ["Branch", "between", "parts_of", "pull", "push", "view_strides"]

Index = tuple[Expr, ...]


class Branch:
    """An input of a view at an index. It is meant where every expression in ``where`` is >= 0; later branches of
    the same view stand for what is left. ``value`` is a literal for padding, when ``node`` is None."""

    __slots__ = ("index", "node", "value", "where")

    def __init__(self, node: Node | None, index: Index, where: tuple[Expr, ...] = (), value: Any = None) -> None:
        self.node = node
        self.index = index
        self.where = where
        self.value = value


def _pull_broadcast(node: Node, index: Index) -> Index:
    x, _, dims = node.args
    return tuple(
        ZERO if x.shape[i] is ONE and node.shape[d] is not ONE else index[d] for i, d in enumerate(dims)
    )


def _pull_permute(node: Node, index: Index) -> Index:
    out = [ZERO] * len(index)
    for position, d in enumerate(node.args[1]):
        out[d] = index[position]
    return tuple(out)


def _pull_slice(node: Node, index: Index) -> Index:
    _, starts, _, steps = node.args
    return tuple(
        ex.add(size(start), ex.mul(i, size(step)) if step != 1 else i)
        for i, start, step in zip(index, starts, steps, strict=True)
    )


def _pull_flip(node: Node, index: Index) -> Index:
    x, dims = node.args
    return tuple(
        ex.sub(ex.sub(x.shape[d], ONE), i) if d in dims else i for d, i in enumerate(index)
    )


_PULLED = {"broadcast": _pull_broadcast, "permute": _pull_permute, "slice": _pull_slice, "flip": _pull_flip}


def _pull_pad(node: Node, index: Index) -> list[Branch]:
    x, value, low, high = node.args
    moved = tuple(ex.sub(i, size(lo)) for i, lo in zip(index, low, strict=True))
    where: list[Expr] = []
    for d, i in enumerate(moved):
        if size(low[d]) is not ZERO:
            where.append(i)
        if size(high[d]) is not ZERO:
            where.append(ex.sub(ex.sub(x.shape[d], ONE), i))
    where = [w for w in where if not w.is_const or w.value < 0]
    if not where:
        return [Branch(x, moved)]
    return [Branch(x, moved, tuple(where)), Branch(None, (), (), value)]


def _pull_concat(node: Node, index: Index, ranges: Ranges) -> list[Branch]:
    dim, (parts, starts) = node.args[1], parts_of(node)
    first, last = between(starts, lower(index[dim], ranges), upper(index[dim], ranges))
    if first != last and len(index[dim].terms) > 1 and any(n is not ONE for n in node.shape[dim + 1 :]):
        # Where windows are cut from it, no loop walks along it, which could be cut in two at the seam.
        turned = _turned(parts, dim)
        if turned is not None:
            x, start = turned
            at = rem(ex.add(index[dim], start), x.shape[dim], ranges)
            return [Branch(x, (*index[:dim], at, *index[dim + 1 :]))]
    out: list[Branch] = []
    for k in range(first, last + 1):
        where = () if k == last else (ex.sub(ex.sub(starts[k + 1], ONE), index[dim]),)
        out.append(Branch(parts[k], tuple(ex.sub(i, starts[k]) if d == dim else i for d, i in enumerate(index)), where))
    return out


def _turned(parts: Sequence[Node], dim: int) -> tuple[Node, Expr] | None:
    """The value that two parts are the end and the beginning of, and where the end begins: of a ``roll``."""
    if len(parts) != 2 or any(part.op != "slice" or set(part.args[3]) != {1} for part in parts):
        return None
    end, beginning = parts
    x, at = end.args[0], size(end.args[1][dim])
    bounds = [(size(part.args[1][d]), size(part.args[2][d])) for part in parts for d in range(len(x.shape)) if d != dim]
    whole = all(low is ZERO for low, _ in bounds) and all(
        high is extent
        for (_, high), extent in zip(bounds, [n for _ in parts for d, n in enumerate(x.shape) if d != dim], strict=True)
    )
    is_end = size(end.args[2][dim]) is x.shape[dim]
    is_beginning = size(beginning.args[1][dim]) is ZERO and size(beginning.args[2][dim]) is at
    return (x, at) if beginning.args[0] is x and whole and is_end and is_beginning else None


def parts_of(node: Node) -> tuple[list[Node], list[Expr]]:
    """The operands of a concatenation that are not empty (one where all are), and where each starts."""
    if node.parts is None:
        xs, dim = node.args
        parts = [x for x in xs if x.shape[dim] is not ZERO] or [xs[0]]
        node.parts = parts, list(accumulate((x.shape[dim] for x in parts[:-1]), ex.add, initial=ZERO))
    return node.parts


def between(starts: list[Expr], low: Expr | None, high: Expr | None) -> tuple[int, int]:
    """The first and the last part that positions from ``low`` to ``high`` may lie in: by halving, for starts ascend."""
    first = bisect_left(starts, True, 1, key=lambda start: not _known_less(start, low, or_equal=True)) - 1
    return first, bisect_left(starts, True, first + 1, key=lambda start: _known_less(high, start)) - 1


def _known_less(a: Expr | None, b: Expr | None, or_equal: bool = False) -> bool:
    if a is None or b is None:
        return False
    if a.is_const and b.is_const:
        return bool(a.value < b.value or (or_equal and a.value == b.value))
    gap = ex.sub(b, a)
    return nonneg(gap if or_equal else ex.sub(gap, ONE))


def pull(
    node: Node, index: Index, ranges: Ranges, regrouped: Callable[[Index, Index, Index, Ranges], Index] = regroup
) -> list[Branch]:
    """Where the element ``index`` of a view comes from; more than one branch for ``pad`` and ``concat``."""
    if node.op == "pad":
        return _pull_pad(node, index)
    if node.op == "concat":
        return _pull_concat(node, index, ranges)
    x: Node = node.args[0]
    if node.op == "reshape":
        return [Branch(x, regrouped(index, node.shape, x.shape, ranges))]
    if node.op not in _PULLED:
        raise InternalError(f"view primitive {node.op!r} has no index map")
    return [Branch(x, _PULLED[node.op](node, index))]


def push(node: Node, index: Index, ranges: Ranges, reduced: Sequence[Expr]) -> Index | None:
    """The index of a view's element that comes from element ``index`` of its input, or None.

    Dimensions that a broadcast adds are matched with the loop variables ``reduced``, all of them in order.
    """
    match node.op:
        case "permute":
            return tuple(index[d] for d in node.args[1])
        case "reshape":
            return regroup(index, node.args[0].shape, node.shape, ranges)
        case "flip":
            return _pull_flip(node, index)
        case "broadcast":
            return _push_broadcast(node, index, ranges, reduced)
    return None


def _push_broadcast(node: Node, index: Index, ranges: Ranges, reduced: Sequence[Expr]) -> Index | None:
    x, _, dims = node.args
    out: list[Expr | None] = [None] * len(node.shape)
    for i, d in enumerate(dims):
        if x.shape[i] is not ONE or node.shape[d] is ONE:  # equal sizes may be two symbols
            out[d] = index[i]
    added = [d for d, i in enumerate(out) if i is None]
    sizes = [node.shape[d] for d in added]
    extents = [ranges[v] for v in reduced]
    if product(sizes) is ONE:
        return tuple(ZERO if i is None else i for i in out)
    if product(sizes) is not product(extents) or any(v in i.symbols for i in index for v in reduced):
        return None
    for d, position in zip(added, regroup(tuple(reduced), extents, sizes, ranges), strict=True):
        out[d] = position
    return tuple(out)  # type: ignore[arg-type]


def view_strides(
    node: Node, strides: tuple[Expr, ...], offset: Expr
) -> tuple[tuple[Expr, ...], Expr] | None:
    """Strides and offset of a view over its input's, or None where only a copy can represent it."""
    match node.op:
        case "permute":
            return tuple(strides[d] for d in node.args[1]), offset
        case "slice":
            _, starts, _, steps = node.args
            moved = offset
            for start, stride in zip(starts, strides, strict=True):
                moved = ex.add(moved, ex.mul(size(start), stride))
            return tuple(ex.mul(s, size(step)) for s, step in zip(strides, steps, strict=True)), moved
        case "broadcast":
            x, _, dims = node.args
            out = [ZERO] * len(node.shape)
            for i, d in enumerate(dims):
                if x.shape[i] is not ONE:  # equal sizes may be two symbols
                    out[d] = strides[i]
            return tuple(out), offset
        case "reshape":
            view = _reshape_strides(node.args[0].shape, tuple(strides), node.shape)
            return None if view is None else (view, offset)
    return None


@functools.lru_cache(maxsize=256)
def _reshape_strides(
    source: tuple[Expr, ...], strides: tuple[Expr, ...], target: tuple[Expr, ...]
) -> tuple[Expr, ...] | None:
    """Strides of a reshape that needs no copy; the usual greedy match of runs of contiguous dimensions."""
    runs: list[tuple[Expr, Expr]] = []  # (size, innermost stride) of each maximal collapsible run
    for extent, stride in zip(source, strides, strict=True):
        if extent is ONE:
            continue
        if runs and runs[-1][1] is ex.mul(extent, stride):
            runs[-1] = (ex.mul(runs[-1][0], extent), stride)
        else:
            runs.append((extent, stride))
    out: list[Expr] = [ONE] * len(target)
    dim = len(target) - 1
    for extent, stride in reversed(runs):
        step, left = stride, extent
        while left is not ONE:
            while dim >= 0 and target[dim] is ONE:
                out[dim] = step
                dim -= 1
            if dim < 0:
                return None
            quotient = ex.floordiv(left, target[dim]) if target[dim] is not ZERO else ZERO
            if ex.mul(quotient, target[dim]) is not left or quotient is ZERO:
                return None
            out[dim] = step
            step = ex.mul(step, target[dim])
            left = quotient
            dim -= 1
    step = ONE if not runs else ex.mul(runs[0][0], runs[0][1])
    while dim >= 0:
        if target[dim] is not ONE:
            return None
        out[dim] = step
        dim -= 1
    return tuple(out)


