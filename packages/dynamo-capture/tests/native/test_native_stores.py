"""Stores that emitted code makes pass by what the program's classes do, as the methods of ``object`` and OrderedDict."""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Any

import pytest

native = sys.modules["dynamo_capture._native"]  # conftest.py has loaded it


class Refusing(OrderedDict[Any, Any]):
    __slots__ = ("place",)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise AssertionError

    def __setattr__(self, name: str, value: Any) -> None:
        raise AssertionError


def test_attributes() -> None:
    made = Refusing()
    for name in ("place", "other"):
        native.store_attribute(made, name, name.upper())
    assert (made.place, made.__dict__) == ("PLACE", {"other": "OTHER"})
    for wrong in ((1, "x", 2), (made, 2, 3), (made, "x")):
        with pytest.raises((AttributeError, TypeError)) as ours:
            native.store_attribute(*wrong)
        with pytest.raises(ours.type):
            object.__setattr__(*wrong)


def test_items_in_order() -> None:
    made = Refusing()
    native.fill_ordered(made, {"b": 1, "a": 2})
    native.fill_ordered(made, {"c": 3, "b": 4})
    made.move_to_end("a")
    assert list(made.items()) == [("b", 4), ("c", 3), ("a", 2)] and list(reversed(made)) == ["a", "c", "b"]
    with pytest.raises(TypeError, match="unhashable"):
        OrderedDict.__setitem__(made, [], 1)
    for wrong in (({}, {}), (made, [("a", 1)]), (made,)):
        with pytest.raises(TypeError, match="expected an OrderedDict and a dict"):
            native.fill_ordered(*wrong)
