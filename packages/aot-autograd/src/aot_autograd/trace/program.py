"""Running a torch-dialect GraphModule under the tracer, and what comes out of it.

The module's nodes are executed one by one on abstract tensors; their source locations go into the ATen nodes. The
module's own parameters and buffers, if it has any, become inputs after the user's: while the program runs, the
abstract tensors stand in their places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
import torch.nn.functional as F

from aot_autograd.trace.attention import attention
from aot_autograd.trace.checks import one_hot
from aot_autograd.trace.control import call_control
from aot_autograd.trace.scored import call_attention
from aot_autograd.trace.special import READERS_OF_BITS
from aot_autograd.trace.tracer import Tracer, state_of
from prims.control import ControlFlow, ScoredAttention
from prims.errors import Unsupported
from prims.ir import Envelope, InputDesc
from prims.records import record
from prims.settings import kept_settings
from prims.spec import (
    OF_PLAIN_TENSORS,
    SymbolContext,
    SymbolicCalls,
    TensorSpec,
    abstract_from_spec,
    plain_saving,
    spec_of,
    to_torch,
)
from prims.spec.unbacked import making_symbols, with_symbols
from prims.transforms import Vmap

if TYPE_CHECKING:
    from aot_autograd.trace.losses import LinearLoss
    from aot_autograd.trace.written import Written

__all__ = ["INPUT_NODE", "Program", "trace_forward"]

#: What is called instead of a function that the program names.
_STAND_INS: dict[Any, Callable[..., Any]] = {F.one_hot: one_hot, **READERS_OF_BITS, **OF_PLAIN_TENSORS}
#: And where results need not be rounded as eager's.
_FASTER: dict[Any, Callable[..., Any]] = {**_STAND_INS, F.scaled_dot_product_attention: attention}


#: What makes tensors of Python's numbers: of a symbolic one PyTorch takes the lower 32 bits.
_FROM_DATA = frozenset({torch.tensor, torch.as_tensor, torch.asarray, "new_tensor"})


@record(frozen=False)
class Program:
    """A traced forward program.

    Attributes:
        tracer: holds the graph and the inputs.
        context: the symbols' owner, or None when all sizes are static.
        arguments: number of inputs that the caller passes; lifted state and constants follow.
        lifted: where the module's own tensors are read at each call: ``(dictionary, name)`` by input index.
        leaves: by input index, the abstract tensor that autograd differentiates to (the input itself for a leaf).
        grad_fns: by input index, the autograd node each input started with.
        result: the program's result: the graph output's structure with abstract tensors in it.
        grad_enabled: the ambient gradient mode.
        inference: the ambient inference mode.
    """

    tracer: Tracer
    context: SymbolContext | None
    arguments: int
    lifted: dict[int, tuple[dict[str, Any], str]] = field(default_factory=dict)
    leaves: dict[int, torch.Tensor] = field(default_factory=dict)
    grad_fns: dict[int, Any] = field(default_factory=dict)
    result: Any = None
    grad_enabled: bool = True
    inference: bool = False


class _Identity(torch.autograd.Function):
    """Gives an input a history, so that it is no leaf, without recording anything."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        return abstract_from_spec(spec_of(leaf))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient


#: The class of autograd node that stands before an input that is no leaf.
INPUT_NODE: type = _Identity._backward_cls  # type: ignore[attr-defined]


def trace_forward(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], seeded: bool = False,
    written: Mapping[torch.fx.Node, Written | LinearLoss] = MappingProxyType({}), fast: bool = True,
) -> Program:  # fmt: skip
    """Trace ``gm`` on abstract versions of its inputs.

    Args:
        gm: a torch-dialect module. ``gm.meta["envelope"]`` gives the inputs' (possibly symbolic) specs if present.
        example_inputs: tensors and numbers, one per placeholder.
        seeded: random operators become functions of a seed input.
        written: what is traced in a better form (attentions, losses of logits), by the last node of each.
        fast: results may be rounded otherwise than eager's.

    Raises:
        Unsupported: something in the program cannot be traced.
        Exception: whatever the program itself raises.
    """
    envelope: Envelope | None = gm.meta.get("envelope")
    context = envelope.symbols.context if envelope is not None else None
    tracer = Tracer(seeded, context)
    tracer.fast = fast
    modes = {"grad_enabled": torch.is_grad_enabled(), "inference": torch.is_inference_mode_enabled()}
    program = Program(tracer, context, len(example_inputs), **modes)
    grad_mode = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(grad_mode):  # an input that is written counts its versions
        values = [
            _add_argument(program, index, example, envelope.inputs[index] if envelope is not None else None)
            for index, example in enumerate(example_inputs)
        ]
    calls = SymbolicCalls() if context is not None and context.symbols else nullcontext()
    with _lifted_state(gm, program):
        try:
            with (
                making_symbols(with_symbols(context)), torch.inference_mode(False), torch.set_grad_enabled(grad_mode),
                kept_settings(), calls, plain_saving(), tracer,
            ):  # fmt: skip
                program.result = _interpret(gm, values, tracer, written)
        finally:
            torch.set_grad_enabled(grad_mode)
    return program


def _add_argument(program: Program, index: int, example: Any, desc: InputDesc | None) -> Any:
    """Add one of the caller's inputs; returns the value that the program sees."""
    if not isinstance(example, torch.Tensor):
        spec = desc.spec if desc is not None else example
        if not isinstance(example, (int, float, bool)) and example is not None:
            raise Unsupported(f"input {index} is a {type(example).__name__}")
        name = desc.name if desc is not None else f"size_{index}"
        program.tracer.add_input(InputDesc(name, "size", spec, source=desc.source if desc else None), None)
        return to_torch(spec)
    if type(example) not in _PLAIN_TENSORS or example.layout is not torch.strided:
        raise Unsupported(f"input {index} is a {type(example).__name__} of layout {example.layout}")
    if example._is_zerotensor():
        raise Unsupported(f"input {index} has no memory: it stands for zeros")
    if example.is_conj() or example.is_neg():
        raise Unsupported(f"input {index} is a lazily conjugated or negated view")
    needs_grad = example.requires_grad
    if desc is not None and isinstance(desc.spec, TensorSpec):
        made = InputDesc(desc.name, desc.kind, desc.spec, needs_grad, desc.source)
    else:
        kind = "parameter" if isinstance(example, torch.nn.Parameter) else "input"
        made = InputDesc(f"arg_{index}", kind, spec_of(example), needs_grad)
    return _add_tensor(program, made, example)


_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def _add_tensor(program: Program, desc: InputDesc, example: torch.Tensor) -> torch.Tensor:
    assert isinstance(desc.spec, TensorSpec)
    index = len(program.tracer.inputs)
    leaf = abstract_from_spec(desc.spec, desc.requires_grad)
    tensor: torch.Tensor = leaf
    if desc.requires_grad and not example.is_leaf:
        with torch.enable_grad():
            tensor = _Identity.apply(leaf)
    program.tracer.add_input(desc, tensor)
    if example.is_inference() and not program.inference:
        state_of(tensor).storage.sealed = True
    if desc.requires_grad:
        program.leaves[index] = leaf
    program.grad_fns[index] = tensor.grad_fn
    return tensor


@contextmanager
def _lifted_state(gm: torch.fx.GraphModule, program: Program) -> Iterator[None]:
    """The module's parameters and buffers as inputs, and abstract tensors in their places meanwhile."""
    seen: dict[int, torch.Tensor] = {}
    places: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    try:
        for prefix, module in gm.named_modules():
            for kind, store in (("parameter", module._parameters), ("buffer", module._buffers)):
                for name, real in list(store.items()):
                    if real is None:
                        continue
                    if id(real) not in seen:
                        path = f"{prefix}.{name}" if prefix else name
                        index = len(program.tracer.inputs)
                        desc = InputDesc(
                            "state_" + path.replace(".", "_"), kind, spec_of(real), real.requires_grad, path
                        )
                        seen[id(real)] = _add_tensor(program, desc, real)
                        program.lifted[index] = (store, name)
                    places.append((store, name, real))
                    store[name] = seen[id(real)]  # type: ignore[assignment]
        yield
    finally:
        for store, name, real in places:
            store[name] = real


def _interpret(
    gm: torch.fx.GraphModule, values: list[Any], tracer: Tracer, written: Mapping[torch.fx.Node, Written | LinearLoss]
) -> Any:
    env: dict[torch.fx.Node, Any] = {}
    load = env.__getitem__ if tracer.context is None else lambda node: _as_known(env[node])
    feed = iter(values)
    map_arg = torch.fx.node.map_arg
    last_source: Any = None
    waiting = {node for better in written.values() for node in better.nodes}
    for node in gm.graph.nodes:
        op = node.op
        if op == "placeholder":
            env[node] = next(feed)
            continue
        if op == "output":
            return map_arg(node.args[0], load)
        if op == "get_attr":
            env[node] = _attribute(gm, node.target)
            continue
        better = written.get(node)
        if node in waiting and better is None:
            continue
        source = node.meta.get("source")
        if source is not last_source:
            tracer.enter_source(source)
            last_source = source
        fused = None if better is None else better.call(load, tracer)
        if fused is not None:
            env[node] = fused
            continue
        for step in (node,) if better is None else better.nodes:
            args, kwargs = map_arg(step.args, load), map_arg(step.kwargs, load) if step.kwargs else {}
            if isinstance(step.target, ControlFlow):
                env[step] = call_control(tracer, step.target, args, _body)
            elif isinstance(step.target, ScoredAttention):
                env[step] = call_attention(tracer, step.target, args, _body)
            elif isinstance(step.target, Vmap):
                env[step] = _batch(step.target, args, tracer)
            else:
                env[step] = _run(gm, step, args, kwargs, _FASTER if tracer.fast else _STAND_INS)
    raise Unsupported("the graph has no output")


def _body(gm: torch.fx.GraphModule, values: list[Any], tracer: Tracer) -> Any:
    return _interpret(gm, values, tracer, {})


def _batch(target: Vmap, args: Sequence[Any], tracer: Tracer) -> Any:
    return target.run(lambda *values: _body(target.graph, list(values), tracer), args[0], args[1:])


def _run(
    gm: torch.fx.GraphModule, node: torch.fx.Node, args: Any, kwargs: Any, stand_ins: Mapping[Any, Callable[..., Any]]
) -> Any:
    if node.target in _FROM_DATA:
        args, kwargs = _plain_numbers((args, kwargs))
    if node.op == "call_function":
        return stand_ins.get(node.target, node.target)(*args, **kwargs)  # type: ignore[operator]
    if node.op == "call_method":
        if node.target in READERS_OF_BITS:
            return READERS_OF_BITS[node.target](*args, **kwargs)
        return getattr(args[0], node.target)(*args[1:], **kwargs)  # type: ignore[arg-type]
    return gm.get_submodule(node.target)(*args, **kwargs)  # type: ignore[arg-type]


def _as_known(value: Any) -> Any:
    """A symbolic int that guards have settled as that int: of such ones, PyTorch's class divides no floats."""
    known = value.node.maybe_as_int() if type(value) is torch.SymInt else None
    return value if known is None else known


def _plain_numbers(value: Any) -> Any:
    if isinstance(value, torch.SymInt):
        return int(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_plain_numbers(one) for one in value)
    return {key: _plain_numbers(one) for key, one in value.items()} if isinstance(value, dict) else value


def _attribute(gm: torch.nn.Module, path: str) -> Any:
    value: Any = gm
    for part in path.split("."):
        value = getattr(value, part)
    return value
