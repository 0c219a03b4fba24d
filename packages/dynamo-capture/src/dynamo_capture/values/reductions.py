"""Builtin functions that go through an iterable: ``sum``, ``max``, ``sorted``, ``any``, ``reduce``."""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values import arith
from dynamo_capture.values.base import Value, display
from dynamo_capture.values.classes import lookup
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import ListValue
from dynamo_capture.values.iterating import Handler, Signature, checked
from dynamo_capture.values.tensor import SymValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["REDUCTIONS", "sort_in_place"]

#: Builtin function -> handler.
REDUCTIONS: dict[Any, Handler] = {}

_NONE = ConstantValue(None)
#: Since 3.12 ``sum`` keeps what rounding takes from a sum of floats, and adds it at the end.
_SUM_COMPENSATES = sys.version_info >= (3, 12)


def reduction(fn: Any, least: int, most: int | None, *keywords: str) -> Callable[[Handler], Handler]:
    """Register a handler."""

    def register(handler: Handler) -> Handler:
        REDUCTIONS[fn] = checked(fn.__name__, Signature(least, most, *keywords), handler)
        return handler

    return register


def _is_none(value: Value) -> bool:
    return isinstance(value, ConstantValue) and value.value is None


def _are_symbolic(a: Value, b: Value) -> bool:
    """Whether the extreme of two is a symbolic number; not where it may be an int or a member of an enum."""
    return (isinstance(a, SymValue) or isinstance(b, SymValue)) and a.pytype is b.pytype and a.pytype in (int, float)


# --- extremes -------------------------------------------------------------------------------------------------------


def _extreme(is_max: bool) -> Handler:
    fn = max if is_max else min
    sym_fn = torch.sym_max if is_max else torch.sym_min
    symbol = operator.gt if is_max else operator.lt

    def handler(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if len(args) > 1 and "default" in kwargs:
            raise GraphBreak("QB07", f"{fn.__name__}() with these arguments")
        key = kwargs.get("key", _NONE).realize()
        best: Value | None = None
        best_key: Value = _NONE
        for item in args if len(args) > 1 else args[0].realize().iterate(tx):
            item = item.realize()
            item_key = item if _is_none(key) else key.call(tx, [item], {}).realize()
            if best is None:
                best, best_key = item, item_key
            elif _is_none(key) and _are_symbolic(best, item):
                best = best_key = tx.graph_call(sym_fn, [best, item], {}).realize()
            elif arith.compare(tx, symbol, item_key, best_key).realize().truth(tx):
                best, best_key = item, item_key
        if best is not None:
            return best
        if "default" in kwargs:
            return kwargs["default"]
        tx.exact(fn, ())
        raise AssertionError(fn)

    return handler


reduction(max, 1, None, "key", "default")(_extreme(True))
reduction(min, 1, None, "key", "default")(_extreme(False))


# --- sums -----------------------------------------------------------------------------------------------------------


def _is_number(value: Value) -> bool:
    return type(value) is ConstantValue and type(value.value) in (int, float, bool, complex)


@reduction(sum, 1, 2, "start")
def _sum(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    total = (args[1] if len(args) > 1 else kwargs.get("start", ConstantValue(0))).realize()
    if isinstance(total, ConstantValue) and isinstance(total.value, (str, bytes)):
        raise GraphBreak("QB07", "sum() of strings")
    known: list[Any] | None = [] if _is_number(total) else None
    symbols = floats = isinstance(total, SymValue)
    for item in args[0].realize().iterate(tx):
        item = item.realize()
        symbols = symbols or isinstance(item, SymValue)
        floats = floats or item.pytype is float
        if known is not None and _is_number(item):
            known.append(item.const())
            continue
        if known:
            total = ConstantValue(sum(known, total.const()))
        known = None
        total = arith.binary(tx, operator.add, total, item).realize()
    if known:
        total = ConstantValue(sum(known, total.const()))
    if symbols and floats and _SUM_COMPENSATES and total.pytype is float:
        raise GraphBreak("QB07", "sum() of floats that are not known")
    return total


@reduction(math.prod, 1, 1, "start")
def _prod(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    total: Value = kwargs.get("start", ConstantValue(1))
    for item in args[0].realize().iterate(tx):
        total = arith.binary(tx, operator.mul, total.realize(), item.realize())
    return total


@reduction(any, 1, 1)
def _any(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(any(item.realize().truth(tx) for item in args[0].realize().iterate(tx)))


@reduction(all, 1, 1)
def _all(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(all(item.realize().truth(tx) for item in args[0].realize().iterate(tx)))


@reduction(functools.reduce, 2, 3)
def _reduce(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    fn = args[0].realize()
    total = args[2] if len(args) > 2 else None
    items = args[1].realize()
    if lookup(items.pytype, "__iter__")[1] is None and lookup(items.pytype, "__getitem__")[1] is None:
        raise GraphBreak("QB19", f"reduce() of {display(items)}")
    for item in items.iterate(tx):
        total = item if total is None else fn.call(tx, [total, item], {})
    if total is None:
        tx.exact(functools.reduce, operator.add, ())
        raise AssertionError("an empty iterable was reduced")
    return total


# --- sorting --------------------------------------------------------------------------------------------------------


class _Row:
    """An element that is sorted by the program's ``<`` of its key."""

    __slots__ = ("item", "key", "tx")

    def __init__(self, tx: Capture, key: Value, item: Value) -> None:
        self.tx = tx
        self.key = key
        self.item = item

    def __lt__(self, other: _Row) -> bool:
        return arith.compare(self.tx, operator.lt, self.key, other.key).realize().truth(self.tx)


@reduction(sorted, 1, 1, "key", "reverse")
def _sorted(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items = args[0].realize().unpack(tx)
    sort_in_place(tx, items, kwargs)
    return ListValue(items)


def sort_in_place(tx: Capture, items: list[Value], kwargs: dict[str, Value]) -> None:
    """``items.sort(**kwargs)``, by the same comparisons; after an exception they are in the order that it left."""
    key = kwargs.get("key", _NONE).realize()
    reverse = "reverse" in kwargs and kwargs["reverse"].realize().truth(tx)
    keys = [item.realize() if _is_none(key) else key.call(tx, [item], {}).realize() for item in items]
    if all(value.is_const for value in keys):
        constants = [value.const() for value in keys]
        order = list(range(len(items)))
        old = list(items)
        try:
            tx.exact(order.sort, key=constants.__getitem__, reverse=reverse)
        finally:
            items[:] = [old[i] for i in order]
        return
    rows = [_Row(tx, key, item) for key, item in zip(keys, items, strict=True)]
    try:
        rows.sort(reverse=reverse)
    finally:
        items[:] = [row.item for row in rows]
