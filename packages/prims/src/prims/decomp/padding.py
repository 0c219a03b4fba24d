"""Padding by a constant, by reflection and by the edge, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from prims.decomp.common import Size, Value, along, from_zero, keep, number, opmath, slice_dim, to_dtype
from prims.decomp.lines import Part, overlapped
from prims.decomp.registry import decomposition
from prims.decomp.views import permuted

UNROLLED = 8
"""Width of an edge up to which its sum is written out."""


@decomposition("aten.constant_pad_nd.default")
def constant_pad_nd(p: Any, self: Value, pad: Sequence[Size], value: Any = 0) -> Value:
    """Pad with a number; `pad` lists (low, high) from the last dimension on, negative ones crop."""
    low: list[Size] = [0] * self.ndim
    high: list[Size] = [0] * self.ndim
    for i in range(len(pad) // 2):
        low[self.ndim - 1 - i], high[self.ndim - 1 - i] = pad[2 * i], pad[2 * i + 1]
    return p.pad(self, number(value, self.dtype), tuple(low), tuple(high))


@decomposition("aten.pad.default")
def pad_any(p: Any, self: Value, pad: Sequence[Size], mode: str = "constant", value: Any = None) -> Value:
    """torch.nn.functional.pad in one of its modes."""
    if mode == "constant":
        return constant_pad_nd(p, self, pad, 0 if value is None else value)
    if mode == "circular":
        return _padded(p, self, pad, lambda p, at, size: p.remainder(at, size))
    return _padded(p, self, pad, _reflected if mode == "reflect" else _clamped)


# A source maps positions (which may lie outside) to positions in [0, size).
Source = Callable[[Any, Value, Size], Value]


def _reflected(p: Any, at: Value, size: Size) -> Value:
    inside = p.abs(at)
    return p.sub(size - 1, p.abs(p.sub(size - 1, inside)))


def _clamped(p: Any, at: Value, size: Size) -> Value:
    return p.minimum(p.maximum(at, 0), size - 1)


def positions(
    p: Any, sizes: Sequence[Size], pad: Sequence[Size], source: Source, device: torch.device
) -> tuple[Value, ...]:
    """For the last dimensions `sizes`, where each padded element comes from; one index per dimension."""
    n = len(sizes)
    out = tuple(s + pad[2 * (n - 1 - i)] + pad[2 * (n - 1 - i) + 1] for i, s in enumerate(sizes))
    found = []
    for i, size in enumerate(sizes):
        line = p.iota(out[i], -pad[2 * (n - 1 - i)], 1, torch.int64, device)
        found.append(along(p, source(p, line, size), out, i))
    return tuple(found)


def taken_last(p: Any, x: Value, indices: Sequence[Value]) -> Value:
    """x indexed over its last len(indices) dimensions, which keep their place."""
    return _taken(p, x, indices, tuple(range(x.ndim - len(indices), x.ndim)))


def _taken(p: Any, x: Value, indices: Sequence[Value], dims: tuple[int, ...]) -> Value:
    """x indexed over adjacent dimensions, where the indices' take their place."""
    out = p.index(x, tuple(indices), dims)
    k, lead = indices[0].ndim, dims[0]
    return permuted(p, out, (*range(k, k + lead), *range(k), *range(k + lead, out.ndim)))


def added_last(p: Any, shape: Sequence[Size], indices: Sequence[Value], values: Value) -> Value:
    """0 in `shape`, with values added at indices over the last dimensions: the transpose of `taken_last`."""
    n = len(indices)
    lead = len(shape) - n
    compute = opmath(values.dtype)
    zeros = p.full(tuple(shape), 0.0, compute, values.device)
    order = (*range(lead, values.ndim), *range(lead))
    moved = permuted(p, to_dtype(p, values, compute), order)
    out = p.index_put(zeros, tuple(indices), tuple(range(lead, len(shape))), moved, True)
    return to_dtype(p, out, values.dtype)


def _padded(p: Any, x: Value, pad: Sequence[Size], source: Source) -> Value:
    n = len(pad) // 2
    if x.device.type == "cpu" and all(isinstance(v, int) for v in (*x.shape, *pad)):
        return _rows_padded(p, x, pad, source)
    return taken_last(p, x, positions(p, x.shape[x.ndim - n :], pad, source, x.device))


def _rows_padded(p: Any, x: Value, pad: Sequence[int], source: Source) -> Value:
    """The same on a CPU, which copies the middle of a row faster than it asks each element where it comes from: only
    the edges of rows, and the rows themselves, are taken by position."""
    n = len(pad) // 2
    first, last = x.ndim - n, x.ndim - 1
    lead = tuple(range(first, last))
    if lead:
        x = _taken(p, x, positions(p, x.shape[first:last], pad[2:], source, x.device), lead)
    size, (low, high) = x.shape[last], pad[:2]
    start, stop = max(-low, 0), size + min(high, 0)
    parts = [slice_dim(p, x, last, start, stop)]
    for at, width in ((-low, low), (size, high)):
        if width > 0:
            line = source(p, p.iota(width, at, 1, torch.int64, x.device), size)
            edge = _taken(p, x, (line,), (last,))
            parts.insert(0 if at < 0 else len(parts), edge)
    return p.concat(tuple(parts), last)


# What an edge of the gradient, before (False) or behind (True) the middle along a dimension, gives to which positions.
Edge = Callable[[Any, Value, int, int, bool], Part]


def _reflected_edge(p: Any, edge: Value, dim: int, size: int, behind: bool) -> Part:
    """The edge in reverse order, next to the first or the last position."""
    return p.flip(edge, (dim,)), size - 1 - edge.shape[dim] if behind else 1


def _clamped_edge(p: Any, edge: Value, dim: int, size: int, behind: bool) -> Part:
    """The edge's sum, at the first or the last position."""
    width = edge.shape[dim]
    if width > UNROLLED:
        total = keep(p, p.sum(edge, (dim,)), edge.shape, (dim,))
    else:
        total = slice_dim(p, edge, dim, 0, 1)
        for k in range(1, width):
            total = p.add(total, slice_dim(p, edge, dim, k, k + 1))
    return total, size - 1 if behind else 0


def _padded_backward(p: Any, grad: Value, x: Value, pad: Sequence[Size], source: Source, edge: Edge) -> Value:
    n = len(pad) // 2
    first = x.ndim - n
    sizes = x.shape[first:]
    edges = [(pad[2 * (n - 1 - i)], pad[2 * (n - 1 - i) + 1]) for i in range(n)]
    known = all(isinstance(v, int) for v in sizes)
    if not all(isinstance(v, int) and (known or v >= 0) for v in pad):
        return added_last(p, x.shape, positions(p, sizes, pad, source, x.device), grad)
    g = to_dtype(p, grad, opmath(grad.dtype))
    for dim, (low, high) in enumerate(edges, first):
        size, out = x.shape[dim], g.shape[dim]
        parts = [(slice_dim(p, g, dim, max(low, 0), out - max(high, 0)), max(-low, 0))]
        if low > 0:
            parts.append(edge(p, slice_dim(p, g, dim, 0, low), dim, size, False))
        if high > 0:
            parts.append(edge(p, slice_dim(p, g, dim, out - high, out), dim, size, True))
        g = overlapped(p, parts, dim, size)
    return to_dtype(p, from_zero(p, g), grad.dtype)


def _register(kind: str, source: Source, edge: Edge) -> None:
    def forward(p: Any, self: Value, padding: Sequence[Size]) -> Value:
        return _padded(p, self, padding, source)

    def backward(p: Any, grad_output: Value, self: Value, padding: Sequence[Size]) -> Value:
        return _padded_backward(p, grad_output, self, padding, source, edge)

    for n in (1, 2, 3):
        decomposition(f"aten.{kind}_pad{n}d.default")(forward)
        decomposition(f"aten.{kind}_pad{n}d_backward.default")(backward)


_register("reflection", _reflected, _reflected_edge)
_register("replication", _clamped, _clamped_edge)
