"""Fake quantisation: numbers rounded to a few levels, and which of them lay between the outer ones."""

from __future__ import annotations

import math
import struct
from typing import Any

import torch

from prims.decomp.common import Value, expand, full_like, opmath, to_dtype, unsupported
from prims.decomp.registry import decomposition
from prims.decomp.views import reshaped

#: Levels up to here are whole numbers in float32.
_MOST = 1 << 24


def _float32(x: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", x))[0])
    except OverflowError:
        return math.copysign(math.inf, x)


@decomposition("aten.fake_quantize_per_tensor_affine_cachemask.default")
def fake_quantize(
    p: Any, self: Value, scale: Any, zero_point: Any, quant_min: int, quant_max: int
) -> tuple[Value, Value]:
    """(clamp(round(x / scale) + zero_point, quant_min, quant_max) - zero_point) * scale, and which were not clamped."""
    if not isinstance(scale, (int, float)) or not isinstance(zero_point, int):
        raise unsupported("fake quantisation by a scale or zero point that changes")
    scale = _float32(scale)
    if scale == 0:
        raise unsupported("fake quantisation by a scale of 0")
    return _quantized(p, self, scale, _float32(1.0 / scale), float(zero_point), quant_min, quant_max)


@decomposition("aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default")
def fake_quantize_by_tensors(
    p: Any, self: Value, scale: Value, zero_point: Value, fake_quant_enabled: Value, quant_min: int, quant_max: int
) -> tuple[Value, Value]:
    """The same where the scale and the zero point are tensors of one element; x itself where it is not enabled."""

    def spread(x: Value, dtype: torch.dtype) -> Value:
        return expand(p, reshaped(p, to_dtype(p, x, dtype), ()), self.shape)

    compute, step = opmath(self.dtype), to_dtype(p, scale, torch.float32)
    inverse = spread(p.reciprocal(step), compute)
    zero = spread(to_dtype(p, zero_point, torch.int64), compute)  # eager reads it as an integer
    out, inside = _quantized(p, self, spread(step, torch.float32), inverse, zero, quant_min, quant_max)
    enabled = reshaped(p, p.ne(fake_quant_enabled, 0), ())
    enabled = expand(p, enabled, self.shape)
    return p.where(enabled, out, self), p.where(enabled, inside, full_like(p, inside, True))


def _quantized(
    p: Any, self: Value, scale: Any, inverse: Any, zero_point: Any, quant_min: int, quant_max: int
) -> tuple[Value, Value]:
    """As eager's kernel for CPUs: levels in the type that it computes in, what they stand for in float32; the level of
    NaN is the lowest one."""
    if self.device.type != "cpu":
        raise unsupported("fake quantisation on a GPU, where eager has a kernel of its own")
    if not -_MOST <= quant_min <= quant_max <= _MOST:
        raise unsupported("fake quantisation to more levels than float32 has")
    compute = opmath(self.dtype)
    x = to_dtype(p, self, compute)
    level = p.add(p.round(p.mul(x, inverse)), zero_point)
    low, high = float(quant_min), float(quant_max)
    inside = p.logical_and(p.ge(level, low), p.le(level, high))
    clamped = p.where(p.ge(level, low), p.minimum(level, high), full_like(p, level, low))
    steps = to_dtype(p, p.sub(clamped, zero_point), torch.float32)
    return to_dtype(p, p.mul(steps, scale), self.dtype), inside
