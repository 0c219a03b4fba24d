"""The callable for a graph through which no gradient flows to its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from aot_autograd.runtime.emit import Source, emit_mutations, emit_results, emit_symbols
from aot_autograd.runtime.emitted import (
    RunEagerly,
    lead_nowhere,
    loses_its_views,
    new_seed,
    refuses_writes,
    shares_memory,
)
from aot_autograd.runtime.stored import storable
from aot_autograd.trace.outcome import Outcome, symbols_of_results, unbacked_of_results
from prims.options import Options
from prims.report import Report
from prims.undo import writes_when_done

__all__ = ["build_inference", "emit_arguments", "emit_overlap_check"]


def build_inference(
    outcome: Outcome,
    compiled: Callable[..., Sequence[Any]],
    eager: Callable[..., Any],
    options: Options,
    report: Report | None,
) -> Callable[..., Any]:
    """Wrap a compiled forward graph: pass the module's own tensors, write mutated inputs, rebuild aliases.

    Args:
        compiled: takes the envelope's flat inputs, returns its flat outputs.
        eager: runs the program eagerly; used for calls whose inputs share memory in a way the trace did not see.
    """
    source = Source()
    source.globals["compiled"] = compiled
    emit_overlap_check(source, outcome, eager, options, report)
    emit_arguments(source, outcome)
    emit_symbols(source, outcome, symbols_of_results(outcome))
    outputs = [f"o{i}" for i in range(len(outcome.nodes))]
    inputs = outcome.program.tracer.inputs
    call = "compiled(*args)"
    if targets := [*outputs, *(str(size.expr.symbol_name) for size in unbacked_of_results(outcome))]:
        call = f"{', '.join(targets)}, = {call}"
    if outcome.program.grad_enabled and any(desc.requires_grad for desc in inputs):
        source.globals["no_grad"] = torch.no_grad
        source.line("with no_grad():")
        call = f"    {call}"
    source.line(call)
    triples = [(inputs[i], (outcome.target(i), outputs[o], inputs[i].spec)) for i, o, _ in outcome.mutations]
    tracked = [triple for desc, triple in triples if desc.requires_grad]
    plain = [triple for desc, triple in triples if not desc.requires_grad]
    emit_mutations(source, plain, no_grad=False)
    emit_mutations(source, tracked, no_grad=True)
    if outcome.leads_nowhere:
        source.globals["lead_nowhere"] = lead_nowhere
        names = ", ".join(outputs[i] for i in outcome.differentiable)
        source.line(f"{names}, = lead_nowhere({names})")
    source.line(f"return {emit_results(source, outcome, outputs)}")
    return storable(writes_when_done(source.function("run(*args)")), source.globals)


def emit_arguments(source: Source, outcome: Outcome) -> None:
    """Append the module's own tensors and the constants to ``args``."""
    program = outcome.program
    extra = []
    for index in range(program.arguments, len(program.tracer.inputs)):
        if program.tracer.inputs[index].kind == "tangent":
            break
        desc = program.tracer.inputs[index]
        if desc.kind == "rng_seed":
            source.globals["new_seed"] = new_seed
            extra.append(f"new_seed({source.name(desc.spec.device, 'device')})")  # type: ignore[union-attr]
        elif index in program.lifted:
            store, name = program.lifted[index]
            extra.append(f"{source.name(store, 'state')}[{name!r}]")
        else:
            extra.append(source.name(program.tracer.constants[index], "constant"))
    if extra:
        source.line(f"args = (*args, {', '.join(extra)})")


def emit_overlap_check(
    source: Source, outcome: Outcome, eager: Callable[..., Any], options: Options, report: Report | None
) -> None:
    """Leave a call to eager when an input that the graph writes shares memory with another, or loses its views."""
    program = outcome.program
    written = tuple(i for i, _, _ in outcome.mutations if i < program.arguments)

    def leave_if(test: Callable[..., bool], *places: tuple[int, ...], reason: str) -> None:
        run_eagerly = RunEagerly(eager, written, reason, options, report)
        called = f"{source.name(test, 'test')}(args, {', '.join(map(str, places))})"
        source.line(f"if {called}: return {source.name(run_eagerly, 'run_eagerly')}(*args)")

    tensors = tuple(i for i in range(program.arguments) if program.tracer.input_tensors[i] is not None)
    if written and len(tensors) > 1:
        reason = "an input that the graph writes shares memory with another input"
        leave_if(shares_memory, tensors, written, reason=reason)
    tracked = tuple(i for i, _, through in outcome.mutations if through and i in written)
    if tracked:
        reason = "an input that the graph writes is one that autograd lets nobody write"
        leave_if(refuses_writes, tracked, reason=reason)
    unseen = tuple(
        i
        for i, _, through in outcome.mutations
        if program.tracer.inputs[i].requires_grad and not through and i not in outcome.uncounted and i in written
    )
    if unseen and (outcome.differentiable or any(leaf.requires_grad for leaf in outcome.leaves)):
        reason = "an input that the graph writes, unseen by autograd, is a view of a tensor that needs no gradient"
        leave_if(loses_its_views, unseen, reason=reason)
