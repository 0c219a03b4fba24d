"""The graph being captured: a torch dialect ``fx.Graph`` beside the abstract values of its nodes.

Every torch call is run once on abstract tensors (``prims.spec``), which gives the shapes, dtypes and
``requires_grad`` that the program may ask for; the call itself becomes one node.
"""

from __future__ import annotations

import math
import operator
import types
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch.utils._python_dispatch import _disable_current_modes

from dynamo_capture.breaks import GraphBreak, NotAnOperand
from dynamo_capture.called import Called, facts_of
from dynamo_capture.custom_ops import check_custom, is_changed, mark_written
from dynamo_capture.dynamic import said_of
from dynamo_capture.interpreter.catching import is_refused, may_be_caught, may_be_met
from dynamo_capture.repeated import key_of, made_alone
from dynamo_capture.sources import Source, stride_source
from dynamo_capture.values.base import ObservedError, Value, display
from dynamo_capture.values.constant import ConstantValue, is_numpy_scalar
from dynamo_capture.values.containers import ListValue, SliceValue, TupleValue, is_namedtuple
from dynamo_capture.values.dicts import DictValue
from dynamo_capture.values.instances import InstanceConstant
from dynamo_capture.values.int_tensors import as_ints, known_ints, note_int
from dynamo_capture.values.known_tensors import as_known_ints, computed_of_known
from dynamo_capture.values.numpy_scalars import NumpyNumberValue, number_of, of_data
from dynamo_capture.values.picks import note_write
from dynamo_capture.values.scalar_tensors import known_number, note_number, numbers_after
from dynamo_capture.values.sharded import ShardedTensorValue
from dynamo_capture.values.tensor import SymValue, TensorValue, check_renewed
from dynamo_capture.values.tensor_state import has_names, may_be_copied
from prims.errors import DataDependentError, QuintetError, UserError
from prims.ir.nodes import call_node
from prims.ir.printable import printable_call
from prims.records import record
from prims.sharding import Joined, ToLocal, is_sharded
from prims.spec import OF_PLAIN_TENSORS, AbstractTensor, SymbolicCalls, TensorSpec, abstract, abstract_from_spec
from prims.spec import expr as ex
from prims.spec.expr import bits_of_float
from prims.spec.sym import float_from_bits, float_to_single
from prims.spec.unbacked import is_making, making_symbols
from prims.transforms import require_gradient

if TYPE_CHECKING:
    from dynamo_capture.capture import Capture

__all__ = ["GraphBuilder", "GraphInput"]

_SYM_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)
_PURE_TARGETS = frozenset(
    (operator.getitem, getattr, float_from_bits, float_to_single, torch.ops.aten.sym_size.int,
     torch.ops.aten.sym_stride.int, torch.ops.aten.sym_numel.default, torch.ops.aten.sym_storage_offset.default)
)  # fmt: skip


@record(frozen=False)
class GraphInput:
    """A placeholder with where its value comes from."""

    source: Source
    node: torch.fx.Node
    value: TensorValue | SymValue
    real: Any


#: How often an operator may make something else than a new tensor before its calls are run without a look at others.
_TRIES = 3

#: What PyTorch says where it is asked for the memory of an abstract tensor.
_NO_DATA = "its data is not allocated yet"


class GraphBuilder:
    """Builds one graph; ``ctx`` owns its size symbols."""

    #: Whether it is the region's graph itself, rather than one inside it.
    is_outermost = makes_leaves = True

    def __init__(self, tx: Capture, ctx: Any) -> None:
        self.tx = tx
        self.ctx = ctx
        self.graph = torch.fx.Graph()
        self.inputs: list[GraphInput] = []
        #: Also those that turned out unused, whose guards stand all the same.
        self.all_inputs: list[GraphInput] = []
        #: A call took the place of a tensor in its memory as a number.
        self.reads_offsets = False
        self.op_count = 0
        #: Whether a call may have written an inference tensor, which counts no writes.
        self.may_write_uncounted = False
        self._by_example: dict[int, TensorValue] = {}
        #: Tensors that took the place of others, and those: a new one is not to have the identity of either.
        self._replaced: list[torch.Tensor] = []
        #: The first size of each name that the user gave dimensions.
        self._named_sizes: dict[str, Any] = {}
        #: What was computed of numbers alone, by the operator and its operands.
        self._of_numbers: dict[Any, Value] = {}
        #: What calls of operators have made, by :func:`key_of`.
        self._specs: dict[Any, TensorSpec] = {}
        #: How often operators, of those that never made one, have made something else: a view, mostly.
        self._unlike: dict[Any, float] = {}
        self._last_placeholder: torch.fx.Node | None = None

    # --- inputs -------------------------------------------------------------------------------------------------

    def _placeholder(self, source: Source) -> torch.fx.Node:
        graph = self.graph
        if self._last_placeholder is None:
            point = graph.inserting_before(next(iter(graph.nodes), None)) if len(graph.nodes) else None
        else:
            point = graph.inserting_after(self._last_placeholder)
        name = source.graph_name()
        if point is None:
            node = graph.placeholder(name)
        else:
            with point:
                node = graph.placeholder(name)
        node.target = node.name
        self._last_placeholder = node
        return node

    def tensor_input(
        self, source: Source, real: torch.Tensor, dynamic: dict[int, int], strides: dict[int, int]
    ) -> TensorValue:
        """A tensor of the frame as a graph input.

        Args:
            dynamic: dimensions to make symbolic, each with its least size.
            strides: those to make symbolic; each is a graph input of its own, before the tensor.
        """
        free = {
            dim: self.size_input(stride_source(source, dim), stride, 2 if real.shape[dim] > 1 else 0).example.node
            for dim, stride in strides.items()
        }
        sizes = self._as_said(source, real, dynamic)
        example = abstract(real, self.ctx, sizes, source=str(source), dynamic_strides=free)
        node = self._placeholder(source)
        node.meta["spec"] = example.spec
        value = TensorValue(node, example, source, real)
        self._by_example[id(example)] = value
        self.inputs.append(GraphInput(source, node, value, real))
        return value

    def _as_said(self, source: Source, real: torch.Tensor, dynamic: dict[int, int]) -> dict[int, Any]:
        """The symbolic dimensions with what is known of them: a range, a name that others have too."""
        sizes: dict[int, Any] = {}
        for dim, least in dynamic.items():
            low, high, name = said_of(real, dim)
            if (low, high, name) == (2, None, None):
                sizes[dim] = self.ctx.new_symbol(real.shape[dim], f"{source}.size({dim})", min=least)
                continue
            size = self._named_sizes.get(name) if name is not None else None
            if size is not None and size.hint != real.shape[dim]:
                raise UserError(
                    f"sizes that are called {name!r} differ: dimension {dim} of {source} is {real.shape[dim]}, where "
                    f"another is {size.hint}",
                    todo="Give sizes one name that are equal in every call.",
                )
            if size is None:
                size = self.ctx.new_symbol(real.shape[dim], f"{source}.size({dim})", min=min(low, 2))
            why = f"dimension {dim} of {source} was marked so"
            if low > 2:
                self.ctx.add_guard(ex.ge(size.expr, low), why)
            if high is not None:
                self.ctx.add_guard(ex.le(size.expr, high), why)
            if name is not None:
                self._named_sizes[name] = size
            sizes[dim] = self.ctx.make(self.ctx.simplify(size.expr))
        return sizes

    def size_input(self, source: Source, real: int, low: int) -> SymValue:
        """An int of the frame as a symbolic graph input of at least ``low``."""
        sym = self.ctx.new_symbol(real, str(source), min=low)
        node = self._placeholder(source)
        node.meta["spec"] = sym
        value = SymValue(torch.SymInt(sym), lambda: node, source)
        self.inputs.append(GraphInput(source, node, value, real))
        return value

    def int_input(self, source: Source, real: int) -> SymValue:
        """An int of the frame as a symbolic graph input, whose sign is fixed: programs go by it."""
        if real > 0:
            return self.size_input(source, real, min(real, 2))  # a counter's 1 is one of its many
        value = self.size_input(source, real, -(2**63))
        self.ctx.add_guard(ex.lt(value.example.node.expr, 0), "a negative number that changes")
        return value

    def float_input(self, source: Source, real: float) -> SymValue:
        """A float of the frame as a graph input: its bits, an integer of which the graph makes the float again."""
        bits = bits_of_float(real)
        held = Source("call", source, bits_of_float)
        sym = self.ctx.new_symbol(bits, str(held), min=-(2**63), max=2**63 - 1, prefix="f")
        placeholder = self._placeholder(held)
        placeholder.meta["spec"] = sym
        value = self._float_of(placeholder, sym, source)
        self.inputs.append(GraphInput(held, placeholder, value, bits))
        return value

    def number_input(self, name: str, text: str, bounds: tuple[int, int] | None) -> SymValue:
        """What a first call leaves in the variable ``name`` of the emitted code, which has no value at capture.

        Args:
            text: says what it is.
            bounds: of an int; None: the variable holds the bits of a float.
        """
        low, high = bounds or (-(2**63), 2**63 - 1)
        sym = self.ctx.new_symbol(None, text, low, high, prefix="f" if bounds is None else None)
        source = Source("first", None, (name, f"{text}()"))
        placeholder = self._placeholder(source)
        placeholder.meta["spec"] = sym
        if bounds is None:
            value, example = self._float_of(placeholder, sym, None), bits_of_float(0.5)
        else:
            value, example = SymValue(torch.SymInt(sym), lambda: placeholder), min(max(low, 2), high)
        self.inputs.append(GraphInput(source, placeholder, value, example))
        return value

    def drawn_input(self, name: str, text: str, spec: TensorSpec) -> TensorValue:
        """The tensor that a first call leaves in the variable ``name`` of the emitted code.

        Args:
            text: says what it is.
        """
        example = abstract_from_spec(spec)
        source = Source("first", None, (name, f"{text}()"))
        placeholder = self._placeholder(source)
        placeholder.meta["spec"] = spec
        value = TensorValue(placeholder, example)
        self._by_example[id(example)] = value
        hints = self.ctx.hints()
        shape = [s if isinstance(s, int) else int(s.expr.evaluate(hints)) for s in spec.shape]
        with _disable_current_modes():
            like = torch.zeros(shape, dtype=spec.dtype, device=spec.device)
        self.inputs.append(GraphInput(source, placeholder, value, like))
        return value

    def _float_of(self, placeholder: torch.fx.Node, sym: Any, source: Source | None) -> SymValue:
        """The float whose bits an input is."""
        example = float_from_bits(torch.SymInt(sym))

        def make() -> torch.fx.Node:
            node = self.graph.create_node("call_function", float_from_bits, (placeholder,))
            node.meta["spec"] = example.node
            node.meta["source"] = self.tx.location()
            return node

        return SymValue(example, make, source)

    # --- nodes --------------------------------------------------------------------------------------------------

    def call(
        self, fn: Callable[..., Any] | str, args: list[Value], kwargs: dict[str, Value], *, method: bool = False
    ) -> Value:
        """Run a torch function (or method by name) on abstract values and record it.

        A call whose result has nothing of a tensor or a symbolic size in it leaves no node.

        Raises:
            GraphBreak: it cannot be captured.
        """
        key = None if kwargs or method else _key_of_numbers(fn, args)
        if key in self._of_numbers:
            return self._of_numbers[key]
        if fn in _DETACHES and args[0].realize().source is not None:
            raise GraphBreak("QB06", "detach_() of a tensor that exists outside")
        facts = facts_of(fn)
        if facts.asserts_data:
            raise GraphBreak("QB02", f"{_name_of(fn)}, which raises by a tensor's value")
        args, kwargs = of_data(fn, args, kwargs)
        if facts.takes_plain_bools:
            args = [_settled(arg) for arg in args]
            kwargs = {name: _settled(value) for name, value in kwargs.items()} if kwargs else kwargs
        lowered, examples = self._lowered(args)
        lowered_kwargs, kw_examples = self._lowered_by_name(kwargs) if kwargs else ({}, {})
        check_custom(fn)
        if self.tx.raising.met is None and (self.tx.side or may_be_met(self.tx)):
            self.tx.raising.met = self.tx.frames[0].call_step()  # type: ignore[attr-defined]
        by_position = fn is operator.getitem and type(examples[1]) is int  # refused only where there is no such row
        if facts.only_computes and not by_position and may_be_caught(self.tx.frames):
            if is_refused(lambda given: _run(fn, method, *given), (examples, kw_examples)):
                raise GraphBreak("QB08", f"{_name_of(fn)} inside try, which may raise")
        self.reads_offsets |= facts.reads_offset
        _check_left(fn, facts, [*examples, *kw_examples.values()])
        before, uncounted = _versions(examples, kw_examples)
        numbers = numbers_after(self.tx, fn, args, kwargs)
        if before:
            self.tx.inference.check_operator(self.tx)
        try:
            result = self._abstract_run(fn, method, examples, kw_examples, facts)
        except DataDependentError:
            ways = known_ints, partial(as_known_ints, self.tx), partial(as_ints, self.tx)
            for read in ways[: 2 + self.tx.unbacked]:
                again = self._with_ints(fn, args, kwargs, method, read)
                if again is not None:
                    return again
            again = self._with_numbers(fn, args, kwargs, method)
            if again is None:
                again = computed_of_known(self.tx, fn, args, kwargs, method)
            if again is not None:
                return again
            raise GraphBreak("QB02", _name_of(fn)) from None
        except (GraphBreak, ObservedError):
            raise
        except QuintetError as error:
            brk = GraphBreak("QB08", f"{_name_of(fn)}: {_first_line(error)}")
            raise _while_modules_have(brk, [*args, *kwargs.values()]) from error
        except RecursionError as error:
            raise GraphBreak("QB13", f"Python's limit was reached in {_name_of(fn)}") from error
        except Exception as error:
            if self.tx.unbacked and not (getattr(fn, "__module__", None) == "_operator" and fn is not operator.getitem):
                again = self._with_ints(fn, args, kwargs, method, partial(as_ints, self.tx))
                if again is not None:
                    return again
            if type(error) is IndexError and by_position:
                raise self.tx.observed(IndexError(_no_such_row(error, *examples))) from None  # ends a walk, as eager's
            raise _end_of_graph(fn, error) from error
        if type(result) is torch.Tensor:
            if result.layout is not torch.strided or result.is_nested:
                raise GraphBreak("QB17", _name_of(fn))
            result = abstract(result)  # on the meta device PyTorch makes torch.tensor's without an operator
        if isinstance(result, torch.Tensor) and has_names(result):
            raise GraphBreak("QB17", "a tensor with named dimensions")
        mark_written(fn, examples, kw_examples, result)
        written = [tensor for tensor, version in before if tensor._version != version]
        if written and self.tx.raising.traced is None and self._is_traced(written):
            self.tx.raising.traced = self.tx.frames[0].call_step()  # type: ignore[attr-defined]
        if written and self.tx.levels:
            self._check_level(fn, written)
        if not written and not self._may_write(fn, facts, uncounted):
            if isinstance(result, torch.Tensor):
                known = self._by_example.get(id(result))
                if known is not None and not may_be_copied(self.tx, fn, known):
                    return known  # the very argument, as x.contiguous() may give
                if known is not None:
                    result = result.view_as(result)
            elif not _has_graph_value(result):
                if result is None and before and fn not in _STATE_SETTERS:
                    raise GraphBreak("QB03", f"{_name_of(fn)}, which returns nothing and is run for its effect")
                return self._constant(result)
        node = self._node(fn, lowered, lowered_kwargs, method)
        if written and self.tx.picks:
            note_write(self.tx, node)
        value = self.wrap_result(result, node)
        if key is not None and type(value) is SymValue:
            self._of_numbers[key] = value
            return value
        note_int(self.tx, fn, args, kwargs, value)
        for tensor, number in numbers:
            note_number(value if tensor is None else tensor, number)
        return value

    def _abstract_run(
        self, fn: Any, method: bool, examples: list[Any], kw_examples: dict[str, Any], facts: Called
    ) -> Any:
        """What a call gives of abstract arguments."""
        fn = OF_PLAIN_TENSORS.get(fn, fn)
        if self.ctx.symbols or self.tx.unbacked or is_making():
            # A question about torch's modes must not see this one, so it is entered for calls with arguments only.
            symbolic = SymbolicCalls() if self.ctx.symbols and (examples or kw_examples) else nullcontext()
            with making_symbols(self.ctx if self.tx.unbacked else None), symbolic:
                return _run(fn, method, examples, kw_examples)
        mode = self.tx.mode
        is_asked = facts.is_in_c and mode is not None and self._unlike.get(fn, 0) < _TRIES
        key = key_of(self.tx, fn, method, examples, kw_examples) if is_asked else None
        if mode is None or key is None:
            return _run(fn, method, examples, kw_examples)
        known = self._specs.get(key)
        if known is not None:
            return abstract_from_spec(known)
        mode.made, mode.had_effects = None, False
        result = _run(fn, method, examples, kw_examples)
        known = made_alone(mode, result)
        mode.made = None
        if known is not None:
            self._specs[key] = known
            self._unlike[fn] = -math.inf
        else:
            self._unlike[fn] = self._unlike.get(fn, 0) + 1
        return result

    def computed(self, fn: Callable[..., Any], args: list[Value]) -> Value | None:
        """What the graph has computed of numbers before: an optimizer computes the same for every parameter."""
        return self._of_numbers.get(_key_of_numbers(fn, args))

    def _with_ints(
        self, fn: Any, args: list[Value], kwargs: dict[str, Value], method: bool, read: Callable[[Value], Value]
    ) -> Value | None:
        """The call with ints in place of tensors that ``read`` finds them in; None where there are none."""
        given = [args[0].realize(), *map(read, args[1:])] if method else [read(arg) for arg in args]
        named = {name: read(value) for name, value in kwargs.items()}
        pairs = zip([*given, *named.values()], [*args, *kwargs.values()], strict=True)
        if all(new is old.realize() for new, old in pairs):
            return None
        return self.call(fn, given, named, method=method)

    def _with_numbers(
        self, fn: Any, args: list[Value], kwargs: dict[str, Value], method: bool
    ) -> Value | None:
        """The call with numbers in place of tensors that hold known ones: in keywords, or else the last argument."""

        def read(value: Value) -> Value:
            value = value.realize()
            return (known_number(self.tx, value) if isinstance(value, TensorValue) else None) or value

        given = {name: read(value) for name, value in kwargs.items()}
        if any(new is not kwargs[name].realize() for name, new in given.items()):
            return self.call(fn, args, given, method=method)
        if not args:
            return None
        last = read(args[-1])
        return None if last is args[-1].realize() else self.call(fn, [*args[:-1], last], kwargs, method=method)

    def _check_level(self, fn: Any, written: list[torch.Tensor]) -> None:
        """A function that a derivative is taken of writes to no tensor from outside, which eager refuses."""
        level = self.tx.levels[-1]
        for tensor in written:
            value = self._by_example.get(id(tensor._base)) or self._by_example.get(id(tensor))
            if value is None or not level.has_made(value, self.graph):
                self.tx.side.epoch += 1
                raise GraphBreak("QB12", f"{_name_of(fn)} in a derivative writes to a tensor from outside of it")

    def _is_traced(self, written: list[torch.Tensor]) -> bool:
        """Whether an input has just been written, itself or as a view, so that it has another history."""
        for tensor in written:
            whole = tensor if tensor._base is None else tensor._base
            value = self._by_example.get(id(whole))
            if value is not None and value.real_tensor is not None and whole.requires_grad and not whole.is_leaf:
                return True
        return False

    def _constant(self, result: Any) -> Value:
        if isinstance(result, torch.Size):
            return TupleValue([ConstantValue(s) for s in result], torch.Size)
        return self.tx.from_python(result)

    def _may_write(self, fn: Any, facts: Called, uncounted: bool) -> bool:
        """Whether the call may have changed an argument without a trace in its version counter.

        Args:
            uncounted: there are tensors without a counter among the arguments, ``out=`` and lists included.
        """
        if fn in _DETACHES or fn in ("requires_grad_", require_gradient):
            return True
        if not uncounted:
            return False
        if isinstance(fn, torch._ops.OpOverload):
            may_write = fn._schema.is_mutable
        else:
            may_write = not facts.may_give_argument
        self.may_write_uncounted |= may_write
        return may_write

    def _node(self, fn: Any, args: list[Any], kwargs: dict[str, Any], method: bool) -> torch.fx.Node:
        self.tx.inference.check_operator(self.tx)
        node = call_node(self.graph, *printable_call(fn, tuple(args), kwargs), method=method)
        node.meta["source"] = self.tx.location()
        self.op_count += 1
        self.tx.side.epoch += 1
        return node

    def call_node(self, fn: Callable[..., Any], args: list[Any]) -> torch.fx.Node:
        """A node for a call whose abstract result is known already."""
        return self._node(fn, args, {}, False)

    def input_list(self) -> list[GraphInput]:
        """The inputs so far."""
        return self.inputs

    @property
    def writes_inputs(self) -> bool:
        """Whether the graph, as far as it has come, writes into one of its inputs."""
        return any(map(is_written, self.input_list()))

    def mutated_inputs(self) -> list[GraphInput]:
        """The inputs that the graph writes into, directly or through a view (their version has changed)."""
        return [inp for inp in self.all_inputs if is_written(inp)]

    def values(self) -> list[TensorValue]:
        """The tensors that the graph has."""
        return list(self._by_example.values())

    def takes_place(self, later: TensorValue, earlier: TensorValue) -> None:
        """From here on ``earlier``, which the program knows, is what ``later`` has been until now."""
        self._replaced += earlier.example, later.example
        earlier.node, earlier.example = later.node, later.example
        self._by_example[id(later.example)] = earlier

    def forget(self, node: torch.fx.Node) -> None:
        """Drop a node that nothing uses, with the call that it was taken from."""
        while not node.users and node.op != "placeholder":
            inputs = node.all_input_nodes
            self.graph.erase_node(node)
            if node.target is not operator.getitem:
                return
            (node,) = inputs

    def value_of(self, example: torch.Tensor) -> TensorValue | None:
        """The tensor that an abstract one stands for."""
        return self._by_example.get(id(example))

    def maybe_mutated(self) -> list[int]:
        """The positions of the inputs that the graph writes into, as far as is known."""
        mutated = set(map(id, self.mutated_inputs()))
        return [
            at for at, inp in enumerate(self.inputs)
            if id(inp) in mutated
            or (self.may_write_uncounted and isinstance(inp.value, TensorValue) and inp.value.example.is_inference())
        ]  # fmt: skip

    def state_call(self, fn: Callable[..., Any], args: list[Any]) -> torch.fx.Node:
        """Record a call that sets a thread-local mode (grad mode, autocast)."""
        node = self.graph.create_node("call_function", fn, tuple(args), {})
        node.meta["source"] = self.tx.location()
        node.meta["spec"] = None
        self.tx.side.epoch += 1
        return node

    def wrap_result(self, result: Any, node: torch.fx.Node) -> Value:
        """A call's abstract result as a value."""
        if type(result) is AbstractTensor:
            node.meta["spec"] = result.spec
            return self._by_example.get(id(result)) or self._computed(result, node)
        node.meta["spec"] = self._spec(result)
        return self._wrap(result, node)

    def _computed(self, result: torch.Tensor, node: torch.fx.Node) -> TensorValue:
        value = self._by_example[id(result)] = TensorValue(node, result)
        return value

    def _wrap(self, result: Any, node: torch.fx.Node) -> Value:
        if isinstance(result, torch.Tensor):
            known = self._by_example.get(id(result))
            if known is not None:
                return known
            if is_sharded(result):
                return self._sharded(result, node)
            return self._computed(result, node)
        if isinstance(result, _SYM_TYPES):
            return self.tx.sym_from_example(result, lambda: node)
        if isinstance(result, (tuple, list)):
            items = [self._element(item, node, i) for i, item in enumerate(result)]
            return ListValue(items) if isinstance(result, list) else TupleValue(items, type(result))
        return self._constant(result)

    def _sharded(self, result: Any, node: torch.fx.Node) -> ShardedTensorValue:
        value = ShardedTensorValue(node, result)
        if not isinstance(node.target, Joined):  # which exists outside
            value.local = self.call(ToLocal(), [value], {})  # type: ignore[assignment]
        return value

    def _element(self, item: Any, node: torch.fx.Node, index: int) -> Value:
        if not _has_graph_value(item):
            return self._constant(item)
        if isinstance(item, torch.Tensor) and id(item) in self._by_example:
            return self._by_example[id(item)]
        getter = call_node(self.graph, operator.getitem, (node, index))
        getter.meta["source"] = node.meta.get("source")
        getter.meta["spec"] = self._spec(item)
        return self._wrap(item, getter)

    def _spec(self, result: Any) -> Any:
        if isinstance(result, torch.Tensor):
            return getattr(result, "spec", None)
        if isinstance(result, _SYM_TYPES):
            return result.node
        if isinstance(result, (tuple, list)):
            return tuple(self._spec(item) for item in result)
        return result

    # --- arguments ----------------------------------------------------------------------------------------------

    def _lowered(self, values: list[Value]) -> tuple[list[Any], list[Any]]:
        """Values as fx arguments, and as abstract ones."""
        graph = self.graph
        nodes, examples = [], []
        for value in values:
            value = value.realize()
            if type(value) is TensorValue and value.node.graph is graph and not self.tx.renewed:
                node, example = value.node, value.example
            else:
                node, example = self.lower(value)
            nodes.append(node)
            examples.append(example)
        return nodes, examples

    def _lowered_by_name(self, values: dict[str, Value]) -> tuple[dict[str, Any], dict[str, Any]]:
        nodes, examples = self._lowered(list(values.values()))
        return dict(zip(values, nodes, strict=True)), dict(zip(values, examples, strict=True))

    def lower(self, value: Value) -> tuple[Any, Any]:
        """A value as (fx argument, abstract argument)."""
        value = value.realize()
        kind = type(value)
        if kind is TensorValue:
            if value.node.graph is not self.graph:  # type: ignore[attr-defined]
                raise GraphBreak("QB24", "a tensor of the function is used outside of it")
            if self.tx.renewed:
                check_renewed(self.tx, value)
            return value.node, value.example  # type: ignore[attr-defined]
        if kind is ConstantValue:
            return self._lower_constant(value.value)  # type: ignore[attr-defined]
        if kind is SymValue:
            known = self.tx.known_number(value.example)  # type: ignore[attr-defined]
            return (known, known) if known is not None else (value.node, value.example)  # type: ignore[attr-defined]
        if kind is NumpyNumberValue:
            return self.lower(value.number)  # type: ignore[attr-defined]
        if kind is ShardedTensorValue:
            return value.node, value.example  # type: ignore[attr-defined]
        if isinstance(value, (TupleValue, ListValue)):
            pairs = [self.lower(item) for item in value.items]
            make = list if isinstance(value, ListValue) else tuple
            examples: Any = make(ex for _, ex in pairs)
            if is_namedtuple(value.pytype):
                examples = value.pytype(*examples)
            return make(fx for fx, _ in pairs), examples
        if isinstance(value, DictValue):
            entries = [(k.realize().const(), self.lower(v)) for k, v in value.whole(self.tx).values()]
            return {k: fx for k, (fx, _) in entries}, {k: ex for k, (_, ex) in entries}
        if isinstance(value, SliceValue):
            parts = [self.lower(part) for part in value.parts]
            return slice(*[fx for fx, _ in parts]), slice(*[ex for _, ex in parts])
        if isinstance(value, InstanceConstant) and value.inner.payload is not None:
            return self.lower(value.inner.payload)
        if value.is_const and not isinstance(constant := value.const(), _FUNCTIONS):
            # A graph's text has dtypes; <class 'bool'> is none. torch.IntTensor may be given by its name.
            if isinstance(constant, type(torch.FloatTensor)):
                return f"{constant.__module__}.{constant.__name__}", constant
            return (_DTYPE_OF[constant] if type(constant) is type and constant in _DTYPE_OF else constant), constant
        raise NotAnOperand("QB08", f"{display(value)} as an argument of a torch operator")

    def _lower_constant(self, constant: Any) -> tuple[Any, Any]:
        if type(constant) in _PLAIN:
            return constant, constant
        if isinstance(constant, range):
            constant = list(constant)
        elif is_numpy_scalar(constant):
            constant = number_of(constant)
        elif isinstance(constant, slice):
            parts = (constant.start, constant.stop, constant.step)
            constant = slice(*(number_of(part) if is_numpy_scalar(part) else part for part in parts))
        return constant, constant

    # --- finishing ----------------------------------------------------------------------------------------------

    def finish(self, outputs: list[TensorValue | SymValue]) -> None:
        """Add the output node; drop unused placeholders and unused reads of sizes and elements."""
        self.graph.output(tuple(v.node for v in outputs))
        for node in reversed(self.graph.nodes):
            if node.users or node.op == "output":
                continue
            if node.op == "placeholder":
                is_unused = not _is_symbolic(node.meta["spec"])
            else:
                is_unused = node.op == "call_function" and self._is_pure(node)
            if is_unused:
                self.graph.erase_node(node)
        alive = set(self.graph.nodes)
        self.all_inputs = self.inputs
        self.inputs = [inp for inp in self.inputs if inp.node in alive]
        self.op_count = sum(n.op in ("call_function", "call_method") for n in self.graph.nodes)

    def _is_pure(self, node: torch.fx.Node) -> bool:
        if isinstance(node.target, (Joined, ToLocal)):
            return True
        if node.target in _PURE_TARGETS:
            index = node.args[1:] if node.target is operator.getitem else ()
            parts = index[0] if index and isinstance(index[0], tuple) else index
            return not any(isinstance(i, torch.fx.Node) and hasattr(i.meta.get("spec"), "shape") for i in parts)
        spec = node.meta.get("spec")
        return getattr(node.target, "__module__", None) == "_operator" and hasattr(spec, "expr")

    def release(self) -> None:
        """Let go of the capture and of the tensors that it was given; the graph itself lives on."""
        self.__dict__.clear()

    def has_tensor_ops(self) -> bool:
        """Whether the graph computes anything on tensors (reads of sizes and modes do not count)."""
        for node in self.graph.nodes:
            if node.op == "call_method":
                return True
            if node.op == "call_function" and node.target not in _STATE_SETTERS and not self._is_pure(node):
                return True
        return False


def is_written(inp: GraphInput) -> bool:
    value = inp.value
    return isinstance(value, TensorValue) and not value.example.is_inference() and is_changed(value.example)


def _key_of_numbers(fn: Any, args: list[Value]) -> Any:
    """What tells a computation of symbolic numbers from others; None for any other call."""
    if fn.__hash__ is None:
        return None
    parts: list[Any] = [fn]
    symbolic = False
    for arg in args:
        if type(arg) is SymValue:
            symbolic = True
            parts.append((type(arg.example), arg.example.node.expr))
        elif type(arg) is ConstantValue and type(arg.value) in (int, float):
            parts.append((type(arg.value), repr(arg.value)))  # 0.0 is not -0.0
        else:
            return None
    return tuple(parts) if symbolic else None


def _run(fn: Any, method: bool, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return getattr(args[0], fn)(*args[1:], **kwargs) if method else fn(*args, **kwargs)


#: Classes of Python that stand for dtypes.
_DTYPE_OF = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


def _first_line(error: BaseException) -> str:
    """What an error says, without the C++ call stack that PyTorch may append."""
    return str(error).partition("\n")[0]


_DETACHES = ("detach_", torch.detach_)
_STATE_SETTERS = frozenset((torch._C._set_grad_enabled,))
def _versions(examples: list[Any], kwargs: dict[str, Any]) -> tuple[list[tuple[torch.Tensor, int]], bool]:
    """The tensors among a call's arguments (in sequences too) with their version counters; whether others have none."""
    found: list[tuple[torch.Tensor, int]] = []
    uncounted = False
    for example in (*examples, *kwargs.values()) if kwargs else examples:
        kind = type(example)
        if kind in _PLAIN:
            continue
        for item in (example,) if kind is AbstractTensor or not isinstance(example, (list, tuple)) else example:
            if isinstance(item, torch.Tensor):
                if item.is_inference():
                    uncounted = True
                else:
                    found.append((item, item._version))
    return found, uncounted


#: Types of arguments that hold no tensors, and stand in a graph as they are.
_PLAIN = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device))


def _is_symbolic(spec: Any) -> bool:
    """Whether an input may bind a size symbol."""
    return not isinstance(spec, int) and not all(isinstance(s, int) for s in getattr(spec, "shape", (None,)))


def _settled(value: Value) -> Value:
    """A symbolic bool as the one that it is in this call, which is guarded; other values themselves."""
    value = value.realize()
    if type(value) is SymValue and isinstance(value.example, torch.SymBool):
        return ConstantValue(value.const())
    return value


def _has_graph_value(result: Any) -> bool:
    if isinstance(result, (torch.Tensor, *_SYM_TYPES)):
        return True
    if isinstance(result, (tuple, list)):
        return any(_has_graph_value(item) for item in result)
    return False


def _check_left(fn: Any, facts: Called, given: Sequence[Any]) -> None:
    """Raise GraphBreak where an operator is left to eager with these arguments."""
    if facts.left_to_eager is not None and (why := facts.left_to_eager(given)):
        raise GraphBreak("QB08", f"{_name_of(fn)} {why}")


def _name_of(fn: Any) -> str:
    if isinstance(fn, str):
        return f"Tensor.{fn}"
    module = getattr(fn, "__module__", None) or ""
    name = getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None) or repr(fn)
    if "<locals>" in name or name.startswith("pybind11_"):
        name = fn.__name__
    return f"{module}.{name}" if module.startswith("torch.nn.functional") else str(name)


def _no_such_row(error: IndexError, x: Any, index: int) -> str:
    """Eager's text, which has the size in it: a symbolic one is the number that it is from then on."""
    return f"index {index} is out of bounds for dimension 0 with size {int(x.shape[0])}" if x.dim() else str(error)


#: What no text of a graph has as an operand.
_FUNCTIONS = (types.BuiltinFunctionType, types.FunctionType)


def _while_modules_have(brk: GraphBreak, operands: Sequence[Value]) -> GraphBreak:
    """The break at an operator that is refused for what its operands are: where one is a module's own and gets another
    size or type (an observer's extremes, in its first call), the graph may go on."""
    tensors = [x for x in (value.realize() for value in operands) if isinstance(x, TensorValue)]
    own = [(x.source, x.real_tensor) for x in tensors if x.source is not None and x.source.kind == "module_item"]
    facts = [(source, (tuple(x.shape), x.dtype)) for source, x in own if x is not None]

    def guard(tx: Any) -> None:
        for source, (shape, dtype) in facts:
            text = f"{source} is {dtype} of {list(shape)}"
            tx.guards.predicate(source.again(), partial(_is_sized, shape, dtype), text)

    if facts:
        brk.guard = guard
    return brk


def _is_sized(shape: tuple[int, ...], dtype: torch.dtype, obj: Any) -> bool:
    return isinstance(obj, torch.Tensor) and tuple(obj.shape) == shape and obj.dtype == dtype


def _end_of_graph(fn: Any, error: Exception) -> GraphBreak:
    """The break at an operator that raised ``error``."""
    if _NO_DATA in str(error):  # C++ code that looks at elements
        return GraphBreak("QB02", _name_of(fn))
    return GraphBreak("QB08", f"{_name_of(fn)} raised {type(error).__name__}: {_first_line(error)}")
