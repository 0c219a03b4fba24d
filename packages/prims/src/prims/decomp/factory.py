"""Tensors made from numbers: full, arange, zeros_like, tril and their kin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prims.decomp.common import (
    Size,
    Value,
    chosen_device,
    element,
    full_like,
    iota_along,
    is_value,
    number,
    scalar_dtype,
    unsupported,
    whole,
)
from prims.decomp.registry import decomposition
from prims.defaults import default_dtype
from prims.spec.rules.creation import arange_length


def _strided(layout: Any, pin_memory: Any, dtype: torch.dtype) -> None:
    if (layout is not None and layout != torch.strided) or pin_memory:
        raise unsupported("a non-strided or pinned tensor")
    if dtype.is_complex:
        raise unsupported("complex tensors")


def _filled(p: Any, size: Sequence[Size], value: Any, default: torch.dtype | None, kw: dict[str, Any]) -> Value:
    dtype = kw.get("dtype") or default or default_dtype()
    _strided(kw.get("layout"), kw.get("pin_memory"), dtype)
    return p.full(tuple(size), element(value, dtype), dtype, chosen_device(kw.get("device")))


@decomposition("aten.full.default")
def full(p: Any, size: Sequence[Size], fill_value: Any, **kw: Any) -> Value:
    """One value everywhere; its own kind gives the dtype when none is named."""
    return _filled(p, size, fill_value, scalar_dtype(fill_value), kw)


@decomposition("aten.zeros.default")
def zeros(p: Any, size: Sequence[Size], **kw: Any) -> Value:
    """0 everywhere."""
    return _filled(p, size, 0, None, kw)


@decomposition("aten.empty.memory_format")
def empty(p: Any, size: Sequence[Size], **kw: Any) -> Value:
    """Any value will do: 0."""
    return _filled(p, size, 0, None, kw)


@decomposition("aten.empty_strided.default", "aten.empty_permuted.default")
def empty_strided(p: Any, size: Sequence[Size], stride: Sequence[Size], **kw: Any) -> Value:
    """Any value will do: 0."""
    return _filled(p, size, 0, None, kw)


@decomposition("aten.ones.default")
def ones(p: Any, size: Sequence[Size], **kw: Any) -> Value:
    """1 everywhere."""
    return _filled(p, size, 1, None, kw)


def _like(p: Any, self: Value, value: Any, kw: dict[str, Any], size: Sequence[Size] | None = None) -> Value:
    device = kw.get("device")
    kw = {**kw, "device": self.device if device is None else device}
    return _filled(p, self.shape if size is None else size, value, self.dtype, kw)


@decomposition("aten.full_like.default")
def full_like_(p: Any, self: Value, fill_value: Any, **kw: Any) -> Value:
    """One value in self's shape."""
    return _like(p, self, fill_value, kw)


@decomposition("aten.zeros_like.default", "aten.empty_like.default")
def zeros_like(p: Any, self: Value, **kw: Any) -> Value:
    """0 in self's shape."""
    return _like(p, self, 0, kw)


@decomposition("aten.ones_like.default")
def ones_like(p: Any, self: Value, **kw: Any) -> Value:
    """1 in self's shape."""
    return _like(p, self, 1, kw)


@decomposition("aten.new_zeros.default", "aten.new_empty.default")
def new_zeros(p: Any, self: Value, size: Sequence[Size], **kw: Any) -> Value:
    """0 in a shape, with self's dtype and device."""
    return _like(p, self, 0, kw, size)


@decomposition("aten.new_empty_strided.default")
def new_empty_strided(p: Any, self: Value, size: Sequence[Size], stride: Sequence[Size], **kw: Any) -> Value:
    """Any value will do: 0."""
    return _like(p, self, 0, kw, size)


@decomposition("aten.new_ones.default")
def new_ones(p: Any, self: Value, size: Sequence[Size], **kw: Any) -> Value:
    """1 in a shape, with self's dtype and device."""
    return _like(p, self, 1, kw, size)


@decomposition("aten.new_full.default")
def new_full(p: Any, self: Value, size: Sequence[Size], fill_value: Any, **kw: Any) -> Value:
    """One value in a shape, with self's dtype and device."""
    return _like(p, self, fill_value, kw, size)


@decomposition("aten.zero.default")
def zero(p: Any, self: Value) -> Value:
    """0 in self's shape."""
    return full_like(p, self, 0)


@decomposition("aten.fill.Scalar")
def fill(p: Any, self: Value, value: Any) -> Value:
    """One value in self's shape."""
    return full_like(p, self, value)


@decomposition("aten.fill.Tensor")
def fill_tensor(p: Any, self: Value, value: Value) -> Value:
    """A 0-dim tensor's value in self's shape."""
    x = value if value.dtype == self.dtype else p.convert(value, self.dtype)
    return p.broadcast(x, tuple(self.shape), ())


@decomposition("aten.scalar_tensor.default")
def scalar_tensor(p: Any, s: Any, **kw: Any) -> Value:
    """A number as a 0-dim tensor."""
    return _filled(p, (), s, None, kw)


# ---- sequences ------------------------------------------------------------------------------------------


@decomposition("aten.arange.default")
def arange(p: Any, end: Any, **kw: Any) -> Value:
    """0, 1, ... below end."""
    return arange_step(p, 0, end, 1, **kw)


@decomposition("aten.arange.start")
def arange_start(p: Any, start: Any, end: Any, **kw: Any) -> Value:
    """start, start + 1, ... below end."""
    return arange_step(p, start, end, 1, **kw)


@decomposition("aten.arange.start_step")
def arange_step(p: Any, start: Any, end: Any, step: Any = 1, **kw: Any) -> Value:
    """start, start + step, ... before end."""
    whole = all(scalar_dtype(x) == torch.int64 for x in (start, end, step))
    dtype = kw.get("dtype") or (torch.int64 if whole else default_dtype())
    _strided(kw.get("layout"), kw.get("pin_memory"), dtype)
    if not dtype.is_floating_point:
        start, end, step = (int(x) if isinstance(x, float) else x for x in (start, end, step))
    length = arange_length(start, end, step)
    return p.iota(length, number(start, dtype), number(step, dtype), dtype, chosen_device(kw.get("device")))


@decomposition("aten.linspace.default", "quintet.linspace.default")
def linspace(p: Any, start: Any, end: Any, steps: Size, **kw: Any) -> Value:
    """`steps` evenly spaced values from start to end, counted from the nearer end as eager does."""
    dtype = kw.get("dtype") or default_dtype()
    _strided(kw.get("layout"), kw.get("pin_memory"), dtype)
    if not dtype.is_floating_point or is_value(start) or is_value(end):
        raise whole("linspace of integers or between tensors")
    device = chosen_device(kw.get("device"))
    if steps == 1:
        return p.full((1,), float(start), dtype, device)
    at, first, last = p.iota(steps, 0, 1, torch.int64, device), *(_stored(x, dtype) for x in (start, end))
    # Eager rounds the whole, the step and, of less than 32 bits, the products and positions, too.
    gap = _stored(_stored(last - first, dtype) / _stored(steps - 1, dtype), dtype)
    low = p.add(p.mul(p.convert(at, dtype), gap), first)
    high = p.sub(last, p.mul(p.convert(p.sub(steps - 1, at), dtype), gap))
    return p.where(p.lt(at, steps // 2), low, high)


def _stored(x: Any, dtype: torch.dtype) -> Any:
    """A number as a tensor of the dtype would hold it; a symbolic one stays, and is rounded where it is used."""
    return torch.tensor(x, dtype=torch.float64).to(dtype).item() if isinstance(x, (int, float)) else x


@decomposition("aten.fft_fftfreq.default")
def fft_fftfreq(p: Any, n: Size, d: float = 1.0, **kw: Any) -> Value:
    """0, 1, ..., -2, -1 over n * d: the sample frequencies of a Fourier transform."""
    return _frequencies(p, n, d, kw, negative=True)


@decomposition("aten.fft_rfftfreq.default")
def fft_rfftfreq(p: Any, n: Size, d: float = 1.0, **kw: Any) -> Value:
    """0, 1, ..., n // 2 over n * d: those of a Fourier transform of real numbers."""
    return _frequencies(p, n, d, kw, negative=False)


def _frequencies(p: Any, n: Size, d: float, kw: dict[str, Any], *, negative: bool) -> Value:
    dtype = kw.get("dtype") or default_dtype()
    _strided(kw.get("layout"), kw.get("pin_memory"), dtype)
    if not dtype.is_floating_point or type(n) is not int or not n * d:
        raise whole("frequencies as complex numbers, of a symbolic size or of none")
    at = p.iota(n if negative else n // 2 + 1, 0, 1, torch.int64, chosen_device(kw.get("device")))
    if negative:
        at = p.where(p.lt(at, (n + 1) // 2), at, p.sub(at, n))
    compute = torch.float32 if dtype.itemsize < 4 else dtype
    out = p.mul(p.convert(at, compute), 1.0 / (n * d))
    return out if compute == dtype else p.convert(out, dtype)


@decomposition("aten.eye.default", "aten.eye.m")
def eye(p: Any, n: Size, m: Size | None = None, **kw: Any) -> Value:
    """1 on the diagonal, 0 elsewhere."""
    dtype = kw.get("dtype") or default_dtype()
    _strided(kw.get("layout"), kw.get("pin_memory"), dtype)
    device = chosen_device(kw.get("device"))
    shape = (n, n if m is None else m)
    on = p.eq(iota_along(p, shape, 0, device), iota_along(p, shape, 1, device))
    return on if dtype == torch.bool else p.convert(on, dtype)


def _triangle(p: Any, x: Value, diagonal: int, lower: bool) -> Value:
    rows = iota_along(p, x.shape, x.ndim - 2, x.device)
    cols = iota_along(p, x.shape, x.ndim - 1, x.device)
    gap = p.sub(cols, rows)
    inside = p.le(gap, diagonal) if lower else p.ge(gap, diagonal)
    return p.logical_and(inside, x) if x.dtype == torch.bool else p.where(inside, x, number(0, x.dtype))


@decomposition("aten.tril.default")
def tril(p: Any, self: Value, diagonal: int = 0) -> Value:
    """The lower triangle of the last two dimensions, 0 elsewhere."""
    return _triangle(p, self, diagonal, True)


@decomposition("aten.triu.default")
def triu(p: Any, self: Value, diagonal: int = 0) -> Value:
    """The upper triangle of the last two dimensions, 0 elsewhere."""
    return _triangle(p, self, diagonal, False)
