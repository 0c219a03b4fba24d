"""Tensors that the region makes and that are to have gradients: ``requires_grad_()``, ``nn.Parameter(...)``.

In the graph they are leaves as in eager. What is computed of one leads to it, and nobody can tell whether its ``grad``
is filled, unless the leaf itself leaves the region: then the region ends before it is made, and it is an input of the
next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.spent import autograd_nodes, is_spent
from dynamo_capture.values.base import Value
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dynamo_capture.capture import Capture

__all__ = ["escaped", "is_own_leaf", "make_leaf", "make_parameter", "renewed", "with_data"]


def make_leaf(tx: Capture, tensor: TensorValue, reason: str) -> Value:
    """``tensor.requires_grad_()`` of a tensor that the region has computed.

    Raises:
        GraphBreak: it exists outside, or eager refuses.
    """
    example = tensor.example
    may_require = example.is_floating_point() or example.is_complex()
    if tensor.source is not None or not example.is_leaf or not may_require or example.is_inference():
        raise GraphBreak("QB06", reason)
    if not tx.graph.makes_leaves:
        raise GraphBreak("QB06", reason)
    _note(tx, tensor, reason)
    return tx.graph_call("requires_grad_", [tensor], {}, method=True)


def froze(tx: Capture, leaf: TensorValue, flag: bool) -> bool:
    """``leaf.requires_grad = flag`` of a leaf that exists outside and needs a gradient as the region begins; whether it
    is done.

    What is computed while it is frozen takes the leaf without its history; the flag is set when the graph has run.
    """
    real = leaf.real_tensor
    if real is None or leaf.source is None or not real.requires_grad or not tx.graph.is_outermost or tx.levels:
        return False
    if not real.is_leaf or real.is_inference() or torch.is_inference_mode_enabled():
        return False
    if flag:
        thawed = tx.frozen.pop(id(leaf), None)
        if thawed is None:
            return False
        tx.graph.takes_place(thawed, leaf)
        tx.side.set_on_tensor_no_more(leaf, "requires_grad")
        return True
    leaf.getattr(tx, "is_leaf")  # guarded
    tx.frozen[id(leaf)] = _as_it_came(tx, leaf)
    plain = tx.graph_call("detach", [leaf], {}, method=True)
    assert isinstance(plain, TensorValue)
    tx.graph.takes_place(plain, leaf)
    tx.side.set_on_tensor(leaf, "requires_grad", ConstantValue(False))
    return True


def renewed(tx: Capture, tensor: TensorValue, data: Value) -> bool:
    """Use the new data of a tensor that exists outside, which are set when the graph has run; whether that can be done.

    Of a leaf that needs a gradient they lead to it: it is a leaf as before.
    """
    needs = tensor.example.requires_grad
    if needs and not _may_lead(tx, tensor, data):
        return False
    before = _as_it_came(tx, tensor)
    now = tx.graph_call(with_data, [before, data], {}) if needs else tx.graph_call("detach", [data], {}, method=True)
    assert isinstance(now, TensorValue)
    tx.graph.takes_place(now, tensor)
    return True


def _may_lead(tx: Capture, tensor: TensorValue, data: Value) -> bool:
    """Is it a leaf, of the shape of its new data?"""
    real = tensor.real_tensor
    if real is None or not real.is_leaf or real.is_inference() or torch.is_inference_mode_enabled():
        return False
    if not isinstance(data, TensorValue) or tensor.example.shape != data.example.shape:
        return False
    tensor.getattr(tx, "is_leaf")  # guarded
    tx.led[id(tensor)] = tensor
    return True


class _WithData(torch.autograd.Function):
    """Other data of a leaf, whose gradient is the leaf's."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
        return data.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return *gradients, None


def with_data(leaf: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """What a leaf that needs a gradient is once its ``data`` are these, in whatever mode they were set."""
    with torch.enable_grad():
        return _WithData.apply(leaf, data)  # type: ignore[no-any-return]


def _as_it_came(tx: Capture, tensor: TensorValue) -> TensorValue:
    """What the graph is given of a tensor of which the program has something else from here on."""
    before = TensorValue(tensor.node, tensor.example, tensor.source, tensor.real_tensor)
    for given in tx.graph.input_list():
        if given.value is tensor:
            given.value = before
    return before


def make_parameter(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``nn.Parameter(data, requires_grad)``."""
    reason = "making a Parameter from its class"
    given = dict(zip(("data", "requires_grad"), args, strict=False)) | kwargs
    flag = given.get("requires_grad", ConstantValue(True)).realize()
    data = given["data"].realize() if "data" in given else None
    if data is None or (type(data) is ConstantValue and data.value is None):
        data = tx.graph_call(torch.empty, [ConstantValue(0)], {})
    if not isinstance(data, TensorValue) or data.cls not in (torch.Tensor, nn.Parameter):
        raise GraphBreak("QB17", reason)
    if type(flag) is not ConstantValue or type(flag.value) is not bool or not tx.graph.is_outermost:
        raise GraphBreak("QB17", reason)
    if data.example.is_inference() or torch.is_inference_mode_enabled():
        raise GraphBreak("QB17", reason)
    if flag.value and not (data.example.is_floating_point() or data.example.is_complex()):
        raise GraphBreak("QB19", reason)
    parameter = tx.graph_call("detach", [data], {}, method=True)
    assert isinstance(parameter, TensorValue)
    _note(tx, parameter, reason)
    if flag.value:
        tx.graph_call("requires_grad_", [parameter], {}, method=True)
    parameter.cls = nn.Parameter
    return parameter


def _note(tx: Capture, tensor: TensorValue, reason: str) -> None:
    brk = GraphBreak("QB06", f"{reason}, which is needed after the region")
    brk.where = tx.location()
    tx.leaves.append((tensor, tx.frames[0].call_step(), brk))  # type: ignore[attr-defined]


def is_own_leaf(tensor: TensorValue) -> bool:
    """Whether the region has made the tensor, as a leaf that gradients are accumulated in."""
    made_here = tensor.real_tensor is None and tensor.source is None
    return made_here and tensor.example.requires_grad and tensor.example.is_leaf


def _goes_alone(tx: Capture, leaf: TensorValue, outputs: list[Value]) -> bool:
    """Whether a leaf can leave the region as a tensor that is made a leaf again: its backward pass has been run, and no
    pass through what else leaves the region comes to it."""
    if leaf.cls is not torch.Tensor or id(leaf) not in tx.side.own_leaves:
        return False
    for value in outputs:
        if value is leaf or not isinstance(value, TensorValue) or not value.example.requires_grad:
            continue
        nodes = autograd_nodes([value.example])
        if any(getattr(node, "variable", None) is leaf.example for node in nodes) and not any(map(is_spent, nodes)):
            return False
    return True


def escaped(tx: Capture, outputs: Iterable[Value]) -> tuple[int, GraphBreak] | None:
    """The step at which the region ends, and why, where a leaf that it has made leaves it, or an example of a batch."""
    outputs = list(outputs)
    leaving = {id(value) for value in outputs}
    graphs = {value.node.graph for value in outputs if isinstance(value, TensorValue)}
    for graph, step, brk in tx.bodies:
        if graph in graphs:
            return step, brk
    for tensor, step, brk in tx.leaves:
        if id(tensor) in leaving and not _goes_alone(tx, tensor, outputs):  # type: ignore[arg-type]
            return step, brk
    return None
