"""The captured frame itself: it ends with a return or with a graph break, and emits the code for either."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import TYPE_CHECKING, Any
from weakref import ref

from bytecode import Instr, Label, TryBegin, TryEnd

from dynamo_capture.breaks import GraphBreak, SkipFrame, without_frames
from dynamo_capture.codegen import PY312, PY313, PY314, CodeGen, Plan
from dynamo_capture.device_modes import change_devices
from dynamo_capture.emitted import NextPart, nest_autocast, run_loop
from dynamo_capture.interpreter.decode import BACKWARD_JUMPS
from dynamo_capture.interpreter.frame import Frame, kinds_of, prepared
from dynamo_capture.interpreter.native_ops import NativeOp, native_op
from dynamo_capture.resume import ResumePoint, cell_slots, parameters, resume_info
from dynamo_capture.sources import Source
from dynamo_capture.values.base import PREVIOUS, LazyValue, NullValue, ObservedError, PreviousError, Value
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.functions import CellValue
from dynamo_capture.values.hooks import kept_handle
from dynamo_capture.values.iterators import GeneratorValue
from dynamo_capture.values.later import changed_since
from dynamo_capture.values.leaves import escaped
from dynamo_capture.values.local_classes import leaving_class
from dynamo_capture.values.objects import ExceptionValue, ObjectValue
from dynamo_capture.values.picks import seen_as_view
from prims.errors import DataDependentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo_capture.capture import Capture

__all__ = ["LoopEnd", "RestartCapture", "RootFrame"]


class LoopEnd:
    """Why a capture ends that was resumed in a loop and has come to the next round. Not a graph break."""

    text = "the end of a loop's body"
    hint = "Put the loop's body into a function, and compile that."
    where = None


class RestartCapture(Exception):
    """Start again, and break the graph at this step of the root frame."""

    def __init__(self, step: int, brk: GraphBreak) -> None:
        super().__init__(step)
        self.step = step
        self.brk = brk


class RootFrame(Frame):
    """The outermost frame of a capture.

    Args:
        break_at: the step (count of interpreted instructions) at which to break, with the reason.
        make_resume: gives the code of a resume function for a point (the same one every time).
    """

    __slots__ = ("break_at", "held", "kept", "loop_start", "make_resume", "raised", "step")

    def __init__(
        self,
        tx: Capture,
        break_at: RestartCapture | None,
        make_resume: Callable[[ResumePoint, int], types.CodeType],
    ) -> None:
        request = tx.request
        code = request.code
        # A resumed function gets its cells as arguments.
        resumed_cells = cell_slots(code) if resume_info(code) is not None else frozenset()
        locals_: dict[str, Value] = {
            name: tx.lazy(obj, Source("local", None, (i, name)))
            for i, (name, obj) in enumerate(request.args.items())
            if name not in resumed_cells
        }
        cells = {
            name: tx.cell(
                cell,
                lambda i=i, name=name: Source("closure_cell", None, (i, name)),  # type: ignore[misc]
                lambda i=i, name=name: Source("closure", None, (i, name)),  # type: ignore[misc]
            )
            for i, (name, cell) in enumerate(zip(code.co_freevars, request.closure, strict=True))
        }
        for i, (name, obj) in enumerate(request.args.items()):
            if name in resumed_cells:
                source = Source("local", None, (i, name))
                cells[name] = tx.cell(obj, lambda s=source: s, lambda s=source: s.attr("cell_contents"))  # type: ignore[misc]
        super().__init__(tx, prepared(code), request.globals, request.builtins, locals_, cells)
        self.break_at = break_at
        self.make_resume = make_resume
        self.step = 0
        #: The step of the instruction that raised last; one that raises again only where none here has raised.
        self.raised: int | None = None
        #: What :meth:`_held` told before the variables went.
        self.held: list[ref[GeneratorValue]] = []
        #: Variables that are handed on at a break though nothing reads them: their generators live to the end.
        self.kept: frozenset[str] = frozenset()
        info = resume_info(code)
        #: Where the frame began, if that is in a loop: the round is captured to its end, not the rounds after it.
        self.loop_start = -1
        if info is not None and self.decoded.in_loop(info.here(info.index)):
            self.loop_start = info.here(info.index)

    def release(self) -> None:
        super().release()
        self.break_at = self.make_resume = None  # type: ignore[assignment]

    def interpret(self) -> GraphBreak | LoopEnd | None:
        """Run to the return (None), to the planned break, or to the end of the round of a resumed loop.

        Raises:
            RestartCapture: something unsupported was met; the capture is to be done again with a break there.
            ObservedError: the program raises out of the frame.
        """
        tx = self.tx
        instructions = self.decoded.instructions
        planned = -1 if self.break_at is None else self.break_at.step
        self.running = self.started = True
        tx.frames.append(self)
        while self.running:
            stack, epoch = self.stack[:], tx.side.epoch
            if tx.dropped:
                self._closing(tx.close_dropped)
            if self.step == planned:
                return self.break_at.brk  # type: ignore[union-attr]
            inst = instructions[self.ip]
            self.ip += 1
            try:
                inst.handler(self, inst.arg)
                if inst.name in BACKWARD_JUMPS and self.ip <= self.loop_start <= inst.index:
                    return LoopEnd()
            except ObservedError as error:
                if inst.name != "RERAISE" or self.raised is None:
                    self.raised = self.call_step()
                self.unwind(error, inst.index)
            except (GraphBreak, DataDependentError) as stop:
                brk = stop if isinstance(stop, GraphBreak) else GraphBreak(self._undecided(), stop.reason)
                if brk.where is None:
                    brk.where = tx.location()
                if brk.leaves is not None:
                    raise SkipFrame.at_break(brk) from None
                before = self._start_of_call(inst.index)
                if tx.side.epoch == epoch:
                    # Nothing has changed since the instruction began: the graph ends here as it stands.
                    self.stack, self.kw_names = stack, ()
                    self.ip = inst.index - before
                    without_frames(stop, tx.outer_error)
                    return brk
                raise RestartCapture(self.step - before, brk) from stop
            self.step += 1
        del stack
        self.held = self._held()
        if tx.generators:
            self._closing(self.forget)
        return None

    def _undecided(self) -> str:
        """The number of the reason where the program asks for what is known only when it runs."""
        return "QB16" if self.tx.first.gives_numbers and not self.tx.unbacked else "QB02"

    def _closing(self, step: Callable[[], None]) -> None:
        """Do what may close generators, where the graph cannot break."""
        try:
            step()
        except (GraphBreak, DataDependentError) as stop:
            brk = stop if isinstance(stop, GraphBreak) else GraphBreak(self._undecided(), stop.reason)
            raise SkipFrame.at_break(brk, where=self.tx.location()) from None

    def _held(self) -> list[ref[GeneratorValue]]:
        """The generators in variables that are never assigned again, some of which go while others are closed."""
        found = self.locals.items()
        return [ref(v) for name, v in found if isinstance(v, GeneratorValue) and self.decoded.assigned_once(name)]

    def _start_of_call(self, index: int) -> int:
        """How many instructions (KW_NAMES and PRECALL) before its CALL a call begins."""
        start = index
        if self.decoded.instructions[index].name != "CALL":
            return 0
        while start > 0 and self.decoded.instructions[start - 1].name in ("KW_NAMES", "PRECALL"):
            start -= 1
        return index - start

    def call_step(self) -> int:
        """The step at which the instruction begins that is being interpreted, where a graph may break before it."""
        return self.step - self._start_of_call(self.ip - 1)

    def check_generators(self, plan: Plan) -> None:
        """No generator is left behind that has something to do when it is closed, unless that comes as in eager.

        It is closed when the last reference to it goes: only the running program knows when, and the calls of resume
        functions keep references of their own. That of a context manager is run to its end by the ``with``; one in a
        variable that is never assigned again dies with the function.

        Raises:
            SkipFrame: one is.
        """
        left = [started for started in self.tx.generators if started.may_clean_up()]
        if not left:
            return
        manager = contextlib._GeneratorContextManager
        made = [value for value in plan.built if isinstance(value, ObjectValue) and issubclass(value.cls, manager)]
        # None is looked at: what the code needs has been planned.
        held = [value for each in (self._held() if self.running else self.held) if (value := each()) is not None]
        safe = {id(value.attrs.get("gen")) for value in made} | set(map(id, held))
        safe &= {id(value) for value in plan.built}
        for started in left:
            if id(started.value()) not in safe:
                text = f"{started.describe()} is left inside a try or with statement"
                raise SkipFrame(text, "Close it, or run it to its end, in the compiled function.")

    def check_leaves(self, plan: Plan) -> None:
        """No tensor that the region has made a leaf of autograd leaves it, no class that it has made, nothing that was
        taken in the place of a view, and no handle of a hook that is in the graph; and nothing that a backward in the
        graph reads has changed since.

        Raises:
            RestartCapture: one does.
        """
        found = escaped(self.tx, plan.outputs) or leaving_class(self.tx, plan.built)
        found = found or seen_as_view(self.tx, plan.outputs) or kept_handle(self.tx, plan.built)
        found = found or changed_since(self.tx, plan.built)
        if found is not None:
            raise RestartCapture(*found)

    def place(self) -> tuple[int, int]:
        """Where in the user's function the frame has come to, the same for all functions that continue it."""
        info = resume_info(self.code)
        return (id(self.code), self.ip) if info is None else (id(info.original), info.there(self.ip))

    def _plan(self, values: list[Value]) -> Plan:
        """What the emitted code needs: what the frame holds at its end, and what first calls and conditions take."""
        roots = [*values, *self.tx.first.roots(), *(each.condition for each in self.tx.assumed)]
        plan = Plan(roots, self.tx.side)
        for value in self.tx.only_read():
            if value.source is not None and plan.source_index(value) is None:
                self.tx.guards.is_there(value.source)
        return Plan(roots, self.tx.side) if self.tx.side.keep_gradients_of(plan.outputs) else plan

    # --- the end: a return ----------------------------------------------------------------------------------------

    def emit_return(self) -> tuple[Plan, Callable[[CodeGen], None]]:
        """What the code needs and does when the frame returns."""
        plan = self._plan([self.result])

        def finish(cg: CodeGen) -> None:
            self.tx.side.emit(cg, plan.made)
            self._emit_modes(cg)
            cg.load(self.result)
            cg.emit("RETURN_VALUE")

        return plan, finish

    def _emit_modes(self, cg: CodeGen) -> None:
        for key, (at_entry, now) in self.tx.modes.items():
            if at_entry != now:
                setter, *leading = key
                cg.call_const(setter, [ConstantValue(x) for x in (*leading, now)])
                cg.pop()
        changed = self.tx.devices.changes()
        if changed is not None:
            cg.call_const(change_devices, [ConstantValue(part) for part in changed])
            cg.pop()
        if self.tx.nesting:
            cg.call_const(nest_autocast, [ConstantValue(self.tx.nesting)])
            cg.pop()

    # --- the end: a break -----------------------------------------------------------------------------------------

    def emit_break(self, brk: GraphBreak | LoopEnd) -> tuple[Plan, Callable[[CodeGen], None]]:
        """What the code needs and does when the graph ends before the instruction at ``ip``.

        Raises:
            SkipFrame: the function cannot be continued from here.
        """
        index = self.ip
        name = self.decoded.instructions[index].name
        if isinstance(brk, LoopEnd) and name != "FOR_ITER":
            op: NativeOp | None = NativeOp(0, 0, [], (index,), self.decoded.line(index))
        else:
            op = native_op(self.decoded, index)
        if op is None:
            raise SkipFrame.at_break(brk, f"the graph cannot end at this place ({name})")
        if self.decoded.asks_for_frame and isinstance(brk, GraphBreak):
            raise SkipFrame.at_break(brk, "in a function that looks at its own variables by name")
        operands = self.stack[len(self.stack) - op.pops - op.peeks :]
        below = self.stack[: len(self.stack) - op.pops]
        handler = self.decoded.handler_for(index)
        self.kept = frozenset(name for name, value in self.locals.items() if self._cleans_up(value))
        live = self._live_after(op, handler.target if handler else None)
        locals_ = {name: self.locals[name] for name in live if name in self.locals}
        cells = self.cells
        if not self.decoded.cells <= cells.keys():
            raise SkipFrame.at_break(brk, "before a closure cell exists")
        handled = () if self.handled is None else (self.handled,)
        values = [
            value for value in (*below, *operands, *locals_.values(), *cells.values(), *handled)
            if not isinstance(value, (NullValue, PreviousError))
        ]  # fmt: skip
        plan = self._plan(values)

        def finish(cg: CodeGen) -> None:
            for value in values:
                cg.settle(value)
            self.tx.side.emit(cg, plan.made)
            self._emit_modes(cg)
            _BreakTail(self, cg, op, below, operands, locals_, cells).emit(handler)

        return plan, finish

    def guard_kinds(self, variables: list[tuple[Source, type]]) -> None:
        """Guard the kinds of the objects given to the instruction before which the graph ends, and of variables.

        That it ends there was found out by an attempt whose guards are gone. For objects of other kinds it may go on,
        and code that ends here for all of them would never find out.

        Args:
            variables: whose classes that attempt guarded.
        """
        for source, cls in variables:
            self.tx.guards.type_is(source.again(), cls)
        op = native_op(self.decoded, self.ip)
        for value in self.stack[len(self.stack) - op.pops - op.peeks :] if op is not None else ():
            if isinstance(value, LazyValue) and value.realized is None and value.source is not None:
                self.tx.guards.type_is(value.source, type(value.obj))

    def _live_after(self, op: NativeOp, handler: int | None) -> list[str]:
        live: set[str] = set()
        for target in [*op.targets, *(() if handler is None else (handler,))]:
            live |= self.decoded.live_locals(target)
        return sorted((live | self.kept) - self.decoded.cells)

    def _cleans_up(self, value: Value) -> bool:
        """Whether it is a generator which runs code of the program when the function ends."""
        return any(started.value() is value and started.may_clean_up() for started in self.tx.generators)


class _BreakTail:
    """Emits the native instruction and the calls of the resume functions."""

    def __init__(
        self,
        frame: RootFrame,
        cg: CodeGen,
        op: NativeOp,
        below: list[Value],
        operands: list[Value],
        locals_: dict[str, Value],
        cells: dict[str, CellValue],
    ) -> None:
        self.frame = frame
        self.cg = cg
        self.op = op
        self.below = below
        self.operands = operands
        self.locals = locals_
        self.cells = cells
        #: The exception that is being handled, and where what the caller handles is kept meanwhile.
        self.handled: Value | str | None = frame.handled
        self.previous = "" if frame.handled is None else cg.new_name("previous")

    def emit(self, handler: Any) -> None:
        """Emit it all; ``handler`` is the exception table entry that covers the instruction."""
        cg, op = self.cg, self.op
        self._enter_handler()
        caught = handler is not None or self.handled is not None
        begin = TryBegin(Label(), push_lasti=False, stack_depth=0) if caught else None
        if begin is not None:
            cg.instructions.append(begin)
        for value in self.operands:
            if value is PREVIOUS or (isinstance(value, NullValue) and op.null == "second"):
                cg.load_const(None)  # not looked at, or its results are stored, which a NULL cannot be
            elif isinstance(value, NullValue):
                cg.emit("PUSH_NULL")
            else:
                cg.load(value)
        if op.terminal:
            goes_on = handler is not None and not self.frame.decoded.lets_pass(handler.target)
            needed = {id(value) for value in (*self.below, *self.locals.values(), self.handled)}
            cg.forget([value for value in self.operands if id(value) not in needed] if goes_on else None)
        if op.jump is not None:
            self._emit_jump(begin)
        elif op.advances:
            self._emit_advance(begin)
        else:
            cg.instructions.extend(Instr(name, *arg, lineno=op.line) for name, *arg in op.instructions)
            results = []
            for _ in range(op.pushes):
                name = cg.new_name("res")
                cg.emit("STORE_FAST", name)
                results.append(name)
            for _ in range(op.peeks):
                cg.pop()
            if begin is not None:
                cg.instructions.append(TryEnd(begin))
            if op.terminal:
                cg.load_const(None)
                cg.emit("RETURN_VALUE")
            else:
                self._leave_handler(results[0] if op.handles else None)
                stack: list[Value | str] = [*self.below, *op.layout(results[::-1])]
                self._resume(op.targets[0], stack, self.frame.decoded.live_locals(op.targets[0]))
        if begin is not None:
            self._emit_handler(begin, handler)

    def _enter_handler(self) -> None:
        """The native instruction runs with the exception that the program handles here, which it may ask for."""
        if isinstance(self.handled, Value):
            self.cg.load(self.handled)
            self.cg.emit("PUSH_EXC_INFO")
            self.cg.pop()
            self.cg.emit("STORE_FAST", self.previous)

    def _leave_handler(self, matched: str | None = None) -> None:
        """The caller's state again, which the resume function has to find.

        Args:
            matched: the result of ``CHECK_EG_MATCH``, which from now on is the one that is handled, unless it is None.
        """
        if self.handled is None:
            return
        if matched is not None:
            self.handled = self.cg.new_name("handled")
            self.cg.begin_call(sys.exception)
            self.cg.end_call(0)
            self.cg.emit("STORE_FAST", self.handled)
        self.cg.emit("LOAD_FAST", self.previous)
        self.cg.emit("POP_EXCEPT")

    def _emit_jump(self, begin: Any) -> None:
        """A branch on a value that only the running program knows: one resume function for each side."""
        cg, op = self.cg, self.op
        taken = Label()
        cg.instructions.append(Instr(op.jump, taken, lineno=op.line))  # type: ignore[arg-type]
        if begin is not None:
            cg.instructions.append(TryEnd(begin))
        fall, target = op.targets
        keep_taken = [*self.below, *(self.operands if op.keeps_when_taken else ())]
        self._leave_handler()
        self._resume(fall, list(self.below), self.frame.decoded.live_locals(fall))
        cg.instructions.append(taken)
        self._leave_handler()
        self._resume(target, list(keep_taken), self.frame.decoded.live_locals(target))

    def _emit_advance(self, begin: Any) -> None:
        """The next round of a ``for`` loop, or what follows it: one resume function for each."""
        cg, op = self.cg, self.op
        done = Label()
        cg.instructions.append(Instr("FOR_ITER", done, lineno=op.line))
        if begin is not None:
            cg.instructions.append(TryEnd(begin))
        item = cg.new_name("item")
        cg.emit("STORE_FAST", item)
        cg.pop()
        self._leave_handler()
        body, after = op.targets
        self._resume(body, [*self.below, *self.operands, item], self.frame.decoded.live_locals(body))
        cg.instructions.append(done)
        # FOR_ITER skips these, and insists on their being there.
        if PY312:
            cg.emit("END_FOR")
        if PY314:
            cg.emit("POP_ITER")
        elif PY313:
            cg.pop()
        self._leave_handler()
        self._resume(after, list(self.below), self.frame.decoded.live_locals(after))

    def _emit_handler(self, begin: Any, handler: Any) -> None:
        """An exception of the native instruction goes to the original's handler, in a resume function."""
        cg = self.cg
        cg.instructions.append(begin.target)
        name = cg.new_name("exc")
        cg.emit("STORE_FAST", name)
        self.handled = self.frame.handled
        self._leave_handler()
        if handler is None or self.frame.decoded.lets_pass(handler.target):
            cg.emit("LOAD_FAST", name)
            cg.emit("DELETE_FAST", name)
            cg.emit("RERAISE", 0)
            return
        stack: list[Value | str] = list(self.below[: handler.depth])
        if handler.push_lasti:
            stack.append(ConstantValue(self.frame.ip))
        stack.append(name)
        self._resume(handler.target, stack, self.frame.decoded.live_locals(handler.target))

    def _resume(self, index: int, stack: list[Value | str], live: frozenset[str]) -> None:
        """Emit ``return resume(*slots, *stack)``; in a loop the call is made by :func:`run_loop`."""
        cg = self.cg
        frame = self.frame
        code = frame.code
        info = resume_info(code)
        slots = parameters(info.original if info is not None else code)
        names = tuple(n for n in slots if n in live | frame.kept and n in self.locals)
        point = ResumePoint(index, kinds_of(stack), names)
        resumed = frame.make_resume(point, frame.decoded.line(index))
        function = types.FunctionType(resumed, frame.globals, resumed.co_name)
        in_loop = frame.loop_start >= 0
        if in_loop:
            cg.begin_call(NextPart)
            cg.load_const(function)
        elif frame.decoded.in_loop(index):
            cg.begin_call(run_loop)
            cg.load_const(function)
        else:
            cg.begin_call(function)
        for name in slots:
            if name in names:
                cg.load(self.locals[name])
            elif name in self.cells:
                cg.load(self.cells[name])
            else:
                cg.load_const(None)
        for given in stack:
            value: Any = self.handled if given is PREVIOUS else given
            if isinstance(value, str):
                cg.emit("LOAD_FAST", value)
            elif not isinstance(value, NullValue):
                cg.load(value)
        for name in dict.fromkeys(given for given in (*stack, self.handled) if isinstance(given, str)):
            cg.emit("DELETE_FAST", name)
        cg.forget([value for value in cg.plan.built if isinstance(value, ExceptionValue)])
        if in_loop:
            cg.emit("BUILD_TUPLE", resumed.co_argcount + 1)
            cg.end_call(1)
        else:
            cg.end_call(resumed.co_argcount + frame.decoded.in_loop(index))
        cg.emit("RETURN_VALUE")
