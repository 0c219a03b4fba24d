"""Tensors made of a Python int, whose value is known: ``torch.tensor(x.size(0))``, ``torch.div(size, 2, ...)``.

Where eager reads such a tensor as an index, a slice's bound or a size, capture takes the int that it was made of.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.values.base import Value
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import ListValue, SliceValue, TupleValue
from dynamo_capture.values.grown import FoundList
from dynamo_capture.values.tensor import SymValue, TensorValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["as_ints", "known_ints", "note_int", "replaced"]

_MAKERS = frozenset((torch.tensor, torch.as_tensor, torch.scalar_tensor))
_OPERATORS: dict[Any, Any] = {
    operator.add: operator.add, torch.add: operator.add, operator.sub: operator.sub, torch.sub: operator.sub,
    operator.mul: operator.mul, torch.mul: operator.mul,
}  # fmt: skip


def known_ints(value: Value) -> Value:
    """``value`` with the ints in place of the tensors made of them; itself where there are none."""
    return replaced(value, lambda tensor: tensor if tensor.number is None else tensor.number)


def as_ints(tx: Capture, value: Value) -> Value:
    """``value`` with numbers in place of tensors without dimensions that hold an integer, read from their data."""

    def read(tensor: TensorValue) -> Value:
        kind = tensor.example.dtype
        is_int = not (kind.is_floating_point or kind.is_complex or kind == torch.bool) and tensor.example.ndim == 0
        return tensor.call_method(tx, "item", [], {}) if is_int else tensor

    return replaced(value, read)


def replaced(value: Value, by: Callable[[TensorValue], Value]) -> Value:
    """``value`` with what ``by`` gives in place of the tensors in it; itself where that changes none."""
    value = value.realize()
    if isinstance(value, TensorValue):
        return by(value)
    if isinstance(value, SliceValue):
        parts = [replaced(part, by) for part in value.parts]
        return SliceValue(parts) if _changed(parts, value.parts) else value
    if type(value) in (TupleValue, ListValue, FoundList):
        items = [replaced(item, by) for item in value.items]  # type: ignore[attr-defined]
        if _changed(items, value.items):  # type: ignore[attr-defined]
            return TupleValue(items) if type(value) is TupleValue else ListValue(items)
    return value


def _changed(new: list[Value], old: list[Value]) -> bool:
    return any(x.realize() is not y for x, y in zip(old, new, strict=True))


def note_int(tx: Capture, fn: Any, args: list[Value], kwargs: dict[str, Value], result: Value) -> None:
    """Note on the result of a call that it is a tensor of a known int."""
    if not isinstance(result, TensorValue) or result.example.ndim or result.example.dtype != torch.int64:
        return
    if fn in _MAKERS and args:
        number = _int(args[0])
        if number is not None:
            result.number = number
        return
    if len(args) != 2 or not (fn in _OPERATORS or fn is torch.div):
        return
    a, b = (_int(arg) for arg in args)
    if a is None or b is None:
        return
    from dynamo_capture.values.arith import binary, compare

    if fn in _OPERATORS and not kwargs:
        result.number = binary(tx, _OPERATORS[fn], a, b).realize()
    elif fn is torch.div and kwargs.keys() == {"rounding_mode"}:
        # Rounded towards zero and down are the same without a sign.
        zero = ConstantValue(0)
        if compare(tx, operator.ge, a, zero).truth(tx) and compare(tx, operator.gt, b, zero).truth(tx):
            result.number = binary(tx, operator.floordiv, a, b).realize()


def _int(value: Value) -> Value | None:
    """The known int behind an argument."""
    value = value.realize()
    if isinstance(value, TensorValue):
        return value.number
    return value if isinstance(value, (ConstantValue, SymValue)) and value.pytype is int else None
