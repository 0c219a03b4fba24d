"""im2col and col2im (nn.Unfold and nn.Fold)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prims.decomp.common import Size, Value, along, opmath, to_dtype
from prims.decomp.padding import added_last, taken_last
from prims.decomp.pooling import pooled_size
from prims.decomp.registry import decomposition


def _places(
    p: Any,
    sizes: Sequence[Size],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
    device: torch.device,
) -> tuple[tuple[Value, ...], tuple[Size, ...]]:
    """Row and column of the padded input under [kernel h, kernel w, blocks h, blocks w], and that shape."""
    geometry = zip(sizes, kernel, stride, padding, dilation, strict=True)
    blocks = tuple(pooled_size(*g, False) for g in geometry)
    shape = (*kernel, *blocks)
    found = []
    for i in range(2):
        inner = along(p, p.iota(kernel[i], 0, dilation[i], torch.int64, device), shape, i)
        outer = along(p, p.iota(blocks[i], 0, stride[i], torch.int64, device), shape, 2 + i)
        found.append(p.add(inner, outer))
    return tuple(found), shape


def _around(padding: Sequence[int], lead: int) -> tuple[int, ...]:
    return (0,) * lead + tuple(padding)


@decomposition("aten.im2col.default")
def im2col(
    p: Any,
    self: Value,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    """[n, c, h, w] to [n, c kh kw, blocks]."""
    *lead, c, h, w = self.shape
    edge = _around(padding, self.ndim - 2)
    x = p.pad(self, 0.0 if self.dtype.is_floating_point else 0, edge, edge) if any(padding) else self
    at, shape = _places(p, (h, w), kernel_size, dilation, padding, stride, self.device)
    taken = taken_last(p, x, at)
    return p.reshape(taken, (*lead, c * shape[0] * shape[1], shape[2] * shape[3]))


@decomposition("aten.col2im.default")
def col2im(
    p: Any,
    self: Value,
    output_size: Sequence[Size],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    """[n, c kh kw, blocks] to [n, c, h, w]: overlapping elements are summed."""
    *lead, columns, _ = self.shape
    c = columns // (kernel_size[0] * kernel_size[1])
    at, shape = _places(p, output_size, kernel_size, dilation, padding, stride, self.device)
    values = p.reshape(to_dtype(p, self, opmath(self.dtype)), (*lead, c, *shape))
    padded = (*lead, c, *(s + 2 * e for s, e in zip(output_size, padding, strict=True)))
    out = added_last(p, padded, at, values)
    edge = tuple(-e for e in _around(padding, len(lead) + 1))
    return to_dtype(p, p.pad(out, 0.0, edge, edge) if any(padding) else out, self.dtype)
