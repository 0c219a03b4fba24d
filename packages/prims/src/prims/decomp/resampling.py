"""Interpolation: nearest, linear and cubic, forward and backward.

Per dimension an output position reads a few *taps*: an input position and a weight each. The output is the
sum over all combinations of taps, and the gradient adds each output's share back to the same positions.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from prims.decomp.common import Size, Value, along, is_float, opmath, to_dtype, whole
from prims.decomp.padding import added_last, taken_last
from prims.decomp.registry import decomposition

Tap = tuple[Value, Value | None]
"""An index and a weight (None is 1), one-dimensional."""

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


def _number(p: Any, size: Size, like: Value) -> Value:
    return p.convert(p.full((), size, torch.int64, like.device), like.dtype)


def _nearest(p: Any, size: Size, out: Size, scale: float | None, exact: bool, device: torch.device) -> list[Tap]:
    """floor(i * scale), or floor((i + 0.5) * scale), computed in float32 as eager does."""
    at = p.convert(p.iota(out, 0, 1, torch.int64, device), torch.float32)
    if exact:
        at = p.add(at, 0.5)
    at = p.convert(p.floor(_scaled(p, at, size, out, scale)), torch.int64)
    return [(p.minimum(at, size - 1), None)]


def _source(
    p: Any, size: Size, out: Size, scale: float | None, align_corners: bool, dtype: torch.dtype, device: torch.device
) -> Value:
    at = p.convert(p.iota(out, 0, 1, torch.int64, device), dtype)
    if align_corners:
        return _scaled(p, at, size, out, align_corners=True)
    return p.sub(_scaled(p, p.add(at, 0.5), size, out, scale), 0.5)


def _linear(
    p: Any, size: Size, out: Size, scale: float | None, align_corners: bool, dtype: torch.dtype, device: torch.device
) -> list[Tap]:
    if size == out:
        return [(p.iota(out, 0, 1, torch.int64, device), None)]
    source = p.maximum(_source(p, size, out, scale, align_corners, dtype, device), 0.0)
    low = p.minimum(p.convert(p.floor(source), torch.int64), size - 1)
    high = p.minimum(p.add(low, 1), size - 1)
    share = p.minimum(p.maximum(p.sub(source, p.convert(low, dtype)), 0.0), 1.0)
    return [(low, p.sub(1.0, share)), (high, share)]


def _cubic(
    p: Any, size: Size, out: Size, scale: float | None, align_corners: bool, dtype: torch.dtype, device: torch.device
) -> list[Tap]:
    a = CUBIC
    source = _source(p, size, out, scale, align_corners, dtype, device)
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
    return [(p.minimum(p.maximum(p.add(low, i - 1) if i != 1 else low, 0), size - 1), w) for i, w in enumerate(weights)]


# ---- all dimensions together ----------------------------------------------------------------------------


def _spread_weight(p: Any, combination: Sequence[Tap], out: Sequence[Size]) -> list[Value]:
    return [along(p, w, out, i) for i, (_, w) in enumerate(combination) if w is not None]


def _lead(p: Any, weight: Value, shape: Sequence[Size]) -> Value:
    return p.broadcast(weight, tuple(shape), tuple(range(len(shape) - weight.ndim, len(shape))))


def _forward(p: Any, x: Value, out: Sequence[Size], taps: Sequence[list[Tap]]) -> Value:
    """Sum over the taps of each dimension, the innermost dimension first."""

    def summed(chosen: tuple[Tap, ...]) -> Value:
        depth = len(chosen)
        if depth == len(taps):
            return taken_last(p, x, tuple(along(p, at, out, i) for i, (at, _) in enumerate(chosen)))
        total: Value = None
        for tap in taps[depth]:
            part = summed((*chosen, tap))
            if tap[1] is not None:
                part = p.mul(part, _lead(p, along(p, tap[1], out, depth), part.shape))
            total = part if total is None else p.add(total, part)
        return total

    return summed(())


def _backward(p: Any, grad: Value, shape: Sequence[Size], out: Sequence[Size], taps: Sequence[list[Tap]]) -> Value:
    total: Value = None
    for combination in itertools.product(*taps):
        part = grad
        for weight in _spread_weight(p, combination, out):
            part = p.mul(part, _lead(p, weight, part.shape))
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
    taps = [
        _nearest(p, size, out, scale, exact, self.device)
        for size, out, scale in zip(self.shape[2:], output_size, scales, strict=True)
    ]
    return _forward(p, self, output_size, taps)


def _upsample_nearest_backward(
    p: Any,
    grad: Value,
    output_size: Sequence[Size],
    input_size: Sequence[Size],
    scales: Sequence[float | None],
    exact: bool,
) -> Value:
    taps = [
        _nearest(p, size, out, scale, exact, grad.device)
        for size, out, scale in zip(input_size[2:], output_size, scales, strict=True)
    ]
    return _backward(p, grad, input_size, output_size, taps)


def _weighted_taps(
    p: Any,
    kind: Any,
    sizes: Sequence[Size],
    out: Sequence[Size],
    scales: Sequence[float | None],
    align_corners: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> list[list[Tap]]:
    if not is_float(dtype):
        raise whole(f"interpolation of {dtype}")
    geometry = zip(sizes, out, scales, strict=True)
    return [kind(p, size, o, scale, align_corners, dtype, device) for size, o, scale in geometry]


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
        taps = _weighted_taps(p, kind, sizes, output_size, given, align_corners, compute, self.device)
        return to_dtype(p, _forward(p, to_dtype(p, self, compute), output_size, taps), self.dtype)

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
        sizes = input_size[2:]
        taps = _weighted_taps(p, kind, sizes, output_size, given, align_corners, compute, grad_output.device)
        grad = to_dtype(p, grad_output, compute)
        return to_dtype(p, _backward(p, grad, input_size, output_size, taps), grad_output.dtype)

    decomposition(f"aten.{name}.default")(forward)
    decomposition(f"aten.{name}_backward.default")(backward)


for _n in (1, 2, 3):
    _register_nearest(_n, "upsample_nearest", False)
    _register_nearest(_n, "_upsample_nearest_exact", True)
_register_weighted("upsample_linear1d", 1, _linear)
_register_weighted("upsample_bilinear2d", 2, _linear)
_register_weighted("upsample_trilinear3d", 3, _linear)
_register_weighted("upsample_bicubic2d", 2, _cubic)
