"""Linear maps along one dimension whose places are known when compiled, and their transposes.

An output position reads a stretch of input positions, each with a weight, and no stretch begins or ends before that of
the output before it: interpolation and adaptive pooling do so along each dimension. The transpose, which a gradient
is, need not scatter then: the outputs that read an input position are a stretch too, so that it gathers from a few.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

from prims.decomp.common import Size, Value, along, number, slice_dim, surely_at_most
from prims.handlers import TorchHandler
from prims.records import record

MAX_READERS = 40
"""Outputs that read one input beyond which a transpose is not written out: each is a term of a sum."""


MAX_GROWTH = 4
"""Outputs per input up to which a line of unknown sizes is transposed."""


@record
class Line:
    """A map of `size` input positions to `out` output positions.

    ``low(p, o)`` and ``high(p, o)`` are the first and the last input position that the output positions ``o`` (int64
    values of any shape) read, and ``weight(p, o, i)`` is what output ``o`` multiplies input ``i`` with (None: 1).
    `spread`, where the map is an even one, bounds how far apart two inputs can be that an output lies between; it makes
    up for sizes that are not known.
    """

    size: Size
    out: Size
    low: Callable[[Any, Value], Value]
    high: Callable[[Any, Value], Value]
    weight: Callable[[Any, Value, Value], Value] | None = None
    spread: int | None = None


@record
class _Readers:
    """Which outputs read input ``i``: at most `most` from ``(step i + start) // divisor + skipped`` on, where at most
    `slack` outputs are skipped."""

    step: Size
    start: Size
    divisor: Size
    slack: int
    most: int
    least: int
    identity: bool


def _readers(line: Line) -> _Readers | None:
    """The readers of a line of known sizes, found by looking at each; None where there are too many."""
    if not (isinstance(line.size, int) and isinstance(line.out, int)):
        return _bounded_readers(line)
    if not line.size or not line.out:
        return None
    p, device = TorchHandler(), torch.device("cpu")
    o = torch.arange(line.out, device=device)
    i = torch.arange(line.size, device=device)
    first = torch.searchsorted(line.high(p, o), i)
    stop = torch.searchsorted(line.low(p, o), i, right=True)
    count = stop - first
    most = int(count.max())
    if most > MAX_READERS:
        return None
    read = count > 0
    start = int((line.size * first - line.out * i)[read].min())
    guess = torch.div(line.out * i + start, line.size, rounding_mode="floor")
    least, slack = int(count.min()), int((stop - guess)[read].max())
    same = most == least == 1 and line.weight is None and torch.equal(first, i)
    return _Readers(line.out, start, line.size, slack, most, least, same)


def _bounded_readers(line: Line) -> _Readers | None:
    """Bounds on the readers of an even line, from a bound on how much longer its output is.

    Output ``o`` stands at ``o size / out`` among the inputs, give or take `spread` and one, or half of an output.
    """
    growth = next((r for r in range(1, MAX_GROWTH + 1) if surely_at_most(line.out, line.size * r)), None)
    if growth is None or line.spread is None:
        return None
    margin = (line.spread + 2) * growth + 2
    # Where the first and the last positions coincide, an input has up to (out - 1) / (size - 1) outputs.
    most = line.spread * (2 * growth - 1) + 2
    return _Readers(line.out, -margin * line.size, line.size, 2 * margin + 1, most, 0, False)


def transposed(p: Any, g: Value, dim: int, line: Line) -> Value | None:
    """The gradient by a line's input, from that by its output, along a dimension; None where a scatter is better."""
    readers = _readers(line)
    if readers is None:
        return None
    if readers.identity:
        return g
    device = g.device
    i = p.iota(line.size, 0, 1, torch.int64, device)
    first, count = _stretches(p, line, readers, i)
    total: Value = None
    shape = (*g.shape[:dim], line.size, *g.shape[dim + 1 :])
    start = along(p, first, shape, dim)
    for k in range(readers.most):
        # Computed where it is used, an index shows its bounds.
        part = p.gather(g, p.minimum(p.maximum(p.add(start, k), 0), line.out - 1), dim)
        if line.weight is not None:
            o = p.minimum(p.maximum(p.add(first, k), 0), line.out - 1)
            part = p.mul(part, along(p, line.weight(p, o, i), shape, dim))
        if k >= readers.least:
            part = p.where(along(p, p.gt(count, k), shape, dim), part, 0.0)
        total = part if total is None else p.add(total, part)
    return total


def table(p: Any, x: Value) -> Value:
    """A vector that formulas make of positions, to be looked up. It is written as a sum (of itself and 0), as what is
    made without reading anything is else computed again wherever it is used."""
    shape = (2, *x.shape)
    line = along(p, p.iota(2, 0, 1, torch.int64, x.device), shape, 0)
    both = p.where(p.eq(line, 0), p.broadcast(x, shape, tuple(range(1, len(shape)))), number(0, x.dtype))
    return p.sum(both, (0,))


def _stretches(p: Any, line: Line, readers: _Readers, i: Value) -> tuple[Value, Value]:
    """For each input the first output that reads it, and how many do. The outputs from a guess on are looked at: those
    that end before the input, and those that begin after it."""
    shape = (line.size, readers.slack)
    at = p.add(p.mul(i, readers.step), readers.start)
    guess = p.floor_div(at, readers.divisor)
    o = p.add(along(p, guess, shape, 0), along(p, p.iota(readers.slack, 0, 1, torch.int64, i.device), shape, 1))
    inside = p.minimum(p.maximum(o, 0), line.out - 1)
    wide = along(p, i, shape, 0)
    exists = p.lt(o, line.out)

    def passed(whether: Value) -> Value:
        counted = p.logical_or(p.lt(o, 0), p.logical_and(exists, whether))
        return p.sum(p.convert(counted, torch.int64), (1,))

    before, begun = passed(p.lt(line.high(p, inside), wide)), passed(p.le(line.low(p, inside), wide))
    return p.add(guess, before), p.sub(begun, before)


def transposed_all(p: Any, g: Value, first: int, lines: Sequence[Line]) -> Value | None:
    """`transposed` along the dimensions from `first` on."""
    for d in order(lines):
        g = transposed(p, g, first + d, lines[d])
        if g is None:
            return None
    return g


def order(lines: Sequence[Line]) -> list[int]:
    """Which dimension to take when: first those that shrink; the innermost, the only one that gathers from within rows,
    where the rows are fewest."""
    shrinks = [surely_at_most(line.size, line.out) for line in lines[:-1]]
    last = len(lines) - 1
    return [*(d for d in range(last) if shrinks[d]), last, *(d for d in range(last) if not shrinks[d])]


# ---- parts at known places ------------------------------------------------------------------------------

Part = tuple[Value, Size]
"""A value and the position along a dimension where its first element goes."""


def overlapped(p: Any, parts: Sequence[Part], dim: int, size: Size) -> Value:
    """The sum of parts, each at its place along a dimension.

    Along the two innermost dimensions the stretches that the same parts cover are summed by themselves and joined, so
    that no element asks which parts it is in. Further out each row asks: every stretch is a loop of its own.
    """
    if dim < parts[0][0].ndim - 2 or not isinstance(size, int):
        return _total(p, [_padded(p, part, dim, at, size) for part, at in parts])
    ends = [(at, at + part.shape[dim]) for part, at in parts]
    seams = sorted({0, size, *(e for both in ends for e in both)})
    stretches = []
    for start, stop in pairwise(seams):
        over = [
            slice_dim(p, part, dim, start - a, stop - a)
            for (part, _), (a, b) in zip(parts, ends, strict=True)
            if a <= start and stop <= b
        ]
        like = parts[0][0]
        shape = (*like.shape[:dim], stop - start, *like.shape[dim + 1 :])
        stretches.append(_total(p, over) if over else p.full(shape, number(0, like.dtype), like.dtype, like.device))
    return p.concat(tuple(stretches), dim)


def _padded(p: Any, x: Value, dim: int, at: int, size: Size) -> Value:
    low: list[Size] = [0] * x.ndim
    high: list[Size] = [0] * x.ndim
    low[dim], high[dim] = at, size - at - x.shape[dim]
    return p.pad(x, number(0, x.dtype), tuple(low), tuple(high))


def _total(p: Any, values: Sequence[Value]) -> Value:
    return functools.reduce(p.add, values)


def windows_added(p: Any, x: Value, dim: int, size: Size, step: int) -> Value | None:
    """[..., count, width, ...] to [..., size, ...]: the sum of windows that begin every `step` elements along a
    dimension; None where too many windows share an element."""
    count, width = x.shape[dim], x.shape[dim + 1]
    turns = -(-width // step)
    if turns > MAX_READERS:
        return None
    zero = number(0, x.dtype)
    around = (0,) * x.ndim
    x = p.pad(x, zero, around, (*around[: dim + 1], turns * step - width, *around[dim + 2 :]))
    flat = (*x.shape[:dim], count * step, *x.shape[dim + 2 :])
    # The k-th step of every window: these lie side by side.
    rows = [p.reshape(slice_dim(p, x, dim + 1, k * step, (k + 1) * step), flat) for k in range(turns)]
    return _total(p, [_padded(p, row, dim, k * step, size) for k, row in enumerate(rows)])
