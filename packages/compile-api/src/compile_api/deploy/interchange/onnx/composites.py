"""Rows of the calls that stay whole: what ONNX has an operator for and the primitives have none."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from compile_api.deploy.interchange.calls import Calls, each, is_lstm, of_floats, sorts
from compile_api.deploy.interchange.onnx.builder import Builder, T
from compile_api.deploy.interchange.onnx.elementwise import is_nan
from compile_api.deploy.interchange.onnx.structure import whole
from prims.dtypes import compute_dtype

__all__ = ["ROWS", "TAKES"]

composite = Calls()
ROWS, TAKES = composite.rows, composite.takes

F32, I32, I64, BOOL = torch.float32, torch.int32, torch.int64, torch.bool

# ---- convolutions ----------------------------------------------------------------------------------------------------


@composite("aten.convolution.default", takes=of_floats)
def convolution(
    b: Builder, x: T, weight: T, bias: T | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> T:  # fmt: skip
    """[n, c, ...]; without a batch dimension the one is added and taken away."""
    wide = [b.cast(whole(b, t, at), compute_dtype(t.dtype)) for at, t in enumerate((x, weight, bias)) if t is not None]
    weights = b.operand_spec(1)
    count = weights.ndim - 2
    single = b.operand_spec(0).ndim == count + 1
    if single:
        wide[0] = b.op("Unsqueeze", wide[0], b.ints([0]))
    ends = each(padding, count)
    geometry: dict[str, Any] = {
        "strides": each(stride, count), "pads": [*ends, *ends], "dilations": each(dilation, count),
        "group": groups, "kernel_shape": [int(n) for n in weights.shape[2:]],
    }  # fmt: skip
    if transposed:
        geometry["output_padding"] = each(output_padding, count)
    out = b.op("ConvTranspose" if transposed else "Conv", *wide, **geometry)
    if single:
        out = b.op("Squeeze", out, b.ints([0]))
    return b.cast(out, x.dtype)


# ---- pooling ---------------------------------------------------------------------------------------------------------


def _pools(node: torch.fx.Node) -> bool:
    """Are only the values read, of floats with a batch dimension, and no window beyond the padding begun?"""
    kernel, ceil_mode = node.args[1], len(node.args) > 5 and node.args[5]
    spec = node.args[0].meta["spec"]  # type: ignore[union-attr]
    values = all(user.target is operator.getitem and user.args[1] == 0 for user in node.users)
    return values and not ceil_mode and spec.dtype.is_floating_point and spec.ndim == len(kernel) + 2  # type: ignore[arg-type]


@composite("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default", takes=_pools)
def max_pool(
    b: Builder, x: T, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,), ceil_mode: bool = False,
) -> tuple[T, T]:  # fmt: skip
    """NaN where a window has one: the operator does not say so, and ONNX Runtime loses it."""
    count = b.operand_spec(0).ndim - 2
    wide = b.cast(whole(b, x), compute_dtype(x.dtype))
    ends = each(padding, count)
    geometry: dict[str, Any] = {
        "kernel_shape": each(kernel, count), "strides": each(stride or kernel, count), "pads": [*ends, *ends],
        "dilations": each(dilation, count),
    }  # fmt: skip
    out = b.op("MaxPool", wide, **geometry)
    nan = b.op("MaxPool", b.cast(is_nan(b, wide), F32), **geometry)
    above = b.op("Greater", nan, b.const(0.0, F32), dtype=BOOL)
    values = b.op("Where", above, b.const(float("nan"), wide.dtype), out, dtype=wide.dtype)
    return b.cast(values, x.dtype), T("", I64)


# ---- order -----------------------------------------------------------------------------------------------------------


def _sorted(b: Builder, x: T, dim: int, descending: bool, count: T | None) -> tuple[T, T]:
    """The ``count`` first elements (or all) and their places. Equal ones stay in order, a NaN is the greatest."""
    spec = b.operand_spec(0)
    dim %= spec.ndim
    full = b.shape([spec.shape[dim]])
    wide = x
    if x.dtype.is_floating_point:
        wide = b.cast(x, compute_dtype(x.dtype))
    elif x.dtype != I64:
        wide = b.cast(x, I32)

    def by(values: T, count: T) -> T:
        way = {"axis": dim, "largest": int(descending), "sorted": 1}
        return b.several("TopK", values, count, dtypes=(values.dtype, I64), **way)[1]

    if x.dtype.is_floating_point:  # by value, then by being NaN, which keeps the order among equals
        nan = is_nan(b, wide)
        numbers = b.op("Where", nan, b.const(0.0, wide.dtype), wide, dtype=wide.dtype)
        places = by(numbers, full)
        marks = b.op("GatherElements", b.cast(nan, I32), places, axis=dim)
        second = by(marks, count or full)
        places = b.op("GatherElements", places, second, axis=dim)
    else:
        places = by(wide, count or full)
    return b.op("GatherElements", x, places, axis=dim), places


@composite("aten.sort.default", takes=sorts)
def sort(b: Builder, x: T, dim: int = -1, descending: bool = False) -> tuple[T, T]:
    return _sorted(b, whole(b, x), dim, descending, None)


@composite("aten.sort.stable", takes=sorts)
def stable_sort(
    b: Builder, x: T, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[T, T]:
    return _sorted(b, whole(b, x), dim, descending, None)


@composite("aten.topk.default", takes=sorts)
def topk(b: Builder, x: T, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[T, T]:
    return _sorted(b, whole(b, x), dim, largest, b.shape([k]))


# ---- recurrent layers ------------------------------------------------------------------------------------------------


@composite("aten.mkldnn_rnn_layer.default", takes=is_lstm)
def lstm(b: Builder, x: T, w: T, r: T, bw: T, br: T, h: T, c: T, reverse: bool, *rest: Any) -> tuple[T, ...]:
    """One direction of one layer over [t, b, i]. PyTorch orders the gates i, f, g, o; ONNX i, o, f, c."""
    hidden = rest[2]
    given = [whole(b, t, at) for at, t in enumerate((x, w, r, bw, br, h, c))]
    dtype = x.dtype
    wide = [b.cast(t, compute_dtype(t.dtype)) for t in given]

    def gates(t: T) -> T:
        order = torch.cat([torch.arange(k * hidden, (k + 1) * hidden) for k in (0, 3, 1, 2)])
        return b.op("Gather", t, b.tensor(order, ("gates", hidden)), axis=0)

    def direction(t: T) -> T:
        return b.op("Unsqueeze", t, b.ints([0]))

    biases = direction(b.op("Concat", gates(wide[3]), gates(wide[4]), axis=0))
    states = [b.reshaped(t, (1, b.operand_spec(0).shape[1], hidden)) for t in wide[5:7]]
    y, hn, cn = b.several(
        "LSTM", wide[0], direction(gates(wide[1])), direction(gates(wide[2])), biases, None, *states,
        dtypes=(None, None, None), hidden_size=hidden, direction="reverse" if reverse else "forward",
    )  # fmt: skip
    out = b.cast(b.op("Squeeze", y, b.ints([1])), dtype)
    last = (b.reshaped(b.cast(t, dtype), s.shape) for t, s in zip((hn, cn), b.specs[1:3], strict=True))
    return out, *last, T("", dtype)
