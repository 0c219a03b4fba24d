"""What kernels cannot compute, so that these rewrites are made without fuel too.

Values without elements: nothing is computed for them, and nothing that is computed reads them. Index arithmetic has no
meaning where a dimension is empty (there is nothing to divide by), and a read that it leaves at element 0 may be moved
out of the loops that never run. Constants, which have no operands, stand in the place of the empty values that kernels
make or reduce.

Scatters on a GPU that combine elements as no single operation there does: PyTorch's kernels loop, or sort.
"""

from __future__ import annotations

from typing import Any

from inductor_gen.device.cuda import ATOMIC
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import ZERO
from inductor_gen.rewrite.row import Context, Editor
from prims.handlers.base import map_values

__all__ = ["call", "is_unsettled", "needs_library", "settle"]

_READING = ("view", "reduce", "scan")


def is_unsettled(node: Node, _: Any) -> bool | None:
    """None unless a kernel would make an empty value, or read one."""
    reads = node.kind in _READING
    if not reads and node.kind != "pointwise":
        return None
    return True if _is_empty(node) or (reads and any(map(_is_empty, node.ins))) else None


def _is_empty(x: Any) -> bool:
    return isinstance(x, Node) and x.dtype is not None and x.kind != "create" and ZERO in x.shape


def settle(p: Editor, node: Node, _: bool) -> None:
    """Put constants there."""
    constant = lambda x: p.full(x.spec.shape, 0, x.dtype, x.device) if _is_empty(x) else x
    if _is_empty(node):
        p.replace(node, constant(node))
    else:
        p.change(node, map_values(constant, node.args))


def needs_library(node: Node, context: Context) -> bool | None:
    """Is there no atomic operation for what a scatter on a GPU combines, or may its order not show?"""
    if node.kind != "scatter" or context.device(node).kind != "cuda":
        return None
    mode = node.args[-1] if node.op == "scatter" else "add" if node.args[-1] else "set"
    if context.deterministic and (mode == "set" or node.dtype not in ATOMIC["max"]):  # integers have one sum
        return True
    return True if mode != "set" and node.dtype not in ATOMIC.get(mode, ()) else None


def call(p: Editor, node: Node, _: bool) -> None:
    """The primitive's own meaning is that call."""
    node.kind = "extern"
