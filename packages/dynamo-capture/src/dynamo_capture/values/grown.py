"""Lists and deques that exist outside and are only added to: how long they are is nobody's question.

A history grows with every call (``losses.append(loss)``). A guard on its length would have the function captured anew
each time, so the length is guarded, and the items looked at, when something first asks for them.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dynamo_capture.values.base import Value
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import DequeValue, ListValue, SequenceValue, TupleValue, wrap_items

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen
    from dynamo_capture.sources import Source

__all__ = ["FoundDeque", "FoundList", "found_list"]


class _Found:
    """What existing lists and deques share, until their items are asked for.

    Attributes:
        added: what the region has added at the end; None once the items are known.
    """

    __slots__ = ()

    tx: Any
    obj: Any
    added: list[Value] | None
    known: Any

    @property
    def items(self) -> Any:
        """The items: looked at, and the length guarded, from now on."""
        if self.added is not None:
            source: Any = self.source  # type: ignore[attr-defined]
            found = wrap_items(self.tx, self.obj, source)
            self.tx.guards.length(source, len(found))
            self.known.extend([*found, *self.added])
            self.added = self.obj = self.tx = None  # type: ignore[misc]
        return self.known

    @items.setter
    def items(self, items: Any) -> None:
        self.known = items

    def children(self) -> Iterator[Value]:
        return iter(self.items if self.added is None else self.added)

    def native(self, tx: Capture, name: str, *args: Any) -> Any:
        if self.added is None or name != "append":
            return super().native(tx, name, *args)  # type: ignore[misc]
        tx.side.mutate(self)  # type: ignore[arg-type]
        self.added.append(*args)

    def extend(self, tx: Capture, other: Value, name: str = "append") -> None:
        if self.added is None or name != "append" or other is self or not isinstance(other, SequenceValue):
            super().extend(tx, other, name)  # type: ignore[misc]
            return
        added = list(other.items)
        tx.side.mutate(self)  # type: ignore[arg-type]
        self.added += added

    def replay_added(self, cg: CodeGen) -> bool:
        """Emit code that adds to the object what the region has; False where it may have done more to it."""
        if self.added is None:
            return False
        base = collections.deque if isinstance(self, DequeValue) else list
        cg.call_const(base.extend, [self, TupleValue(list(self.added))])  # type: ignore[list-item, attr-defined]
        return True


class FoundList(_Found, ListValue):
    """An existing list."""

    __slots__ = ("added", "known", "obj", "tx")

    def __init__(self, tx: Capture, obj: Any, source: Source) -> None:
        super().__init__([], list, source)
        self.tx, self.obj, self.added = tx, obj, []


class FoundDeque(_Found, DequeValue):
    """An existing deque."""

    __slots__ = ("added", "known", "limit", "obj", "tx")

    def __init__(self, tx: Capture, obj: Any, source: Source, maxlen: int | None) -> None:
        super().__init__([], source, maxlen)
        self.tx, self.obj, self.added = tx, obj, []
        self.limit = maxlen

    @property
    def maxlen(self) -> int | None:
        return self.limit

    def getattr(self, tx: Capture, name: str) -> Value:
        return ConstantValue(self.limit) if name == "maxlen" else super().getattr(tx, name)


def found_list(tx: Capture, obj: Any, source: Source) -> FoundList | FoundDeque:
    """An existing list or deque, or the one in an object of a subclass; its type is guarded."""
    if not isinstance(obj, collections.deque):
        return FoundList(tx, obj, source)
    maxlen = collections.deque.maxlen.__get__(obj)  # type: ignore[attr-defined]
    tx.guards.equals(source.attr("maxlen"), maxlen)
    return FoundDeque(tx, obj, source, maxlen)
