"""Derivatives inside a region: ``torch.autograd.grad``, ``torch.func`` and dual numbers.

What ``torch.func`` does around its calls of functorch is Python, which is captured as such; here stands what those
calls come down to (:mod:`prims.transforms`): views of the arguments that gradients are taken to, and calls of autograd,
which the stage that runs the graph under autograd on abstract tensors traces like any other.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
import torch._C._functorch as functorch
import torch.fx
from torch.autograd import forward_ad

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.spent import autograd_nodes
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.builtin_functions import builtin
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import ListValue, TupleValue
from dynamo_capture.values.tensor import TensorValue
from dynamo_capture.values.torch_calls import set_mode, special, special_by_name
from dynamo_capture.versions import version_of
from prims.records import record
from prims.spec.tensor import HISTORY_NODE
from prims.transforms import distinct, gradient, require_gradient

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["Level", "check_anomalies", "check_history"]

_FUNC = "torch._functorch.eager_transforms"
_CALLERS = ("torch._functorch.predispatch", _FUNC)
_FORWARD = "torch.autograd.forward_ad"


def _refuse(text: str) -> GraphBreak:
    return GraphBreak("QB12", text)


@record(frozen=False, eq=False)
class Level:
    """A derivative being taken.

    Attributes:
        enabled: whether gradients are recorded around it.
        own: the tensors that need a gradient for its sake alone.
        wrapped: the views that gradients are taken to and the arguments, by the views' identity.
        duals: of a forward derivative, its tensors and their tangents; None of a gradient.
        start: the last node of the graph when it began.
        graph: the graph in which it began.
    """

    enabled: bool
    own: list[TensorValue]
    wrapped: dict[int, tuple[TensorValue, TensorValue]]
    graph: torch.fx.Graph
    start: torch.fx.Node | None
    duals: list[tuple[TensorValue, TensorValue]] | None = None

    def has_made(self, value: TensorValue, graph: torch.fx.Graph) -> bool:
        """Whether a tensor was made since it began, as far as ``graph`` is concerned, where capture is."""
        node = value.node
        if node.op == "placeholder" or value.source is not None:
            return False
        if node.graph is self.graph:
            return self.start is None or self.start < node
        return node.graph is graph


def _enter(tx: Capture, duals: list[tuple[TensorValue, TensorValue]] | None = None) -> Value:
    enabled = torch.is_grad_enabled()
    if torch.is_inference_mode_enabled():
        raise _refuse("a derivative in inference mode")
    if duals is not None and not enabled:
        set_mode(tx, torch._C._set_grad_enabled, [True])
    graph = tx.graph.graph
    tx.levels.append(Level(enabled, [], {}, graph, next(iter(reversed(graph.nodes)), None), duals))
    tx.side.epoch += 1
    return ConstantValue(len(tx.levels))


def _leave(tx: Capture) -> Value:
    level = tx.levels.pop()
    if level.duals is not None and not level.enabled:
        set_mode(tx, torch._C._set_grad_enabled, [False])
    return ConstantValue(len(tx.levels))


def _tracked(tx: Capture, level: Level, value: Value, leaf: bool) -> TensorValue:
    """A view of a tensor that gradients can be taken to.

    Args:
        leaf: it needs a gradient.
    """
    value = value.realize()
    if not isinstance(value, TensorValue):
        raise _refuse(f"a derivative by {display(value)}")
    example = value.example
    if example.is_inference() or not (example.is_floating_point() or example.is_complex()):
        return value
    inside = value if level.enabled or not example.requires_grad else tx.graph_call("detach", [value], {}, method=True)
    made = tx.graph_call(distinct, [inside], {})
    assert isinstance(made, TensorValue)
    level.wrapped[id(made)] = made, value
    tx.level_of[id(made)] = level
    if leaf:
        _need_gradient(tx, level, made)
    return made


def _need_gradient(tx: Capture, level: Level, tensor: TensorValue) -> None:
    if tensor.example.requires_grad:
        return
    if not (tensor.example.is_floating_point() or tensor.example.is_complex()):
        raise _refuse(f"a derivative by {display(tensor)} of {tensor.example.dtype}")
    level.own.append(tensor)
    tx.graph_call(require_gradient, [tensor], {})
    # In a pull-back that is called later, it would go on needing a gradient, which the program's own no longer does.
    brk = _refuse("a tensor inside of a derivative is kept after it")
    tx.leaves.append((tensor, tx.frames[0].call_step(), brk))  # type: ignore[attr-defined]


def _outside(tx: Capture, level: Level, value: Value) -> Value:
    """What a tensor is after the derivative: it needs a gradient only for the sake of what is around."""
    value = value.realize()
    if not isinstance(value, TensorValue):
        return value
    known = level.wrapped.get(id(value))
    if known is not None and not version_of(value.example):
        return known[1]
    if not value.example.requires_grad:
        return value
    if level.enabled:
        around = {id(tensor.example) for other in tx.levels if other is not level for tensor in other.own}
        if any(id(leaf) in around or not getattr(leaf, "is_for_derivative", False) for leaf in _leaves(value.example)):
            return value
    elif not level.has_made(value, tx.graph.graph):
        return value
    return tx.graph_call("detach", [value], {}, method=True)


def _leaves(tensor: torch.Tensor) -> list[Any]:
    """What a tensor's history begins with: leaves of autograd, and nodes before which nothing is known."""
    if tensor.grad_fn is None:
        return [tensor]
    ends = [node for node in autograd_nodes([tensor]) if not any(following for following, _ in node.next_functions)]
    return [getattr(node, "variable", node) for node in ends]


# --- gradients: grad, vjp, jacrev -------------------------------------------------------------------------------------


@builtin(functorch._grad_increment_nesting)
def _enter_gradient(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _enter(tx)


@builtin(functorch._grad_decrement_nesting)
def _leave_gradient(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _leave(tx)


@builtin(functorch._wrap_for_grad)
def _wrap(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _tracked(tx, tx.levels[-1], args[0], leaf=False)


@special_by_name(_FUNC, "_set_tensor_requires_grad")
def _require(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    tensor = args[0].realize()
    assert isinstance(tensor, TensorValue)
    _need_gradient(tx, tx.levels[-1], tensor)
    return tensor


@special_by_name(_FUNC, "enable_inplace_requires_grad")
def _no_context(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return tx.from_python(contextlib.nullcontext).realize().call(tx, [], {})


special_by_name("torch.autograd.graph", "disable_saved_tensors_hooks")(_no_context)


def _unwrap(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _outside(tx, tx.levels[-1], args[0])


for _module in _CALLERS:
    special_by_name(_module, "_unwrap_for_grad")(_unwrap)
builtin(functorch._unwrap_for_grad)(_unwrap)


@special_by_name(_FUNC, "_autograd_grad")
def _autograd_grad(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    check_anomalies(tx)
    found = tx.from_python(_gradients).realize().call(tx, args, kwargs)
    inputs = _sequence(args[1] if len(args) > 1 else kwargs["inputs"])
    level = tx.level_of.get(id(inputs[0])) if inputs else None
    if level is None or level in tx.levels:
        return found
    # The derivative is behind us (this is the function that ``vjp`` gave): so are the needs for its sake.
    level.enabled = torch.is_grad_enabled()
    return TupleValue([_outside(tx, level, value) for value in found.unpack(tx)])


def _gradients(
    outputs: Any, inputs: Any, grad_outputs: Any = None, retain_graph: Any = False, create_graph: Any = True
) -> Any:
    """Captured in place of PyTorch's: gradients of the outputs that have any, zeros for inputs that they do not use."""
    if grad_outputs is None:
        grad_outputs = [None] * len(outputs)
    used = [(y, v) for y, v in zip(outputs, grad_outputs, strict=False) if y.requires_grad]
    if not used:
        return tuple([torch.zeros_like(x) for x in inputs])
    # Whatever it is told to free is of this derivative alone, and in the graph there is one history for all of them.
    return gradient([y for y, _ in used], list(inputs), [v for _, v in used], True, create_graph, True, True)


# --- dual numbers: jvp, jacfwd ----------------------------------------------------------------------------------------


@special_by_name(_FUNC, "enter_jvp_nesting")
def _enter_duals(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _enter(tx, [])


@special_by_name(_FUNC, "exit_jvp_nesting")
def _leave_duals(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _leave(tx)


special_by_name(_FORWARD, "enter_dual_level")(_enter_duals)
special_by_name(_FORWARD, "exit_dual_level")(_leave_duals)


@builtin(torch._C._is_fwd_grad_enabled)
def _is_forward_enabled(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not torch._C._is_fwd_grad_enabled():
        raise _refuse("forward derivatives are switched off")
    return ConstantValue(True)


@builtin(torch._C._set_fwd_grad_enabled)
def _enable_forward(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args[0].realize().const() is not True:
        raise _refuse("forward derivatives are switched off")
    return ConstantValue(None)


def _dual_level(tx: Capture, kwargs: dict[str, Value]) -> Level:
    if not tx.levels or tx.levels[-1].duals is None or any(v.realize().const() is not None for v in kwargs.values()):
        raise _refuse("a dual number of another level")
    return tx.levels[-1]


@special_by_name(_FORWARD, "make_dual")
def _make_dual(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``make_dual(tensor, tangent)``."""
    if len(args) != 2:
        raise _refuse("make_dual with these arguments")
    level = _dual_level(tx, kwargs)
    primal, tangent = (value.realize() for value in args)
    if not isinstance(primal, TensorValue) or not isinstance(tangent, TensorValue):
        raise _refuse("a dual number of other than tensors")
    a, b = primal.example, tangent.example
    if tuple(a.shape) != tuple(b.shape) or a.dtype != b.dtype or a.device != b.device or not a.is_floating_point():
        raise _refuse(f"a dual number of {a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}")
    dual = _tracked(tx, level, primal, leaf=True)
    assert level.duals is not None
    level.duals.append((dual, tangent))
    return dual


@special_by_name(_FORWARD, "unpack_dual")
def _unpack_dual(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``unpack_dual(tensor) -> (primal, tangent or None)``."""
    if not tx.levels and len(args) == 1 and not kwargs and forward_ad._current_level < 0:
        return TupleValue([args[0], ConstantValue(None)], forward_ad.UnpackedDualTensor)  # outside of any level
    level = _dual_level(tx, kwargs)
    value = args[0].realize()
    if not isinstance(value, TensorValue):
        raise _refuse(f"unpack_dual of {display(value)}")
    tangent: Value = ConstantValue(None)
    behind = autograd_nodes([value.example])
    reached = {id(node.variable) for node in behind if hasattr(node, "variable")} | {id(value.example)}
    assert level.duals is not None
    used = [
        (dual, given) for dual, given in level.duals
        if id(dual.example) in reached or (dual.example.grad_fn is not None and dual.example.grad_fn in behind)
    ]  # fmt: skip
    if used:
        if value.example.is_complex():
            raise _refuse("a forward derivative of complex numbers")
        seed = tx.graph_call(torch.zeros_like, [value], {})
        assert isinstance(seed, TensorValue)
        seed = tx.graph_call("detach", [seed], {}, method=True) if seed.example.requires_grad else seed
        _need_gradient(tx, level, seed)  # type: ignore[arg-type]
        duals, tangents = (ListValue(list(part)) for part in zip(*used, strict=True))
        tangent = tx.from_python(_tangent).realize().call(tx, [value, seed, duals, tangents], {})
    return TupleValue([_outside(tx, level, v) for v in (value, tangent)], forward_ad.UnpackedDualTensor)


def _tangent(y: Any, seed: Any, duals: Any, tangents: Any) -> Any:
    """Captured: the derivative of ``seed -> seed J``, which is linear, applied to the tangents."""
    found = gradient([y], duals, [seed], True, True, True, False)
    used = [(g, t) for g, t in zip(found, tangents, strict=True) if g is not None and g.requires_grad]
    if not used:
        return torch.zeros_like(y)
    return gradient([g for g, _ in used], [seed], [t for _, t in used], True, True, True, True)[0]


# --- torch.autograd.grad ----------------------------------------------------------------------------------------------

_PARAMETERS = ("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph", "only_inputs", "allow_unused",
               "is_grads_batched", "materialize_grads")  # fmt: skip


@special(torch.autograd.grad)
def _grad(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``torch.autograd.grad(outputs, inputs, ...)``."""
    given = dict(zip(_PARAMETERS, args, strict=False)) | kwargs
    options = {name: given[name].realize().const() for name in _PARAMETERS[3:] if name in given}
    if not given.keys() <= set(_PARAMETERS) or "inputs" not in given or "outputs" not in given:
        raise _refuse("torch.autograd.grad with these arguments")
    if options.pop("is_grads_batched", False) or not options.pop("only_inputs", True):
        raise _refuse("torch.autograd.grad with these arguments")
    outputs, inputs = (_tensors(tx, given[name]) for name in ("outputs", "inputs"))
    seeds: list[Value] = [ConstantValue(None)] * len(outputs)
    whole = given.get("grad_outputs", ConstantValue(None)).realize()
    if not (type(whole) is ConstantValue and whole.value is None):
        seeds = _items(tx, whole)
    if torch.is_inference_mode_enabled() or tx.hooked:
        where = "with hooks that the region has set on tensors from outside" if tx.hooked else "in inference mode"
        raise _refuse(f"torch.autograd.grad {where}")
    check_anomalies(tx)
    check_history(tx, outputs, inputs)
    tx.went_back = True
    tx.side.epoch += 1  # where autograd refuses, it may have freed some of what a later pass needs
    named: dict[str, Value] = {name: ConstantValue(value) for name, value in options.items() if value is not None}
    return tx.graph_call(gradient, [ListValue(list(outputs)), ListValue(list(inputs)), ListValue(seeds)], named)


def _items(tx: Capture, value: Value) -> list[Value]:
    """What a tensor or an iterable of them gives, a dict's values and a generator too."""
    value = value.realize()
    return [value] if isinstance(value, TensorValue) else [item.realize() for item in value.iterate(tx)]


def _sequence(value: Value) -> list[Value]:
    value = value.realize()
    if not isinstance(value, (TupleValue, ListValue)):
        raise _refuse(f"a derivative with {display(value)}")
    return [item.realize() for item in value.items]


def _tensors(tx: Capture, value: Value) -> list[TensorValue]:
    items = _items(tx, value)
    found = [item for item in items if isinstance(item, TensorValue)]
    if len(found) != len(items):
        raise _refuse("torch.autograd.grad of other than tensors")
    return found


def check_anomalies(tx: Capture) -> None:
    """Where a program has anomalies detected, autograd looks at each gradient, which no graph does for its own.

    Raises:
        GraphBreak: it has.
    """
    ask = lambda tx: tx.guards.now(torch.is_anomaly_enabled, "whether anomalies are detected")
    if ask(tx):
        brk = _refuse("a derivative in the region while anomalies are detected")
        brk.guard = ask  # also where the graph ends further out
        raise brk


def check_history(tx: Capture, outputs: list[TensorValue], inputs: list[TensorValue]) -> None:
    """Gradients of what the region computes come by the region alone, and no hook of the program is told of them.

    Raises:
        GraphBreak: they may come by what was computed before it.
    """
    earlier = {node for node in autograd_nodes([y.example for y in outputs]) if isinstance(node, HISTORY_NODE)}
    for tensor in inputs:
        if tensor.real_tensor is None:
            continue
        if earlier - {tensor.example.grad_fn}:
            raise _refuse("a gradient to a tensor that other inputs of the region may have been computed from")
        if tensor.real_tensor._backward_hooks:
            raise _refuse("a gradient to a tensor with hooks")
        if tensor.source is not None:
            tx.guards.predicate(tensor.source, _has_no_hooks, f"{tensor.source} has no hooks")


def _has_no_hooks(tensor: torch.Tensor) -> bool:
    return not tensor._backward_hooks
