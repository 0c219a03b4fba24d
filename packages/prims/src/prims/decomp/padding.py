"""Padding by a constant, by reflection and by the edge, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from prims.decomp.common import Size, Value, along, number, opmath, to_dtype
from prims.decomp.registry import decomposition
from prims.decomp.views import permuted


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
    n = len(indices)
    lead = x.ndim - n
    out = p.index(x, tuple(indices), tuple(range(lead, x.ndim)))
    k = indices[0].ndim
    return permuted(p, out, (*range(k, k + lead), *range(k)))


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
    return taken_last(p, x, positions(p, x.shape[x.ndim - n :], pad, source, x.device))


def _padded_backward(p: Any, grad: Value, x: Value, pad: Sequence[Size], source: Source) -> Value:
    n = len(pad) // 2
    at = positions(p, x.shape[x.ndim - n :], pad, source, x.device)
    return added_last(p, x.shape, at, grad)


def _register(kind: str, source: Source) -> None:
    def forward(p: Any, self: Value, padding: Sequence[Size]) -> Value:
        return _padded(p, self, padding, source)

    def backward(p: Any, grad_output: Value, self: Value, padding: Sequence[Size]) -> Value:
        return _padded_backward(p, grad_output, self, padding, source)

    for n in (1, 2, 3):
        decomposition(f"aten.{kind}_pad{n}d.default")(forward)
        decomposition(f"aten.{kind}_pad{n}d_backward.default")(backward)


_register("reflection", _reflected)
_register("replication", _clamped)
