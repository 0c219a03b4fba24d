"""Strings of values: ``str``, ``repr`` and ``format``, and the ``%`` operator."""

from __future__ import annotations

import dataclasses
import enum
import functools
import operator
import re
import reprlib
import string
import types
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.classes import find
from dynamo_capture.values.constant import ConstantValue, fold
from dynamo_capture.values.containers import ListValue, TupleValue
from dynamo_capture.values.dicts import DictValue
from dynamo_capture.values.enums import guard_member_text
from dynamo_capture.values.objects import ObjectValue
from dynamo_capture.values.plain_objects import PlainValue, asks_the_process
from dynamo_capture.values.tensor import SymValue, TensorValue
from dynamo_capture.values.text import TextValue, has_symbols, text_of
from dynamo_capture.values.torch_calls import special_by_code

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["by_format", "formatted", "joined", "text_from"]

_CONVERSIONS = (None, str, repr, ascii)


def formatted(tx: Capture, value: Value, conversion: int, spec: Any) -> Value:
    """``format(value, spec)``, after a conversion: 0 none, 1 ``str``, 2 ``repr``, 3 ``ascii``."""
    if has_symbols(value) and _takes_any(value, conversion, spec):
        return text_of(value, _CONVERSIONS[conversion], spec)
    if isinstance(value, TensorValue):
        return _number_of(tx, value, conversion, spec)
    if conversion:
        value = text_from(tx, _CONVERSIONS[conversion], value)
    elif isinstance(value, ObjectValue):
        method, owner = find(tx, value.cls, "__format__")
        if owner is not object:
            if not isinstance(method, types.FunctionType):
                raise GraphBreak("QB07", f"formatting {display(value)}")
            return _string(value.call_method(tx, "__format__", [ConstantValue(spec)], {}).realize())
        if spec:
            raise GraphBreak("QB07", f"formatting {display(value)} by {spec!r}")
        value = text_from(tx, str, value)
    elif issubclass(value.pytype, enum.Enum):
        guard_member_text(tx, value)
    if isinstance(value, PlainValue) and asks_the_process(spec):
        raise GraphBreak("QB03", f"formatting {value.describe()} by {spec!r}, by the process's time zone or language")
    _look_into(tx, value)
    return fold(tx, format, [value, ConstantValue(spec)], {})


def _number_of(tx: Capture, tensor: TensorValue, conversion: int, spec: str) -> Value:
    """``format(tensor, spec)`` of one number, of which PyTorch formats the item: it is written when the graph has run.

    Raises:
        GraphBreak: it is no such tensor, or the format may fail.
    """
    example = tensor.example
    kind = bool if example.dtype == torch.bool else float if example.is_floating_point() else int
    plain = tensor.cls is torch.Tensor and example.ndim == 0 and not example.is_meta and not example.is_complex()
    if conversion or not plain or not tx.graph.is_outermost or tx.may_be_caught() or example.is_inference():
        raise GraphBreak("QB02", "formatting a tensor")
    tx.exact(format, kind(1), spec)
    if spec.endswith("c"):
        raise GraphBreak("QB02", "formatting a tensor")
    tx.read_later(GraphBreak("QB02", "formatting a tensor"), [example])
    return text_of(tensor, None, spec)


def joined(tx: Capture, separator: str, items: list[Value]) -> Value:
    """``separator.join(items)``.

    Raises:
        GraphBreak: of items that are no texts, or of symbolic numbers.
    """
    texts = [item.realize() for item in items]
    if all(type(text) is ConstantValue for text in texts):
        return ConstantValue(tx.exact(separator.join, [text.const() for text in texts]))
    if not all(text.pytype is str for text in texts):
        raise GraphBreak("QB07", "str.join of values that are not constants")
    if not all(isinstance(text, TextValue) or type(text) is ConstantValue for text in texts):
        return ConstantValue(separator.join(text.const() for text in texts))
    between: list[Value] = [part for text in texts for part in (ConstantValue(separator), text)]
    return TextValue([(part, None, "") for part in between[1:]])


def _takes_any(value: Value, conversion: int, spec: str) -> bool:
    """Whether the format of a symbolic value does not fail, whatever the value is."""
    if not spec:
        return True
    like: Any = "" if conversion or isinstance(value, TextValue) else value.pytype(1)
    try:
        format(like, spec)
    except (TypeError, ValueError):
        return False
    return not spec.endswith("c")


def text_from(tx: Capture, make: Any, value: Value) -> Value:
    """``str(value)``, ``repr(value)`` or ``ascii(value)``."""
    if isinstance(value, TensorValue):
        raise GraphBreak("QB02", f"{make.__name__}() of a tensor")
    if has_symbols(value):
        return text_of(value, make)
    if not isinstance(value, ObjectValue):
        if issubclass(value.pytype, enum.Enum):
            guard_member_text(tx, value)
        _look_into(tx, value)
        return fold(tx, make, [value], {})
    name = "__str__" if make is str and find(tx, value.cls, "__str__")[1] is not object else "__repr__"
    text = _string(value.call_method(tx, name, [], {}).realize())
    return text if make is not ascii else fold(tx, _to_ascii, [text], {})


def _look_into(tx: Capture, value: Value) -> None:
    """What a text of containers shows: all that dicts hold which exist outside."""
    value = value.realize()
    if isinstance(value, (ListValue, TupleValue)):
        for item in value.items:
            _look_into(tx, item)
    elif type(value) is DictValue:
        for key, item in value.whole(tx).values():
            _look_into(tx, key)
            _look_into(tx, item)


def _recursive_repr(fn: Any, tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A ``__repr__`` that a decorator keeps from going on for ever: that of every dataclass."""
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__, strict=True))
    inner = cells["user_function"].cell_contents
    if len(args) != 1 or kwargs or not isinstance(inner, types.FunctionType):
        raise GraphBreak("QB07", "repr() of a dataclass")
    if any(frame.code is inner.__code__ for frame in tx.frames):  # which may be of the same object
        raise GraphBreak("QB07", "repr() of an object inside of another's")
    return tx.from_python(inner).realize().call(tx, args, {})


for _decorator in (reprlib.recursive_repr(), getattr(dataclasses, "_recursive_repr", None)):
    if _decorator is not None:
        special_by_code(_decorator(lambda self: ""))(_recursive_repr)


def _to_ascii(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()


def _string(value: Value) -> Value:
    """What a method has given that must give a string."""
    if value.pytype is not str:
        raise GraphBreak("QB07", f"{display(value)} in place of a string")
    return value


def by_format(form: str, args: list[Value]) -> Value | None:
    """``form.format(*args)`` with symbolic numbers among the arguments, not written yet; None where it may fail."""
    values = [arg.realize() for arg in args]
    if not any(map(has_symbols, values)) or not all(
        isinstance(value, SymValue) or value.pytype in (int, float, str) for value in values
    ):
        return None
    try:
        parts = list(string.Formatter().parse(form))
        form.format(*[value.pytype(1) for value in values])
    except (TypeError, ValueError, LookupError, AttributeError):
        return None
    if any(spec is not None and ("{" in spec or spec.endswith("c")) for _, _, spec, _ in parts):
        return None
    return text_of(TupleValue(values), functools.partial(_by_format, form))


def _by_format(form: str, values: tuple[Any, ...]) -> str:
    return form.format(*values)


#: Conversions of ``%`` that take every number.
_SAFE_FORMAT = re.compile(r"(?:[^%]|%%|%[-+ #0]*\d*(?:\.\d+)?[diosrxXfFeEgG])*", re.DOTALL)


def percent(tx: Capture, form: Value, args: Value) -> Value | None:
    """``form % args`` with symbolic ints among the arguments, not written yet; None where it may fail."""
    if not (form.is_const and type(form.const()) is str and has_symbols(args)):
        return None
    text = form.const()
    values = args.items if hasattr(args, "items") else [args]
    numbers = all(isinstance(v.realize(), SymValue) or v.pytype in (int, float, str) for v in values)
    if not _SAFE_FORMAT.fullmatch(text) or not numbers:
        return None
    try:
        text % tuple(v.pytype(1) for v in values)
    except (TypeError, ValueError):
        return None
    return text_of(args, functools.partial(operator.mod, text))
