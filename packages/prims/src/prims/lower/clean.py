"""Dead code elimination."""

from __future__ import annotations

import torch
import torch.fx

from prims.ir.envelope import Envelope
from prims.lower.context import LowerContext


def has_effect(node: torch.fx.Node) -> bool:
    """Must the node stay even when nobody reads it? Placeholders are the signature; drawing random
    numbers moves the generator's state, which the program can see."""
    if node.op in ("placeholder", "output"):
        return True
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and (
        torch.Tag.nondeterministic_seeded in target.tags or target._schema.is_mutable
    )


def remove_dead_code(env: Envelope, *, context: LowerContext) -> Envelope:
    """The graph without the nodes that no output and no effect needs."""
    live: set[torch.fx.Node] = set()
    nodes = list(env.graph.nodes)
    for node in reversed(nodes):
        if node in live or has_effect(node):
            live.add(node)
            live.update(node.all_input_nodes)
    if len(live) == len(nodes):
        return env
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in nodes:
        if node in live:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    used = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    constants = {name: tensor for name, tensor in env.constants.items() if name in used}
    return env.replace(graph=graph, constants=constants)
