"""Interpolation: nearest, linear and cubic, forward and backward.

Per dimension an output position reads a few *taps*: an input position and a weight each. The output is the
sum over all combinations of taps, and the gradient adds each output's share back to the same positions.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from prims.decomp.common import (
    Size,
    Value,
    along,
    from_zero,
    is_float,
    opmath,
    prod,
    select,
    surely_equal,
    surely_same,
    to_dtype,
    whole,
)
from prims.decomp.lines import Line, table, transposed_all
from prims.decomp.padding import added_last, taken_last
from prims.decomp.registry import decomposition
from prims.decomp.views import index_along

Tap = tuple[Value, Value | None]
"""An index and a weight (None is 1), for each of some output positions."""

Taps = Callable[[Any, Value], list[Tap]]
"""``(p, at)``: the taps of the output positions `at` of one dimension."""

CUBIC = -0.75
"""The free coefficient of the cubic kernel (Keys 1981), as eager has it."""


def _scaled(p: Any, at: Value, size: Size, out: Size, scale: float | None = None, align_corners: bool = False) -> Value:
    """Output positions in steps of the input: times ``size / out``, or the inverse of the scale that was given."""
    if not align_corners and scale is not None and scale > 0:
        return p.mul(at, 1.0 / scale)
    if align_corners:
        size, out = size - 1, out - 1
        if out == 0:
            return p.mul(at, 0.0)
    if isinstance(size, int) and isinstance(out, int):
        return p.mul(at, size / out)
    ratio = p.div(_number(p, size, at), _number(p, out, at))
    return p.mul(at, p.broadcast(ratio, tuple(at.shape), ()))


def _within(p: Any, at: Value, size: Size) -> Value:
    """Positions inside the input. (That none is negative is plain to us, not to who checks indices.)"""
    return p.minimum(p.maximum(at, 0), size - 1)


def _number(p: Any, size: Size, like: Value) -> Value:
    return p.convert(p.full((), size, torch.int64, like.device), like.dtype)


def _nearest(
    p: Any, at: Value, size: Size, out: Size, scale: float | None, exact: bool, by_size: bool = False
) -> list[Tap]:
    """floor(i * scale), or floor((i + 0.5) * scale), computed in float32 as eager does. With `by_size`, a size that
    stays or doubles counts, whatever scale was given."""
    if by_size and (surely_equal(size, out) or surely_equal(out, 2 * size)):
        return [(at if surely_equal(size, out) else p.trunc_div(at, 2), None)]
    at = p.convert(at, torch.float32)
    if exact:
        at = p.add(at, 0.5)
    at = p.convert(p.floor(_scaled(p, at, size, out, scale)), torch.int64)
    return [(_within(p, at, size), None)]


def _source(
    p: Any, at: Value, size: Size, out: Size, scale: float | None, align_corners: bool, dtype: torch.dtype
) -> Value:
    at = p.convert(at, dtype)
    if align_corners:
        return _scaled(p, at, size, out, align_corners=True)
    return p.sub(_scaled(p, p.add(at, 0.5), size, out, scale), 0.5)


def _linear(
    p: Any, at: Value, size: Size, out: Size, scale: float | None, align_corners: bool, dtype: torch.dtype,
    by_size: bool = True,
) -> list[Tap]:  # fmt: skip
    """With `by_size`, a dimension whose size stays is not resampled, whatever scale was given."""
    if by_size and size == out:
        return [(at, None)]
    source = p.maximum(_source(p, at, size, out, scale, align_corners, dtype), 0.0)
    low = _within(p, p.convert(p.floor(source), torch.int64), size)
    high = _within(p, p.add(low, 1), size)
    share = p.minimum(p.maximum(p.sub(source, p.convert(low, dtype)), 0.0), 1.0)
    return [(low, p.sub(1.0, share)), (high, share)]


def _cubic(
    p: Any, at: Value, size: Size, out: Size, scale: float | None, align_corners: bool, dtype: torch.dtype
) -> list[Tap]:
    a = CUBIC
    source = _source(p, at, size, out, scale, align_corners, dtype)
    floor = p.floor(source)
    t = p.sub(source, floor)
    low = p.convert(floor, torch.int64)

    def inner(x: Value) -> Value:
        """((a + 2) x - (a + 3)) x x + 1, for |x| <= 1"""
        return p.add(p.mul(p.mul(p.sub(p.mul(x, a + 2), a + 3), x), x), 1.0)

    def outer(x: Value) -> Value:
        """((a x - 5 a) x + 8 a) x - 4 a, for 1 < |x| < 2"""
        return p.sub(p.mul(p.add(p.mul(p.sub(p.mul(x, a), 5 * a), x), 8 * a), x), 4 * a)

    rest = p.sub(1.0, t)
    weights = (outer(p.add(t, 1.0)), inner(t), inner(rest), outer(p.add(rest, 1.0)))
    return [(_within(p, p.add(low, i - 1) if i != 1 else low, size), w) for i, w in enumerate(weights)]


# ---- all dimensions together ----------------------------------------------------------------------------


def _lead(p: Any, weight: Value, shape: Sequence[Size]) -> Value:
    return p.broadcast(weight, tuple(shape), tuple(range(len(shape) - weight.ndim, len(shape))))


def _everywhere(p: Any, taps: Sequence[Taps], out: Sequence[Size], device: torch.device) -> list[list[Tap]]:
    """The taps of all output positions, per dimension."""
    return [f(p, p.iota(o, 0, 1, torch.int64, device)) for f, o in zip(taps, out, strict=True)]


def _forward(p: Any, x: Value, out: Sequence[Size], taps: Sequence[Taps]) -> Value:
    """Sum over the taps of each dimension, the innermost dimension first."""
    found = _everywhere(p, taps, out, x.device)
    if _by_rows(x, out, found):
        return _forward_by_rows(p, x, found)

    def summed(chosen: tuple[Tap, ...]) -> Value:
        depth = len(chosen)
        if depth == len(found):
            return taken_last(p, x, tuple(along(p, at, out, i) for i, (at, _) in enumerate(chosen)))
        total: Value = None
        for tap in found[depth]:
            part = summed((*chosen, tap))
            if tap[1] is not None:
                part = p.mul(part, _lead(p, along(p, tap[1], out, depth), part.shape))
            total = part if total is None else p.add(total, part)
        return total

    return summed(())


def _by_rows(x: Value, out: Sequence[Size], taps: Sequence[list[Tap]]) -> bool:
    """Is it better to take one dimension after the other? A CPU reads from within rows slowly: that is done for the
    input's rows once then, where these are no more than the output's, and not for all combinations of taps."""
    if x.device.type != "cpu" or not all(isinstance(s, int) for s in (*x.shape[2:], *out)):
        return False
    return len(taps[-1]) == 1 or prod(x.shape[2:-1]) <= prod(out[:-1])


def _forward_by_rows(p: Any, x: Value, taps: Sequence[list[Tap]]) -> Value:
    """The same, within rows first. Where a row's elements come from is computed beforehand, not again for each row."""
    last = x.ndim - 1
    shape = (*x.shape[:last], taps[-1][0][0].shape[0])

    def looked_up(rows: Sequence[Value]) -> list[Value]:
        """Vectors, each laid along the rows."""
        made = table(p, p.concat(tuple(p.reshape(row, (1, shape[last])) for row in rows), 0))
        return [along(p, select(p, made, 0, k), shape, last) for k in range(len(rows))]

    places, weights = zip(*taps[-1], strict=True)
    parts = [p.gather(x, _within(p, at, x.shape[last]), last) for at in looked_up(places)]
    if weights[0] is not None:
        parts = [p.mul(part, weight) for part, weight in zip(parts, looked_up(weights), strict=True)]
    x = functools.reduce(p.add, parts)
    for d in reversed(range(2, last)):
        parts = [(index_along(p, x, at, d), weight) for at, weight in taps[d - 2]]
        x = functools.reduce(p.add, (y if w is None else p.mul(y, along(p, w, y.shape, d)) for y, w in parts))
    return x


def _line(p: Any, size: Size, out: Size, taps: Taps, scale: float | None, device: torch.device) -> Line:
    """The map along one dimension. The taps of an output are in ascending order."""
    found = taps(p, p.iota(out, 0, 1, torch.int64, device))
    weighted = any(w is not None for _, w in found)

    def weight(p: Any, o: Value, i: Value) -> Value:
        total: Value = None
        for at, w in taps(p, o):
            part = p.where(p.eq(at, i), w, 0.0)
            total = part if total is None else p.add(total, part)
        return total

    return Line(
        size,
        out,
        lambda p, o: taps(p, o)[0][0],
        lambda p, o: taps(p, o)[-1][0],
        weight if weighted else None,
        len(found) if _even(size, out, scale) else None,
    )


def _even(size: Size, out: Size, scale: float | None) -> bool:
    """Does a scale that was given, if any, surely say what the sizes say?"""
    if scale is None or scale <= 0:
        return True
    if scale >= 1:
        return scale == int(scale) and surely_equal(out, size * int(scale))
    return 1 / scale == int(1 / scale) and surely_equal(out, size // int(1 / scale))


def _backward(
    p: Any,
    grad: Value,
    shape: Sequence[Size],
    out: Sequence[Size],
    taps: Sequence[Taps],
    scales: Sequence[float | None],
) -> Value:
    geometry = zip(shape[2:], out, taps, scales, strict=True)
    gathered = transposed_all(p, grad, 2, [_line(p, *line, grad.device) for line in geometry])
    return _scattered(p, grad, shape, out, taps) if gathered is None else from_zero(p, gathered)


def _scattered(p: Any, grad: Value, shape: Sequence[Size], out: Sequence[Size], taps: Sequence[Taps]) -> Value:
    total: Value = None
    for combination in itertools.product(*_everywhere(p, taps, out, grad.device)):
        part = grad
        for i, (_, weight) in enumerate(combination):
            if weight is not None:
                part = p.mul(part, _lead(p, along(p, weight, out, i), part.shape))
        at = tuple(along(p, index, out, i) for i, (index, _) in enumerate(combination))
        added = added_last(p, shape, at, part)
        total = added if total is None else p.add(total, added)
    return total


def _whole_factors(x: Value, out: Sequence[Size], scales: Sequence[float | None]) -> tuple[int, ...] | None:
    """How many times each element is repeated, where every dimension grows by a whole factor."""
    factors = []
    for size, o, scale in zip(x.shape[2:], out, scales, strict=True):
        if not (isinstance(size, int) and isinstance(o, int)) or size == 0 or o % size:
            return None
        if scale is not None and scale != o // size:
            return None
        factors.append(o // size)
    return tuple(factors)


def _interleaved(x_shape: Sequence[Size], factors: Sequence[int]) -> tuple[Size, ...]:
    pairs = zip(x_shape[2:], factors, strict=True)
    return (*x_shape[:2], *itertools.chain.from_iterable(pairs))


def _upsample_nearest(
    p: Any, self: Value, output_size: Sequence[Size], scales: Sequence[float | None], exact: bool
) -> Value:
    factors = _whole_factors(self, output_size, scales)
    if factors is not None:
        wide = _interleaved(self.shape, factors)
        kept = (0, 1, *(2 + 2 * i for i in range(len(factors))))
        return p.reshape(p.broadcast(self, wide, kept), (*self.shape[:2], *output_size))
    # Eager's kernels for a CPU go by the size in two dimensions, and in all backward.
    by_size = self.device.type == "cpu" and len(scales) == 2 and not exact
    return _forward(p, self, output_size, _nearest_taps(self.shape[2:], output_size, scales, exact, by_size))


def _upsample_nearest_backward(
    p: Any,
    grad: Value,
    output_size: Sequence[Size],
    input_size: Sequence[Size],
    scales: Sequence[float | None],
    exact: bool,
) -> Value:
    by_size = grad.device.type == "cpu" and not exact
    taps = _nearest_taps(input_size[2:], output_size, scales, exact, by_size)
    total = _backward(p, to_dtype(p, grad, opmath(grad.dtype)), input_size, output_size, taps, scales)
    return to_dtype(p, total, grad.dtype)


def _nearest_taps(
    sizes: Sequence[Size], out: Sequence[Size], scales: Sequence[float | None], exact: bool, by_size: bool
) -> list[Taps]:
    common = {"exact": exact, "by_size": by_size}
    geometry = zip(sizes, out, scales, strict=True)
    return [partial(_nearest, size=size, out=o, scale=scale, **common) for size, o, scale in geometry]


def _weighted_taps(
    kind: Callable[..., list[Tap]],
    sizes: Sequence[Size],
    out: Sequence[Size],
    scales: Sequence[float | None],
    align_corners: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> list[Taps]:
    if not is_float(dtype):
        raise whole(f"interpolation of {dtype}")
    common = {"align_corners": align_corners, "dtype": dtype}
    if kind is _linear:  # eager's other kernels copy where all sizes stay, and go by the scales where one does not
        common["by_size"] = device.type == "cpu" or surely_same(sizes, out)
    geometry = zip(sizes, out, scales, strict=True)
    return [partial(kind, size=size, out=o, scale=scale, **common) for size, o, scale in geometry]


def _with_nothing_of_itself(p: Any, total: Value, kind: Any, sizes: Sequence[Size], out: Sequence[Size]) -> Value:
    """On a CPU, eager's sum along a dimension whose size stays is x * 1 + x * 0: of infinity no number."""
    if kind is not _linear or total.device.type != "cpu" or not any(s == o for s, o in zip(sizes, out, strict=True)):
        return total
    return p.add(total, p.mul(total, 0.0))


def _register_nearest(n: int, prefix: str, exact: bool) -> None:
    def forward(p: Any, self: Value, output_size: Sequence[Size], *scales: float | None, **kw: Any) -> Value:
        given = (*scales, *kw.values(), *(None,) * n)[:n]
        return _upsample_nearest(p, self, output_size, given, exact)

    def backward(
        p: Any,
        grad_output: Value,
        output_size: Sequence[Size],
        input_size: Sequence[Size],
        *scales: float | None,
        **kw: Any,
    ) -> Value:
        given = (*scales, *kw.values(), *(None,) * n)[:n]
        return _upsample_nearest_backward(p, grad_output, output_size, input_size, given, exact)

    decomposition(f"aten.{prefix}{n}d.default")(forward)
    decomposition(f"aten.{prefix}{n}d_backward.default")(backward)


def _register_weighted(name: str, n: int, kind: Any) -> None:
    def forward(
        p: Any,
        self: Value,
        output_size: Sequence[Size],
        align_corners: bool,
        *scales: float | None,
        **kw: Any,
    ) -> Value:
        given = (*scales, *kw.values(), *(None,) * n)[:n]
        compute = opmath(self.dtype)
        sizes = self.shape[2:]
        taps = _weighted_taps(kind, sizes, output_size, given, align_corners, compute, self.device)
        total = _forward(p, to_dtype(p, self, compute), output_size, taps)
        return to_dtype(p, _with_nothing_of_itself(p, total, kind, sizes, output_size), self.dtype)

    def backward(
        p: Any,
        grad_output: Value,
        output_size: Sequence[Size],
        input_size: Sequence[Size],
        align_corners: bool,
        *scales: float | None,
        **kw: Any,
    ) -> Value:
        given = (*scales, *kw.values(), *(None,) * n)[:n]
        compute = opmath(grad_output.dtype)
        if kind is _cubic and surely_same(input_size[2:], output_size):
            return grad_output  # whatever scale was given: eager's kernel goes by the sizes
        sizes, device = input_size[2:], grad_output.device
        taps = _weighted_taps(kind, sizes, output_size, given, align_corners, compute, device)
        total = _backward(p, to_dtype(p, grad_output, compute), input_size, output_size, taps, given)
        return to_dtype(p, _with_nothing_of_itself(p, total, kind, sizes, output_size), grad_output.dtype)

    decomposition(f"aten.{name}.default")(forward)
    decomposition(f"aten.{name}_backward.default")(backward)


for _n in (1, 2, 3):
    _register_nearest(_n, "upsample_nearest", False)
    _register_nearest(_n, "_upsample_nearest_exact", True)
_register_weighted("upsample_linear1d", 1, _linear)
_register_weighted("upsample_bilinear2d", 2, _linear)
_register_weighted("upsample_trilinear3d", 3, _linear)
_register_weighted("upsample_bicubic2d", 2, _cubic)
