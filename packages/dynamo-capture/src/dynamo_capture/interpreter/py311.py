"""Handlers whose meaning is that of Python 3.11."""

from __future__ import annotations

from typing import Any

from dynamo_capture.interpreter.control_ops import ControlOps
from dynamo_capture.interpreter.data_ops import DataOps
from dynamo_capture.values.base import NULL, Value

__all__ = ["Ops311"]


class Ops311(DataOps, ControlOps):
    """Calls are PUSH_NULL, callable, arguments, KW_NAMES, PRECALL, CALL; a finished FOR_ITER pops and jumps."""

    __slots__ = ()

    def LOAD_GLOBAL(self, arg: tuple[str, bool]) -> None:
        name, push_null = arg
        if push_null:
            self.stack.append(NULL)
        self.stack.append(self.load_global(name))

    def LOAD_ATTR(self, arg: str) -> None:
        self.stack.append(self.pop().getattr(self.tx, arg))

    def LOAD_METHOD(self, arg: str) -> None:
        found = self.pop().getattr(self.tx, arg)
        self.stack.append(NULL)
        self.stack.append(found)

    def KW_NAMES(self, arg: tuple[str, ...]) -> None:
        self.kw_names = arg

    def CALL(self, arg: int) -> None:
        args = self.popn(arg)
        kwargs: dict[str, Value] = {}
        if self.kw_names:
            n = len(self.kw_names)
            kwargs = dict(zip(self.kw_names, args[-n:], strict=True))
            del args[-n:]
            self.kw_names = ()
        function = self.stack.pop()
        method = self.stack.pop()
        if method is not NULL:
            args.insert(0, function)
            function = method
        self.call(function, args, kwargs)

    def CALL_FUNCTION_EX(self, arg: int) -> None:
        kwargs = self.stack.pop() if arg & 1 else None
        args = self.stack.pop()
        function = self.stack.pop()
        self.stack.pop()  # NULL
        self.call_ex(function, args, kwargs)

    def COMPARE_OP(self, arg: int) -> None:
        self.stack.append(self.compare(_CMP_OP[arg]))

    def MAKE_FUNCTION(self, arg: int) -> None:
        code = self.stack.pop().const()
        parts = [self.stack.pop() for bit in (8, 4, 2, 1) if arg & bit]
        self.stack.append(self.new_function(code, arg, parts[::-1]))

    def FORMAT_VALUE(self, arg: int) -> None:
        spec = self.pop().const() if arg & 4 else ""
        self.format_value(self.stack.pop(), arg & 3, spec)

    def FOR_ITER(self, arg: int) -> None:
        item = self.next_item()
        if item is None:
            self.stack.pop()
            self.ip = arg + self.AFTER_FOR
        else:
            self.stack.append(item)

    #: How many instructions after the jump target a finished loop continues.
    AFTER_FOR = 0

    POP_JUMP_FORWARD_IF_TRUE = POP_JUMP_BACKWARD_IF_TRUE = ControlOps.POP_JUMP_IF_TRUE
    POP_JUMP_FORWARD_IF_FALSE = POP_JUMP_BACKWARD_IF_FALSE = ControlOps.POP_JUMP_IF_FALSE
    POP_JUMP_FORWARD_IF_NONE = POP_JUMP_BACKWARD_IF_NONE = ControlOps.POP_JUMP_IF_NONE
    POP_JUMP_FORWARD_IF_NOT_NONE = POP_JUMP_BACKWARD_IF_NOT_NONE = ControlOps.POP_JUMP_IF_NOT_NONE

    def JUMP_IF_TRUE_OR_POP(self, arg: int) -> None:
        if self.stack[-1].realize().truth(self.tx):
            self.ip = arg
        else:
            self.stack.pop()

    def JUMP_IF_FALSE_OR_POP(self, arg: int) -> None:
        if not self.stack[-1].realize().truth(self.tx):
            self.ip = arg
        else:
            self.stack.pop()

    def SEND(self, arg: int) -> None:
        item = self.send()
        if item is None:
            self.stack[-1] = self.send_result
            self.ip = arg
        else:
            self.stack.append(item)

    def ASYNC_GEN_WRAP(self, arg: Any) -> None:
        self.END_ASYNC_FOR(arg)


_CMP_OP = ("<", "<=", "==", "!=", ">", ">=")
