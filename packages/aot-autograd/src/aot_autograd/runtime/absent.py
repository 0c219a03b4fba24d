"""The backward graph where some results have no gradient."""

from __future__ import annotations

import torch
import torch.fx

from aot_autograd.trace.outcome import remove_dead
from aot_autograd.trace.views import memory_order
from prims.ir import Envelope, SymbolTable
from prims.spec import TensorSpec, infer

__all__ = ["without_tangents"]

aten = torch.ops.aten


def without_tangents(env: Envelope, absent: tuple[bool, ...]) -> tuple[Envelope, list[int]]:
    """The backward graph when some tangents are zero, and which of its outputs remain.

    A backward pass is linear in its tangents: a value computed from absent ones alone is absent too, a sum with an
    absent term is the other term, and elsewhere an absent operand is a tensor of zeros. Where the other term is laid
    out otherwise than the sum, -0.0 is added to it, which leaves its zeros' signs as they are. A custom function's
    backward may be anything: it is left out when no tangent calls it, and else gets zeros for what is absent.
    """
    graph = torch.fx.Graph()
    mapping: dict[torch.fx.Node, torch.fx.Node | None] = {}
    inputs = []
    dependent: set[torch.fx.Node] = set()
    tangent = 0
    for node, desc in zip(env.placeholders(), env.inputs, strict=True):
        if desc.kind == "tangent":
            dependent.add(node)
            tangent += 1
            if absent[tangent - 1]:
                mapping[node] = None
                continue
        mapping[node] = graph.node_copy(node)
        inputs.append(desc)
    for node in env.graph.nodes:
        if node.op != "call_function":
            continue
        linear = [source for source in node.all_input_nodes if source in dependent]
        called_by = node.meta.get("called_by")
        if linear or called_by is not None:
            dependent.add(node)
        missing = [source for source in linear if mapping[source] is None]
        other = _other_term(node, mapping) if missing and called_by is None else None
        if called_by is None:
            left_out = bool(linear) and len(missing) == len(linear)
        else:
            left_out = all(absent[tangent] for tangent in called_by)
        if other is not None:
            mapping[node] = other
        elif left_out:
            zeros = any(not absent[tangent] for tangent in node.meta.get("beside_zeros", ()))
            mapping[node] = _zeros(graph, node) if zeros else None
        else:
            for source in missing:
                mapping[source] = _zeros(graph, source, -0.0 if _is_sum(node) else 0)
            mapping[node] = graph.node_copy(node, lambda source: mapping[source])  # type: ignore[arg-type,return-value]
            for source in missing:
                mapping[source] = None
    kept = [i for i, result in enumerate(env.results()) if mapping[result] is not None]
    results = env.results()
    graph.output(tuple(mapping[results[i]] for i in kept))
    remove_dead(graph)
    symbols = SymbolTable.from_inputs(tuple(inputs), env.symbols.context)
    pruned = env.replace(
        graph=graph, inputs=tuple(inputs), outputs=tuple(env.outputs[i] for i in kept), symbols=symbols
    )
    return pruned, kept


def _other_term(node: torch.fx.Node, mapping: dict[torch.fx.Node, torch.fx.Node | None]) -> torch.fx.Node | None:
    """The present term of a sum of two, if it alone has the sum's metadata."""
    if not _is_sum(node):
        return None
    for term in node.args:
        present = mapping[term]  # type: ignore[index]
        if present is not None:
            same = term.meta["spec"] == node.meta["spec"]  # type: ignore[union-attr]
            return present if same else None
    return None


def _is_sum(node: torch.fx.Node) -> bool:
    operands = all(isinstance(a, torch.fx.Node) for a in node.args)
    return node.target is aten.add.Tensor and not node.kwargs and len(node.args) == 2 and operands


def _zeros(graph: torch.fx.Graph, node: torch.fx.Node, zero: float = 0) -> torch.fx.Node:
    spec = node.meta["spec"]
    if not isinstance(spec, TensorSpec):
        raise NotImplementedError(f"zeros in place of the results of {node.target}")
    order = memory_order(spec) or list(range(spec.ndim))
    shape = tuple(spec.shape[d] for d in order)
    made = graph.call_function(aten.full.default, (list(shape), zero), {"dtype": spec.dtype, "device": spec.device})
    made.meta["spec"] = TensorSpec(shape, spec.dtype, spec.device)
    if order != sorted(order):  # what is computed of them is laid out as it would be of the absent value
        zeros, places = made.meta["spec"], [order.index(d) for d in range(spec.ndim)]
        made = graph.call_function(aten.permute.default, (made, places))
        made.meta["spec"] = infer(aten.permute.default, (zeros, places), {})
    return made
