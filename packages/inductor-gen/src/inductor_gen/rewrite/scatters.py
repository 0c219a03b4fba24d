"""Scatters on a GPU that combine elements as no single operation there does: PyTorch's kernels loop, or sort."""

from __future__ import annotations

from inductor_gen.device.cuda import ATOMIC
from inductor_gen.loops.graph import Node
from inductor_gen.rewrite.edit import Editor
from inductor_gen.rewrite.row import Context

__all__ = ["call", "needs_library"]


def needs_library(node: Node, context: Context) -> bool | None:
    """Is there no atomic operation for what a scatter on a GPU combines?"""
    if node.kind != "scatter" or context.device(node).kind != "cuda":
        return None
    mode = node.args[-1] if node.op == "scatter" else "add" if node.args[-1] else "set"
    return True if mode != "set" and node.dtype not in ATOMIC.get(mode, ()) else None


def call(p: Editor, node: Node, _: bool) -> None:
    """The primitive's own meaning is that call."""
    node.kind = "extern"
