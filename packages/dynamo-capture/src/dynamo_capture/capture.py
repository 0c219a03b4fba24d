"""One attempt to capture one frame: the state that all values and frames of the interpretation share."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from dynamo_capture import rules
from dynamo_capture.breaks import EarlierEnd, GraphBreak
from dynamo_capture.default_device import DefaultDevices
from dynamo_capture.first_calls import FirstCalls
from dynamo_capture.graph_builder import GraphBuilder
from dynamo_capture.guards import GuardSet
from dynamo_capture.interpreter.catching import Raising, may_be_caught
from dynamo_capture.marks import breaks_refused
from dynamo_capture.side_effects import SideEffects
from dynamo_capture.sources import Source
from dynamo_capture.values.base import LazyValue, ObservedError, Value
from dynamo_capture.values.callables import BuiltinValue
from dynamo_capture.values.constant import CONST_TYPES, ConstantValue
from dynamo_capture.values.containers import TupleValue
from dynamo_capture.values.functions import CellValue, FunctionValue
from dynamo_capture.values.inference import InferenceRegion
from dynamo_capture.values.made_arrays import MadeArrays
from dynamo_capture.values.objects import DELETED, ExceptionValue
from dynamo_capture.values.tensor import SymValue
from dynamo_capture.versions import version_of
from dynamo_capture.wrap import wrap
from prims.ir import SourceLoc
from prims.spec import AbstractMode, SymbolContext

if TYPE_CHECKING:
    from dynamo_capture.dynamic import DynamicSizes
    from dynamo_capture.interpreter.frame import Frame
    from dynamo_capture.request import FrameRequest
    from dynamo_capture.values.derivatives import Level
    from dynamo_capture.values.hooks import HandleValue
    from dynamo_capture.values.iterators import Started
    from dynamo_capture.values.later import LaterReads
    from dynamo_capture.values.picks import Pick
    from dynamo_capture.values.tensor import TensorValue

__all__ = ["Callees", "Capture"]

#: Modules of torch whose functions may be replaced.
_PATCHED = frozenset((torch, torch.nn.functional, torch.linalg, torch.fft, torch.special))
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_MAX_DEPTH = 160
#: Instructions of one capture after which it is given up (a loop that would unroll without end).
_MAX_INSTRUCTIONS = 4_000_000


class Callees(NamedTuple):
    """How Python code of the region is interpreted. The values call it through the capture, and need not know it."""

    inline_call: Callable[[Capture, FunctionValue, list[Value], dict[str, Value]], Value]
    class_namespace: Callable[[Capture, FunctionValue], dict[str, Value]]
    assume: Callable[[Capture, TensorValue, bool, GraphBreak], None]


class Capture:
    """The shared state ("tx") of one capture attempt.

    Args:
        request: the frame.
        tree: the native guard tree to fill.
        sizes: which dimensions and ints are dynamic.
        unbacked: what only the data tells becomes symbols of the graph.
        takes_numbers: so do numbers that Python gives when the region runs.
    """

    #: The mode in which calls run on abstract tensors.
    mode: AbstractMode | None = None
    #: Every result is to have eager's bits: nothing is captured in other words that round otherwise.
    eager_bits = False

    def __init__(
        self, request: FrameRequest, tree: Any, sizes: DynamicSizes, callees: Callees, unbacked: bool = False,
        takes_numbers: bool = False,
    ) -> None:  # fmt: skip
        self.request = request
        self._callees = callees
        self.unbacked = unbacked
        self.takes_numbers = takes_numbers
        self.frames: list[Frame] = []
        self.guards = GuardSet(tree, self.location)
        self.side = SideEffects(self.location if request.exporting else None)
        self.symbols = SymbolContext()
        self.symbols.location = self.location
        self.graph = GraphBuilder(self, self.symbols)
        self.sizes = sizes
        self.known: dict[int, Value] = {}
        self.instructions = 0
        #: What the program handles as the capture begins.
        self.outer_error = sys.exception()
        self._alive: list[Any] = []
        self._lazy: list[LazyValue] = []
        #: What the program reads where there may be nothing in another call.
        self._reads: list[LazyValue] = []
        self._globals: dict[tuple[int, str], Value] = {}
        self._fixed: set[str] = set()
        self._cells: dict[int, CellValue] = {}
        self._functions: dict[tuple[int, int], FunctionValue | BuiltinValue] = {}
        self.methods: dict[tuple[int, str], tuple[type, types.FunctionType, type, Value]] = {}
        self.raising = Raising()
        self.made_arrays = MadeArrays()
        #: The devices on which the region may draw random numbers.
        self.drawn: Set[torch.device] = frozenset()
        #: Thread-local torch modes that the region has set: (setter, leading arguments) -> (at entry, now).
        self.modes: dict[Any, tuple[Any, Any]] = {}
        self.nesting = 0
        self.devices = DefaultDevices(request.devices)
        self.inference = InferenceRegion()
        #: Calls that are made before the graph runs.
        self.first = FirstCalls()
        #: Tensors that the region has made leaves of autograd: (tensor, the root frame's step, the break there).
        self.leaves: list[tuple[Value, int, GraphBreak]] = []
        #: The derivatives being taken, outermost first.
        self.levels: list[Level] = []
        #: By the identity of a tensor that gradients are taken to, the derivative that it was made for.
        self.level_of: dict[int, Level] = {}
        #: The bodies of vmapped functions: (graph, the root frame's step, the break there).
        self.bodies: list[tuple[torch.fx.Graph, int, GraphBreak]] = []
        #: The results of vmapped functions that have a batch as their first dimension, by their identity.
        self.batched: dict[int, Value] = {}
        #: Whether a backward pass has been run in the region, which may have freed what it needed.
        self.went_back = False
        #: Tensors whose ``data`` are set when the graph has run, by identity: nothing else is done with them here.
        self.renewed: dict[int, Value] = {}
        #: Leaves whose data have been set, by identity: what they are in the graph leads to them, and is no leaf there.
        self.led: dict[int, Value] = {}
        #: What is written or read when the graph has run, for which the region may have to end earlier.
        self.written: list[EarlierEnd] = []
        #: Leaves that the region has frozen, by their identity, as they were before.
        self.frozen: dict[int, TensorValue] = {}
        #: Places at which the region has turned out to have to end: (the root frame's step, the break there).
        self.ends: list[tuple[int, GraphBreak]] = []
        #: Hooks on tensors that are set when the graph has run.
        self.hooked: list[HandleValue] = []
        #: Hooks that the graph has: their handles, and by their tensor's identity (node before them, example, hooks).
        self.handles: list[HandleValue] = []
        self.computed_hooks: dict[int, tuple[torch.fx.Node, torch.Tensor, list[Value]]] = {}
        #: What the backward that is being captured reads, if one is.
        self.later: LaterReads | None = None
        #: The backwards that the graph has, with what they read: (the root frame's step, the break there, reads).
        self.backwards: list[tuple[int, GraphBreak, LaterReads]] = []
        #: Elements that the graph has taken in the place of views.
        self.picks: list[Pick] = []
        #: What the region takes for true of what its graph computes.
        self.assumed: list[Any] = []
        #: Calls of functions that keep their results: (function, arguments) -> result.
        self.cached_calls: dict[Any, Value] = {}
        #: The classes, by their identity, of which the region has got the ``__dict__``.
        self.namespaces: set[int] = set()
        #: The weak references that the region has made, by the identity of what they refer to.
        self.references: dict[int, Value] = {}
        #: Where the program's optimizers (``torch.optim.Optimizer``) come from.
        self.optimizers: set[Source] = set()
        #: Floats that tensors hold, which are inputs: their source -> (the number, the source of its bits).
        self.numbers: dict[str, tuple[Value, Source]] = {}
        #: The generators that were started.
        self.generators: list[Started] = []
        #: Those of them to which nothing refers any more, and which have not been closed.
        self.dropped: list[Started] = []
        #: Classes that the region has made, by their identity, with the root frame's step and the break there.
        self.made_classes: dict[int, tuple[type, int, GraphBreak]] = {}
        #: Whether there are tensors of subclasses with ``__torch_function__``.
        self.overriding = False
        #: Whether graph breaks are errors here, by our ``error_on_graph_break`` and PyTorch's.
        self.breaks_refused = breaks_refused()
        #: The modes under which indexing is by tensors, entered in the region and not left yet.
        self.index_modes: list[Any] = []
        #: How many ``DisableTorchFunctionSubclass`` the program is inside.
        self.overrides_off = int(not torch._C._is_torch_function_enabled())
        #: An exception has left an inlined function: its traceback keeps what the function refers to.
        self.left_by_errors = False

    def close(self) -> None:
        """The capture has ended: let go of the program's objects, which must die when the program drops them.

        Values and frames refer to the capture, which refers to them; and program objects that refer to each other have
        values that do. Without this all of it would wait for the cyclic collector.
        """
        kept = (self.known, self._cells, self._functions)
        for value in (*self._lazy, *(value for table in kept for value in table.values())):
            value.release()
        for started in self.generators:
            if (generator := started.value()) is not None:
                generator.release()
            started.frame.release()
        for frame in self.frames:
            frame.release()
        self.graph.release()
        self.sizes.stride_guards = []
        self.symbols.location = lambda: None  # lives on with the graph
        self.symbols.made.clear()
        self.__dict__.clear()

    # --- where we are -------------------------------------------------------------------------------------------

    def location(self) -> SourceLoc | None:
        """The user's line: the innermost frame of the program, or of a library of models."""
        for frame in reversed(self.frames):
            if frame.decoded.is_users:
                return frame.location()
        return self.frames[0].location() if self.frames else None

    def read_later(self, brk: GraphBreak, tensors: list[torch.Tensor]) -> None:
        """Something is done when the graph has run, with what these tensors hold now.

        Args:
            brk: why the region ends here instead, if that cannot be had.
        """
        brk.where = self.location()
        step = self.frames[0].call_step()  # type: ignore[attr-defined]
        self.written.append(EarlierEnd(step, brk, tuple((tensor, version_of(tensor)) for tensor in tensors)))

    def count(self, instructions: int) -> None:
        """Instructions were interpreted; a capture that goes on without end is stopped."""
        self.instructions += instructions
        if self.instructions > _MAX_INSTRUCTIONS:
            raise GraphBreak("QB14", f"over {_MAX_INSTRUCTIONS} instructions")

    # --- objects to values --------------------------------------------------------------------------------------

    def lazy(self, obj: Any, source: Source | None) -> Value:
        """A value for an object that need not be looked at yet."""
        if source is None:
            return wrap(self, obj, None)
        value = LazyValue(self, obj, source)
        self._lazy.append(value)
        return value

    def read(self, obj: Any, source: Source | None) -> Value:
        """As :meth:`lazy`, of an object that the program reads where there may be none in another call."""
        value = self.lazy(obj, source)
        if isinstance(value, LazyValue):
            self._reads.append(value)
        return value

    def only_read(self) -> list[LazyValue]:
        """What has been read and never looked at."""
        return [value for value in self._reads if value.realized is None]

    def from_python(self, obj: Any, source: Source | None = None) -> Value:
        """A value for an object that Python code has produced or holds."""
        if source is None and type(obj) in CONST_TYPES:
            return ConstantValue(obj)
        if type(obj) in (torch.SymInt, torch.SymFloat, torch.SymBool):
            raise GraphBreak("QB06", "a symbolic number that the graph does not compute")
        return self.lazy(obj, source)

    def wrap(self, obj: Any, source: Source | None) -> Value:
        """Look at an object (and guard what is seen)."""
        return wrap(self, obj, source)

    def remember(self, obj: Any, value: Value) -> None:
        """``value`` stands for ``obj`` from now on, whatever the way to it."""
        self.known[id(obj)] = value
        self._alive.append(obj)

    def changed(self, obj: Any) -> Value | None:
        """The value of a container that the region has changed; None while the real one still tells."""
        value = self.known.get(id(obj))
        return value if value is not None and self.side.is_mutated(value) else None

    def object_behind(self, value: Value) -> Any:
        """The existing object that a container's value stands for, or None."""
        address = next((key for key, known in self.known.items() if known is value), None)
        return next((obj for obj in self._alive if id(obj) == address), None)

    def close_dropped(self) -> None:
        """Close the generators to which the program no longer refers, now that it goes on to its next instruction.

        Raises:
            GraphBreak: it is not clear when one is closed, or what then happens.
        """
        while self.dropped:
            dropped, self.dropped[:] = self.dropped[:], []  # what their closing drops is closed within it
            closed = [started for started in dropped if started.may_clean_up()]
            if closed and self.left_by_errors:
                raise GraphBreak("QB18", f"{closed[0].describe()}, which a traceback may keep from being closed")
            if len(closed) > 1:
                raise GraphBreak("QB18", f"{closed[0].describe()}, which is closed together with another")
            for started in dropped:
                if started in closed:
                    started.close(self)
                started.frame.forget()  # with the generators that it refers to

    def stands_for(self, fn: types.FunctionType, value: FunctionValue) -> None:
        """``fn``, which nobody else sees, stands for a function that the region has made."""
        self._functions[id(fn), 0] = self._functions[id(fn), 1] = value
        self._alive.append(fn)

    def keep(self, value: Value) -> None:
        """Keep a value alive to the end of the capture (its ``id`` has been given away)."""
        self._alive.append(value)

    def function(self, fn: Any, source: Source | None) -> Value:
        """A Python function; torch's operators written in Python become builtins.

        One that the code itself fixes has no source; what the program may change of it is guarded all the same.
        """
        if source is None and not rules.is_fixed_file(fn.__code__.co_filename):
            source = Source("constant", None, (fn,))
        key = (id(fn), 0 if source is None else 1)
        found = self._functions.get(key)
        if found is not None:
            if source is not None and found.source is not None and source is not found.source:
                self.guards.same(source, found.source)
            return found
        from dynamo_capture.values.torch_calls import INLINED_WITH_SYMBOLS, is_operator_function

        value: FunctionValue | BuiltinValue
        if is_operator_function(fn) and not (self.symbols.symbols and fn in INLINED_WITH_SYMBOLS):
            if source is not None:
                self.guards.is_object(source, fn)
            value = BuiltinValue(fn, source)
        else:
            if source is not None:
                self.guards.function_is(source, fn)
            value = FunctionValue(fn, source)
        self._functions[key] = value
        self._alive.append(fn)
        return value

    def cell(self, cell: Any, source: Callable[[], Source], content: Callable[[], Source]) -> CellValue:
        """An existing closure cell; one value per cell."""
        found = self._cells.get(id(cell))
        if found is None:
            found = self._cells[id(cell)] = CellValue(cell=cell, source=source(), content_source=content())
            self._alive.append(cell)
        return found

    # --- exceptions ---------------------------------------------------------------------------------------------

    def observed(self, error: BaseException) -> ObservedError:
        """What the program raises, as the interpreter unwinds it into the program's handlers.

        Only for what the simulated operation is known to raise: an error that its documentation spells out, written
        here with its text (``tests/capture/test_raises.py`` lists the functions that do). What a real operation
        raises comes by :meth:`exact`; whatever capture cannot tell is a :class:`GraphBreak`.

        Raises:
            GraphBreak: the error holds objects that are no constants.
        """
        value = ExceptionValue(type(error), [self._argument(arg) for arg in error.args])
        for name, held in vars(error).items():
            value.attrs[name] = self._argument(held)
        return ObservedError(value)

    def observed_because(self, error: BaseException, cause: Value) -> ObservedError:
        """Like :meth:`observed`, for an error that the interpreter raises from another, its cause and context."""
        observed = self.observed(error)
        value = observed.value
        assert isinstance(value, ExceptionValue)
        value.attrs["__cause__"] = cause
        value.raised, value.context = True, cause
        return observed

    def _argument(self, arg: Any) -> Value:
        if type(arg) is tuple:
            return TupleValue([self._argument(x) for x in arg])
        if type(arg) in CONST_TYPES:
            return ConstantValue(arg)
        raise GraphBreak("QB19", f"an exception that holds an object of type {type(arg).__name__}")

    def handled(self) -> Value | None:
        """The exception being handled, as ``sys.exception()`` tells it; None where the region handles none."""
        return next((frame.handled for frame in reversed(self.frames) if frame.handled is not None), None)

    def observed_value(self, cls: type, args: list[Value]) -> ObservedError:
        """Like :meth:`observed`, with values as arguments."""
        return ObservedError(ExceptionValue(cls, args))

    def exact(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """``fn(*args, **kwargs)``, a real operation on the program's own objects, none of them a stand-in.

        Raises:
            ObservedError: what the operation raises, so does the program.
            GraphBreak: it ran out of stack or memory, of which the program may have more.
        """
        try:
            return fn(*args, **kwargs)
        except (GraphBreak, ObservedError):
            raise
        except (RecursionError, MemoryError) as error:
            raise GraphBreak("QB13", f"{type(error).__name__} in an operation on constants") from None
        except Exception as error:
            raise self.observed(error) from None

    # --- names --------------------------------------------------------------------------------------------------

    def load_global(self, globals_: dict[str, Any], builtins: dict[str, Any], name: str) -> Value:
        """A global or builtin name of a frame.

        Raises:
            ObservedError: a NameError.
        """
        found = self._global(globals_, builtins, name)
        if self.later is not None:
            stored = self.side.global_value(globals_, name)
            self.later.of_global(globals_, name, found, name not in globals_ if stored is None else stored is DELETED)
        return found

    def _global(self, globals_: dict[str, Any], builtins: dict[str, Any], name: str) -> Value:
        if (held := self.changed(globals_)) is not None:  # written by ``globals()[name] = value``
            found = held.find(self, ConstantValue(name))  # type: ignore[attr-defined]
            if found is None:
                raise GraphBreak("QB06", f"the name {name!r} where globals() is used")
            return found  # type: ignore[no-any-return]
        changed = self.side.global_value(globals_, name)
        if changed is not None and changed is not DELETED:
            return changed
        key = (id(globals_), name)
        found = self._globals.get(key)
        if found is not None:
            return found
        if name in globals_ and changed is None:
            obj = globals_[name]
            source = self._global_source(globals_, name)
        elif name in builtins:
            obj, source = builtins[name], None
            if changed is None:
                self._guard_builtin(globals_, builtins, name)
        else:
            self._guard_no_global(globals_, name)
            if builtins is self.request.builtins:
                self.guards.contains(Source("constant", None, (builtins,)), name, False)
            raise self.observed(NameError(f"name {name!r} is not defined"))
        known = source is None or type(obj) in (torch.SymInt, torch.SymFloat, torch.SymBool)
        value = self._globals[key] = self.from_python(obj, source) if known else self.read(obj, source)
        return value

    def _guard_builtin(self, globals_: dict[str, Any], builtins: dict[str, Any], name: str) -> None:
        """No global of the name hides a builtin, and it is the one that it is now."""
        if builtins is self.request.builtins:
            self.guards.is_object(Source("builtin", None, name), builtins[name])
        self._guard_no_global(globals_, name)

    def _guard_no_global(self, globals_: dict[str, Any], name: str) -> None:
        if globals_ is self.request.globals:
            self.guards.contains(Source("globals_dict", None, ()), name, False)
        elif rules.library_of(globals_) is None:
            self.guards.contains(Source("constant", None, (globals_,)), name, False)

    def _global_source(self, globals_: dict[str, Any], name: str) -> Source | None:
        if globals_ is self.request.globals:
            return Source("global_", None, name)
        owner = rules.library_of(globals_)
        if owner is not None and not rules.is_state(owner, globals_, name):
            self.guards.read_global(globals_, name, globals_[name])
            return None
        return Source("item", Source("constant", None, (globals_,)), name)

    def module_attribute_source(self, module: Any, name: str, source: Source | None) -> Source | None:
        """The source of ``module.name``; None for the standard library's modules and torch's.

        But for torch's functions, which programs do replace (attention by one of their own, say), for what functions of
        such a module assign, and for the state of the process in ``sys``.
        """
        if rules.is_library_name(module.__name__) and module is not sys:
            stays = module not in _PATCHED or not isinstance(getattr(module, name), _FUNCTIONS)
            if stays and not (name in vars(module) and rules.is_state(module.__name__, vars(module), name)):
                self.guards.read_attribute(module, name, getattr(module, name))
                return None
            source = None  # one node for all files that have the module under a name of theirs
        return Source("attr", source or Source("constant", None, (module,)), name)

    @property
    def refuses_breaks(self) -> bool:
        """Whether a graph break is an error here."""
        ours, theirs = self.breaks_refused
        return theirs if ours is None else ours

    # --- calls --------------------------------------------------------------------------------------------------

    def call_function(self, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Call a Python function: a special meaning, or inlined."""
        from dynamo_capture.values.torch_calls import special_function

        if function.fn is not None:
            special = special_function(function.fn)
            if special is not None:
                return special(self, args, kwargs)
        if len(self.frames) > _MAX_DEPTH:
            raise GraphBreak("QB13", function.describe())
        return self.interpreted(function, args, kwargs)

    def interpreted(self, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Call a Python function by its code, whatever special meaning it has."""
        if self.later is not None:
            self.later.of_function(function.fn, ("__code__", "__defaults__", "__kwdefaults__"))
        return self._callees.inline_call(self, function, args, kwargs)

    def class_namespace(self, body: FunctionValue) -> dict[str, Value]:
        """What the body of a class statement leaves behind, by its names."""
        return self._callees.class_namespace(self, body)

    def assume(self, tensor: TensorValue, truth: bool, brk: GraphBreak) -> None:
        """From here on the truth of a tensor is that, or the frame runs again eagerly; ``brk`` where that cannot be."""
        self._callees.assume(self, tensor, truth, brk)

    def may_be_caught(self) -> bool:
        """Whether an exception of what is being interpreted may meet a handler of the program."""
        return may_be_caught(self.frames)

    def call_builtin(self, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Call a C function or a torch operator."""
        from dynamo_capture.values.builtin_functions import call_builtin
        from dynamo_capture.values.construct import instantiate  # noqa: F401  (registers its handlers)

        return call_builtin(self, fn, args, kwargs)

    def instantiate(self, cls: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Call a class."""
        from dynamo_capture.values.construct import instantiate

        return instantiate(self, cls, args, kwargs)

    def graph_call(self, fn: Any, args: list[Value], kwargs: dict[str, Value], *, method: bool = False) -> Value:
        """Record a torch call in the graph."""
        from dynamo_capture.values.overrides import dispatched, has_instances

        if has_instances(args, kwargs):
            return dispatched(self, fn, args, kwargs, method=method)
        return self.graph.call(fn, args, kwargs, method=method)

    def inline(self, fn: Any, *args: Value) -> Value:
        """Inline one of this package's own Python functions that spell out a builtin's meaning."""
        return FunctionValue(fn).call(self, list(args), {})

    # --- symbolic numbers ---------------------------------------------------------------------------------------

    def sym(self, size: Any, op: Any, operands: list[Value]) -> Value:
        """A number read from a tensor's metadata: a constant, or ``op(*operands)`` when it is symbolic."""
        if isinstance(size, (int, float)) and not isinstance(size, (torch.SymInt, torch.SymFloat)):
            return ConstantValue(size)

        def make() -> Any:
            node = self.graph.graph.create_node(
                "call_function", op, tuple(self.graph.lower(v)[0] for v in operands), {}
            )
            node.meta["spec"] = size.node
            node.meta["source"] = self.location()
            return node

        return self.sym_from_example(size, make)

    def sym_from_example(self, example: Any, make: Callable[[], Any]) -> Value:
        """A symbolic number, or the constant that it is known to be."""
        known = self.known_number(example)
        return ConstantValue(known) if known is not None else SymValue(example, make)

    def known_number(self, example: Any) -> Any:
        """The number that a symbolic one must be, or None."""
        node = example.node
        if isinstance(example, torch.SymInt):
            return node.maybe_as_int()
        if isinstance(example, torch.SymBool):
            return self.symbols.statically_known(node.expr)  # also what a guard has settled since it was made
        expr = self.symbols.simplify(node.expr)
        return expr.value if expr.is_const else None

    def int_is_dynamic(self, source: Source, value: int) -> bool:
        """Whether an int of the frame becomes a symbolic input: once it has changed, an optimizer's count at once."""
        if value >= 1 and self.optimizers and source.stands_in("state", self.optimizers):
            return True
        # What has no place in 64 bits no operator takes, and no guard could compare.
        return -(2**63) <= value < 2**63 and self.sizes.int_is_dynamic(str(source), value)

    def float_is_dynamic(self, source: Source, value: float) -> bool:
        """Whether a float of the frame becomes a symbolic input: once it has changed, an optimizer's at once."""
        if value == value and any(source.stands_in(name, self.optimizers) for name in ("param_groups", "state")):
            return True
        return self.sizes.float_is_dynamic(str(source), value)

    def dynamic_dims(self, source: Source, tensor: torch.Tensor) -> Any:
        """Which dimensions of an input are symbolic."""
        return self.sizes.dims(str(source), tensor, source.is_module_state is not None)

    def dynamic_strides(self, source: Source, tensor: torch.Tensor) -> dict[int, int]:
        """Which strides of an input are symbolic, of those that do not follow from its sizes."""
        if tensor.layout is not torch.strided:
            return {}
        return self.sizes.strides(str(source), tensor, source.is_module_state is not None)

    # --- guards that are not about one value --------------------------------------------------------------------

    def guard_fixed_length(self, container: Any, text: str) -> None:
        """A container that exists once per process (a registry of hooks) keeps its length."""
        if text not in self._fixed:
            self._fixed.add(text)
            self.guards.length(Source("constant", None, (container,)), len(container))

    def guard_symbolic_strides(self, source: Source, strides: dict[int, Any]) -> None:
        """Symbolic strides of a tensor, by dimension, keep their relation to its sizes."""
        self.sizes.stride_guards.append((source, strides))
