"""Splitting a joint graph in two, once the values to save between them have been chosen.

A partitioner only chooses: it returns the forward values that the backward graph receives. Everything else that the
backward needs is computed again from them. Any choice from which that is possible gives right gradients.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

import aot_autograd
from aot_autograd.partition.norms import operands_of_norm, rebuild_norm
from aot_autograd.partition.visible import copied
from aot_autograd.trace.opinfo import op_info, runs_once
from aot_autograd.trace.outcome import ATEN_VERSION, Joint, symbols_of_results
from prims.errors import InternalError
from prims.ir import Envelope, InputDesc, OutputDesc, SymbolTable
from prims.ir.metadata import same_spec
from prims.ir.nodes import copy_node
from prims.ir.symbols import expr_of, made_symbols, sizes_of, symbols_of
from prims.records import record
from prims.spec import Sym, TensorSpec, infer

__all__ = [
    "Partition",
    "copy_with_operands",
    "is_backward",
    "is_random",
    "is_view",
    "needed_by_backward",
    "operands_to_run_again",
    "split_joint",
]

aten = torch.ops.aten


@record
class Partition:
    """Forward and backward graphs and what goes between them.

    Attributes:
        forward: returns the joint graph's forward outputs, then the saved values that are neither inputs nor outputs,
            then the unbacked symbols that somebody needs.
        backward: takes the saved values, the sizes, and the tangents; returns the gradients that exist.
        saved: where the forward's runtime finds each saved value: ``("input" | "output", index)``.
        sizes: the symbols whose values are handed over.
        gradients: by backward output, the index of the input that the gradient belongs to.
    """

    forward: Envelope
    backward: Envelope
    saved: tuple[tuple[str, int], ...]
    sizes: tuple[Any, ...]
    gradients: tuple[int, ...]


def is_backward(node: torch.fx.Node) -> bool:
    """Whether a node of a joint graph belongs to the backward pass."""
    return "backward" in node.meta


def is_view(node: torch.fx.Node) -> bool:
    """Whether a node only looks at its first argument's memory."""
    return isinstance(node.target, torch._ops.OpOverload) and op_info(node.target).kind == "view"


def is_random(node: torch.fx.Node) -> bool:
    """Whether a node must not run again: it draws random numbers, or exchanges data with other processes."""
    target = node.target
    if target is operator.getitem:
        return is_random(node.args[0])  # type: ignore[arg-type]
    return isinstance(target, torch._ops.OpOverload) and runs_once(target, node.args, node.kwargs)


def needed_by_backward(joint: Joint) -> list[torch.fx.Node]:
    """The forward values (inputs included, tangents not) that the backward nodes and the gradients use directly."""
    inputs = zip(joint.envelope.placeholders(), joint.envelope.inputs, strict=True)
    tangents = {node for node, desc in inputs if desc.kind == "tangent"}
    found: dict[torch.fx.Node, None] = {}

    def use(node: torch.fx.Node) -> None:
        if not is_backward(node) and node not in tangents:
            found[node] = None

    first = len(joint.outcome.nodes)
    for node in joint.envelope.graph.nodes:
        if is_backward(node):
            for source in node.all_input_nodes:
                use(source)
    for result in joint.envelope.results()[first:]:
        if isinstance(result, torch.fx.Node):
            use(result)
    return list(found)


def split_joint(joint: Joint, saved: Sequence[torch.fx.Node]) -> Partition:
    """The forward and backward envelopes for a choice of saved values.

    Args:
        joint: the joint graph.
        saved: forward values, each a tensor; the backward pass must be computable from them and the tangents.

    Raises:
        InternalError: it is not (a random operator would have to run twice, for one).
    """
    env = joint.envelope
    placeholders = env.placeholders()
    count = sum(desc.kind != "tangent" for desc in env.inputs)
    results = list(env.results())
    first = len(joint.outcome.nodes)
    forward_results: list[Any] = results[:first]
    written = {placeholders[index] for index, _, _ in joint.outcome.mutations}
    positions = {node: index for index, node in enumerate(placeholders[:count])}
    slots: list[tuple[str, int]] = []
    kept: list[torch.fx.Node] = []
    clones: dict[torch.fx.Node, None] = {}
    copies = copied(joint, saved)
    for node in dict.fromkeys(saved):
        kept.append(node)
        if node in positions and node not in written and node not in copies:
            slots.append(("input", positions[node]))
            continue
        at = next((i for i, result in enumerate(forward_results) if result is node), None)
        if at is None or node in copies:
            forward_results.append(node)
            at = len(forward_results) - 1
            if node in copies or _rests_on(node, written):
                clones[node] = None
        slots.append(("output", at))
    specs = {node: infer(aten.clone.default, (node.meta["spec"],)) for node in clones}
    backward, sizes, gradients = _backward(joint, kept, placeholders[count:], results[first:], copies, specs)
    forward = _forward(joint, placeholders[:count], forward_results, clones, _told_by_data(joint, sizes))
    return Partition(forward, backward, tuple(slots), sizes, gradients)


def _rests_on(node: torch.fx.Node, written: set[torch.fx.Node]) -> bool:
    """Whether a value shares memory with an input that the runtime overwrites after the forward pass."""
    while is_view(node):
        node = node.args[0]  # type: ignore[assignment]
    return node in written


def _told_by_data(joint: Joint, sizes: Iterable[Any]) -> list[Sym]:
    """The unbacked symbols that the backward pass, its tangents or the results need: the forward graph returns them."""
    context = joint.envelope.symbols.context
    if context is None:
        return []
    names = symbols_of([*sizes, *(spec.strides for spec in joint.tangent_specs)]) | symbols_of_results(joint.outcome)
    return [context.symbol(name) for name in sorted(names) if context.is_unbacked(name)]


def _forward(
    joint: Joint, placeholders: list[torch.fx.Node], results: list[Any], clones: dict[torch.fx.Node, None],
    sizes: list[Sym],
) -> Envelope:  # fmt: skip
    env = joint.envelope
    kept = (node for node in env.graph.nodes if not is_backward(node) and _stays(node))
    live = _reachable([*results, *kept, *made_symbols(env.graph)])
    graph = torch.fx.Graph()
    mapping: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in env.graph.nodes:
        if node.op == "placeholder":
            if len(mapping) < len(placeholders) and node in placeholders[len(mapping) : len(mapping) + 1]:
                mapping[node] = graph.node_copy(node)
        elif node.op == "call_function" and not is_backward(node) and node in live:
            mapping[node] = copy_node(graph, node, mapping.__getitem__)
    final = []
    first = len(joint.outcome.nodes)
    for position, result in enumerate(results):
        node = mapping[result]
        if position >= first and result in clones:
            made = graph.call_function(aten.clone.default, (node,))
            made.meta = {**node.meta, "spec": infer(aten.clone.default, (node.meta["spec"],))}
            node = made
        final.append(node)
    graph.output((*final, *sizes))
    outputs = list(env.outputs[:first])
    outputs += [OutputDesc("saved", node.meta["spec"]) for node in final[first:]]
    outputs += [OutputDesc("output", size) for size in sizes]
    inputs = env.inputs[: len(placeholders)]
    return env.replace(
        graph=graph,
        inputs=inputs,
        outputs=tuple(outputs),
        symbols=SymbolTable.from_inputs(inputs, env.symbols.context, graph),
    )


def _stays(node: torch.fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return op_info(node.target).effect or is_random(node)


def operands_to_run_again(node: torch.fx.Node) -> list[torch.fx.Node]:
    """What the backward pass needs in order to have a node's value again."""
    parts = None if is_backward(node) else operands_of_norm(node)
    return node.all_input_nodes if parts is None else parts


def _reachable(
    roots: Iterable[Any],
    stop: Iterable[torch.fx.Node] = (),
    operands: Callable[[torch.fx.Node], list[torch.fx.Node]] = lambda node: node.all_input_nodes,
) -> set[torch.fx.Node]:
    stops = set(stop)
    seen: set[torch.fx.Node] = set()
    stack = [root for root in roots if isinstance(root, torch.fx.Node)]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node not in stops:
            stack.extend(operands(node))
    return seen


def _backward(
    joint: Joint, saved: list[torch.fx.Node], tangents: list[torch.fx.Node], results: list[Any],
    copies: set[torch.fx.Node], specs: Mapping[torch.fx.Node, TensorSpec],
) -> tuple[Envelope, tuple[Any, ...], tuple[int, ...]]:  # fmt: skip
    """``specs``: of the saved values that are copies, which need not lie as what they are copies of."""
    env = joint.envelope
    placeholders = env.placeholders()
    elsewhere = copies.union(placeholders[index] for index, _, _ in joint.outcome.mutations)
    named = zip(placeholders, env.inputs, strict=True)
    kinds = {node: desc.kind for node, desc in named if desc.kind in ("parameter", "buffer", "constant")}
    live = _reachable(results, (*saved, *tangents), operands_to_run_again)
    graph = torch.fx.Graph()
    mapping: dict[torch.fx.Node, torch.fx.Node] = {}
    inputs: list[InputDesc] = []
    for position, node in enumerate(saved):
        name = f"saved_{position}"
        mapping[node] = placeholder = graph.placeholder(name)
        placeholder.meta["spec"] = spec = specs.get(node, node.meta["spec"])
        if "source" in node.meta:
            placeholder.meta["source"] = node.meta["source"]
        # A parameter outlives the backward pass, and is where it was.
        kind = kinds.get(node, "saved") if node not in elsewhere else "saved"
        inputs.append(InputDesc(name, kind, spec, source=node.name))
    body = [n for n in env.graph.nodes if n.op == "call_function" and n in live and n not in mapping]
    symbols = _symbols_of(joint, [*saved, *tangents, *body])
    for symbol in symbols:
        name = f"size_{symbol.expr}"  # its own name: a symbol that equals another prints as that one
        graph.placeholder(name).meta["spec"] = symbol
        inputs.append(InputDesc(name, "size", symbol))
    descs = [desc for desc in env.inputs if desc.kind == "tangent"]
    for node, desc in zip(tangents, descs, strict=True):
        mapping[node] = graph.placeholder(desc.name)
        mapping[node].meta.update(node.meta)
        inputs.append(desc)
    for node in (*(n for n in body if is_backward(n)), *results):
        if node is not None:
            copy_with_operands(node, graph, mapping)
    present = [(index, node) for index, node in zip(joint.gradients, results, strict=True) if node is not None]
    graph.output(tuple(mapping[node] for _, node in present))
    outputs = tuple(
        OutputDesc("gradient", mapping[node].meta["spec"], env.inputs[index].name) for index, node in present
    )
    envelope = Envelope(
        dialect="aten",
        version=ATEN_VERSION,
        producer="aot_autograd",
        producer_version=aot_autograd.__version__,
        graph=graph,
        inputs=tuple(inputs),
        outputs=outputs,
        symbols=SymbolTable.from_inputs(inputs, env.symbols.context),
        default_dtype=env.default_dtype,
    )
    return envelope, tuple(symbols), tuple(index for index, _ in present)


def copy_with_operands(
    node: torch.fx.Node, graph: torch.fx.Graph, mapping: dict[torch.fx.Node, torch.fx.Node]
) -> None:
    """Copy a node, after the forward values that it uses: each is computed again just before its first use."""
    stack = [node]
    while stack:
        top = stack[-1]
        if top in mapping:
            stack.pop()
            continue
        missing = [operand for operand in operands_to_run_again(top) if operand not in mapping]
        if missing:
            stack.extend(reversed(missing))
            continue
        if top.op == "placeholder":
            raise InternalError(f"the backward pass needs input {top.name}, which the partition does not save")
        if not is_backward(top) and is_random(top):
            raise InternalError(f"the partition would run the random operator {top.target} a second time")
        if not is_backward(top) and operands_of_norm(top) is not None:
            mapping[top] = _laid_out_as(top, rebuild_norm(top, graph, mapping.__getitem__))
        else:
            mapping[top] = copy_node(graph, top, mapping.__getitem__)
            if any(_lies_otherwise(mapping[x], x) for x in top.all_input_nodes):
                _derive_again(mapping[top])
        stack.pop()


def _laid_out_as(node: torch.fx.Node, made: torch.fx.Node) -> torch.fx.Node:
    """What was computed in another way, where it would lie otherwise: as views that follow expect it."""
    if not _lies_otherwise(made, node):
        return made
    kwargs = {"memory_format": torch.contiguous_format}
    spec = infer(aten.clone.default, (made.meta["spec"],), kwargs)
    if not same_spec(spec, node.meta["spec"]):
        return made
    copy = made.graph.call_function(aten.clone.default, (made,), kwargs)
    copy.meta = {**made.meta, "spec": spec}
    return copy


def _lies_otherwise(node: torch.fx.Node, copied: torch.fx.Node) -> bool:
    spec, before = node.meta["spec"], copied.meta["spec"]
    return spec is not before and not same_spec(spec, before)


def _derive_again(node: torch.fx.Node) -> None:
    """Set the metadata of a node whose operands lie otherwise than those of the node that it is a copy of."""
    if node.target is operator.getitem:
        whole, index = node.args
        node.meta["spec"] = whole.meta["spec"][index]  # type: ignore[union-attr, index]
        return
    args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), lambda x: x.meta["spec"])
    node.meta["spec"] = infer(node.target, args, kwargs)  # type: ignore[arg-type]


def _symbols_of(joint: Joint, nodes: list[torch.fx.Node]) -> list[Any]:
    """The symbols that stand in these nodes' metadata and arguments, as sizes, by name.

    With each come those that guards have found to equal it: later stages compute sizes in terms of them.
    """
    if not len(joint.envelope.symbols):
        return []
    context = joint.envelope.symbols.context
    names: set[str] = set()

    def add(size: Any) -> None:
        expr = expr_of(size)
        if expr is not None:
            names.update(expr.free_symbols())
            if context is not None:
                names.update(context.simplify(expr).free_symbols())

    def visit(value: Any) -> None:
        if isinstance(value, (list, tuple)):
            for item in value:
                visit(item)
        elif isinstance(value, TensorSpec):
            for size in sizes_of(value):
                add(size)
        elif not isinstance(value, torch.fx.Node):
            add(value)

    for node in nodes:
        visit(node.meta["spec"])
        visit(node.args)
        visit(tuple(node.kwargs.values()))
    found = []
    for entry in joint.envelope.symbols:
        if entry.name in names and entry.binding is None:
            found.append(context.symbol(entry.name))  # type: ignore[union-attr]
        elif entry.name in names and entry.binding is not None:
            desc = joint.envelope.inputs[entry.binding.input_index]
            spec: Any = desc.spec
            found.append(spec if entry.binding.dim is None else spec.shape[entry.binding.dim])
    return found
