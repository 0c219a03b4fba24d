"""``torch.inference_mode``: a region whose operators all stand inside runs its graph in that mode.

What a graph computes there are inference tensors, so that one graph is either inside or outside: it ends before the
mode is entered when it has operators by then, and before the first operator after it has been left.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.grad_mode import inference_mode

from dynamo_capture.breaks import GraphBreak, SkipFrame
from dynamo_capture.values.base import Value
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.objects import ObjectValue
from dynamo_capture.values.torch_calls import special

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen, Plan

__all__ = ["InferenceRegion"]


class InferenceValue(Value):
    """The guard that entering the mode makes. Where the region ends inside, it is made and entered there."""

    __slots__ = ("guard",)

    def __init__(self) -> None:
        self.source = None
        self.guard: Any = torch._C._InferenceMode(True)
        self.guard.__enter__()

    def leave(self) -> None:
        """Leave the mode that capture is in, unless it has been left."""
        guard, self.guard = self.guard, None
        if guard is not None:
            guard.__exit__(None, None, None)

    def reconstruct(self, cg: CodeGen) -> None:
        cg.call_const(_entered, [])


def _entered() -> Any:
    """Runs in the emitted code."""
    guard: Any = torch._C._InferenceMode(True)
    guard.__enter__()
    return guard


class InferenceRegion:
    """What one capture knows of the mode. As a context manager it leaves the mode that capture is in."""

    __slots__ = ("entered", "values")

    def __init__(self) -> None:
        #: Whether the graph runs in the mode, which the frame has entered.
        self.entered = False
        self.values: list[InferenceValue] = []

    def __enter__(self) -> InferenceRegion:
        return self

    def __exit__(self, *error: Any) -> None:
        for value in reversed(self.values):
            value.leave()

    def around(self) -> AbstractContextManager[Any]:
        """The mode in which the graph is compiled and run."""
        return torch.inference_mode() if self.entered else nullcontext()

    def check_operator(self, tx: Capture) -> None:
        """Break before an operator that is outside of the mode in which the graph runs."""
        if self.entered and not torch.is_inference_mode_enabled():
            tx.side.epoch += 1  # its abstract run may have written
            raise GraphBreak("QB03", "an operator after inference_mode has been left")

    def check_left(self, plan: Plan) -> None:
        """What entered the mode and has not left it lives on, to leave it.

        Raises:
            SkipFrame: it does not.
        """
        built = {id(value) for value in plan.built}
        if any(value.guard is not None and id(value) not in built for value in self.values):
            text = "inference_mode is entered by an object that nothing refers to"
            raise SkipFrame(text, "Enter it by a with statement, or outside of the compiled function.")


@special(inference_mode.__enter__)
def _enter(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    owner = args[0].realize()
    region = tx.inference
    if not isinstance(owner, ObjectValue) or owner.getattr(tx, "mode").realize().const() is not True:
        raise GraphBreak("QB03", "inference_mode(False)")
    if not torch.is_inference_mode_enabled():
        if tx.graph.op_count or region.entered or not tx.graph.is_outermost:
            raise GraphBreak("QB03", "entering inference_mode after operators outside of it")
        region.entered = True
    elif torch.is_grad_enabled():
        raise GraphBreak("QB03", "inference_mode inside enable_grad")
    value = InferenceValue()
    region.values.append(value)
    owner.store(tx, "_inference_mode_context", value)
    return ConstantValue(None)


@special(inference_mode.__exit__)
def _exit(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    owner = args[0].realize()
    value = owner.attrs.get("_inference_mode_context") if isinstance(owner, ObjectValue) else None
    entered = [each for each in tx.inference.values if each.guard is not None]
    if not isinstance(value, InferenceValue) or not entered or entered[-1] is not value:
        raise GraphBreak("QB03", "leaving inference_mode, which was entered before")
    tx.side.epoch += 1
    value.leave()
    if not tx.graph.op_count and not torch.is_inference_mode_enabled():
        tx.inference.entered = False  # nothing has been computed in it
    return ConstantValue(None)
