"""``TransformGetItemToIndex``: PyTorch's torch-function mode under which ``x[i]`` by tensors and ints is an index.

Models make their masks under it, by functions that ``vmap`` calls. It passes on all other calls as they are: capture
calls its Python at each ``x[...]``, and at nothing else, which would not do for other torch-function modes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.rules import is_library_class
from dynamo_capture.values.base import Value
from dynamo_capture.values.callables import BuiltinValue, ClassValue, HandlerValue
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import TupleValue
from dynamo_capture.values.dicts import DictValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["IndexMode", "is_index_mode"]

_NAME = ("torch._dynamo._trace_wrapped_higher_order_op", "TransformGetItemToIndex")


def is_index_mode(cls: type) -> bool:
    """Whether a class is the mode, which only programs that use it have imported."""
    return (cls.__module__, cls.__qualname__) == _NAME and is_library_class(cls)


class IndexMode(Value):
    """The mode. A graph does not break inside: the whole call runs natively."""

    __slots__ = ("cls",)

    def __init__(self, cls: type) -> None:
        self.cls = cls

    @property
    def pytype(self) -> type:
        return self.cls

    def getattr(self, tx: Capture, name: str) -> Value:
        if name not in ("__enter__", "__exit__"):
            raise GraphBreak("QB03", f"{name} of a torch-function mode")
        return _Entrance(self, self._enter if name == "__enter__" else self._leave, name)

    def _enter(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if tx.devices.now:
            raise GraphBreak("QB03", "a torch-function mode under a default device")
        tx.side.epoch += 1
        tx.index_modes.append(self)
        return self

    def _leave(self, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        tx.side.epoch += 1
        tx.index_modes.pop()
        return ConstantValue(None)

    def getitem_of(self, tx: Capture, tensor: Value, key: Value) -> Value:
        """``tensor[key]``, which the mode is told of; what it calls is not."""
        function = BuiltinValue(torch.Tensor.__getitem__)
        asked = ClassValue(self.cls).getattr(tx, "__torch_function__").realize()
        before, tx.index_modes = tx.index_modes, []
        try:
            return asked.call(tx, [self, function, TupleValue([]), TupleValue([tensor, key]), DictValue()], {})
        finally:
            tx.index_modes = before

    def describe(self) -> str:
        return "TransformGetItemToIndex()"


class _Entrance(HandlerValue):
    """Its ``__enter__`` or ``__exit__``."""

    __slots__ = ("owner",)

    def __init__(self, owner: IndexMode, handler: Any, name: str) -> None:
        super().__init__(handler, name)
        self.owner = owner
