"""Objects of the standard library that never change, whose methods do nothing but compute: dates, patterns, matches.

Decimals are none of them: what they compute goes by a context, which each thread has its own of.
"""

from __future__ import annotations

import datetime
import operator
import re
import types
import warnings
from typing import TYPE_CHECKING, Any

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.values.base import Value
from dynamo_capture.values.callables import MethodHandlerValue, _FixedValue
from dynamo_capture.values.constant import CONST_TYPES, ConstantValue, fold
from dynamo_capture.values.functions import FunctionValue
from dynamo_capture.values.torch_calls import special

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynamo_capture.capture import Capture
    from dynamo_capture.codegen import CodeGen
    from dynamo_capture.sources import Source

__all__ = ["MADE_OF_CONSTANTS", "PLAIN_CLASSES", "PlainValue", "asks_the_process", "plain_object"]

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
#: A directive of a date's format that asks for neither.
_ALONE = re.compile(r"%[%YmdHMSfjyGVuwUWI]")
#: What their methods give that never changes, or is made anew; all else (a scanner, an iterator) has a state.
_GIVEN = (*CONST_TYPES, *PLAIN_CLASSES, datetime.tzinfo, tuple, list, dict)


def asks_the_process(form: str) -> bool:
    """Whether dates that are formatted so show the process's time zone or language."""
    return "%" in _ALONE.sub("", form)


class PlainValue(_FixedValue):
    """Such an object.

    Attributes:
        made: the method that has made it and its arguments; a match is equal to itself alone, so that each call has to
            have its own.
    """

    __slots__ = ("made",)

    def __init__(self, obj: Any, source: Source | None = None) -> None:
        super().__init__(obj, source)
        self.made: tuple[Any, list[Value], dict[str, Value]] | None = None

    def reconstruct(self, cg: CodeGen) -> None:
        if self.made is None:
            super().reconstruct(cg)
        else:
            cg.call_const(*self.made)

    def truth(self, tx: Capture) -> bool:
        return bool(self.obj)

    def getattr(self, tx: Capture, name: str) -> Value:
        if name in _OF_THE_PROCESS:
            raise GraphBreak("QB03", f"{name}() of {self.describe()}")
        found = tx.exact(getattr, self.obj, name)
        if isinstance(found, (types.BuiltinMethodType, types.MethodWrapperType)) and found.__self__ is self.obj:
            return MethodHandlerValue(lambda tx, args, kwargs: self._call(tx, name, found, args, kwargs), name, self)
        return tx.from_python(found)

    def _call(self, tx: Capture, name: str, method: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        given = [value.realize() for value in (*args, *kwargs.values())]
        if any(value.is_const and callable(value.const()) for value in given):
            raise GraphBreak("QB03", f"{name}() of {self.describe()}, which calls what it is given")
        formats = name == "__format__" and len(given) == 1 and type(given[0]) is ConstantValue
        if formats and asks_the_process(str(given[0].const())):
            raise GraphBreak("QB03", f"{name}() of {self.describe()}, by the process's time zone or language")
        if isinstance(self.obj, re.Pattern) and self.obj.flags & re.LOCALE:
            raise GraphBreak("QB03", f"{name}() of {self.describe()}, by the process's language")
        made = fold(tx, method, args, kwargs).realize()
        if not issubclass(made.pytype, _GIVEN):
            raise GraphBreak("QB03", f"{name}() of {self.describe()}, which gives a {made.pytype.__name__}")
        if type(made) is PlainValue and type(made.obj) is re.Match and made.obj is not self.obj:
            named: dict[str, Value] = {key: ConstantValue(value.realize().const()) for key, value in kwargs.items()}
            made.made = method, [ConstantValue(value.realize().const()) for value in args], named
        return made

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


_RE: Any = re  # with names of its own


@special(_RE._compile)
def _pattern(tx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What ``re.search`` and the like take their patterns from: by the same pattern and flags, the same object."""
    compile_ = _RE._compile
    given = [value.realize() for value in args]
    if kwargs or len(given) != 2 or not all(value.is_const for value in given) or int(given[1].const()) & re.DEBUG:
        return tx.interpreted(FunctionValue(compile_), args, kwargs)
    known = [value.const() for value in given]
    if type(known[0]) in (str, bytes) and _warns(*known):
        raise GraphBreak("QB03", f"compiling the pattern {known[0]!r:.60}, of which Python warns")
    return PlainValue(tx.exact(compile_, *known))


def _warns(pattern: Any, flags: Any) -> bool:
    """Whether compiling a pattern gives a warning, which names the line of whoever asks, and comes once per cache."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            _RE._compiler.compile(pattern, flags)
        except Warning:
            return True
        except Exception:
            return False  # which is the program's to see
    return False
