"""Which clusters are built alike, so that one is traced, arranged and rendered, and the others take over what was made.

A key has all that a kernel is made of but which buffers it is about: the clusters' nodes and whatever they take through
views and values that are computed in place, down to the buffers, in the order in which they are met. Of each node
everything that tracing, cutting, arranging and rendering may ask (kind, operator, arguments, shape, type, device,
layout, whether it is computed in place, stored, and at which index), and by number what it takes and whose buffer it is
in. Two clusters of one key differ in the identities of nodes alone, and what is made of one is the other's with the
nodes put in their places. What depends on more than that (which memory may be written over) is asked for each.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import torch

from inductor_gen.fuse.cluster import Cluster, Fusion
from inductor_gen.kernel.body import Body, Store, Val
from inductor_gen.kernel.nest import Nest
from inductor_gen.layout.record import Layout, Prepared, whole
from inductor_gen.loops.graph import Node
from prims.ir.symbols import expr_of

__all__ = ["Structures", "literal", "rebound"]


def literal(x: Any, places: Mapping[Node, int]) -> Hashable:
    """An argument as part of a key: nodes by place, and numbers that are equal and not the same (1, 1.0 and True; 0.0
    and -0.0) told apart. What is unknown is only like itself."""
    kind = type(x)
    if kind is Node:
        return "node", places[x]
    if kind is tuple or kind is list:
        return kind, tuple([literal(v, places) for v in x])
    if kind is dict:
        return kind, tuple([(k, literal(v, places)) for k, v in x.items()])
    if kind is float:
        return kind, x.hex()
    if kind is complex:
        return kind, x.real.hex(), x.imag.hex()
    if kind is int or kind is bool or kind is str or x is None:
        return kind, x
    inner = expr_of(x)
    if inner is not None:
        return kind, inner
    return kind, x if isinstance(x, (torch.dtype, torch.device)) else id(x)


class Structures:
    """The keys of a fused graph's clusters."""

    def __init__(self, prepared: Prepared, fusion: Fusion, layouts: Mapping[Node, Layout]) -> None:
        self.prepared = prepared
        self.fusion = fusion
        self.layouts = layouts
        self._forms: dict[tuple[Node, bool], int] = {}
        self._numbers: dict[Hashable, int] = {}

    def of(self, cluster: Cluster, stored: Collection[Node]) -> tuple[Hashable, list[Node]]:
        """A cluster's key, and the nodes that it is about, in order."""
        homes, inlined, scattered = cluster.homes, self.fusion.inlined, self.prepared.scattered
        number = {node: k for k, node in enumerate(cluster.nodes)}
        nodes = list(cluster.nodes)
        facts: list[Hashable] = [cluster.loops, tuple(cluster.space.items()), cluster.inner, len(nodes)]
        for node in nodes:  # which grows
            inside, in_place = node in homes, node in inlined
            computed = inside or in_place or node.kind in ("view", "create")
            layout = self.layouts.get(node)
            facts += (self._form(node, computed), in_place, node in scattered, layout and layout.strides)
            if inside:
                facts += (node in stored, cluster.operands[node], homes[node])
            takes = node.ins if computed else ()
            for x in (*takes, whole(scattered[node])) if node in scattered else takes:
                if x not in number:
                    number[x] = len(nodes)
                    nodes.append(x)
                facts.append(number[x])
        return tuple(facts), nodes

    def _form(self, node: Node, computed: bool) -> int:
        """The number of what a node is, but for what it takes; of one that is only a buffer, how it is made is nothing
        to a kernel."""
        found = self._forms.get((node, computed))
        if found is None:
            form: tuple[Hashable, ...] = (node.kind, node.shape, node.dtype, node.device)
            if computed:
                places = {x: k for k, x in enumerate(node.ins)}
                form = (*form, node.op, node.late, literal(node.args, places), literal(node.kwargs, places))
            found = self._forms[node, computed] = self._numbers.setdefault(form, len(self._numbers))
        return found


def rebound(nest: Nest, nodes: Mapping[Node, Node], like: Sequence[Node]) -> Nest:
    """A nest with other nodes in the places of its own; ``like`` are those, in the order of the key."""
    copies: dict[int, Val] = {}
    body = nest.body
    for v in body.vals:
        attr = nodes[v.attr] if v.op == "load" else v.attr
        copy = Val(v.op, tuple([copies[a.id] for a in v.args]), v.dtype, attr, v.at)
        copy.id, copy.deps, copy.stage = v.id, v.deps, v.stage
        copy.node = None if v.node is None else nodes[v.node]
        copy.number = None if v.number is None else nodes[v.number]
        copies[v.id] = copy
    made = Body(
        list(body.outer), list(body.inner), dict(body.space), list(copies.values()),
        [Store(nodes[s.buffer], s.at, copies[s.value.id], s.mode) for s in body.stores],
        {e: copies[v.id] for e, v in body.atoms.items()}, [nodes[n] for n in body.nodes], body.parts,
    )  # fmt: skip
    found = Nest(made, list(nest.outer), list(nest.inner), nest.lane)
    found.like = nest, like
    return found
