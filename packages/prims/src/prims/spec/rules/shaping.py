"""Joining, padding, repeating, flipping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prims.spec import layout
from prims.spec.infer import meta_rule
from prims.spec.iterator import broadcast_shapes
from prims.spec.promote import result_dtype
from prims.spec.rules.convolution import check_image, suggests_channels_last
from prims.spec.rules.creation import with_format
from prims.spec.rules.views import numel, unsqueeze, view, wrap_dim
from prims.spec.tensorspec import TensorSpec

Size = Any  # int | Sym


def _is_legacy_empty(x: TensorSpec) -> bool:
    return len(x.shape) == 1 and type(x.shape[0]) is int and x.shape[0] == 0


@meta_rule("aten.cat.default", "aten.concat.default", "aten.concatenate.default")
def cat(tensors: Sequence[TensorSpec], dim: int = 0) -> TensorSpec:
    """Joined along ``dim``; 1-d empty tensors are skipped, channels_last if all inputs are."""
    if not tensors:
        raise RuntimeError("torch.cat(): expected a non-empty list of Tensors")
    dtype = result_dtype(tensors)
    real = [x for x in tensors if not _is_legacy_empty(x)]
    if not real:
        return TensorSpec((0,), dtype, tensors[0].device)
    first = real[0]
    if not first.shape:
        raise RuntimeError("zero-dimensional tensor (at position 0) cannot be concatenated")
    d = wrap_dim(dim, first.ndim)
    total: Size = 0
    for x in real:
        if x.ndim != first.ndim:
            raise RuntimeError(f"Tensors must have same number of dimensions: got {first.ndim} and {x.ndim}")
        for i, (a, b) in enumerate(zip(first.shape, x.shape, strict=True)):
            if i != d and a is not b and a != b:
                raise RuntimeError(
                    f"Sizes of tensors must match except in dimension {d}. Expected size {a} but got size {b} "
                    "for tensor in the list."
                )
        total = total + x.shape[d]
    shape = (*first.shape[:d], total, *first.shape[d + 1 :])
    strides = None
    if first.ndim in (4, 5) and all(suggests_channels_last(x) for x in tensors):
        strides = layout.channels_last_strides(shape)
    return TensorSpec(shape, dtype, first.device, strides)


@meta_rule("aten.stack.default")
def stack(tensors: Sequence[TensorSpec], dim: int = 0) -> TensorSpec:
    first = tensors[0]
    for x in tensors[1:]:
        if x.ndim != first.ndim or not all(a is b or a == b for a, b in zip(first.shape, x.shape, strict=True)):
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(first.shape)} at entry 0 "
                f"and {list(x.shape)} at entry 1"
            )
    d = wrap_dim(dim, first.ndim + 1)
    if d == first.ndim:
        return cat([unsqueeze(x, d) for x in tensors], d)
    shape = (*first.shape[:d], len(tensors), *first.shape[d:])
    return view(cat(tensors, d), shape)


@meta_rule("aten.constant_pad_nd.default")
def constant_pad_nd(x: TensorSpec, pad: Sequence[Size], value: Any = 0) -> TensorSpec:
    if len(pad) % 2 != 0:
        raise RuntimeError(f"Length of pad must be even but instead it equals {len(pad)}")
    shape = list(x.shape)
    for i in range(len(pad) // 2):
        d = x.ndim - 1 - i
        least = shape[d]
        for p in pad[2 * i : 2 * i + 2]:
            least = least + p if layout.is_surely_less(p, 0) else least
        shape[d] = shape[d] + pad[2 * i] + pad[2 * i + 1]
        if least is not shape[d] and layout.is_surely_less(least, 0):  # it is narrowed before it is filled
            raise RuntimeError(
                f"padding of {pad[2 * i]} and {pad[2 * i + 1]} takes more of dimension {d} than {list(x.shape)} has"
            )
    new = tuple(shape)
    if all(layout.known_less(p, 1) for p in pad):
        # Nothing to fill: the narrowed input is cloned.
        narrowed = TensorSpec(new, x.dtype, x.device, x.strides)
        return with_format(narrowed, None, x.dtype, x.device)
    if suggests_channels_last(x):
        return TensorSpec(new, x.dtype, x.device, layout.channels_last_strides(new))
    return TensorSpec(new, x.dtype, x.device)


def _pad_nd(kind: str, n: int) -> None:
    @meta_rule(f"aten.{kind}_pad{n}d.default")
    def rule(x: TensorSpec, padding: Sequence[Size]) -> TensorSpec:
        check_image(x, n)
        shape = list(x.shape)
        for i in range(n):
            d = x.ndim - 1 - i
            low, high = padding[2 * i : 2 * i + 2]
            if kind == "reflection" and not (low < shape[d] and high < shape[d]):
                raise RuntimeError(
                    f"Padding size should be less than the corresponding input dimension, but got: padding ({low}, "
                    f"{high}) at dimension {d} of input {list(x.shape)}"
                )
            shape[d] = shape[d] + low + high
            if not shape[d] >= 1:
                raise RuntimeError(f"input {list(x.shape)} is too small: padding gives {shape[d]} in dimension {d}")
        return formatted(x, tuple(shape))

    def formatted(x: TensorSpec, shape: tuple[Size, ...]) -> TensorSpec:
        """Channels last as the input may be, but for a GPU's kernels."""
        last = x.device.type != "cuda" and x.ndim == n + 2 and suggests_channels_last(x)
        return TensorSpec(shape, x.dtype, x.device, layout.channels_last_strides(shape) if last else None)

    @meta_rule(f"aten.{kind}_pad{n}d_backward.default")
    def backward(grad: TensorSpec, x: TensorSpec, padding: Sequence[Size]) -> TensorSpec:
        return formatted(x, x.shape)


for _n in (1, 2, 3):
    _pad_nd("reflection", _n)
    _pad_nd("replication", _n)


@meta_rule("aten.repeat.default")
def repeat(x: TensorSpec, repeats: Sequence[Size]) -> TensorSpec:
    pad = len(repeats) - x.ndim
    if pad < 0:
        raise RuntimeError("Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor")
    shape = tuple(s * r for s, r in zip((1,) * pad + x.shape, repeats, strict=True))
    return TensorSpec(shape, x.dtype, x.device)


@meta_rule("aten.repeat_interleave.self_int")
def repeat_interleave(x: TensorSpec, repeats: Size, dim: int | None = None, *, output_size: Any = None) -> TensorSpec:
    if dim is None:
        return TensorSpec((numel(x.shape) * repeats,), x.dtype, x.device)
    d = wrap_dim(dim, x.ndim)
    return TensorSpec((*x.shape[:d], x.shape[d] * repeats, *x.shape[d + 1 :]), x.dtype, x.device)


@meta_rule("aten.flip.default")
def flip(x: TensorSpec, dims: Sequence[int]) -> TensorSpec:
    return with_format(x, None, x.dtype, x.device)


@meta_rule("aten.roll.default")
def roll(x: TensorSpec, shifts: Sequence[Size], dims: Sequence[int] = ()) -> TensorSpec:
    if not dims or x.device.type != "cpu":
        return TensorSpec(x.shape, x.dtype, x.device)
    if any(type(n) is int and n == 0 for n in x.shape):
        return with_format(x, None, x.dtype, x.device)
    for shift, dim in zip(shifts, dims, strict=True):
        # On the CPU, the two parts are joined the other way round; where nothing moves, one of them is empty and has
        # no memory format in common with the other.
        d, plain = wrap_dim(dim, x.ndim), TensorSpec(x.shape, x.dtype, x.device)
        x = plain if x.strides == plain.strides or shift % x.shape[d] == 0 else cat([x], d)
    return x


@meta_rule("aten.rot90.default")
def rot90(x: TensorSpec, k: int = 1, dims: Sequence[int] = (0, 1)) -> TensorSpec:
    a, b = wrap_dim(dims[0], x.ndim), wrap_dim(dims[1], x.ndim)
    if len(dims) != 2 or a == b:
        raise RuntimeError(f"rot90 needs two dimensions to rotate in, not {list(dims)}")
    k = k % 4
    if k in (0, 2):
        return with_format(x, torch.contiguous_format if k == 0 else None, x.dtype, x.device)
    shape, strides = list(x.shape), list(layout.like_strides(x.shape, x.strides))
    shape[a], shape[b] = shape[b], shape[a]
    strides[a], strides[b] = strides[b], strides[a]
    return TensorSpec(shape, x.dtype, x.device, strides)


@meta_rule("aten.tril.default", "aten.triu.default")
def tril(x: TensorSpec, diagonal: Size = 0) -> TensorSpec:
    return TensorSpec(x.shape, x.dtype, x.device)


@meta_rule("aten.diag_embed.default")
def diag_embed(x: TensorSpec, offset: int = 0, dim1: int = -2, dim2: int = -1) -> TensorSpec:
    a, b = wrap_dim(dim1, x.ndim + 1), wrap_dim(dim2, x.ndim + 1)
    if a == b:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    n = x.shape[-1] + abs(offset)
    shape = list(x.shape[:-1])
    for d in sorted((a, b)):
        shape.insert(d, n)
    return TensorSpec(shape, x.dtype, x.device)


@meta_rule("aten.block_diag.default")
def block_diag(tensors: Sequence[TensorSpec]) -> TensorSpec:
    rows: Size = 0
    cols: Size = 0
    for x in tensors:
        rows = rows + (x.shape[0] if x.ndim == 2 else 1)
        cols = cols + (x.shape[-1] if x.ndim else 1)
    return TensorSpec((rows, cols), result_dtype(tensors), tensors[0].device)


@meta_rule("aten.cross.default")
def cross(x: TensorSpec, y: TensorSpec, dim: int | None = None) -> TensorSpec:
    if x.dtype != y.dtype and x.device.type == "cpu":
        raise RuntimeError(f"cross: expected {x.dtype} but found {y.dtype}")
    return TensorSpec(broadcast_shapes((x.shape, y.shape)), x.dtype, x.device)


@meta_rule("aten.linalg_cross.default")
def linalg_cross(x: TensorSpec, y: TensorSpec, *, dim: int = -1) -> TensorSpec:
    if x.ndim != y.ndim or any(s.shape[wrap_dim(dim, s.ndim)] != 3 for s in (x, y)):
        raise RuntimeError(f"linalg.cross: inputs of shapes {list(x.shape)} and {list(y.shape)} along dimension {dim}")
    return cross(x, y)
