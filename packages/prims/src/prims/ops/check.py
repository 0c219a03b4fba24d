"""Helpers of the metadata rules: labelled checks, array specs, size arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prims.dtypes import KEPT_FLOATS, REAL_FLOATS
from prims.errors import VerifierError
from prims.spec import TensorSpec

__all__ = [
    "ALL",
    "BOOL",
    "FLOATS",
    "INTS",
    "NUMERIC",
    "REAL",
    "STORED",
    "array_spec",
    "ceil_div",
    "is_spec",
    "product",
    "require",
    "require_dim",
    "require_dims",
    "same_shape",
]

Size = Any  # int | Sym

FLOATS = REAL_FLOATS
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
BOOL = (torch.bool,)
NUMERIC = FLOATS + INTS
REAL = NUMERIC + BOOL
ALL = REAL
#: Also those that are only moved and converted.
STORED = ALL + KEPT_FLOATS


def require(condition: bool, label: str, message: str) -> None:
    """Raise `VerifierError` with the constraint's label unless the condition holds."""
    if not condition:
        raise VerifierError(label, message)


def is_spec(x: object) -> bool:
    """Is this a tensor's metadata (and not a number or a `Sym`)?"""
    return isinstance(x, TensorSpec)


def array_spec(shape: Sequence[Size], dtype: torch.dtype, device: torch.device) -> TensorSpec:
    """Metadata of a logical array: contiguous strides, offset 0."""
    return TensorSpec(shape, dtype, device)


def product(sizes: Sequence[Size]) -> Size:
    """Product of sizes (1 for none)."""
    result: Size = 1
    for size in sizes:
        result = result * size
    return result


def ceil_div(a: Size, b: Size) -> Size:
    """Ceiling of a / b for b >= 1."""
    if type(b) is int and b == 1:
        return a
    return (a + b - 1) // b


def same_shape(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """Are two shapes equal? A comparison that ranges cannot decide records a guard."""
    return len(a) == len(b) and all(x is y or x == y for x, y in zip(a, b, strict=True))


def require_dim(x: TensorSpec, dim: int, label: str) -> None:
    """A dimension must be in ``[0, ndim)``."""
    require(0 <= dim < x.ndim, label, f"dimension {dim} is out of range for {x.ndim} dimensions")


def require_dims(x: TensorSpec, dims: Sequence[int], label: str) -> None:
    """Dimensions must be in range and distinct."""
    for dim in dims:
        require_dim(x, dim, label)
    require(len(set(dims)) == len(dims), label, f"dimensions {tuple(dims)} repeat one")
