"""Handlers for names, stack, attributes, operators, building and calling; the same in all versions."""

from __future__ import annotations

import builtins
import itertools
import operator
import sys
from typing import Any

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.interpreter.state import FrameState
from dynamo_capture.values.arith import BINARY, INPLACE, binary, compare, inplace, unary
from dynamo_capture.values.base import NULL, ObservedError, Value, display
from dynamo_capture.values.callables import BuiltinValue
from dynamo_capture.values.classes import lookup
from dynamo_capture.values.compare import identical
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import ListValue, SequenceValue, TupleValue, make_slice
from dynamo_capture.values.dicts import DictValue, pairs_of
from dynamo_capture.values.exact import type_error
from dynamo_capture.values.functions import CellValue, FunctionValue
from dynamo_capture.values.sets import SetValue
from dynamo_capture.values.tensor import TensorValue
from dynamo_capture.values.text import TextValue
from dynamo_capture.values.texts import formatted

__all__ = ["DataOps"]

_COMPARE = {"<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt,
            ">=": operator.ge}  # fmt: skip
_NONE = ConstantValue(None)
_TRUE, _FALSE = ConstantValue(True), ConstantValue(False)


def boolean(value: bool) -> ConstantValue:
    """The shared constant for a bool."""
    return _TRUE if value else _FALSE


class DataOps(FrameState):
    """Opcode handlers; each takes the decoded argument."""

    __slots__ = ()

    # --- stack ------------------------------------------------------------------------------------------------

    def NOP(self, arg: Any) -> None:
        pass

    RESUME = EXTENDED_ARG = CACHE = PRECALL = COPY_FREE_VARS = NOP

    def POP_TOP(self, arg: Any) -> None:
        self.stack.pop()

    def PUSH_NULL(self, arg: Any) -> None:
        self.stack.append(NULL)

    def COPY(self, arg: int) -> None:
        self.stack.append(self.stack[-arg])

    def SWAP(self, arg: int) -> None:
        stack = self.stack
        stack[-arg], stack[-1] = stack[-1], stack[-arg]

    # --- names ------------------------------------------------------------------------------------------------

    def LOAD_CONST(self, arg: Any) -> None:
        self.stack.append(arg)

    def LOAD_FAST(self, arg: str) -> None:
        value = self.locals.get(arg)
        if value is None:
            cell = self.cells.get(arg)
            if cell is None:
                raise self.unbound(arg)
            value = cell
        self.stack.append(value)

    LOAD_FAST_CHECK = LOAD_FAST

    def STORE_FAST(self, arg: str) -> None:
        value = self.stack.pop()
        if value is NULL:
            self.locals.pop(arg, None)
            self.cells.pop(arg, None)
        elif type(value) is CellValue and arg in self.decoded.cells:
            self.cells[arg] = value
        else:
            self.locals[arg] = value

    def DELETE_FAST(self, arg: str) -> None:
        if self.locals.pop(arg, None) is None:
            raise self.unbound(arg)

    def unbound(self, name: str) -> ObservedError:
        """The error of a local variable or cell without a value."""
        if name in self.code.co_freevars:
            text = f"cannot access free variable {name!r} where it is not associated with a value in enclosing scope"
            return self.tx.observed(NameError(text))
        text = f"cannot access local variable {name!r} where it is not associated with a value"
        return self.tx.observed(UnboundLocalError(text))

    def LOAD_FAST_AND_CLEAR(self, arg: str) -> None:
        value: Value | None = self.cells.pop(arg, None)
        if value is None:
            value = self.locals.pop(arg, None)
        self.stack.append(NULL if value is None else value)

    def MAKE_CELL(self, arg: str) -> None:
        self.cells[arg] = CellValue(self.locals.pop(arg, None))

    def LOAD_CLOSURE(self, arg: str) -> None:
        self.stack.append(self.cells[arg])

    def LOAD_DEREF(self, arg: str) -> None:
        value = self.cells[arg].get(self.tx)
        if value is None:
            raise self.unbound(arg)
        if self.tx.later is not None:
            self.tx.later.of_cell(arg, self.cells[arg], value)
        self.stack.append(value)

    def STORE_DEREF(self, arg: str) -> None:
        self.cells[arg].set(self.tx, self.stack.pop())

    def DELETE_DEREF(self, arg: str) -> None:
        if self.cells[arg].get(self.tx) is None:
            raise self.unbound(arg)
        self.cells[arg].set(self.tx, None)

    def load_global(self, name: str) -> Value:
        """A global or builtin by name."""
        return self.tx.load_global(self.globals, self.builtins, name)

    def STORE_GLOBAL(self, arg: str) -> None:
        if id(self.globals) in self.tx.known:
            raise GraphBreak("QB06", "a global is set where globals() is used")
        self.tx.side.store_global(self.globals, arg, self.stack.pop())

    def DELETE_GLOBAL(self, arg: str) -> None:
        self.load_global(arg)
        self.tx.side.store_global(self.globals, arg, None)

    def LOAD_BUILD_CLASS(self, arg: Any) -> None:
        if self.builtins.get("__build_class__") is not builtins.__build_class__:
            raise GraphBreak("QB15", "a class definition")
        self.stack.append(BuiltinValue(builtins.__build_class__))

    def LOAD_NAME(self, arg: str) -> None:  # in the body of a class, whose names are the frame's variables
        found = self.locals.get(arg)
        self.stack.append(self.load_global(arg) if found is None else found)

    def STORE_NAME(self, arg: str) -> None:
        self.locals[arg] = self.stack.pop()

    def DELETE_NAME(self, arg: str) -> None:
        if arg not in self.locals:
            raise self.tx.observed(NameError(f"name {arg!r} is not defined"))
        del self.locals[arg]

    def LOAD_LOCALS(self, arg: Any) -> None:
        self.stack.append(NULL)  # the instruction after it looks into the frame's variables

    def LOAD_FROM_DICT_OR_DEREF(self, arg: str) -> None:
        self.stack.pop()
        self.LOAD_CLASSDEREF(arg)

    def LOAD_CLASSDEREF(self, arg: str) -> None:
        found = self.locals.get(arg)
        if found is None:
            self.LOAD_DEREF(arg)
        else:
            self.stack.append(found)

    def IMPORT_NAME(self, arg: str) -> None:
        from dynamo_capture.values.imports import import_name

        fromlist, level = self.stack[-1].realize().const(), self.stack[-2].realize().const()
        module = import_name(self.tx, arg, self.globals, fromlist, level)
        del self.stack[-2:]
        self.stack.append(module)

    def IMPORT_FROM(self, arg: str) -> None:
        try:
            found = self.stack[-1].getattr(self.tx, arg)
        except ObservedError:
            raise GraphBreak("QB15", f"import of {arg}") from None
        self.stack.append(found)

    # --- attributes and items -----------------------------------------------------------------------------------

    def STORE_ATTR(self, arg: str) -> None:
        owner = self.pop()
        owner.setattr(self.tx, arg, self.stack.pop())

    def DELETE_ATTR(self, arg: str) -> None:
        self.pop().delattr(self.tx, arg)

    def BINARY_SUBSCR(self, arg: Any) -> None:
        key = self.pop()
        owner = self.pop()
        self.stack.append(owner.getitem(self.tx, key))

    def STORE_SUBSCR(self, arg: Any) -> None:
        key = self.stack.pop()
        owner = self.pop()
        owner.setitem(self.tx, key, self.stack.pop())

    def DELETE_SUBSCR(self, arg: Any) -> None:
        key = self.stack.pop()
        self.pop().delitem(self.tx, key)

    def BINARY_SLICE(self, arg: Any) -> None:
        stop, start = self.stack.pop(), self.stack.pop()
        owner = self.pop()
        self.stack.append(owner.getitem(self.tx, make_slice([start, stop, _NONE])))

    def STORE_SLICE(self, arg: Any) -> None:
        stop, start = self.stack.pop(), self.stack.pop()
        owner = self.pop()
        owner.setitem(self.tx, make_slice([start, stop, _NONE]), self.stack.pop())

    # --- operators ----------------------------------------------------------------------------------------------

    def BINARY_OP(self, arg: int) -> None:
        b = self.pop()
        a = self.pop()
        if arg < 13:
            self.stack.append(binary(self.tx, BINARY[arg], a, b))
        else:
            self.stack.append(inplace(self.tx, INPLACE[arg - 13], a, b))

    def UNARY_NEGATIVE(self, arg: Any) -> None:
        self.stack.append(unary(self.tx, operator.neg, self.pop()))

    def UNARY_POSITIVE(self, arg: Any) -> None:
        self.stack.append(unary(self.tx, operator.pos, self.pop()))

    def UNARY_INVERT(self, arg: Any) -> None:
        self.stack.append(unary(self.tx, operator.invert, self.pop()))

    def UNARY_NOT(self, arg: Any) -> None:
        self.stack.append(boolean(not self.pop().truth(self.tx)))

    def compare(self, symbol: str) -> Value:
        """Pop two operands and compare them."""
        b = self.pop()
        a = self.pop()
        return compare(self.tx, _COMPARE[symbol], a, b)

    def IS_OP(self, arg: int) -> None:
        b = self.pop()
        a = self.pop()
        self.stack.append(boolean(identical(self.tx, a, b) is not bool(arg)))

    def CONTAINS_OP(self, arg: int) -> None:
        container = self.pop()
        item = self.pop()
        self.stack.append(boolean(container.contains(self.tx, item) is not bool(arg)))

    # --- building -----------------------------------------------------------------------------------------------

    def BUILD_TUPLE(self, arg: int) -> None:
        self.stack.append(TupleValue(self.popn(arg)))

    def BUILD_LIST(self, arg: int) -> None:
        self.stack.append(ListValue(self.popn(arg)))

    def BUILD_SET(self, arg: int) -> None:
        self.stack.append(SetValue.of(self.tx, self.popn(arg)))

    def BUILD_MAP(self, arg: int) -> None:
        flat = self.popn(2 * arg)
        self.stack.append(DictValue.of(self.tx, zip(flat[::2], flat[1::2], strict=True)))

    def BUILD_CONST_KEY_MAP(self, arg: int) -> None:
        keys = self.pop().unpack(self.tx)
        self.stack.append(DictValue.of(self.tx, zip(keys, self.popn(arg), strict=True)))

    def BUILD_STRING(self, arg: int) -> None:
        parts = [part.realize() for part in self.popn(arg)]
        if any(isinstance(part, TextValue) for part in parts):
            split = [part.parts if isinstance(part, TextValue) else [(part, None, "")] for part in parts]
            self.stack.append(TextValue([piece for pieces in split for piece in pieces]))
        else:
            self.stack.append(ConstantValue("".join(part.const() for part in parts)))

    def BUILD_SLICE(self, arg: int) -> None:
        parts = self.popn(arg)
        self.stack.append(make_slice(parts if arg == 3 else [*parts, _NONE]))

    def LIST_TO_TUPLE(self, arg: Any) -> None:
        self.stack.append(TupleValue(self.pop().unpack(self.tx)))

    def LIST_EXTEND(self, arg: int) -> None:
        other = _iterable(self.pop())
        if other.pytype in _NOT_ITERABLE:
            raise GraphBreak("QB07", f"{display(other)} after *")
        target: Any = self.stack[-arg].realize()
        target.extend(self.tx, other)

    def SET_UPDATE(self, arg: int) -> None:
        other = self.pop()
        self.stack[-arg].realize().call_method(self.tx, "update", [other], {})

    def DICT_UPDATE(self, arg: int) -> None:
        other = mapping(self.pop())
        self.stack[-arg].realize().call_method(self.tx, "update", [other], {})

    def DICT_MERGE(self, arg: int) -> None:
        other = mapping(self.pop())
        target: Any = self.stack[-arg].realize()
        for key, value in pairs_of(self.tx, other):
            if key.pytype is not str or target.contains(self.tx, key):
                raise GraphBreak("QB07", f"a call with {display(key.realize())} twice, or not a name, as a keyword")
            target.setitem(self.tx, key, value)

    def LIST_APPEND(self, arg: int) -> None:
        item = self.stack.pop()
        target: Any = self.stack[-arg].realize()
        self.tx.side.mutate(target)
        target.items.append(item)

    def SET_ADD(self, arg: int) -> None:
        item = self.stack.pop()
        self.stack[-arg].realize().call_method(self.tx, "add", [item], {})

    def MAP_ADD(self, arg: int) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.stack[-arg].realize().setitem(self.tx, key, value)

    def UNPACK_SEQUENCE(self, arg: int) -> None:
        value = self.stack[-1].realize()
        items = self._pull_items(arg, arg)
        if len(items) > arg:
            got = ""
            if _ERRORS_COUNT and value.pytype in (list, tuple, dict):
                got = f", got {len(value.unpack(self.tx))}"
            raise self.tx.observed(ValueError(f"too many values to unpack (expected {arg}{got})"))
        self.stack.extend(reversed(items))

    def _pull_items(self, least: int, most: int | None, said: str = "") -> list[Value]:
        """Elements of what is on top of the stack: of an iterator, no more than one over ``most`` are taken."""
        value = self.pop()
        if isinstance(value, SequenceValue):
            items = value.unpack(self.tx)
        elif value.pytype in _NOT_ITERABLE:
            type_error(self.tx, _unpack_two, value)
        elif isinstance(value, TensorValue):
            items = value.unpack(self.tx)
        else:
            limit = None if most is None else most + 1
            items = list(itertools.islice(_iterable(value).get_iter(self.tx).iterate(self.tx), limit))
        if len(items) < least:
            text = f"not enough values to unpack (expected {said}{least}, got {len(items)})"
            raise self.tx.observed(ValueError(text))
        return items

    def UNPACK_EX(self, arg: int) -> None:
        before, after = arg & 0xFF, arg >> 8
        items = self._pull_items(before + after, None, "at least ")
        middle = items[before : len(items) - after]
        tail = items[len(items) - after :] if after else []
        self.stack.extend(reversed([*items[:before], ListValue(middle), *tail]))

    # --- text ---------------------------------------------------------------------------------------------------

    def format_value(self, value: Value, conversion: int, spec: Any) -> None:
        """Push ``format(conversion(value), spec)``."""
        self.stack.append(formatted(self.tx, value.realize(), conversion, spec))

    # --- functions and calls ------------------------------------------------------------------------------------

    def call(self, function: Value, args: list[Value], kwargs: dict[str, Value]) -> None:
        """Call and push the result."""
        result = function.realize().call(self.tx, args, kwargs)
        if result is None:
            raise AssertionError(f"{display(function)} gave no value")
        self.stack.append(result)

    def call_ex(self, function: Value, args: Value, kwargs: Value | None) -> None:
        """``function(*args, **kwargs)``."""
        named: dict[str, Value] = {}
        if kwargs is not None:
            for key, value in pairs_of(self.tx, mapping(kwargs.realize())):
                if key.pytype is not str:
                    raise GraphBreak("QB07", f"a call with {display(key.realize())} as a keyword")
                named[key.realize().const()] = value
        self.call(function, _iterable(args).unpack(self.tx), named)

    def new_function(self, code: Any, flags: int, parts: list[Value]) -> FunctionValue:
        """A function made by MAKE_FUNCTION; ``parts`` in the order of the flag bits."""
        function = FunctionValue.make(code, self.globals, ())
        for bit in (1, 2, 4, 8):
            if flags & bit:
                set_function_part(self.tx, function, bit, parts.pop(0))
        return function


#: Whether the error of too many values to unpack says how many a list, a tuple or a dict has.
_ERRORS_COUNT = sys.version_info >= (3, 14)
_NOT_ITERABLE = frozenset((int, float, bool, complex, type(None), type(Ellipsis), type(NotImplemented)))


def _unpack_two(value: Any) -> None:
    _, _ = value


def mapping(value: Value) -> Value:
    """What stands after ``**``.

    Raises:
        GraphBreak: it is no dict; Python refuses it, or asks it for its keys.
    """
    if isinstance(value, DictValue) or isinstance(getattr(value, "payload", None), DictValue):
        return value
    raise GraphBreak("QB07", f"{display(value)} after **")


def set_function_part(tx: Any, function: FunctionValue, bit: int, part: Value) -> None:
    """Of a new function: defaults (1), keyword defaults (2), annotations (4), closure (8), `__annotate__` (16)."""
    part = part.realize()
    if bit == 1:
        function.defaults = part.unpack(tx)
    elif bit == 2:
        function.kwdefaults = {k.realize().const(): v for k, v in pairs_of(tx, part)}
    elif bit == 4:
        parts = part.unpack(tx)  # names and what they are annotated with, in turn
        named = {k.realize().const(): v for k, v in zip(parts[::2], parts[1::2], strict=True)}
        function.setattr(tx, "__annotations__", DictValue.named(named))
    elif bit == 16:
        function.setattr(tx, "__annotate__", part)
    else:
        function.closure = tuple(part.unpack(tx))  # type: ignore[arg-type]


def _iterable(value: Value) -> Value:
    """What follows a ``*``, or is unpacked; the error for something that is no iterable is worded for the place."""
    value = value.realize()
    if lookup(value.pytype, "__iter__")[1] is None and lookup(value.pytype, "__getitem__")[1] is None:
        raise GraphBreak("QB19", f"unpacking {display(value)}")
    return value
