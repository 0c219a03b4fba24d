"""Keys and values that several heads of queries share are given to attention once, where its kernel takes them so.

Programs repeat them, as many times as there are queries' heads for each; cuDNN's kernel reads the right one itself.
No backward pass may follow: it would know nothing of it.
"""

from __future__ import annotations

from typing import Any

from inductor_gen.loops.graph import Node
from inductor_gen.rewrite.row import Editor

__all__ = ["SHARING", "share", "shared"]

SHARING = "aten._scaled_dot_product_cudnn_attention.default"


def shared(node: Node, _: Any) -> tuple[Node, Node] | None:
    """The keys and values of an attention operator before they were repeated."""
    if node.op != SHARING or len(node.args) < 5 or node.args[4] is not False:
        return None
    key, value = (_once(x) for x in node.args[1:3])
    return None if key is None or value is None or key.shape[1] is not value.shape[1] else (key, value)


def share(p: Editor, node: Node, found: tuple[Node, Node]) -> None:
    """Leave out the repetition."""
    p.change(node, (node.args[0], *found, *node.args[3:]))


def _once(x: Node) -> Node | None:
    """What ``x`` repeats, each head as often; None where it does not."""
    if x.op != "reshape" or len(x.shape) != 4:
        return None
    spread = x.args[0]
    if spread.op != "broadcast" or tuple(spread.args[2]) != (0, 1, 3, 4) or len(spread.shape) != 5:
        return None
    once: Node = spread.args[0]
    batch, heads, _, length, width = spread.shape
    same = once.shape == (batch, heads, length, width) and (x.shape[0], *x.shape[2:]) == (batch, length, width)
    return once if same else None
