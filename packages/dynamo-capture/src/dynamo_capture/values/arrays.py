"""Arrays of NumPy that exist outside, of which the region makes tensors: ``torch.from_numpy(self.table)``.

The tensor is an input of the graph: made of the array before each call, over its memory, so that what others write to
the array counts. What else a program reads of a small array is guarded, as long as that stays from call to call; a
write to an array ends the graph.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.sources import Source
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.builtin_functions import builtin
from dynamo_capture.values.callables import HandlerValue
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import TupleValue
from dynamo_capture.values.made_arrays import KINDS, METHODS, MadeArrayValue, NumpyArray, tensor_of_numbers
from dynamo_capture.values.tensor import TensorValue, size_value

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["ArrayValue", "array", "is_array", "tensor_of"]


#: Bytes up to which the contents of an array are compared before each call.
_MOST_COMPARED = 4096


def is_array(obj: Any) -> bool:
    """Whether it is an array of NumPy, which is not imported for the question."""
    return type(obj) is getattr(sys.modules.get("numpy"), "ndarray", None)


def tensor_of_array(array: Any) -> torch.Tensor | None:
    """The array's memory as a tensor (a step of a guard's path); None where eager would warn or refuse."""
    try:
        return torch.from_numpy(array) if array.flags.writeable else None
    except (TypeError, ValueError):
        return None


def contents_of(array: Any) -> bytes | None:
    """All that a program can read of a small array (a step of a guard's path); None for a large one."""
    if array.nbytes > _MOST_COMPARED:
        return None
    return f"{array.dtype.str}{array.shape}{array.strides}".encode() + array.tobytes()  # type: ignore[no-any-return]


class ArrayValue(NumpyArray):
    """An array; ``inner`` is a tensor over its memory."""

    __slots__ = ("_known", "inner")

    def __init__(self, obj: Any, source: Source, inner: TensorValue) -> None:
        self.obj = obj
        self._known: MadeArrayValue | None = None
        self.source = source
        self.inner = inner

    @property
    def pytype(self) -> type:
        return type(self.obj)

    def real(self) -> Any:
        return self.obj

    def known(self, tx: Capture) -> MadeArrayValue:
        """What is in the array, guarded: an array like it that nobody writes.

        Raises:
            GraphBreak: it is large, has changed from call to call, or the region may have written to it.
        """
        if self._known is None:
            data = contents_of(self.obj)
            name = str(self.source)
            if data is None or self.obj.dtype.kind not in KINDS or not tx.sizes.settles(name, zlib.crc32(data)):
                raise GraphBreak("QB09", f"what is in {display(self)}, which is large, or changes from call to call")
            tx.guards.equals(Source("call", self.source, contents_of), data)
            like = self.obj.copy("K")
            like.flags.writeable = False
            self._known = MadeArrayValue(tx.made_arrays, like)
            tx.made_arrays.values[id(like)], tx.made_arrays.like[id(like)] = self, like
        self._known.array(tx)
        return self._known

    def array(self, tx: Capture) -> Any:
        """See :meth:`known`."""
        return self.known(tx).array(tx)

    def getattr(self, tx: Capture, name: str) -> Value:
        if name == "shape":
            return TupleValue(list(size_value(tx, self.inner).items))  # type: ignore[attr-defined]
        if name == "ndim":
            return ConstantValue(self.inner.example.ndim)
        if name == "size":
            return self.inner.call_method(tx, "numel", [], {})
        if name == "dtype":
            return ConstantValue(self.obj.dtype)  # the tensor's dtype is guarded
        if name in METHODS and hasattr(self.obj, name):
            return HandlerValue(lambda tx, args, kwargs: self.call_method(tx, name, args, kwargs), name)
        return self.known(tx).getattr(tx, name)

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.known(tx).call_method(tx, name, args, kwargs)

    def getitem(self, tx: Capture, key: Value) -> Value:
        return self.known(tx).getitem(tx, key)

    def setitem(self, tx: Capture, key: Value, value: Value) -> None:
        raise GraphBreak("QB09", f"a write to {display(self)}")

    def contains(self, tx: Capture, item: Value) -> bool:
        return self.known(tx).contains(tx, item)

    def iterate(self, tx: Capture) -> Iterator[Value]:
        return self.known(tx).iterate(tx)

    def length(self, tx: Capture) -> Value:
        if not self.inner.example.ndim:
            raise _refused(self, "len()")
        return self.inner.length(tx)

    def truth(self, tx: Capture) -> bool:
        return self.known(tx).truth(tx)

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


def tensor_of(tx: Capture, fn: Any, value: ArrayValue | MadeArrayValue, kwargs: dict[str, Value]) -> Value:
    """``torch.as_tensor(array, ...)`` or ``torch.tensor(array, ...)``."""
    if isinstance(value, MadeArrayValue):
        return _tensor_of_made(tx, fn, value, kwargs)
    if kwargs.keys() - {"dtype", "device"}:
        raise _refused(value, f"torch.{fn.__name__}() with these options")
    given = {name: option for name, option in kwargs.items() if option.realize().pytype is not type(None)}
    if fn is torch.as_tensor:
        return tx.graph_call("to", [value.inner], given, method=True) if given else value.inner
    copied: dict[str, Value] = {"copy": ConstantValue(True), "memory_format": ConstantValue(torch.contiguous_format)}
    device = {"device": ConstantValue(torch.device("cpu"))}
    return tx.graph_call("to", [value.inner], {**device, **given, **copied}, method=True)


def _tensor_of_made(tx: Capture, fn: Any, value: MadeArrayValue, kwargs: dict[str, Value]) -> Value:
    given = {name: option.realize().const() for name, option in kwargs.items()}
    dtype, device = given.get("dtype"), given.get("device")
    plain = given.keys() <= {"dtype", "device"} and isinstance(dtype, torch.dtype | None)
    if not plain or (device is not None and torch.device(device).type != "cpu"):
        raise GraphBreak("QB09", f"torch.{fn.__name__}() of an array with these options")
    if fn is torch.tensor:
        return tensor_of_numbers(tx, value, shared=False, dtype=dtype)
    made = tensor_of_numbers(tx, value, shared=True)
    return made if dtype is None else tx.graph_call("to", [made, ConstantValue(dtype)], {}, method=True)


@builtin(torch.from_numpy)
def _from_numpy(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = args[0].realize() if len(args) == 1 and not kwargs else None
    if isinstance(value, MadeArrayValue):
        return tensor_of_numbers(tx, value, shared=True)
    if not isinstance(value, ArrayValue):
        raise GraphBreak("QB09", "torch.from_numpy() of what is no array that is known")
    return value.inner
