"""Tensors whose values are known while the region is captured: what is computed of constants and a module's numbers.

``torch.tensor([1.0, 2.0]) > 0`` is the same in every call. So is what is computed of the integers that a module keeps
in buffers without dimensions, on the CPU (a stride, a kernel's size), as long as they are what they are, which is
guarded. Where the program reads such a tensor's data, the operators that the graph has of it are run, by PyTorch, and
the answer is theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch.utils._python_dispatch import _disable_current_modes

from dynamo_capture.sources import Source
from dynamo_capture.values.base import Value
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import ListValue, SliceValue, TupleValue
from dynamo_capture.values.int_tensors import replaced
from dynamo_capture.values.tensor import TensorValue
from prims.spec import Sym

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["as_known_ints", "computed_of_known", "known_tensor"]

#: Elements of a tensor, and operators, up to which they are run.
_MOST_ELEMENTS = 4096
_MOST_NODES = 200
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


class _NotKnown(Exception):
    pass


def integer_of(tensor: torch.Tensor) -> int | bool:
    """The integer that a tensor holds (a step of a guard's path)."""
    return tensor.item()  # type: ignore[return-value]


def known_tensor(tx: Capture, tensor: TensorValue) -> torch.Tensor | None:
    """The values of a tensor, or None where only the call tells."""
    try:
        computing = _Computing(tx)
        found = computing.value(tensor.node)
    except _NotKnown:
        return None
    computing.fix_sizes()
    return found  # type: ignore[no-any-return]


def computed_of_known(tx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value], method: bool) -> Value | None:
    """What a call that reads data gives of known tensors; None where it is given others, or gives something else."""
    try:
        computing = _Computing(tx)
        given = [computing.argument(arg) for arg in args]
        named = {name: computing.argument(value) for name, value in kwargs.items()}
        result = computing.run(_method(fn) if method else fn, given, named)
    except _NotKnown:
        return None
    if computing.has_history and type(result) not in (bool, int, float, complex):
        return None
    computing.fix_sizes()
    return _as_value(tx, result)


def as_known_ints(tx: Capture, value: Value) -> Value:
    """``value`` with ints in place of known tensors of one integer; itself where there are none."""

    def read(tensor: TensorValue) -> Value:
        known = known_tensor(tx, tensor) if tensor.example.ndim == 0 and tensor.example.dtype in _INTEGERS else None
        return tensor if known is None else ConstantValue(_read(known))

    return replaced(value, read)


def _as_value(tx: Capture, result: Any) -> Value | None:
    """A result as the graph has it: a tensor is made of its numbers."""
    if isinstance(result, torch.Tensor):
        plain = type(result) is torch.Tensor and result.layout is torch.strided and not result.is_quantized
        if not plain or result.requires_grad or result.dtype.is_complex or result.storage_offset():
            return None
        dtype: dict[str, Value] = {"dtype": ConstantValue(result.dtype)}
        numbers = tx.graph_call(torch.tensor, [tx.from_python(_read(result))], dtype) if result.numel() else None
        if numbers is not None and result.is_contiguous():
            return numbers
        places = [TupleValue([ConstantValue(n) for n in whole]) for whole in (result.shape, result.stride())]
        made = tx.graph_call(torch.empty_strided, list(places), dtype)
        return made if numbers is None else tx.graph_call("copy_", [made, numbers], {}, method=True)
    if type(result) in (tuple, list):
        items = [_as_value(tx, item) for item in result]
        if any(item is None for item in items):
            return None
        return (TupleValue if type(result) is tuple else ListValue)(items)  # type: ignore[arg-type]
    return ConstantValue(result) if type(result) in (bool, int, float, complex) else None


def _read(tensor: torch.Tensor) -> Any:
    with _disable_current_modes():
        return tensor.tolist()


class _Computing:
    """Runs operators of the region's graph on real tensors, once each.

    Attributes:
        has_history: one of them needs a gradient.
    """

    def __init__(self, tx: Capture) -> None:
        self.tx = tx
        self.values: dict[torch.fx.Node, Any] = {}
        self.has_history = False
        self._sizes: list[Sym] = []
        autocast = any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))
        if not tx.graph.is_outermost or tx.levels or autocast or tx.graph.may_write_uncounted:
            raise _NotKnown
        self.tensors = {value.node: value for value in tx.graph.values()}

    def argument(self, value: Value) -> Any:
        """A call's argument, of known tensors and constants."""
        value = value.realize()
        if isinstance(value, TensorValue):
            return self.value(value.node)
        if isinstance(value, (TupleValue, ListValue)) and value.pytype in (tuple, list, torch.Size):
            return value.pytype([self.argument(item) for item in value.items])
        if isinstance(value, SliceValue):
            return slice(*map(self.argument, value.parts))
        if value.is_const:
            return value.const()
        raise _NotKnown

    def value(self, node: torch.fx.Node) -> Any:
        """What a node gives.

        Raises:
            _NotKnown: it depends on the call, is written to, random, on a GPU or too much.
        """
        if node in self.values:
            return self.values[node]
        size = node.meta.get("spec")
        if isinstance(size, Sym):
            if size.hint is None:
                raise _NotKnown
            self._sizes.append(size)
            return size.hint
        tensor = self.tensors.get(node)
        self.has_history |= tensor is not None and tensor.example.requires_grad
        if tensor is not None and not _may_be_known(tensor.example):
            raise _NotKnown
        if len(self.values) > _MOST_NODES:
            raise _NotKnown
        if node.op == "placeholder" and tensor is not None:
            found = self._held(tensor)
        elif node.op in ("call_function", "call_method"):
            args = torch.fx.node.map_arg(node.args, self.value)
            kwargs = torch.fx.node.map_arg(node.kwargs, self.value)
            name = node.target
            found = self.run(_method(name) if isinstance(name, str) else name, args, kwargs)
        else:
            raise _NotKnown
        self.values[node] = found
        return found

    def fix_sizes(self) -> None:
        """What has been computed holds for the sizes of this call."""
        for size in self._sizes:
            int(torch.SymInt(size))

    def _held(self, tensor: TensorValue) -> torch.Tensor:
        """The integer in a buffer of a module."""
        source, real = tensor.source, tensor.real_tensor
        if source is None or real is None or source.is_module_state is None or real.ndim or real.dtype not in _INTEGERS:
            raise _NotKnown
        held = Source("call", source, integer_of)
        with _disable_current_modes():
            number = integer_of(real)
            copy = real.detach().clone()
        if not self.tx.sizes.settles(str(held), number):
            raise _NotKnown
        self.tx.guards.equals(held, number)
        return copy

    def run(self, call: Any, args: Any, kwargs: Any) -> Any:
        """A call on real tensors.

        Raises:
            _NotKnown: it is random, or raises.
        """
        with _disable_current_modes(), torch.no_grad():
            state = torch.get_rng_state()
            try:
                found = call(*args, **kwargs)
            except Exception:
                raise _NotKnown from None
            finally:
                drawn = not torch.equal(state, torch.get_rng_state())
                if drawn:
                    torch.set_rng_state(state)
        if drawn:
            raise _NotKnown
        large = isinstance(found, torch.Tensor) and (found.numel() > _MOST_ELEMENTS or found.device.type != "cpu")
        if large or any(word in getattr(call, "__name__", "") for word in _UNDEFINED):
            raise _NotKnown
        return found


def _may_be_known(example: torch.Tensor) -> bool:
    sizes = all(type(size) is int for size in example.shape)
    return sizes and example.device.type == "cpu" and not example.is_inference() and not example._version


def _method(name: str) -> Any:
    def call(x: Any, *rest: Any, **options: Any) -> Any:
        return getattr(x, name)(*rest, **options)

    call.__name__ = name
    return call


#: In the names of operators: what they give nobody has written, or is what there was.
_UNDEFINED = ("empty", "resize", "setitem", "set_", "from_file", "frombuffer")
