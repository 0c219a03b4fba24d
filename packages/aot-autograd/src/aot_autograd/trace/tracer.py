"""The tracer: a dispatch mode that writes what runs beneath autograd into a functional ATen graph.

It sits below PyTorch's autograd, so views, in-place operations, version counters, saved tensors and the backward
pass itself behave as in eager; here every call has been reduced to ATen overloads on abstract tensors. In-place
calls become their functional twins and a new value for the written storage (:mod:`aot_autograd.trace.views`).
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from aot_autograd.trace import checks, seeded, unbacked
from aot_autograd.trace.custom import needs_twin, write_custom
from aot_autograd.trace.opinfo import OpInfo, bind, draws_random, op_info
from aot_autograd.trace.overlap import refuse_overlap
from aot_autograd.trace.replay import Draw, first_draw, runs_a_checkpoint_again
from aot_autograd.trace.views import Storage, TensorState, ViewStep, is_dense, same_strides, undo
from prims.collectives import waiting
from prims.errors import Unsupported
from prims.ir import InputDesc, SourceLoc
from prims.ir.nodes import call_node
from prims.sharding import decides_itself, is_fake_call
from prims.spec import AbstractTensor, SymbolContext, TensorSpec, abstract_from_spec, from_torch, to_torch
from prims.spec.alike import Inferred
from prims.spec.layout import may_overlap, permutation

__all__ = ["Tracer", "state_of"]

aten = torch.ops.aten
#: Operators that make real numbers of complex ones and are refused in place by eager, unlike a copy of such.
_ABSOLUTE = frozenset((aten.abs.default, aten._foreach_abs.default))
_TABLES = (seeded.HANDLERS, checks.HANDLERS)  # the latter with those of `unbacked`
#: Handlers by the identity of their operators, which the tables hold: an overload's hash is computed in Python.
_HANDLERS: dict[int, list[Any]] = {}
for _func, _handler in (pair for table in _TABLES for pair in table.items()):
    _HANDLERS.setdefault(id(_func), []).append(_handler)


#: What is an argument as it is, and holds neither tensors nor sizes that are symbols.
_PLAIN = frozenset({int, float, bool, type(None), torch.dtype, torch.device, AbstractTensor})


def state_of(tensor: torch.Tensor) -> TensorState:
    """The tracer's record of an abstract tensor.

    Raises:
        Unsupported: the tensor does not belong to this trace.
    """
    state = getattr(tensor, "_aot_state", None)
    if state is None:
        raise Unsupported("an abstract tensor from outside the traced graph reached it")
    return state


class Tracer(TorchDispatchMode):
    """Records ATen calls on abstract tensors.

    Attributes:
        graph: the functional graph so far.
        inputs: descriptors of the placeholders, in order.
        input_tensors: the abstract tensors behind them (None for sizes).
        constants: the real tensors behind ``constant`` inputs, by input index.
        backward: set while the backward pass is traced.
        called_by: inside a custom function's backward, the tangents that it is called for (where that matters).
        made_by: the autograd nodes that made the backward pass's values.
        beside_zeros: of its sums with zeros, which are copies of the other term, the nodes that made the zeros.
        factorisations: results of calls that end with error codes, by the identity of the codes.
        made: calls that make unbacked symbols, by operator and operands.
        seeded: random operators become functions of a seed.
        fast: results may be rounded otherwise than eager's.
        context: the owner of the sizes' symbols, None where all are static.
        draws_again: the backward pass repeats draws of the forward (of a checkpoint).
        source: the user's source location of what is being run.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise the base class wraps the handler so that its first call imports torch._dynamo.
        return False

    def __init__(self, seeded: bool = False, context: SymbolContext | None = None) -> None:
        super().__init__()
        self.seeded = seeded
        self.fast = True
        self.context = context
        self.infer = Inferred()
        self.graph = torch.fx.Graph()
        self.inputs: list[InputDesc] = []
        self.input_tensors: list[torch.Tensor | None] = []
        self.constants: dict[int, torch.Tensor] = {}
        self.backward = False
        self.source: SourceLoc | None = None
        self._constant_states: dict[int, torch.Tensor] = {}
        self._last_placeholder: torch.fx.Node | None = None
        self._sequence_starts: list[int] = []
        self._sequence_sources: list[SourceLoc | None] = []
        self._seeds: dict[torch.device, torch.Tensor] = {}
        self._draws: list[Draw] = []
        self.draws_again = False
        self._counter: Any = 0
        self.factorisations: dict[int, Any] = {}
        self.made: dict[Any, torch.fx.Node] = {}
        self.called_by: frozenset[int] | None = None
        self.made_by: dict[torch.fx.Node, Any] = {}
        self.beside_zeros: dict[torch.fx.Node, Any] = {}

    # -- inputs ------------------------------------------------------------------------------------------------

    def add_input(self, desc: InputDesc, tensor: torch.Tensor | None) -> torch.fx.Node:
        """A new placeholder, after the others; ``tensor`` (abstract) becomes the storage behind it."""
        index = len(self.inputs)
        anchor = self._last_placeholder
        if anchor is None:
            with self.graph.inserting_before():
                node = self.graph.placeholder(desc.name)
        else:
            with self.graph.inserting_after(anchor):
                node = self.graph.placeholder(desc.name)
        node.meta["spec"] = desc.spec
        self._last_placeholder = node
        self.inputs.append(desc)
        self.input_tensors.append(tensor)
        if tensor is not None and isinstance(desc.spec, TensorSpec):
            self._attach(tensor, Storage(desc.spec, node, base=tensor, input_index=index))
        return node

    def inputs_last(self, start: int, stop: int) -> None:
        """Move a range of inputs behind those added since (constants that the backward pass has met)."""
        order = [*range(start), *range(stop, len(self.inputs)), *range(start, stop)]
        if order == sorted(order):
            return
        nodes = [node for node in self.graph.nodes if node.op == "placeholder"]
        for at in order:
            self._last_placeholder.append(nodes[at])  # type: ignore[union-attr]
            self._last_placeholder = nodes[at]
        self.inputs = [self.inputs[at] for at in order]
        self.input_tensors = [self.input_tensors[at] for at in order]
        places = {at: position for position, at in enumerate(order)}
        self.constants = {places[at]: real for at, real in self.constants.items()}
        for position, tensor in enumerate(self.input_tensors):
            if tensor is not None:
                state_of(tensor).storage.input_index = position

    def constant(self, real: torch.Tensor) -> torch.Tensor:
        """The abstract tensor that stands for a real one met in the program; it becomes a ``constant`` input."""
        known = self._constant_states.get(id(real))
        if known is not None:
            return known
        if isinstance(real, AbstractTensor):
            raise Unsupported("an abstract tensor from outside the traced graph reached it")
        if real.requires_grad:
            raise Unsupported("a tensor that needs a gradient is used without being an input of the graph")
        if type(real) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            raise Unsupported(f"a constant of tensor subclass {type(real).__name__}")
        if real.layout is not torch.strided:
            raise Unsupported(f"a constant with layout {real.layout}")
        spec = TensorSpec(tuple(real.shape), real.dtype, real.device, tuple(real.stride()), int(real.storage_offset()))
        tensor = abstract_from_spec(spec)
        index = len(self.inputs)
        self.add_input(InputDesc(f"constant_{len(self.constants)}", "constant", spec), tensor)
        state_of(tensor).storage.constant = real
        self.constants[index] = real
        self._constant_states[id(real)] = tensor
        return tensor

    def seed(self, device: torch.device) -> torch.Tensor:
        """The seed of this call for random numbers on ``device``; an ``rng_seed`` input."""
        tensor = self._seeds.get(device)
        if tensor is None:
            spec = TensorSpec((), torch.int64, device)
            tensor = self._seeds[device] = abstract_from_spec(spec)
            self.add_input(InputDesc(f"rng_seed_{len(self._seeds) - 1}", "rng_seed", spec), tensor)
        return tensor

    def counter_of(self, func: OpOverload, args: Any, kwargs: dict[str, Any], count: Any) -> Any:
        """The first Philox counter of a draw that takes ``count`` of them.

        In the backward pass, that of the forward's draw which a checkpointed region repeats.
        """
        nodes = self._nodes(args)
        node_kwargs = {name: self._nodes(value) for name, value in kwargs.items()}
        if self.backward:
            return self._drawn_before(func, nodes, node_kwargs)
        first = self._counter
        self._counter = self._counter + count
        self._draws.append(Draw(func, nodes, node_kwargs, first))
        return first

    def _attach(self, tensor: torch.Tensor, storage: Storage) -> None:
        tensor._aot_state = TensorState(storage, (), storage.node, 0, storage.spec)  # type: ignore[attr-defined]

    # -- source locations --------------------------------------------------------------------------------------

    def enter_source(self, source: SourceLoc | None) -> None:
        """The forward program goes on at ``source``; autograd nodes made from now on belong to it."""
        self.source = source
        self._sequence_starts.append(torch._C._autograd._get_sequence_nr())
        self._sequence_sources.append(source)

    def _current_source(self) -> SourceLoc | None:
        return self._source_of(torch._C._current_autograd_node()) if self.backward else self.source

    def _source_of(self, node: Any) -> SourceLoc | None:
        """The source of a node of autograd, by the time at which it was made."""
        if node is None or not self._sequence_starts:
            return None
        at = bisect.bisect_right(self._sequence_starts, node._sequence_nr()) - 1
        return self._sequence_sources[at] if at >= 0 else None

    # -- recording ---------------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if is_fake_call(types):
            return func(*args, **(kwargs or {}))
        if decides_itself(types):
            return NotImplemented  # it calls operators on the local tensors, and collectives, which come here
        args = tuple([self.plain(a) for a in args])
        kwargs = {name: self.plain(a) for name, a in kwargs.items()} if kwargs else {}
        for handler in _HANDLERS.get(id(func), ()):
            result = handler(self, func, args, kwargs)
            if result is not NotImplemented:
                return result
        if not isinstance(func, OpOverload):
            raise Unsupported(f"higher-order operator {func}", where=self._current_source())
        info = op_info(func)
        if func.namespace != "aten" and info.kind == "pure" and needs_twin(func):
            return write_custom(self, func, info, args, kwargs)
        if info.kind == "pure":
            return self.pure(waiting(func), args, kwargs)
        if info.kind == "view":
            return self.view(func, args, kwargs)
        if info.kind == "composite":
            with self:
                return func.decompose(*self.unplain(args), **self.unplain(kwargs))
        return self.write_op(func, info, args, kwargs)

    def plain(self, value: Any) -> Any:
        """An argument with symbolic sizes as ``Sym`` and real tensors as constants."""
        if type(value) in _PLAIN or isinstance(value, AbstractTensor):
            return value
        if isinstance(value, torch.Tensor):
            return self.constant(value)
        if isinstance(value, (list, tuple)):
            return [self.plain(v) for v in value]
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return from_torch(value)
        return value

    def unplain(self, value: Any) -> Any:
        """The inverse of :meth:`plain`, for arguments that go back through the dispatcher."""
        if isinstance(value, list):
            return [self.unplain(v) for v in value]
        if isinstance(value, tuple):
            return tuple(self.unplain(v) for v in value)
        if isinstance(value, dict):
            return {key: self.unplain(v) for key, v in value.items()}
        if isinstance(value, torch.Tensor):
            return value
        return to_torch(value)

    def spec(self, tensor: torch.Tensor) -> TensorSpec:
        """A traced tensor's metadata."""
        return state_of(tensor).spec

    def read(self, tensor: torch.Tensor) -> torch.fx.Node:
        """The graph value that a traced tensor has now."""
        state = state_of(tensor)
        storage = state.storage
        if state.generation != storage.generation:
            node = storage.node
            for step in state.chain:
                if step.changes_value:
                    node, _ = self.emit(step.func, (node, *step.args_on(node)), step.kwargs)
            state.node = node
            state.generation = storage.generation
        return state.node

    def _nodes(self, value: Any) -> Any:
        if type(value) is AbstractTensor or isinstance(value, torch.Tensor):
            return self.read(value)
        if isinstance(value, list):
            return [self._nodes(v) for v in value]
        if isinstance(value, tuple):
            return tuple([self._nodes(v) for v in value])
        return value

    def _node_specs(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return value.meta["spec"]
        if isinstance(value, (list, tuple)):
            return type(value)(self._node_specs(v) for v in value)
        return value

    def _strays(self, value: Any) -> bool:
        """Whether a tensor's graph value is laid out otherwise than the tensor itself."""
        if isinstance(value, torch.Tensor):
            state = state_of(value)
            spec = state.node.meta["spec"]
            return spec is not state.spec and spec != state.spec
        if isinstance(value, (list, tuple)):
            return any(self._strays(v) for v in value)
        return False

    def create(self, func: OpOverload, args: Any, kwargs: Any, spec: Any) -> torch.fx.Node:
        """A graph node for one functional call, with its metadata."""
        node = call_node(self.graph, func, args, kwargs)
        if self.made:
            unbacked.assume_sizes(spec)
        meta = node.meta
        meta["spec"] = spec
        running = torch._C._current_autograd_node()
        source = self._source_of(running) if self.backward else self.source
        if source is not None:
            meta["source"] = source
        if running is not None:
            meta["derivative"] = True  # the program's own, where it is not the one that is traced for it
        if self.backward:
            meta["backward"] = True
            self.made_by[node] = running
            if self.called_by is not None:
                meta["called_by"] = self.called_by
        return node

    def emit(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.fx.Node, Any]:
        """Add a functional call on graph nodes; returns the node and its spec."""
        named = {name: self._node_specs(value) for name, value in kwargs.items()} if kwargs else None
        spec = self.infer(func, self._node_specs(args), named)
        return self.create(func, args, kwargs, spec), spec

    def _call(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], spec: Any = None
    ) -> tuple[Any, Any, Any]:
        """Record one functional call on tensors: ``(node, the node's spec, eager's spec)``."""
        if spec is None:
            spec = self.infer(func, args, kwargs)
        if not _has_tensor(spec):
            return None, spec, spec
        nodes = self._nodes(args)
        node_kwargs = {name: self._nodes(value) for name, value in kwargs.items()} if kwargs else {}
        node_spec = spec
        if self._strays(args) or (kwargs and self._strays(list(kwargs.values()))):
            node_spec = self.infer(
                func, self._node_specs(nodes), {name: self._node_specs(v) for name, v in node_kwargs.items()}
            )
        if self.backward and draws_random(func, args, kwargs):
            return self._drawn_before(func, nodes, node_kwargs), node_spec, spec
        node = self.create(func, nodes, node_kwargs, node_spec)
        if op_info(func).random:
            self._draws.append(Draw(func, nodes, node_kwargs, node))
        return node, node_spec, spec

    def _drawn_before(self, func: OpOverload, nodes: Any, kwargs: Any) -> Any:
        """What the forward's draw gave that a checkpointed region makes a second time."""
        found = first_draw(self.graph, self._draws, func, nodes, kwargs) if runs_a_checkpoint_again() else None
        self.draws_again = True
        if found is None:
            raise Unsupported(f"{func} draws random numbers during the backward pass", where=self._current_source())
        return found.result

    def pure(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a functional overload and return its abstract results."""
        node, node_spec, spec = self._call(func, args, kwargs)
        if node is None:
            return to_torch(spec) if spec is not None else None
        return self.wrap(node, node_spec, spec)

    def wrap(self, node: torch.fx.Node, node_spec: Any, spec: Any) -> Any:
        """Abstract tensors for a node's results; elements of a tuple get ``getitem`` nodes."""
        if isinstance(spec, TensorSpec):
            tensor = abstract_from_spec(spec)
            if node_spec is not spec and not same_strides(node_spec, spec) and is_dense(spec):
                node, node_spec = self.relayout(node, node_spec, spec)
            storage = Storage(spec, node, base=tensor)
            self._attach(tensor, storage)
            return tensor
        if isinstance(spec, (list, tuple)):
            results = []
            for i, (element_node_spec, element) in enumerate(zip(node_spec, spec, strict=True)):
                if isinstance(element, TensorSpec):
                    results.append(self.wrap(self._item(node, i, element_node_spec), element_node_spec, element))
                else:
                    results.append(to_torch(element) if element is not None else None)
            return type(spec)(results)
        return to_torch(spec) if spec is not None else None

    def _item(self, node: torch.fx.Node, index: int, spec: Any) -> torch.fx.Node:
        import operator

        item = call_node(self.graph, operator.getitem, (node, index))
        item.meta["spec"] = spec
        if node in self.made_by:
            self.made_by[item] = self.made_by[node]
        for key in ("source", "backward", "called_by"):
            if key in node.meta:
                item.meta[key] = node.meta[key]
        return item

    def relayout(self, node: torch.fx.Node, spec: TensorSpec, wanted: TensorSpec) -> tuple[torch.fx.Node, Any]:
        """The same values in the strides of ``wanted``, which may have gaps: a scatter keeps them, a copy does not."""
        empty, _ = self.emit(
            aten.empty_strided.default,
            (list(wanted.shape), list(wanted.strides)),
            {"dtype": wanted.dtype, "device": wanted.device},
        )
        return self.emit(aten.copy.default if is_dense(wanted) else aten.slice_scatter.default, (empty, node), {})

    # -- views -------------------------------------------------------------------------------------------------

    def view(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], emit_as: Any = None) -> Any:
        """Record a view of ``args[0]``; ``emit_as`` is the functional overload that computes its value."""
        source = args[0]
        spec = self.infer(func, args, kwargs)
        if not isinstance(spec, TensorSpec):
            raise Unsupported(f"{func} makes several views at once", where=self._current_source())
        step_func = emit_as or func
        step_kwargs = {} if emit_as else kwargs
        step = ViewStep(step_func, args[1:], step_kwargs, state_of(source).spec, spec)
        return self.view_step(source, step, derived=emit_as is None and func is not aten.as_strided.default)

    def view_step(self, source: torch.Tensor, step: ViewStep, derived: bool = False) -> torch.Tensor:
        """A new traced tensor: ``step`` applied to ``source``; its result has been ``derived`` of its own arguments."""
        state = state_of(source)
        node = self.read(source)
        if step.changes_value:
            if derived and node.meta["spec"] is step.source:
                node = self.create(step.func, (node, *step.args), step.kwargs, step.result)
            else:
                node, _ = self.emit(step.func, (node, *step.args_on(node)), step.kwargs)
        result = abstract_from_spec(step.result)
        storage = state.storage
        storage.viewed |= step.func is not aten.detach.default
        result._aot_state = TensorState(  # type: ignore[attr-defined]
            storage, (*state.chain, step), node, storage.generation, step.result
        )
        return result

    # -- writes ------------------------------------------------------------------------------------------------

    def write_op(self, func: OpOverload, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record an in-place or ``out=`` overload by its functional twin."""
        if info.metadata_write:
            return self.metadata_op(func, info, args, kwargs)
        if info.twin is None and func.namespace != "aten":
            return write_custom(self, func, info, args, kwargs)
        if info.twin is None:
            raise Unsupported(f"{func} writes to its arguments in a way not known", where=self._current_source())
        targets = [bind(info, args, kwargs, name, position) for position, name in info.written]
        refuse_overlap(self, func, info, args, kwargs)
        dtype = bind(info, args, kwargs, "dtype", info.names.index("dtype")) if "dtype" in info.names else None
        if dtype is not None and any(isinstance(t, torch.Tensor) and state_of(t).spec.dtype != dtype for t in targets):
            raise Unsupported(f"{func} writes numbers of {dtype} where others are", where=self._current_source())
        if info.twin is aten.bernoulli.p:
            target = state_of(args[0]).spec
            order = permutation(target.shape, (target.strides,))[::-1]
            if order != sorted(order):
                # Numbers are drawn in the order of the memory, and this twin (as no other) makes a row-major result.
                self.write_op(func, info, (self.view(aten.permute.default, (args[0], order), {}), *args[1:]), kwargs)
                return args[0]
        if info.twin is aten.rrelu_with_noise_functional.default:
            # The twin keeps the order of the memory, where this operator makes a row-major result.
            row_major = self._call(aten.clone.default, args[:1], {"memory_format": torch.contiguous_format})
            args = (self.wrap(*row_major), *args[1:])
        if info.drop:
            kept = [i for i, name in enumerate(info.names) if name not in info.drop]
            twin_args = tuple(args[i] for i in kept if i < len(args))
            twin_kwargs = {name: value for name, value in kwargs.items() if name not in info.drop}
            if "dtype" in info.names and dtype is None and isinstance(args[0], torch.Tensor):
                wanted = state_of(targets[0]).spec.dtype  # in which eager's reductions add up
                twin_kwargs |= {} if wanted == state_of(args[0]).spec.dtype else {"dtype": wanted}
        else:
            twin_args, twin_kwargs = args, kwargs
        for position, name, value in info.defaults:
            if position == len(twin_args):
                twin_args = (*twin_args, value)
            elif position > len(twin_args) and name not in twin_kwargs:
                twin_kwargs = {**twin_kwargs, name: value}
        node, node_spec, spec = self._call(info.twin, twin_args, twin_kwargs)
        if isinstance(spec, TensorSpec):
            values, specs = [node], [node_spec]
        else:
            values, specs = [], []
            for i, s in enumerate(node_spec):
                item = self._item(node, i, s)
                nested = list(s) if isinstance(s, (list, tuple)) else None  # a list of tensors beside others
                values += [item] if nested is None else [self._item(item, j, t) for j, t in enumerate(nested)]
                specs += [s] if nested is None else nested
            spec = list(spec)
        # The operators on lists (_foreach_) write to every tensor of one.
        single = [t for target in targets for t in (target if isinstance(target, list) else [target])]
        lists = any(isinstance(target, list) for target in targets)
        fresh = len(values) - len(single)
        for target, value, value_spec in zip(single, values[fresh:], specs[fresh:], strict=True):
            if target is not None:
                if info.twin in _ABSOLUTE and state_of(target).spec.dtype.is_complex:
                    raise Unsupported("in-place abs of complex numbers", where=self._current_source())
                self.write(target, value, value_spec)
                if lists:  # of one tensor the dispatcher has counted the write before it came here
                    torch.autograd.graph.increment_version(target)
        results: list[Any] = []
        taken = 0
        for index in info.returns_written:
            if index is not None:
                results.append(targets[index])
            else:
                element = spec[taken] if isinstance(spec, list) else spec
                results.append(self.wrap(values[taken], specs[taken], element))
                taken += 1
        if not results:
            return None
        return results[0] if len(results) == 1 else tuple(results)

    def metadata_op(self, func: OpOverload, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record ``t_``, ``unsqueeze_`` and the like: the tensor object becomes another view of its storage."""
        target = args[0]
        state = state_of(target)
        storage = state.storage
        is_input = storage.input_index is not None and target is self.input_tensors[storage.input_index]
        if info.twin is None or op_info(info.twin).kind != "view" or is_input:
            raise Unsupported(f"{func} changes a tensor's metadata in place", where=self._current_source())
        spec = self.infer(info.twin, args, kwargs)
        same = spec.shape == state.spec.shape and spec.storage_offset == state.spec.storage_offset
        if not (same and same_strides(spec, state.spec)):
            if info.twin is aten.as_strided.default:
                raise Unsupported(f"{func} changes a tensor's metadata in place", where=self._current_source())
            self._note_reshaped(func, target)
            step = ViewStep(info.twin, args[1:], kwargs, state.spec, spec)
            state.node, _ = self.emit(step.func, (self.read(target), *step.args), kwargs)
            state.generation = storage.generation
            state.chain = (*state.chain, step)
            if storage.base is target:
                storage.base = None
        with torch._C._DisableTorchDispatch():
            torch.Tensor.as_strided_(
                target, to_torch_all(spec.shape), to_torch_all(spec.strides), to_torch(spec.storage_offset)
            )
        target.spec = state.spec = spec
        return target

    def _note_reshaped(self, func: OpOverload, target: torch.Tensor) -> None:
        """A tensor's shape changes in place.

        When memory was written, autograd makes the histories of its views anew: for ordinary tensors by strides; for
        these here, and for views in another type, by the calls that made the views, among which this change is not.

        Raises:
            Unsupported: such a history is needed.
        """
        storage = state_of(target).storage
        is_view = target._is_view()
        before = storage.reshaped
        others = before is not None and before is not target if is_view else storage.viewed
        if others and target.requires_grad:
            raise Unsupported(f"{func} changes the shape of what has views in place", where=self._current_source())
        if others or is_view:
            storage.reshaped = target

    def write(self, target: torch.Tensor, node: torch.fx.Node, spec: TensorSpec) -> None:
        """``target`` and everything that shares its storage now hold the value ``node``.

        Raises:
            Unsupported: the value's shape or device differs, it cannot be cast, the view cannot be written through, or
                autograd would lose a change of its shape.
        """
        state = state_of(target)
        storage = state.storage
        own = state.spec
        if storage.sealed:
            text = "an in-place write to an inference tensor outside of inference mode"
            raise Unsupported(text, where=self._current_source())
        if spec.device != own.device:
            raise Unsupported(f"a write of what is on {spec.device} into {own.device}", where=self._current_source())
        if tuple(spec.shape) != tuple(own.shape):
            raise Unsupported(
                f"a write of shape {tuple(spec.shape)} into a tensor of shape {tuple(own.shape)}",
                where=self._current_source(),
            )
        if spec.dtype != own.dtype:
            if not torch.can_cast(spec.dtype, own.dtype):
                raise Unsupported(f"a write of {spec.dtype} into {own.dtype}", where=self._current_source())
            node, spec = self.emit(aten._to_copy.default, (node,), {"dtype": own.dtype})
        differentiable = own.dtype.is_floating_point or own.dtype.is_complex
        if storage.reshaped is not None and differentiable and any(desc.requires_grad for desc in self.inputs):
            raise Unsupported("a write to views of which one was reshaped in place", where=self._current_source())
        if any(may_overlap(spec.shape, spec.strides) for spec in (own, storage.spec)):
            raise Unsupported("an in-place write to a tensor whose elements share memory")
        value, value_spec = node, spec
        # The source of each step before the write, so that partial views can be pushed back into it.
        steps = [step for step in state.chain if step.changes_value]
        sources = [storage.node]
        for step in steps[:-1]:
            before, _ = self.emit(step.func, (sources[-1], *step.args_on(sources[-1])), step.kwargs)
            sources.append(before)
        for step, before in zip(reversed(steps), reversed(sources), strict=True) if steps else ():
            value, value_spec = undo(step, before, value, value_spec, self.emit)
        if not same_strides(value_spec, storage.spec) and is_dense(storage.spec):
            value, value_spec = self.relayout(value, value_spec, storage.spec)
        storage.node = value
        storage.generation += 1
        storage.constant = None
        if not steps:
            state.node = value
            state.generation = storage.generation
        elif same_strides(spec, own):
            state.node = node
            state.generation = storage.generation


def to_torch_all(sizes: Sequence[Any]) -> list[Any]:
    """Sizes as the dispatcher takes them."""
    return [to_torch(size) for size in sizes]


def _has_tensor(spec: Any) -> bool:
    if isinstance(spec, TensorSpec):
        return True
    return isinstance(spec, (list, tuple)) and any(_has_tensor(s) for s in spec)
