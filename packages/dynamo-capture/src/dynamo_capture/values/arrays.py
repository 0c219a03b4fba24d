"""Arrays of NumPy that exist outside, of which the region makes tensors: ``torch.from_numpy(self.table)``.

The tensor is an input of the graph: made of the array before each call, over its memory, so that what others write to
the array counts. Whatever else a program does with an array ends the graph.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.sources import Source
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.builtin_functions import builtin
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import TupleValue
from dynamo_capture.values.tensor import TensorValue, size_value

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["ArrayValue", "array", "is_array", "tensor_of"]


def is_array(obj: Any) -> bool:
    """Whether it is an array of NumPy, which is not imported for the question."""
    return type(obj) is getattr(sys.modules.get("numpy"), "ndarray", None)


def tensor_of_array(array: Any) -> torch.Tensor | None:
    """The array's memory as a tensor (a step of a guard's path); None where eager would warn or refuse."""
    try:
        return torch.from_numpy(array) if array.flags.writeable else None
    except (TypeError, ValueError):
        return None


class ArrayValue(Value):
    """An array; ``inner`` is a tensor over its memory."""

    __slots__ = ("inner", "obj")

    mutable = True

    def __init__(self, obj: Any, source: Source, inner: TensorValue) -> None:
        self.obj = obj
        self.source = source
        self.inner = inner

    @property
    def pytype(self) -> type:
        return type(self.obj)

    def real(self) -> Any:
        return self.obj

    def getattr(self, tx: Capture, name: str) -> Value:
        if name == "shape":
            return TupleValue(list(size_value(tx, self.inner).items))  # type: ignore[attr-defined]
        if name == "ndim":
            return ConstantValue(self.inner.example.ndim)
        if name == "size":
            return self.inner.call_method(tx, "numel", [], {})
        raise _refused(self, f"attribute {name!r}")

    def length(self, tx: Capture) -> Value:
        if not self.inner.example.ndim:
            raise _refused(self, "len()")
        return self.inner.length(tx)

    def truth(self, tx: Capture) -> bool:
        raise _refused(self, "the truth value")

    def describe(self) -> str:
        return "a numpy ndarray"


def _refused(value: ArrayValue, what: str) -> GraphBreak:
    return GraphBreak("QB09", f"{what} of {display(value)}")


def array(tx: Capture, obj: Any, source: Source | None) -> Value:
    """The value of an array.

    Raises:
        GraphBreak: there is no tensor over its memory, or it may not be written.
    """
    source = source or Source("constant", None, (obj,))
    with _disable_current_modes():
        tensor = tensor_of_array(obj)
    if tensor is None:
        raise GraphBreak("QB09", f"a numpy ndarray ({source})")
    tx.guards.type_is(source, type(obj))
    inner = tx.wrap(tensor, Source("call", source, tensor_of_array))
    return ArrayValue(obj, source, inner)  # type: ignore[arg-type]


def tensor_of(tx: Capture, fn: Any, value: ArrayValue, kwargs: dict[str, Value]) -> Value:
    """``torch.as_tensor(array, ...)`` or ``torch.tensor(array, ...)``."""
    if kwargs.keys() - {"dtype", "device"}:
        raise _refused(value, f"torch.{fn.__name__}() with these options")
    given = {name: option for name, option in kwargs.items() if option.realize().pytype is not type(None)}
    if fn is torch.as_tensor:
        return tx.graph_call("to", [value.inner], given, method=True) if given else value.inner
    copied: dict[str, Value] = {"copy": ConstantValue(True), "memory_format": ConstantValue(torch.contiguous_format)}
    device = {"device": ConstantValue(torch.device("cpu"))}
    return tx.graph_call("to", [value.inner], {**device, **given, **copied}, method=True)


@builtin(torch.from_numpy)
def _from_numpy(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = args[0].realize() if len(args) == 1 and not kwargs else None
    if not isinstance(value, ArrayValue):
        raise GraphBreak("QB09", "torch.from_numpy() of what is no array that exists outside")
    return value.inner
