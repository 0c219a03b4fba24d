"""Dead code elimination."""

from __future__ import annotations

import torch
import torch.fx

from prims.collectives import is_collective
from prims.ir.envelope import Envelope
from prims.lower.context import LowerContext


def has_effect(node: torch.fx.Node) -> bool:
    """Must the node stay even when nobody reads it? Placeholders are the signature; drawing random
    numbers moves the generator's state, which the program can see, and other processes wait for a collective."""
    if node.op in ("placeholder", "output"):
        return True
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and (
        torch.Tag.nondeterministic_seeded in target.tags or target._schema.is_mutable or is_collective(target)
    )


def erase_dead(graph: torch.fx.Graph) -> int:
    """Erase, in a graph that nobody else holds, what no output and no effect needs; how many nodes that was."""
    count = 0
    for node in reversed(graph.nodes):
        if not node.users and not has_effect(node):
            graph.erase_node(node)
            count += 1
    return count


def _is_clean(graph: torch.fx.Graph) -> bool:
    return all(node.users or has_effect(node) for node in graph.nodes)


def remove_dead_code(env: Envelope, *, context: LowerContext) -> Envelope:
    """The envelope without the nodes and constants that no output and no effect needs."""
    graph = env.graph
    if not _is_clean(graph):
        graph, _ = env.copy_graph()
        erase_dead(graph)
    used = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    if graph is env.graph and len(used) == len(env.constants):
        return env
    constants = {name: tensor for name, tensor in env.constants.items() if name in used}
    return env.replace(graph=graph, constants=constants)
