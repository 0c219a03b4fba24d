"""Convolution, pooling and resampling of images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from prims.spec import layout
from prims.spec.infer import meta_rule
from prims.spec.tensorspec import TensorSpec

Size = Any  # int | Sym


def _listed(values: Sequence[Any] | Any, n: int) -> tuple[Any, ...]:
    if not isinstance(values, (list, tuple)):
        return (values,) * n
    return tuple(values) * n if len(values) == 1 else tuple(values)


def suggests_channels_last(x: TensorSpec) -> bool:
    """Whether ``suggest_memory_format`` of the tensor is channels_last (2-d or 3-d)."""
    return layout.is_channels_last_strides(x.shape, x.strides)


def _formatted(shape: tuple[Size, ...], x: TensorSpec, channels_last: bool, dtype: Any = None) -> TensorSpec:
    strides = layout.channels_last_strides(shape) if channels_last else None
    return TensorSpec(shape, dtype or x.dtype, x.device, strides)


def conv_shape(
    x: TensorSpec,
    weight: TensorSpec,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    extra: Any,
    groups: Any,
) -> tuple[Size, ...]:
    """The shape of a convolution of a batch; ``weight`` is ``[out, in / groups, *kernel]``, or ``[in, out / groups,
    *kernel]`` when transposed.

    Raises:
        RuntimeError: the kernel is larger than what it goes over, or nothing is left of it, also where nothing takes
            the result, as in eager.
    """
    n = weight.ndim - 2
    stride, padding, dilation, extra = (_listed(v, n) for v in (stride, padding, dilation, extra))
    for what, values, least in (("padding", padding, 0), ("stride", stride, 1), ("dilation", dilation, 1)):
        if any(layout.is_surely_less(v, least) for v in values):
            raise RuntimeError(f"a convolution takes no {what} of {list(values)}")
    spatial: list[Size] = []
    for i in range(n):
        size, kernel = x.shape[2 + i], dilation[i] * (weight.shape[2 + i] - 1) + 1
        if transposed:
            spatial.append((size - 1) * stride[i] - 2 * padding[i] + kernel + extra[i])
            if layout.is_surely_less(spatial[-1], 1):
                raise RuntimeError(
                    f"Output size is too small: a transposed convolution of {list(x.shape)} gives {spatial[-1]} in "
                    f"dimension {2 + i}"
                )
            continue
        if layout.is_surely_less(size + 2 * padding[i], kernel):
            raise RuntimeError(
                f"Kernel size can't be greater than actual input size: in dimension {2 + i} of {list(x.shape)}, with a "
                f"padding of {padding[i]} on both sides, a kernel takes {kernel}"
            )
        spatial.append((size + 2 * padding[i] - kernel) // stride[i] + 1)
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    return (x.shape[0], channels, *spatial)


@meta_rule("aten.convolution.default", "aten._convolution.default")
def convolution(
    x: TensorSpec,
    weight: TensorSpec,
    bias: TensorSpec | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: Any,
    *flags: Any,
) -> TensorSpec:
    if x.ndim != weight.ndim:
        raise RuntimeError(
            f"Expected {weight.ndim}D input to a convolution with a weight of shape {list(weight.shape)}, "
            f"but got an input of shape {list(x.shape)}"
        )
    channels = weight.shape[0] if transposed else weight.shape[1] * groups
    if x.shape[1] is not channels and x.shape[1] != channels:
        raise RuntimeError(
            f"Given groups={groups}, weight of size {list(weight.shape)}, expected input{list(x.shape)} to have "
            f"{channels} channels, but got {x.shape[1]} channels instead"
        )
    made = weight.shape[1] * groups if transposed else weight.shape[0]
    if weight.shape[0] % groups != 0 or bias is not None and bias.shape != (made,):
        raise RuntimeError(
            f"Given groups={groups}, weight of size {list(weight.shape)}, expected weight to be divisible by {groups} "
            f"at dimension 0 and bias to have {made} elements, but got {None if bias is None else list(bias.shape)}"
        )
    shape = conv_shape(x, weight, stride, padding, dilation, transposed, output_padding, groups)
    if _has_rows_of_channels(x, weight):
        return TensorSpec(shape, x.dtype, x.device, layout.strides_in_order(shape, (1, 2, 0)))
    return _formatted(shape, x, _channels_last_results(x, weight, stride, transposed, output_padding, groups))


def _has_rows_of_channels(x: TensorSpec, weight: TensorSpec) -> bool:
    """Whether a convolution along one dimension gives its channels side by side, on a CPU.

    It goes over images of one row, made of an input without gaps and of the weight as it lies, and either may be a
    channels-last one then.
    """
    if x.ndim != 3 or x.device.type != "cpu":
        return False
    row_major = x if layout.is_contiguous(x.shape, x.strides) else TensorSpec(x.shape, x.dtype, x.device)
    for t in (row_major, weight):
        shape, strides = ((*v[:2], row, v[2]) for v, row in ((t.shape, 1), (t.strides, t.shape[2] * t.strides[2])))
        if layout.is_channels_last_strides(shape, strides):
            return True
    return False


def _channels_last_results(
    x: TensorSpec, weight: TensorSpec, stride: Any, transposed: bool, output_padding: Any, groups: Any
) -> bool:
    """Whether a convolution's results are channels-last. On GPUs cuDNN's are, of three dimensions on a CPU oneDNN's.

    oneDNN gets convolutions of more than one sample, of many numbers or of large kernels (``use_mkldnn`` of ATen's
    ``Convolution.cpp``; that it does not get 1 x 1 kernels where there is one thread is not known here).
    """
    if not (suggests_channels_last(x) or suggests_channels_last(weight)):
        return False
    cpu, n = x.device.type == "cpu", x.ndim - 2
    steps = zip(_listed(output_padding, n), _listed(stride, n), strict=True)
    if transposed and (n == 3 or not cpu) and any(more >= step for more, step in steps):
        return False  # no library takes such
    if n != 3 or not cpu:
        return True
    halves = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
    if x.dtype != torch.float32 and not (x.dtype in halves and getattr(torch.ops.mkldnn, halves[x.dtype])()):
        return False
    many = layout.known_less(20480, x.shape[0] * x.shape[1] * x.shape[2] * x.shape[3])
    large = all(layout.known_less(3, size) for size in weight.shape[-2:])
    return groups > 1 or large or many or layout.known_less(1, x.shape[0])


@meta_rule("aten.convolution_overrideable.default")
def convolution_overrideable(*args: Any) -> TensorSpec:
    return convolution(*args)


@meta_rule("aten.convolution_backward.default")
def convolution_backward(
    grad: TensorSpec,
    x: TensorSpec,
    weight: TensorSpec,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: Any,
    mask: Any,
) -> tuple[TensorSpec | None, TensorSpec | None, TensorSpec | None]:
    if _has_rows_of_channels(x, weight):
        made = [t.replace(strides=layout.strides_in_order(t.shape, (1, 2, 0)), storage_offset=0) for t in (x, weight)]
    else:
        last = _channels_last_results(x, weight, stride, transposed, output_padding, groups)
        made = [_formatted(x.shape, x, last), _formatted(weight.shape, weight, last and weight.ndim in (4, 5))]
    return (
        made[0] if mask[0] else None,
        made[1] if mask[1] else None,
        TensorSpec((grad.shape[1],), grad.dtype, grad.device) if mask[2] else None,
    )


# ---- pooling -----------------------------------------------------------------------------------------------


def pooled(size: Size, kernel: Size, stride: Size, pad: Size, dilation: Size, ceil_mode: bool) -> Size:
    """The pooled length; in ceil mode the last window must start inside the input or its left padding."""
    room = size + 2 * pad - dilation * (kernel - 1) - 1
    if not ceil_mode:
        return room // stride + 1
    out = (room + stride - 1) // stride + 1
    return out - 1 if (out - 1) * stride >= size + pad else out


def _pool_shape(
    x: TensorSpec, n: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> tuple[Size, ...]:
    kernel, padding, dilation = _listed(kernel, n), _listed(padding, n), _listed(dilation, n)
    stride = _listed(stride, n) if stride else kernel
    for k, s, pad, step in zip(kernel, stride, padding, dilation, strict=True):
        if s <= 0 or pad < 0 or pad > (step * (k - 1) + 1) // 2:
            raise RuntimeError(f"pooling with kernel_size={k}, stride={s}, padding={pad} and dilation={step}")
    spatial = (
        pooled(x.shape[x.ndim - n + i], kernel[i], stride[i], padding[i], dilation[i], ceil_mode) for i in range(n)
    )
    shape = (*x.shape[: x.ndim - n], *spatial)
    if any(layout.is_surely_less(s, 1) for s in shape[x.ndim - n :]):
        raise RuntimeError(
            f"Given input size: {list(x.shape)}. Calculated output size: {list(shape)}. Output size is too small"
        )
    return shape


def check_image(x: TensorSpec, n: int) -> None:
    """Raise RuntimeError where an image of ``n`` dimensions has no channels or no elements; there may be no images."""
    if x.ndim not in (n + 1, n + 2) or any(layout.is_surely_less(size, 1) for size in x.shape[x.ndim - n - 1 :]):
        raise RuntimeError(
            f"Expected {n + 1}D or {n + 2}D (batch mode) tensor with optional 0 dim batch size for input, but got: "
            f"{list(x.shape)}"
        )


def _batched_last(x: TensorSpec, n: int) -> bool:
    return x.ndim == n + 2 and suggests_channels_last(x)


def _max_pool(n: int) -> None:
    @meta_rule(f"aten.max_pool{n}d_with_indices.default")
    def rule(
        x: TensorSpec,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> tuple[TensorSpec, TensorSpec]:
        check_image(x, n)
        shape = _pool_shape(x, n, kernel, stride, padding, dilation, ceil_mode)
        last = _batched_last(x, n)
        return _formatted(shape, x, last), _formatted(shape, x, last, torch.int64)

    @meta_rule(f"aten.max_pool{n}d_with_indices_backward.default")
    def backward(grad: TensorSpec, x: TensorSpec, *args: Any) -> TensorSpec:
        return _formatted(x.shape, x, _batched_last(x, n))


def _avg_pool(n: int) -> None:
    @meta_rule(f"aten.avg_pool{n}d.default")
    def rule(
        x: TensorSpec,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Any = None,
    ) -> TensorSpec:
        if divisor_override == 0:
            raise RuntimeError("divisor must be not zero")
        check_image(x, n)
        shape = _pool_shape(x, n, kernel, stride, padding, 1, ceil_mode)
        return _formatted(shape, x, n == 2 and _batched_last(x, n))

    if n > 1:

        @meta_rule(f"aten.avg_pool{n}d_backward.default")
        def backward(grad: TensorSpec, x: TensorSpec, *args: Any) -> TensorSpec:
            return _formatted(x.shape, x, n == 2 and _batched_last(x, n))


for _n in (2, 3):
    _max_pool(_n)
for _n in (1, 2, 3):
    _avg_pool(_n)


@meta_rule("aten.max_pool1d.default")
def max_pool1d(
    x: TensorSpec, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> TensorSpec:
    check_image(x, 1)
    return TensorSpec(_pool_shape(x, 1, kernel, stride, padding, dilation, ceil_mode), x.dtype, x.device)


def _check_rank(x: TensorSpec, n: int) -> None:
    """Raise RuntimeError where it is no image with channels, nor a batch of such."""
    if x.ndim not in (n + 1, n + 2):
        raise RuntimeError(f"expected a tensor of {n + 1} or {n + 2} dimensions, but got {list(x.shape)}")


def _check_some(x: TensorSpec, n: int) -> None:
    """Raise RuntimeError where one of the last ``n`` dimensions is empty: there is no average of nothing."""
    if any(layout.is_surely_less(size, 1) for size in x.shape[x.ndim - n :]):
        raise RuntimeError(f"adaptive pooling of {list(x.shape)}, which has no elements in its last {n} dimensions")


def _check_channels(x: TensorSpec) -> None:
    """Raise RuntimeError where a dimension but the first, which may be the batch, is empty."""
    if any(layout.is_surely_less(size, 1) for size in x.shape[1:]):
        raise RuntimeError(f"adaptive pooling of {list(x.shape)}, of which only the batch may be empty")


@meta_rule("aten._adaptive_avg_pool2d.default", "aten.adaptive_avg_pool2d.default")
def adaptive_avg_pool2d(x: TensorSpec, output_size: Any) -> TensorSpec:
    _check_rank(x, 2)
    _check_some(x, 2)
    shape = (*x.shape[:-2], *_listed(output_size, 2))
    return _formatted(shape, x, _batched_last(x, 2))


@meta_rule("aten._adaptive_avg_pool3d.default", "aten.adaptive_avg_pool3d.default")
def adaptive_avg_pool3d(x: TensorSpec, output_size: Any) -> TensorSpec:
    _check_rank(x, 3)
    _check_some(x, 3)
    _check_channels(x)
    return TensorSpec((*x.shape[:-3], *_listed(output_size, 3)), x.dtype, x.device)


@meta_rule("aten._adaptive_avg_pool2d_backward.default")
def adaptive_avg_pool2d_backward(grad: TensorSpec, x: TensorSpec) -> TensorSpec:
    _check_channels(grad)
    return _formatted(x.shape, x, x.ndim == 4 and suggests_channels_last(x))


@meta_rule("aten._adaptive_avg_pool3d_backward.default")
def adaptive_avg_pool3d_backward(grad: TensorSpec, x: TensorSpec) -> TensorSpec:
    _check_channels(grad)
    return TensorSpec(x.shape, x.dtype, x.device)


def _adaptive_max(n: int) -> None:
    @meta_rule(f"aten.adaptive_max_pool{n}d.default")
    def rule(x: TensorSpec, output_size: Any) -> tuple[TensorSpec, TensorSpec]:
        shape = (*x.shape[: x.ndim - n], *_listed(output_size, n))
        last = n == 2 and _batched_last(x, n)
        return _formatted(shape, x, last), _formatted(shape, x, last, torch.int64)

    @meta_rule(f"aten.adaptive_max_pool{n}d_backward.default")
    def backward(grad: TensorSpec, x: TensorSpec, indices: TensorSpec) -> TensorSpec:
        _check_channels(grad)
        return _formatted(x.shape, x, n == 2 and _batched_last(x, n))


for _n in (2, 3):
    _adaptive_max(_n)


# ---- resampling --------------------------------------------------------------------------------------------


def _upsample(name: str, n: int) -> None:
    @meta_rule(f"aten.{name}.default")
    def rule(x: TensorSpec, output_size: Any, *args: Any) -> TensorSpec:
        shape = (*x.shape[:2], *output_size)
        check_image(x, n)
        if not all(size > 0 for size in (*x.shape[2:], *output_size)):
            sizes = f"input {list(x.shape[2:])} output {list(output_size)}"
            raise RuntimeError(f"Input and output sizes should be greater than 0, but got {sizes}")
        return _formatted(shape, x, x.ndim == 4 and suggests_channels_last(x) or n == 3 and suggests_channels_last(x))

    @meta_rule(f"aten.{name}_backward.default")
    def backward(grad: TensorSpec, output_size: Any, input_size: Any, *args: Any) -> TensorSpec:
        kept = "bicubic" not in name and not (n == 3 and "nearest" in name)
        last = kept and grad.ndim in (4, 5) and suggests_channels_last(grad)
        return _formatted(tuple(input_size), grad, last)


for _name, _n in (
    ("upsample_nearest1d", 1),
    ("_upsample_nearest_exact1d", 1),
    ("upsample_linear1d", 1),
    ("upsample_nearest2d", 2),
    ("_upsample_nearest_exact2d", 2),
    ("upsample_bilinear2d", 2),
    ("upsample_bicubic2d", 2),
    ("_upsample_bilinear2d_aa", 2),
    ("_upsample_bicubic2d_aa", 2),
    ("upsample_nearest3d", 3),
    ("_upsample_nearest_exact3d", 3),
    ("upsample_trilinear3d", 3),
):
    _upsample(_name, _n)


@meta_rule("aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default", "aten.cudnn_grid_sampler.default")
def grid_sampler(x: TensorSpec, grid: TensorSpec, *args: Any) -> TensorSpec:
    if x.shape[0] != grid.shape[0] or grid.shape[-1] != x.ndim - 2:
        raise RuntimeError(
            f"grid_sampler(): expected grid and input to have same batch size and grid to have size {x.ndim - 2} in "
            f"last dimension, but got input {list(x.shape)} and grid {list(grid.shape)}"
        )
    return TensorSpec((x.shape[0], x.shape[1], *grid.shape[1:-1]), x.dtype, x.device)


def _window_arguments(kernel: Any, dilation: Any, padding: Any, stride: Any) -> None:
    for what, sizes in (("kernel size", kernel), ("dilation", dilation), ("stride", stride)):
        if not all(size > 0 for size in sizes):
            raise RuntimeError(f"{what} should be greater than zero, but got {list(sizes)}")
    if not all(size >= 0 for size in padding):
        raise RuntimeError(f"padding should be non-negative, but got {list(padding)}")


@meta_rule("aten.im2col.default")
def im2col(x: TensorSpec, kernel: Any, dilation: Any, padding: Any, stride: Any) -> TensorSpec:
    count: Size = 1
    channels = x.shape[-3]
    check_image(x, 2)
    _window_arguments(kernel, dilation, padding, stride)
    for i in range(2):
        windows = pooled(x.shape[x.ndim - 2 + i], kernel[i], stride[i], padding[i], dilation[i], False)
        if not windows >= 1:
            raise RuntimeError(f"Given input size {list(x.shape)}, kernel_size={list(kernel)}: no window fits into it")
        count = count * windows
        channels = channels * kernel[i]
    return TensorSpec((*x.shape[:-3], channels, count), x.dtype, x.device)


@meta_rule("aten.col2im.default")
def col2im(x: TensorSpec, output_size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> TensorSpec:
    _window_arguments(kernel, dilation, padding, stride)
    check_image(x, 1)
    channels = x.shape[-2] // (kernel[0] * kernel[1])
    geometry = zip(output_size, kernel, stride, padding, dilation, strict=True)
    windows = math.prod(pooled(*line, False) for line in geometry)
    if x.shape[-1] != windows or x.shape[-2] != channels * kernel[0] * kernel[1]:
        raise RuntimeError(
            f"Given output_size={list(output_size)}, kernel_size={list(kernel)}, expected {windows} blocks and "
            f"channels divisible by the kernel's size, but got input {list(x.shape)}"
        )
    return TensorSpec((*x.shape[:-2], channels, *output_size), x.dtype, x.device)


@meta_rule("aten.pixel_shuffle.default")
def pixel_shuffle(x: TensorSpec, factor: int) -> TensorSpec:
    *batch, c, h, w = x.shape
    if c % (factor * factor) != 0:
        raise RuntimeError(f"pixel_shuffle: {c} channels are not divisible by the square of {factor}")
    return _shuffled(x, (*batch, c // (factor * factor), h * factor, w * factor))


def _shuffled(x: TensorSpec, shape: tuple[Size, ...]) -> TensorSpec:
    return _formatted(shape, x, x.device.type == "cpu" and x.ndim == 4 and suggests_channels_last(x))


@meta_rule("aten.pixel_unshuffle.default")
def pixel_unshuffle(x: TensorSpec, factor: int) -> TensorSpec:
    *batch, c, h, w = x.shape
    if h % factor != 0 or w % factor != 0:
        raise RuntimeError(f"pixel_unshuffle: height {h} and width {w} are not both divisible by {factor}")
    if x.device.type == "cpu" and any(isinstance(size, int) and size == 0 for size in x.shape):
        return _shuffled(x, x.shape)  # as the CPU's kernel does: the gradient of pixel_shuffle is then refused
    return _shuffled(x, (*batch, c * factor * factor, h // factor, w // factor))


@meta_rule("aten.channel_shuffle.default", "aten.native_channel_shuffle.default")
def channel_shuffle(x: TensorSpec, groups: Any) -> TensorSpec:
    if x.shape[1] % groups != 0:
        raise RuntimeError(f"Number of channels must be divisible by groups. Got {x.shape[1]} and {groups}")
    return _formatted(x.shape, x, x.device.type == "cpu" and suggests_channels_last(x))


@meta_rule("aten.grid_sampler_2d_backward.default", "aten.grid_sampler_3d_backward.default")
def grid_sampler_backward(
    grad: TensorSpec, x: TensorSpec, grid: TensorSpec, mode: int, padding: int, align: bool, mask: Sequence[bool]
) -> tuple[TensorSpec | None, TensorSpec]:
    grad_input = TensorSpec(x.shape, x.dtype, x.device) if mask[0] else None
    return grad_input, TensorSpec(grid.shape, grid.dtype, grid.device)


@meta_rule("aten.cudnn_grid_sampler_backward.default")
def cudnn_grid_sampler_backward(x: TensorSpec, grid: TensorSpec, grad: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
    return TensorSpec(x.shape, x.dtype, x.device), TensorSpec(grid.shape, grid.dtype, grid.device)


@meta_rule("aten.fractional_max_pool3d_backward.default")
def fractional_max_pool3d_backward(grad: TensorSpec, x: TensorSpec, *args: Any) -> TensorSpec:
    return TensorSpec(x.shape, x.dtype, x.device)
