"""Calls whose results, or the sizes of those, only the data tells: ``.item()``, ``nonzero``, ``x[mask]``, ``unique``.

Each is a node whose metadata holds new unbacked symbols (:mod:`prims.spec.unbacked`). A value is asked once: equal
nodes of the functional graph have equal data, so that two tensors indexed with one mask are of one size. Masks become
positions, as in eager, and ``torch._check`` becomes a fact and a check in the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from aot_autograd.trace.opinfo import op_info
from aot_autograd.trace.special import HANDLERS, handles
from prims.spec import TensorSpec, infer, to_torch
from prims.spec import expr as E
from prims.spec.unbacked import MAKERS, is_making

if TYPE_CHECKING:
    from aot_autograd.trace.tracer import Tracer

__all__ = ["HANDLERS"]

aten = torch.ops.aten


def make(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> tuple[torch.fx.Node, Any]:
    """The node of such a call and its metadata: one node for equal calls."""
    nodes = tracer._nodes(args)
    node_kwargs = {name: tracer._nodes(value) for name, value in kwargs.items()}
    key = (func, tuple(nodes), tuple(node_kwargs.items()))
    if key not in tracer.made:
        tracer.made[key] = tracer.create(func, nodes, node_kwargs, infer(func, args, kwargs))
    node = tracer.made[key]
    return node, node.meta["spec"]


def _make(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    if not is_making():
        return NotImplemented
    node, spec = make(tracer, func, args, kwargs)
    return tracer.wrap(node, spec, spec)


for _op in MAKERS - {aten._local_scalar_dense.default}:
    HANDLERS[_op] = _make


def number_of(tracer: Tracer, x: torch.Tensor) -> Any:
    """The symbolic number in a tensor of one element."""
    return to_torch(make(tracer, aten._local_scalar_dense.default, (x,), {})[1])


def _positions(tracer: Tracer, mask: torch.Tensor) -> list[torch.Tensor]:
    """A mask's positions, one tensor for each of its dimensions."""
    node, spec = make(tracer, aten.nonzero.default, (mask,), {})
    found = []
    for dim in range(spec.shape[1]):
        one, one_spec = tracer.emit(aten.select.int, (node, 1, dim), {})
        found.append(tracer.wrap(one, one_spec, one_spec))
    return found


def _with_positions(tracer: Tracer, indices: Any) -> Any:
    """Indices with positions in place of masks; None where there is no mask."""
    if not is_making() or not any(i is not None and i.dtype == torch.bool for i in indices):
        return None
    found: list[Any] = []
    for index in indices:
        found += _positions(tracer, index) if index is not None and index.dtype == torch.bool else [index]
    return found


@handles("index.Tensor")
def _index(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    indices = _with_positions(tracer, args[1])
    return NotImplemented if indices is None else tracer.pure(func, (args[0], indices), {})


@handles("index_put.default", "index_put_.default", "_index_put_impl_.default")
def _index_put(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    values: TensorSpec = tracer.spec(args[2])
    if not any(type(n) is not int for n in values.shape):
        return NotImplemented  # one value for all is a choice between it and the old ones
    indices = _with_positions(tracer, args[1])
    if indices is None:
        return NotImplemented
    args, info = (args[0], indices, *args[2:]), op_info(func)
    return tracer.pure(func, args, kwargs) if info.kind == "pure" else tracer.write_op(func, info, args, kwargs)


@handles("masked_select.default")
def _masked_select(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    if not is_making():
        return NotImplemented
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
    x, mask = (t if t.shape == shape else tracer.view(aten.expand.default, (t, list(shape)), {}) for t in args)
    return _index(tracer, aten.index.Tensor, (x, [mask]), {})


def assume_sizes(spec: Any) -> None:
    """A number of the data that is a size is none below 0, for the operator refuses those when the graph runs."""
    for part in spec if isinstance(spec, (tuple, list)) else (spec,):
        for size in part.shape if isinstance(part, TensorSpec) else ():
            if type(size) is not int and size.expr.is_symbol and size.ctx.is_unbacked(size.expr.symbol_name):
                if size.ctx.info(size.expr.symbol_name).min < 0:
                    size.ctx.assume(E.ge(size.expr, 0))


@handles("_assert_scalar.default")
def _assert_scalar(tracer: Tracer, func: Any, args: Any, kwargs: Any) -> Any:
    condition, message = args
    if isinstance(condition, (bool, int)):
        if not condition:
            raise RuntimeError(message)
        return None
    condition.ctx.assume(condition.expr)
    tracer.create(func, (condition, message), {}, None)
    return None
