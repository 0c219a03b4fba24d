"""Saved values that wait in host memory between the forward and the backward pass.

A copy begins when a value is there, and the computation waits for it when so much more has begun to be copied that a
part of all is under way: by then it is mostly done, and no more than that part lies on the device beside what is
computed. The backward pass begins to read values back that part ahead of where the first gradient needs them. What the
forward pass computes last is what the backward pass needs first: it stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
import torch.fx

from aot_autograd.partition.costs import number, size_in_bytes
from aot_autograd.partition.peak import hints_of, memory_of
from aot_autograd.partition.split import Partition
from prims.ir import Envelope
from prims.ir.nodes import copy_node
from prims.options import Options
from prims.records import record
from prims.spec import TensorSpec, infer
from prims.transfers import AT_DEVICE, AT_HOST, TO_DEVICE, TO_HOST

__all__ = ["offloaded", "offloaded_within"]

#: Bytes from which a value is worth the two launches and the wait of a copy: 1 MiB takes about 20 µs by PCI Express 5.
LEAST = 1 << 20
#: The part of all that goes to the host and may be under way.
UNDER_WAY = 8


@record
class _Moved:
    """A value that goes to the host.

    Attributes:
        value: its node in the forward pass.
        slot: its place among the saved values; None within one graph.
    """

    value: torch.fx.Node
    slot: int | None
    bytes: int


def offloaded(parts: Partition, options: Options) -> tuple[Partition, int]:
    """The graphs with saved values sent to host memory, as ``options.offload`` says, and how many bytes these are."""
    results = parts.forward.results()
    saved = [
        (results[at], slot) for slot, (kind, at) in enumerate(parts.saved)
        if kind == "output" and parts.forward.outputs[at].kind == "saved"
    ]  # fmt: skip
    moved = _chosen(parts.forward, saved, results, options)
    if not moved:
        return parts, 0
    room = _room(moved)
    graph, copies = parts.forward.copy_graph()
    hosts = _send(graph, [(one, copies[one.value]) for one in moved], room, graph.output_node())
    places = {node: k for k, node in enumerate(results) if isinstance(node, torch.fx.Node)}
    returned, outputs = list(graph.output_node().args[0]), list(parts.forward.outputs)  # type: ignore[arg-type]
    for one, host in zip(moved, hosts, strict=True):
        at = places[one.value]
        returned[at], outputs[at] = host, replace(outputs[at], spec=host.meta["spec"])
    graph.output_node().args = (tuple(returned),)
    forward = parts.forward.replace(graph=graph, outputs=tuple(outputs))
    backward = _fetching(parts.backward, moved, [host.meta["spec"] for host in hosts], room)
    return replace(parts, forward=forward, backward=backward), sum(one.bytes for one in moved)


def offloaded_within(env: Envelope, options: Options) -> tuple[Envelope, int, int]:
    """The same for a graph that takes its own derivatives, in which the nodes of these are marked as late; how many
    values, and bytes."""
    late = [node for node in env.graph.nodes if node.meta.get("late") is not None]
    taken = dict.fromkeys(x for node in late for x in node.all_input_nodes)
    crossing = [x for x in taken if x.op == "call_function" and "late" not in x.meta]
    returned = [node for node in env.results() if isinstance(node, torch.fx.Node)]
    given = set(returned)
    saved = [(node, None) for node in crossing if node not in given]
    moved = _chosen(env, saved, list(dict.fromkeys((*returned, *crossing))), options)
    if not moved:
        return env, 0, 0
    room = _room(moved)
    graph, copies = env.copy_graph()
    position = {node: k for k, node in enumerate(env.graph.nodes)}
    is_before = position[moved[-1].value] < position[late[0]]  # not so where a loss takes a gradient at once
    needed: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in late:
        for value in node.all_input_nodes:
            needed.setdefault(copies[value], copies[node])
    end = copies[late[0]] if is_before else None
    hosts = _send(graph, [(one, copies[one.value]) for one in moved], room, end, needed)
    fetch = [(one.bytes, copies[one.value], host, one.value) for one, host in zip(moved, hosts, strict=True)]
    _fetch(graph, [copies[node] for node in late], fetch, room, "again")
    return env.replace(graph=graph), len(moved), sum(one.bytes for one in moved)


def _chosen(
    env: Envelope, saved: Sequence[tuple[torch.fx.Node, int | None]], results: Sequence[Any], options: Options
) -> list[_Moved]:
    """Those that the forward pass computes first, up to what is asked for, in that order."""
    hints = hints_of(env)
    position = {node: k for k, node in enumerate(env.graph.nodes)}
    shared = _memories(results)
    moved = []
    for node, slot in sorted(saved, key=lambda pair: position[pair[0]]):
        spec = node.meta["spec"]
        if not isinstance(spec, TensorSpec) or spec.device.type not in _DEVICES:
            continue
        size, memory = size_in_bytes(spec, hints), memory_of(node)
        if size >= LEAST and shared[memory] == 1 and memory.op != "placeholder" and _fills_its_memory(spec, hints):
            moved.append(_Moved(node, slot, size))
    room = _room(moved)
    while moved and room > 0:  # what would still be under way when the backward pass begins
        room -= moved.pop().bytes
    if options.offload_limit is None:
        return moved
    count, limit = 0, options.offload_limit
    while count < len(moved) and limit > 0:
        limit -= moved[count].bytes
        count += 1
    return moved[:count]


#: Devices with memory of their own.
_DEVICES = ("cuda",)


def _room(moved: Sequence[_Moved]) -> int:
    """The bytes that may be under way."""
    return max(sum(one.bytes for one in moved) // UNDER_WAY, max((one.bytes for one in moved), default=0))


def _memories(results: Sequence[Any]) -> dict[torch.fx.Node, int]:
    """By the node whose memory it is, how many of the results lie in it."""
    found: dict[torch.fx.Node, int] = {}
    for node in results:
        if isinstance(node, torch.fx.Node):
            found[memory_of(node)] = found.get(memory_of(node), 0) + 1
    return found


def _fills_its_memory(spec: TensorSpec, hints: Mapping[str, Any]) -> bool:
    """Is it dense, so that a copy of its strides takes no more than its elements?"""
    sizes, strides = ([number(n, hints) for n in row] for row in (spec.shape, spec.strides))
    return 1 + sum(stride * (size - 1) for stride, size in zip(strides, sizes, strict=True)) == math.prod(sizes)


def _call(graph: torch.fx.Graph, target: Any, args: tuple[Any, ...], like: torch.fx.Node) -> torch.fx.Node:
    made = graph.call_function(target, args)
    specs = [arg.meta["spec"] if isinstance(arg, torch.fx.Node) else arg for arg in args]
    made.meta["spec"] = infer(target, tuple(specs))
    made.meta.update({key: like.meta[key] for key in ("source", "backward") if key in like.meta})
    return made


def _send(
    graph: torch.fx.Graph, values: Sequence[tuple[_Moved, torch.fx.Node]], room: int, end: torch.fx.Node | None,
    needed: Mapping[torch.fx.Node, torch.fx.Node] = MappingProxyType({}),
) -> list[torch.fx.Node]:  # fmt: skip
    """Send values, in their order in the graph; the copies that are waited for.

    Args:
        end: before which the last are waited for; None: as soon as they have begun.
        needed: by value the node of this graph for which it is fetched first.
    """
    order = {node: k for k, node in enumerate(graph.nodes)} if needed else {}
    waiting: list[tuple[int, torch.fx.Node, torch.fx.Node]] = []
    hosts: list[torch.fx.Node] = []

    def wait_after(node: torch.fx.Node) -> torch.fx.Node:
        _, value, host = waiting.pop(0)
        with graph.inserting_after(node):
            hosts.append(_call(graph, AT_HOST, (host, value), value))
        return hosts[-1]

    at = values[0][1]
    for one, value in values:
        while any(order[needed[other]] < order[value] for _, other, _ in waiting if other in needed):
            at = wait_after(at)
        with graph.inserting_after(value):
            at = _call(graph, TO_HOST, (value,), value)
        waiting.append((one.bytes, value, at))
        while sum(size for size, _, _ in waiting) > room and len(waiting) > 1:
            at = wait_after(at)
    at = at if end is None else end.prev
    while waiting:
        at = wait_after(at)
    return hosts


def _fetching(env: Envelope, moved: Sequence[_Moved], specs: Sequence[TensorSpec], room: int) -> Envelope:
    """The backward graph, which fetches the values that it is given."""
    placeholders = env.placeholders()
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in (*placeholders, *_as_gradients_need(env, placeholders)):
        copies[node] = copy_node(graph, node, copies.__getitem__)
    inputs = list(env.inputs)
    fetch = []
    for one, spec in zip(moved, specs, strict=True):
        assert one.slot is not None
        given = placeholders[one.slot]
        inputs[one.slot] = replace(inputs[one.slot], spec=spec)
        copies[given].meta["spec"] = spec
        fetch.append((one.bytes, copies[given], copies[given], given))
    _fetch(graph, [node for node in graph.nodes if node.op != "placeholder"], fetch, room, None)
    return env.replace(graph=graph, inputs=tuple(inputs))


#: The bytes of a value; the node that reads it now; the node that holds it on the host; one with what is known of it.
_Fetch = tuple[int, torch.fx.Node, torch.fx.Node, torch.fx.Node]


def _fetch(
    graph: torch.fx.Graph, readers: Sequence[torch.fx.Node], values: Sequence[_Fetch], room: int, late: str | None
) -> None:
    """Have readers, in their order, take values that have come from the host.

    Args:
        late: the mark of what this takes.
    """
    first: dict[torch.fx.Node, int] = {}
    taking = set(readers)
    for k, node in enumerate(readers):
        for operand in node.all_input_nodes:
            first.setdefault(operand, k)
    readers_of = {value: [node for node in value.users if node in taking] for _, value, _, _ in values}
    uses = sorted(values, key=lambda value: first[value[1]])
    begun: list[tuple[int, torch.fx.Node]] = []

    def call(target: Any, args: tuple[Any, ...], like: torch.fx.Node) -> torch.fx.Node:
        made = _call(graph, target, args, like)
        made.meta.update({} if late is None else {"late": late})
        return made

    def begin(least: int, reader: torch.fx.Node) -> None:
        """Begin what is on the host before a reader and fits beside what is under way, and at least so many of all."""
        while started[0] < len(uses):
            size, _, host, known = uses[started[0]]
            fits = sum(other for other, _ in begun) + size <= room and order[host] < order[reader]
            if started[0] >= least and not fits:
                return
            begun.append((size, call(TO_DEVICE, (host, known.meta["spec"].device), known)))
            started[0] += 1

    started = [0]
    order = {node: k for k, node in enumerate(graph.nodes)}
    for k, (_, value, _, known) in enumerate(uses):
        reader = readers[first[value]]
        with graph.inserting_before(reader):
            begin(k + 1, reader)
            fetched = call(AT_DEVICE, (begun.pop(0)[1],), known)
        for node in readers_of[value]:
            node.replace_input_with(value, fetched)
        with graph.inserting_before(reader):
            begin(0, reader)


def _as_gradients_need(env: Envelope, placeholders: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """The nodes in their order, but what hangs on no gradient just before one that does needs it."""
    dependent = {node for node, desc in zip(placeholders, env.inputs, strict=True) if desc.kind == "tangent"}
    placed: dict[torch.fx.Node, None] = dict.fromkeys(placeholders)

    def place(node: torch.fx.Node) -> None:
        todo = [node]
        while todo:
            missing = [operand for operand in todo[-1].all_input_nodes if operand not in placed]
            if missing:
                todo += missing[::-1]
            else:
                placed.setdefault(todo.pop())

    for node in env.graph.nodes:
        if node.op == "placeholder":
            continue
        if not dependent.isdisjoint(node.all_input_nodes):
            dependent.add(node)
        if node in dependent or node.op == "output":
            place(node)
    return [node for node in placed if node.op != "placeholder"]
