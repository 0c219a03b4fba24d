"""as_strided and its kin: the ops whose meaning depends on the memory layout of their input.

A prim value has no layout, but the aten node's spec says which one the program saw. Where that layout is
dense, the storage is the value's elements in another order, and a strided view is a gather from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from prims.decomp.common import Size, Value, iota_along, numel, to_dtype
from prims.decomp.views import permuted, reshaped
from prims.errors import Unsupported
from prims.registry import define_operator
from prims.spec import TensorSpec
from prims.spec.infer import meta_rule


def _storage_order(spec: TensorSpec) -> tuple[int, ...]:
    """The dimensions from the slowest to the fastest, for a layout without gaps or overlaps."""
    order = sorted(range(spec.ndim), key=lambda d: (-int_hint(spec.strides[d]), 0 if spec.shape[d] != 1 else -1, d))
    expected: Size = 1
    for d in reversed(order):
        if spec.shape[d] == 1:
            continue
        if spec.strides[d] != expected:
            raise Unsupported(
                f"as_strided of a tensor with strides {tuple(spec.strides)} for shape {tuple(spec.shape)}, whose "
                "storage has elements that the tensor does not; clone it first"
            )
        expected = expected * spec.shape[d]
    return tuple(order)


def int_hint(size: Size) -> int:
    """A size as a number to sort by."""
    return size if isinstance(size, int) else int(size.hint)


def _flat(p: Any, x: Value, spec: TensorSpec) -> tuple[Value, tuple[int, ...]]:
    order = _storage_order(spec)
    return reshaped(p, permuted(p, x, order), (numel(x),)), order


def _positions(p: Any, size: Sequence[Size], stride: Sequence[Size], offset: Size, device: torch.device) -> Value:
    """The place in storage of every element of a strided view."""
    shape = tuple(size)
    total = p.full(shape, 0, torch.int64, device)
    for d, step in enumerate(stride):
        if shape[d] != 1:
            total = p.add(total, p.mul(iota_along(p, shape, d, device), step))
    return p.add(total, offset) if not (isinstance(offset, int) and offset == 0) else total


def _as_permutation(size: Sequence[Size], stride: Sequence[Size]) -> tuple[tuple[int, ...], Size] | None:
    """The order of a strided view's dimensions in storage and its length, if it is a dense permutation."""
    try:
        spec = TensorSpec(tuple(size), torch.float32, torch.device("cpu"), tuple(stride))
        order = _storage_order(spec)
    except Unsupported:
        return None
    length: Size = 1
    for s in size:
        length = length * s
    return order, length


def as_strided(
    p: Any,
    spec: TensorSpec,
    self: Value,
    size: Sequence[Size],
    stride: Sequence[Size],
    storage_offset: Size | None = None,
) -> Value:
    """A view of self's storage with any sizes, strides and offset. `spec` is self's aten spec."""
    offset = spec.storage_offset if storage_offset is None else storage_offset
    flat, _ = _flat(p, self, spec)
    offset = offset - spec.storage_offset
    dense = _as_permutation(size, stride)
    if dense is not None:
        order, length = dense
        part = p.slice(flat, (offset,), (offset + length,), (1,))
        stored = reshaped(p, part, tuple(size[d] for d in order))
        return permuted(p, stored, tuple(sorted(range(len(order)), key=order.__getitem__)))
    return p.index(flat, (_positions(p, size, stride, offset, self.device),), (0,))


def as_strided_scatter(
    p: Any,
    spec: TensorSpec,
    self: Value,
    src: Value,
    size: Sequence[Size],
    stride: Sequence[Size],
    storage_offset: Size | None = None,
) -> Value:
    """self with that view of its storage replaced by src."""
    offset = (spec.storage_offset if storage_offset is None else storage_offset) - spec.storage_offset
    flat, order = _flat(p, self, spec)
    at = _positions(p, size, stride, offset, self.device)
    written = p.index_put(flat, (at,), (0,), to_dtype(p, src, self.dtype), False)
    stored = reshaped(p, written, tuple(self.shape[d] for d in order))
    return permuted(p, stored, tuple(sorted(range(len(order)), key=order.__getitem__)))


def _strided_from(x: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    return x.as_strided(size, stride, x.storage_offset() + offset).clone()


define_operator("strided_from(Tensor self, SymInt[] size, SymInt[] stride, SymInt offset) -> Tensor", _strided_from)


@meta_rule("quintet.strided_from.default")
def _strided_from_rule(x: TensorSpec, size: Sequence[Size], stride: Sequence[Size], offset: Size) -> TensorSpec:
    return TensorSpec(size, x.dtype, x.device)


def strided_call(spec: TensorSpec, target: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """``as_strided`` as the call of an operator that counts from the first element of what it is given: the memory that
    a value has in a compiled program begins where the plan puts it, not where its storage does.

    Raises:
        Unsupported: ``spec``, of its operand, leaves memory out between the elements, or it is not ``as_strided``.
    """
    if "scatter" in str(target):
        raise Unsupported(f"{target} of complex numbers")
    _storage_order(spec)
    x, size, stride, *rest = args
    offset = rest[0] - spec.storage_offset if rest and rest[0] is not None else 0
    return torch.ops.quintet.strided_from.default, (x, size, stride, offset)


STRIDED: dict[str, Callable[..., Value]] = {
    "aten.as_strided.default": as_strided,
    "aten.as_strided_copy.default": as_strided,
    "aten.as_strided_scatter.default": as_strided_scatter,
}
"""Ops that are given their input's aten spec besides its value."""
