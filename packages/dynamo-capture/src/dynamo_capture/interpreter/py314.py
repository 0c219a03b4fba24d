"""Handlers whose meaning changed with Python 3.14."""

from __future__ import annotations

from typing import Any

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.interpreter.py313 import Ops313
from dynamo_capture.values.base import NULL
from dynamo_capture.values.callables import ClassValue
from dynamo_capture.values.classes import find, qualified_name
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.objects import TracebackValue
from dynamo_capture.values.templates import InterpolationValue, TemplateValue

__all__ = ["Ops314"]

#: What LOAD_COMMON_CONSTANT loads.
_COMMON = (AssertionError, NotImplementedError, tuple, all, any)
_SUBSCR = 26
_ADD = (0, 13)  # BINARY_OP of + and +=


class Ops314(Ops313):
    """Locals are loaded without a count, BINARY_OP has items, ``with`` keeps ``__exit__`` as a call's two values."""

    __slots__ = ()

    def NOT_TAKEN(self, arg: Any) -> None:
        pass

    ANNOTATIONS_PLACEHOLDER = NOT_TAKEN

    LOAD_FAST_BORROW = Ops313.LOAD_FAST

    LOAD_FAST_BORROW_LOAD_FAST_BORROW = Ops313.LOAD_FAST_LOAD_FAST

    LOAD_SMALL_INT = Ops313.LOAD_CONST

    def LOAD_COMMON_CONSTANT(self, arg: int) -> None:
        self.stack.append(self.tx.from_python(_COMMON[arg]))

    def BINARY_OP(self, arg: int) -> None:
        if arg == _SUBSCR:
            self.BINARY_SUBSCR(None)
            return
        left, right = self.stack[-2:]
        if arg in _ADD and isinstance(left, TemplateValue) and isinstance(right, TemplateValue):
            self.stack[-2:] = [left.plus(right)]
            return
        super().BINARY_OP(arg)

    def BUILD_INTERPOLATION(self, arg: int) -> None:
        spec = self.stack.pop() if arg & 1 else ConstantValue("")
        expression = self.stack.pop()
        self.stack.append(InterpolationValue(self.stack.pop(), expression, arg >> 2, spec))

    def BUILD_TEMPLATE(self, arg: Any) -> None:
        interpolations = self.stack.pop().unpack(self.tx)
        self.stack.append(TemplateValue(self.stack.pop().unpack(self.tx), interpolations))

    def POP_ITER(self, arg: Any) -> None:
        self.stack.pop()

    def CALL_FUNCTION_EX(self, arg: Any) -> None:
        kwargs = self.stack.pop()
        args = self.stack.pop()
        self.stack.pop()  # NULL
        self.call_ex(self.stack.pop(), args, None if kwargs is NULL else kwargs)

    # --- with ---------------------------------------------------------------------------------------------------

    def BEFORE_WITH(self, arg: int) -> None:
        """The instructions that enter a ``with`` statement, as one (see :mod:`dynamo_capture.interpreter.decode`)."""
        manager = self.pop()
        for name in ("__exit__", "__enter__"):
            if find(self.tx, manager.pytype, name)[1] is None:
                raise self.tx.observed(TypeError(self._no_manager(manager.pytype, name)))
        leave = manager.getattr(self.tx, "__exit__")
        entered = manager.getattr(self.tx, "__enter__").call(self.tx, [], {})
        self.stack += [leave, NULL, entered]
        self.ip = arg

    def _no_manager(self, cls: type, missed: str) -> str:
        text = f"'{qualified_name(cls)}' object does not support the context manager protocol (missed {missed} method)"
        if all(find(self.tx, cls, name)[1] is not None for name in ("__aenter__", "__aexit__")):
            text += " but it supports the asynchronous context manager protocol. Did you mean to use 'async with'?"
        return text

    def WITH_EXCEPT_START(self, arg: Any) -> None:
        error = self.stack[-1].realize()
        leave = self.stack[-5]
        self.stack.append(leave.call(self.tx, [ClassValue(error.pytype), error, TracebackValue()], {}))

    def LOAD_SPECIAL(self, arg: Any) -> None:
        raise GraphBreak("QB18", "async with")
