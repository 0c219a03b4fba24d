"""Graphs with values that only the data tells, compiled as a sequence of graphs without any.

A node that makes an unbacked symbol (``.item()``, ``nonzero``) is run by itself, as eager runs it; what does not
depend on it goes where it can be fused, and what does becomes a graph that takes the symbol's value as a size input,
like any size that changes. So a compiler sees ordinary graphs only, and a kernel boundary is paid only where a program
has to wait for the data anyway.

    x ─▶ graph 0: s = sum(x) ─▶ u0 = s.item() ─▶ graph 1: x * u0, torch.zeros(u0) ...

A graph is put off as far as possible: everything that no read of data needs is in the last one, with all its consumers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import Any

import torch
import torch.fx
from torch.fx import Node

from aot_autograd.trace.opinfo import op_info, runs_once
from prims.generators import RandomState
from prims.ir import Envelope, InputDesc, OutputDesc, SymbolTable
from prims.ir.nodes import copy_node
from prims.ir.reference import drawn_devices
from prims.ir.run import value_made
from prims.ir.symbols import Made, expr_of, made_symbols, symbols_in, symbols_of
from prims.records import record

__all__ = ["Section", "Sections", "cross", "makes_symbols", "part"]

aten = torch.ops.aten
#: Compiles one graph without unbacked symbols: ``(envelope, its number)``.
CompileOne = Callable[[Envelope, int], Callable[..., Sequence[Any]]]


def makes_symbols(env: Envelope) -> bool:
    """Whether a graph reads data into symbols."""
    return any(entry.binding is None for entry in env.symbols)


@record(frozen=False)
class Section:
    """One graph, and what is called with its results.

    Attributes:
        nodes: what the graph computes.
        compiled: None where nothing is computed.
        inputs: the values that it takes, then ``sizes``: symbols by name.
        outputs: the values that it gives.
        calls: the nodes that run by themselves then.
        dropped: values that nobody needs after them.
    """

    nodes: list[Node] = field(default_factory=list)
    calls: list[Node] = field(default_factory=list)
    compiled: Callable[..., Sequence[Any]] | None = None
    inputs: list[Node] = field(default_factory=list)
    sizes: list[str] = field(default_factory=list)
    outputs: list[Node] = field(default_factory=list)
    dropped: list[Node] = field(default_factory=list)


class Sections:
    """A compiled graph of sections: takes the envelope's flat inputs, and returns its flat outputs.

    Raises (when called):
        RuntimeError: what the program checks (``torch._check``) does not hold, or an operator refuses its operands.
    """

    def __init__(self, env: Envelope, compile_one: CompileOne) -> None:
        self.env = env
        self.placeholders = env.placeholders()
        self.results = env.results()
        self.drawn = drawn_devices(env)
        self.made = made_symbols(env.graph)
        self.bindings = [(e.name, e.binding) for e in env.symbols if e.binding is not None]
        self.ranges = {e.name: (e.min, e.max) for e in SymbolTable.from_inputs((), env.symbols.context, env.graph)}
        self.sections = _divided(env, self.made)
        cross(self.sections, self.results)
        for k, section in enumerate(self.sections):
            if section.outputs:
                section.compiled = compile_one(part(env, section), k)
        _drop(self.sections, self.placeholders, self.results)

    def __call__(self, *inputs: Any) -> list[Any]:
        values: dict[Node, Any] = dict(zip(self.placeholders, inputs, strict=True))
        numbers = {
            name: inputs[at.input_index] if at.dim is None else inputs[at.input_index].shape[at.dim]
            for name, at in self.bindings
        }
        before = RandomState(self.drawn)
        for section in self.sections:
            if section.compiled is not None:
                given = [values[node] for node in section.inputs]
                found = section.compiled(*given, *(numbers[name] for name in section.sizes))
                del given
                values.update(zip(section.outputs, found, strict=True))
                del found
            for node in section.calls:
                values[node] = result = _run(node, values, numbers)
                for one in self.made.get(node, ()):
                    numbers[one.name] = number = value_made(result, one.element, one.dim)
                    low, high = self.ranges[one.name]
                    if low is not None and number < low or high is not None and number > high:
                        before.put_back()
                        return list(self.env.module()(*inputs))  # where an operator refuses such a size
                del result
            for node in section.dropped:
                values.pop(node, None)
        return [_resolved(result, values, numbers) for result in self.results]


def _run(node: Node, values: dict[Node, Any], numbers: dict[str, Any]) -> Any:
    args, kwargs = (_resolved(x, values, numbers) for x in (node.args, dict(node.kwargs)))
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _resolved(value: Any, values: dict[Node, Any], numbers: dict[str, Any]) -> Any:
    """An argument with values and numbers in place of nodes and symbols."""
    if isinstance(value, Node):
        return values[value]
    if isinstance(value, (tuple, list)):
        return type(value)(_resolved(v, values, numbers) for v in value)
    if isinstance(value, dict):
        return {k: _resolved(v, values, numbers) for k, v in value.items()}
    return expr_of(value).evaluate(numbers) if symbols_in(value) else value


# -- which node is in which section --------------------------------------------------------------------------------


def _divided(env: Envelope, made: dict[Node, list[Made]]) -> list[Section]:
    """The sections with their nodes.

    The first in which a node can be is that after all data it needs was read; the last, that of its first user.
    """
    nodes = [node for node in env.graph.nodes if node.op == "call_function"]
    alone = {node for node in nodes if _runs_alone(node, made)}
    maker = {one.name: node for node, ones in made.items() for one in ones}
    needs: dict[Node, set[Node]] = {}
    drawn: Node | None = None
    for node in nodes:
        names = symbols_of((node.args, dict(node.kwargs), node.meta.get("spec")))
        needs[node] = {x for x in node.all_input_nodes if x.op == "call_function"}
        needs[node] |= {maker[name] for name in names if name in maker} - {node}
        if isinstance(node.target, torch._ops.OpOverload) and runs_once(node.target, node.args, node.kwargs):
            needs[node] |= {drawn} - {None}  # type: ignore[arg-type]
            drawn = node
    earliest: dict[Node, int] = {}
    for node in nodes:
        # What runs alone runs after its section's graph: a graph takes its results in the next one.
        earliest[node] = max((earliest[x] + (x in alone and node not in alone) for x in needs[node]), default=0)
    count = max(earliest.values(), default=0) + 1
    latest = dict.fromkeys(nodes, count - 1) | {node: earliest[node] for node in alone}
    for node in reversed(nodes):
        for x in needs[node] - alone:
            latest[x] = min(latest[x], latest[node])
    for node in nodes:
        if node.target is operator.getitem and node not in alone:  # what has several results hands over each apart
            latest[node] = latest[node.args[0]]  # type: ignore[index]
    sections = [Section() for _ in range(count)]
    for node in nodes:
        section = sections[latest[node]]
        (section.calls if node in alone else section.nodes).append(node)
    return sections


def _runs_alone(node: Node, made: dict[Node, list[Made]]) -> bool:
    if node.target is operator.getitem:
        return node.args[0] in made
    return node in made or node.target is aten._assert_scalar.default


def cross(sections: list[Section], results: Iterable[Any]) -> None:
    """Find what each section takes from those before it. Views are made again rather than handed over."""
    place = {node: k for k, section in enumerate(sections) for node in (*section.nodes, *section.calls)}
    returned = {result for result in results if isinstance(result, Node)}
    for k, section in reversed(list(enumerate(sections))):
        own = set(section.nodes)
        stack = list(section.nodes)
        while stack:
            for x in stack.pop().all_input_nodes:
                if x not in own and _is_cheap(x) and x in place and x not in sections[place[x]].calls:
                    own.add(x)
                    stack.append(x)
        order = {node: i for i, node in enumerate(place)}
        section.nodes = sorted(own, key=order.__getitem__)
        section.inputs = list(dict.fromkeys(x for node in section.nodes for x in node.all_input_nodes if x not in own))
        returned.update(x for x in section.inputs if x.op == "call_function")
        for call in section.calls:
            returned.update(x for x in call.all_input_nodes if x.op == "call_function")
        wanted = [node for node in section.nodes if node in returned and place[node] == k]
        section.outputs = wanted
    for section in sections:
        _prune(section)


def _is_cheap(node: Node) -> bool:
    """Made again sooner than kept: a view, and what is made of no tensor at all."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    if runs_once(node.target, node.args, node.kwargs):
        return False
    return op_info(node.target).kind == "view" or not node.all_input_nodes


def _prune(section: Section) -> None:
    """Leave out of a section what nobody takes from it."""
    live = set(section.outputs)
    for node in reversed(section.nodes):
        if node in live or isinstance(node.target, torch._ops.OpOverload) and op_info(node.target).effect:
            live.add(node)
            live.update(node.all_input_nodes)
    section.nodes = [node for node in section.nodes if node in live]
    section.inputs = [node for node in section.inputs if node in live]


def _drop(sections: list[Section], placeholders: list[Node], results: Sequence[Any]) -> None:
    """Note after which section each value is needed no more."""
    last: dict[Node, int] = dict.fromkeys(placeholders, 0)
    for k, section in enumerate(sections):
        for node in (*section.inputs, *section.outputs, *section.calls):
            last[node] = k
        for call in section.calls:
            last.update(dict.fromkeys(call.all_input_nodes, k))
    for node, k in last.items():
        if not any(node is result for result in results):
            sections[k].dropped.append(node)


# -- a section as a graph ------------------------------------------------------------------------------------------


def part(env: Envelope, section: Section, between: str = "input") -> Envelope:
    """The envelope of one section. Sizes are inputs of their own, behind the tensors.

    Args:
        between: the kind of input that a value of an earlier section is.
    """
    given = dict(zip(env.placeholders(), env.inputs, strict=True))
    graph = torch.fx.Graph()
    mapping: dict[Node, Node] = {}
    inputs = []
    for node in section.inputs:
        desc = given.get(node) or InputDesc(node.name, between, node.meta["spec"])
        mapping[node] = graph.placeholder(desc.name)
        mapping[node].meta["spec"] = desc.spec
        inputs.append(desc)
    context = env.symbols.context
    metadata = [(n.args, dict(n.kwargs), n.meta.get("spec")) for n in section.nodes]
    names = set(symbols_of([*metadata, *(desc.spec for desc in inputs)]))
    assert context is not None or not names
    known = [context.simplify(context.symbol(name).expr).free_symbols() for name in names]  # type: ignore[union-attr]
    section.sizes = sorted(names.union(*known)) if known else []
    for name in section.sizes:
        symbol = context.symbol(name)  # type: ignore[union-attr]
        graph.placeholder(f"size_{name}").meta["spec"] = symbol
        inputs.append(InputDesc(f"size_{name}", "size", symbol))
    for node in section.nodes:
        mapping[node] = copy_node(graph, node, mapping.__getitem__)
    graph.output(tuple(mapping[node] for node in section.outputs))
    pairs = zip(env.results(), env.outputs, strict=True)
    kinds = {result: desc.kind for result, desc in pairs if isinstance(result, Node)}
    outputs = tuple(
        OutputDesc("saved" if kinds.get(node) == "saved" else "output", node.meta["spec"]) for node in section.outputs
    )
    return env.replace(
        graph=graph, inputs=tuple(inputs), outputs=outputs, symbols=SymbolTable.from_inputs(inputs, context),
        mutations=(), aliases=(),
    )  # fmt: skip
