"""Writes to a part of an input, for back ends that write inputs in place.

A functional graph says ``k[:, :, 5:6] = x`` as ``slice_scatter(k, x, 2, 5, 6)``, a whole new value, and a write through
several views as scatters into one another. Where nobody else needs what the input held, the part alone need be
written: the scatters become one ``index_put`` into the input, with the part's positions as its indices. So where what
is written is made of what was there (``k[:, :, 5:6] += x``), and is at most half of the input: the part is held apart
before it is written, so that it is written and read once more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from prims.decomp.common import Value, norm_dim, to_dtype
from prims.decomp.views import permuted, slice_bounds, unsqueeze
from prims.ir.envelope import Envelope
from prims.records import record

__all__ = ["SCATTERS", "SETTING", "UPDATES", "VIEWS", "WHOLE", "Region", "slice_of", "write_region", "written_regions"]

UPDATES = "updates"
"""A backend claims this where it writes the inputs of this graph in place."""

_aten = torch.ops.aten
SCATTERS = {_aten.slice_scatter.default: _aten.slice.Tensor, _aten.select_scatter.default: _aten.select.int}
VIEWS = frozenset(SCATTERS.values())

#: Operators that take no more of their first operand than its metadata.
_OVER = frozenset({
    _aten.copy.default, _aten.fill.Scalar, _aten.fill.Tensor, _aten.zero.default, _aten.full_like.default,
    _aten.zeros_like.default, _aten.ones_like.default, _aten.empty_like.default,
})  # fmt: skip

#: Views that have each element of what they are of once.
WHOLE = frozenset({
    _aten.view.default, _aten._unsafe_view.default, _aten.t.default, _aten.transpose.int, _aten.permute.default,
    _aten.unsqueeze.default, _aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims, _aten.alias.default,
    _aten.detach.default,
})  # fmt: skip

#: Operators that set elements of their first operand, as they are.
SETTING = frozenset({_aten.index_put.default, _aten.index_copy.default, _aten.scatter.src, _aten.scatter.value})


@record
class Region:
    """A part of a tensor and what is written to it.

    Attributes:
        kept: per dimension of the part ``(dimension of the tensor, first position, step)``.
        fixed: ``(dimension of the tensor, position)`` of each dimension that the part has not.
        source: what is written.
    """

    kept: tuple[tuple[int, Any, Any], ...]
    fixed: tuple[tuple[int, Any], ...]
    source: torch.fx.Node


def written_regions(env: Envelope) -> dict[torch.fx.Node, Region]:
    """The scatters that may write a part of an input in place, each with that part."""
    placeholders = env.placeholders()
    (output,) = (node for node in env.graph.nodes if node.op == "output")
    found: dict[torch.fx.Node, Region] = {}
    for mutation in env.mutations:
        node, target = output.args[0][mutation.output_index], placeholders[mutation.input_index]
        node = _through(node) if isinstance(node, torch.fx.Node) else node
        chain: dict[torch.fx.Node, Region] = {}
        while isinstance(node, torch.fx.Node) and node is not target:
            region = _region(node)
            if region is not None:
                chain[node] = region
            elif node.target not in SETTING:
                break
            if not isinstance(node.args[0], torch.fx.Node) or not _may_write(node, region, target):
                break
            node = _through(node.args[0])
        else:
            found.update(chain)
    return found


def _through(x: torch.fx.Node) -> torch.fx.Node:
    """What a value is, seen through views that have each of its elements once."""
    while x.target in WHOLE and isinstance(x.args[0], torch.fx.Node):
        x = x.args[0]
    return x


def _may_write(node: torch.fx.Node, region: Region | None, target: torch.fx.Node) -> bool:
    """May a scatter write what it scatters into, or the part of an input that this is a view of?"""
    before: torch.fx.Node = node.args[0]  # type: ignore[assignment]
    written = _only_written(before, node)
    if not written and not (_is_small(region, before) and _leads_to(before, node, target)):
        return False
    while before.target in WHOLE and isinstance(before.args[0], torch.fx.Node):
        reader, before = before, before.args[0]
        if not _leads_to(before, reader if written else node, target):
            return False
    return True


def _region(node: torch.fx.Node) -> Region | None:
    """The part that a scatter, with the scatters in its source, writes."""
    if node.target not in SCATTERS or not isinstance(node.args[0], torch.fx.Node):
        return None
    view: torch.fx.Node = node.args[0]
    kept: list[tuple[int, Any, Any]] = [(d, 0, 1) for d in range(view.meta["spec"].ndim)]
    fixed: list[tuple[int, Any]] = []
    while True:
        source = node.args[1]
        if not isinstance(source, torch.fx.Node):
            return None
        shape = view.meta["spec"].shape
        dim = norm_dim(node.args[2] if len(node.args) > 2 else 0, len(shape))  # type: ignore[arg-type]
        base, first, step = kept[dim]
        if node.target is _aten.select_scatter.default:
            at = node.args[3]
            fixed.append((base, first + (at + shape[dim] if at < 0 else at) * step))  # type: ignore[operator]
            del kept[dim]
        else:
            start, end, by = slice_of(node.args[2:])
            low, _ = slice_bounds(shape[dim], start, end)
            kept[dim] = (base, first + low * step, step * by)
        inner = source.args[0] if source.target in SCATTERS else None
        same = isinstance(inner, torch.fx.Node) and inner.target is SCATTERS[node.target]  # type: ignore[index]
        if not same or (inner.args[0], *inner.args[1:]) != (view, *node.args[2:]):  # type: ignore[union-attr]
            return Region(tuple(kept), tuple(sorted(fixed, key=lambda pair: pair[0])), source)
        node, view = source, inner  # type: ignore[assignment]


def slice_of(given: Sequence[Any]) -> tuple[Any, Any, Any]:
    """The start, end and step of a slice, given the dimension and as many of them as there are."""
    told: list[Any] = [*given[1:], None, None]
    return told[0], told[1], given[3] if len(given) > 3 else 1


def _only_written(value: torch.fx.Node, scatter: torch.fx.Node) -> bool:
    """Does nobody but the scatter need a value? Its views may stand where they only tell a write's shape or place."""
    todo = [value]
    while todo:
        x = todo.pop()
        for user in x.users:
            if user is scatter or (user.target in SCATTERS and user.args[0] is x and user.args[1] is not x):
                continue
            if user.target in VIEWS:
                todo.append(user)
            elif user.target not in _OVER or x in user.args[1:]:
                return False
    inner = [user for user in value.users if user.target in SCATTERS and user is not scatter]
    return not inner and scatter.args[1] is not value


def _is_small(region: Region | None, whole: torch.fx.Node) -> bool:
    """Is a part at most half of the whole? What is set by tensors of positions is taken for one."""
    if region is None:
        return True
    count = lambda x: math.prod(x.meta["spec"].shape)
    known = all(isinstance(n, int) for x in (region.source, whole) for n in x.meta["spec"].shape)
    return 2 * count(region.source) <= count(whole) if known else bool(region.fixed)


def _leads_to(value: torch.fx.Node, scatter: torch.fx.Node, given: torch.fx.Node) -> bool:
    """Is all that is made of a value, but for the scatter's result, read by the scatter alone? What is made of the
    input itself others may read: it was there before."""
    todo, seen = [value], {scatter}
    while todo and value is not given:
        x = todo.pop()
        fresh = [user for user in x.users if user not in seen]
        if x.op == "output" or (x is not value and not x.users):
            return False
        seen.update(fresh)
        todo += fresh
    return True


def write_region(p: Any, base: Value, source: Value, region: Region) -> Value:
    """``base`` with the part replaced by ``source``, which has the part's sizes."""
    sizes: list[Any] = [1] * base.ndim
    source = to_dtype(p, source, base.dtype)
    for (d, _, _), count in zip(region.kept, source.shape, strict=True):
        sizes[d] = count
    places = {d: (at, by) for d, at, by in region.kept if (at, by) != (0, 1) or sizes[d] != base.shape[d]}
    places.update({d: (at, 1) for d, at in region.fixed})
    for d, _ in region.fixed:
        source = unsqueeze(p, source, d)
    dims = sorted(places)
    if not dims:
        return source
    space = tuple(sizes[d] for d in dims)
    indices = []
    for k, d in enumerate(dims):
        first, step = places[d]
        line = p.iota(sizes[d], first, step, torch.int64, base.device)
        indices.append(p.broadcast(line, space, (k,)))
    rest = [d for d in range(base.ndim) if d not in places]
    return p.index_put(base, tuple(indices), tuple(dims), permuted(p, source, (*dims, *rest)), False)

