"""The backward graph, compiled when it is first run, and once more for each pattern of absent tangents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from aot_autograd.runtime.sections import Sections, makes_symbols
from aot_autograd.runtime.stored import outside_autocast
from aot_autograd.trace.outcome import remove_dead
from aot_autograd.trace.views import memory_order
from prims.debug import keep
from prims.eager import leave_to_eager
from prims.errors import NotCompiled, Unsupported, UserError
from prims.forking import compiling, why_cut_off
from prims.ir import Envelope, SymbolTable
from prims.options import Options
from prims.report import Report
from prims.spec import TensorSpec, infer
from prims.spec.unbacked import asks_data
from prims.stance import raises_defects

__all__ = ["Compiler", "LazyBackward", "compile_or_run", "without_tangents"]

aten = torch.ops.aten

Compiler = Callable[[Envelope, "Report | None"], Callable[..., Sequence[Any]]]


def compile_or_run(
    env: Envelope, compiler: Compiler, options: Options, report: Report | None, name: str
) -> Callable[..., Sequence[Any]]:
    """The compiled graph, or the graph run operator by operator if the compiler fails (recorded).

    Raises:
        UserError: from the compiler, as it is.
        NotCompiled: the compiler fails, under ``options.fullgraph``.
        Exception: from the compiler, under ``options.strict``.
    """
    if report is not None:
        ops = [str(node.target) for node in env.op_nodes]
        lines = [node.meta.get("source") for node in env.op_nodes]
        report.graph(name, dialect="aten", nodes=len(ops), ops=ops, lines=lines)
    keep(options, report, f"aten {name}", lambda: str(env))
    try:
        cut_off = why_cut_off()
        if cut_off is not None:
            raise Unsupported(cut_off)
        if options.verify != "off":
            env.verify(options.verify)
        if makes_symbols(env):
            return Sections(env, lambda part, _: compiler(part, report))
        return compiler(env, report)
    except (UserError, NotCompiled):
        raise
    except Exception as error:
        if raises_defects(options, report, error) or makes_symbols(env) and asks_data(error, env):
            raise
        reason = f"the {name} graph runs uncompiled: {type(error).__name__}: {error}"
        leave_to_eager(report, options, "aot_autograd", reason, cause=error)
        return env.module()


def _boxed(compiled: Callable[..., Sequence[Any]]) -> Callable[[list[Any]], Sequence[Any]]:
    """A compiled graph as a function of a list that it empties, so that inputs are freed after their last use.

    A compiler offers that as the attribute ``boxed`` of its result.
    """
    boxed = getattr(compiled, "boxed", None)
    return boxed if boxed is not None else lambda inputs: compiled(*inputs)


class LazyBackward:
    """Runs the backward graph: ``backward(inputs) -> gradients``; the list of inputs is given up.

    Tangents may be None where a result of the forward was not used; a graph without them is then derived, so that
    gradients that eager leaves None stay None.
    """

    def __init__(self, env: Envelope, compiler: Compiler, options: Options, report: Report | None) -> None:
        self.env = env
        self._compiler = compiler
        self._options = options
        self._report = report
        self._full: Callable[[list[Any]], Sequence[Any]] | None = None
        self._partial: dict[tuple[bool, ...], tuple[Callable[[list[Any]], Sequence[Any]], list[int]]] = {}
        self._tangents = sum(desc.kind == "tangent" for desc in env.inputs)

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """The gradients, in the order of the envelope's outputs; None for those that no tangent reaches."""
        # No local variable may hold an input: the box is to be their only owner.
        if any(tangent is None for tangent in inputs[-self._tangents :]):
            return self._run_partial(inputs)
        full = self._full
        if full is None:
            with compiling():
                if self._full is None:
                    self._full = self.compile(self.env, "backward")
            full = self._full
        return full(inputs)

    def _run_partial(self, inputs: list[Any]) -> Sequence[Any]:
        absent = tuple(tangent is None for tangent in inputs[-self._tangents :])
        if absent not in self._partial:
            with compiling():
                if absent not in self._partial:
                    env, places = without_tangents(self.env, absent)
                    self._partial[absent] = (self.compile(env, "backward for some outputs"), places)
        compiled, places = self._partial[absent]
        results: list[Any] = [None] * len(self.env.outputs)
        inputs[-self._tangents :] = [tangent for tangent in inputs[-self._tangents :] if tangent is not None]
        for place, value in zip(places, compiled(inputs), strict=True):
            results[place] = value
        return results

    def compile(self, env: Envelope, name: str) -> Callable[[list[Any]], Sequence[Any]]:
        """A compiled graph as a function of a list of inputs that is given up."""
        if self._report is None:
            return self._ready(compile_or_run(env, self._compiler, self._options, None, name))
        with self._report.phase("backward"):
            return self._ready(compile_or_run(env, self._compiler, self._options, self._report, name))

    @staticmethod
    def _ready(compiled: Callable[..., Sequence[Any]]) -> Callable[[list[Any]], Sequence[Any]]:
        """A backward pass may be asked for inside an autocast region or outside, each time anew."""
        plain, careful = _boxed(compiled), _boxed(outside_autocast(compiled))

        def call(inputs: list[Any]) -> Sequence[Any]:
            return careful(inputs) if torch._C._is_any_autocast_enabled() else plain(inputs)

        return call


def without_tangents(env: Envelope, absent: tuple[bool, ...]) -> tuple[Envelope, list[int]]:
    """The backward graph when some tangents are zero, and which of its outputs remain.

    A backward pass is linear in its tangents: a value computed from absent ones alone is absent too, a sum with an
    absent term is the other term, and elsewhere an absent operand is a tensor of zeros. A custom function's backward
    may be anything: it is left out when no tangent calls it, and else gets zeros for what is absent.
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
                mapping[source] = _zeros(graph, source)
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
    if (
        node.target is not aten.add.Tensor
        or node.kwargs
        or len(node.args) != 2
        or not all(isinstance(a, torch.fx.Node) for a in node.args)
    ):
        return None
    for term in node.args:
        present = mapping[term]  # type: ignore[index]
        if present is not None:
            same = term.meta["spec"] == node.meta["spec"]  # type: ignore[union-attr]
            return present if same else None
    return None


def _zeros(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    spec = node.meta["spec"]
    if not isinstance(spec, TensorSpec):
        raise NotImplementedError(f"zeros in place of the results of {node.target}")
    order = memory_order(spec) or list(range(spec.ndim))
    shape = tuple(spec.shape[d] for d in order)
    made = graph.call_function(aten.full.default, (list(shape), 0), {"dtype": spec.dtype, "device": spec.device})
    made.meta["spec"] = TensorSpec(shape, spec.dtype, spec.device)
    if order != sorted(order):  # what is computed of them is laid out as it would be of the absent value
        zeros, places = made.meta["spec"], [order.index(d) for d in range(spec.ndim)]
        made = graph.call_function(aten.permute.default, (made, places))
        made.meta["spec"] = infer(aten.permute.default, (zeros, places), {})
    return made
