"""Type promotion, as ``torch.result_type`` does it, on specs and Python numbers."""

from __future__ import annotations

from typing import Any

import torch

from prims.defaults import default_dtype
from prims.spec.sym import Sym, SymBool, SymFloat
from prims.spec.tensorspec import TensorSpec

promote_types = torch.promote_types
_TO_COMPLEX = {
    torch.float16: torch.complex32,
    torch.bfloat16: torch.complex64,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}
_TO_REAL = {
    torch.complex32: torch.float16,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the parts of a complex dtype; any other dtype as it is."""
    return _TO_REAL.get(dtype, dtype)


def complex_dtype(dtype: torch.dtype) -> torch.dtype:
    """The complex dtype whose parts are ``dtype`` (bfloat16 has none of its own: complex64)."""
    return _TO_COMPLEX.get(dtype, dtype)


def number_dtype(x: Any) -> torch.dtype:
    """The dtype of a Python or symbolic number."""
    if isinstance(x, (bool, SymBool)):
        return torch.bool
    if isinstance(x, (int, Sym)):
        return torch.int64
    if isinstance(x, (float, SymFloat)):
        return default_dtype()
    if isinstance(x, complex):
        return complex_dtype(default_dtype())
    raise TypeError(f"not a number: {x!r}")


def _combine(high: torch.dtype | None, low: torch.dtype | None) -> torch.dtype | None:
    """Promotion between categories: the lower one only matters when it is of a higher kind."""
    if high is None or low is None:
        return low if high is None else high
    if high.is_complex:
        return high
    if high.is_floating_point:
        return complex_dtype(high) if low.is_complex else high
    if high is torch.bool or low.is_floating_point or low.is_complex:
        return promote_types(high, low)
    return high


def result_dtype(operands: Any) -> torch.dtype:
    """The promoted dtype: tensors with dimensions first, then 0-d tensors, then numbers. None is skipped."""
    dims: torch.dtype | None = None
    zeros: torch.dtype | None = None
    numbers: torch.dtype | None = None
    for x in operands:
        if type(x) is TensorSpec:
            d = x.dtype
            if x.shape:
                if dims is None:
                    dims = d
                elif dims is not d:
                    dims = promote_types(dims, d)
            elif zeros is None:
                zeros = d
            elif zeros is not d:
                zeros = promote_types(zeros, d)
        elif x is not None:
            d = number_dtype(x)
            numbers = d if numbers is None else promote_types(numbers, d)
    if dims is not None and zeros is None and numbers is None:
        return dims
    out = _combine(dims, _combine(zeros, numbers))
    assert out is not None
    return out


def to_float_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a function that gives floats: integers and bool become the default dtype."""
    return dtype if dtype.is_floating_point or dtype.is_complex else default_dtype()


def sum_dtype(dtype: torch.dtype, asked: torch.dtype | None) -> torch.dtype:
    """The dtype of sums and products: as asked, else int64 for integers and bool."""
    if asked is not None:
        return asked
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.int64


def softmax_gradient_dtype(grad: torch.dtype, device: torch.device, input_dtype: torch.dtype) -> torch.dtype:
    """The type that eager gives a softmax's gradient: on the CPU ``input_dtype`` counts for one pair of types alone."""
    if device.type != "cpu" or (grad, input_dtype) == (torch.float32, torch.float16):
        return input_dtype
    return grad
