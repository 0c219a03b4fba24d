"""``loss.backward()`` inside a region: gradients by autograd, added to the ``grad`` of the leaves as autograd does.

In the graph it is ``torch.autograd.grad`` to all leaves. A gradient that there is is added to in place; else the
tensor's ``grad`` is set when the graph has run. Hooks on the leaves are captured, in the order in which autograd comes
to them: those on a gradient change it, those after its accumulation may take an optimizer's step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.spent import autograd_nodes
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import ListValue, TupleValue
from dynamo_capture.values.derivatives import check_anomalies
from dynamo_capture.values.leaves import is_own_leaf
from dynamo_capture.values.tensor import TensorValue
from dynamo_capture.values.torch_calls import special
from prims.transforms import gradient

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["tensor_backward"]

_OF_TENSOR = ("self", "gradient", "retain_graph", "create_graph", "inputs")
_OF_FUNCTION = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")


def _refuse(text: str) -> GraphBreak:
    return GraphBreak("QB12", f"a backward pass in the region: {text}")


def tensor_backward(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``tensor.backward(gradient=None, retain_graph=None, create_graph=False, inputs=None)``."""
    given = dict(zip(_OF_TENSOR, args, strict=False)) | kwargs
    return _backward(tx, given["self"], given.pop("gradient", ConstantValue(None)), given, _OF_TENSOR)


@special(torch.autograd.backward)
def _function(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``torch.autograd.backward(tensors, grad_tensors=None, retain_graph=None, ...)``."""
    given = dict(zip(_OF_FUNCTION, args, strict=False)) | kwargs
    return _backward(tx, given["tensors"], given.pop("grad_tensors", ConstantValue(None)), given, _OF_FUNCTION)


def _is_none(value: Value) -> bool:
    return type(value) is ConstantValue and value.value is None


def _items(value: Value) -> list[Value]:
    value = value.realize()
    if isinstance(value, (TupleValue, ListValue)):
        return [item.realize() for item in value.items]
    return [value]


def _backward(
    tx: Capture, tensors: Value, gradients: Value, given: dict[str, Value], names: tuple[str, ...]
) -> Value:
    if not given.keys() <= set(names) or not _is_none(given.get("grad_variables", ConstantValue(None)).realize()):
        raise _refuse("with these arguments")
    create = bool(given.get("create_graph", ConstantValue(False)).realize().const())
    if not tx.graph.is_outermost or tx.levels or torch.is_inference_mode_enabled():
        raise _refuse("inside of a derivative or another graph")
    if tx.hooked:
        raise _refuse("with hooks that the region has set on tensors from outside")
    check_anomalies(tx)
    outputs = _items(tensors)
    ones: list[Value] = [ConstantValue(None)] * len(outputs)
    seeds = ones if _is_none(gradients.realize()) else _items(gradients)
    if not all(isinstance(y, TensorValue) and y.example.requires_grad for y in outputs):
        raise _refuse(f"of {display(tensors)}")
    leaves = _leaves(tx, outputs)  # type: ignore[arg-type]
    if not _is_none(given.get("inputs", ConstantValue(None)).realize()):
        wanted = _items(given["inputs"])
        if not wanted or any(each not in leaves for each in wanted):
            raise _refuse("to inputs that are no leaves, or that the outputs are not computed from")
        leaves = [leaf for leaf in leaves if leaf in wanted]
    hooked = {id(leaf): _hooks(tx, leaf) for leaf in leaves}
    if create and any(before or after for before, after in hooked.values()):
        raise _refuse("with create_graph, to a leaf with hooks")
    retain = given.get("retain_graph", ConstantValue(None)).realize().const()
    retain = create if retain is None else retain
    tx.went_back = True
    tx.side.epoch += 1  # where autograd refuses, it may have freed some of what a later pass needs
    options: dict[str, Value] = {"retain_graph": ConstantValue(retain), "allow_unused": ConstantValue(True)}
    if create:
        options["create_graph"] = ConstantValue(True)
    existing = {id(value) for value in tx.graph.values()}
    with _order_of(leaves) as order:
        found = tx.graph_call(gradient, [ListValue(outputs), ListValue(list(leaves)), ListValue(seeds)], options)
    pairs = list(zip(leaves, found.unpack(tx), strict=True))
    if any(before or after for before, after in hooked.values()):
        pairs.sort(key=lambda pair: order.index(id(pair[0])) if id(pair[0]) in order else len(order))
    for leaf, value in pairs:
        if isinstance(value, TensorValue):
            before, after = hooked[id(leaf)]
            changed = _changed_by(tx, value, before)
            if create:
                _accumulate_with_history(tx, leaf, changed)
            else:
                _accumulate(tx, leaf, changed, id(changed) in existing)
            existing.add(id(changed))
            for hook in after:
                if not _is_none(hook.call(tx, [leaf], {}).realize()):
                    raise _refuse("with a hook after the accumulation that returns something")
    return ConstantValue(None)


def _leaves(tx: Capture, outputs: list[TensorValue]) -> list[TensorValue]:
    """The leaves that gradients are accumulated in, in the order in which the graph has them.

    Raises:
        GraphBreak: a gradient goes to what was computed before the region, or another process is told of one.
    """
    found: list[TensorValue] = []
    for node in autograd_nodes([y.example for y in outputs]):
        if any(following for following, _ in node.next_functions):
            continue
        variable = getattr(node, "variable", None)
        if getattr(variable, "is_for_derivative", False):
            continue
        leaf = tx.graph.value_of(variable) if variable is not None else None
        if leaf is not None and not leaf.example.requires_grad:
            continue  # frozen since it was used: nothing is accumulated in it
        own = leaf is not None and is_own_leaf(leaf)
        if leaf is None or not (own or (leaf.real_tensor is not None and leaf.source is not None)):
            raise _refuse("through what was computed before the region")
        if own:
            brk = _refuse("to a leaf that it has made, which is needed after the region")
            brk.where = tx.location()
            tx.leaves.append((leaf, tx.frames[0].call_step(), brk))  # type: ignore[attr-defined]
        found.append(leaf)
    distributed = getattr(torch.distributed, "is_initialized", bool)
    if distributed():
        raise _refuse("while processes may be told of it")
    tx.guards.state(distributed, False, "torch.distributed is not initialized")
    order = {node: at for at, node in enumerate(tx.graph.graph.nodes)}
    return sorted(found, key=lambda leaf: order[leaf.node])


def _hooks(tx: Capture, leaf: TensorValue) -> tuple[list[Value], list[Value]]:
    """The hooks on a leaf's gradient, and those after its accumulation."""
    if is_own_leaf(leaf):
        return [], []  # to register one ends the graph
    assert leaf.source is not None and leaf.real_tensor is not None
    real: Any = leaf.real_tensor
    if not real.is_leaf:
        raise _refuse("to a tensor that was computed before the region")
    if not real._backward_hooks and not real._post_accumulate_grad_hooks:
        tx.guards.predicate(leaf.source, _is_plain_leaf, f"{leaf.source} is a leaf without hooks")
        return [], []
    found = []
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        registered = tx.wrap(getattr(real, name), leaf.source.attr(name)).realize()
        found.append([] if _is_none(registered) else registered.call_method(tx, "values", [], {}).unpack(tx))
    tx.guards.predicate(leaf.source, _is_leaf, f"{leaf.source} is a leaf")
    return found[0], found[1]


def _is_leaf(tensor: Any) -> bool:
    return bool(tensor.is_leaf)


@contextmanager
def _order_of(leaves: list[TensorValue]) -> Iterator[list[int]]:
    """In which order autograd comes to leaves: their identities."""
    order: list[int] = []

    def note(leaf: TensorValue) -> Any:
        return leaf.example.register_hook(lambda _: order.append(id(leaf)))

    handles = [note(leaf) for leaf in leaves]
    try:
        yield order
    finally:
        for handle in handles:
            handle.remove()


def _changed_by(tx: Capture, gradient: TensorValue, hooks: list[Value]) -> TensorValue:
    """A leaf's gradient as hooks on it make it."""
    for hook in hooks:
        result = hook.call(tx, [gradient], {}).realize()
        if _is_none(result):
            continue
        if not isinstance(result, TensorValue) or not _fits(result.example, gradient.example):
            raise _refuse(f"with a hook that returns {display(result)}")
        gradient = result
    return gradient


def _fits(result: torch.Tensor, gradient: torch.Tensor) -> bool:
    """Whether autograd takes one tensor as a gradient in the place of another."""
    facts = [(x.shape, x.dtype, x.device) for x in (result, gradient)]
    return facts[0] == facts[1] and not result.requires_grad


def _is_plain_leaf(tensor: Any) -> bool:
    return tensor.is_leaf and not tensor._backward_hooks and not tensor._post_accumulate_grad_hooks


def _steps(tensor: torch.Tensor) -> list[Any]:
    """The strides of the dimensions along which a tensor has more than one element."""
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]


def _accumulate(tx: Capture, leaf: TensorValue, gradient: TensorValue, shared: bool) -> None:
    """Add a gradient to a leaf's.

    Args:
        shared: the tensor is somebody else's, so that a leaf without a gradient takes a copy.
    """
    current = leaf.getattr(tx, "grad").realize()
    if isinstance(current, TensorValue):
        if current.example.requires_grad:
            raise _refuse("to a gradient that has a history")
        tx.graph_call("add_", [current, gradient], {}, method=True)
        return
    if not _is_none(current):
        raise _refuse(f"to a leaf whose gradient is {display(current)}")
    ours, wanted = gradient.example, leaf.example
    made: Value = gradient
    if shared or ours._is_view() or _steps(ours) != _steps(wanted):
        plain = tx.graph_call("detach", [leaf], {}, method=True)
        made = tx.graph_call(torch.empty_like, [plain], {})  # in the layout that autograd gives a gradient
        tx.graph_call("copy_", [made, gradient], {}, method=True)
    _set(tx, leaf, made)


def _set(tx: Capture, leaf: TensorValue, gradient: Value) -> None:
    if is_own_leaf(leaf):
        tx.side.set_gradient_of_own(leaf, gradient)
    else:
        tx.side.set_on_tensor(leaf, "grad", gradient)


def _accumulate_with_history(tx: Capture, leaf: TensorValue, gradient: TensorValue) -> None:
    """Add a gradient that can be differentiated to a leaf's: nothing is written in place, a first one is a copy."""
    current = leaf.getattr(tx, "grad").realize()
    if isinstance(current, TensorValue):
        made: Value = tx.graph_call(torch.add, [current, gradient], {})
    elif not _is_none(current):
        raise _refuse(f"to a leaf whose gradient is {display(current)}")
    elif _steps(gradient.example) == _steps(leaf.example):
        made = tx.graph_call("clone", [gradient], {"memory_format": ConstantValue(torch.preserve_format)}, method=True)
    else:
        plain = tx.graph_call("detach", [leaf], {}, method=True)
        empty = tx.graph_call(torch.empty_like, [plain], {})  # in the layout that autograd gives a gradient
        made = tx.graph_call("copy_", [empty, gradient], {}, method=True)
    _set(tx, leaf, made)
