"""Handlers whose meaning changed with Python 3.12."""

from __future__ import annotations

from typing import Any

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.interpreter.py311 import Ops311
from dynamo_capture.values.base import NULL, ObservedError
from dynamo_capture.values.containers import TupleValue

__all__ = ["Ops312"]

_CMP_OP = ("<", "<=", "==", "!=", ">", ">=")


class Ops312(Ops311):
    """LOAD_ATTR also loads methods, comprehensions are inlined, END_FOR closes loops, RETURN_CONST exists."""

    __slots__ = ()

    AFTER_FOR = 1

    def LOAD_ATTR(self, arg: tuple[str, bool]) -> None:  # type: ignore[override]
        name, is_method = arg
        found = self.pop().getattr(self.tx, name)
        if is_method:
            self.stack.append(NULL)
        self.stack.append(found)

    def LOAD_SUPER_ATTR(self, arg: tuple[str, bool, bool]) -> None:
        name, is_method, _two_args = arg
        owner, cls, function = self.stack.pop(), self.stack.pop(), self.stack.pop()
        self.call(function, [cls, owner], {})
        found = self.pop().getattr(self.tx, name)
        if is_method:
            self.push_callable(found)
        else:
            self.stack.append(found)

    def push_callable(self, found: Any) -> None:
        """Push a callable as CALL expects it."""
        self.stack.append(NULL)
        self.stack.append(found)

    def COMPARE_OP(self, arg: int) -> None:
        self.stack.append(self.compare(_CMP_OP[arg >> 4]))

    def RETURN_CONST(self, arg: Any) -> None:
        self.stack.append(arg)
        self.RETURN_VALUE(None)

    def END_FOR(self, arg: Any) -> None:
        del self.stack[-2:]

    def END_SEND(self, arg: Any) -> None:
        del self.stack[-2]

    def SEND(self, arg: int) -> None:
        item = self.send()
        if item is None:
            self.stack.append(self.send_result)
            self.ip = arg
        else:
            self.stack.append(item)

    def CLEANUP_THROW(self, arg: Any) -> None:
        error = self.stack.pop().realize()
        del self.stack[-2:]
        if issubclass(error.pytype, StopIteration):
            self.stack.append(TupleValue([]))
            self.stack.append(error.getattr(self.tx, "value"))
        else:
            raise ObservedError(error)

    def CALL_INTRINSIC_1(self, arg: int) -> None:
        if arg == 3:  # INTRINSIC_STOPITERATION_ERROR: the generator's owner converts
            return
        if arg == 5:  # INTRINSIC_UNARY_POSITIVE
            self.UNARY_POSITIVE(None)
        elif arg == 6:  # INTRINSIC_LIST_TO_TUPLE
            self.LIST_TO_TUPLE(None)
        else:
            raise GraphBreak("QB05", f"CALL_INTRINSIC_1 {arg}")

    def CALL_INTRINSIC_2(self, arg: int) -> None:
        raise GraphBreak("QB05", f"CALL_INTRINSIC_2 {arg}")
