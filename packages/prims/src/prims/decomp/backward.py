"""Gradients of shape ops and of normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prims.decomp.common import (
    Size,
    Value,
    along,
    in_one_shape,
    iota_along,
    norm_dim,
    number,
    opmath,
    prod,
    spread,
    to_dtype,
    unsupported,
    widened,
)
from prims.decomp.lines import windows_added
from prims.decomp.normalisation import batch_dims, trailing
from prims.decomp.reductions import mean_of
from prims.decomp.registry import decomposition
from prims.decomp.views import (
    diagonal_scatter,
    permuted,
    slice_bounds,
    slice_scatter,
    unsqueeze,
)

# ---- shape ops ------------------------------------------------------------------------------------------


def _zeros(p: Any, grad: Value, sizes: Sequence[Size]) -> Value:
    return p.full(tuple(sizes), number(0, grad.dtype), grad.dtype, grad.device)


@decomposition("aten.slice_backward.default")
def slice_backward(
    p: Any, grad_output: Value, input_sizes: Sequence[Size], dim: int, start: Size, end: Size, step: int
) -> Value:
    """grad at the slice's elements, 0 elsewhere."""
    dim = norm_dim(dim, len(input_sizes))
    if step != 1:
        return slice_scatter(p, _zeros(p, grad_output, input_sizes), grad_output, dim, start, end, step)
    size = input_sizes[dim]
    low, high = slice_bounds(size, start, end)
    pads_low: list[Size] = [0] * len(input_sizes)
    pads_high: list[Size] = [0] * len(input_sizes)
    pads_low[dim], pads_high[dim] = low, size - high
    return p.pad(grad_output, number(0, grad_output.dtype), tuple(pads_low), tuple(pads_high))


@decomposition("aten.select_backward.default")
def select_backward(p: Any, grad_output: Value, input_sizes: Sequence[Size], dim: int, index: Size) -> Value:
    """grad at the chosen index, 0 elsewhere."""
    dim = norm_dim(dim, len(input_sizes))
    size = input_sizes[dim]
    at = index + size if index < 0 else index
    return slice_backward(p, unsqueeze(p, grad_output, dim), input_sizes, dim, at, at + 1, 1)


@decomposition("aten.diagonal_backward.default")
def diagonal_backward(
    p: Any, grad_output: Value, input_sizes: Sequence[Size], offset: int, dim1: int, dim2: int
) -> Value:
    """grad on the diagonal, 0 elsewhere."""
    return diagonal_scatter(p, _zeros(p, grad_output, input_sizes), grad_output, offset, dim1, dim2)


@decomposition("aten.unfold_backward.default")
def unfold_backward(p: Any, grad_in: Value, input_sizes: Sequence[Size], dim: int, size: int, step: int) -> Value:
    """Each element's gradient, summed over the windows that it is in."""
    if not input_sizes:
        return p.reshape(grad_in, ())
    dim = norm_dim(dim, len(input_sizes))
    compute = opmath(grad_in.dtype)
    grad = to_dtype(p, grad_in, compute)
    last = grad.ndim - 1
    beside = permuted(p, grad, (*range(dim + 1), last, *range(dim + 1, last)))
    added = windows_added(p, beside, dim, input_sizes[dim], step)
    if added is not None:
        return to_dtype(p, added, grad_in.dtype)
    count = grad_in.shape[dim]
    shape = (count, size)
    first = p.broadcast(p.iota(count, 0, step, torch.int64, grad_in.device), shape, (0,))
    at = p.add(first, iota_along(p, shape, 1, grad_in.device))
    rest = tuple(d for d in range(len(input_sizes)) if d != dim)
    values = permuted(p, grad, (dim, last, *rest))
    zeros = p.full(tuple(input_sizes), number(0, compute), compute, grad_in.device)
    return to_dtype(p, p.index_put(zeros, (at,), (dim,), values, True), grad_in.dtype)


@decomposition("aten.native_dropout_backward.default")
@in_one_shape
def native_dropout_backward(p: Any, grad_output: Value, mask: Value, scale: float) -> Value:
    """grad * mask * scale, so that a gradient that is infinite or NaN is NaN where its element was dropped."""
    dtype = grad_output.dtype
    if not dtype.is_floating_point:
        raise unsupported(f"dropout of {dtype}")
    compute = opmath(dtype)
    kept = p.mul(to_dtype(p, grad_output, compute), to_dtype(p, mask, compute))
    return to_dtype(p, p.mul(kept, float(scale)), dtype)


# ---- normalisation --------------------------------------------------------------------------------------


def _input_gradient(
    p: Any, grad: Value, normal: Value, rstd: Value, dims: Sequence[int], shape: Sequence[Size]
) -> Value:
    """rstd * (g - mean(g) - x_hat * mean(g * x_hat)), means over the normalised dimensions."""
    mean_grad = spread(p, mean_of(p, grad, dims), shape, dims)
    mean_both = spread(p, mean_of(p, p.mul(grad, normal), dims), shape, dims)
    inner = p.sub(p.sub(grad, mean_grad), p.mul(normal, mean_both))
    return p.mul(inner, rstd)


@decomposition("aten.native_layer_norm_backward.default")
def native_layer_norm_backward(
    p: Any,
    grad_out: Value,
    input: Value,
    normalized_shape: Sequence[Size],
    mean: Value,
    rstd: Value,
    weight: Value | None,
    bias: Value | None,
    output_mask: Sequence[bool],
) -> tuple[Value | None, Value | None, Value | None]:
    """Gradients by input, weight and bias (None where the mask says so)."""
    compute = opmath(input.dtype)
    shape = tuple(input.shape)
    first = input.ndim - len(normalized_shape)
    inner, outer = tuple(range(first, input.ndim)), tuple(range(first))
    g, x = to_dtype(p, grad_out, compute), to_dtype(p, input, compute)
    m, r = (p.broadcast(to_dtype(p, v, compute), shape, tuple(range(input.ndim))) for v in (mean, rstd))
    normal = p.mul(p.sub(x, m), r)
    by_input = by_weight = by_bias = None
    if output_mask[0]:
        w = trailing(p, weight, shape, compute)
        scaled = g if w is None else p.mul(g, w)
        by_input = to_dtype(p, _input_gradient(p, scaled, normal, r, inner, shape), input.dtype)
    if output_mask[1] and weight is not None:
        both = p.mul(g, normal)
        by_weight = to_dtype(p, p.sum(both, outer) if outer else both, weight.dtype)
    if output_mask[2] and bias is not None:
        by_bias = to_dtype(p, p.sum(g, outer) if outer else g, bias.dtype)
    return by_input, by_weight, by_bias


@decomposition("aten._fused_rms_norm_backward.default")
def fused_rms_norm_backward(
    p: Any,
    grad_out: Value,
    input: Value,
    normalized_shape: Sequence[Size],
    rstd: Value,
    weight: Value | None,
    output_mask: Sequence[bool],
) -> tuple[Value | None, Value | None]:
    """Gradients by input and weight."""
    compute = opmath(input.dtype)
    shape = tuple(input.shape)
    first = input.ndim - len(normalized_shape)
    inner, outer = tuple(range(first, input.ndim)), tuple(range(first))
    g, x = to_dtype(p, grad_out, compute), to_dtype(p, input, compute)
    r = p.broadcast(to_dtype(p, rstd, compute), shape, tuple(range(input.ndim)))
    normal = p.mul(x, r)
    by_input = by_weight = None
    if output_mask[0]:
        w = trailing(p, weight, shape, compute)
        scaled = g if w is None else p.mul(g, w)
        both = spread(p, mean_of(p, p.mul(scaled, normal), inner), shape, inner)
        by_input = to_dtype(p, p.mul(p.sub(scaled, p.mul(normal, both)), r), input.dtype)
    if output_mask[1] and weight is not None:
        both = p.mul(g, normal)
        by_weight = to_dtype(p, p.sum(both, outer) if outer else both, weight.dtype)
    return by_input, by_weight


@decomposition("aten.native_group_norm_backward.default")
def native_group_norm_backward(
    p: Any,
    grad_out: Value,
    input: Value,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    N: Size,
    C: Size,
    HxW: Size,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Value | None, Value | None, Value | None]:
    """Gradients by input, weight and bias."""
    compute = opmath(input.dtype)
    flat, grouped = (N, C, HxW), (N, group, C // group, HxW)
    g = p.reshape(to_dtype(p, grad_out, compute), flat)
    x = p.reshape(to_dtype(p, input, compute), grouped)
    m, r = (p.broadcast(to_dtype(p, v, compute), grouped, (0, 1)) for v in (mean, rstd))
    normal = p.mul(p.sub(x, m), r)
    by_input = by_weight = by_bias = None
    if output_mask[0]:
        scaled = g if weight is None else p.mul(g, along(p, to_dtype(p, weight, compute), flat, 1))
        out = _input_gradient(p, p.reshape(scaled, grouped), normal, r, (2, 3), grouped)
        by_input = to_dtype(p, p.reshape(out, tuple(input.shape)), input.dtype)
    parameter = input.dtype if weight is None else weight.dtype
    if output_mask[1]:
        by_weight = to_dtype(p, p.sum(p.mul(g, p.reshape(normal, flat)), (0, 2)), parameter)
    if output_mask[2]:
        by_bias = to_dtype(p, p.sum(g, (0, 2)), parameter)
    return by_input, by_weight, by_bias


@decomposition("aten.native_batch_norm_backward.default")
def native_batch_norm_backward(
    p: Any,
    grad_out: Value,
    input: Value,
    weight: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    save_mean: Value | None,
    save_invstd: Value | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Value | None, Value | None, Value | None]:
    """Gradients by input, weight and bias, from the saved statistics or the running ones."""
    compute = opmath(input.dtype)
    shape = tuple(input.shape)
    dims = batch_dims(input)
    g, x = to_dtype(p, grad_out, compute), to_dtype(p, input, compute)
    if train:
        if save_mean is None or save_invstd is None:
            raise unsupported("batch_norm's backward without saved statistics")
        mean, invstd = to_dtype(p, save_mean, compute), to_dtype(p, save_invstd, compute)
    else:
        if running_mean is None or running_var is None:
            raise unsupported("batch_norm's backward in evaluation without running statistics")
        mean = to_dtype(p, running_mean, compute)
        invstd = p.reciprocal(p.sqrt(p.add(to_dtype(p, running_var, compute), float(eps))))
    centred = p.sub(x, along(p, mean, shape, 1))
    total = to_dtype(p, p.sum(widened(p, g), dims), compute)
    product = p.sum(p.mul(g, centred), dims)
    scale = invstd if weight is None else p.mul(invstd, to_dtype(p, weight, compute))
    by_input = by_weight = by_bias = None
    if output_mask[0]:
        inner = g
        if train:
            n = number(prod([shape[d] for d in dims]), compute)
            share = p.mul(p.div(product, n), p.mul(invstd, invstd))
            inner = p.sub(g, along(p, p.div(total, n), shape, 1))
            inner = p.sub(inner, p.mul(centred, along(p, share, shape, 1)))
        by_input = to_dtype(p, p.mul(inner, along(p, scale, shape, 1)), input.dtype)
    parameter = input.dtype if weight is None else weight.dtype
    if output_mask[1]:
        by_weight = to_dtype(p, p.mul(product, invstd), parameter)
    if output_mask[2]:
        by_bias = to_dtype(p, total, parameter)
    return by_input, by_weight, by_bias


@decomposition("aten.batch_norm_backward.default")
def batch_norm_backward(
    p: Any,
    grad_out: Value,
    input: Value,
    weight: Value,
    running_mean: Value | None,
    running_var: Value | None,
    save_mean: Value | None,
    save_var: Value | None,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: Value,
) -> tuple[Value | None, Value | None, Value | None]:
    """The same with a reserve, which eager's CPU kernels leave empty."""
    return native_batch_norm_backward(
        p, grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )
