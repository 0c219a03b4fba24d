"""When and how a region's program can be run again for derivatives of gradients: decided once, of its joint graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from aot_autograd.partition.costs import is_fusible, size_in_bytes
from aot_autograd.partition.peak import hints_of
from aot_autograd.partition.split import Partition, is_random
from aot_autograd.runtime.plans import AgainPlan
from aot_autograd.trace.outcome import Joint
from prims.collectives import exchanges

__all__ = ["plan_again"]


def plan_again(
    joint: Joint, partition: Partition, eager: Callable[..., Any], kept: Sequence[int]
) -> AgainPlan:
    """Whether and how the program of a joint graph can be run again.

    Args:
        eager: the program; takes the caller's arguments.
        kept: the graph outputs that are saved behind those of the partition.
    """
    program = joint.outcome.program
    inputs = program.tracer.inputs
    saved = [at if kind == "output" else None for kind, at in partition.saved] + [*kept]
    tensors = [i for i, tensor in enumerate(program.tracer.input_tensors) if tensor is not None]
    tensors = [i for i in tensors if inputs[i].kind not in ("rng_seed", "tangent")]
    seeds = {desc.spec.device: i for i, desc in enumerate(inputs) if desc.kind == "rng_seed"}  # type: ignore[union-attr]
    leaves = _leaves_of_tangents(joint)
    written = frozenset(index for index, _, _ in joint.outcome.mutations)
    copied = frozenset(i for i in written if not only_statistics(joint, frozenset((i,))))
    return AgainPlan(
        arguments=program.arguments,
        grad_enabled=program.grad_enabled,
        autocast=tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")),
        tensors=tuple(tensors),
        weak=_weak(joint, partition, tensors),
        seeds=seeds,
        written=written,
        copied=copied,
        copies_cost=_cost(joint, copied),
        wanted=partition.gradients,
        leaves=tuple(leaves),
        saved=tuple(saved.index(output) if output in saved else None for output in joint.tangents),
        under=tuple(map(tuple, joint.under)),
        views=tuple(joint.views),
        bases=tuple(_base(joint, at) for at in joint.views),
        at_once=any(joint.under) or _has_hooks(eager),
        obstacle=_HOOKS if _stands_for_hooks(eager) else _obstacle(joint, partition, leaves, bool(seeds), copied),
    )


_HOOKS = "it puts a hook on what it computes"

#: The part of a program's own traffic that copies of what it writes may be, and bytes that cost nothing beside a call.
COPIED, NOTHING = 1 / 16, 4096


def _cost(joint: Joint, copied: frozenset[int]) -> bool:
    hints = hints_of(joint.envelope)
    sizes = [size_in_bytes(desc.spec, hints) for desc in joint.envelope.inputs]
    moved = sum(sizes) + sum(size_in_bytes(desc.spec, hints) for desc in joint.envelope.outputs)
    copies = sum(sizes[i] for i in copied)
    return copies > max(NOTHING, COPIED * moved)


def _base(joint: Joint, at: int) -> int:
    leaf = joint.outcome.leaves[at]
    return ~leaf.index if leaf.kind == "input" else joint.tangents.index(leaf.index)


def _weak(joint: Joint, partition: Partition, tensors: Sequence[int]) -> frozenset[int]:
    """The inputs that a call does not keep.

    What is no parameter, leaf or constant may be an activation, which must not live on for this; but one with a history
    of which what is saved is made at little cost is kept: behind a graph break it has no other owner. What the program
    computes nothing from that counts is not saved for the backward pass, or by whoever made it.
    """
    program = joint.outcome.program
    inputs = program.tracer.inputs
    kept_for = _made_of(partition)
    unused = {i for i, node in enumerate(joint.envelope.placeholders()) if not node.users}
    return frozenset(
        i
        for i in tensors
        if inputs[i].kind == "input"
        and not (inputs[i].requires_grad and program.grad_fns.get(i) is None)
        and not (inputs[i].requires_grad and i in kept_for)
        and i not in unused
    )


def _leaves_of_tangents(joint: Joint) -> list[tuple[int, bool] | None]:
    """For each tangent the leaf of the program's result that it belongs to; and whether to that view's base."""
    found: dict[int, tuple[int, bool]] = {}
    for at, leaf in enumerate(joint.outcome.leaves):
        if leaf.kind == "output" and (leaf.index not in found or not leaf.steps):
            found[leaf.index] = (at, bool(leaf.steps))
    return [found.get(i) for i in joint.tangents]


def _obstacle(
    joint: Joint, partition: Partition, leaves: Sequence[Any], seeded: bool, copied: frozenset[int]
) -> str | None:
    program = joint.outcome.program
    if exchanges(joint.envelope.graph):
        return "it exchanges data with other processes"
    if any(map(is_random, joint.envelope.graph.nodes)):
        return "it draws random numbers from a generator's state"
    if seeded and program.tracer.draws_again:
        return "it draws random numbers inside a checkpoint"
    if any(through or i >= program.arguments for i, _, through in joint.outcome.mutations):
        return "it writes to its inputs"
    if any(program.tracer.inputs[i].requires_grad for i in copied):
        return "its results depend on inputs that it writes and that have gradients"
    if None in leaves:
        return "its results are views of one another"
    if any(i >= program.arguments and i not in program.lifted for i in partition.gradients):
        return "it has gradients for a constant of the program"
    return None


_aten = torch.ops.aten
#: Of a normalisation in training: places of the old statistics among its arguments, which it reads for the new ones
#: alone, of these in its result, and of the argument that says that it is in training.
_STATISTICS = {
    _aten._native_batch_norm_legit_functional.default: ((3, 4), (3, 4), 5),
    _aten._batch_norm_with_update_functional.default: ((3, 4), (4, 5), None),
    _aten.native_batch_norm_backward.default: ((3, 4), (), 7),
    _aten.batch_norm_backward.default: ((3, 4), (), 7),
}


def _has_hooks(program: Callable[..., Any]) -> bool:
    """Whether a program puts hooks on what it computes; each call of one is to see all of a gradient, or its part."""
    nodes = program.graph.nodes if isinstance(program, torch.fx.GraphModule) else ()
    return any(node.op == "call_method" and node.target == "register_hook" for node in nodes)


def _stands_for_hooks(program: Callable[..., Any]) -> bool:
    """Whether hooks are in a program's graph as functions that pass a tensor on. Gradients of gradients come to such a
    tensor in parts, also by what was saved of it, and a hook may be no sum of what it makes of parts."""
    nodes = program.graph.nodes if isinstance(program, torch.fx.GraphModule) else ()
    return any(getattr(node.target, "is_hook", False) for node in nodes if node.op == "call_function")


def only_statistics(joint: Joint, written: frozenset[int]) -> bool:
    """Whether nothing but the new values of the ``written`` inputs depends on their old ones.

    The statistics that a batch norm updates in training are such inputs, and so are counters.
    """
    envelope = joint.envelope
    old = {node for i, node in enumerate(envelope.placeholders()) if i in written}
    partly: dict[torch.fx.Node, tuple[int, ...]] = {}
    for node in envelope.graph.nodes:
        if node.op != "call_function" or not old.intersection(node.all_input_nodes):
            continue
        if node.target is operator.getitem and node.args[0] in partly:
            if node.args[1] in partly[node.args[0]]:
                old.add(node)
            continue
        places, results, training = _STATISTICS.get(node.target, ((), (), None))
        trains = training is None or node.args[training] is True
        others = [a for i, a in enumerate(node.args) if i not in places and isinstance(a, torch.fx.Node)]
        if places and trains and not old.intersection(others):
            partly[node] = results
        old.add(node)
    news = {output for _, output, _ in joint.outcome.mutations}
    return not any(node in old for i, node in enumerate(envelope.results()) if i not in news)


def _made_of(partition: Partition) -> set[int]:
    """The inputs of which what is saved is made by operators that cost about as little as saving it."""
    at = {node: i for i, node in enumerate(partition.forward.placeholders())}
    results = partition.forward.results()
    found: set[int] = set()
    stack = [results[i] for kind, i in partition.saved if kind == "output" and isinstance(results[i], torch.fx.Node)]
    seen = set(stack)
    while stack:
        node = stack.pop()
        if node in at:
            found.add(at[node])
        elif is_fusible(node):
            fresh = [operand for operand in node.all_input_nodes if operand not in seen]
            seen.update(fresh)
            stack += fresh
    return found
