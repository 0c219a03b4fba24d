"""Rows of the calls that stay whole: what StableHLO has an operation for and the primitives have none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from compile_api.deploy.interchange.calls import Calls, each, is_lstm, of_floats, sorts
from compile_api.deploy.interchange.stablehlo.builder import Builder, V, type_of
from compile_api.deploy.interchange.stablehlo.reduction import product
from compile_api.deploy.interchange.walk import NotMapped
from prims.dtypes import compute_dtype
from prims.ir.symbols import expr_of

__all__ = ["ROWS", "TAKES"]

composite = Calls()
ROWS, TAKES = composite.rows, composite.takes

I64, BOOL = torch.int64, torch.bool

# ---- convolutions ----------------------------------------------------------------------------------------------------


@composite("aten.convolution.default", takes=of_floats)
def convolution(
    b: Builder, x: V, weight: V, bias: V | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> V:  # fmt: skip
    """[n, c, ...]; without a batch dimension the one is added and taken away."""
    dtype, compute = x.dtype, compute_dtype(x.dtype)
    x, weight = b.convert(x, compute), b.convert(weight, compute)
    count = len(weight.shape) - 2
    shape = tuple(b.spec.shape)
    single = len(x.shape) == count + 1
    if single:
        x, shape = b.reshape(x, (1, *x.shape)), (1, *shape)
    stride, padding, dilation, extra = (each(v, count) for v in (stride, padding, dilation, output_padding))
    kernel = [int(n) for n in weight.shape[2:]]
    pads = [[p, p] for p in padding]
    lhs, steps = [1] * count, stride
    if transposed:
        weight = _turned(b, weight, groups)
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        pads = [[r - p, r - p + e] for r, p, e in zip(reach, padding, extra, strict=True)]
        lhs, steps = stride, [1] * count
    plane = ", ".join(map(str, range(count)))
    text = (
        f"stablehlo.convolution({x}, {weight}) dim_numbers = [b, f, {plane}]x[o, i, {plane}]->[b, f, {plane}], "
        f"window = {{stride = {steps}, pad = {pads}, lhs_dilate = {lhs}, rhs_dilate = {dilation}}} "
        f"{{batch_group_count = 1 : i64, feature_group_count = {groups} : i64, precision_config = "
        "[#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]} : "
        f"({b.type(x, weight)}) -> {type_of(compute, shape)}"
    )
    out = b.emit(text, compute, shape)
    if bias is not None:
        out = b.op("add", out, b.broadcast(b.convert(bias, compute), shape, (1,)))
    if single:
        out = b.reshape(out, shape[1:])
    return b.convert(out, dtype)


def _turned(b: Builder, weight: V, groups: int) -> V:
    """The weight [in, out / groups, ...] of a transposed convolution as that of the convolution which it is."""
    into, out, *kernel = (int(n) for n in weight.shape)
    plane = len(kernel)
    apart = b.reshape(weight, (groups, into // groups, out, *kernel))
    swapped = b.transpose(apart, (0, 2, 1, *range(3, 3 + plane)))
    merged = b.reshape(swapped, (groups * out, into // groups, *kernel))
    return b.emit(f"stablehlo.reverse {merged}, dims = {list(range(2, 2 + plane))} : {b.type(merged)}",
                  merged.dtype, merged.shape)  # fmt: skip


# ---- order -----------------------------------------------------------------------------------------------------------


def _sorted(b: Builder, x: V, dim: int, descending: bool) -> tuple[V, V]:
    """All elements and their places. Equal ones stay in order, a NaN is the greatest."""
    dim %= len(x.shape)
    places = b.iota(x.shape, dim)
    element, place, flag = type_of(x.dtype, ()), type_of(I64, ()), type_of(BOOL, ())

    def compare(name: str, way: str, left: str, right: str) -> str:
        return f"%{name} = stablehlo.compare {way}, {left}, {right} : ({element}, {element}) -> {flag} "

    before, after = ("%b", "%a") if descending else ("%a", "%b")
    body = compare("before", "GT" if descending else "LT", "%a", "%b")
    last = "%before"
    if x.dtype.is_floating_point:
        body += compare("number", "EQ", before, before) + compare("nan", "NE", after, after)
        body += f"%apart = stablehlo.and %number, %nan : {flag} %first = stablehlo.or %before, %apart : {flag} "
        last = "%first"
    region = (
        f"{{ ^bb0(%a: {element}, %b: {element}, %c: {place}, %d: {place}): {body}stablehlo.return {last} : {flag} }}"
    )
    types = b.type(x, places)
    found = b.several(
        f'"stablehlo.sort"({x}, {places}) <{{dimension = {dim} : i64, is_stable = true}}> ({region}) : '
        f"({types}) -> ({types})", [(x.dtype, x.shape), (I64, x.shape)],
    )  # fmt: skip
    return found[0], found[1]


@composite("aten.sort.default", takes=sorts)
def sort(b: Builder, x: V, dim: int = -1, descending: bool = False) -> tuple[V, V]:
    return _sorted(b, x, dim, descending)


@composite("aten.sort.stable", takes=sorts)
def stable_sort(
    b: Builder, x: V, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[V, V]:
    return _sorted(b, x, dim, descending)


@composite("aten.topk.default", takes=sorts)
def topk(b: Builder, x: V, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[V, V]:
    dim %= len(x.shape)
    shape = [k if d == dim else n for d, n in enumerate(x.shape)]
    starts, steps = [0] * len(shape), [1] * len(shape)
    values, places = (b.slice(t, starts, shape, steps, shape) for t in _sorted(b, x, dim, largest))
    return values, places


# ---- recurrent layers ------------------------------------------------------------------------------------------------

@composite("aten.mkldnn_rnn_layer.default", takes=is_lstm)
def lstm(b: Builder, x: V, w: V, r: V, bw: V, br: V, h: V, c: V, reverse: bool, *rest: Any) -> tuple[V, ...]:
    """One direction of one layer over [t, b, i], step by step; the gates are i, f, g, o."""
    if expr_of(x.shape[0]) is not None:
        raise NotMapped("its steps are written one by one, and their number may differ between calls")
    hidden, dtype, compute = int(rest[2]), x.dtype, compute_dtype(x.dtype)
    x, w, r, bw, br, h, c = (b.convert(t, compute) for t in (x, w, r, bw, br, h, c))
    steps, batch, width = int(x.shape[0]), x.shape[1], x.shape[2]
    row, gates = (batch, hidden), (batch, 4 * hidden)
    h, c = b.reshape(h, row), b.reshape(c, row)
    w, r = b.transpose(w, (1, 0)), b.transpose(r, (1, 0))
    bias = b.broadcast(b.op("add", bw, br), gates, (1,))
    found: list[V] = []
    for t in reversed(range(steps)) if reverse else range(steps):
        one = b.slice(x, (t, 0, 0), (t + 1, batch, width), (1, 1, 1), (1, batch, width))
        total = b.op("add", product(b, b.reshape(one, (batch, width)), w), product(b, h, r))
        total = b.op("add", total, bias)
        parts = [b.slice(total, (0, k * hidden), (batch, (k + 1) * hidden), (1, 1), row) for k in range(4)]
        i, f, o = (b.op("logistic", parts[k]) for k in (0, 1, 3))
        c = b.op("add", b.op("multiply", f, c), b.op("multiply", i, b.op("tanh", parts[2])))
        h = b.op("multiply", o, b.op("tanh", c))
        found.append(b.reshape(h, (1, batch, hidden)))
    out = b.concatenate(found[::-1] if reverse else found, 0, (steps, batch, hidden))
    specs = b.specs
    states = (b.reshape(b.convert(t, dtype), s.shape) for t, s in zip((h, c), specs[1:3], strict=True))
    return b.convert(out, dtype), *states, V("%none", dtype, (0,))
