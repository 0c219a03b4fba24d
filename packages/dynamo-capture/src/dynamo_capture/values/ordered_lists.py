"""``heapq`` and ``bisect``: their C functions are captured as Python functions with the same meaning, for comparing
runs programs' code.

A heap is a list in which no item is less than the one half as far along; both sifts are those of Williams ("Algorithm
232: Heapsort", 1964), the one from the root in Floyd's form, which goes down to a leaf first. As CPython's functions do
the same comparisons, the list comes out in the same order. So does one that ``bisect`` searches by halves.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import ObservedError, Value, display
from dynamo_capture.values.containers import ListValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["ORDERED_LISTS"]

Less = Callable[[Any, Any], Any]
Handler = Callable[[Any, list[Value], dict[str, Value]], Value]


def _least(x: Any, y: Any) -> Any:
    return x < y


def _greatest(x: Any, y: Any) -> Any:
    return y < x


def _up(heap: list[Any], start: int, place: int, less: Less) -> None:
    """Move the item at ``place`` towards ``start`` until the one above is not behind it."""
    item = heap[place]
    while place > start:
        above = (place - 1) >> 1
        if not less(item, heap[above]):
            break
        heap[place] = heap[above]
        place = above
    heap[place] = item


def _down(heap: list[Any], start: int, less: Less) -> None:
    """Move the item at ``start`` to a leaf, and from there to where it belongs."""
    place, item = start, heap[start]
    while 2 * place + 1 < len(heap):
        below = 2 * place + 1
        if below + 1 < len(heap) and not less(heap[below], heap[below + 1]):
            below += 1
        heap[place] = heap[below]
        place = below
    heap[place] = item
    _up(heap, start, place, less)


def _push(heap: list[Any], item: Any, less: Less) -> None:
    changed = [*heap, item]
    _up(changed, 0, len(changed) - 1, less)
    heap[:] = changed


def _pop(heap: list[Any], less: Less) -> Any:
    first, changed = heap[0], heap[:-1]
    if changed:
        changed[0] = heap[-1]
        _down(changed, 0, less)
    heap[:] = changed
    return first


def _replace(heap: list[Any], item: Any, less: Less) -> Any:
    first, changed = heap[0], [item, *heap[1:]]
    _down(changed, 0, less)
    heap[:] = changed
    return first


def _push_pop(heap: list[Any], item: Any, less: Less) -> Any:
    return _replace(heap, item, less) if heap and less(heap[0], item) else item


def _heapify(heap: list[Any], less: Less) -> None:
    changed = list(heap)
    for place in reversed(range(len(changed) // 2)):
        _down(changed, place, less)
    heap[:] = changed


def _search(items: Any, x: Any, lo: int, hi: int | None, key: Any, right: bool) -> int:
    """The place of ``x`` among items in order, the last such place to the ``right``, else the first."""
    if lo < 0:
        raise ValueError("lo must be non-negative")
    stop = len(items) if hi is None or hi == -1 else hi
    while lo < stop:
        middle = (lo + stop) // 2
        item = items[middle] if key is None else key(items[middle])
        if not (x < item) if right else item < x:
            lo = middle + 1
        else:
            stop = middle
    return lo


def _bisect(right: bool) -> Callable[..., int]:
    def search(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Any = None) -> int:
        return _search(a, x, lo, hi, key, right)

    return search


def _insort(right: bool) -> Callable[..., None]:
    def insert(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Any = None) -> None:
        a.insert(_search(a, x if key is None else key(x), lo, hi, key, right), x)

    return insert


def _bisect_handler(name: str, fn: Callable[..., Any]) -> Handler:
    def handle(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        try:
            return tx.from_python(fn).realize().call(tx, args, kwargs)
        except ObservedError:  # by which message, the C function knows
            raise GraphBreak("QB07", f"bisect.{name} of items that do not compare, or of no sequence") from None

    return handle


def _handler(name: str, fn: Callable[..., Any], less: Less) -> Handler:
    def handle(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        heap = args[0].realize()
        if not isinstance(heap, ListValue) or heap.cls is not list:
            raise GraphBreak("QB03", f"heapq.{name} of {display(heap)}")
        try:
            return tx.from_python(fn).realize().call(tx, [*args, tx.from_python(less)], kwargs)
        except ObservedError:  # what is in the list then, the C function decides
            raise GraphBreak("QB07", f"heapq.{name} of an empty list or of items that do not compare") from None

    return handle


def _table() -> dict[Any, Any]:
    """Later versions of Python have all functions for both orders, with public names."""
    names: dict[str, Callable[..., Any]] = {
        "heappush": _push, "heappop": _pop, "heapreplace": _replace, "heappushpop": _push_pop, "heapify": _heapify,
    }  # fmt: skip
    table = {}
    for name, fn in names.items():
        for found, less in ((name, _least), (f"{name}_max", _greatest), (f"_{name}_max", _greatest)):
            if hasattr(heapq, found):
                table[getattr(heapq, found)] = _handler(found, fn, less)
    for name, right in (("left", False), ("right", True)):
        for kind, made in (("bisect", _bisect), ("insort", _insort)):
            table[getattr(bisect, f"{kind}_{name}")] = _bisect_handler(f"{kind}_{name}", made(right))
    return table


#: C function -> handler.
ORDERED_LISTS = _table()
