"""``torch.profiler.record_function``: a label for profilers.

Compiled code runs under a profiler as it does without: a profile of eager code would tell of another program. So a
label inside a graph is not seen; one that is open where a graph ends is seen from there on.
"""

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


@special(profiler.record_function.__enter__)
def _enter(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    label = args[0].realize()
    if not isinstance(label, ObjectValue):
        raise GraphBreak("QB03", "record_function.__enter__")
    label.store(tx, "record", _RecordValue([label.getattr(tx, "name"), label.getattr(tx, "args")]))
    return label


@special(profiler.record_function.__exit__)
def _exit(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(None)
