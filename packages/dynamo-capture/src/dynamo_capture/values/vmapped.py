"""``torch.vmap``: the function is captured for one example, as a graph of its own that one node runs on the batch.

What PyTorch's implementation checks and does around the function is Python, which is captured as such; here stands what
it calls of functorch. The function is called once, as in eager, so that what it does to objects is done in the capture.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch._C._functorch as functorch
import torch.fx
from torch.utils import _pytree as pytree

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.subgraph import SubgraphBuilder
from dynamo_capture.values.autograd_functions import AttachBackward
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.builtin_functions import builtin
from dynamo_capture.values.checkpoints import Checkpoint
from dynamo_capture.values.composites import BODIES_OF_EXAMPLES
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import ListValue
from dynamo_capture.values.tensor import SymValue, TensorValue
from dynamo_capture.values.torch_calls import special_by_name
from prims.control import ControlFlow
from prims.transforms import Vmap, gradient

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__: list[str] = []

_MODULE = "torch._functorch.vmap"
#: Where PyTorch has the functions that lead to its C++, by version.
_CALLERS = ("torch._functorch.predispatch", _MODULE)
#: Calls that hold functions of their own, which the batching rules do not look into.
_OPAQUE = (AttachBackward, Checkpoint, ControlFlow)


def _refuse(text: str) -> GraphBreak:
    return GraphBreak("QB24", text)


for _module in _CALLERS:

    @special_by_name(_module, "lazy_load_decompositions")
    def _load(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return ConstantValue(None)


@special_by_name(_MODULE, "_flat_vmap")
def _flat_vmap(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``_flat_vmap(func, batch_size, flat_in_dims, flat_args, args_spec, out_dims, randomness, **kwargs)``."""
    function, size, in_dims, flat, structure, out_dims, randomness = args
    chosen = randomness.realize().const()
    if chosen not in ("error", "different", "same"):
        raise _refuse(f"randomness={chosen!r}")
    dims = [dim.realize().const() for dim in in_dims.realize().items]  # type: ignore[attr-defined]
    given = [value.realize() for value in flat.realize().items]  # type: ignore[attr-defined]
    batch = [value for value, dim in zip(given, dims, strict=True) if dim is not None]
    body = _Body(tx)
    outputs, spec = body.capture(function, given, dims, structure, kwargs)
    graph = torch.fx.GraphModule(torch.nn.Module(), body.builder.graph, "Vmapped")
    shared = [None] * len(body.builder.lifted)
    target = Vmap(graph, [*(dim for dim in dims if dim is not None), *shared], chosen)
    called = tx.graph_call(target, [size, *batch, *body.builder.lifted], {})
    found = iter(called.unpack(tx)) if body.returned else iter(())
    results = [next(found) if isinstance(value, TensorValue) else value for value in outputs]
    differ = iter(target.varies)
    for value in results:
        if isinstance(value, TensorValue) and next(differ):
            tx.batched[id(value)] = value
    whole = _python(tx, pytree.tree_unflatten, [ListValue(results), spec])
    unwrap = sys.modules[_MODULE]._unwrap_batched  # eager's; the module is that of the function called here
    return _python(tx, unwrap, [whole, out_dims, ConstantValue(0), size, function])


def _python(tx: Capture, fn: Any, args: list[Value]) -> Value:
    """Call a Python function of PyTorch."""
    return tx.from_python(fn).realize().call(tx, args, {}).realize()


class _ExampleBuilder(SubgraphBuilder):
    """Builds a graph for one example. What means something else in a batch, or has no batching rule, is written out."""

    def call(
        self, fn: Callable[..., Any] | str, args: list[Value], kwargs: dict[str, Value], *, method: bool = False
    ) -> Value:
        body = BODIES_OF_EXAMPLES.get(fn)  # type: ignore[arg-type]
        if body is not None and len(args) >= 2 and kwargs.keys() <= _OF_BODIES and _has_classes(args[1]):
            return self.tx.from_python(body).realize().call(self.tx, args, kwargs)
        if fn is operator.getitem and _is_place(args[1]):
            fn, args = torch.ops.aten.index.Tensor, [args[0], ListValue([args[1]])]
        found = super().call(fn, args, kwargs, method=method)
        if fn is gradient:
            node = next(node for node in reversed(self.graph.nodes) if node.target is gradient)
            given = [getattr(value, "example", None) for value in found.unpack(self.tx)]
            contiguous = tuple(x is not None and bool(x.is_contiguous()) for x in given)
            node.kwargs = {**node.kwargs, "contiguous": contiguous}
        return found


_OF_BODIES = frozenset(("weight", "ignore_index", "reduction"))


def _has_classes(target: Value) -> bool:
    value = target.realize()
    return isinstance(value, TensorValue) and not value.example.is_floating_point()


def _is_place(key: Value) -> bool:
    """Whether an index is a tensor of one int, which in a batch is many."""
    value = key.realize()
    return (
        isinstance(value, TensorValue) and value.example.ndim == 0 and value.example.dtype in (torch.int32, torch.int64)
    )


class _Body:
    """Captures a function for one example.

    Attributes:
        builder: its graph.
        returned: how many tensors the graph returns.
    """

    def __init__(self, tx: Capture) -> None:
        self.tx = tx
        self.outer = tx.graph
        self.builder = _ExampleBuilder(tx, tx.graph)
        self.returned = 0

    def capture(
        self, function: Value, given: list[Value], dims: list[int | None], structure: Value, kwargs: dict[str, Value]
    ) -> tuple[list[Value], Value]:
        """The function's results for one example, flat, and their structure."""
        tx, builder = self.tx, self.builder
        brk = _refuse("a tensor of the function is kept for later")
        brk.where = tx.location()
        tx.bodies.append((builder.graph, tx.frames[0].call_step(), brk))  # type: ignore[attr-defined]
        modes, levels = dict(tx.modes), len(tx.levels)
        tx.graph = builder
        try:
            examples = [
                value if dim is None else self._example(value, dim) for value, dim in zip(given, dims, strict=True)
            ]
            args = _python(tx, pytree.tree_unflatten, [ListValue(list(examples)), structure])
            result = function.realize().call(tx, list(args.items), kwargs)  # type: ignore[attr-defined]
            leaves, spec = _python(tx, pytree.tree_flatten, [result]).unpack(tx)
            outputs = [value.realize() for value in leaves.realize().items]  # type: ignore[attr-defined]
            if builder.writes_outside():
                tx.side.epoch += 1
                raise _refuse("it writes to a tensor from outside")
            if _changed(modes, tx.modes) or len(tx.levels) != levels:
                raise _refuse("it changes a mode")
            tensors = [value for value in outputs if isinstance(value, TensorValue)]
            if any(isinstance(value, SymValue) for value in outputs):
                raise _refuse("it returns a size")
            self.returned = len(tensors)
            builder.graph.output(tuple(builder.lower(value)[0] for value in tensors))
            _ask_by_methods(builder.graph)
        finally:
            tx.graph = self.outer
        held = next((n.target for n in builder.graph.nodes if isinstance(n.target, _OPAQUE)), None)
        if held is not None:
            raise _refuse(f"it calls {getattr(held, 'name', None) or held}")
        return outputs, spec

    def _example(self, value: Value, dim: int) -> TensorValue:
        """A stand-in for one example, with the history that it has as a part of the batch."""
        if not isinstance(value, TensorValue) or value.example.is_inference():
            raise _refuse(f"it is given {display(value)}")
        return self.builder.new_example(f"example_{len(self.builder.graph.nodes)}", value.example.select(dim, 0))


#: Operators without a batching rule, and the method that asks a batch for the same of one example.
_METHODS = {
    torch.ops.aten.sym_size.int: "size", torch.ops.aten.sym_stride.int: "stride",
    torch.ops.aten.sym_numel.default: "numel",
}  # fmt: skip


def _ask_by_methods(graph: torch.fx.Graph) -> None:
    for node in graph.nodes:
        if node.op == "call_function" and node.target in _METHODS:
            node.op, node.target = "call_method", _METHODS[node.target]


def _changed(before: dict[Any, tuple[Any, Any]], now: dict[Any, tuple[Any, Any]]) -> bool:
    """Whether a mode is set otherwise than it was (each is given as first and as now)."""
    return any(before.get(key, (first, first))[1] != value for key, (first, value) in now.items())


def _remove_batch_dim(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``_remove_batch_dim(tensor, level, batch_size, out_dim)``: the batch where the program wants it."""
    tensor, _, size, out_dim = args
    whole = tensor.realize()
    if id(whole) not in tx.batched:
        rest = [ConstantValue(-1)] * whole.example.ndim  # type: ignore[attr-defined]
        whole = tx.graph_call("expand", [whole, size, *rest], {}, method=True)
    return tx.graph_call(torch.movedim, [whole, ConstantValue(0), out_dim], {})


for _module in _CALLERS:
    special_by_name(_module, "_remove_batch_dim")(_remove_batch_dim)
builtin(functorch._remove_batch_dim)(_remove_batch_dim)


@builtin(functorch.is_batchedtensor)
def _is_batched(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(id(args[0].realize()) in tx.batched)
