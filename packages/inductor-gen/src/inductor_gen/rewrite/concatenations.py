"""Concatenations of what lies side by side already, and parts of concatenations.

Programs split a tensor, treat the parts alike and join them, join what was joined, or take out again what was put in:
``cat(x.chunk(2))`` is ``x``, and one part of ``cat((a, b))`` is ``a``. The gradient of one part among many is zeros,
part after part, beside it. Kernels would copy part after part.

A kernel that reads a concatenation along one of its own loops is cut at the seams (:mod:`inductor_gen.fuse.seams`).
One that does not, such as a softmax along it, chooses among the parts for each element: of many parts the library
writes the whole first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from inductor_gen.loops.graph import Node, inner_dims
from inductor_gen.loops.index import ONE, product, size
from inductor_gen.loops.views import between, parts_of
from inductor_gen.rewrite.row import Context, Editor
from prims.spec.layout import known_equal, known_same

__all__ = ["apart", "call", "is_of_many", "join", "neighbours", "take"]

#: Parts among which a kernel chooses for each element; of more the whole is written first. One thread of an AMD EPYC,
#: parts of 4 K to 256 K elements, geometric means of softmaxes, sums, norms and lookups: choosing takes 0.2 to 0.9 of
#: the time for 2 and 3, as long for 4, 1.7 times as long for 6, 8 times for 12. An H200: 0.4 to 0.9 for 2 to 4, 1.2 to
#: 2.2 times as long for 5 and 6, 2.3 to 2.8 times for 12 (a lookup always 0.6);
MOST_CHOICES = 4

#: but 0.13 to 0.7 of the time for 2 to 12 parts of one position each, which the library writes without coalescing.
MOST_POSITIONS = 16

#: The same of all slices together that windows over what is padded are, on a CPU, whose vectors do not choose between
#: a row and edges that lie elsewhere. One thread of an AMD EPYC, 6 images of 256 x 256 with reflected edges: the median
#: of three neighbours takes 4.1 ms where its kernel chooses and 0.3 where the edges are written, the least of nine 11.4
#: and 0.5. Of parts of one matrix, as the gradient of padding in a circle has, writing takes 1.7 times as long.
MOST_OF_WINDOWS = 2

#: Readers that are asked how they walk a concatenation.
_ASKED = 100

Part = tuple[Node, Sequence[Any] | None]  # a tensor, and where a slice of it starts and stops


def neighbours(node: Node, c: Context) -> list[Part] | None:
    """The parts of a concatenation, fewer than it has."""
    if node.op != "concat":
        return None
    given, dim = node.args
    inner = [x for x in given if x.op == "concat" and x.args[1] == dim and len(x.users) == 1 and x not in c.results]
    parts: list[Part] = []
    for now in (_part(part) for x in given for part in (x.args[0] if x in inner else (x,))):
        before = parts[-1] if parts else None
        if before is not None and before[1] and now[1] and _alike(before[0], now[0]):
            parts[-1] = (now[0], (before[1][0], _longer(before[1][1], now[1][1][dim], dim)))
        elif before is not None and before[1] and now[1] and _follows(before, now, dim):
            parts[-1] = (now[0], (before[1][0], now[1][1]))
        else:
            parts.append(now)
    return parts if inner or len(parts) < len(given) or len(given) == 1 else None


def _part(x: Node) -> Part:
    """A tensor of which this is a slice without steps, else itself. One value everywhere is a slice of any size, and so
    is each slice of it: from 0 on, as long as it is."""
    filled = x.args[0] if x.op == "slice" else x
    if filled.op == "full":
        return filled, ((0,) * x.spec.ndim, x.spec.shape)
    is_slice = x.op == "slice" and all(known_equal(step, 1) for step in x.args[3])
    return (x.args[0], x.args[1:3]) if is_slice else (x, None)


def _alike(x: Node, y: Node) -> bool:
    """Does one number fill both, down to the sign of zero?"""
    a, b = (z.args[1] if z.op == "full" else None for z in (x, y))
    return isinstance(a, (int, float, complex)) and repr(a) == repr(b)


def _longer(shape: Sequence[Any], more: Any, dim: int) -> tuple[Any, ...]:
    return tuple(n + more if d == dim else n for d, n in enumerate(shape))


def _follows(before: Part, now: Part, dim: int) -> bool:
    """Is one slice where the other of the same tensor ends, and between the same bounds elsewhere?"""
    (base, (starts, stops)), (other, (begins, ends)) = before, now  # type: ignore[misc]
    beside = [d for d in range(len(starts)) if d != dim]
    along = all(known_equal(starts[d], begins[d]) and known_equal(stops[d], ends[d]) for d in beside)
    return other is base and known_equal(stops[dim], begins[dim]) and along


def join(p: Editor, node: Node, parts: list[Part]) -> None:
    """The concatenation of fewer parts, or what is left of it."""
    made = [x if at is None else _sliced(p, x, at[0], at[1], (1,) * len(at[0])) for x, at in parts]
    p.replace(node, made[0] if len(made) == 1 else p.concat(tuple(made), node.args[1]))


def _sliced(p: Editor, x: Node, starts: Sequence[Any], stops: Sequence[Any], steps: Sequence[Any]) -> Node:
    whole = known_same((*starts, *stops, *steps), (*(0 for _ in starts), *x.spec.shape, *(1 for _ in starts)))
    if x.op == "full" and not whole:
        shape = ((b - a + step - 1) // step for a, b, step in zip(starts, stops, steps, strict=True))
        return p.full(tuple(shape), *x.args[1:])
    return x if whole else p.slice(x, tuple(starts), tuple(stops), steps)


def apart(node: Node, _: Context) -> tuple[Node, Sequence[Any], Sequence[Any]] | None:
    """The part of a concatenation that a slice lies in, and where."""
    if node.op != "slice" or node.args[0].op != "concat":
        return None
    whole, starts, stops, _steps = node.args
    dim, (parts, at) = whole.args[1], parts_of(whole)
    if type(starts[dim]) is not int or type(stops[dim]) is not int:
        return None
    first, last = between(at, size(starts[dim]), size(stops[dim] - 1))
    if first != last or not at[first].is_const:
        return None
    move = lambda bounds: tuple(b - at[first].value * (d == dim) for d, b in enumerate(bounds))
    return parts[first], move(starts), move(stops)


def take(p: Editor, node: Node, found: tuple[Node, Sequence[Any], Sequence[Any]]) -> None:
    """A slice of the part."""
    p.replace(node, _sliced(p, *found, node.args[3]))


def is_of_many(node: Node, c: Context) -> bool | None:
    """Does a kernel read a concatenation of many parts at places that none of its loops walks?"""
    if node.op != "concat" or node.dtype is None:
        return None
    if len(node.args[0]) > 2 and _has_windows(node, c):
        return True
    if len(node.args[0]) <= _most(node, c):
        return None
    todo, seen = [(node, node.args[1])], {node}
    while todo and len(seen) < _ASKED:
        x, dim = todo.pop()
        for user in x.users:
            if user in seen or user.kind not in ("pointwise", "reduce", "scan", "view"):
                continue  # what is not a kernel's reads memory
            seen.add(user)
            if user.kind in ("reduce", "scan"):
                if dim in inner_dims(user):
                    return True
                continue
            at = _walked(x, user, dim)
            if at is not None:
                todo.append((user, at))
            elif not (user.op == "slice" and _count(node, user, dim) <= _most(node, c)):
                return True
    return None


def _has_windows(node: Node, c: Context) -> bool:
    """Do several slices take most of a concatenation each, with a choice among its parts for every element?

    Along other dimensions than the last, where a kernel's loops are cut at the seams, more than two of them take nearly
    all.
    """
    dim = node.args[1]
    extent, is_last = c.hint(size(node.spec.shape[dim])), dim == node.spec.ndim - 1
    slices = [user for user in node.users if user.op == "slice"]
    lengths = ((user, c.hint(size(user.args[2][dim] - user.args[1][dim]))) for user in slices)
    share = extent // 2 if is_last else 3 * extent // 4
    most = [user for user, length in lengths if share < length < extent]
    choosing = [count for user in most if (count := _count(node, user, dim)) > 1]
    apart = is_last and c.device(node).kind == "cpu" and any(_is_computed(x) for x in node.args[0])
    return len(choosing) > 2 - is_last and sum(choosing) > (MOST_OF_WINDOWS if apart else MOST_CHOICES)


def _is_computed(part: Node) -> bool:
    """Is it made by a kernel of its own, as the edge of a row is, rather than a part of what is in memory?"""
    while part.kind == "view" and isinstance(part.args[0], Node):
        part = part.args[0]
    return part.op == "index"


def _walked(x: Node, user: Node, dim: int) -> int | None:
    """The dimension of a view or a pointwise node whose positions are those of ``x`` in ``dim``, in their order."""
    args = user.args
    match user.op:
        case "permute":
            return list(args[1]).index(dim)
        case "broadcast":
            return args[2][dim]
        case "reshape":
            before, after = ([size(n) for n in y.spec.shape] for y in (x, user))
            found = [d for d, n in enumerate(after) if n is before[dim] and product(after[:d]) is product(before[:dim])]
            return found[0] if found else None
        case "slice":
            return dim if known_same((args[1][dim], args[2][dim], args[3][dim]), (0, x.spec.shape[dim], 1)) else None
        case "flip":
            return None if dim in args[1] else dim
        case "pad":
            return dim if known_same((args[2][dim], args[3][dim]), (0, 0)) else None
        case "gather" | "index":
            return dim if user.op == "gather" and args[0] is not x else None
    return dim


def _most(node: Node, c: Context) -> int:
    narrow = c.device(node).kind != "cpu" and all(x.shape[node.args[1]] is ONE for x in node.args[0])
    return MOST_POSITIONS if narrow else MOST_CHOICES


def _count(node: Node, user: Node, dim: int) -> int:
    """In how many parts a slice along the dimension lies."""
    first, last = between(parts_of(node)[1], size(user.args[1][dim]), size(user.args[2][dim] - 1))
    return last - first + 1


def call(p: Editor, node: Node, _: bool) -> None:
    """The library's."""
    p.replace(node, p.aten(torch.ops.aten.cat.default, list(node.args[0]), node.args[1]))
