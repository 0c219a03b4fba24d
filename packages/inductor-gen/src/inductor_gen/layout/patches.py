"""Convolutions on the CPU as products with gathered patches ("im2col").

Each row of the gathered matrix holds the values under the kernel at one position, by channel, then by row and column of
the kernel: the order of the weight, which is then read as it lies. Gathering is written as views (padding, one slice
per position in the kernel, a concatenation), so that fusion makes it one kernel.
"""

from __future__ import annotations

from typing import Any

from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import ZERO, contiguous_strides, size
from prims.spec import TensorSpec

__all__ = ["gather_patches"]


def gather_patches(p: Any, node: Node) -> Any:
    """A view ``[images, height, width, values]`` of the new buffer with the patches of a convolution's images.

    ``p`` prepares the graph; all sizes are numbers.
    """
    x, weight, _, stride, padding, dilation = node.args[:6]
    (down, right), (top, left), (apart, aside) = (tuple(v) * (2 // len(v)) for v in (stride, padding, dilation))
    n, channels, high, wide = (int(s.value) for s in x.shape)
    rows, columns = (int(s.value) for s in weight.shape[2:])
    height, width = (int(s.value) for s in node.shape[2:])

    def view(op: str, source: Any, arguments: tuple[Any, ...], shape: tuple[int, ...]) -> Node:
        made = Node(0, "view", op, (source, *arguments), TensorSpec(shape, x.dtype, x.device), node.source)  # type: ignore[arg-type]
        p.new_nodes.append(made)
        return made

    if x.kind == "pointwise" and x not in p.out.layouts:
        p.in_channels_last(x)
    if top or left:
        shape = (n, channels, high + 2 * top, wide + 2 * left)
        x = view("pad", x, (0.0, (0, 0, top, left), (0, 0, top, left)), shape)
    pieces = []
    for i in range(rows):
        for j in range(columns):
            starts = (0, 0, i * apart, j * aside)
            stops = (n, channels, starts[2] + (height - 1) * down + 1, starts[3] + (width - 1) * right + 1)
            piece = view("slice", x, (starts, stops, (1, 1, down, right)), (n, channels, height, width))
            pieces.append(view("reshape", piece, ((*piece.spec.shape, 1),), (*piece.spec.shape, 1)))
    count = rows * columns
    whole = view("concat", tuple(pieces), (4,), (n, channels, height, width, count))
    moved = view("permute", whole, ((0, 2, 3, 1, 4),), (n, height, width, channels, count))
    buffer = p.copy(moved)
    sizes = tuple(size(s) for s in (n, height, width, channels * count))
    ref = p.resolve(buffer)
    return type(ref)(buffer, sizes, contiguous_strides(sizes), ZERO)
