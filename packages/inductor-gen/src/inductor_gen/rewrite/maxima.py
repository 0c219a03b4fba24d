"""Maximum pooling whose places nobody asks for, on a CPU: a loop over what the windows hold.

Eager's kernel looks for the places too, one element after the other where an image's channels are not innermost. Loops
compute what comes before and after as well.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import torch

from inductor_gen.loops.graph import Node
from inductor_gen.rewrite.row import Context, Editor

if TYPE_CHECKING:
    from prims.decomp.pooling import Windows

__all__ = ["POOLING", "in_loops", "windows"]

POOLING = "aten.max_pool2d_with_indices.default"

#: Elements of a window up to which loops were faster in either layout, for all types but float16, where no window
#: reaches out of the image (AMD EPYC, one thread, images of 8 to 112 pixels).
_MOST = 4

#: Stride, padding, dilation, ceil mode.
_DEFAULTS = ((), (0, 0), (1, 1), False)


def windows(node: Node, _: Context) -> Windows | None:
    """The windows of a maximum pooling on a CPU whose values alone are read, where all of them are inside the image."""
    if node.on_gpu or node.op != POOLING or any(user.kind != "item" or user.args[1] for user in node.users):
        return None
    x, *given = node.args
    if x.dtype == torch.float16 or math.prod(given[0]) > _MOST:
        return None
    if not all(isinstance(size, int) for size in x.spec.shape[-2:]):
        return None
    from prims.decomp.pooling import Windows  # which a program without pooling need not import

    w = Windows(x.spec, 2, *given, *_DEFAULTS[len(given) - 1 :])
    geometry = zip(w.sizes, w.out, w.stride, w.dilation, w.kernel, strict=True)
    inside = all((out - 1) * s + d * (k - 1) < size for size, out, s, d, k in geometry)
    return w if inside and not any(w.padding) and math.prod(w.kernel) <= _MOST else None


def in_loops(p: Editor, node: Node, w: Windows) -> None:
    """The greatest of each window, the first of equals."""
    x = node.args[0]
    best: Node | None = None
    lead = tuple(x.spec.shape[:-2])
    for offset in itertools.product(*map(range, w.kernel)):
        starts = [o * d for o, d in zip(offset, w.dilation, strict=True)]
        stops = [at + (out - 1) * s + 1 for at, out, s in zip(starts, w.out, w.stride, strict=True)]
        part = p.slice(x, (*(0,) * len(lead), *starts), (*lead, *stops), (*(1,) * len(lead), *w.stride))
        best = part if best is None else p.maximum(part, best)
    assert best is not None
    for item in list(node.users):
        p.replace(item, best)
