"""``torch.profiler.record_function``: a label for profilers, which is nothing while none runs (guarded)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import profiler

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import Value
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.objects import ObjectValue
from dynamo_capture.values.torch_calls import special

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__: list[str] = []


class _RecordValue(Value):
    """What entering a label gives. Nobody sees it unless the region ends inside: then the label begins there."""

    __slots__ = ("label",)

    def __init__(self, label: list[Value]) -> None:
        self.source = None
        self.label = label

    def children(self) -> Any:
        return iter(self.label)

    def reconstruct(self, cg: CodeGen) -> None:
        cg.call_const(torch.ops.profiler._record_function_enter_new, self.label)


def _is_recorded() -> bool:
    """Whether a profiler would see a label, or PyTorch's experimental monitor."""
    monitor = getattr(profiler, "_maybe_cupti_monitor", lambda: None)()
    return torch._C._autograd._profiler_enabled() or getattr(monitor, "_monitor_singleton", None) is not None


def _check_unrecorded(tx: Capture) -> None:
    tx.guards.state(_is_recorded, False, "a profiler sees record_function")
    if _is_recorded():
        raise GraphBreak("QB03", "record_function under a profiler")


@special(profiler.record_function.__enter__)
def _enter(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    label = args[0].realize()
    if not isinstance(label, ObjectValue):
        raise GraphBreak("QB03", "record_function.__enter__")
    _check_unrecorded(tx)
    label.store(tx, "record", _RecordValue([label.getattr(tx, "name"), label.getattr(tx, "args")]))
    return label


@special(profiler.record_function.__exit__)
def _exit(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    _check_unrecorded(tx)
    return ConstantValue(None)
