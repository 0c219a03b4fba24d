"""Convolutions that are matrix products: on a GPU cuBLAS takes them with a fraction of cuDNN's host time.

A kernel that covers its image in tiles that do not overlap (stride equal to its size, no padding; 1x1 is the commonest)
multiplies each tile's values with the weight: ``[images * tiles, values] @ [values, channels]``. With channels last a
1x1 kernel's operands and result are views; other tiles are gathered by a copy, which fuses with what makes the image.
"""

from __future__ import annotations

from typing import Any

import torch

from inductor_gen.layout.record import Layout
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import ONE, contiguous_strides, size
from prims.dtypes import HALVES
from prims.spec import TensorSpec
from prims.spec.expr import Expr

__all__ = ["backward_is_products", "is_product", "lower_backward", "lower_forward", "on_gpu"]


#: Channels from which a tile is gathered position by position, all channels of one together.
_WIDE = 16


def on_gpu(x: Node) -> bool:
    """Do the value's kernels run on a GPU?"""
    return x.device is not None and x.device.type == "cuda"


def _static(node: Node) -> bool:
    return all(s.is_const and s.value > 0 for s in node.shape)


def _tiles(x: Node, weight: Node, settings: Any) -> tuple[int, int] | None:
    """The size of a convolution's tiles, None where it has none."""
    stride, padding, dilation, transposed, _, groups = settings
    if len(x.shape) != 4 or x.dtype not in HALVES or not on_gpu(x):
        return None
    if weight.dtype != x.dtype or not (_static(x) and _static(weight)) or transposed or groups != 1:
        return None
    height, width = (int(s.value) for s in weight.shape[2:])
    pair = lambda values: tuple(values) * (2 // len(values))
    if pair(stride) != (height, width) or any(padding) or (pair(dilation) != (1, 1) and (height, width) != (1, 1)):
        return None
    return height, width


def is_product(node: Node) -> bool:
    """Can this extern node be lowered by ``lower_forward``?"""
    return node.op == "aten.convolution.default" and _tiles(node.args[0], node.args[1], node.args[3:9]) is not None


def backward_is_products(node: Node) -> bool:
    """Can this extern node be lowered by ``lower_backward``? Only for 1x1 kernels."""
    if node.op != "aten.convolution_backward.default":
        return False
    _, x, weight, _, *settings = node.args[:10]
    return _tiles(x, weight, settings) == (1, 1) and all(u.kind == "item" for u in node.users)


def _view(op: str, x: Node, argument: Any, shape: tuple[Any, ...]) -> Node:
    spec = TensorSpec(shape, x.dtype, x.device)  # type: ignore[arg-type]
    return Node(0, "view", op, (x, argument), spec, x.source)


def _product(p: Any, left: Any, right: Any, source: Any) -> Node:
    """A new product of two views of buffers."""
    rows, columns = left.shape[0], right.shape[1]
    spec = TensorSpec((int(rows.value), int(columns.value)), left.base.dtype, left.base.device)
    node = Node(0, "extern", "aten.mm.default", (left.base, right.base), spec, source)
    node.target = torch.ops.aten.mm.default
    p.out.externs[node] = ((left, right), {})
    p.out.layouts[node] = Layout(contiguous_strides(node.shape))
    p.new_nodes.append(node)
    return node


def _matrix(ref: Any, rows: tuple[Expr, Expr], columns: tuple[Expr, Expr]) -> Any:
    """A view of the same buffer as ``ref``'s with the given sizes and strides of rows and of columns."""
    return type(ref)(ref.base, (rows[0], columns[0]), (rows[1], columns[1]), ref.offset)


def _pixels(p: Any, x: Node) -> Any:
    """An image with channels last as ``[images * pixels, channels]``."""
    n, c, h, w = (int(s.value) for s in x.shape)
    return _matrix(p.in_channels_last(x), (size(n * h * w), size(c)), (size(c), ONE))


def _gathered(p: Any, x: Node, tile: tuple[int, int]) -> Any:
    """The tiles of an image as rows of a new matrix, by channel, or by position where there are many channels."""
    n, c, h, w = (int(s.value) for s in x.shape)
    th, tw = tile
    down, across = h // th, w // tw
    if (down * th, across * tw) != (h, w):
        stops = (n, c, down * th, across * tw)
        x = _view("slice", x, (0, 0, 0, 0), stops)
        x.args = (*x.args, stops, (1, 1, 1, 1))
        p.new_nodes.append(x)
    split = _view("reshape", x, (n, c, down, th, across, tw), (n, c, down, th, across, tw))
    order = (0, 2, 4, 3, 5, 1) if c >= _WIDE else (0, 2, 4, 1, 3, 5)
    shape = tuple((n, c, down, th, across, tw)[d] for d in order)
    moved = _view("permute", split, order, shape)
    flat = (n * down * across, c * th * tw)
    rows = _view("reshape", moved, flat, flat)
    p.new_nodes += [split, moved, rows]
    return p.resolve(p.copy(rows))


def _weights(p: Any, weight: Node, tile: tuple[int, int]) -> Any:
    """A weight as ``[values of a tile, channels]``, in the order of ``_gathered``."""
    out, c, th, tw = (int(s.value) for s in weight.shape)
    if tile == (1, 1):
        ref = p.resolve(weight) or p.resolve(p.copy(weight))
        return _matrix(ref, (size(c), ref.strides[1]), (size(out), ref.strides[0]))
    if c >= _WIDE:
        ref = p.in_channels_last(weight)
    else:
        ref = p.resolve(weight)
        if ref is None or ref.strides != contiguous_strides(weight.shape):
            ref = p.resolve(p.copy(weight))
    values = size(c * th * tw)
    return _matrix(ref, (values, ONE), (size(out), values))


def _image(p: Any, product: Node, shape: tuple[int, ...]) -> tuple[str, tuple[Any, ...]]:
    """The operator and arguments of the view that is ``[images * pixels, channels]`` as an image, channels last."""
    n, c, h, w = shape
    split = _view("reshape", product, (n, h, w, c), (n, h, w, c))
    p.new_nodes.append(split)
    p.out.images[product] = tuple(size(s) for s in shape)
    return "permute", (split, (0, 3, 1, 2))


def lower_forward(p: Any, node: Node) -> None:
    """Put a product and views in the place of a convolution; ``p`` prepares the graph."""
    x, weight, bias, *settings = node.args
    tile = _tiles(x, weight, settings)
    assert tile is not None
    rows = _pixels(p, x) if tile == (1, 1) else _gathered(p, x, tile)
    product = _product(p, rows, _weights(p, weight, tile), node.source)
    shape = tuple(int(s.value) for s in node.shape)
    op, args = _image(p, product, shape)
    if bias is None:
        node.kind, node.op, node.args = "view", op, args
        return
    image = _view(op, args[0], args[1], shape)
    spread = _view("broadcast", bias, shape, shape)
    spread.args = (bias, shape, (1,))
    p.new_nodes += [image, spread]
    node.kind, node.op, node.args = "pointwise", "add", (image, spread)


def lower_backward(p: Any, node: Node) -> None:
    """Put products in the place of the gradients of a 1x1 convolution: its items become views of them, or a sum."""
    gradient, x, weight = node.args[:3]
    rows = _pixels(p, gradient)
    for item in node.users:
        index = item.args[1]
        if index == 2:
            item.kind, item.op, item.args = "reduce", "sum", (gradient, (0, 2, 3))
            continue
        out, c = (int(s.value) for s in weight.shape[:2])
        if index == 0:
            ref = p.resolve(weight) or p.resolve(p.copy(weight))
            values = _matrix(ref, (size(out), ref.strides[0]), (size(c), ref.strides[1]))
            product = _product(p, rows, values, node.source)
            op, args = _image(p, product, tuple(int(s.value) for s in x.shape))
            item.kind, item.op, item.args = "view", op, args
        else:
            turned = _matrix(rows, (rows.shape[1], rows.strides[1]), (rows.shape[0], rows.strides[0]))
            product = _product(p, turned, _pixels(p, x), node.source)
            item.kind, item.op, item.args = "view", "reshape", (product, (out, c, 1, 1))
        item.spec = TensorSpec(tuple(int(s.value) for s in item.shape), item.dtype, item.device)  # type: ignore[arg-type]
