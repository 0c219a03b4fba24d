"""Writes to one part after another of a value, and reads of what was written.

A loop that fills a tensor step by step (``out[:, t] = h``) is a functional graph of scatters, each a whole new value,
and a read between them (``out[:, t - 1]``) is a view of all that was written before. The last of the scatters is the
concatenation of what they wrote, and a view that lies in one write, or beside it, is taken of that, or of the value
before: each step costs what it writes, and so does compiling it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from prims.decomp.common import Value, expand, norm_dim, select, slice_dim, to_dtype
from prims.decomp.views import slice_bounds, unsqueeze
from prims.lower.once import MISSING
from prims.lower.regions import SCATTERS, VIEWS, slice_of
from prims.records import record

__all__ = ["Writes"]

_aten = torch.ops.aten


@record
class _Span:
    """Positions ``start`` to ``stop`` of a dimension, and the scatter that wrote them; ``first`` is its first one."""

    start: int
    stop: int
    scatter: torch.fx.Node
    first: int


class _Chain:
    """Scatters into one another along a dimension: what was written over ``base``, sorted, and how many wrote it."""

    def __init__(self, base: torch.fx.Node, dim: int) -> None:
        self.base = base
        self.dim = dim
        self.spans: list[_Span] = []
        self.count = 0

    def over(self, start: int, stop: int) -> tuple[int, int]:
        """The spans that share positions with these: from the first to behind the last."""
        first = bisect_left(self.spans, start, key=lambda s: s.stop - 1)
        return first, bisect_left(self.spans, stop, key=lambda s: s.start)

    def source(self, start: int, stop: int) -> Any:
        """The span that holds these positions, None where nothing was written to any; else `MISSING`."""
        first, last = self.over(start, stop)
        if first == last:
            return None
        span = self.spans[first]
        return span if last == first + 1 and span.start <= start and stop <= span.stop else MISSING

    def write(self, start: int, stop: int, scatter: torch.fx.Node) -> None:
        first, last = self.over(start, stop)
        old = self.spans[first:last]
        before = [replace(s, stop=start) for s in old[:1] if s.start < start]
        behind = [replace(s, start=stop) for s in old[-1:] if s.stop > stop]
        self.spans[first:last] = [*before, _Span(start, stop, scatter, start), *behind]
        self.count += 1


class Writes:
    """The scatters and views of a graph that is walked in its order, at positions that are numbers.

    ``values`` maps the nodes that were walked to what they became.
    """

    def __init__(self, p: Any, values: Mapping[torch.fx.Node, Value]) -> None:
        self.p = p
        self.values = values
        self.chains: dict[torch.fx.Node, _Chain] = {}

    def emit(self, node: torch.fx.Node) -> Value | None:
        """The value of a scatter or a view; None where its own operator is as good."""
        if node.target in SCATTERS:
            place = _place(node)
            return None if place is None else self._written(self._extended(node, place), node)
        return self._read(node) if node.target in VIEWS else None

    def _extended(self, node: torch.fx.Node, place: tuple[int, int, int]) -> _Chain:
        dim, start, stop = place
        before = _copied(node.args[0])
        chain = self.chains.pop(before, None)
        if chain is None or chain.dim != dim:
            chain = self._walked(before, dim)
        chain.write(start, stop, node)
        self.chains[node] = chain
        return chain

    def _walked(self, node: torch.fx.Node, dim: int) -> _Chain:
        """The chain that ends with a value; none of scatters where it is no scatter along the dimension."""
        scatters = []
        while node.target in SCATTERS and (place := _place(node)) is not None and place[0] == dim:
            scatters.append((place, node))
            node = _copied(node.args[0])
        chain = _Chain(node, dim)
        for (_, start, stop), scatter in reversed(scatters):
            chain.write(start, stop, scatter)
        return chain

    def _written(self, chain: _Chain, node: torch.fx.Node) -> Value | None:
        if chain.count < 2 or all(self._goes_on(user, reader, chain) for reader, user in _readers(node)):
            return None
        base, at, parts = self.values[chain.base], 0, []
        extent = base.shape[chain.dim]
        for s in chain.spans:
            parts += [slice_dim(self.p, base, chain.dim, at, s.start)] * (at < s.start)
            parts.append(self._part(s, chain.dim, s.start, s.stop))
            at = s.stop
        parts += [slice_dim(self.p, base, chain.dim, at, extent)] * (at < extent)
        return parts[0] if len(parts) == 1 else self.p.concat(tuple(parts), chain.dim)

    def _goes_on(self, user: torch.fx.Node, node: torch.fx.Node, chain: _Chain) -> bool:
        """Does a reader of a scatter only write another part of it, or look at what one has written, or none?"""
        if user.target in SCATTERS:
            place = _place(user) if user.args[0] is node and user.args[1] is not node else None
            return place is not None and place[0] == chain.dim
        place = _place(user) if user.target in VIEWS else None
        return place is not None and place[0] == chain.dim and chain.source(*place[1:]) is not MISSING

    def _part(self, s: _Span, dim: int, start: int, stop: int) -> Value:
        """What a scatter wrote to these positions."""
        base, source = self.values[s.scatter.args[0]], self.values[s.scatter.args[1]]  # type: ignore[index]
        source = to_dtype(self.p, source, base.dtype)
        shape = list(base.shape)
        if s.scatter.target is _aten.select_scatter.default:
            shape[dim] = 1
            return expand(self.p, unsqueeze(self.p, source, dim), shape)
        shape[dim] = _place(s.scatter)[2] - s.first  # type: ignore[index]
        return slice_dim(self.p, expand(self.p, source, shape), dim, start - s.first, stop - s.first)

    def _read(self, node: torch.fx.Node) -> Value | None:
        source = _copied(node.args[0])
        place = _place(node) if source.target in SCATTERS else None
        if place is None:
            return None
        dim, start, stop = place
        chain = self.chains.get(source)
        if chain is None or chain.dim != dim:
            chain = self._walked(source, dim)
        span = chain.source(start, stop) if chain.count else MISSING
        if span is MISSING:
            return None
        if span is None:
            part = slice_dim(self.p, self.values[chain.base], dim, start, stop)
        else:
            part = self._part(span, dim, start, stop)
        return select(self.p, part, dim, 0) if node.target is _aten.select.int else part


def _place(node: torch.fx.Node) -> tuple[int, int, int] | None:
    """The dimension of a scatter or a view, and between which positions it lies; None where they are no numbers, none,
    or not all of them."""
    operands = node.args[: 2 if node.target in SCATTERS else 1]
    specs = [x.meta.get("spec") if isinstance(x, torch.fx.Node) else None for x in operands]
    over, given = specs[0], node.args[len(operands) :]
    if node.kwargs or over is None or over.ndim == 0 or over.dtype.is_complex:
        return None
    if any(spec is None or spec.device != over.device for spec in specs):
        return None
    dim = norm_dim(given[0] if given else 0, over.ndim)  # type: ignore[arg-type]
    extent = over.shape[dim]
    if type(extent) is not int:
        return None
    if node.target in (_aten.select.int, _aten.select_scatter.default):
        at = given[1]
        return (dim, at % extent, at % extent + 1) if type(at) is int else None
    start, end, step = slice_of(given)
    if step != 1 or any(type(x) is not int and x is not None for x in (start, end)):
        return None
    low, high = slice_bounds(extent, start, end)
    return (dim, low, high) if low < high else None


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
