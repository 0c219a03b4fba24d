"""Average and maximum pooling, padding and resampling by windows of slices.

A pooling window of k elements is k strided slices of the padded input, combined elementwise: the slices
fuse into one loop that reads each element of the window once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

from prims.decomp.common import (
    Size,
    Value,
    along,
    from_zero,
    is_integral,
    number,
    opmath,
    prod,
    to_dtype,
    whole,
)
from prims.decomp.lines import Line, transposed
from prims.decomp.reductions import mean_of
from prims.decomp.registry import decomposition
from prims.decomp.views import index_along, reshaped

MAX_WINDOW = 200
"""Windows with more elements stay calls of eager's kernel: one slice each would be too many nodes."""


def _per_dim(value: Sequence[int] | int, n: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * n
    values = tuple(value)
    return values * n if len(values) == 1 else values


def pooled_size(size: Size, kernel: int, stride: int, pad: int, dilation: int, ceil_mode: bool) -> Size:
    """Number of windows along a dimension; in ceil mode the last one must start inside the padded input.

    Source: the formula in the documentation of torch.nn.MaxPool2d.
    """
    span = size + 2 * pad - dilation * (kernel - 1) - 1
    if not ceil_mode:
        return span // stride + 1
    out = (span + stride - 1) // stride + 1
    return out - 1 if (out - 1) * stride >= size + pad else out


class Windows:
    """Pooling geometry over the last n dimensions of a value."""

    def __init__(
        self,
        x: Value,
        n: int,
        kernel: Sequence[int] | int,
        stride: Sequence[int] | int | None,
        padding: Sequence[int] | int,
        dilation: Sequence[int] | int = 1,
        ceil_mode: bool = False,
    ) -> None:
        self.n = n
        self.kernel = _per_dim(kernel, n)
        self.stride = self.kernel if stride is None or stride == [] or stride == () else _per_dim(stride, n)
        self.padding = _per_dim(padding, n)
        self.dilation = _per_dim(dilation, n)
        self.lead = x.ndim - n
        self.sizes = tuple(x.shape[self.lead :])
        geometry = zip(self.sizes, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        self.out = tuple(pooled_size(*g, ceil_mode) for g in geometry)
        if math.prod(self.kernel) > MAX_WINDOW:
            raise whole(f"pooling over windows of {math.prod(self.kernel)} elements")

    def offsets(self) -> list[tuple[int, ...]]:
        """Positions inside a window, in memory order."""
        return list(itertools.product(*(range(k) for k in self.kernel)))

    def padded(self, p: Any, x: Value, value: Any) -> Value:
        """The input with enough padding for every window."""
        low = (0,) * self.lead + self.padding
        high: list[Size] = [0] * self.lead
        for size, k, s, pad, d, out in zip(
            self.sizes, self.kernel, self.stride, self.padding, self.dilation, self.out, strict=True
        ):
            need = (out - 1) * s + d * (k - 1) + 1 - size - pad
            # Elements past the last window need no cropping: no slice reaches them.
            high.append(0 if isinstance(need, int) and need < 0 else need)
        if all(isinstance(v, int) and v == 0 for v in (*low, *high)):
            return x
        return p.pad(x, value, low, tuple(high))

    def slice(self, p: Any, padded: Value, offset: Sequence[int]) -> Value:
        """Element `offset` of every window."""
        starts: list[Size] = [0] * self.lead
        stops: list[Size] = list(padded.shape[: self.lead])
        steps = [1] * self.lead
        for o, s, d, out in zip(offset, self.stride, self.dilation, self.out, strict=True):
            starts.append(o * d)
            stops.append(o * d + (out - 1) * s + 1)
            steps.append(s)
        return p.slice(padded, tuple(starts), tuple(stops), tuple(steps))


def _lowest(dtype: torch.dtype) -> Any:
    return torch.iinfo(dtype).min if is_integral(dtype) else -math.inf


# ---- maximum --------------------------------------------------------------------------------------------


def _places(p: Any, w: Windows, shape: Sequence[Size], lines: Sequence[Value]) -> Value:
    """The place in the unpadded plane, for a position along each of the last n dimensions of a shape."""
    total: Value = None
    for i, line in enumerate(lines):
        wide = along(p, p.mul(line, prod(w.sizes[i + 1 :])), tuple(shape), w.lead + i)
        total = wide if total is None else p.add(total, wide)
    return total


def _counted(w: Windows) -> torch.dtype:
    """An integer type for places."""
    plane = prod(w.sizes)
    return torch.int32 if isinstance(plane, int) and plane < 2**31 else torch.int64


def _max_pool(p: Any, x: Value, w: Windows) -> tuple[Value, Value]:
    """Largest element of each window and its place in the unpadded plane; of a window without one that is greater than
    the least number, its first."""
    padded, counted = w.padded(p, x, _lowest(x.dtype)), _counted(w)
    shape = (*x.shape[: w.lead], *w.out)
    steps = zip(w.out, w.padding, w.stride, w.dilation, strict=True)
    starts, skipped = [], []
    for out, pad, s, d in steps:
        starts.append(p.iota(out, -pad, s, counted, x.device))
        before = p.maximum(p.neg(starts[-1]), 0)  # elements of the padding, of which every d-th is the window's
        skipped.append(p.mul(p.trunc_div(p.add(before, d - 1), d), d) if d > 1 else before)
    best: Value = p.full(shape, _lowest(x.dtype), x.dtype, x.device)
    moved = _places(p, w, shape, skipped) if any(w.padding) else p.full(shape, 0, counted, x.device)
    for offset in w.offsets():
        element = w.slice(p, padded, offset)
        distance = sum(
            (o * d * prod(w.sizes[i + 1 :]) for i, (o, d) in enumerate(zip(offset, w.dilation, strict=True))), 0
        )
        # The first of equals wins; NaN wins over everything.
        better = p.gt(element, best)
        if not is_integral(x.dtype):
            better = p.logical_or(better, p.isnan(element))
        best, moved = p.where(better, element, best), p.where(better, distance, moved)
    return best, to_dtype(p, p.add(_places(p, w, shape, starts), moved), torch.int64)


@decomposition("aten.max_pool2d_with_indices.default")
def max_pool2d_with_indices(
    p: Any,
    self: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
) -> tuple[Value, Value]:
    """Largest element of each window and its index in the plane."""
    return _max_pool(p, self, Windows(self, 2, kernel_size, stride, padding, dilation, ceil_mode))


@decomposition("aten.max_pool3d_with_indices.default")
def max_pool3d_with_indices(
    p: Any,
    self: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0, 0),
    dilation: Sequence[int] = (1, 1, 1),
    ceil_mode: bool = False,
) -> tuple[Value, Value]:
    """Largest element of each window and its index in the volume."""
    return _max_pool(p, self, Windows(self, 3, kernel_size, stride, padding, dilation, ceil_mode))


MAX_COVERING = 16
"""Where more windows than these may cover an element, the backward pass stays a call of eager's kernel."""


def max_pool_backward(p: Any, grad: Value, x: Value, n: int, indices: Value) -> Value:
    """Each window's gradient, added at its largest element's index in the last n dimensions."""
    lead = tuple(x.shape[: x.ndim - n])
    plane = prod(x.shape[x.ndim - n :])
    flat = (*lead, prod(grad.shape[x.ndim - n :]))
    compute = opmath(grad.dtype)
    zeros = p.full((*lead, plane), 0.0, compute, x.device)
    source = reshaped(p, to_dtype(p, grad, compute), flat)
    out = p.scatter(zeros, reshaped(p, indices, flat), source, len(lead), "add")
    return to_dtype(p, reshaped(p, out, x.shape), grad.dtype)


def _gathered_backward(p: Any, grad: Value, x: Value, w: Windows, indices: Value) -> Value:
    """Each element looks at the few windows that cover it: those whose largest element it is give their gradient."""
    counts = [d * (k - 1) // s + 1 for k, s, d in zip(w.kernel, w.stride, w.dilation, strict=True)]
    if math.prod(counts) > MAX_COVERING:
        raise whole(f"the gradient of maxima of windows of which {math.prod(counts)} cover an element")
    compute = opmath(grad.dtype)
    g = to_dtype(p, grad, compute)
    counted = _counted(w)
    own = _places(p, w, x.shape, [p.iota(size, 0, 1, counted, x.device) for size in w.sizes])
    total: Value = None
    for back in itertools.product(*map(range, counts)):
        place, part = (_covering(p, v, w, back, none) for v, none in ((indices, -1), (g, 0.0)))
        part = p.where(p.eq(to_dtype(p, place, counted), own), part, 0.0)
        total = part if total is None else p.add(total, part)
    return to_dtype(p, total, grad.dtype)


def _covering(p: Any, v: Value, w: Windows, back: Sequence[int], none: Any) -> Value:
    """For each element, a value of the last window that does not start behind it, or of that ``back`` windows before it
    in a dimension; ``none`` where there is no such window."""
    for i, (size, s, pad, out) in enumerate(zip(w.sizes, w.stride, w.padding, w.out, strict=True)):
        dim, count = w.lead + i, (size + pad + s - 1) // s
        low, high = ([0] * v.ndim for _ in range(2))
        low[dim], high[dim] = back[i], count - back[i] - out
        if back[i] or not (isinstance(high[dim], int) and high[dim] == 0):
            v = p.pad(v, none, tuple(low), tuple(high))
        if s > 1:
            before, after = tuple(v.shape[: dim + 1]), tuple(v.shape[dim + 1 :])
            wide = p.broadcast(v, (*before, s, *after), tuple(d for d in range(v.ndim + 1) if d != dim + 1))
            v = p.reshape(wide, (*before[:-1], before[-1] * s, *after))
        starts, stops = [0] * v.ndim, list(v.shape)
        starts[dim], stops[dim] = pad, pad + size
        if tuple(stops) != tuple(v.shape) or pad:
            v = p.slice(v, tuple(starts), tuple(stops), (1,) * v.ndim)
    return v


@decomposition("aten.max_pool2d_with_indices_backward.default")
def max_pool2d_with_indices_backward(
    p: Any,
    grad_output: Value,
    self: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Value,
) -> Value:
    """Each window's gradient, added at its largest element."""
    windows = Windows(self, 2, kernel_size, stride, padding, dilation, ceil_mode)
    return _gathered_backward(p, grad_output, self, windows, indices)


@decomposition("aten.max_pool3d_with_indices_backward.default")
def max_pool3d_with_indices_backward(
    p: Any,
    grad_output: Value,
    self: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Value,
) -> Value:
    """Each window's gradient, added at its largest element."""
    windows = Windows(self, 3, kernel_size, stride, padding, dilation, ceil_mode)
    return _gathered_backward(p, grad_output, self, windows, indices)


# ---- average --------------------------------------------------------------------------------------------


def _divisor(
    p: Any, w: Windows, x: Value, count_include_pad: bool, divisor_override: int | None, device: torch.device
) -> Any:
    """Elements that each window counts: a number, or a value of the windows' shape where it varies."""
    if divisor_override is not None:
        return float(divisor_override)
    static = all(isinstance(v, int) for v in (*w.sizes, *w.out))
    overhang = not static or any(
        (out - 1) * s + k > size + 2 * pad
        for size, k, s, pad, out in zip(w.sizes, w.kernel, w.stride, w.padding, w.out, strict=True)
    )
    if not overhang and (count_include_pad or not any(w.padding)):
        return float(math.prod(w.kernel))
    total: Value = None
    for i, (size, k, s, pad, out) in enumerate(zip(w.sizes, w.kernel, w.stride, w.padding, w.out, strict=True)):
        start = p.iota(out, -pad, s, torch.int64, device)
        end = p.minimum(p.add(start, k), size + pad)
        if not count_include_pad:
            start, end = p.maximum(start, 0), p.minimum(end, size)
        length = along(p, p.convert(p.sub(end, start), x.dtype), w.out, i)
        total = length if total is None else p.mul(total, length)
    return total


def _avg_pool(
    p: Any, self: Value, n: int, args: Sequence[Any], count_include_pad: bool, divisor_override: int | None
) -> Value:
    kernel, stride, padding, ceil_mode = args
    if is_integral(self.dtype):
        raise whole("average pooling of integers")
    x = to_dtype(p, self, opmath(self.dtype))
    w = Windows(x, n, kernel, stride, padding, 1, ceil_mode)
    padded = w.padded(p, x, 0.0)
    total: Value = None
    for offset in w.offsets():
        element = w.slice(p, padded, offset)
        total = element if total is None else p.add(total, element)
    divisor = _divisor(p, w, x, count_include_pad, divisor_override, x.device)
    if not isinstance(divisor, float):
        shape = (*x.shape[: w.lead], *w.out)
        divisor = p.broadcast(divisor, shape, tuple(range(w.lead, w.lead + n)))
    return to_dtype(p, p.div(from_zero(p, total), divisor), self.dtype)


@decomposition("aten.avg_pool2d.default")
def avg_pool2d(
    p: Any,
    self: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    """Mean of each window."""
    return _avg_pool(p, self, 2, (kernel_size, stride, padding, ceil_mode), count_include_pad, divisor_override)


@decomposition("aten.avg_pool3d.default")
def avg_pool3d(
    p: Any,
    self: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    """Mean of each window."""
    return _avg_pool(p, self, 3, (kernel_size, stride, padding, ceil_mode), count_include_pad, divisor_override)


@decomposition("aten.avg_pool1d.default")
def avg_pool1d(
    p: Any,
    self: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Value:
    """Mean of each window."""
    return _avg_pool(p, self, 1, (kernel_size, stride, padding, ceil_mode), count_include_pad, None)


def _avg_pool_backward(
    p: Any,
    grad: Value,
    x: Value,
    n: int,
    args: Sequence[Any],
    count_include_pad: bool,
    divisor_override: int | None,
) -> Value:
    """Each element gathers the gradients of the windows that it is in: one index per window position."""
    kernel, stride, padding, ceil_mode = args
    compute = opmath(grad.dtype)
    w = Windows(x, n, kernel, stride, padding, 1, ceil_mode)
    g = to_dtype(p, grad, compute)
    divisor = _divisor(p, w, g, count_include_pad, divisor_override, x.device)
    if not isinstance(divisor, float):
        divisor = p.broadcast(divisor, tuple(g.shape), tuple(range(w.lead, w.lead + n)))
    g = p.div(g, divisor)
    for i in range(n):
        g = _spread_windows(p, g, w, i)
    return to_dtype(p, from_zero(p, g), grad.dtype)


def _spread_windows(p: Any, g: Value, w: Windows, i: int) -> Value:
    """Along one dimension: out[x] = sum of g[o] over the windows o that contain x."""
    dim, size, out = w.lead + i, w.sizes[i], w.out[i]
    k, s, pad = w.kernel[i], w.stride[i], w.padding[i]
    at = p.iota(size, pad, 1, torch.int64, g.device)
    last = p.trunc_div(at, s)
    total: Value = None
    for back in range(-(-k // s)):
        window = p.sub(last, back) if back else last
        start = p.mul(window, s)
        inside = p.logical_and(p.ge(window, 0), p.lt(window, out))
        inside = p.logical_and(inside, p.lt(at, p.add(start, k)))
        taken = index_along(p, g, p.where(inside, window, 0), dim)
        mask = along(p, inside, taken.shape, dim)
        part = p.where(mask, taken, 0.0)
        total = part if total is None else p.add(total, part)
    return total


@decomposition("aten.avg_pool2d_backward.default")
def avg_pool2d_backward(
    p: Any,
    grad_output: Value,
    self: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Value:
    """Each window's gradient, shared among its elements."""
    args = (kernel_size, stride, padding, ceil_mode)
    return _avg_pool_backward(p, grad_output, self, 2, args, count_include_pad, divisor_override)


@decomposition("aten.avg_pool3d_backward.default")
def avg_pool3d_backward(
    p: Any,
    grad_output: Value,
    self: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Value:
    """Each window's gradient, shared among its elements."""
    args = (kernel_size, stride, padding, ceil_mode)
    return _avg_pool_backward(p, grad_output, self, 3, args, count_include_pad, divisor_override)


# ---- adaptive -------------------------------------------------------------------------------------------


def _adaptive_line(p: Any, x: Value, dim: int, out: Size) -> Value:
    """Mean over out intervals [floor(i n / out), ceil((i + 1) n / out)) along one dimension."""
    size = x.shape[dim]
    if isinstance(out, int) and out == 1:
        mean = mean_of(p, x, (dim,))
        return p.reshape(mean, (*x.shape[:dim], 1, *x.shape[dim + 1 :]))
    if size == out:
        return x
    if size % out == 0:
        wide = p.reshape(x, (*x.shape[:dim], out, size // out, *x.shape[dim + 1 :]))
        return mean_of(p, wide, (dim + 1,))
    if not (isinstance(size, int) and isinstance(out, int)):
        raise whole("adaptive pooling of a dynamic size that does not divide")
    start = p.trunc_div(p.iota(out, 0, size, torch.int64, x.device), out)
    end = p.trunc_div(p.iota(out, size + out - 1, size, torch.int64, x.device), out)
    longest = max(-(-(i + 1) * size // out) - i * size // out for i in range(out))
    total: Value = None
    for k in range(longest):
        at = p.add(start, k) if k else start
        inside = p.lt(at, end)
        taken = index_along(p, x, p.minimum(at, size - 1), dim)
        part = p.where(along(p, inside, taken.shape, dim), taken, 0.0)
        total = part if total is None else p.add(total, part)
    length = p.convert(p.sub(end, start), x.dtype)
    return p.div(total, along(p, length, total.shape, dim))


def _adaptive(p: Any, self: Value, output_size: Sequence[Size]) -> Value:
    if is_integral(self.dtype):
        raise whole("adaptive pooling of integers")
    x = to_dtype(p, self, opmath(self.dtype))
    n = len(output_size)
    first = x.ndim - n
    if all(isinstance(o, int) and o == 1 for o in output_size):
        mean = mean_of(p, x, tuple(range(first, x.ndim)))
        return to_dtype(p, p.reshape(mean, (*x.shape[:first], *(1,) * n)), self.dtype)
    for i, out in enumerate(output_size):
        x = _adaptive_line(p, x, first + i, out)
    return to_dtype(p, from_zero(p, x), self.dtype)


@decomposition(
    "aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default", "aten.adaptive_avg_pool1d.default"
)
def adaptive_avg_pool(p: Any, self: Value, output_size: Sequence[Size]) -> Value:
    """Mean over a given number of nearly equal intervals per dimension."""
    return _adaptive(p, self, output_size)


def _adaptive_backward(p: Any, grad: Value, self: Value, n: int) -> Value:
    g = to_dtype(p, grad, opmath(grad.dtype))
    first = self.ndim - n
    for dim in range(first, self.ndim):
        g = _adaptive_line_backward(p, g, dim, self.shape[dim])
    return to_dtype(p, from_zero(p, g), grad.dtype)


@decomposition("aten._adaptive_avg_pool2d_backward.default")
def adaptive_avg_pool2d_backward(p: Any, grad_output: Value, self: Value) -> Value:
    """Each interval's gradient, shared among its elements."""
    return _adaptive_backward(p, grad_output, self, 2)


@decomposition("aten._adaptive_avg_pool3d_backward.default")
def adaptive_avg_pool3d_backward(p: Any, grad_output: Value, self: Value) -> Value:
    """Each interval's gradient, shared among its elements."""
    return _adaptive_backward(p, grad_output, self, 3)


def _adaptive_line_backward(p: Any, g: Value, dim: int, size: Size) -> Value:
    out = g.shape[dim]
    if size == out:
        return g
    if size % out == 0:
        share = p.div(g, number(size // out, g.dtype))
        wide_shape = (*g.shape[: dim + 1], size // out, *g.shape[dim + 1 :])
        wide = p.broadcast(share, wide_shape, tuple(d for d in range(g.ndim + 1) if d != dim + 1))
        return p.reshape(wide, (*g.shape[:dim], size, *g.shape[dim + 1 :]))
    if not (isinstance(size, int) and isinstance(out, int)):
        raise whole("adaptive pooling of a dynamic size that does not divide")

    def low(p: Any, o: Value) -> Value:
        return p.trunc_div(p.mul(o, size), out)

    def high(p: Any, o: Value) -> Value:
        return p.sub(p.trunc_div(p.add(p.mul(o, size), size + out - 1), out), 1)

    o = p.iota(out, 0, 1, torch.int64, g.device)
    length = p.convert(p.add(p.sub(high(p, o), low(p, o)), 1), g.dtype)
    gathered = transposed(p, p.div(g, along(p, length, g.shape, dim)), dim, Line(size, out, low, high))
    if gathered is None:
        raise whole(f"adaptive pooling of {size} elements to {out}")
    return gathered
