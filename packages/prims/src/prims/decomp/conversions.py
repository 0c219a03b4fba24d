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


@decomposition("aten.view.dtype")
def view_dtype(p: Any, self: Value, dtype: torch.dtype) -> Value:
    """Reinterpret the bits in a dtype of the same width."""
    if dtype.itemsize != self.dtype.itemsize:
        raise unsupported("view in a dtype of another width")
    return self if dtype == self.dtype else p.bitcast(self, dtype)
