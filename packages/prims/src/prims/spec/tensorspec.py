"""Metadata of a tensor, and nothing else."""

from __future__ import annotations

from typing import Any

import torch

from prims.spec import layout
from prims.spec.sym import from_torch

Size = Any  # int | Sym


def as_device(device: Any) -> torch.device:
    """A device with its index: ``cuda`` is the current one (0 before CUDA is initialised)."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_initialized() else 0)
    return device


class TensorSpec:
    """Shape, dtype, device, strides (in elements) and storage offset (in elements) of a strided tensor.

    Immutable, hashable, compared field by field. Without ``strides`` the tensor is contiguous. Sizes are
    ``int | Sym``; specs are equal if they are for all sizes the guards allow, and comparing them never guards.
    """

    __slots__ = ("device", "dtype", "shape", "storage_offset", "strides")

    shape: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device
    strides: tuple[Size, ...]
    storage_offset: Size

    def __init__(
        self,
        shape: Any,
        dtype: torch.dtype,
        device: torch.device,
        strides: Any = None,
        storage_offset: Size = 0,
    ) -> None:
        shape = tuple(shape)
        _set_shape(self, shape)
        _set_dtype(self, dtype)
        _set_device(self, device if type(device) is torch.device else as_device(device))
        _set_strides(self, layout.contiguous_strides(shape) if strides is None else tuple(strides))
        _set_offset(self, storage_offset)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"TensorSpec is immutable; use replace({name}=...)")

    def replace(self, **changes: Any) -> TensorSpec:
        """A copy with some fields changed; a new shape without strides is contiguous."""
        if "shape" in changes and "strides" not in changes:
            changes["strides"] = None
        fields = {name: getattr(self, name) for name in ("shape", "dtype", "device", "strides", "storage_offset")}
        return TensorSpec(**{**fields, **changes})

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def numel(self) -> Size:
        """The number of elements."""
        n: Size = 1
        for s in self.shape:
            n = n * s
        return n

    def is_contiguous(self) -> bool:
        """Row-major and dense."""
        return layout.is_contiguous(self.shape, self.strides)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, TensorSpec):
            return NotImplemented
        return (
            self.dtype == other.dtype
            and self.device == other.device
            and layout.known_same(self.shape, other.shape)
            and layout.known_same(self.strides, other.strides)
            and layout.known_equal(self.storage_offset, other.storage_offset)
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype, self.device, self.strides, self.storage_offset))

    def __reduce__(self) -> Any:
        return TensorSpec, (self.shape, self.dtype, self.device, self.strides, self.storage_offset)

    def __repr__(self) -> str:
        text = f"{str(self.dtype).removeprefix('torch.')}[{', '.join(map(str, self.shape))}]"
        if any(a is not b for a, b in zip(self.strides, layout.contiguous_strides(self.shape), strict=True)):
            text += f" strides ({', '.join(map(str, self.strides))})"
        if type(self.storage_offset) is not int or self.storage_offset:
            text += f" offset {self.storage_offset}"
        return f"{text} {self.device}"


_set_shape = TensorSpec.__dict__["shape"].__set__
_set_dtype = TensorSpec.__dict__["dtype"].__set__
_set_device = TensorSpec.__dict__["device"].__set__
_set_strides = TensorSpec.__dict__["strides"].__set__
_set_offset = TensorSpec.__dict__["storage_offset"].__set__


def settled(spec: TensorSpec) -> TensorSpec:
    """The spec with numbers for the sizes and strides that guards have found to be numbers."""
    context = next((size.ctx for size in (*spec.shape, *spec.strides) if type(size) is not int), None)
    if context is None or not context.replacements and not context.sums:
        return spec
    key = "settled", spec
    found = context.layouts.get(key)
    if found is None:
        shape, strides = (tuple(map(context.number, sizes)) for sizes in (spec.shape, spec.strides))
        found = TensorSpec(shape, spec.dtype, spec.device, strides, context.number(spec.storage_offset))
        context.layouts[key] = found
    return found  # type: ignore[no-any-return]


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """The spec of a tensor (of an :class:`AbstractTensor`, the one it holds)."""
    held = getattr(tensor, "spec", None)
    if type(held) is TensorSpec:
        return held
    shape = tuple(map(from_torch, tensor.shape))
    strides = tuple(map(from_torch, tensor.stride()))
    return TensorSpec(shape, tensor.dtype, tensor.device, strides, from_torch(tensor.storage_offset()))
