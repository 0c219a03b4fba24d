"""Sums of tensors that are zeros but for a part of their own.

What is taken apart by slices and selections, step by step of a loop, has a gradient that is the sum of theirs, each
padded with zeros to the size of the whole: a kernel would look at every part for every element. Where the parts do not
overlap their sum is their concatenation; where they do, each is in a concatenation behind those it is added to.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import reduce
from typing import Any

from inductor_gen.loops.graph import Node
from inductor_gen.rewrite.row import Context, Editor
from prims.records import record

__all__ = ["add", "beside"]

#: Concatenations at most that a sum becomes.
_MOST_TRACKS = 8


@record
class Part:
    """A term: a tensor at these positions of the padded dimension, zeros elsewhere; any other one is at all of them."""

    start: int
    stop: int
    value: Node
    term: Node


@record
class Sum:
    """Terms that do not overlap, sorted, for each addend; addends are added in their order."""

    dim: int
    tracks: tuple[tuple[Part, ...], ...]


def beside(node: Node, c: Context) -> Sum | None:
    """A sum of which at least two terms lie beside each other."""
    if not _is_sum(node) or (len(node.users) == 1 and node not in c.results and _before(node.users[0], c) is node):
        return None  # it is part of a longer one
    terms: list[Node] = []
    at: Node | None = node
    while at is not None:
        before = _before(at, c)
        terms += [x for x in reversed(at.args) if x is not before]
        at = before
    padded = [d for d in map(_padded, terms) if d is not None]
    extent = node.spec.shape[padded[0]] if len(padded) > 1 else None
    if type(extent) is not int:
        return None
    parts = [_part(x, padded[0], extent) for x in reversed(terms)]
    others = [part for part in parts if part.term is part.value]
    tracks = _tracks([part for part in parts if part.term is not part.value]) if len(others) == 1 else None
    if tracks is None or len(tracks) > 1:  # of two terms either may come first, of three not
        tracks, others = _tracks(parts), []
    if tracks is None or all(len(track) == 1 for track in tracks):
        return None
    return Sum(padded[0], (*tracks, *((part,) for part in others)))


def _tracks(parts: list[Part]) -> list[tuple[Part, ...]] | None:
    """Each part in a track behind those of earlier parts that it shares positions with, sorted."""
    tracks: list[list[Part]] = []
    for part in parts:
        level = next((k for k in reversed(range(len(tracks))) if _overlaps(tracks[k], part)), -1) + 1
        if level == _MOST_TRACKS:
            return None
        if level == len(tracks):
            tracks.append([])
        tracks[level].insert(bisect_left(tracks[level], part.start, key=lambda x: x.start), part)
    return list(map(tuple, tracks))


def _is_sum(x: Any) -> bool:
    return isinstance(x, Node) and x.op == "add" and all(isinstance(y, Node) for y in x.args)


def _before(node: Node, c: Context) -> Node | None:
    """The sum that this one adds a term to."""
    if not _is_sum(node):
        return None
    return next((x for x in node.args if _is_sum(x) and len(x.users) == 1 and x not in c.results), None)


def _padded(x: Node) -> int | None:
    """The one dimension in which it is padded with zeros."""
    if x.op != "pad" or x.args[1] != 0 or x.dtype is None or x.dtype.is_complex:
        return None
    _, _, low, high = x.args
    dims = [d for d, ends in enumerate(zip(low, high, strict=True)) if ends != (0, 0)]
    known = len(dims) == 1 and type(low[dims[0]]) is int and type(high[dims[0]]) is int
    return dims[0] if known and low[dims[0]] >= 0 and high[dims[0]] >= 0 else None


def _part(x: Node, dim: int, extent: int) -> Part:
    if _padded(x) != dim:
        return Part(0, extent, x, x)
    return Part(x.args[2][dim], extent - x.args[3][dim], x.args[0], x)


def _overlaps(track: list[Part], part: Part) -> bool:
    at = bisect_left(track, part.start, key=lambda x: x.start)
    return (at > 0 and track[at - 1].stop > part.start) or (at < len(track) and track[at].start < part.stop)


def add(p: Editor, node: Node, found: Sum) -> None:
    """The concatenations, added."""
    p.replace(node, reduce(p.add, (_joined(p, node, found.dim, track) for track in found.tracks)))


def _joined(p: Editor, node: Node, dim: int, track: tuple[Part, ...]) -> Node:
    extent = node.spec.shape[dim]
    if len(track) == 1:
        return track[0].term
    parts, at = [], 0
    zeros = lambda n: p.full((*node.spec.shape[:dim], n, *node.spec.shape[dim + 1 :]), 0, node.dtype, node.device)
    for part in track:
        parts += [zeros(part.start - at)] * (part.start > at) + [part.value]
        at = part.stop
    parts += [zeros(extent - at)] * (at < extent)
    whole = p.concat(tuple(parts), dim)
    return p.add(whole, 0.0) if whole.dtype.is_floating_point else whole  # as zeros of the others do, that of -0.0
