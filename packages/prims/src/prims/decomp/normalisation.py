"""Layer, group, batch and RMS normalisation, forward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from prims.decomp.common import (
    REDUCED,
    Size,
    Value,
    along,
    full_like,
    is_float,
    keep,
    number,
    opmath,
    prod,
    spread,
    to_dtype,
    unsupported,
    widened,
)
from prims.decomp.reductions import mean_of, var_about, var_mean_of
from prims.decomp.registry import decomposition


def affine(p: Any, x: Value, weight: Value | None, bias: Value | None) -> Value:
    """x * weight + bias, each optional and already in x's shape and dtype."""
    if weight is not None:
        x = p.mul(x, weight)
    return x if bias is None else p.add(x, bias)


def trailing(p: Any, v: Value | None, shape: Sequence[Size], dtype: torch.dtype) -> Value | None:
    """A parameter over the last dimensions, in a whole shape and dtype."""
    if v is None:
        return None
    n = len(shape)
    return p.broadcast(to_dtype(p, v, dtype), tuple(shape), tuple(range(n - v.ndim, n)))


def statistics_dtype(x: Value, *parameters: Value | None) -> torch.dtype:
    """The dtype of saved statistics: float32 where a reduced-precision input meets float32 parameters
    or runs on a GPU, else the input's."""
    if x.dtype not in REDUCED or x.device.type != "cpu":
        return opmath(x.dtype)
    mixed = any(v is not None and v.dtype != x.dtype for v in parameters)
    return torch.float32 if mixed else x.dtype


@decomposition("aten.native_layer_norm.default")
def native_layer_norm(
    p: Any,
    input: Value,
    normalized_shape: Sequence[Size],
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> tuple[Value, Value, Value]:
    """Normalise over the last dimensions; returns the output, the mean and the reciprocal deviation."""
    if not is_float(input.dtype):
        raise unsupported(f"layer_norm of {input.dtype}")
    compute = opmath(input.dtype)
    x = to_dtype(p, input, compute)
    first = x.ndim - len(normalized_shape)
    dims = tuple(range(first, x.ndim))
    var, mean = var_mean_of(p, x, dims, 0)
    rstd = p.rsqrt(p.add(var, float(eps)))
    centred = p.sub(x, spread(p, mean, x.shape, dims))
    normal = p.mul(centred, spread(p, rstd, x.shape, dims))
    out = affine(p, normal, *(trailing(p, v, x.shape, compute) for v in (weight, bias)))
    count = math.prod(normalized_shape)
    by_four = isinstance(count, int) and count % 4 == 0 and input.dtype != torch.float64
    if bias is None and (x.device.type == "cpu" or not by_four):
        out = p.add(out, 0.0)  # as eager's kernels do, but a GPU's of four elements at a time: they give no -0.0
    saved = statistics_dtype(input, weight, bias)
    stats = (keep(p, to_dtype(p, s, saved), x.shape, dims) for s in (mean, rstd))
    return (to_dtype(p, out, input.dtype), *stats)


@decomposition("aten.layer_norm.default")
def layer_norm(
    p: Any,
    input: Value,
    normalized_shape: Sequence[Size],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Value:
    """Normalise over the last dimensions."""
    return native_layer_norm(p, input, normalized_shape, weight, bias, eps)[0]


@decomposition("aten._fused_rms_norm.default")
def fused_rms_norm(
    p: Any, input: Value, normalized_shape: Sequence[Size], weight: Value | None, eps: float | None
) -> tuple[Value, Value]:
    """x / sqrt(mean(x * x) + eps) over the last dimensions; and the reciprocal root."""
    compute = opmath(input.dtype)
    x = to_dtype(p, input, compute)
    dims = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    # Eager's default is the epsilon of the dtype that it computes in.
    small = torch.finfo(compute).eps if eps is None else float(eps)
    rstd = p.rsqrt(p.add(mean_of(p, p.mul(x, x), dims), small))
    normal = p.mul(x, spread(p, rstd, x.shape, dims))
    out = affine(p, normal, trailing(p, weight, x.shape, compute), None)
    return to_dtype(p, out, input.dtype), keep(p, rstd, x.shape, dims)


@decomposition("aten.native_group_norm.default")
def native_group_norm(
    p: Any,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    N: Size,
    C: Size,
    HxW: Size,
    group: int,
    eps: float,
) -> tuple[Value, Value, Value]:
    """Normalise each group of channels; returns the output, the mean and the reciprocal deviation [N, group]."""
    compute = opmath(input.dtype)
    shape = (N, group, C // group, HxW)
    x = p.reshape(to_dtype(p, input, compute), shape)
    var, mean = var_mean_of(p, x, (2, 3), 0)
    rstd = p.rsqrt(p.add(var, float(eps)))
    normal = p.mul(p.sub(x, spread(p, mean, shape, (2, 3))), spread(p, rstd, shape, (2, 3)))
    by_channel = (N, C, HxW)
    normal = p.reshape(normal, by_channel)
    w, b = (None if v is None else along(p, to_dtype(p, v, compute), by_channel, 1) for v in (weight, bias))
    out = p.reshape(affine(p, normal, w, b), tuple(input.shape))
    if b is None and w is not None and x.device.type == "cpu":
        out = p.add(out, 0.0)  # as eager's kernel there does: it gives no -0.0
    saved = statistics_dtype(input, weight, bias)
    return to_dtype(p, out, input.dtype), to_dtype(p, mean, saved), to_dtype(p, rstd, saved)


# ---- batch normalisation --------------------------------------------------------------------------------


def _channel(p: Any, v: Value, shape: Sequence[Size]) -> Value:
    return along(p, v, shape, 1)


def batch_dims(x: Value) -> tuple[int, ...]:
    """All dimensions but the channels'."""
    return tuple(d for d in range(x.ndim) if d != 1)


def _with_running(
    p: Any, input: Value, weight: Value | None, bias: Value | None, mean: Value, var: Value, eps: float
) -> Value:
    compute = opmath(input.dtype)
    x = to_dtype(p, input, compute)
    mean, var = to_dtype(p, mean, compute), to_dtype(p, var, compute)
    scale = p.reciprocal(p.sqrt(p.add(var, float(eps))))
    if weight is not None:
        scale = p.mul(to_dtype(p, weight, compute), scale)
    return to_dtype(p, _scaled(p, x, scale, mean, bias), input.dtype)


def _scaled(p: Any, x: Value, scale: Value, mean: Value, bias: Value | None) -> Value:
    """``(x - mean) * scale + bias`` with one multiply and one add per element: the rest is per channel, as in eager's
    kernel. Subtracting the mean first is less accurate: the numbers of one binade lie on one grid, so that a number
    that is off the grid, taken from each, leaves all of them with the same rounding error, which no mean over the
    channel averages out."""
    # Without a bias, 0 less the rest: a channel of negative zeros becomes one of zeros.
    shift = p.sub(0.0 if bias is None else to_dtype(p, bias, x.dtype), p.mul(mean, scale))
    return p.add(p.mul(x, _channel(p, scale, x.shape)), _channel(p, shift, x.shape))


def _with_batch(
    p: Any, input: Value, weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value, Value]:
    """Output, mean, reciprocal deviation and biased variance of the batch; statistics in the compute dtype."""
    compute = opmath(input.dtype)
    x = to_dtype(p, input, compute)
    dims = batch_dims(x)
    # As eager adds it up: where the channel's numbers cancel, the mean has no other accuracy.
    mean = to_dtype(p, mean_of(p, widened(p, x), dims), compute)
    var = var_about(p, x, mean, dims, 0)
    rstd = to_dtype(p, p.rsqrt(p.add(widened(p, var), float(eps))), compute)
    if x.device.type == "cpu":
        scale = rstd if weight is None else p.mul(rstd, to_dtype(p, weight, compute))
        if eps > 0.0:
            # A constant channel becomes the bias; contracted, x * scale - mean * scale is no zero.
            scale = p.where(p.eq(var, 0.0), full_like(p, scale, 0.0), scale)
        out = _scaled(p, x, scale, mean, bias)
    else:
        normal = p.mul(p.sub(x, spread(p, mean, x.shape, dims)), spread(p, rstd, x.shape, dims))
        w, b = (None if v is None else _channel(p, to_dtype(p, v, compute), x.shape) for v in (weight, bias))
        out = affine(p, normal, w, b)
        if b is None:
            out = p.add(out, 0.0)  # as eager's kernel there does: it gives no -0.0
    return to_dtype(p, out, input.dtype), mean, rstd, var


def _moved(p: Any, running: Value, new: Value, momentum: float) -> Value:
    compute = opmath(running.dtype)
    old = p.mul(to_dtype(p, running, compute), 1.0 - momentum)
    return to_dtype(p, p.add(old, p.mul(to_dtype(p, new, compute), momentum)), running.dtype)


def _training(
    p: Any,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    momentum: float,
    eps: float,
) -> tuple[Value, Value, Value, Value | None, Value | None]:
    out, mean, rstd, var = _with_batch(p, input, weight, bias, eps)
    saved = statistics_dtype(input, weight)
    if running_mean is not None:
        running_mean = _moved(p, running_mean, mean, momentum)
    if running_var is not None:
        n = prod([input.shape[d] for d in batch_dims(input)])
        factor = n / (n - 1) if isinstance(n, int) else None
        unbiased = (
            p.mul(var, float(factor))
            if factor is not None
            else p.div(p.mul(var, number(n, var.dtype)), number(n - 1, var.dtype))
        )
        running_var = _moved(p, running_var, unbiased, momentum)
    return out, to_dtype(p, mean, saved), to_dtype(p, rstd, saved), running_mean, running_var


def _empty(p: Any, input: Value, dtype: torch.dtype) -> Value:
    return p.full((0,), 0.0, dtype, input.device)


@decomposition("aten._native_batch_norm_legit_no_training.default")
def batch_norm_no_training(
    p: Any,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[Value, Value, Value]:
    """Normalise by the running statistics. The saved ones are empty on the CPU, and the running mean and
    reciprocal deviation elsewhere."""
    out = _with_running(p, input, weight, bias, running_mean, running_var, eps)
    saved = statistics_dtype(input, weight)
    if input.device.type == "cpu":
        return out, _empty(p, input, saved), _empty(p, input, saved)
    rstd = p.rsqrt(p.add(to_dtype(p, running_var, saved), float(eps)))
    return out, to_dtype(p, running_mean, saved), rstd


@decomposition("aten._native_batch_norm_legit_functional.default")
def batch_norm_functional(
    p: Any,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, ...]:
    """Normalise by the batch's statistics; also returns the moved running statistics."""
    if not training:
        out = batch_norm_no_training(p, input, weight, bias, running_mean, running_var, momentum, eps)
        return (*out, running_mean, running_var)
    return _training(p, input, weight, bias, running_mean, running_var, momentum, eps)


@decomposition("aten._native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    p: Any, input: Value, weight: Value | None, bias: Value | None, training: bool, momentum: float, eps: float
) -> tuple[Value, Value, Value]:
    """Normalise by the batch's statistics, without running ones."""
    return _training(p, input, weight, bias, None, None, momentum, eps)[:3]


@decomposition("aten.native_batch_norm.default")
def native_batch_norm(
    p: Any,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, Value, Value]:
    """The same, where it changes no running statistics (training with them must come functionalised)."""
    if not training:
        if running_mean is None or running_var is None:
            raise unsupported("batch_norm in evaluation without running statistics")
        return batch_norm_no_training(p, input, weight, bias, running_mean, running_var, momentum, eps)
    if running_mean is not None or running_var is not None:
        raise unsupported("native_batch_norm that updates its running statistics in place")
    return _training(p, input, weight, bias, None, None, momentum, eps)[:3]


@decomposition("aten._batch_norm_no_update.default")
def batch_norm_no_update(
    p: Any,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    momentum: float,
    eps: float,
) -> tuple[Value, Value, Value, Value]:
    """Normalise by the running statistics; with an empty reserve."""
    out = native_batch_norm(p, input, weight, bias, running_mean, running_var, False, momentum, eps)
    return (*out, p.full((0,), 0, torch.uint8, input.device))


@decomposition("aten._batch_norm_with_update_functional.default")
def batch_norm_with_update_functional(
    p: Any,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[Value, ...]:
    """Normalise by the batch's statistics; with an empty reserve and the moved running statistics."""
    out = _training(p, input, weight, bias, running_mean, running_var, momentum, eps)
    return (*out[:3], p.full((0,), 0, torch.uint8, input.device), *out[3:])
