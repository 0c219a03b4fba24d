"""What is remembered about code objects, for as long as they live.

By identity: comparing code objects walks all of them, and two functions with the same text are two functions. An entry
goes when its code object does. Nothing kept here may refer to the code object itself, for neither reference counts nor
the cyclic collector (which does not see code objects) would ever free it.
"""

from __future__ import annotations

import weakref
from types import CodeType
from typing import Generic, TypeVar

__all__ = ["CodeMap"]

T = TypeVar("T")


class CodeMap(Generic[T]):
    """A weak mapping from code objects, by identity."""

    __slots__ = ("__weakref__", "_items")

    def __init__(self) -> None:
        self._items: dict[int, tuple[weakref.ref[CodeType], T]] = {}

    def get(self, code: CodeType) -> T | None:
        """What is kept for a code object, or None."""
        found = self._items.get(id(code))
        return None if found is None else found[1]

    def __setitem__(self, code: CodeType, value: T) -> None:
        key, self_ref = id(code), weakref.ref(self)

        def gone(reference: weakref.ref[CodeType]) -> None:
            kept = self_ref()
            # The identity may belong to another code object by now.
            if kept is not None and (item := kept._items.get(key)) is not None and item[0] is reference:
                del kept._items[key]

        self._items[key] = (weakref.ref(code, gone), value)

    def values(self) -> list[T]:
        """All that is kept."""
        return [kept for _, kept in list(self._items.values())]

    def __len__(self) -> int:
        return len(self._items)

    def clear(self) -> None:
        """Forget everything."""
        self._items.clear()
