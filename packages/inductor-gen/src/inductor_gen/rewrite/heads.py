"""Keys and values that several heads of queries share are given to attention once, where its kernel takes them so.

Programs repeat them, as many times as there are queries' heads for each; cuDNN's kernel reads the right one itself.
"""

from __future__ import annotations

from inductor_gen.loops.graph import Graph, Node

__all__ = ["share_heads"]

_SHARING = "aten._scaled_dot_product_cudnn_attention.default"


def share_heads(graph: Graph) -> None:
    """Leave out the repetition of keys and values for attention operators that no backward pass will follow."""
    for node in graph.nodes:
        if node.op != _SHARING or len(node.args) < 5 or node.args[4] is not False:
            continue
        key, value = (_once(x) for x in node.args[1:3])
        if key is None or value is None or key.shape[1] is not value.shape[1]:
            continue
        old = node.ins
        node.args = (node.args[0], key, value, *node.args[3:])
        node.ins = []
        for x in old:
            x.users.remove(node)
        node.link()


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
