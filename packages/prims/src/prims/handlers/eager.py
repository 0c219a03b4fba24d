"""The handlers that compute: metadata only, PyTorch, NumPy."""

from __future__ import annotations

import functools
from typing import Any

import torch

from prims.dtypes import HALVES, KEPT_FLOATS, saturates
from prims.errors import Unsupported
from prims.handlers.base import BaseHandler, map_values
from prims.ops import PrimOp
from prims.ops.lazy import np
from prims.ops.structure import numpy_dtype
from prims.spec import TensorSpec, from_torch, infer

__all__ = ["Array", "MetaHandler", "NumpyHandler", "TorchHandler"]


class MetaHandler(BaseHandler):
    """Values are `TensorSpec`: runs a decomposition for its metadata alone."""

    def prim(self, op: PrimOp, *args: Any, **kwargs: Any) -> Any:
        return op.meta(*op.bind(*args, **kwargs))

    def aten(self, op: torch._ops.OpOverload, *args: Any, spec: Any = None, **kwargs: Any) -> Any:
        result = infer(op, args, kwargs) if spec is None else spec
        return tuple(result) if isinstance(result, (tuple, list)) else result


class TorchHandler(BaseHandler):
    """Values are real `torch.Tensor`: the primitives' PyTorch references."""

    def prim(self, op: PrimOp, *args: Any, **kwargs: Any) -> Any:
        return op.torch_ref(*op.bind(*args, **kwargs))

    def aten(self, op: torch._ops.OpOverload, *args: Any, spec: Any = None, **kwargs: Any) -> Any:
        result = op(*args, **kwargs)
        return tuple(result) if isinstance(result, (tuple, list)) else from_torch(result)


class Array:
    """A NumPy array with the torch dtype it stands for (NumPy has no bfloat16).

    Values of narrow floats are held in float32, rounded to what the dtype can hold.
    """

    __slots__ = ("data", "dtype")

    def __init__(self, data: Any, dtype: torch.dtype) -> None:
        self.data = _round(np.asarray(data), dtype)
        self.dtype = dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes."""
        return tuple(self.data.shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return int(self.data.ndim)

    @property
    def device(self) -> torch.device:
        """Always the CPU."""
        return torch.device("cpu")

    @property
    def spec(self) -> TensorSpec:
        """Metadata, as that of a contiguous tensor."""
        return TensorSpec(self.shape, self.dtype, self.device)

    @staticmethod
    def from_torch(tensor: torch.Tensor) -> Array:
        """A copy of a tensor's values."""
        plain = tensor.detach().cpu()
        if plain.dtype in HALVES or plain.dtype in KEPT_FLOATS:
            plain = plain.float()
        return Array(plain.contiguous().numpy().copy(), tensor.dtype)

    def to_torch(self) -> torch.Tensor:
        """A tensor of the same values and dtype."""
        return torch.from_numpy(np.array(self.data, order="C")).to(self.dtype)

    def __repr__(self) -> str:
        return f"Array({self.data!r}, {self.dtype})"


def _round(data: Any, dtype: torch.dtype) -> Any:
    data = np.asarray(data, dtype=numpy_dtype(dtype))
    if dtype == torch.float16:
        return data.astype(np.float16).astype(np.float32)
    if dtype == torch.bfloat16:
        bits = np.array(data, dtype=np.float32, order="C").view(np.uint32)
        # To nearest, ties to even: add half a unit less one, and one more when the kept part is odd.
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        rounded = ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)) << np.uint32(16)
        return np.where(np.isnan(data), data, rounded.view(np.float32)).astype(np.float32)
    if dtype in KEPT_FLOATS:
        return _round_to_8_bits(data, dtype)
    return data


def _round_to_8_bits(data: Any, dtype: torch.dtype) -> Any:
    """To the nearest multiple of the unit that numbers of that size have, ties to even; e4m3 has no infinity."""
    mantissa, least, most = (3, -6, 448.0) if dtype == torch.float8_e4m3fn else (2, -14, 57344.0)
    with np.errstate(all="ignore"):
        exponent = np.frexp(np.where(np.isfinite(data), data, 1.0))[1] - 1
        unit = np.ldexp(1.0, np.maximum(exponent, least) - mantissa)
        rounded = np.where(np.isfinite(data), np.rint(data.astype(np.float64) / unit) * unit, data)
    over = np.inf if dtype == torch.float8_e5m2 else most if saturates() else np.nan
    over = np.where(np.isnan(data), data, np.copysign(over, data))
    return np.where(np.abs(rounded) <= most, rounded, over).astype(np.float32)


class NumpyHandler(BaseHandler):
    """Values are `Array`: the primitives' NumPy references. Composite overloads run through PyTorch's eager
    kernels, as they have no NumPy meaning of their own.
    """

    def prim(self, op: PrimOp, *args: Any, **kwargs: Any) -> Any:
        bound = op.bind(*args, **kwargs)
        spec = op.meta(*map_values(lambda a: a.spec if isinstance(a, Array) else a, bound))
        reference = op.numpy_ref
        if op.name == "bitcast":
            reference = functools.partial(reference, source=bound[0].dtype)
        raw = map_values(lambda a: a.data if isinstance(a, Array) else a, bound)
        with np.errstate(all="ignore"):
            return Array(reference(*raw), spec.dtype)

    def aten(self, op: torch._ops.OpOverload, *args: Any, spec: Any = None, **kwargs: Any) -> Any:
        def tensor(a: Any) -> Any:
            return a.to_torch() if isinstance(a, Array) else a

        def array(r: Any) -> Any:
            if isinstance(r, torch.Tensor):
                if r.is_complex():
                    raise Unsupported(f"{op} gives complex numbers, for which there is no NumPy reference")
                return Array.from_torch(r)
            return r

        result = op(*map_values(tensor, args), **map_values(tensor, kwargs))
        return tuple(map(array, result)) if isinstance(result, (tuple, list)) else array(result)
