"""The callable for a graph through which gradients flow: an ``autograd.Function`` around two compiled graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from aot_autograd.partition.split import Partition
from aot_autograd.runtime.emit import Source, emit_mutations, emit_results, emit_symbols, symbols_of_results
from aot_autograd.runtime.inference import emit_arguments, emit_overlap_check
from aot_autograd.runtime.lazy import LazyBackward
from aot_autograd.trace.outcome import Joint
from prims.ir.symbols import symbols_in
from prims.report import Report

__all__ = ["build_training"]


def build_training(
    joint: Joint,
    partition: Partition,
    compiled: Callable[..., Sequence[Any]],
    backward: LazyBackward,
    eager: Callable[..., Any],
    report: Report | None,
) -> Callable[..., Any]:
    """Wrap a compiled forward graph and a backward that is compiled at its first use.

    Saved tensors go through ``save_for_backward``, so that eager's version checks and its error for a graph that was
    freed hold. Outputs that need no gradient are marked so; an output without a gradient gives None, not zeros.
    """
    outcome = joint.outcome
    function = _make_function(joint, partition, compiled, backward)
    source = Source()
    source.globals["apply"] = function.apply
    emit_overlap_check(source, outcome, eager, report)
    emit_arguments(source, outcome)
    emit_symbols(source, outcome, symbols_of_results(outcome))
    returned = _returned(joint)
    outputs = [f"o{i}" for i in range(len(outcome.nodes))]
    if len(returned) == 1:
        source.line(f"{outputs[returned[0]]} = apply(*args)")
    else:
        source.line(f"{', '.join(outputs[i] for i in returned)} = apply(*args)")
    inputs = outcome.program.tracer.inputs
    tracked = [(f"args[{i}]", outputs[o], inputs[i].spec) for i, o, through in outcome.mutations if through]
    emit_mutations(source, tracked, no_grad=False, differentiable=True)
    source.line(f"return {emit_results(source, outcome, outputs)}")
    return source.function("run(*args)")


def _returned(joint: Joint) -> list[int]:
    """The graph outputs that the autograd function returns: all but the writes that autograd does not see."""
    hidden = {output for _, output, through in joint.outcome.mutations if not through}
    return [i for i in range(len(joint.outcome.nodes)) if i not in hidden]


def _make_function(
    joint: Joint, partition: Partition, compiled: Callable[..., Sequence[Any]], backward: LazyBackward
) -> type[torch.autograd.Function]:
    forward = _forward_source(joint, partition, compiled).function("forward(ctx, *args)")
    back = _backward_source(joint, partition, backward).function("backward(ctx, *tangents)")
    return type(
        "CompiledFunction",
        (torch.autograd.Function,),
        {"forward": staticmethod(forward), "backward": staticmethod(back)},
    )


def _forward_source(joint: Joint, partition: Partition, compiled: Callable[..., Sequence[Any]]) -> Source:
    outcome = joint.outcome
    inputs = outcome.program.tracer.inputs
    source = Source()
    source.globals["compiled"] = compiled
    names: set[str] = set()
    for symbol in partition.sizes:
        names |= symbols_in(symbol)
    symbolic = _symbolic_strides(joint)
    if symbolic:
        for spec in joint.tangent_specs:
            for stride in spec.strides:
                names |= symbols_in(stride)
    emit_symbols(source, outcome, names)
    outputs = [f"o{i}" for i in range(len(partition.forward.outputs))]
    source.line(f"{', '.join(outputs)}, = compiled(*args)")
    emit_mutations(
        source,
        [(f"args[{i}]", outputs[o], inputs[i].spec) for i, o, through in outcome.mutations if not through],
        no_grad=any(inputs[i].requires_grad for i, _, through in outcome.mutations if not through),
    )
    returned = _returned(joint)
    for i in returned:
        # In eager a result is nobody's view; a view made inside a Function could not be written in place.
        source.line(f"if {outputs[i]}._is_view(): {outputs[i]} = {outputs[i]}.detach()")
    saved = [f"args[{at}]" if kind == "input" else outputs[at] for kind, at in partition.saved]
    source.line(f"ctx.save_for_backward({', '.join(saved)})")
    if partition.sizes:
        source.line(f"ctx.sizes = {source.sizes(partition.sizes)}")
    if symbolic:
        strides = ", ".join(source.sizes(spec.strides) for spec in joint.tangent_specs)
        source.line(f"ctx.tangent_strides = ({strides},)")
    plain = [outputs[i] for i in returned if i not in joint.tangents]
    if plain:
        source.line(f"ctx.mark_non_differentiable({', '.join(plain)})")
    source.line("ctx.set_materialize_grads(False)")
    texts = [outputs[i] for i in returned]
    source.line(f"return {texts[0] if len(texts) == 1 else ', '.join(texts)}")
    return source


def _symbolic_strides(joint: Joint) -> bool:
    return any(type(stride) is not int for spec in joint.tangent_specs for stride in spec.strides)


def _backward_source(joint: Joint, partition: Partition, backward: LazyBackward) -> Source:
    source = Source()
    returned = _returned(joint)
    source.globals.update(run_backward=backward, aligned=aligned, grad_enabled=torch.is_grad_enabled, once=_once)
    names = []
    symbolic = _symbolic_strides(joint)
    for k, (output, spec) in enumerate(zip(joint.tangents, joint.tangent_specs, strict=True)):
        wanted = f"ctx.tangent_strides[{k}]" if symbolic else repr(tuple(spec.strides))
        name = f"t{k}"
        names.append(name)
        source.line(f"{name} = tangents[{returned.index(output)}]")
        source.line(f"if {name} is not None and {name}.stride() != {wanted}: {name} = aligned({name}, {wanted})")
    sizes = "*ctx.sizes, " if partition.sizes else ""
    source.line(f"box = [*ctx.saved_tensors, {sizes}{', '.join(names)}]")
    # Unless the graph is retained, the box is now the only owner of what was saved.
    source.line("ctx.maybe_clear_saved_tensors()")
    source.line("results = run_backward(box)")
    total = sum(desc.kind != "tangent" for desc in joint.envelope.inputs)
    at = {index: position for position, index in enumerate(partition.gradients)}
    texts = [f"results[{at[i]}]" if i in at else "None" for i in range(total)]
    source.line(f"if grad_enabled(): results = once(results, {', '.join(names)})")
    source.line(f"return {', '.join(texts)}")
    return source


def aligned(tangent: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The gradient in the layout for which the backward graph was compiled."""
    if tangent.layout is not torch.strided:
        tangent = tangent.to_dense()
    if all(
        size <= 1 or have == want for size, have, want in zip(tangent.shape, tangent.stride(), strides, strict=True)
    ):
        return tangent
    with torch.no_grad():
        made = torch.empty_strided(tangent.shape, strides, dtype=tangent.dtype, device=tangent.device)
        return made.copy_(tangent)


class _NoSecondDerivative(torch.autograd.Function):
    """Passes gradients on, and explains itself when they are to be differentiated again."""

    @staticmethod
    def forward(ctx: Any, count: int, *values: torch.Tensor) -> Any:
        return tuple(value.view_as(value) for value in values[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            "the gradient of a compiled graph's gradient was asked for, and the compiled backward pass has none. "
            "Run the part of the program that needs second derivatives eagerly (compile_api.disable)."
        )


def _once(results: Sequence[Any], *tangents: Any) -> Sequence[Any]:
    given = [t for t in tangents if t is not None]
    places = [i for i, result in enumerate(results) if result is not None]
    wrapped = _NoSecondDerivative.apply(len(places), *(results[i] for i in places), *given)
    out = list(results)
    for place, value in zip(places, wrapped, strict=True):
        out[place] = value
    return out
