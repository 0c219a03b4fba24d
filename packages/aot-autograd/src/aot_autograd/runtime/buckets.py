"""A backward graph cut where buckets of gradients are complete, so that each can be handed over then.

The first section holds what the gradients of the first bucket need and nothing else, the second what those of the
second need beside that, and so on. A section also holds everything that reads a parameter whose gradient it completes:
whoever gets a gradient may write the parameter, as an optimizer does that runs in the backward pass. In eager a
parameter's readers have run by then too, for one autograd node reads it and gives its gradient.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch.fx import Node

from aot_autograd.partition.split import is_random, is_view
from aot_autograd.runtime.sections import Section, cross, makes_symbols
from aot_autograd.trace.opinfo import op_info
from prims.ir import Envelope
from prims.spec import TensorSpec

__all__ = ["buckets", "cut", "parameters_read"]


def buckets(
    env: Envelope, parameters: Sequence[bool], read: Mapping[int, Collection[int]], limits: Sequence[int]
) -> list[list[int]]:
    """The gradients (by place among the backward graph's outputs) that are handed over together, in order.

    They come in the order in which the backward graph computes them, which is the order in which eager's would come.
    A bucket is complete when its bytes come to its limit; the last holds what no parameter is, too. What has been
    computed by the end of a bucket (a bias' gradient with that of an operator's input) is in it. There is one if the
    graph cannot be cut.

    Args:
        env: the backward graph.
        parameters: by output, whether it is the gradient of a parameter.
        read: by output, the inputs that hold the parameter whose gradient it is.
        limits: bytes of the first buckets; the last number counts for all that follow.
    """
    places = {node: k for k, node in enumerate(env.graph.nodes)}
    results = env.results()
    if makes_symbols(env) or any(map(_has_effect, env.op_nodes)):
        return [list(range(len(results)))]
    ordered = sorted((k for k, known in enumerate(parameters) if known), key=lambda k: places[results[k]])
    groups: list[list[int]] = [[]]
    filled = 0
    for k in ordered:
        if filled >= limits[min(len(groups), len(limits)) - 1]:
            groups.append([])
            filled = 0
        groups[-1].append(k)
        filled += _bytes(env.outputs[k].spec)
    placed = _placed(env, groups, read)
    placeholders = env.placeholders()
    found: list[list[int]] = [[] for _ in groups]
    for number, group in enumerate(groups):
        for k in group:
            readers = _readers(placeholders[i] for i in read.get(k, ()))
            at = [placed.get(node, number) for node in (results[k], *readers)]
            found[max(at)].append(k)
    found[-1] += [k for k, known in enumerate(parameters) if not known]
    return [group for group in found if group]


def parameters_read(saved: Sequence[tuple[str, int]], gradients: Sequence[int]) -> dict[int, list[int]]:
    """By gradient, the inputs of the backward graph that hold the parameter whose gradient it is.

    Args:
        saved: where the saved values are found (``Partition.saved``).
        gradients: by gradient, the input that it belongs to.
    """
    held: dict[int, list[int]] = {}
    for place, (kind, at) in enumerate(saved):
        if kind == "input":
            held.setdefault(at, []).append(place)
    return {k: held[i] for k, i in enumerate(gradients) if i in held}


def _bytes(spec: object) -> int:
    if not isinstance(spec, TensorSpec):
        return 0
    count = spec.dtype.itemsize
    for size in spec.shape:
        count *= size if isinstance(size, int) else size.hint or 1
    return count


def _has_effect(node: Node) -> bool:
    """Whether its order among others of its kind can be seen."""
    return is_random(node) or (isinstance(node.target, torch._ops.OpOverload) and op_info(node.target).effect)


def cut(env: Envelope, groups: Sequence[Sequence[int]], read: Mapping[int, Collection[int]]) -> list[Section]:
    """The sections of a backward graph, one per group of its outputs.

    Args:
        env: the backward graph.
        groups: its outputs, each in one group.
        read: by output, the inputs that hold the parameter whose gradient it is.
    """
    placed = _placed(env, groups, read)
    sections = [Section() for _ in groups]
    for node in env.graph.nodes:
        if node in placed:
            sections[placed[node]].nodes.append(node)
    cross(sections, env.results())
    return sections


def _placed(env: Envelope, groups: Sequence[Sequence[int]], read: Mapping[int, Collection[int]]) -> dict[Node, int]:
    """The section of each node: the first of those that need it."""
    placeholders, results = env.placeholders(), env.results()
    place: dict[Node, int] = {}
    for k, group in enumerate(groups):
        place.update(dict.fromkeys(_behind([results[output] for output in group], place), k))
        held = [placeholders[i] for output in group for i in read.get(output, ())]
        place.update(dict.fromkeys(_behind(_readers(held), place), k))
    return place


def _behind(nodes: Iterable[Node], known: Collection[Node]) -> set[Node]:
    """The nodes and all that they are computed from, as far as it is not known; all results of an operator at once."""
    found: set[Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node.op != "call_function" or node in found or node in known:
            continue
        found.add(node)
        stack.extend(node.all_input_nodes)
        stack.extend(user for user in node.users if user.target is operator.getitem and user.args[0] is node)
    return found


def _readers(held: Iterable[Node]) -> list[Node]:
    """What reads these inputs, through views too."""
    found: list[Node] = []
    stack = list(held)
    while stack:
        for user in stack.pop().users:
            if user.op == "call_function":
                (stack if is_view(user) else found).append(user)
    return found
