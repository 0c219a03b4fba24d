"""Writes to one part after another of a value, reads of what was written, and sums of parts.

A loop that fills a tensor step by step (``out[:, t] = h``) is a functional graph of scatters, each a whole new value,
and a read between them (``out[:, t - 1]``) is a view of all that was written before. The gradient of a tensor that was
taken apart is a sum of its parts' gradients, each with zeros around it, and between writes a sum of both. Here what is
known of a value is known of its positions: the last scatter or sum is a concatenation, a view that lies in one part is
taken of that, and each step costs what it touches, and so does compiling it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.fx

from prims.decomp.common import Value, expand, norm_dim, select, slice_dim, to_dtype
from prims.decomp.registry import get
from prims.decomp.views import slice_bounds, unsqueeze
from prims.lower.once import MISSING
from prims.lower.regions import SCATTERS, VIEWS, slice_of
from prims.records import record
from prims.spec import TensorSpec

__all__ = ["Writes"]

_aten = torch.ops.aten

#: What puts zeros around a part.
_AROUND = frozenset((_aten.select_backward.default, _aten.slice_backward.default))
_ONE_POSITION = frozenset((_aten.select.int, _aten.select_scatter.default, _aten.select_backward.default))


@record
class _Span:
    """The value at positions ``start`` to ``stop`` of a dimension; ``value`` begins at ``first``, and so many additions
    to other positions it has seen."""

    start: int
    stop: int
    value: Value
    first: int
    seen: int


class _Parts:
    """A value by positions of a dimension: spans, sorted, over a value that has the rest (zeros if None).

    Attributes:
        count: how many scatters and sums made it.
        added: how many of them were sums, which add zeros to all other positions: nothing there is -0.0.
    """

    def __init__(self, dim: int, extent: int, base: Value | None, spans: list[_Span], count: int, added: int) -> None:
        self.dim = dim
        self.extent = extent
        self.base = base
        self.spans = spans
        self.count = count
        self.added = added

    def copy(self) -> _Parts:
        return _Parts(self.dim, self.extent, self.base, list(self.spans), self.count, self.added)

    def over(self, start: int, stop: int) -> tuple[int, int]:
        """The spans that share positions with these: from the first to behind the last."""
        first = bisect_left(self.spans, start, key=lambda s: s.stop - 1)
        return first, bisect_left(self.spans, stop, key=lambda s: s.start)

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, _Span | None]]:
        """These positions by spans; None where there is none."""
        at = start
        for s in self.spans[slice(*self.over(start, stop))]:
            if at < s.start:
                yield at, s.start, None
            yield max(s.start, start), min(s.stop, stop), s
            at = s.stop
        if at < stop:
            yield at, stop, None

    def put(self, start: int, stop: int, spans: list[_Span]) -> None:
        """Let these spans stand at positions."""
        first, last = self.over(start, stop)
        old = self.spans[first:last]
        before = [_Span(s.start, start, s.value, s.first, s.seen) for s in old[:1] if s.start < start]
        behind = [_Span(stop, s.stop, s.value, s.first, s.seen) for s in old[-1:] if s.stop > stop]
        self.spans[first:last] = [*before, *spans, *behind]
        self.count += 1


class Writes:
    """What is known by positions of the values of a graph that is walked in its order.

    ``values`` maps the nodes that were walked to what they became.
    """

    def __init__(self, p: Any, values: Mapping[torch.fx.Node, Any]) -> None:
        self.p = p
        self.values = values
        self.known: dict[torch.fx.Node, _Parts] = {}
        self.sum: Any = get(_aten.add.Tensor)

    def emit(self, node: torch.fx.Node) -> Value | None:
        """The value of a scatter, a view or a sum; None where its own operator is as good."""
        if node.target in VIEWS:
            return self._read(node)
        if node.target in SCATTERS:
            parts = self._scattered(node)
        elif node.target in _AROUND:
            parts = self._around(node)
        elif node.target is _aten.add.Tensor:
            parts = self._added(node)
        else:
            return None
        if parts is None:
            return None
        self.known[node] = parts
        if parts.count < 2 or all(self._goes_on(user, reader, parts) for reader, user in _readers(node)):
            return None
        made = [self._at(parts, *piece) for piece in parts.pieces(0, parts.extent)]
        return made[0] if len(made) == 1 else self.p.concat(tuple(made), parts.dim)

    # ---- what is known ----------------------------------------------------------------------------------

    def _scattered(self, node: torch.fx.Node) -> _Parts | None:
        place = _place(node)
        if place is None:
            return None
        dim, start, stop = place
        parts = self._of(node.args[0], node, dim)
        source = self._part(node.args[1], self.values[node.args[0]], node, place)  # type: ignore[index]
        parts.put(start, stop, [_Span(start, stop, source, start, parts.added)])
        return parts

    def _around(self, node: torch.fx.Node) -> _Parts | None:
        place = _place(node)
        if place is None:
            return None
        dim, start, stop = place
        spec = node.meta["spec"]
        value = self.values[node.args[0]]  # type: ignore[index]
        value = unsqueeze(self.p, value, dim) if node.target in _ONE_POSITION else value
        return _Parts(dim, spec.shape[dim], None, [_Span(start, stop, value, start, 0)], 1, 0)

    def _added(self, node: torch.fx.Node) -> _Parts | None:
        """A sum with what is zeros but for one part."""
        other, around = _addend(node)
        if around not in self.known or other is None:
            return None
        dim, (part,) = self.known[around].dim, self.known[around].spans
        parts, made = self._of(other, node, dim), []
        for start, stop, span in list(parts.pieces(part.start, part.stop)):
            more = slice_dim(self.p, part.value, dim, start - part.first, stop - part.first)
            alone = span is None and parts.base is None  # beside zeros of the sum's other terms
            value = more if alone else self.sum(self.p, self._at(parts, start, stop, span), more)
            made.append(_Span(start, stop, value, start, parts.added + (not alone)))
        parts.put(part.start, part.stop, made)
        parts.added += 1
        return parts

    def _of(self, node: Any, reader: torch.fx.Node, dim: int) -> _Parts:
        """What is known of a value that a node goes on from, for it alone."""
        parts = self.known.get(_copied(node))
        if parts is None or parts.dim != dim:
            return _Parts(dim, node.meta["spec"].shape[dim], self.values[node], [], 0, 0)
        later = (user for _, user in _readers(_copied(node)) if user is not reader and user not in self.values)
        if next(later, None) is not None:
            return parts.copy()
        return self.known.pop(_copied(node))

    # ---- values -----------------------------------------------------------------------------------------

    def _part(self, source: Any, over: Value, node: torch.fx.Node, place: tuple[int, int, int]) -> Value:
        """What a scatter writes, with the sizes of the part."""
        dim, start, stop = place
        value = to_dtype(self.p, self.values[source], over.dtype)
        value = unsqueeze(self.p, value, dim) if node.target in _ONE_POSITION else value
        return expand(self.p, value, (*over.shape[:dim], stop - start, *over.shape[dim + 1 :]))

    def _at(self, parts: _Parts, start: int, stop: int, span: _Span | None) -> Value:
        """The value at positions that lie in one span, or in none."""
        if span is None and parts.base is None:
            like = parts.spans[0].value
            shape = (*like.shape[: parts.dim], stop - start, *like.shape[parts.dim + 1 :])
            return self.p.full(shape, 0.0 if like.dtype.is_floating_point else 0, like.dtype, like.device)
        value, first, seen = (parts.base, 0, 0) if span is None else (span.value, span.first, span.seen)
        assert value is not None
        value = slice_dim(self.p, value, parts.dim, start - first, stop - first)
        return self.sum(self.p, value, 0.0) if value.dtype.is_floating_point and seen < parts.added else value

    def _read(self, node: torch.fx.Node) -> Value | None:
        parts = self.known.get(_copied(node.args[0]))
        place = None if parts is None else _place(node)
        if parts is None or place is None or place[0] != parts.dim:
            return None
        piece = _only(parts, *place[1:])
        if piece is MISSING:
            return None
        value = self._at(parts, *piece)
        return select(self.p, value, parts.dim, 0) if node.target in _ONE_POSITION else value

    def _goes_on(self, user: torch.fx.Node, node: torch.fx.Node, parts: _Parts) -> bool:
        """Does a reader need but what is known of some positions?"""
        if user.target is _aten.add.Tensor:
            other, around = _addend(user)
            return other is node and around is not None and _place(around)[0] == parts.dim  # type: ignore[index]
        place = _place(user) if user.target in SCATTERS or user.target in VIEWS else None
        if place is None or place[0] != parts.dim or node in user.args[1:]:
            return False
        return user.target in SCATTERS or _only(parts, *place[1:]) is not MISSING


def _only(parts: _Parts, start: int, stop: int) -> Any:
    """The one piece that positions are, or `MISSING`."""
    first, last = parts.over(start, stop)
    if last - first > 1:
        return MISSING
    pieces = list(parts.pieces(start, stop))
    return pieces[0] if len(pieces) == 1 else MISSING


def _place(node: torch.fx.Node) -> tuple[int, int, int] | None:
    """The dimension of a part of a value, and between which positions it lies; None where they are no numbers, none, or
    not all of them."""
    operands = node.args[: 2 if node.target in SCATTERS else 1]
    specs = [x.meta.get("spec") if isinstance(x, torch.fx.Node) else None for x in operands]
    given = node.args[len(operands) :]
    over = specs[0]
    if node.target in _AROUND:
        given, over = given[1:], node.meta.get("spec")
    if node.kwargs or over is None or over.ndim == 0 or over.dtype.is_complex:  # type: ignore[union-attr]
        return None
    if any(spec is None or spec.device != over.device for spec in specs):  # type: ignore[union-attr]
        return None
    dim = norm_dim(given[0] if given else 0, over.ndim)  # type: ignore
    extent = over.shape[dim]  # type: ignore[union-attr]
    if type(extent) is not int:
        return None
    if node.target in _ONE_POSITION:
        at = given[1]
        return (dim, at % extent, at % extent + 1) if type(at) is int else None
    start, end, step = slice_of(given)
    if step != 1 or any(type(x) is not int and x is not None for x in (start, end)):
        return None
    low, high = slice_bounds(extent, start, end)
    return (dim, low, high) if low < high else None


def _addend(node: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node] | tuple[None, None]:
    """The other term of a sum, and the one that is zeros but for a part."""
    terms: list[Any] = list(node.args)
    if node.kwargs or len(terms) != 2 or not all(isinstance(x, torch.fx.Node) for x in terms):
        return None, None
    spec = node.meta["spec"]
    for other, term in (terms, reversed(terms)):
        around, same = _copied(term), other.meta.get("spec")
        if around.target in _AROUND and isinstance(same, TensorSpec) and same.dtype == spec.dtype:
            sizes = (tuple(s.shape) for s in (same, around.meta["spec"]))
            if _place(around) is not None and all(size == tuple(spec.shape) for size in sizes):
                return other, around
    return None, None


def _copied(x: Any) -> torch.fx.Node:
    """What a value is a copy of."""
    while x.target is _aten.clone.default:
        x = x.args[0]
    return x


def _readers(node: torch.fx.Node) -> Iterator[tuple[torch.fx.Node, torch.fx.Node]]:
    """Each reader of a value or a copy of it, behind which of them it reads."""
    todo = [node]
    for x in todo:
        for user in x.users:
            if user.target is _aten.clone.default:
                todo.append(user)
            else:
                yield x, user
