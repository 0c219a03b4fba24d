"""Handlers for jumps, iteration, ``with``, exceptions, pattern matching and generators."""

from __future__ import annotations

from typing import Any

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.interpreter.assuming import decided
from dynamo_capture.interpreter.data_ops import boolean
from dynamo_capture.interpreter.state import FrameState
from dynamo_capture.values.base import PREVIOUS, ObservedError, Value, display
from dynamo_capture.values.callables import ClassValue
from dynamo_capture.values.class_tests import is_instance
from dynamo_capture.values.classes import find, full_name
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import TupleValue
from dynamo_capture.values.dicts import DictValue
from dynamo_capture.values.iterators import GeneratorValue
from dynamo_capture.values.objects import ExceptionValue, ObjectValue, TracebackValue

__all__ = ["ControlOps"]


class ControlOps(FrameState):
    """Opcode handlers; jump arguments are instruction indices."""

    __slots__ = ()

    def JUMP_FORWARD(self, arg: int) -> None:
        self.ip = arg

    def JUMP_BACKWARD(self, arg: int) -> None:
        self.tx.count(self.ip - arg)
        self.ip = arg

    JUMP_BACKWARD_NO_INTERRUPT = JUMP_BACKWARD

    def POP_JUMP_IF_TRUE(self, arg: int) -> None:
        if decided(self.tx, self.decoded, self.pop(), arg, self.ip):
            self.ip = arg

    def POP_JUMP_IF_FALSE(self, arg: int) -> None:
        if not decided(self.tx, self.decoded, self.pop(), self.ip, arg):
            self.ip = arg

    def POP_JUMP_IF_NONE(self, arg: int) -> None:
        value = self.pop()
        if isinstance(value, ConstantValue) and value.value is None:
            self.ip = arg

    def POP_JUMP_IF_NOT_NONE(self, arg: int) -> None:
        value = self.pop()
        if not (isinstance(value, ConstantValue) and value.value is None):
            self.ip = arg

    # --- iteration ----------------------------------------------------------------------------------------------

    def GET_ITER(self, arg: Any) -> None:
        self.stack.append(self.pop().get_iter(self.tx))

    def next_item(self) -> Value | None:
        """The next element of the iterator on top of the stack, or None."""
        iterator: Any = self.stack[-1].realize()
        if not hasattr(iterator, "next"):
            raise GraphBreak("QB06", f"iteration over {display(iterator)}")
        return iterator.next(self.tx)  # type: ignore[no-any-return]

    # --- with ---------------------------------------------------------------------------------------------------

    def BEFORE_WITH(self, arg: Any) -> None:
        manager = self.pop()
        for name in ("__enter__", "__exit__"):
            if find(self.tx, manager.pytype, name)[1] is None:
                text = f"{full_name(manager.pytype)!r} object does not support the context manager protocol"
                missed = " (missed __exit__ method)" if name == "__exit__" else ""
                raise self.tx.observed(TypeError(text + missed))
        leave = manager.getattr(self.tx, "__exit__")
        entered = manager.getattr(self.tx, "__enter__").call(self.tx, [], {})
        self.stack.append(leave)
        self.stack.append(entered)

    def WITH_EXCEPT_START(self, arg: Any) -> None:
        error = self.stack[-1].realize()
        leave = self.stack[-4]
        args: list[Value] = [ClassValue(error.pytype), error, TracebackValue()]
        self.stack.append(leave.call(self.tx, args, {}))

    # --- exceptions ---------------------------------------------------------------------------------------------

    def LOAD_ASSERTION_ERROR(self, arg: Any) -> None:
        self.stack.append(ClassValue(AssertionError))

    def PUSH_EXC_INFO(self, arg: Any) -> None:
        error = self.stack.pop()
        self.stack.append(PREVIOUS if self.handled is None else self.handled)
        self.stack.append(error)
        self.handled = error

    def POP_EXCEPT(self, arg: Any) -> None:
        previous = self.stack.pop()
        self.handled = None if previous is PREVIOUS else previous

    def CHECK_EXC_MATCH(self, arg: Any) -> None:
        wanted = self.pop()
        error = self.stack[-1].realize()
        classes = wanted.unpack(self.tx) if isinstance(wanted, TupleValue) else [wanted]
        wanted_classes = [c.realize().const() for c in classes]
        if not all(isinstance(c, type) and issubclass(c, BaseException) for c in wanted_classes):
            raise GraphBreak("QB07", f"except {display(wanted)}")
        self.stack.append(boolean(issubclass(error.pytype, tuple(wanted_classes))))

    def RERAISE(self, arg: int) -> None:
        raise ObservedError(self.stack.pop().realize())  # the instruction's position, if any, stays below it

    def RAISE_VARARGS(self, arg: int) -> None:
        if arg == 0:
            handled = self.tx.handled()
            if handled is None:  # unless a caller outside of the region handles one
                raise GraphBreak("QB06", "raise without an exception that the region handles")
            raise ObservedError(handled)
        cause = self.pop() if arg == 2 else None
        error = self.pop()
        if isinstance(error, ClassValue):
            error = error.call(self.tx, [], {}).realize()
        if not issubclass(error.pytype, BaseException):
            raise self.tx.observed(TypeError("exceptions must derive from BaseException"))
        if cause is not None:
            if isinstance(cause, ClassValue):
                cause = cause.call(self.tx, [], {}).realize()
            is_none = isinstance(cause, ConstantValue) and cause.value is None
            if not isinstance(error, ExceptionValue) or not (is_none or issubclass(cause.pytype, BaseException)):
                raise GraphBreak("QB19", f"raise {display(error)} from {display(cause)}")
            error.store(self.tx, "__cause__", cause)
        if isinstance(error, ObjectValue) and error.obj is not None:
            raise GraphBreak("QB06", "an exception that exists outside is raised")  # and gets a traceback and a context
        raise ObservedError(error)

    def END_ASYNC_FOR(self, arg: Any) -> None:
        raise GraphBreak("QB18", "async for")

    GET_AITER = GET_ANEXT = BEFORE_ASYNC_WITH = GET_AWAITABLE = END_ASYNC_FOR

    # --- generators ---------------------------------------------------------------------------------------------

    def RETURN_GENERATOR(self, arg: Any) -> None:
        self.stack.append(ConstantValue(None))

    def YIELD_VALUE(self, arg: Any) -> None:
        self.yielded = self.stack.pop()
        self.running = False

    def GET_YIELD_FROM_ITER(self, arg: Any) -> None:
        value = self.pop()
        self.stack.append(value if isinstance(value, GeneratorValue) else value.get_iter(self.tx))

    def send(self) -> Value | None:
        """Pop a value and send it to the receiver below; None when that is done (see ``send_result``)."""
        value = self.stack.pop()
        receiver: Any = self.stack[-1].realize()
        if isinstance(receiver, GeneratorValue):
            item = receiver.send(self.tx, value)
            self.send_result = receiver.frame.result
            return item
        self.send_result = ConstantValue(None)
        return receiver.next(self.tx)  # type: ignore[no-any-return]

    # --- pattern matching ---------------------------------------------------------------------------------------

    def GET_LEN(self, arg: Any) -> None:
        self.stack.append(self.stack[-1].realize().length(self.tx))

    def MATCH_SEQUENCE(self, arg: Any) -> None:
        self._match_flag(_SEQUENCE)

    def MATCH_MAPPING(self, arg: Any) -> None:
        self._match_flag(_MAPPING)

    def _match_flag(self, flag: int) -> None:
        """Whether the type of the subject has a flag, which a base or a registration with ``collections.abc`` gives."""
        self.stack.append(boolean(bool(_type_flags(self.stack[-1].realize().pytype) & flag)))

    def MATCH_KEYS(self, arg: Any) -> None:
        keys = self.stack[-1].realize().unpack(self.tx)
        subject: Any = self.stack[-2].realize()
        if isinstance(subject, DictValue):
            found = [subject.find(self.tx, key) for key in keys]
        else:
            get = subject.getattr(self.tx, "get")
            missing = ObjectValue(object)
            values = [get.call(self.tx, [key, missing], {}).realize() for key in keys]
            found = [None if value is missing else value for value in values]
        self.stack.append(ConstantValue(None) if None in found else TupleValue(found))  # type: ignore[arg-type]

    def MATCH_CLASS(self, arg: int) -> None:
        names = [name.realize().const() for name in self.pop().unpack(self.tx)]
        cls = self.pop()
        subject = self.pop()
        if not isinstance(cls, ClassValue):
            raise self.tx.observed(TypeError("called match pattern must be a class"))
        if not is_instance(self.tx, subject, cls):
            self.stack.append(ConstantValue(None))
            return
        values = self._matched_by_position(cls, subject, arg, names) if arg else []
        for name in names if values is not None else ():
            found = self._matched_attribute(subject, name)
            if found is None:
                values = None
                break
            values.append(found)  # type: ignore[union-attr]
        self.stack.append(ConstantValue(None) if values is None else TupleValue(values))

    def _matched_by_position(self, cls: ClassValue, subject: Value, count: int, names: list[str]) -> list[Value] | None:
        """What positional sub-patterns match; their attributes' names come before those of the keywords."""
        try:
            args = cls.getattr(self.tx, "__match_args__").realize()
        except ObservedError as error:
            if not issubclass(error.value.pytype, AttributeError):
                raise
            if not _type_flags(cls.obj) & _MATCH_SELF:
                raise self._too_many_patterns(cls, count, 0) from None
            if count > 1:
                raise self._too_many_patterns(cls, count, 1) from None
            return [subject]
        if not isinstance(args, TupleValue) or args.cls is not tuple:
            text = f"{full_name(cls.obj)}.__match_args__ must be a tuple (got {full_name(args.pytype)})"
            raise self.tx.observed(TypeError(text))
        if len(args.items) < count:
            raise self._too_many_patterns(cls, count, len(args.items))
        positional = [item.realize().const() for item in args.items[:count]]
        if not all(type(name) is str for name in positional) or len({*positional, *names}) < count + len(names):
            raise GraphBreak("QB19", "a class pattern whose attributes are no names, or occur twice")
        values: list[Value] = []
        for name in positional:
            found = self._matched_attribute(subject, name)
            if found is None:
                return None
            values.append(found)
        return values

    def _too_many_patterns(self, cls: ClassValue, given: int, allowed: int) -> ObservedError:
        plural = "" if allowed == 1 else "s"
        text = f"{full_name(cls.obj)}() accepts {allowed} positional sub-pattern{plural} ({given} given)"
        return self.tx.observed(TypeError(text))

    def _matched_attribute(self, subject: Value, name: str) -> Value | None:
        try:
            return subject.getattr(self.tx, name)
        except ObservedError as error:
            if not issubclass(error.value.pytype, AttributeError):
                raise
            return None

    # --- return -------------------------------------------------------------------------------------------------

    def RETURN_VALUE(self, arg: Any) -> None:
        self.result = self.stack.pop()
        self.running = False
        self.finished = True


#: Flags of types that pattern matching looks at (Include/object.h).
_SEQUENCE, _MAPPING, _MATCH_SELF = 1 << 5, 1 << 6, 1 << 22


def _type_flags(cls: type) -> int:
    return type.__dict__["__flags__"].__get__(cls)  # type: ignore[no-any-return]
