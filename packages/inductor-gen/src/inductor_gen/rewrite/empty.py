"""Values without elements: nothing is computed for them, and nothing that is computed reads them.

Index arithmetic has no meaning where a dimension is empty (there is nothing to divide by), and a read that it leaves
at element 0 may be moved out of the loops that never run.
"""

from __future__ import annotations

from inductor_gen.loops.graph import Graph, Node
from inductor_gen.loops.index import ZERO

__all__ = ["settle_empty"]

_COMPUTED = ("pointwise", "view", "reduce", "scan")


def settle_empty(graph: Graph) -> None:
    """Put constants, which have no operands, in place of the empty values that kernels make or reduce."""
    empty = {node for node in graph.nodes if node.dtype is not None and ZERO in node.shape}
    if not empty:
        return
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.kind in _COMPUTED and node in empty:
            node.kind, node.op, node.args, node.target = "create", "full", _constant(node), None
        elif node.kind in ("view", "reduce", "scan"):
            node.args = tuple(_without(x, empty, nodes) for x in node.args)
        nodes.append(node)
    graph.nodes = nodes
    for k, node in enumerate(nodes):
        node.id, node.users, node.ins = k, [], []
    for node in nodes:
        node.link()


def _constant(node: Node) -> tuple[object, ...]:
    return (node.spec.shape, 0, node.dtype, node.device)


def _without(x: object, empty: set[Node], nodes: list[Node]) -> object:
    """An operand, a constant instead of it where it is an empty value that is not computed here."""
    if isinstance(x, (tuple, list)):
        return type(x)(_without(v, empty, nodes) for v in x)
    if not isinstance(x, Node) or x not in empty or x.kind == "create":
        return x
    made = Node(len(nodes), "create", "full", _constant(x), x.spec, x.source)
    nodes.append(made)
    return made
