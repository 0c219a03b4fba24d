"""Copies and conversions between dtypes."""

from __future__ import annotations

from typing import Any

import torch

from prims.decomp.common import Value, expand, to_dtype, unsupported
from prims.decomp.registry import decomposition


@decomposition(
    "aten.clone.default",
    "aten.detach.default",
    "aten.detach_copy.default",
    "aten.alias.default",
    "aten.alias_copy.default",
    "aten.lift.default",
    "aten.lift_fresh.default",
    "aten.lift_fresh_copy.default",
    "aten.contiguous.default",
    "aten.conj_physical.default",
    "aten.resolve_conj.default",
    "aten.resolve_neg.default",
)
def identity(p: Any, self: Value, *, memory_format: Any = None) -> Value:
    """The same logical array: layouts and aliasing are not part of a primitive value."""
    return self


@decomposition("aten._to_copy.default")
def to_copy(
    p: Any,
    self: Value,
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: Any = None,
) -> Value:
    """Conversion to a dtype. A move to another device is not a primitive."""
    if device is not None and not _same_device(torch.device(device), self.device):
        raise unsupported(f"copy from {self.device} to {device}")
    if pin_memory or (layout is not None and layout != torch.strided):
        raise unsupported("a pinned or non-strided copy")
    if self.dtype.is_complex or (dtype is not None and dtype.is_complex):
        raise unsupported("complex tensors")
    return to_dtype(p, self, dtype)


def _same_device(a: torch.device, b: torch.device) -> bool:
    return a.type == b.type and (a.index is None or b.index is None or a.index == b.index)


@decomposition("aten.to.dtype")
def to_type(p: Any, self: Value, dtype: torch.dtype, *rest: Any, **kwargs: Any) -> Value:
    """Conversion to a dtype."""
    return to_copy(p, self, dtype=dtype)


@decomposition("aten.copy.default")
def copy(p: Any, self: Value, src: Value, non_blocking: bool = False) -> Value:
    """`src` in self's shape and dtype (the functional form of copy_)."""
    if not _same_device(self.device, src.device) and src.ndim:
        raise unsupported(f"copy from {src.device} to {self.device}")
    return expand(p, to_copy(p, src, dtype=self.dtype), self.shape)


#: By width in bytes: the integers that bits are taken for.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@decomposition("aten.view.dtype")
def view_dtype(p: Any, self: Value, dtype: torch.dtype) -> Value:
    """Reinterpret the bits in another dtype; the last dimension grows or shrinks with the width, lowest bits first."""
    if dtype == self.dtype:
        return self
    old, new = self.dtype.itemsize, dtype.itemsize
    if old == new:
        return p.bitcast(self, dtype)
    *_lead, last = self.shape
    if torch.bool in (dtype, self.dtype) or dtype.is_complex or self.dtype.is_complex or not isinstance(last, int):
        raise unsupported("view in a dtype of another width")
    bits = self if self.dtype == _BITS[old] else p.bitcast(self, _BITS[old])
    made = _narrower(p, bits, old // new) if old > new else _wider(p, bits, new // old)
    return made if dtype == made.dtype else p.bitcast(made, dtype)


def _narrower(p: Any, bits: Value, count: int) -> Value:
    """Each integer as so many of a lower width."""
    width = bits.dtype.itemsize // count
    whole = to_dtype(p, bits, torch.int64 if bits.dtype == torch.int64 else torch.int32)
    shape = (*bits.shape, count)
    places = p.iota(count, 0, 8 * width, whole.dtype, bits.device)
    spread = p.broadcast(whole, shape, tuple(range(bits.ndim)))
    moved = p.shift_right(spread, p.broadcast(places, shape, (bits.ndim,)))
    return p.reshape(to_dtype(p, moved, _BITS[width]), (*bits.shape[:-1], bits.shape[-1] * count))


def _wider(p: Any, bits: Value, count: int) -> Value:
    """So many neighbouring integers each as one of a higher width."""
    *lead, last = bits.shape
    if last % count:
        raise unsupported("view in a wider dtype of a size that is no multiple")
    width = bits.dtype.itemsize
    compute = torch.int64 if width * count == 8 else torch.int32
    made = None
    for k in range(count):
        starts, steps = (*(0 for _ in lead), k), (*(1 for _ in lead), count)
        piece = to_dtype(p, p.slice(bits, starts, (*lead, last), steps), compute)
        piece = p.shift_left(p.bitwise_and(piece, (1 << 8 * width) - 1), 8 * width * k)
        made = piece if made is None else p.bitwise_or(made, piece)
    return to_dtype(p, made, _BITS[width * count])
