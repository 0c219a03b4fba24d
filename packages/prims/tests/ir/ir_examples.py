"""Small envelopes that the IR tests share."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
import torch.fx

from prims.ir import Alias, Envelope, InputDesc, Mutation, OutputDesc, SourceLoc, SymbolTable
from prims.spec import SymbolContext, TensorSpec

CPU = torch.device("cpu")
aten = torch.ops.aten


def spec(*shape: Any, dtype: torch.dtype = torch.float32, **kwargs: Any) -> TensorSpec:
    return TensorSpec(shape, dtype, CPU, **kwargs)


class Builder:
    """Builds an envelope node by node."""

    def __init__(self, dialect: str, context: SymbolContext | None = None) -> None:
        self.dialect = dialect
        self.context = context
        self.graph = torch.fx.Graph()
        self.inputs: list[InputDesc] = []
        self.constants: dict[str, torch.Tensor] = {}

    def input(self, name: str, value: Any, kind: str = "input", **kwargs: Any) -> torch.fx.Node:
        node = self.graph.placeholder(name)
        node.meta["spec"] = value
        self.inputs.append(InputDesc(name, kind, value, **kwargs))
        return node

    def constant(self, name: str, value: torch.Tensor) -> torch.fx.Node:
        self.constants[name] = value
        return self.graph.create_node("get_attr", name)

    def call(self, target: Any, args: tuple[Any, ...], result: Any, kwargs: Any = None, line: int = 0) -> torch.fx.Node:
        node = self.graph.call_function(target, args, kwargs or {})
        return self._finish(node, result, line)

    def method(self, name: str, args: tuple[Any, ...], result: Any, line: int = 0) -> torch.fx.Node:
        return self._finish(self.graph.call_method(name, args), result, line)

    def _finish(self, node: torch.fx.Node, result: Any, line: int) -> torch.fx.Node:
        node.meta["spec"] = result
        if line:
            node.meta["source"] = SourceLoc('model "x".py', line, "forward")
        return node

    def finish(self, *results: Any, kinds: tuple[str, ...] | None = None, **kwargs: Any) -> Envelope:
        self.graph.output(results)
        kinds = kinds or ("output",) * len(results)
        outputs = tuple(
            OutputDesc(kind, r.meta.get("spec", spec(3)) if isinstance(r, torch.fx.Node) else r)
            for kind, r in zip(kinds, results, strict=True)
        )
        return Envelope(
            dialect=self.dialect,
            version=(1, 0),
            producer="tests",
            producer_version="0.1",
            graph=self.graph,
            inputs=tuple(self.inputs),
            outputs=outputs,
            symbols=SymbolTable.from_inputs(self.inputs, self.context),
            constants=self.constants,
            **kwargs,
        )


def torch_example() -> Envelope:
    b = Builder("torch")
    x = b.input("x", spec(2, 3), source="L['x']")
    w = b.input("w", spec(4, 3), "parameter", requires_grad=True, source="self.fc.weight")
    y = b.call(torch.nn.functional.linear, (x, w), spec(2, 4), {"bias": None}, line=3)
    g = b.call(torch.nn.functional.gelu, (y,), spec(2, 4), {"approximate": "tanh"})
    s = b.call(torch.sin, (g,), spec(2, 4))
    v = b.method("view", (s, -1), spec(8), line=4)
    n = b.call(aten.sym_size.int, (v, 0), 8)
    m = b.call(operator.mul, (n, 2), 16)
    z = b.call(operator.getitem, (v, slice(None, 4, None)), spec(4))
    e = b.call(operator.getitem, (v, (Ellipsis, None)), spec(8, 1))
    f = b.call(torch.full, ((m,), math.inf), spec(16), {"dtype": torch.float32, "device": CPU})
    return b.finish(z, f, e, m)


def aten_example() -> Envelope:
    context = SymbolContext()
    s0 = context.new_symbol(7, "x.size(1)")
    b = Builder("aten", context)
    x = b.input("x", spec(3, s0))
    t = b.input("t", spec(3), "buffer")
    c = b.constant("scale", torch.tensor([1.0, 2.0, 3.0]))
    total = b.call(aten.sum.dim_IntList, (x, [1]), spec(3), line=10)
    scaled = b.call(aten.mul.Tensor, (total, c), spec(3))
    new_t = b.call(aten.add.Tensor, (t, scaled), spec(3), {"alpha": -0.5})
    pair = b.call(aten.max.dim, (x, 1), (spec(3), spec(3, dtype=torch.int64)))
    first = b.call(operator.getitem, (pair, 0), spec(3))
    size = 2 * s0 + 1
    wide = b.call(
        aten.full.default, ([size], math.nan), spec(size), {"dtype": torch.float32, "device": CPU, "pin_memory": False}
    )
    return b.finish(
        new_t,
        first,
        wide,
        kinds=("mutation", "output", "saved"),
        mutations=(Mutation(1, 0),),
        aliases=(Alias(1, "input", 1, spec(3, strides=(1,), storage_offset=0)),),
    )


def prim_example() -> Envelope:
    from prims import ops

    context = SymbolContext()
    s0 = context.new_symbol(5, "x.size(0)")
    b = Builder("prim", context)
    x = b.input("x", spec(s0, 4))
    n = b.input("n", context.new_symbol(3, "n"), "size")
    total = b.call(ops.TABLE["sum"], (x, (1,)), spec(s0))
    wide = b.call(ops.TABLE["broadcast"], (total, (s0, 4), (0,)), spec(s0, 4))
    y = b.call(ops.TABLE["sub"], (x, wide), spec(s0, 4), line=2)
    z = b.call(ops.TABLE["mul"], (y, 0.1), spec(s0, 4))
    m = b.call(aten.mm.default, (z, b.call(ops.TABLE["permute"], (z, (1, 0)), spec(4, s0))), spec(s0, s0))
    i = b.call(ops.TABLE["convert"], (m, torch.int64), spec(s0, s0, dtype=torch.int64))
    return b.finish(i, n)


EXAMPLES = {"torch": torch_example, "aten": aten_example, "prim": prim_example}
