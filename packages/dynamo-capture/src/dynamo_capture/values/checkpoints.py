"""``torch.utils.checkpoint``: the region is a graph of its own, called through ``checkpoint`` in the graph around it.

A stage that runs the graph under autograd sees the region run a second time in the backward pass, as in eager. The
reentrant variant gives the same gradients and is captured as the other one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch.utils import checkpoint as torch_checkpoint

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.subgraph import InnerEffects, SubgraphBuilder
from dynamo_capture.values.base import Value
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import ListValue, TupleValue
from dynamo_capture.values.dicts import DictValue
from dynamo_capture.values.selective import context_function
from dynamo_capture.values.tensor import TensorValue
from dynamo_capture.values.torch_calls import special

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["Checkpoint"]

# Behind the decorator that keeps it from torch's own compiler (and imports that).
_checkpoint: Any = getattr(torch_checkpoint.checkpoint, "__wrapped__", torch_checkpoint.checkpoint)
_OPTIONS = ("preserve_rng_state", "determinism_check", "early_stop", "debug")


class Checkpoint:
    """Runs a graph under ``torch.utils.checkpoint``. The target of a graph node.

    Args:
        graph: the region; returns a tuple of tensors.
        options: keyword arguments of ``checkpoint``.
    """

    def __init__(self, graph: torch.fx.GraphModule, options: dict[str, Any]) -> None:
        self.__name__ = self.__qualname__ = "checkpoint"
        self.__module__ = __name__
        self.graph = graph
        self.options = options

    def __call__(self, *args: Any) -> Any:
        return _checkpoint(self.graph, *args, use_reentrant=False, **self.options)

    def __repr__(self) -> str:
        return self.__name__


@special(torch_checkpoint.checkpoint)
def _call(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``checkpoint(function, *args, use_reentrant=..., **kwargs)``."""
    rest = dict(kwargs)
    function = (args[0] if args else rest.pop("function")).realize()
    inputs = [value.realize() for value in args[1:]]
    reentrant = _option(rest, "use_reentrant", None)
    options = {name: _option(rest, name, None) for name in _OPTIONS if name in rest}
    context = rest.pop("context_fn", None)
    if context is not None and getattr(context.realize(), "fn", None) is torch_checkpoint.noop_context_fn:
        context = None
    if reentrant is None:
        raise GraphBreak("QB27", "it has no use_reentrant, which warns")
    if not torch.is_grad_enabled():
        return function.call(tx, inputs, rest)
    if reentrant:
        if rest or not any(isinstance(v, TensorValue) and v.example.requires_grad for v in inputs):
            raise GraphBreak("QB27", "it is reentrant, and no input needs a gradient")
        if context is not None:
            raise GraphBreak("QB27", "it is reentrant, and has a context_fn")
        options = {name: value for name, value in options.items() if name == "preserve_rng_state"}
    if context is not None:
        options["context_fn"] = context_function(tx, context)
    return _captured(tx, function, inputs, rest, options)


def _option(kwargs: dict[str, Value], name: str, default: Any) -> Any:
    return kwargs.pop(name).realize().const() if name in kwargs else default


def _captured(
    tx: Capture, function: Value, inputs: list[Value], kwargs: dict[str, Value], options: dict[str, Any]
) -> Value:
    outer, effects, modes = tx.graph, tx.side, dict(tx.modes)
    builder = tx.graph = SubgraphBuilder(tx, outer)
    side = tx.side = InnerEffects(effects)
    try:
        result = function.call(tx, inputs, kwargs).realize()
        tensors: list[TensorValue] = []
        rebuilt = _taken_apart(tx, result, tensors)
        if side.reached([function, *inputs, *kwargs.values()]) or builder.writes_outside() or _changed(tx.modes, modes):
            raise GraphBreak("QB27", "its function has side effects, which happen twice")
        builder.graph.output(tuple(builder.lower(v)[0] for v in tensors))
    finally:
        tx.graph, tx.side = outer, effects
        effects.epoch += side.epoch
    graph = torch.fx.GraphModule(torch.nn.Module(), builder.graph, "Checkpointed")
    target = Checkpoint(graph, options)
    node = outer.call_node(target, [outer.lower(value)[0] for value in builder.lifted])
    return rebuilt(list(outer.wrap_result(tuple(v.example for v in tensors), node).unpack(tx)))


def _taken_apart(tx: Capture, result: Value, tensors: list[TensorValue]) -> Callable[[list[Value]], Value]:
    """Note the tensors in a result, each once; what puts it together of others in their stead."""
    result = result.realize()
    if isinstance(result, TensorValue):
        if not any(tensor is result for tensor in tensors):
            tensors.append(result)
        at = next(at for at, tensor in enumerate(tensors) if tensor is result)
        return lambda found: found[at]
    if type(result) is ConstantValue:
        return lambda found: result
    if isinstance(result, DictValue) and result.cls is dict and result.source is None:
        entries = [(key, _taken_apart(tx, value, tensors)) for key, value in result.whole(tx).values()]
        return lambda found: DictValue.of(tx, [(key, part(found)) for key, part in entries])
    if isinstance(result, TupleValue) or isinstance(result, ListValue) and result.source is None:
        parts = [_taken_apart(tx, item, tensors) for item in result.items]
        if isinstance(result, ListValue):
            return lambda found: ListValue([part(found) for part in parts])
        return lambda found: TupleValue([part(found) for part in parts], result.pytype)
    raise GraphBreak("QB27", "its function returns other than tensors")


def _changed(now: dict[Any, tuple[Any, Any]], before: dict[Any, tuple[Any, Any]]) -> bool:
    """Whether a mode is set otherwise than it was (each is given as first and as now)."""
    return any(before.get(key, (first, first))[1] != value for key, (first, value) in now.items())
