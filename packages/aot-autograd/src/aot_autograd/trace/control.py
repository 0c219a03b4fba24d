"""Branches and loops: their bodies are traced into envelopes of their own, and the call becomes one operator.

What autograd needs of a body is its derivative, which is traced beside it: a body that runs the first once more, on the
values that it was given, and autograd behind it. So a branch saves its operands, and a scan besides what each step was
given of the carried values. A scan's derivative is a scan in the other direction: it carries the gradients of the
carried values and the sums of those of what all steps share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch.utils._python_dispatch import _disable_current_modes

import aot_autograd
from aot_autograd.autocast import differentiate, differentiating
from aot_autograd.trace.tracer import Tracer, state_of
from aot_autograd.trace.views import same_strides
from prims.control import ControlFlow, Form, control_operator
from prims.errors import Unsupported
from prims.ir import Envelope, InputDesc, OutputDesc, SymbolTable
from prims.ir.versions import CURRENT
from prims.records import record
from prims.spec import SymbolContext, TensorSpec, abstract_from_spec, to_torch
from prims.spec.expr import symbol

__all__ = ["Interpret", "call_control", "operator_of"]

#: ``interpret(graph module, values, tracer)`` runs a torch-dialect graph under a tracer.
Interpret = Callable[[torch.fx.GraphModule, list[Any], Tracer], Any]
#: A body: what it computes of abstract values under a tracer.
_Run = Callable[[Tracer, list[Any]], Sequence[torch.Tensor]]


def call_control(tracer: Tracer, flow: ControlFlow, args: Sequence[Any], interpret: Interpret) -> tuple[Any, ...]:
    """The abstract results of a branch or loop, recorded as one operator.

    Raises:
        Unsupported: a body writes to what it is given, draws random numbers, or has a derivative that cannot be traced.
    """
    call = _Call(tracer, flow, interpret, args)
    if not torch.is_grad_enabled() or not any(isinstance(x, torch.Tensor) and x.requires_grad for x in args):
        bodies = [call.body(k) for k in range(len(flow.bodies))]
        results: list[Any] = [[None], call.rows] if flow.form.kind == "while_loop" else [call.rows] * len(bodies)
        return call.operator(flow.form, bodies, call.specs, results).call(tracer, args)
    if flow.form.kind == "while_loop":
        raise Unsupported("the derivative of a while_loop, whose number of steps is not known", where=tracer.source)
    return tuple(_Differentiable.apply(call, *args))


@record(eq=False)
class _Operator:
    """An operator with the sizes that it takes beside the bodies' operands."""

    form: Form
    overload: Any
    sizes: tuple[Any, ...]

    def call(self, tracer: Tracer, args: Sequence[Any]) -> tuple[Any, ...]:
        """Record a call."""
        given = list(args)
        for at in range(self.form.carried + self.form.mapped):
            given[at] = given[at].contiguous()
        found = tracer.pure(self.overload, (*map(tracer.plain, given), *self.sizes), {})
        return (found,) if isinstance(found, torch.Tensor) else tuple(found)


class _BodyTracer(Tracer):
    """Traces a body, in whose graph a constant of one element is made rather than taken from outside."""

    def __init__(self, seeded: bool, context: SymbolContext | None) -> None:
        super().__init__(seeded, context)
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def constant(self, real: torch.Tensor) -> torch.Tensor:
        if real.numel() != 1 or type(real) is not torch.Tensor or real.requires_grad or real.is_complex():
            return super().constant(real)
        found = self._made.get(id(real))
        if found is None:
            with _disable_current_modes():
                value = real.item()
            settings = {"dtype": real.dtype, "device": real.device}
            made = self.pure(torch.ops.aten.full.default, (list(real.shape), value), settings)
            found = self._made[id(real)] = (made, real)
        return found[0]


class _Call:
    """One call of a branch or loop under a tracer.

    Attributes:
        specs: what its bodies take: metadata of tensors, and sizes.
        wanted: which of those may need a gradient: what the program's need one of, and all carried values.
        rows: what its bodies give: of a result that is stacked, a slice.
    """

    def __init__(self, tracer: Tracer, flow: ControlFlow, interpret: Interpret, args: Sequence[Any]) -> None:
        self.tracer = tracer
        self.flow = flow
        self.form = form = flow.form
        self.interpret = interpret
        self.specs: list[Any] = []
        self.wanted: list[bool] = []
        for at, value in enumerate(args[1:] if form.kind == "cond" else args):
            spec = tracer.plain(value)
            needs = False
            if isinstance(spec, torch.Tensor):
                needs = value.requires_grad or (at < form.carried and _is_differentiable(spec))
                spec = state_of(spec).spec
                whole = at >= form.carried + form.mapped
                shape = spec.shape if whole or at < form.carried else spec.shape[1:]
                spec = TensorSpec(shape, spec.dtype, spec.device, spec.strides if whole else None)
            self.specs.append(spec)
            self.wanted.append(needs)
        stacked = form.carried if form.kind == "scan" else len(flow.results)
        self.rows = [*flow.results[:stacked], *(_dense(s, s.shape[1:]) for s in flow.results[stacked:])]

    def body(self, index: int) -> _Run:
        """One of the bodies."""
        body = self.flow.bodies[index]

        def run(tracer: Tracer, values: list[Any]) -> Sequence[torch.Tensor]:
            return tuple(self.interpret(body.graph, [values[at] for at in body.reads], tracer))

        return run

    def derivative(self, index: int) -> Callable[[Tracer, list[Any], Mapping[int, Any]], list[torch.Tensor]]:
        """The derivative of a body, of what it is given and the gradients of its results by their positions."""
        body = self.body(index)

        def run(tracer: Tracer, values: list[Any], tangents: Mapping[int, Any]) -> list[torch.Tensor]:
            leaves = [x.requires_grad_() for x, wanted in zip(values, self.wanted, strict=True) if wanted]
            with torch.enable_grad():
                results = body(tracer, values)
            through = [k for k in tangents if results[k].requires_grad]
            found: Sequence[Any] = [None] * len(leaves)
            if through:
                tracer.backward = True
                with differentiating():
                    found = differentiate([results[k] for k in through], leaves, [tangents[k] for k in through])
                tracer.backward = False
            return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]

        return run

    def operator(
        self, form: Form, bodies: Sequence[_Run], specs: Sequence[Any], results: Sequence[Sequence[Any]]
    ) -> _Operator:
        """As :func:`operator_of`, for this call."""
        return operator_of(self.tracer, self.flow.name, form, bodies, specs, results)


def operator_of(
    tracer: Tracer, name: str, form: Form, bodies: Sequence[_Run], specs: Sequence[Any],
    results: Sequence[Sequence[Any]],
) -> _Operator:  # fmt: skip
    """The operator made of bodies.

    Args:
        name: what the program called.
        specs: what the bodies take: metadata of tensors, and sizes.
        results: for each, the metadata that its results are to have (None: their own).

    Raises:
        Unsupported: a body writes to what it is given, draws random numbers, or makes a constant tensor.
    """
    made = [_trace(tracer, name, body, specs, wanted) for body, wanted in zip(bodies, results, strict=True)]
    sizes = tuple(desc.spec for desc in made[0].inputs[len(specs) :])
    return _Operator(form, control_operator(form, made), sizes)


def _trace(
    around: Tracer, name: str, body: _Run, specs: Sequence[Any], wanted: Sequence[TensorSpec | None]
) -> Envelope:
    """The envelope of a body that is called under a tracer."""
    tracer = _BodyTracer(around.seeded, around.context)
    tracer.source = around.source
    values: list[Any] = []
    for k, spec in enumerate(specs):
        tensor = abstract_from_spec(spec) if isinstance(spec, TensorSpec) else None
        tracer.add_input(InputDesc(f"a{k}", "size" if tensor is None else "input", spec), tensor)
        values.append(to_torch(spec) if tensor is None else tensor)
    enabled = torch.is_grad_enabled()
    nodes: list[torch.fx.Node] = []
    try:
        with _disable_current_modes(), tracer, torch.no_grad():
            for value, spec in zip(body(tracer, values), wanted, strict=True):
                nodes.append(_in_own_memory(tracer, value, spec, nodes))
    finally:
        torch.set_grad_enabled(enabled)
    _check(tracer, len(specs), name, tracer.source or around.source)
    for free in (e.name for e in SymbolTable.from_inputs(tracer.inputs, tracer.context) if e.binding is None):
        # A symbol that stands only inside larger expressions.
        tracer.add_input(InputDesc(free, "size", tracer.context.make(symbol(free))), None)  # type: ignore[union-attr]
    tracer.graph.output(tuple(nodes))
    for node in tracer.graph.nodes:
        node.meta.pop("backward", None)
    tracer.made_by.clear()
    return Envelope(
        "aten", CURRENT["aten"], "aot_autograd", aot_autograd.__version__, tracer.graph, tuple(tracer.inputs),
        tuple(OutputDesc("output", node.meta["spec"]) for node in nodes),
        SymbolTable.from_inputs(tracer.inputs, tracer.context), default_dtype=torch.get_default_dtype(),
    )  # fmt: skip


def _check(tracer: Tracer, count: int, name: str, where: Any) -> None:
    if len(tracer.inputs) > count:
        what = "draws random numbers" if tracer.inputs[count].kind == "rng_seed" else "makes a constant tensor"
        raise Unsupported(f"a function given to {name} {what}", where=where)
    for tensor in tracer.input_tensors:
        if tensor is not None and state_of(tensor).storage.generation:
            raise Unsupported(f"a function given to {name} writes to what it is given", where=where)


def _is_differentiable(value: torch.Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _dense(spec: TensorSpec, shape: Sequence[Any] | None = None) -> TensorSpec:
    return TensorSpec(spec.shape if shape is None else shape, spec.dtype, spec.device)


def _in_own_memory(
    tracer: Tracer, value: Any, wanted: TensorSpec | None, others: Sequence[torch.fx.Node]
) -> torch.fx.Node:
    """The node of a body's result, which shares no memory with its operands or another result."""
    value = tracer.plain(value)
    node, state = tracer.read(value), state_of(value)
    spec = node.meta["spec"]
    if wanted is not None and not same_strides(spec, wanted):
        return tracer.relayout(node, spec, wanted)[0]
    if state.storage.input_index is not None or state.chain or node in others:
        return tracer.emit(torch.ops.aten.clone.default, (node,), {})[0]
    return node


class _Differentiable(torch.autograd.Function):
    """A branch or a scan, and its derivative."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *args: Any) -> Any:
        tracer, count = call.tracer, len(call.rows)
        made, operator = (_branch if call.form.kind == "cond" else _scan)(call)
        results = made.call(tracer, args)
        ctx.call, ctx.operator, ctx.steps = call, operator, len(results) - count
        ctx.places = [at for at, x in enumerate(args) if isinstance(x, torch.Tensor)]
        ctx.given = [None if isinstance(x, torch.Tensor) else x for x in args]
        ctx.save_for_backward(*results[count:], *(args[at] for at in ctx.places))
        ctx.mark_non_differentiable(*[x for x in results[:count] if not _is_differentiable(x)])
        return results[:count]

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        call, form = ctx.call, ctx.call.form
        args = list(ctx.given)
        for at, value in zip(ctx.places, ctx.saved_tensors[ctx.steps :], strict=True):
            args[at] = value
        first = 1 if form.kind == "cond" else 0
        floating = [k for k, row in enumerate(call.rows) if row.dtype.is_floating_point or row.dtype.is_complex]
        coming = [tangents[k] for k in floating]
        if form.kind == "cond":
            given = [*args, *coming]
        else:
            c, m = form.carried, form.carried + form.mapped
            sums = [torch.zeros_like(x) for x, w in zip(args[m:], call.wanted[m:], strict=True) if w]
            last = sum(k < c for k in floating)
            given = [
                *coming[:last], *(x.contiguous() for x in sums), *ctx.saved_tensors[: ctx.steps], *args[c:m],
                *coming[last:], *args[m:],
            ]  # fmt: skip
        found = list(ctx.operator.call(call.tracer, given))
        if form.kind == "scan":  # the gradients of slices come last, those of what all steps share before them
            c, m = form.carried, form.carried + form.mapped
            stacked = found[len(found) - sum(call.wanted[c:m]) :]
            rest = found[: len(found) - len(stacked)]
            found = [*rest[: sum(call.wanted[:c])], *stacked, *rest[sum(call.wanted[:c]) :]]
        gradients = iter(found)
        return (*([None] * (1 + first)), *(next(gradients) if wanted else None for wanted in call.wanted))


def _branch(call: _Call) -> tuple[_Operator, _Operator]:
    """A ``cond``, and its derivative ``(predicate, *operands, *tangents) -> gradients``."""
    count = len(call.specs)
    floating = [k for k, row in enumerate(call.rows) if row.dtype.is_floating_point or row.dtype.is_complex]

    def of(index: int) -> _Run:
        derivative = call.derivative(index)
        return lambda tracer, values: derivative(
            tracer, values[:count], dict(zip(floating, values[count:], strict=True))
        )

    forward = call.operator(call.form, [call.body(0), call.body(1)], call.specs, [call.rows] * 2)
    specs = [*call.specs, *(_dense(call.rows[k]) for k in floating)]
    gradients = [_dense(spec) for spec, wanted in zip(call.specs, call.wanted, strict=True) if wanted]
    return forward, call.operator(call.form, [of(0), of(1)], specs, [gradients] * 2)


def _scan(call: _Call) -> tuple[_Operator, _Operator]:
    """A ``scan`` that also stacks the carried values which each step was given, and its derivative, a scan too.

    The derivative carries gradients of the carried values and sums of gradients of the other operands; it goes through
    the carried values, the slices and the gradients of the stacked results.
    """
    form, specs, rows = call.form, call.specs, call.rows
    c, m = form.carried, form.carried + form.mapped
    floating = [k for k, row in enumerate(rows) if row.dtype.is_floating_point or row.dtype.is_complex]
    carried = [k for k in floating if k < c]
    shared = [k for k in range(m, len(specs)) if call.wanted[k]]
    body, derivative = call.body(0), call.derivative(0)

    def step(tracer: Tracer, values: list[Any]) -> Sequence[torch.Tensor]:
        return (*body(tracer, values), *values[:c])

    def back(tracer: Tracer, values: list[Any]) -> Sequence[torch.Tensor]:
        it = iter(values)
        coming = {k: next(it) for k in carried}
        sums = [next(it) for _ in shared]
        given = [next(it) for _ in range(m)]
        coming |= {k: next(it) for k in floating if k >= c}
        given.extend(it)
        found = iter(derivative(tracer, given, coming))
        gradients = {k: next(found) for k, wanted in enumerate(call.wanted) if wanted}
        with torch.no_grad():
            added = [total + gradients[k] for total, k in zip(sums, shared, strict=True)]
        return (
            *(gradients[k] for k in carried), *added, *(gradients[k] for k in range(c, m) if call.wanted[k])
        )  # fmt: skip

    forward = call.operator(form, [step], specs, [[*rows, *specs[:c]]])
    summed = [_dense(specs[k]) for k in shared]
    taken = [*(specs[k] for k in carried), *summed, *specs[:m], *(rows[k] for k in floating if k >= c), *specs[m:]]
    given = [*(specs[k] for k in carried), *summed, *(specs[k] for k in range(c, m) if call.wanted[k])]
    mapped = m + sum(k >= c for k in floating)
    backward = Form("scan", len(carried) + len(shared), mapped, not form.reverse)
    return forward, call.operator(backward, [back], taken, [given])
