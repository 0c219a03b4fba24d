"""Convolutions that are matrix products.

A kernel that covers its image in tiles that do not overlap (stride equal to its size, no padding; 1x1 is the commonest)
multiplies each tile's values with the weight: ``[images * tiles, values] @ [values, channels]``. cuBLAS takes that with
a fraction of cuDNN's host time. With channels last a 1x1 kernel's operands and result are views; other tiles are
gathered by a copy, which fuses with what makes the image.

On the CPU a few convolutions with heavy weights and small images are products with gathered patches ("im2col"). Each
row of the gathered matrix holds the values under the kernel at one position, by channel, then by row and column of the
kernel: the order of the weight, which is then read as it lies. Gathering is written as views (padding, one slice per
position in the kernel, a concatenation), so that fusion makes it one kernel.
"""

from __future__ import annotations

from typing import Any

import torch

from inductor_gen.extern.cpu import conv_form, linear
from inductor_gen.loops.graph import Node
from inductor_gen.rewrite.row import Context, Editor
from prims.dtypes import HALVES
from prims.spec import TensorSpec

__all__ = [
    "BACKWARD", "CONVOLUTION", "SPATIAL", "backward", "biased", "forward", "gather", "images_of", "is_1x1_backward",
    "is_patches", "split_bias", "tiled",
]  # fmt: skip

#: Operators that keep channels last, and are faster so on a GPU.
SPATIAL = frozenset({
    "aten.convolution.default", "aten.convolution_backward.default",
    "aten.max_pool2d_with_indices.default", "aten.max_pool2d_with_indices_backward.default",
})  # fmt: skip

#: Channels from which a tile is gathered position by position, all channels of one together.
_WIDE = 16

CONVOLUTION, BACKWARD = "aten.convolution.default", "aten.convolution_backward.default"


def images_of(nodes: list[Node]) -> set[Any]:
    """The shapes of what convolutions and poolings take and give, the same in a forward and its backward graph; none
    where no 16-bit convolution runs on a GPU."""
    spatial = [node for node in nodes if node.op in SPATIAL]
    convolved = (node.args[0] for node in spatial if node.op in (CONVOLUTION, BACKWARD))
    if not any(x.on_gpu and x.dtype in HALVES and len(x.shape) == 4 for x in convolved):
        return set()
    found = (x for n in spatial for x in (n, *n.ins, *(user for user in n.users if user.kind == "item")))
    return {x.shape for x in found if len(x.shape) == 4}


def _sizes(x: Node) -> tuple[int, ...]:
    return tuple(int(s.value) for s in x.shape)


def _is_static(node: Node) -> bool:
    return all(s.is_const and s.value > 0 for s in node.shape)


def _pair(values: Any) -> tuple[int, ...]:
    return tuple(values) * (2 // len(values))


def _tiles(x: Node, weight: Node, settings: Any) -> tuple[int, int] | None:
    """The size of a convolution's tiles, None where it has none."""
    stride, padding, dilation, transposed, _, groups = settings
    if len(x.shape) != 4 or x.dtype not in HALVES or not x.on_gpu:
        return None
    if weight.dtype != x.dtype or not (_is_static(x) and _is_static(weight)) or transposed or groups != 1:
        return None
    height, width = _sizes(weight)[2:]
    if _pair(stride) != (height, width) or any(padding) or (_pair(dilation) != (1, 1) and (height, width) != (1, 1)):
        return None
    return height, width


def tiled(node: Node, _: Context) -> tuple[int, int] | None:
    """The size of the tiles of a convolution that is a product."""
    return _tiles(node.args[0], node.args[1], node.args[3:9]) if node.op == CONVOLUTION else None


def forward(p: Editor, node: Node, tile: tuple[int, int]) -> None:
    """A product and views."""
    x, weight, bias = node.args[:3]
    n, c, h, w = _sizes(x)
    if tile == (1, 1):
        rows, order = _pixels(p, x), None
        values = p.reshape(weight, _sizes(weight)[:2])
    else:
        (th, tw), down, across = tile, h // tile[0], w // tile[1]
        if (down * th, across * tw) != (h, w):
            x = p.slice(x, (0, 0, 0, 0), (n, c, down * th, across * tw), (1, 1, 1, 1))
        order = (0, 2, 4, 3, 5, 1) if c >= _WIDE else (0, 2, 4, 1, 3, 5)
        moved = p.permute(p.reshape(x, (n, c, down, th, across, tw)), order)
        rows = p.reshape(moved, (n * down * across, c * th * tw))
        if c >= _WIDE:
            p.graph.images.add(weight)
            weight = p.permute(weight, (0, 2, 3, 1))
        values = p.reshape(weight, (node.spec.shape[1], c * th * tw))
    y = _image(p, p.aten(torch.ops.aten.mm.default, rows, p.permute(values, (1, 0))), _sizes(node))
    p.replace(node, y if bias is None else p.add(y, p.broadcast(bias, _sizes(node), (1,))))


def _pixels(p: Editor, x: Node) -> Node:
    """An image with channels last as ``[images * pixels, channels]``."""
    n, c, h, w = _sizes(x)
    p.graph.images.add(x)
    return p.reshape(p.permute(x, (0, 2, 3, 1)), (n * h * w, c))


def _image(p: Editor, product: Node, shape: tuple[int, ...]) -> Node:
    """``[images * pixels, channels]`` as an image, channels last."""
    n, c, h, w = shape
    made = p.permute(p.reshape(product, (n, h, w, c)), (0, 3, 1, 2))
    p.graph.matrices[product] = made.shape
    return made


def is_1x1_backward(node: Node, _: Context) -> bool | None:
    """Are they the gradients of a 1x1 convolution?"""
    if node.op != BACKWARD or any(user.kind != "item" for user in node.users):
        return None
    _, x, weight, _, *settings = node.args[:10]
    return True if _tiles(x, weight, settings) == (1, 1) else None


def backward(p: Editor, node: Node, _: bool) -> None:
    """Products, of which the gradients are views, and a sum for the bias."""
    gradient, x, weight = node.args[:3]
    rows = _pixels(p, gradient)
    mm, shape = torch.ops.aten.mm.default, _sizes(weight)
    for item in list(node.users):
        if item.args[1] == 2:
            made = p.sum(gradient, (0, 2, 3))
        elif item.args[1] == 0:
            made = _image(p, p.aten(mm, rows, p.reshape(weight, shape[:2])), _sizes(x))
        else:
            made = p.reshape(p.aten(mm, p.permute(rows, (1, 0)), _pixels(p, x)), shape)
        p.replace(item, made)


def biased(node: Node, _: Context) -> Node | None:
    """The bias that a convolution would add in a kernel of its own."""
    return node.args[2] if node.op == CONVOLUTION and node.on_gpu and isinstance(node.args[2], Node) else None


def split_bias(p: Editor, node: Node, bias: Node) -> None:
    """A convolution without its bias, and an addition, which fuses with what follows."""
    x, weight, _, *rest = node.args
    plain = p.aten(torch.ops.aten.convolution.default, x, weight, None, *rest, spec=node.spec)
    p.replace(node, p.add(plain, p.broadcast(bias, node.spec.shape, (1,))))


def is_patches(node: Node, c: Context) -> bool | None:
    """Is it a convolution on the CPU that is fastest as a product with gathered patches? In training none is: what is
    saved has eager's layout."""
    return True if node.op == CONVOLUTION and not c.training and conv_form(node, c.hint) == "patches" else None


def gather(p: Editor, node: Node, _: bool) -> None:
    """The product ``[images, height, width, values]`` with the weight."""
    x, weight, bias, stride, padding, dilation = node.args[:6]
    (down, right), (top, left), (apart, aside) = _pair(stride), _pair(padding), _pair(dilation)
    (n, channels), (out, height, width), (rows, columns) = _sizes(x)[:2], _sizes(node)[1:], _sizes(weight)[2:]
    if x.kind == "pointwise":
        p.graph.images.add(x)
    if top or left:
        x = p.pad(x, 0.0, (0, 0, top, left), (0, 0, top, left))
    pieces = []
    for i in range(rows):
        for j in range(columns):
            starts = (0, 0, i * apart, j * aside)
            stops = (n, channels, starts[2] + (height - 1) * down + 1, starts[3] + (width - 1) * right + 1)
            piece = p.slice(x, starts, stops, (1, 1, down, right))
            pieces.append(p.reshape(piece, (n, channels, height, width, 1)))
    count = rows * columns
    moved = p.permute(p.concat(tuple(pieces), 4), (0, 2, 3, 1, 4))
    patches = p.reshape(moved, (n, height, width, channels * count))
    spec = TensorSpec((n, height, width, out), node.dtype, node.device)  # type: ignore[arg-type]
    p.replace(node, p.permute(p.call(linear, patches, weight, bias, spec=spec), (0, 3, 1, 2)))
