"""Objects of the standard library that never change, whose methods do nothing but compute: dates, patterns, matches.

Decimals are none of them: what they compute goes by a context, which each thread has its own of.
"""

from __future__ import annotations

import datetime
import operator
import re
import types
from typing import TYPE_CHECKING, Any

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import Value
from dynamo_capture.values.callables import HandlerValue, _FixedValue
from dynamo_capture.values.constant import fold
from dynamo_capture.values.functions import FunctionValue
from dynamo_capture.values.torch_calls import special

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynamo_capture.capture import Capture
    from dynamo_capture.sources import Source

__all__ = ["MADE_OF_CONSTANTS", "PLAIN_CLASSES", "PlainValue", "plain_object"]

#: Classes that are called with constants.
MADE_OF_CONSTANTS = frozenset(
    (datetime.timedelta, datetime.date, datetime.datetime, datetime.time, datetime.timezone)
)
#: Classes of what the code or an operation on constants makes.
PLAIN_CLASSES = MADE_OF_CONSTANTS | {re.Pattern, re.Match}
#: Those of them whose ``==`` tells all that there is, so that a guard may ask it of an object that exists outside.
TOLD_BY_EQUALITY = frozenset((re.Pattern, datetime.timedelta, datetime.date))


#: Methods by which the process's time zone or language counts.
_OF_THE_PROCESS = frozenset(("astimezone", "timestamp", "strftime", "ctime", "timetuple", "utctimetuple"))


class PlainValue(_FixedValue):
    """Such an object."""

    __slots__ = ()

    def truth(self, tx: Capture) -> bool:
        return bool(self.obj)

    def getattr(self, tx: Capture, name: str) -> Value:
        if name in _OF_THE_PROCESS:
            raise GraphBreak("QB03", f"{name}() of {self.describe()}")
        found = tx.exact(getattr, self.obj, name)
        if isinstance(found, (types.BuiltinMethodType, types.MethodWrapperType)) and found.__self__ is self.obj:
            return HandlerValue(lambda tx, args, kwargs: fold(tx, found, args, kwargs), name)
        return tx.from_python(found)

    def getitem(self, tx: Capture, key: Value) -> Value:
        return fold(tx, operator.getitem, [self, key], {})

    def iterate(self, tx: Capture) -> Iterator[Value]:
        return map(tx.from_python, tx.exact(iter, self.obj))

    def describe(self) -> str:
        return f"the {type(self.obj).__name__} {self.obj!r:.60}"


def plain_object(tx: Capture, obj: Any, source: Source | None) -> Value | None:
    """The value of such an object; None where nothing could be guarded of one that exists outside."""
    if source is None or source.is_fixed:
        return PlainValue(obj, source)
    if type(obj) not in TOLD_BY_EQUALITY:
        return None
    tx.guards.equals(source, obj)
    return PlainValue(obj, source)


@special(re._compile)  # type: ignore[attr-defined]
def _pattern(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What ``re.search`` and the like take their patterns from: by the same pattern and flags, the same object."""
    compile_ = re._compile  # type: ignore[attr-defined]
    given = [value.realize() for value in args]
    if kwargs or len(given) != 2 or not all(value.is_const for value in given) or int(given[1].const()) & re.DEBUG:
        return tx.interpreted(FunctionValue(compile_), args, kwargs)
    return PlainValue(tx.exact(compile_, *[value.const() for value in given]))
