"""One interpreted Python frame: its stack, locals and cells, and the loop over its instructions."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.codemap import CodeMap
from dynamo_capture.interpreter.decode import DecodedCode, Instruction, decode
from dynamo_capture.resume import ResumePoint, generator_code, parameters, super_here
from dynamo_capture.values.base import PREVIOUS, NullValue, ObservedError, Value
from dynamo_capture.values.callables import ClassValue
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.containers import TupleValue
from dynamo_capture.values.functions import FunctionValue, bind_arguments
from dynamo_capture.values.iterators import GeneratorValue
from dynamo_capture.values.objects import ExceptionValue
from dynamo_capture.values.sets import SetValue

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["Frame", "class_namespace", "constant_value", "inline_call", "kinds_of"]

_GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x200


if sys.version_info >= (3, 14):
    from dynamo_capture.interpreter.py314 import Ops314 as _Ops
elif sys.version_info >= (3, 13):
    from dynamo_capture.interpreter.py313 import Ops313 as _Ops
elif sys.version_info >= (3, 12):
    from dynamo_capture.interpreter.py312 import Ops312 as _Ops
else:
    from dynamo_capture.interpreter.py311 import Ops311 as _Ops


class Frame(_Ops):
    """A frame that is inlined into the captured one."""

    __slots__ = ()

    def run(self) -> Value | None:
        """Interpret until the function returns (its value) or yields (None; see ``yielded``)."""
        tx = self.tx
        instructions = self.decoded.instructions
        dropped = tx.dropped
        self.running = self.started = True
        tx.frames.append(self)  # type: ignore[arg-type]
        try:
            while self.running:
                if dropped:
                    tx.close_dropped()
                inst = instructions[self.ip]
                self.ip += 1
                try:
                    inst.handler(self, inst.arg)
                except ObservedError as error:
                    self.unwind(error, inst.index)
            tx.count(self.ip)
            if self.finished and tx.generators:
                self.forget()
        except GraphBreak as brk:
            if brk.where is None:
                brk.where = tx.location()
            if brk.leaves == "frame":
                brk.leaves = None  # the call of this function can run natively
            raise
        finally:
            tx.frames.pop()
        return self.result if self.finished else None

    def forget(self) -> None:
        """The function has returned: its variables go, in their order, and generators with them."""
        self.stack.clear()
        names = parameters(self.code)
        for name in names if sys.version_info < (3, 14) else reversed(names):
            self.locals.pop(name, None)
            if self.tx.dropped:
                self.tx.close_dropped()

    def unwind(self, error: ObservedError, index: int) -> None:
        """Continue at the handler that covers the instruction, or raise on to the caller."""
        self.kw_names = ()
        if isinstance(error.value, ExceptionValue) and error.value.obj is None:
            self._passes(error.value, index)
        entry = self.decoded.handler_for(index)
        if entry is None:
            self.tx.left_by_errors = True
            try:
                raise error
            finally:
                del error  # whose traceback refers to this frame
        del self.stack[entry.depth :]
        if entry.push_lasti:
            self.stack.append(ConstantValue(index))
        self.stack.append(error.value)
        self.ip = entry.target

    def _passes(self, error: ExceptionValue, index: int) -> None:
        """The region's exception is raised by an instruction of this frame, or comes to it from a callee."""
        inst = self.decoded.instructions[index]
        again = inst.name == "RERAISE" or (inst.name == "RAISE_VARARGS" and not inst.arg)
        if not error.raised or (inst.name == "RAISE_VARARGS" and not again):
            error.is_raised(self.tx.handled())
        if not again:
            place = self.decoded.location(index)
            error.trail.append((self.decoded.shown, self.globals, place.line))

    # --- generators ---------------------------------------------------------------------------------------------

    def resume_generator(self, value: Value) -> Value | None:
        """Run a generator frame to its next yield; None when it returned."""
        if self.started:
            self.stack.append(value)
        return self._run_generator()

    def throw_into(self, error: Value) -> Value | None:
        """Raise inside a suspended generator frame and run on."""
        self.tx.frames.append(self)  # type: ignore[arg-type]
        try:
            self.unwind(ObservedError(error), max(self.ip - 1, 0))
        finally:
            self.tx.frames.pop()
        return self._run_generator()

    def may_clean_up(self) -> bool:
        """Whether an exception at the yield where it is suspended would be handled by code of the program."""
        index, seen = max(self.ip - 1, 0), set()
        while index not in seen:
            seen.add(index)
            entry = self.decoded.handler_for(index)
            if entry is None:
                return False
            past = self._past_handler(entry.target)
            if past is None:
                return True
            index = past
        return True

    def _past_handler(self, index: int) -> int | None:
        """Where a handler raises on what a closed generator raises, without running anything; None if it may not.

        The interpreter's own handlers do, and those that ask for other exceptions only.
        """
        instructions = self.decoded.instructions
        names = [inst.name for inst in instructions[index : index + 4]]
        if names[0] == "CLEANUP_THROW" or (names[0] == "CALL_INTRINSIC_1" and instructions[index].arg == 3):
            return index
        if names[:3] == ["COPY", "POP_EXCEPT", "RERAISE"]:
            return index + 2
        if names[0] == "PUSH_EXC_INFO":
            index += 1
        while [inst.name for inst in instructions[index : index + 2]] == ["LOAD_GLOBAL", "CHECK_EXC_MATCH"]:
            asked, jump = instructions[index].arg[0], instructions[index + 2]
            cls = None if asked in self.globals else self.builtins.get(asked)
            if not isinstance(cls, type) or issubclass(GeneratorExit, cls) or "IF_FALSE" not in jump.name:
                return None
            index = jump.arg
        return index if instructions[index].name == "RERAISE" else None

    def suspended(self) -> tuple[types.FunctionType, list[Value]]:
        """A function whose generators stand where this one does once they are advanced, and what to call it with.

        Raises:
            GraphBreak: it cannot be rebuilt.
        """
        code = self.code
        if self.running or not self.decoded.cells <= self.cells.keys():
            raise GraphBreak("QB10", f"the generator {code.co_name!r}, which is in the middle of something")
        index = self.ip - 1
        live = self.decoded.live_locals(index)
        slots = parameters(code)
        names = tuple(name for name in slots if name in live and name in self.locals)
        point = ResumePoint(index, kinds_of(self.stack), names)
        function = self._generator_function(generator_code(code, point))
        args = [self.locals[n] if n in names else self.cells.get(n, _NONE) for n in slots]
        return function, [*args, *self.handed_over(self.stack)]

    def ended(self) -> types.FunctionType:
        """A function whose generators end at once."""
        return self._generator_function(generator_code(self.code, None))

    def _generator_function(self, code: types.CodeType) -> types.FunctionType:
        function = types.FunctionType(code, self.globals, self.code.co_name)
        function.__qualname__ = self.code.co_qualname
        return function

    def handed_over(self, stack: list[Any]) -> list[Any]:
        """What :func:`resume_code` takes for the values of a stack."""
        values = [value for value in stack if not isinstance(value, NullValue)]
        return [self.handled if value is PREVIOUS else value for value in values]

    def _run_generator(self) -> Value | None:
        if self.run() is not None:
            return None
        return self.yielded


_NONE = ConstantValue(None)


def kinds_of(stack: list[Any]) -> tuple[bool | None, ...]:
    """The values of a stack, as :class:`ResumePoint` tells of them."""
    return tuple(None if value is PREVIOUS else not isinstance(value, NullValue) for value in stack)


def constant_value(constant: Any) -> Value:
    """A code constant as a value; shared between frames, as constants never change."""
    if isinstance(constant, tuple):
        return TupleValue([constant_value(c) for c in constant])
    if isinstance(constant, frozenset):
        return SetValue.existing(constant, [constant_value(c) for c in constant], None)
    if isinstance(constant, type):
        return ClassValue(constant)
    if constant is super_here:
        return ClassValue(super)
    return ConstantValue(constant)


def _unsupported(self: Frame, arg: Any) -> None:
    raise GraphBreak("QB05", self.decoded.instructions[self.ip - 1].name)


_prepared: CodeMap[DecodedCode] = CodeMap()


def prepared(code: types.CodeType) -> DecodedCode:
    """Decoded code with handlers and constant values resolved."""
    decoded = _prepared.get(code)
    if decoded is None:
        decoded = _prepared[code] = decode(code)
        for inst in decoded.instructions:
            _resolve(inst)
    return decoded


def _resolve(inst: Instruction) -> None:
    inst.handler = getattr(Frame, inst.name, _unsupported)
    if inst.name in ("LOAD_CONST", "RETURN_CONST", "LOAD_SMALL_INT"):
        inst.arg = constant_value(inst.arg)


def inline_call(tx: Capture, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Interpret a call of a Python function as part of the captured frame."""
    code = function.code
    flags = code.co_flags
    if flags & (_COROUTINE | _ASYNC_GENERATOR):
        raise GraphBreak("QB18", f"the coroutine {code.co_qualname}")
    bound = bind_arguments(tx, function, args, kwargs)
    cells = dict(zip(code.co_freevars, function.cells(tx), strict=True)) if code.co_freevars else {}
    builtins = function.globals.get("__builtins__", tx.request.builtins)
    if isinstance(builtins, types.ModuleType):
        builtins = builtins.__dict__
    frame = Frame(tx, prepared(code), function.globals, builtins, bound, cells)
    if flags & _GENERATOR:
        return GeneratorValue(frame, function, args, kwargs)
    result = frame.run()
    if result is None:
        raise AssertionError("an inlined function did not return")
    return result


def class_namespace(tx: Capture, body: FunctionValue) -> dict[str, Value]:
    """Interpret the body of a class statement: its variables when it has run."""
    cells = dict(zip(body.code.co_freevars, body.cells(tx), strict=True))
    frame = Frame(tx, prepared(body.code), body.globals, tx.frames[-1].builtins, {}, cells)
    frame.run()
    return dict(frame.locals)
