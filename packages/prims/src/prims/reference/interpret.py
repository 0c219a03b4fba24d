"""Slow, literal interpreters of prim-dialect envelopes: they define what a graph means.

One node at a time, in program order, no reuse and no reordering. `run_torch` uses the primitives' PyTorch references;
`run_numpy` the independent NumPy ones. Composite and extern overloads run through PyTorch's eager kernels in both.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from prims.errors import UserError
from prims.handlers import Array, BaseHandler, NumpyHandler, TorchHandler
from prims.handlers.base import map_values
from prims.ops import PrimOp

if TYPE_CHECKING:
    from prims.ir import Envelope

__all__ = ["run_numpy", "run_torch"]


def run_torch(env: Envelope, inputs: Sequence[Any]) -> list[Any]:
    """The flat outputs of an envelope for its flat inputs (tensors, and ints for sizes).

    Raises:
        UserError: the number of inputs is wrong, or the graph holds what is no primitive or overload.
    """
    return _run(env, list(inputs), TorchHandler())


def run_numpy(env: Envelope, inputs: Sequence[Any]) -> list[Any]:
    """As `run_torch`, computed by the NumPy references. Takes and gives torch tensors (on the CPU)."""
    arrays = [Array.from_torch(x) if isinstance(x, torch.Tensor) else x for x in inputs]
    results = _run(env, arrays, NumpyHandler())
    return [r.to_torch() if isinstance(r, Array) else r for r in results]


def _symbol_values(env: Envelope, inputs: Sequence[Any]) -> dict[str, int]:
    """The value of every bound symbol, read from the inputs."""
    values = {}
    for entry in env.symbols:
        if entry.binding is not None:
            bound = inputs[entry.binding.input_index]
            values[entry.name] = int(bound if entry.binding.dim is None else bound.shape[entry.binding.dim])
    return values


def _run(env: Envelope, inputs: list[Any], p: BaseHandler) -> list[Any]:
    if len(inputs) != len(env.inputs):
        raise UserError(
            f"the envelope has {len(env.inputs)} inputs, {len(inputs)} were given",
            todo="pass one value per entry of env.inputs, in order",
        )
    sizes = _symbol_values(env, inputs)
    remaining = iter(inputs)
    values: dict[torch.fx.Node, Any] = {}

    def concrete(arg: Any) -> Any:
        if isinstance(arg, torch.fx.Node):
            return values[arg]
        expr = getattr(arg, "expr", None)
        return arg if expr is None else expr.evaluate(sizes)

    for node in env.graph.nodes:
        args, kwargs = map_values(concrete, node.args), map_values(concrete, node.kwargs)
        if node.op == "placeholder":
            values[node] = next(remaining)
        elif node.op == "get_attr":
            constant = env.constants[node.target]
            values[node] = Array.from_torch(constant) if isinstance(p, NumpyHandler) else constant
        elif node.op == "output":
            return list(args[0])
        elif isinstance(node.target, PrimOp):
            values[node] = p.prim(node.target, *args, **kwargs)
        elif isinstance(node.target, torch._ops.OpOverload):
            values[node] = p.aten(node.target, *args, **kwargs)
        elif node.target is operator.getitem:
            values[node] = args[0][args[1]]
        else:
            raise UserError(
                f"node {node.name} calls {node.target}, which is no primitive and no overload",
                todo="lower the graph to the prim dialect first (prims.lower)",
            )
    raise UserError("the graph has no output node", todo="end it with graph.output((...,))")
