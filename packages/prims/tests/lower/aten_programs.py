"""Small aten envelopes, written as functions that call overloads."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from prims.ir import SourceLoc
from prims.ir.envelope import Envelope, InputDesc, OutputDesc, SymbolTable
from prims.lower import lower
from prims.options import Options
from prims.report import Report
from prims.spec import SymbolContext, TensorSpec, infer, spec_of

aten = torch.ops.aten


class Builder:
    """Records overload calls with the metadata that eager gives them."""

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()
        self.values: dict[torch.fx.Node, Any] = {}
        self.inputs: list[InputDesc] = []
        self.line = 0

    def input(self, value: torch.Tensor) -> torch.fx.Node:
        name = f"x{len(self.inputs)}"
        node = self.graph.placeholder(name)
        node.meta["spec"] = spec_of(value)
        self.values[node] = value
        self.inputs.append(InputDesc(name, "input", node.meta["spec"]))
        return node

    def __call__(self, op: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        self.line += 1
        node = self.graph.call_function(op, args, kwargs)
        value = op(*self._real(args), **self._real(kwargs))
        self.values[node] = value
        many = isinstance(value, (tuple, list))
        node.meta["spec"] = tuple(map(spec_of, value)) if many else spec_of(value)
        node.meta["source"] = SourceLoc("program.py", self.line, "program")
        return node

    def _real(self, arg: Any) -> Any:
        if isinstance(arg, torch.fx.Node):
            return self.values[arg]
        if isinstance(arg, (tuple, list)):
            return type(arg)(self._real(a) for a in arg)
        if isinstance(arg, dict):
            return {k: self._real(v) for k, v in arg.items()}
        return arg

    def item(self, node: torch.fx.Node, index: int) -> torch.fx.Node:
        out = self.graph.call_function(operator.getitem, (node, index))
        self.values[out] = self.values[node][index]
        out.meta["spec"] = node.meta["spec"][index]
        return out


class SymbolicBuilder(Builder):
    """Records overload calls on metadata alone, sizes symbolic."""

    def add_input(self, spec: TensorSpec) -> torch.fx.Node:
        name = f"x{len(self.inputs)}"
        node = self.graph.placeholder(name)
        node.meta["spec"] = self.values[node] = spec
        self.inputs.append(InputDesc(name, "input", spec))
        return node

    def __call__(self, op: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        node = self.graph.call_function(op, args, kwargs)
        spec = infer(op, self._real(args), self._real(kwargs))
        node.meta["spec"] = self.values[node] = tuple(spec) if isinstance(spec, (tuple, list)) else spec
        return node


def symbolic_envelope(program: Callable[..., Any], ctx: SymbolContext, *specs: TensorSpec) -> Envelope:
    """An aten envelope of a program over inputs with symbolic sizes."""
    build = SymbolicBuilder()
    out = program(build, *(build.add_input(spec) for spec in specs))
    build.graph.output((out,))
    inputs = tuple(build.inputs)
    outputs = (OutputDesc("output", out.meta["spec"]),)
    symbols = SymbolTable.from_inputs(inputs, ctx)
    return Envelope("aten", (1, 0), "test", "0", build.graph, inputs, outputs, symbols)


def envelope(program: Callable[..., Any], *inputs: torch.Tensor) -> tuple[Envelope, list[torch.Tensor]]:
    """An aten envelope of ``program(call, *nodes) -> nodes`` and what eager gives for the inputs."""
    build = Builder()
    nodes = [build.input(x) for x in inputs]
    outs = program(build, *nodes)
    outs = list(outs) if isinstance(outs, (tuple, list)) else [outs]
    build.graph.output(tuple(outs))
    env = Envelope(
        "aten",
        (1, 0),
        "test",
        "0",
        build.graph,
        tuple(build.inputs),
        tuple(OutputDesc("output", node.meta["spec"]) for node in outs),
    )
    return env, [build.values[node] for node in outs]


def lowered(
    program: Callable[..., Any], *inputs: torch.Tensor, claims: Sequence[str] = (), **options: Any
) -> tuple[Envelope, Report]:
    """The prim envelope of a program, checked against eager at every pass."""
    env, expected = envelope(program, *inputs)
    report = Report()
    out = lower(
        env, claims=frozenset(claims), options=Options(verify="every_pass", strict=True, **options), report=report
    )
    for ours, theirs in zip(out.module()(*inputs), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    return out, report
