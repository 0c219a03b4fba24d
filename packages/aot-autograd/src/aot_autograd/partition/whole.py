"""What a derivative within one graph computes again.

A training step that is captured as a whole is one graph: no forward graph hands anything over to a backward graph, but
what the forward part computes for the backward part is in memory between them all the same. The same choice is made
here (:mod:`.mincut`): what hangs on a gradient is *late*, and takes the forward values that the minimum cut keeps; the
others it has made again, in nodes of its own. Lowering keeps these apart from the nodes that they repeat
(``meta["late"]``), as it otherwise computes equal things once.

It is done where ``memory_budget`` is below 1 or a size. It is not the default as yet: fusion may still join a kernel
that computes something again with the one that computed it first, which then writes both (4 convolutions with batch
norms and SiLUs in float32 take 13.0 MB instead of 11.8; 4 perceptrons in bfloat16 29.6 instead of 63.2).
"""

from __future__ import annotations

import copy

import torch.fx

from aot_autograd.partition.mincut import min_cut_partition
from aot_autograd.partition.norms import forget_running
from aot_autograd.partition.softmax import spell_out
from aot_autograd.partition.split import copy_with_operands
from aot_autograd.trace.outcome import Joint, Outcome
from prims.ir import Envelope
from prims.ir.nodes import copy_node
from prims.options import Options
from prims.spec import Sym

__all__ = ["compute_again"]


def compute_again(env: Envelope, outcome: Outcome, options: Options) -> Envelope:
    """The graph with nodes of their own for what its late part computes again; itself where nothing is late."""
    late = _late(env.graph)
    if not late or options.numerics != "fast":  # otherwise eager's own operators are as they are
        return env
    forget_running(env.graph)
    spell_out(env.graph)
    late = _late(env.graph)
    for node in late:
        node.meta["backward"] = True
    unwritten = copy.copy(outcome)
    unwritten.mutations = []  # inputs are written when all of the graph has run
    joint = Joint(env, unwritten, [], [])
    if options.memory_limit is not None:  # what a step of one graph takes at its peak is not estimated
        options = options.replace(memory_budget=1.0)
    return env.replace(graph=_rewritten(env.graph, late, set(min_cut_partition(joint, options))))


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
            copied = len(again)
            copy_with_operands(node, made, again)
            for copies in list(again.values())[copied:]:
                copies.meta["late"] = True
        else:
            early[node] = copy_node(made, node, early.__getitem__)
            if node.op != "call_function" or node in saved or isinstance(node.meta["spec"], (Sym, int, float)):
                again[node] = early[node]
    return made
