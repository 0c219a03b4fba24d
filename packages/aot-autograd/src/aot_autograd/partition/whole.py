"""What a derivative within one graph computes again.

A training step that is captured as a whole is one graph: no forward graph hands anything over to a backward graph, but
what the forward part computes for the backward part is in memory between them all the same. The same choice is made
here, by the same partitioner: what hangs on a gradient is *late*, and takes the forward values that are kept; the
others it has made again, in nodes of its own. ``meta["late"]`` says which nodes these are, ``"again"``, and which
hang on a gradient, ``"gradient"``. Later stages keep both apart from what is early: they otherwise compute equal things
once, and in one kernel what is read together.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence

import torch.fx

from aot_autograd.partition.norms import forget_statistics
from aot_autograd.partition.softmax import spell_out
from aot_autograd.partition.split import copy_with_operands
from aot_autograd.trace.outcome import Joint, Outcome
from prims.ir import Envelope
from prims.ir.nodes import copy_node
from prims.options import Options
from prims.spec import Sym

__all__ = ["compute_again"]


def compute_again(
    env: Envelope, outcome: Outcome, partition_fn: Callable[[Joint, Options], Sequence[torch.fx.Node]], options: Options
) -> Envelope:  # fmt: skip
    """The graph with nodes of their own for what its late part computes again; itself where nothing is late."""
    late = _late(env.graph)
    if not late or options.numerics != "fast":  # otherwise eager's own operators are as they are
        return env
    forget_statistics(env.graph)
    spell_out(env.graph)
    late = _late(env.graph)
    for node in late:
        node.meta["backward"] = True
    unwritten = copy.copy(outcome)
    unwritten.mutations = []  # inputs are written when all of the graph has run
    joint = Joint(env, unwritten, [], [])
    if options.memory_limit is not None:  # what a step of one graph takes at its peak is not estimated
        options = options.replace(memory_budget=1.0)
    return env.replace(graph=_rewritten(env.graph, late, set(partition_fn(joint, options))))


def _late(graph: torch.fx.Graph) -> dict[torch.fx.Node, None]:
    """The nodes that hang on a derivative, in order."""
    late: dict[torch.fx.Node, None] = {}
    for node in graph.nodes:
        if node.op == "call_function" and ("derivative" in node.meta or any(x in late for x in node.all_input_nodes)):
            late[node] = None
    return late


def _rewritten(
    graph: torch.fx.Graph, late: dict[torch.fx.Node, None], saved: set[torch.fx.Node]
) -> torch.fx.Graph:  # fmt: skip
    made = torch.fx.Graph()
    early: dict[torch.fx.Node, torch.fx.Node] = {}
    again: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        if node.op == "output":
            made.output(torch.fx.map_arg(node.args[0], lambda x: again[x] if x in late else early[x]))
        elif node in late:
            last = next(iter(reversed(made.nodes)), None)
            copy_with_operands(node, made, again)
            for copies in _behind(last, made):  # a normalisation made again is several
                copies.meta["late"] = "again"
            again[node].meta["late"] = "gradient"
        else:
            early[node] = copy_node(made, node, early.__getitem__)
            if node.op != "call_function" or node in saved or isinstance(node.meta["spec"], (Sym, int, float)):
                again[node] = early[node]
    return made


def _behind(last: torch.fx.Node | None, graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """The nodes that stand behind one in a graph, from its end on."""
    for node in reversed(graph.nodes):
        if node is last:
            return
        yield node
