"""Text with symbolic sizes in it: written only where the program needs it.

Checks format their messages whether they fail or not (``torch._assert(x.dim() == 3, f"got {x.shape}")``); a size must
not become a constant for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from dynamo_capture.values.base import Value
from dynamo_capture.values.constant import CONST_TYPES, ConstantValue
from dynamo_capture.values.containers import TupleValue
from dynamo_capture.values.tensor import SymValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen

__all__ = ["TextValue", "has_symbols", "text_of"]


def has_symbols(value: Value) -> bool:
    """Whether a number, or a tuple of constants and such numbers, is not known now.

    A tuple with anything else in it is none: a list or a tensor is to be written as it is now, not as it is later.
    """
    value = value.realize()
    if _is_plain_tuple(value):
        return _stays(value) and any(map(has_symbols, value.items))
    return isinstance(value, (SymValue, TextValue))


def _is_plain_tuple(value: Value) -> TypeGuard[TupleValue]:
    return isinstance(value, TupleValue) and value.cls in (tuple, torch.Size)


def _stays(value: Value) -> bool:
    """Whether a value looks the same whenever it is written."""
    value = value.realize()
    if _is_plain_tuple(value):
        return all(map(_stays, value.items))
    return isinstance(value, (SymValue, TextValue)) or (type(value) is ConstantValue and value.pytype in CONST_TYPES)


def text_of(value: Value, convert: Any = str, spec: str = "") -> TextValue:
    """``format(convert(value), spec)``, not evaluated yet; ``convert`` may be None."""
    return TextValue([(value, convert, spec)])


class TextValue(Value):
    """A string of parts: each a value with its conversion and its format."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[tuple[Value, Any, str]]) -> None:
        self.source = None
        self.parts = parts

    @property
    def pytype(self) -> type:
        return str

    def const(self) -> str:
        """Specialise the sizes in it."""
        return "".join(_format(_plain(value), convert, spec) for value, convert, spec in self.parts)

    def truth(self, tx: Capture) -> bool:
        return bool(self.const())

    def getattr(self, tx: Capture, name: str) -> Value:
        return ConstantValue(self.const()).getattr(tx, name)

    def call_method(self, tx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return ConstantValue(self.const()).call_method(tx, name, args, kwargs)

    def iterate(self, tx: Capture) -> Iterator[Value]:
        return ConstantValue(self.const()).iterate(tx)

    def get_iter(self, tx: Capture) -> Value:
        return ConstantValue(self.const()).get_iter(tx)

    def getitem(self, tx: Capture, key: Value) -> Value:
        return ConstantValue(self.const()).getitem(tx, key)

    def contains(self, tx: Capture, item: Value) -> bool:
        return ConstantValue(self.const()).contains(tx, item)

    def length(self, tx: Capture) -> Value:
        return ConstantValue(len(self.const()))

    def key(self, tx: Capture) -> Any:
        return self.const()

    def children(self) -> Iterator[Value]:
        return (value for value, _, _ in self.parts)

    def reconstruct(self, cg: CodeGen) -> None:
        values = TupleValue([value for value, _, _ in self.parts])
        cg.call_const(_write, [values, *(ConstantValue(part[1:]) for part in self.parts)])

    def describe(self) -> str:
        return "a string with sizes in it"


def _plain(value: Value) -> Any:
    value = value.realize()
    if isinstance(value, TupleValue) and has_symbols(value):
        return value.cls(map(_plain, value.items))
    return value.const()


def _format(value: Any, convert: Any, spec: str) -> str:
    return format(value if convert is None else convert(value), spec)


def _write(values: tuple[Any, ...], *forms: tuple[Any, str]) -> str:
    """Runs in the emitted code."""
    return "".join(_format(value, *form) for value, form in zip(values, forms, strict=True))
