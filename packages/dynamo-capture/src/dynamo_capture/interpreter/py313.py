"""Handlers whose meaning changed with Python 3.13."""

from __future__ import annotations

from typing import Any

from dynamo_capture.interpreter.assuming import decided
from dynamo_capture.interpreter.data_ops import boolean, set_function_part
from dynamo_capture.interpreter.py312 import Ops312
from dynamo_capture.values.base import NULL, Value
from dynamo_capture.values.functions import FunctionValue

__all__ = ["Ops313"]

_CMP_OP = ("<", "<=", "==", "!=", ">", ">=")


class Ops313(Ops312):
    """The NULL of a call comes after the callable, CALL_KW takes its names from the stack, TO_BOOL is explicit."""

    __slots__ = ()

    AFTER_FOR = 2

    def LOAD_GLOBAL(self, arg: tuple[str, bool]) -> None:
        name, push_null = arg
        self.stack.append(self.load_global(name))
        if push_null:
            self.stack.append(NULL)

    def LOAD_ATTR(self, arg: tuple[str, bool]) -> None:  # type: ignore[override]
        name, is_method = arg
        self.stack.append(self.pop().getattr(self.tx, name))
        if is_method:
            self.stack.append(NULL)

    def push_callable(self, found: Any) -> None:
        self.stack.append(found)
        self.stack.append(NULL)

    def CALL(self, arg: int) -> None:
        args = self.popn(arg)
        self._call(args, ())

    def CALL_KW(self, arg: int) -> None:
        names = tuple(name.realize().const() for name in self.pop().unpack(self.tx))
        self._call(self.popn(arg), names)

    def _call(self, args: list[Any], names: tuple[str, ...]) -> None:
        kwargs = dict(zip(names, args[-len(names) :], strict=True)) if names else {}
        if names:
            del args[-len(names) :]
        owner = self.stack.pop()
        function = self.stack.pop()
        if owner is not NULL:
            args.insert(0, owner)
        self.call(function, args, kwargs)

    def CALL_FUNCTION_EX(self, arg: int) -> None:
        kwargs = self.stack.pop() if arg & 1 else None
        args = self.stack.pop()
        self.stack.pop()  # NULL
        self.call_ex(self.stack.pop(), args, kwargs)

    def COMPARE_OP(self, arg: int) -> None:
        result = self.compare(_CMP_OP[arg >> 5])
        self.stack.append(boolean(self._truth(result.realize())) if arg & 16 else result)

    def TO_BOOL(self, arg: Any) -> None:
        self.stack.append(boolean(self._truth(self.pop())))

    def _truth(self, value: Value) -> bool:
        """The truth that the next instruction may jump by."""
        jump = self.decoded.instructions[self.ip]
        if jump.name == "POP_JUMP_IF_TRUE":
            return decided(self.tx, self.decoded, value, jump.arg, self.ip + 1)
        if jump.name == "POP_JUMP_IF_FALSE":
            return decided(self.tx, self.decoded, value, self.ip + 1, jump.arg)
        return value.truth(self.tx)

    def LOAD_FAST_LOAD_FAST(self, arg: tuple[str, str]) -> None:
        self.LOAD_FAST(arg[0])
        self.LOAD_FAST(arg[1])

    def STORE_FAST_LOAD_FAST(self, arg: tuple[str, str]) -> None:
        self.STORE_FAST(arg[0])
        self.LOAD_FAST(arg[1])

    def STORE_FAST_STORE_FAST(self, arg: tuple[str, str]) -> None:
        self.STORE_FAST(arg[0])
        self.STORE_FAST(arg[1])

    def MAKE_FUNCTION(self, arg: Any) -> None:
        code = self.stack.pop().const()
        self.stack.append(FunctionValue.make(code, self.globals, ()))

    def SET_FUNCTION_ATTRIBUTE(self, arg: int) -> None:
        function = self.stack.pop()
        set_function_part(self.tx, function, arg, self.stack.pop())  # type: ignore[arg-type]
        self.stack.append(function)

    def END_FOR(self, arg: Any) -> None:
        self.stack.pop()

    def FORMAT_SIMPLE(self, arg: Any) -> None:
        value = self.stack.pop()
        self.format_value(value, 0, "")

    def FORMAT_WITH_SPEC(self, arg: Any) -> None:
        spec = self.pop().const()
        self.format_value(self.stack.pop(), 0, spec)

    def CONVERT_VALUE(self, arg: int) -> None:
        self.format_value(self.stack.pop(), arg, "")

    def LOAD_FROM_DICT_OR_GLOBALS(self, arg: str) -> None:
        self.stack[-1] = self.load_global(arg)

    def EXIT_INIT_CHECK(self, arg: Any) -> None:
        self.stack.pop()


