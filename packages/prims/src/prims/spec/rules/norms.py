"""Normalisation layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prims.dtypes import HALVES
from prims.spec import layout
from prims.spec.infer import meta_rule
from prims.spec.rules.convolution import suggests_channels_last
from prims.spec.rules.creation import with_format
from prims.spec.tensorspec import TensorSpec

Size = Any  # int | Sym


def _accumulate(x: TensorSpec, *others: TensorSpec | None) -> torch.dtype:
    """The dtype of saved statistics: float32 for half types on the GPU, else the input's."""
    if x.device.type != "cpu" and x.dtype in HALVES:
        return torch.float32
    return x.dtype


def _check_types(x: TensorSpec, *parameters: TensorSpec | None) -> None:
    """Raise RuntimeError where a CPU's kernel has no such mixture of types: the parameters, and what is kept of earlier
    batches, are of one type, the input's, or float32 beside half types."""
    types = {p.dtype for p in parameters if p is not None}
    if x.device.type == "cpu" and types - {x.dtype} and (types != {torch.float32} or x.dtype not in HALVES):
        raise RuntimeError(f"mixed dtype (CPU): parameters of {', '.join(map(str, types))} for an input of {x.dtype}")


@meta_rule("aten.native_layer_norm.default")
def native_layer_norm(
    x: TensorSpec,
    normalized_shape: Sequence[Size],
    weight: TensorSpec | None,
    bias: TensorSpec | None,
    eps: float,
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    n = len(normalized_shape)
    if n == 0:
        raise RuntimeError("Expected normalized_shape to be at least 1-dimensional")
    for a, b in zip(x.shape[x.ndim - n :], normalized_shape, strict=False):
        if a is not b and a != b:
            raise RuntimeError(
                f"Given normalized_shape={list(normalized_shape)}, expected input with shape "
                f"[*, {', '.join(map(str, normalized_shape))}], but got input of size{list(x.shape)}"
            )
    for name, given in (("weight", weight), ("bias", bias)):
        if given is not None and given.shape != tuple(normalized_shape):
            raise RuntimeError(
                f"Expected {name} to be of same shape as normalized_shape, but got {name} of shape "
                f"{list(given.shape)} and normalized_shape = {list(normalized_shape)}"
            )
    _check_types(x, weight, bias)
    out = TensorSpec(x.shape, x.dtype, x.device)
    stat = TensorSpec((*x.shape[: x.ndim - n], *(1,) * n), _layer_norm_stat(x, weight), x.device)
    return out, stat, stat


def _layer_norm_stat(x: TensorSpec, weight: TensorSpec | None) -> torch.dtype:
    if x.device.type == "cpu" and weight is not None and weight.dtype is not x.dtype:
        return weight.dtype
    return _accumulate(x)


@meta_rule("aten.layer_norm.default")
def layer_norm(
    x: TensorSpec, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *args: Any
) -> TensorSpec:
    return native_layer_norm(x, normalized_shape, weight, bias, eps)[0]


@meta_rule("aten.native_layer_norm_backward.default")
def native_layer_norm_backward(
    grad: TensorSpec,
    x: TensorSpec,
    normalized_shape: Any,
    mean: TensorSpec,
    rstd: TensorSpec,
    weight: TensorSpec | None,
    bias: TensorSpec | None,
    output_mask: Sequence[bool],
) -> tuple[TensorSpec | None, TensorSpec | None, TensorSpec | None]:
    parameter = TensorSpec(tuple(normalized_shape), x.dtype if weight is None else weight.dtype, x.device)
    return (
        TensorSpec(x.shape, x.dtype, x.device) if output_mask[0] else None,
        parameter if output_mask[1] and weight is not None else None,
        parameter if output_mask[2] and bias is not None else None,
    )


@meta_rule("aten._fused_rms_norm.default")
def fused_rms_norm(
    x: TensorSpec, normalized_shape: Any, weight: TensorSpec | None, eps: float | None
) -> tuple[TensorSpec, TensorSpec]:
    n = len(normalized_shape)
    stat = TensorSpec((*x.shape[: x.ndim - n], *(1,) * n), _accumulate(x), x.device)
    return TensorSpec(x.shape, x.dtype, x.device), stat


@meta_rule("aten._fused_rms_norm_backward.default")
def fused_rms_norm_backward(
    grad: TensorSpec,
    x: TensorSpec,
    normalized_shape: Any,
    rstd: TensorSpec,
    weight: TensorSpec | None,
    output_mask: Sequence[bool],
) -> tuple[TensorSpec | None, TensorSpec | None]:
    scale = None if weight is None else TensorSpec(weight.shape, weight.dtype, weight.device)
    return TensorSpec(x.shape, x.dtype, x.device) if output_mask[0] else None, scale if output_mask[1] else None


@meta_rule("aten.native_group_norm.default")
def native_group_norm(
    x: TensorSpec,
    weight: TensorSpec | None,
    bias: TensorSpec | None,
    n: Size,
    c: Size,
    hxw: Size,
    group: int,
    eps: float,
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    for given in (weight, bias):
        if given is not None and given.shape != (c,):
            raise RuntimeError(
                "Expected weight and bias to be vectors of size equal to the number of channels in input, "
                f"but got {list(given.shape)} and {c} channels"
            )
    _check_types(x, weight, bias)
    stat = TensorSpec((n, group), _layer_norm_stat(x, weight), x.device)
    last = x.device.type == "cpu" and suggests_channels_last(x)
    strides = layout.channels_last_strides(x.shape) if last else None
    return TensorSpec(x.shape, x.dtype, x.device, strides), stat, stat


@meta_rule("aten.native_group_norm_backward.default")
def native_group_norm_backward(
    grad: TensorSpec,
    x: TensorSpec,
    mean: TensorSpec,
    rstd: TensorSpec,
    weight: TensorSpec | None,
    n: Size,
    c: Size,
    hxw: Size,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[TensorSpec | None, TensorSpec | None, TensorSpec | None]:
    parameter = TensorSpec((c,), x.dtype if weight is None else weight.dtype, x.device)
    last = x.device.type == "cpu" and suggests_channels_last(x)
    strides = layout.channels_last_strides(x.shape) if last else None
    return (
        TensorSpec(x.shape, x.dtype, x.device, strides) if output_mask[0] else None,
        parameter if output_mask[1] else None,
        parameter if output_mask[2] else None,
    )


def _batch_norm(
    x: TensorSpec, parameters: Sequence[TensorSpec | None], training: bool
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """``parameters``: weight, bias, and the running mean and variance."""
    weight, _, running_mean, _ = parameters
    _check_types(x, *parameters)
    if training and x.device.type == "cpu" and any(layout.is_surely_less(size, 1) for size in x.shape):
        raise RuntimeError(f"input tensor must have at least one element, but got input_sizes = {list(x.shape)}")
    channels = x.shape[1] if x.ndim > 1 else 1
    out = with_format(x, _batch_norm_format(x) if x.device.type == "cpu" else None, x.dtype, x.device)
    if not training and x.device.type == "cpu":
        empty = TensorSpec((0,), _batch_stat(x, weight, running_mean), x.device)
        return out, empty, empty
    stat = TensorSpec((channels,), _batch_stat(x, weight, running_mean), x.device)
    return out, stat, stat


def _batch_stat(x: TensorSpec, weight: TensorSpec | None, running_mean: TensorSpec | None) -> torch.dtype:
    if x.device.type == "cpu":
        for p in (weight, running_mean):
            if p is not None and p.dtype is not x.dtype:
                return p.dtype
        return x.dtype
    return _accumulate(x)


def _suggested(x: TensorSpec) -> torch.memory_format:
    if not suggests_channels_last(x):
        return torch.contiguous_format
    return torch.channels_last if x.ndim == 4 else torch.channels_last_3d


def _has_no_gaps(x: TensorSpec) -> bool:
    return layout.is_contiguous(x.shape, x.strides) or layout.is_channels_last_contiguous(x.shape, x.strides)


def _batch_norm_format(x: TensorSpec, grad: TensorSpec | None = None) -> torch.memory_format:
    """The memory format of what a batch norm gives.

    On a CPU eager asks first which it is that tensors without gaps have, and contiguous ones may be channels-last too
    (``ATen/native/Normalization.cpp``); those with gaps, and of a gradient and an input that are taken for different
    formats, have the suggested one.
    """
    given = (x,) if grad is None else (x, grad)
    if x.device.type == "cpu" and all(_suggested(t) == _suggested(x) and _has_no_gaps(t) for t in given):
        if layout.is_contiguous(x.shape, x.strides):
            return torch.contiguous_format
        return torch.channels_last if x.ndim == 4 else torch.channels_last_3d
    return _suggested(x)


@meta_rule("aten.native_batch_norm.default")
def native_batch_norm(
    x: TensorSpec, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    return _batch_norm(x, (weight, bias, mean, var), training)


@meta_rule("aten._native_batch_norm_legit.default")
def native_batch_norm_legit(
    x: TensorSpec, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    return _batch_norm(x, (weight, bias, mean, var), training)


@meta_rule("aten._native_batch_norm_legit.no_stats")
def native_batch_norm_no_stats(
    x: TensorSpec, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    return _batch_norm(x, (weight, bias, None, None), training)


@meta_rule("aten._native_batch_norm_legit_no_training.default")
def native_batch_norm_no_training(
    x: TensorSpec, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    return _batch_norm(x, (weight, bias, mean, var), False)


@meta_rule("aten._native_batch_norm_legit_functional.default")
def native_batch_norm_functional(
    x: TensorSpec, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[TensorSpec, ...]:
    return *_batch_norm(x, (weight, bias, mean, var), training), mean, var


@meta_rule("aten.native_batch_norm_backward.default")
def native_batch_norm_backward(
    grad: TensorSpec,
    x: TensorSpec,
    weight: TensorSpec | None,
    running_mean: TensorSpec | None,
    running_var: TensorSpec | None,
    save_mean: TensorSpec | None,
    save_invstd: TensorSpec | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[TensorSpec | None, TensorSpec | None, TensorSpec | None]:
    parameter = TensorSpec((x.shape[1],), _batch_stat(x, weight, running_mean), x.device)
    if weight is not None:
        parameter = TensorSpec(weight.shape, weight.dtype, x.device)
    by_running = x.device.type == "cuda" and not train  # its kernel's result is contiguous, however the input lies
    memory_format = torch.contiguous_format if by_running else _batch_norm_format(x, grad)
    grad_input = with_format(x, memory_format, x.dtype, x.device)
    return (
        grad_input if output_mask[0] else None,
        parameter if output_mask[1] else None,
        parameter if output_mask[2] else None,
    )


@meta_rule("aten.cudnn_batch_norm.default")
def cudnn_batch_norm(
    x: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None,
    running_mean: TensorSpec | None,
    running_var: TensorSpec | None,
    training: bool,
    exponential_average_factor: float,
    epsilon: float,
) -> tuple[TensorSpec, TensorSpec, TensorSpec, TensorSpec]:
    out = with_format(x, _suggested(x), x.dtype, x.device)
    stat = TensorSpec(weight.shape if training else (0,), weight.dtype, x.device)
    # The size of cuDNN's reserve space depends on its version and the device; nothing may rely on it.
    return out, stat, stat, TensorSpec((0,), torch.uint8, x.device)


@meta_rule("aten.cudnn_batch_norm_backward.default")
def cudnn_batch_norm_backward(
    x: TensorSpec, grad: TensorSpec, weight: TensorSpec, *args: Any
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    parameter = TensorSpec(weight.shape, weight.dtype, x.device)
    return with_format(x, _suggested(x), x.dtype, x.device), parameter, parameter


@meta_rule("aten.batch_norm_update_stats.default")
def batch_norm_update_stats(
    x: TensorSpec, mean: TensorSpec | None, var: TensorSpec | None, momentum: float
) -> tuple[TensorSpec, TensorSpec]:
    stat = TensorSpec((x.shape[1],), _batch_stat(x, None, mean), x.device)
    return stat, stat


@meta_rule("aten._weight_norm_interface.default")
def weight_norm(v: TensorSpec, g: TensorSpec, dim: int = 0) -> tuple[TensorSpec, TensorSpec]:
    dtype = torch.float32 if g.dtype is torch.bfloat16 else g.dtype
    return with_format(v, None, v.dtype, v.device), with_format(g, None, dtype, g.device)


@meta_rule("aten.renorm.default")
def renorm(x: TensorSpec, p: Any, dim: int, maxnorm: Any) -> TensorSpec:
    if not (p > 0 and maxnorm >= 0):  # nor not a number
        raise RuntimeError(f"renorm: a norm of order {p}, which is to be positive, and at most {maxnorm}")
    return TensorSpec(x.shape, x.dtype, x.device)
