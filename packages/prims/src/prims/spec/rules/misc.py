"""Overloads that belong to no larger family: fused layers, histograms, random tensors with tensor parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prims.errors import DataDependentError, Unsupported
from prims.spec import layout
from prims.spec.infer import meta_rule
from prims.spec.iterator import broadcast_shapes, iterate
from prims.spec.rules.convolution import suggests_channels_last
from prims.spec.rules.creation import fresh, with_format
from prims.spec.rules.norms import native_batch_norm, native_batch_norm_backward
from prims.spec.tensorspec import TensorSpec

Size = Any  # int | Sym


@meta_rule("aten._batch_norm_with_update.default")
def batch_norm_with_update(
    x: TensorSpec, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[TensorSpec, ...]:
    reserve = TensorSpec((0,), torch.uint8, x.device)
    return *native_batch_norm(x, weight, bias, mean, var, True, momentum, eps), reserve


@meta_rule("aten._batch_norm_no_update.default")
def batch_norm_no_update(
    x: TensorSpec, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[TensorSpec, ...]:
    reserve = TensorSpec((0,), torch.uint8, x.device)
    return *native_batch_norm(x, weight, bias, mean, var, False, momentum, eps), reserve


@meta_rule("aten._native_multi_head_attention.default")
def native_multi_head_attention(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    embed_dim: Size,
    num_head: Size,
    qkv_weight: TensorSpec,
    qkv_bias: TensorSpec,
    proj_weight: TensorSpec,
    proj_bias: TensorSpec,
    mask: TensorSpec | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[TensorSpec, TensorSpec | None]:
    b, t, _ = query.shape
    weights = None
    if need_weights:
        shape = (b, t, key.shape[1]) if average_attn_weights else (b, num_head, t, key.shape[1])
        weights = TensorSpec(shape, query.dtype, query.device)
    return TensorSpec(query.shape, query.dtype, query.device), weights


@meta_rule("aten._transformer_encoder_layer_fwd.default")
def transformer_encoder_layer(src: TensorSpec, *args: Any, **kwargs: Any) -> TensorSpec:
    return TensorSpec(src.shape, src.dtype, src.device)


@meta_rule("aten.rrelu_with_noise.default")
def rrelu_with_noise(x: TensorSpec, noise: TensorSpec, *args: Any, **kwargs: Any) -> TensorSpec:
    return TensorSpec(x.shape, x.dtype, x.device)


@meta_rule("aten.affine_grid_generator.default")
def affine_grid_generator(theta: TensorSpec, size: Sequence[Size], align_corners: bool) -> TensorSpec:
    """A rule of its own: C++ makes tensors of Python's numbers for sizes of one."""
    if len(size) not in (4, 5) or theta.ndim != 3:
        raise Unsupported(f"affine_grid of {theta} for a size of {len(size)} dimensions")
    return TensorSpec((size[0], *size[2:], len(size) - 2), theta.dtype, theta.device)


@meta_rule("aten.max_unpool2d.default")
def max_unpool2d(x: TensorSpec, indices: TensorSpec, output_size: Sequence[Size]) -> TensorSpec:
    if x.shape != indices.shape:
        raise RuntimeError(f"max_unpool2d: indices of shape {list(indices.shape)} for an input of {list(x.shape)}")
    shape = (*x.shape[:-2], *output_size)
    last = x.device.type != "cuda" and suggests_channels_last(x)
    return TensorSpec(shape, x.dtype, x.device, layout.channels_last_strides(shape) if last else None)


@meta_rule("aten.max_unpool3d.default")
def max_unpool3d(x: TensorSpec, indices: TensorSpec, output_size: Sequence[Size], *args: Any) -> TensorSpec:
    return TensorSpec((*x.shape[:-3], *output_size), x.dtype, x.device)


@meta_rule("aten.normal.Tensor_Tensor")
def normal(mean: TensorSpec, std: TensorSpec, *, generator: Any = None) -> TensorSpec:
    return TensorSpec(broadcast_shapes((mean.shape, std.shape)), mean.dtype, mean.device)


@meta_rule("aten.normal.Tensor_float")
def normal_mean(mean: TensorSpec, std: float = 1.0, *, generator: Any = None) -> TensorSpec:
    return TensorSpec(mean.shape, mean.dtype, mean.device)


@meta_rule("aten.normal.float_Tensor")
def normal_std(mean: float, std: TensorSpec, *, generator: Any = None) -> TensorSpec:
    return TensorSpec(std.shape, std.dtype, std.device)


@meta_rule("aten._standard_gamma_grad.default")
def standard_gamma_grad(x: TensorSpec, output: TensorSpec) -> TensorSpec:
    return iterate((x, output), x.dtype)


@meta_rule("aten._dirichlet_grad.default")
def dirichlet_grad(x: TensorSpec, alpha: TensorSpec, total: TensorSpec) -> TensorSpec:
    return TensorSpec(x.shape, x.dtype, x.device)


@meta_rule("aten.poisson.default", "aten._standard_gamma.default", "aten._sample_dirichlet.default")
def poisson(x: TensorSpec, generator: Any = None) -> TensorSpec:
    return TensorSpec(x.shape, x.dtype, x.device)  # row-major, whatever its operand


@meta_rule("aten.binomial.default")
def binomial(count: TensorSpec, prob: TensorSpec, generator: Any = None) -> TensorSpec:
    return TensorSpec(count.shape, count.dtype, count.device)


@meta_rule("aten.histogram.bin_ct")
def histogram(x: TensorSpec, bins: int = 100, **kwargs: Any) -> tuple[TensorSpec, TensorSpec]:
    return TensorSpec((bins,), x.dtype, x.device), TensorSpec((bins + 1,), x.dtype, x.device)


@meta_rule("aten.histogram.bins_tensor")
def histogram_bins(x: TensorSpec, bins: TensorSpec, **kwargs: Any) -> tuple[TensorSpec, TensorSpec]:
    return TensorSpec((bins.shape[0] - 1,), x.dtype, x.device), TensorSpec(bins.shape, x.dtype, x.device)


@meta_rule("aten._histogramdd_bin_edges.default")
def histogramdd_bin_edges(x: TensorSpec, bins: Sequence[int], **kwargs: Any) -> list[TensorSpec]:
    return [TensorSpec((n + 1,), x.dtype, x.device) for n in bins]


@meta_rule("aten._histogramdd_from_bin_tensors.default")
def histogramdd_from_bins(x: TensorSpec, bins: Sequence[TensorSpec], **kwargs: Any) -> TensorSpec:
    return TensorSpec([b.shape[0] - 1 for b in bins], x.dtype, x.device)


@meta_rule("aten._histogramdd_from_bin_cts.default")
def histogramdd_from_counts(x: TensorSpec, bins: Sequence[int], **kwargs: Any) -> TensorSpec:
    return TensorSpec(bins, x.dtype, x.device)


@meta_rule("aten.nonzero_static.default")
def nonzero_static(x: TensorSpec, *, size: Size, fill_value: int = -1) -> TensorSpec:
    return TensorSpec((size, x.ndim), torch.int64, x.device, None if x.device.type == "cpu" else (1, size))


@meta_rule("aten._ctc_loss.Tensor")
def ctc_loss_tensor(*args: Any, **kwargs: Any) -> Any:
    raise DataDependentError("the size of a saved tensor of ctc_loss depends on the lengths' values")


@meta_rule("aten.segment_reduce.default")
def segment_reduce(
    data: TensorSpec,
    reduce: str,
    *,
    lengths: TensorSpec | None = None,
    indices: TensorSpec | None = None,
    offsets: TensorSpec | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> TensorSpec:
    if lengths is not None:
        shape = (*lengths.shape, *data.shape[axis + 1 :])
    else:
        assert offsets is not None
        shape = (*offsets.shape[:-1], offsets.shape[-1] - 1, *data.shape[axis + 1 :])
    return TensorSpec(shape, data.dtype, data.device)


@meta_rule("aten.batch_norm_backward.default")
def batch_norm_backward(
    grad: TensorSpec,
    x: TensorSpec,
    weight: TensorSpec,
    mean: Any,
    var: Any,
    save_mean: Any,
    save_var: Any,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: TensorSpec,
) -> tuple[TensorSpec | None, ...]:
    return native_batch_norm_backward(grad, x, weight, mean, var, save_mean, save_var, update, eps, output_mask)


@meta_rule("aten._efficientzerotensor.default")
def efficient_zero_tensor(
    size: Sequence[Size], *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> TensorSpec:
    return fresh(size, dtype, device)


@meta_rule("aten._embedding_bag_per_sample_weights_backward.default")
def embedding_bag_weights_backward(grad: TensorSpec, weight: TensorSpec, indices: TensorSpec, *args: Any) -> TensorSpec:
    return TensorSpec((indices.shape[0],), grad.dtype, grad.device)


@meta_rule("aten._embedding_bag_dense_backward.default")
def embedding_bag_dense_backward(
    grad: TensorSpec, indices: TensorSpec, offset2bag: TensorSpec, bag_size: Any, maxima: Any, rows: Size, *args: Any
) -> TensorSpec:
    return TensorSpec((rows, grad.shape[1]), grad.dtype, grad.device)


@meta_rule("aten._embedding_bag_backward.default")
def embedding_bag_backward(
    grad: TensorSpec,
    indices: TensorSpec,
    offsets: Any,
    offset2bag: Any,
    bag_size: Any,
    maxima: Any,
    rows: Size,
    scale_by_frequency: bool,
    mode: int,
    sparse: bool,
    *args: Any,
) -> TensorSpec:
    if sparse:
        raise Unsupported("a sparse gradient")
    return TensorSpec((rows, grad.shape[1]), grad.dtype, grad.device)


@meta_rule("aten._segment_reduce_backward.default")
def segment_reduce_backward(
    grad: TensorSpec, output: TensorSpec, data: TensorSpec, reduce: str, **kwargs: Any
) -> TensorSpec:
    return TensorSpec(data.shape, grad.dtype, data.device)


@meta_rule("aten._weight_norm_interface_backward.default")
def weight_norm_backward(
    grad: TensorSpec, v: TensorSpec, g: TensorSpec, norms: TensorSpec, dim: int
) -> tuple[TensorSpec, TensorSpec]:
    return with_format(v, None, v.dtype, v.device), with_format(g, None, g.dtype, g.device)


@meta_rule("aten._fused_dropout.default")
def fused_dropout(x: TensorSpec, p: float, generator: Any = None) -> tuple[TensorSpec, TensorSpec]:
    out = with_format(x, None, x.dtype, x.device)
    return out, TensorSpec(out.shape, torch.uint8, x.device, out.strides)


@meta_rule("aten._int_mm.default")
def int_mm(a: TensorSpec, b: TensorSpec) -> TensorSpec:
    return TensorSpec((a.shape[0], b.shape[1]), torch.int32, a.device)


@meta_rule("aten._weight_int8pack_mm.default")
def weight_int8pack_mm(x: TensorSpec, weight: TensorSpec, scales: TensorSpec) -> TensorSpec:
    return TensorSpec((x.shape[0], weight.shape[0]), x.dtype, x.device)


@meta_rule("aten._scaled_mm.default")
def scaled_mm(
    a: TensorSpec,
    b: TensorSpec,
    scale_a: TensorSpec,
    scale_b: TensorSpec,
    bias: Any = None,
    scale_result: Any = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> TensorSpec:
    return TensorSpec((a.shape[0], b.shape[1]), out_dtype or a.dtype, a.device)


@meta_rule("aten.fake_quantize_per_tensor_affine_cachemask.default")
@meta_rule("aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default")
@meta_rule("aten.fake_quantize_per_channel_affine_cachemask.default")
def fake_quantize(x: TensorSpec, *args: Any, **kwargs: Any) -> tuple[TensorSpec, TensorSpec]:
    _check_quantized(x, *args)
    return with_format(x, None, x.dtype, x.device), with_format(x, None, torch.bool, x.device)


@meta_rule("aten._fake_quantize_learnable_per_tensor_affine.default")
@meta_rule("aten._fake_quantize_learnable_per_channel_affine.default")
def fake_quantize_learnable(x: TensorSpec, *args: Any, **kwargs: Any) -> TensorSpec:
    return with_format(x, None, x.dtype, x.device)


@meta_rule("aten._fake_quantize_learnable_per_tensor_affine_backward.default")
@meta_rule("aten._fake_quantize_learnable_per_channel_affine_backward.default")
def fake_quantize_learnable_backward(
    grad: TensorSpec, x: TensorSpec, scale: TensorSpec, zero_point: TensorSpec, *args: Any, **kwargs: Any
) -> tuple[TensorSpec, ...]:
    dense = (TensorSpec(one.shape, one.dtype, one.device) for one in (scale, zero_point))
    return with_format(x, None, x.dtype, x.device), *dense


@meta_rule("aten._fused_moving_avg_obs_fq_helper_functional.default")
def observed_fake_quantize(
    x: TensorSpec, observer_on: TensorSpec, fake_quant_on: TensorSpec, least: TensorSpec, most: TensorSpec,
    scale: TensorSpec, zero_point: TensorSpec, averaging_const: float, quant_min: int, quant_max: int, ch_axis: int,
    per_row_fake_quant: bool = False, symmetric_quant: bool = False,
) -> tuple[TensorSpec, ...]:  # fmt: skip
    wanted = (x.shape[ch_axis],) if per_row_fake_quant else least.shape
    if (0,) in (least.shape, most.shape) or not least.shape == most.shape == wanted:
        raise Unsupported("the first call of an observer, which gives its extremes another size")
    out, mask = with_format(x, None, x.dtype, x.device), with_format(x, None, torch.bool, x.device)
    return out, mask, least, most, scale, zero_point


@meta_rule("aten._fused_moving_avg_obs_fq_helper.default")
def observed_fake_quantize_in_place(x: TensorSpec, *args: Any, **kwargs: Any) -> tuple[TensorSpec, ...]:
    return observed_fake_quantize(x, *args, **kwargs)[:2]


def _check_quantized(x: TensorSpec, *args: Any) -> None:
    """Leave to eager what it refuses, for its own error."""
    if not x.dtype.is_floating_point:
        raise Unsupported(f"fake quantisation of {x.dtype}")
    if len(args) == 4 and not args[2] <= args[1] <= args[3]:
        raise Unsupported("fake quantisation by a zero point that is not between the levels")
    if len(args) == 5 and isinstance(args[2], int):
        scale, zero_point, axis, least, most = args
        if not -x.ndim <= axis < x.ndim or scale.ndim != 1 or scale.shape != zero_point.shape or least > most:
            raise Unsupported("fake quantisation by other scales and zero points than the tensor has channels")
