"""Reductions by a kernel's own function in Triton's interpreter, by halves of a block.

The interpreter calls the function for one element after the other, which takes most of the time of all kernels' tests.
Halves are also nearer to a GPU, where the order is a tree's: a function that depends on the order is seen.
A plugin of pytest.
"""

from __future__ import annotations

import numpy
import triton.language as tl
from triton.runtime.interpreter import ReduceOps

__all__ = ["fold_by_halves", "pytest_configure"]


def _folded(self, values):
    axis, rank = self.axis, len(values[0].shape)
    values, along = self.unravel(values, axis)
    blocks, types = [value.handle.data for value in values], [value.dtype for value in values]
    while (size := blocks[0].shape[along]) > 1:
        halves = [numpy.split(block, [size // 2], along) for block in blocks]
        parts = [self.to_tensor(half[k], kind) for k in (0, 1) for half, kind in zip(halves, types)]
        made = self.combine_fn.fn(*parts)
        made = made if isinstance(made, tuple) else (made,)
        made = [one.handle.data if isinstance(one, tl.core.tensor) else one for one in made]
        blocks = [numpy.broadcast_to(one, half[0].shape).astype(half[0].dtype) for one, half in zip(made, halves)]
    results = []
    for block, kind in zip(blocks, types):
        if axis is None:
            block = block.reshape((1,) * rank) if self.keep_dims else block.item()
        elif not self.keep_dims:
            block = block.squeeze(along)
        results.append(self.to_tensor(block, kind))
    return results


def fold_by_halves() -> None:
    """From here on in this process."""
    ReduceOps.generic_reduce = _folded


def pytest_configure() -> None:
    fold_by_halves()
