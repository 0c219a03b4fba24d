"""Assembles the code that replaces a captured frame's.

The code takes the frame's parameters and, behind them, every existing object that it needs: the guard tree hands
those over ("collects" them) while it checks them, so that nothing is looked up twice, and everything is as it was
when the frame began. What the region made is built from them, from constants and from the graph's outputs.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from bytecode import BinaryOp, Bytecode, Instr

from dynamo_capture.breaks import GraphBreak
from dynamo_capture.spent import own_leaf, spent
from dynamo_capture.values.base import LazyValue, Value
from dynamo_capture.values.constant import ConstantValue
from dynamo_capture.values.functions import CellValue
from dynamo_capture.values.objects import ObjectValue
from dynamo_capture.values.tensor import SymValue, TensorValue

if TYPE_CHECKING:
    from dynamo_capture.side_effects import SideEffects
    from dynamo_capture.sources import Source

__all__ = ["CodeGen", "Plan"]

PY312 = sys.version_info >= (3, 12)
PY313 = sys.version_info >= (3, 13)
PY314 = sys.version_info >= (3, 14)
_MANY = 16  # graph inputs: as one tuple they cost less than as arguments
_INPUTS = "___inputs"
BINARY_SUBSCR_IS_OP = hasattr(BinaryOp, "SUBSCR")


def _plain(value: Value) -> Value:
    """The looked-at value behind a lazy one; an unlooked lazy value itself."""
    if isinstance(value, LazyValue):
        looked_at = value.realized
        # A stand-in without a source (a disabled function, say) cannot be loaded, but the object itself can.
        if looked_at is not None and looked_at.source is not None:
            return looked_at
    return value


class Plan:
    """Which values the emitted code needs: existing ones, graph outputs, and new objects to build.

    Args:
        roots: the values that are returned, kept on the stack or live in locals.
        side: the side effects to replay.
    """

    def __init__(self, roots: Iterable[Value], side: SideEffects) -> None:
        self.side = side
        self.outputs: list[TensorValue | SymValue] = []
        #: Existing objects, in the order in which they are handed over.
        self.sources: list[Source] = []
        #: New objects that are filled after they are all built.
        self.made: list[Value] = []
        self.uses: dict[int, int] = {}
        #: All values that were looked at, some of which are made for that: no other is to have the identity of one.
        self._looked_at: list[Value] = []
        self._output_index: dict[int, int] = {}
        self._source_index: dict[int, int] = {}
        self._open: set[int] = set()
        #: Outputs, by their identity, that need a gradient, but have had their backward pass in the region.
        self.spent: Mapping[int, str] = {}
        #: Outputs, by their identity, that the region has made leaves of autograd.
        self.own_leaves: frozenset[int] = frozenset()
        #: New values that are built, existing ones and outputs.
        self.built: list[Value] = []
        for value in [*roots, *side.roots(), *side.contents()]:
            self._visit(value)
        # Existing objects that the region changes are reached through their sources.
        for value in side.mutated_values():
            self._visit(value)

    def _visit(self, value: Value) -> None:
        value = _plain(value)
        key = id(value)
        count = self.uses.get(key, 0)
        if key in self._open:
            if isinstance(value, (ObjectValue, CellValue)):
                return
            raise GraphBreak("QB10", f"{value.describe()} that contains itself")
        self.uses[key] = count + 1
        if not count:
            self._looked_at.append(value)
        if count or type(value) is ConstantValue:
            return
        self.built.append(value)
        if value.source is not None:
            self._source_index[key] = len(self.sources)
            self.sources.append(value.source)
            return
        if isinstance(value, (TensorValue, SymValue)):
            self._output_index[key] = len(self.outputs)
            self.outputs.append(value)
            return
        if type(value).reconstruct is Value.reconstruct:
            raise GraphBreak("QB10", value.describe())
        self._open.add(key)
        if isinstance(value, (ObjectValue, CellValue)):
            self.made.append(value)
        for child in value.children():
            self._visit(child)
        self._open.discard(key)

    def source_index(self, value: Value) -> int | None:
        """Which handed-over parameter holds the value."""
        return self._source_index.get(id(value))

    def output_index(self, value: Value) -> int | None:
        """Which graph output holds the value."""
        return self._output_index.get(id(value))


class CodeGen:
    """Emits instructions; ``load`` builds each object once.

    Args:
        plan: what will be loaded.
        parameters: the frame's parameter names.
        source_slots: which handed-over value holds each of the plan's sources.
    """

    def __init__(self, plan: Plan, parameters: tuple[str, ...], source_slots: list[int]) -> None:
        self.plan = plan
        self.parameters = parameters
        self.instructions: list[Any] = []
        self._temporaries: dict[int, str] = {}
        self._in_temporaries: list[Value] = []
        self._source_slots = source_slots
        self._counter = 0
        #: How many of the region's changes to an existing set have been made, by the set's value.
        self.replayed: dict[int, int] = {}
        #: Existing containers and cells that hold what the region has put into them, by their values' ids.
        self.settled: set[int] = set()

    # --- primitive emission -------------------------------------------------------------------------------------

    def emit(self, name: str, *arg: Any) -> None:
        """Append one instruction."""
        self.instructions.append(Instr(name, *arg))

    def load_const(self, value: Any) -> None:
        """Push any object."""
        self.emit("LOAD_CONST", value)

    def load_attr(self, name: str) -> None:
        """Replace the top by its attribute."""
        self.emit("LOAD_ATTR", (False, name) if PY312 else name)

    def store_attr(self, name: str) -> None:
        """``top.name = second``."""
        self.emit("STORE_ATTR", name)

    def pop(self) -> None:
        """Drop the top."""
        self.emit("POP_TOP")

    def begin_call(self, fn: Any) -> None:
        """Push a constant callable as :meth:`call` expects it."""
        if PY313:
            self.load_const(fn)
            self.emit("PUSH_NULL")
        else:
            self.emit("PUSH_NULL")
            self.load_const(fn)

    def call_top(self) -> None:
        """Call the callable on top of the stack without arguments."""
        self.emit("PUSH_NULL")
        if not PY313:
            self.emit("SWAP", 2)
        self.end_call(0)

    def end_call(self, n: int) -> None:
        """Call what :meth:`begin_call` pushed."""
        if not PY312:
            self.emit("PRECALL", n)
        self.emit("CALL", n)

    def call_const(self, fn: Any, args: list[Value], kwargs: dict[str, Value] | None = None) -> None:
        """Push ``fn(*args, **kwargs)`` for a constant ``fn``."""
        if kwargs:
            self.begin_call(_call_with_keywords)
            self.load_const(fn)
            self.build("BUILD_TUPLE", args)
            self.build("BUILD_MAP", [v for k, x in kwargs.items() for v in (ConstantValue(k), x)], len(kwargs))
            self.end_call(3)
            return
        self.begin_call(fn)
        for arg in args:
            self.load(arg)
        self.end_call(len(args))

    def build(self, name: str, items: list[Value], count: int | None = None) -> None:
        """Push the items and build a container of them."""
        for item in items:
            self.load(item)
        self.emit(name, len(items) if count is None else count)

    def new_name(self, hint: str) -> str:
        """A local name that no program uses."""
        self._counter += 1
        return f"___{hint}{self._counter}"

    # --- values -------------------------------------------------------------------------------------------------

    def parameter_name(self, index: int) -> str:
        """The name of the ``index``-th handed-over value."""
        return f"___in{index}"

    def load(self, value: Value) -> None:
        """Push a value's object."""
        value = _plain(value)
        if isinstance(value, ConstantValue) and value.source is None:
            self.load_const(value.value)
            return
        name = self._temporaries.get(id(value))
        if name is not None:
            self.emit("LOAD_FAST", name)
            return
        index = self.plan.source_index(value)
        if index is not None:
            self.emit("LOAD_FAST", self.parameter_name(self._source_slots[index]))
            return
        if isinstance(value, ConstantValue):
            self.load_const(value.value)
            return
        value.reconstruct(self)
        if isinstance(value, (ObjectValue, CellValue)) or self.plan.uses.get(id(value), 0) > 1:
            if not isinstance(value, (TensorValue, SymValue)):
                self.keep(value)

    def keep(self, value: Value) -> None:
        """Store the top, which is ``value``, in a temporary as well."""
        name = self._temporary_of(value)
        self.emit("COPY", 1)
        self.emit("STORE_FAST", name)

    def settle(self, value: Value) -> None:
        """Build a value now, so that later loads take it from a temporary on every path."""
        value = _plain(value)
        if isinstance(value, ConstantValue) or id(value) in self._temporaries:
            return
        if self.plan.source_index(value) is not None:
            return
        self.load(value)
        if id(value) in self._temporaries:
            self.pop()
        else:
            self.emit("STORE_FAST", self._temporary_of(value))

    def _temporary_of(self, value: Value) -> str:
        """A temporary for a value, which may have been made for this, and is to keep its identity."""
        self._in_temporaries.append(value)
        name = self._temporaries[id(value)] = self.new_name("tmp")
        return name

    def forget(self, values: list[Value] | None) -> None:
        """Empty the temporaries of values that are on the stack (None: all that the code holds).

        An exception in them would keep the frame, which its traceback refers to, until the cyclic collector comes.
        """
        if values is None:
            names: list[str | None] = [*self.parameters, *map(self.parameter_name, self._source_slots)]
            names += self._temporaries.values()
        else:
            names = [self._temporaries.get(id(_plain(value))) for value in values]
        for name in dict.fromkeys(names):
            if name is not None:
                self.load_const(None)
                self.emit("STORE_FAST", name)

    def load_graph_output(self, value: Value) -> None:
        """Push an output of the graph."""
        index = self.plan.output_index(value)
        if index is None:
            raise AssertionError(f"{value.describe()} was not planned as an output")
        reason = self.plan.spent.get(id(value))
        around = spent if reason is not None else own_leaf if id(value) in self.plan.own_leaves else None
        if around is not None:
            self.begin_call(around)
        self.emit("LOAD_FAST", "___out")
        self.load_const(index)
        if BINARY_SUBSCR_IS_OP:
            self.emit("BINARY_OP", BinaryOp.SUBSCR)  # type: ignore[attr-defined]
        else:
            self.emit("BINARY_SUBSCR")
        if reason is not None:
            self.load_const(reason)
        if around is not None:
            self.end_call(1 if reason is None else 2)

    # --- the whole ----------------------------------------------------------------------------------------------

    def call_graph(self, run: Any, slots: list[int | str], needed: list[int]) -> list[int]:
        """Call the graph with handed-over values, or locals by name, and keep what it gives.

        Args:
            run: the compiled graph.
            slots: its inputs.
            needed: handed-over values that are loaded elsewhere, beside the plan's.

        Returns:
            The values that are handed over as one tuple behind all others: they are many, and needed nowhere else.
        """
        self.begin_call(run)
        numbers = [slot for slot in slots if isinstance(slot, int)]
        many = len(slots) >= _MANY and numbers == slots and len(set(numbers)) == len(numbers)
        alone = many and set(numbers).isdisjoint([*self._source_slots, *needed])
        if alone:
            self.emit("LOAD_FAST", _INPUTS)
            if PY314:
                self.emit("PUSH_NULL")  # no keywords
                self.emit("CALL_FUNCTION_EX")
            else:
                self.emit("CALL_FUNCTION_EX", 0)
        else:
            for slot in slots:
                self.emit("LOAD_FAST", slot if isinstance(slot, str) else self.parameter_name(slot))
            self.end_call(len(slots))
        self.emit("STORE_FAST", "___out")
        return numbers if alone else []

    def assemble(
        self, original: types.CodeType, collected: list[int], inputs: list[int], stacksize: int
    ) -> types.CodeType:
        """The finished code object, in the guise of the original (names, file, first line).

        Args:
            original: the captured frame's.
            collected: the handed-over values that are parameters.
            inputs: those behind them that are one tuple (see :meth:`call_graph`).
        """
        code = Bytecode()
        code.name = original.co_name
        code.qualname = original.co_qualname
        code.filename = original.co_filename
        code.first_lineno = original.co_firstlineno
        code.flags = 0x03
        code.argnames = [*self.parameters, *map(self.parameter_name, collected)]
        code.argcount = len(code.argnames)
        if inputs:
            code.flags |= inspect.CO_VARARGS
            code.argnames.append(_INPUTS)
        code.append(Instr("RESUME", 0))
        code.extend(self.instructions)
        for inst in code:
            if isinstance(inst, Instr) and inst.lineno is None:
                inst.lineno = original.co_firstlineno
        return code.to_code(stacksize=stacksize, compute_exception_stack_depths=False)


def _call_with_keywords(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs in the emitted code."""
    return fn(*args, **kwargs)
