"""The result of an elementwise operation: broadcast shape, device, and strides as TensorIterator lays it out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from prims.spec import layout
from prims.spec.tensorspec import TensorSpec

Size = Any  # int | Sym
Shape = tuple[Size, ...]


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """The common shape. A symbolic size against another size asks whether they are equal."""
    ndim = max(map(len, shapes))
    out: list[Size] = [1] * ndim
    for shape in shapes:
        for i in range(ndim - 1, ndim - 1 - len(shape), -1):  # of several that do not match, eager names the last
            s, t = shape[i - ndim], out[i]
            if s is t or type(s) is int and s == 1:
                continue
            if type(t) is int and t == 1:
                out[i] = s
            elif s != t:
                if s == 1:
                    continue
                if t == 1:
                    out[i] = s
                    continue
                raise RuntimeError(
                    f"The size of tensor a ({t}) must match the size of tensor b ({s}) at non-singleton dimension {i}"
                )
            elif type(s) is int:
                out[i] = s
    return tuple(out)


def broadcast_strides(spec: TensorSpec, shape: Shape) -> tuple[Size, ...]:
    """The strides with which an operand is read as ``shape``."""
    offset = len(shape) - len(spec.shape)
    strides: list[Size] = [0] * offset
    for i, (s, stride) in enumerate(zip(spec.shape, spec.strides, strict=True)):
        target = shape[i + offset]
        one = s == 1 if type(s) is int else s is not target and layout.known_equal(s, 1)  # so it is broadcast
        strides.append(0 if one and not _is_one(target) else stride)
    return tuple(strides)


def _is_one(size: Size) -> bool:
    """Whether a size is one. It is asked only of one that is, now: others are walked as if they never were."""
    return size == 1 if type(size) is int else size.hint == 1 and bool(size == 1)


def _is_few(size: Size) -> bool:
    """Whether a size is known to be one or zero."""
    return size <= 1 if type(size) is int else layout.known_equal(size, 1) or layout.known_equal(size, 0)


def dense_in_order(shape: Shape, order: Sequence[int]) -> tuple[Size, ...]:
    """Strides the iterator gives a new result that it walks in ``order`` (fastest first)."""
    if all(d == len(shape) - 1 - i for i, d in enumerate(order)):
        return layout.contiguous_strides(shape)
    return layout.products_in_order(shape, order)


def _strides(shapes: tuple[Shape, ...], strides: tuple[tuple[Size, ...], ...], shape: Shape) -> tuple[Size, ...]:
    first, first_strides = shapes[0], strides[0]
    if all(s is shape or layout.known_same(s, shape) for s in shapes):
        if all(layout.is_contiguous(s, t) for s, t in zip(shapes, strides, strict=True)):
            return layout.contiguous_strides(shape)
        if len(shape) == 4 and all(
            layout.is_channels_last_contiguous(s, t) for s, t in zip(shapes, strides, strict=True)
        ):
            return layout.channels_last_strides(shape)
        alike = all(t is first_strides or layout.known_same(t, first_strides) for t in strides)
        if alike and layout.is_dense(first, first_strides):
            return first_strides
    operands = [
        broadcast_strides(TensorSpec(s, torch.float32, _CPU, t), shape) for s, t in zip(shapes, strides, strict=True)
    ]
    return dense_in_order(shape, layout.permutation(shape, operands))


_CPU = torch.device("cpu")


@functools.lru_cache(maxsize=8192)
def _static_layout(shapes: tuple[Shape, ...], strides: tuple[Any, ...]) -> tuple[Shape, tuple[Size, ...]]:
    shape = broadcast_shapes(shapes)
    return shape, _strides(shapes, strides, shape)


def _context(spec: TensorSpec) -> Any:
    """The symbol context of a spec with symbolic sizes or strides; None if all are numbers."""
    for s in spec.shape:
        if type(s) is not int:
            return s.ctx
    for s in spec.strides:
        if type(s) is not int:
            return s.ctx
    return None


def _unary_strides(spec: TensorSpec) -> tuple[Size, ...]:
    ctx = _context(spec)
    if ctx is None:
        return _static_layout((spec.shape,), (spec.strides,))[1]
    key = (spec.shape, spec.strides)
    found = ctx.layouts.get(key)
    if found is None:
        found = ctx.layouts[key] = _strides((spec.shape,), (spec.strides,), spec.shape)
    return found  # type: ignore[no-any-return]


def common_device(tensors: Sequence[TensorSpec]) -> torch.device:
    """The device of the operands with dimensions; a CPU scalar tensor may meet any device."""
    device = tensors[0].device
    for t in tensors:
        if t.device != device:
            if not tensors[0].shape and device.type == "cpu":
                return common_device(tensors[1:])
            if t.shape or t.device.type != "cpu":
                raise RuntimeError(
                    "Expected all tensors to be on the same device, "
                    f"but found at least two devices, {device} and {t.device}!"
                )
    return device


def converted(spec: TensorSpec, dtype: torch.dtype) -> TensorSpec:
    """What ``to(dtype)`` makes of a tensor: itself, or a copy, which is dense (an expanded dimension has elements)."""
    if spec.dtype is dtype:
        return spec
    strides = spec.strides
    if _context(spec) is not None or not layout.is_dense(spec.shape, strides):
        strides = layout.like_strides(spec.shape, strides)
    # A dense copy keeps the strides of dimensions of one element, too, which have a say in the result's.
    return TensorSpec(spec.shape, dtype, spec.device, strides)


def iterate(
    operands: Sequence[Any], dtype: torch.dtype, wraps: bool = False, common: torch.dtype | None = None
) -> TensorSpec:
    """The fresh result of an elementwise operation on ``operands`` (numbers and None are skipped).

    ``wraps``: eager makes a number a tensor without dimensions, and then has no short way to strides that are alike;
    the long one comes to others in dimensions of one element, and where there are none.
    ``common``: the type in which the operation computes, if it is not the result's. On a CPU eager converts operands of
    other types before it looks at strides, those of the copies.
    """
    tensors = [x for x in operands if type(x) is TensorSpec]
    if not tensors:
        return TensorSpec((), dtype, _CPU, ())  # of numbers: a tensor without dimensions
    first = tensors[0]
    if wraps and len(tensors) < len(operands) and any(map(_is_few, first.shape)):
        tensors.append(TensorSpec((), dtype, first.device, ()))
    if len(tensors) == 1:
        strides = _unary_strides(first)
        return TensorSpec(first.shape, dtype, first.device, strides)
    device = first.device if all(t.device is first.device for t in tensors) else common_device(tensors)
    if device.type == "cpu":
        tensors = [converted(t, common or dtype) for t in tensors]
    shapes, strides = tuple(t.shape for t in tensors), tuple(t.strides for t in tensors)
    ctx = next((c for t in tensors if (c := _context(t)) is not None), None)
    if ctx is None:
        shape, new = _static_layout(shapes, strides)
        return TensorSpec(shape, dtype, device, new)
    key = (shapes, strides)
    found = ctx.layouts.get(key)
    if found is None:
        shape = broadcast_shapes(shapes)
        found = shape, _strides(shapes, strides, shape)
        ctx.layouts[key] = found
    return TensorSpec(found[0], dtype, device, found[1])
