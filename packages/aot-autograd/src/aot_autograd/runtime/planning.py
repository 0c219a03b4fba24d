"""The plan of a runtime with gradients: what its functions say, of the joint graph and its partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import torch

from aot_autograd.partition.split import Partition, needed_by_backward
from aot_autograd.partition.visible import checked_late
from aot_autograd.runtime.emit import Source, emit_mutations, emit_results, emit_symbols, emit_view
from aot_autograd.runtime.emitted import aligned, counter_of, gate_tensor
from aot_autograd.runtime.halves import keep_box, kept_box
from aot_autograd.runtime.handing import bucket_limits
from aot_autograd.runtime.hush import hush
from aot_autograd.runtime.inference import emit_arguments, emit_overlap_check
from aot_autograd.runtime.nested import handed_to_inputs, less
from aot_autograd.runtime.planning_again import plan_again
from aot_autograd.runtime.planning_apart import Ways, ways_of
from aot_autograd.runtime.plans import Emitted, TrainingPlan
from aot_autograd.runtime.refusing import standing_in
from aot_autograd.runtime.rests import needed_for
from aot_autograd.trace.outcome import Joint, symbols_of_results, unbacked_of_results
from aot_autograd.trace.saves import Place
from prims.ir.symbols import symbols_in
from prims.options import Options
from prims.report import Report
from prims.spec import TensorSpec

__all__ = ["plan_training"]


def plan_training(
    joint: Joint, partition: Partition, eager: Callable[..., Any], options: Options, report: Report | None
) -> TrainingPlan:
    """What the runtime of a joint graph is made from.

    Saved tensors go through ``save_for_backward``, so that eager's version checks and its error for a graph that was
    freed hold. Outputs that need no gradient are marked so; an output without a gradient gives None, not zeros.
    """
    inputs = joint.envelope.inputs
    entering = _entering(joint, partition)
    slots = _slots(joint, partition)
    ways = ways_of(joint, partition)
    checked = checked_late(joint, {desc.source for desc in partition.backward.inputs if desc.kind != "tangent"})
    needing = tuple(checked.get(slot, frozenset()).union(joint.saved_by_eager.get(slot, ())) for slot in slots)
    return TrainingPlan(
        run=_run(joint, partition, ways, eager, options, report),
        forward=_forward(joint, partition),
        collect=_collect(joint, partition),
        give=_give(joint, partition),
        again=plan_again(joint, partition, eager, _kept_results(joint, partition)),
        device=joint.tangent_specs[0].device,
        entering=entering,
        others=tuple(k for k, i in enumerate(entering) if inputs[i].kind != "parameter"),
        parameters=tuple(inputs[i].kind == "parameter" for i in partition.gradients),
        saved=partition.saved,
        needing=needing,
        linked=_linked(joint, partition),
        sharing=joint.sharing if _leaves_rests(joint) else (),
        needed=_needed(partition, needing) if _leaves_rests(joint) else (),
        gates=ways.gates if ways is not None else (),
        parts=ways.parts if ways is not None else (),
        forward_apart=_forward(joint, partition, apart=True) if ways is not None else None,
        gather=_gather(joint, partition) if ways is not None else None,
    )


def _leaves_rests(joint: Joint) -> bool:
    """Whether some results can be differentiated one after another, as in eager (:mod:`.rests`)."""
    return any(len(sharing) < len(joint.tangents) for sharing in joint.sharing)


def _needed(partition: Partition, needing: tuple[frozenset[int], ...]) -> tuple[frozenset[int], ...]:
    computed = needed_for(partition)
    return tuple(by | (computed[n] if n < len(computed) else by) for n, by in enumerate(needing))


def _run(
    joint: Joint, partition: Partition, ways: Ways | None, eager: Callable[..., Any], options: Options,
    report: Report | None,
) -> Emitted:  # fmt: skip
    outcome = joint.outcome
    source = Source()
    source.globals["transforms"] = torch._C._are_functorch_transforms_active
    source.line("if transforms(): return eager(*args)")
    emit_overlap_check(source, outcome, eager, options, report)
    emit_arguments(source, outcome)
    emit_symbols(source, outcome, symbols_of_results(outcome))
    start = len(source.lines)
    outputs = [f"o{i}" for i in range(len(outcome.nodes))]
    told = unbacked_of_results(outcome)
    if told:
        source.line("told = {}")
    if ways is None:
        _emit_call(source, joint, partition)
    else:
        _emit_call_apart(source, joint, partition, ways)
    for size in told:
        source.line(f"{size.expr.symbol_name} = told[{size.expr.symbol_name!r}]")
    inputs = outcome.program.tracer.inputs
    made, copied = _emit_own_nodes(source, joint, partition, outputs)
    through = [(i, o) for i, o, through in outcome.mutations if through and i not in copied]
    tracked = [(f"args[{i}]", outputs[o], inputs[i].spec) for i, o in through]
    over = {f"args[{i}]" for i, o in through if _leads(joint, partition, o, i)}
    emit_mutations(source, tracked, no_grad=False, differentiable=True, over=over)
    source.line(f"return {emit_results(source, outcome, outputs, made)}")
    if not outcome.program.grad_enabled:
        # The program itself turns gradients on, for a part of it.
        source.globals["enable_grad"] = torch.enable_grad
        source.lines[start:] = ["with enable_grad():", *(f"    {line}" for line in source.lines[start:])]
    return _emitted(source, "run(*args)")


def _leads(joint: Joint, partition: Partition, output: int, index: int) -> bool:
    """Whether the backward graph has a gradient for an input, to which autograd's graph leads from this output."""
    if output not in joint.tangents or index not in partition.gradients:
        return False
    return index in joint.reached[joint.tangents.index(output)]


def _emit_call(source: Source, joint: Joint, partition: Partition) -> None:
    """Run the forward graph by one node of the results, behind one of the inputs."""
    given, entering = "args", _entering(joint, partition)
    made_before = tuple(i for i in entering if joint.outcome.program.grad_fns.get(i) is not None)
    if made_before:
        given = "given"
        source.globals["standing_in"] = standing_in
        source.line(f"given = standing_in(args, {made_before})")
    gate = f"enter({', '.join(f'{given}[{i}]' for i in entering)})"
    if partition.gradients:
        source.globals["limits"] = bucket_limits
        gate = f"{gate} if limits() is None else by_buckets({given})"
    told = ", told" if unbacked_of_results(joint.outcome) else ""
    source.line(f"{', '.join(f'o{i}' for i in _returned(joint))} = apply({gate}, args{told})")


def _emit_call_apart(source: Source, joint: Joint, partition: Partition, ways: Ways) -> None:
    """Run the forward graph by several nodes of results and inputs (:mod:`.apart`)."""
    entering = _entering(joint, partition)
    source.line("shared = shared_by()")
    for j, gate in enumerate(ways.gates):
        source.line(f"g{j} = enter{j}(shared, {', '.join(f'args[{entering[k]}]' for k in gate)})")
    told = ", told" if unbacked_of_results(joint.outcome) else ""
    gates = "".join(f"g{j}, " for j in range(len(ways.gates)))
    source.line("made = []")
    source.line(f"holder = call(g0, args, shared, ({gates}), made{told}),")
    source.line(f"{', '.join(f'o{i}' for i in _returned(joint))}, = made")
    for tangents, places in sorted(ways.parts, key=lambda part: max(_age(joint, k) for k in part[0])):
        names = [f"o{joint.tangents[k]}" for k in tangents]
        behind = ", ".join(f"g{j}" for j in places) or "nothing_behind()"
        source.line(f"{', '.join(names)} = part(shared, holder, {tangents}, ({', '.join(names)},), {behind})")


def _emitted(source: Source, head: str) -> Emitted:
    return Emitted(source.text(head), source.globals)


def _kept(joint: Joint, partition: Partition) -> set[int]:
    """The graph outputs that a call keeps until its backward pass."""
    return {at for kind, at in partition.saved if kind == "output"}.union(_kept_results(joint, partition))


def _tied(joint: Joint, partition: Partition) -> set[int]:
    """The results that have a link: those that are computed from others, those, what has to be found again, and complex
    ones, which ``lift`` does not take."""
    kept, tensors = _kept(joint, partition), joint.outcome.tensors
    tied = {k for k, under in enumerate(joint.under) if under}.union(*joint.under)
    alone = ((k, joint.tangents[k]) for k in _beside_others(joint, partition))
    return tied | {k for k, i in alone if i in kept or tensors[i].is_complex()}


def _beside_others(joint: Joint, partition: Partition) -> set[int]:
    """The results that share a node with others and that hooks can be put on: not those of views alone.

    In eager they have nodes of their own, which are not run for the others' gradients, unless all are of one there.
    """
    outcome = joint.outcome
    shown = {leaf.index for leaf in outcome.leaves if leaf.kind == "output" and not leaf.steps}
    ways = ways_of(joint, partition)
    # Beside links, which are made last, those that have nodes of their own already would have their turn too late.
    together = ways is None or any(joint.under)
    groups = [range(len(joint.tangents))] if together else [tangents for tangents, _ in ways.parts]  # type: ignore[union-attr]
    found: set[int] = set()
    for group in groups:
        if len({outcome.tensors[joint.tangents[k]].grad_fn for k in group}) > 1:
            found.update(k for k in group if joint.tangents[k] in shown)
    return found


def _linked(joint: Joint, partition: Partition) -> frozenset[int] | None:
    tied, kept = _tied(joint, partition), _kept(joint, partition)
    if not tied:
        return None
    return frozenset(k for k in tied if k < len(joint.tangents) and joint.tangents[k] in kept)


def _emit_own_nodes(
    source: Source, joint: Joint, partition: Partition, outputs: list[str]
) -> tuple[dict[int, str], set[int]]:
    """Give each result that shares the call's node with others one of its own.

    It is a link where results are computed from others, after what it rests on, and where the result is kept, or else
    ``lift``, the identity, which gives the very tensor (no view) with a history that is one step longer. They are made
    in the order in which the program computes the results, for the engine runs the youngest first. What rests on the
    new value of an input rests on that input, which is written before.

    Returns:
        The views' names, and the inputs that are written.
    """
    made: dict[int, str] = {}
    copied: set[int] = set()
    tied, alone = _tied(joint, partition), _beside_others(joint, partition)
    count = len(joint.tangents)
    done: set[int] = set()
    outcome = joint.outcome
    written = {output: index for index, output, through in outcome.mutations if through}

    def is_input(k: int) -> bool:
        """Is it an input that the region has written, or a view of an input?"""
        if k < count:
            return joint.tangents[k] in written
        return bool(joint.outcome.leaves[joint.views[k - count]].kind == "input")

    def name_of(k: int) -> str:
        if k >= count:
            leaf = joint.outcome.leaves[joint.views[k - count]]
            if leaf.kind != "input":
                name_of(joint.tangents.index(leaf.index))
            return emit_view(source, joint.outcome, joint.views[k - count], outputs, made)
        name = outputs[joint.tangents[k]]
        if k not in done:
            done.add(k)
            if k in tied:
                names = [name_of(j) for j in joint.under[k]]
                inputs = tuple(n for n, j in enumerate(joint.under[k]) if is_input(j))
                source.line(f"{name} = link({k}, nowhere, {inputs}, {', '.join([name, *names])})")
            else:
                source.globals["own_node"] = torch.ops.aten.lift.default
                source.line(f"own_node({name})")
        index = written.get(joint.tangents[k])
        if index is None or k not in tied:
            return name
        if index not in copied:
            copied.add(index)
            triple = (f"args[{index}]", name, outcome.program.tracer.inputs[index].spec)
            over = {triple[0]} if _leads(joint, partition, joint.tangents[k], index) else set()
            emit_mutations(source, [triple], no_grad=False, differentiable=True, over=over)
        return f"args[{index}]"

    for k in sorted(tied | alone, key=lambda k: _age(joint, k)):
        name_of(k)
    return made, copied


def _age(joint: Joint, k: int) -> tuple[int, int]:
    """By which the results come in the order in which the program computes them; views behind them."""
    node = joint.outcome.tensors[joint.tangents[k]].grad_fn if k < len(joint.tangents) else None
    return (0, node._sequence_nr()) if node is not None else (1, k)


def _entering(joint: Joint, partition: Partition) -> tuple[int, ...]:
    """The inputs that go through the gate: those with gradients, for each costs as much as a small operator. Where none
    has one, the results still are differentiable."""
    if partition.gradients:
        return partition.gradients
    return tuple(i for i, desc in enumerate(joint.envelope.inputs) if desc.requires_grad and desc.kind != "tangent")


def _returned(joint: Joint) -> list[int]:
    """The graph outputs that the autograd function returns: all but the writes that autograd does not see."""
    hidden = {output for _, output, through in joint.outcome.mutations if not through}
    return [i for i in range(len(joint.outcome.nodes)) if i not in hidden]


def _forward(joint: Joint, partition: Partition, apart: bool = False) -> Emitted:
    """The function that runs the forward graph. It sees the inputs in a tuple, as no inputs of its own.

    Args:
        apart: whether it hands the results over by a list, for nodes of theirs (:mod:`.apart`).
    """
    outcome = joint.outcome
    inputs = outcome.program.tracer.inputs
    source = Source()
    source.line(f"ctx.kept = keep(args, {'*gates' if apart else 'gate'})")
    if apart:
        source.line("ctx.shared = shared")
    source.line("ctx.second = None")
    names: set[str] = set()
    for symbol in partition.sizes:
        names |= symbols_in(symbol)
    symbolic = _symbolic_strides(joint)
    if symbolic:
        for spec in joint.tangent_specs:
            for stride in spec.strides:
                names |= symbols_in(stride)
    emit_symbols(source, outcome, names)
    outputs = [
        f"o{i}" if isinstance(desc.spec, TensorSpec) else str(desc.spec.expr.symbol_name)  # type: ignore[union-attr]
        for i, desc in enumerate(partition.forward.outputs)
    ]
    source.line(f"{', '.join(outputs)}, = compiled(*args)")
    for size in unbacked_of_results(outcome):
        source.line(f"told[{size.expr.symbol_name!r}] = {size.expr.symbol_name}")
    emit_mutations(
        source,
        [(outcome.target(i), outputs[o], inputs[i].spec) for i, o, through in outcome.mutations if not through],
        no_grad=any(inputs[i].requires_grad for i, _, through in outcome.mutations if not through),
    )
    returned = _returned(joint)
    results = partition.forward.results()
    for i in returned:
        # In eager a result is nobody's view; a view made inside a Function could not be written in place. The function
        # does not know its inputs as such, and must not return one.
        test = "" if results[i].op == "placeholder" else f"if {outputs[i]}._is_view(): "
        source.line(f"{test}{outputs[i]} = {outputs[i]}.detach()")
    source.globals["ref"] = ref
    source.line(f"ctx.results = [{', '.join(f'ref({outputs[i]})' for i in joint.tangents)}]")
    if _tied(joint, partition):
        source.line("ctx.links = {}")
        source.line("ctx.handed = {}")
        source.line("ctx.views = {}")
    # A result gets a history that comes to this node, which must not hold it then, but what it shares memory with.
    alias = [f"{name}.detach()" if apart and i in joint.tangents else name for i, name in enumerate(outputs)]
    saved = [f"args[{at}]" if kind == "input" else alias[at] for kind, at in partition.saved]
    saved += [alias[i] for i in _kept_results(joint, partition)]
    watched = _watched_inputs(joint, partition)
    if any(_is_activation(joint, i) for i in watched):
        source.globals["counter_of"] = counter_of
    saved += [f"counter_of(args[{i}])" if _is_activation(joint, i) else f"args[{i}]" for i in watched]
    source.line(f"ctx.save_for_backward({', '.join(saved)})")
    if _may_be_written(joint):
        slots = _slots(joint, partition)
        versions = [f"args[{at}]._version, " if kind == "input" else "0, " for kind, at in slots]
        source.line(f"ctx.versions = ({''.join(versions)})")
    if partition.sizes:
        source.line(f"ctx.sizes = {source.sizes(partition.sizes)}")
    if symbolic:
        strides = ", ".join(source.sizes(spec.strides) for spec in joint.tangent_specs)
        source.line(f"ctx.tangent_strides = ({strides},)")
    told = ", told" if unbacked_of_results(outcome) else ""
    texts = [outputs[i] for i in returned]
    if apart:
        source.globals.update(gate_tensor=gate_tensor)
        source.line(f"made += {', '.join(texts)},")
        source.line("return gate_tensor()")
        return _emitted(source, f"forward(ctx, gate, args, shared, gates, made{told})")
    plain = [outputs[i] for i in returned if i not in joint.tangents]
    if plain:
        source.line(f"ctx.mark_non_differentiable({', '.join(plain)})")
    source.line("ctx.set_materialize_grads(False)")
    source.line(f"return {texts[0] if len(texts) == 1 else ', '.join(texts)}")
    return _emitted(source, f"forward(ctx, gate, args{told})")


def _kept_results(joint: Joint, partition: Partition) -> list[int]:
    """The results that are kept, as in eager, though the backward graph does not take them.

    Eager's backward pass saves them. By these gradients know the results when they are differentiated themselves.
    """
    used = set(needed_by_backward(joint))
    results = joint.envelope.results()
    taken = {at for kind, at in partition.saved if kind == "output"}
    kept = [i for i in joint.tangents if results[i] in used]
    kept += [i for kind, i in joint.saved_by_eager if kind == "output" and i not in kept]
    return sorted(i for i in kept if i not in taken)


def _watched_inputs(joint: Joint, partition: Partition) -> list[int]:
    """The inputs that eager's nodes save and the backward graph does not take: writes to them are errors all the same.

    What autograd sees of the region's own writes to its inputs comes after, so that these are not watched.
    """
    through = {index for index, _, through in joint.outcome.mutations if through}
    taken = {at for kind, at in partition.saved if kind == "input"} | through
    return [at for kind, at in joint.saved_by_eager if kind == "input" and at not in taken]


def _slots(joint: Joint, partition: Partition) -> list[Place]:
    """What is handed to ``save_for_backward``."""
    kept = [("output", i) for i in _kept_results(joint, partition)]
    return [*partition.saved, *kept, *(("input", i) for i in _watched_inputs(joint, partition))]


def _is_activation(joint: Joint, index: int) -> bool:
    """Whether an input may be one, whose memory must not live on for a version that is watched."""
    program = joint.outcome.program
    desc = program.tracer.inputs[index]
    return desc.kind == "input" and not (desc.requires_grad and program.grad_fns.get(index) is None)


def _symbolic_strides(joint: Joint) -> bool:
    return any(type(stride) is not int for spec in joint.tangent_specs for stride in spec.strides)


def _collect(joint: Joint, partition: Partition) -> Emitted:
    """Put what the backward graph takes into a box, of which the gradient for the gate is then the only owner."""
    source = Source()
    returned = _returned(joint)
    source.globals.update(gate_tensor=gate_tensor, device=joint.tangent_specs[0].device)
    source.globals["grad_enabled"] = torch.is_grad_enabled
    source.line("gate = gate_tensor(device)")
    at = "".join(f"tangents[{returned.index(output)}], " for output in joint.tangents)
    source.line("gate.again = None")
    changed = " or has_changed()" if joint.still else ""
    source.line(f"if grad_enabled() or ctx.second is not None{changed}:")
    source.line(f"    gate.again = (ctx, own_results(ctx) if grad_enabled() else (), ({at}))")
    if _hands_to_inputs(joint):
        source.globals["handed_to_inputs"] = handed_to_inputs
        source.line("gate.handed = handed_to_inputs(ctx)")
    names, box = _emit_box(source, joint, partition, [returned.index(output) for output in joint.tangents])
    source.line(f"gate.partial = {' or '.join(f'{name} is None' for name in names)}")
    source.line(f"gate.box = {box}")
    source.globals["keep_box"] = keep_box
    source.line("keep_box(gate)")
    if _leaves_rests(joint):
        source.line(f"leave(ctx, saved, ({', '.join(names)},))")
    source.line("del saved")
    # Unless the graph is retained, the box is now the only owner of what was saved.
    source.line("ctx.maybe_clear_saved_tensors()")
    source.line("return gate, None, None" if unbacked_of_results(joint.outcome) else "return gate, None")
    return _emitted(source, "backward(ctx, *tangents)")


def _emit_box(source: Source, joint: Joint, partition: Partition, places: list[int]) -> tuple[list[str], str]:
    """Read what was saved and the tangents; returns the tangents' names, and what the backward graph takes.

    Args:
        places: of the tangents in what is called so.
    """
    source.globals.update(aligned=aligned)
    names = []
    symbolic = _symbolic_strides(joint)
    for k, (place, spec) in enumerate(zip(places, joint.tangent_specs, strict=True)):
        wanted = f"ctx.tangent_strides[{k}]" if symbolic else repr(tuple(spec.strides))
        name = f"t{k}"
        names.append(name)
        source.line(f"{name} = tangents[{place}]")
        lies = f"{name}.stride() == {wanted} and not ({name}.is_neg() or {name}.is_conj() or {name}._is_zerotensor())"
        source.line(f"if {name} is not None and not ({lies}): {name} = aligned({name}, {wanted})")
    sizes = "*ctx.sizes, " if partition.sizes else ""
    beside = _kept_results(joint, partition) or _watched_inputs(joint, partition)
    some = f"[:{len(partition.saved)}]" if beside else ""
    tangents = f"({', '.join(names)},)"
    lines = ["saved = ctx.saved_tensors"]
    if _may_be_written(joint):
        handler = f"except RuntimeError as error: saved = saved_unless_written(ctx, {tangents}, error)"
        lines = [f"try: {lines[0]}", handler]
    if _leaves_rests(joint):
        lines = [f"saved = rest_of(ctx, {tangents})", "if saved is None:", *(f"    {line}" for line in lines)]
    source.lines += lines
    return names, f"[*saved{some}, {sizes}{', '.join(names)}]"


def _may_be_written(joint: Joint) -> bool:
    """Whether something that is saved may be written and the backward pass goes on, for some gradients that come."""
    return len(joint.tangents) > 1 or bool(joint.late)


def _gather(joint: Joint, partition: Partition) -> Emitted:
    """Put what the backward graph takes into a box, where the results have several nodes."""
    source = Source()
    _, box = _emit_box(source, joint, partition, list(range(len(joint.tangents))))
    if _leaves_rests(joint):
        source.line("ctx.found = saved")
    source.line(f"return {box}")
    return _emitted(source, "gather(ctx, tangents)")


def _hands_to_inputs(joint: Joint) -> bool:
    return any(joint.outcome.leaves[at].kind == "input" for at in joint.views)


def _give(joint: Joint, partition: Partition) -> Emitted:
    """The backward of the function of the inputs, which runs the backward graph."""
    source = Source()
    source.globals.update(hush=hush, kept_box=kept_box)
    source.line("if ctx.second is not None or getattr(gate, 'again', None) is not None:")
    source.line("    results = run_again(ctx, gate)")
    source.line("    hush(ctx, results, ctx.others)")
    source.line("else:")
    source.line("    box = getattr(gate, 'box', None)")
    source.line("    if box is None: box = kept_box(gate)")
    source.line("    gate.box = None")
    source.line("    results = run_backward(box)")
    source.line("    if gate.partial: hush(ctx, results, ctx.others)")
    if _hands_to_inputs(joint):
        source.globals.update(less=less, gradients=partition.gradients)
        source.line("handed = getattr(gate, 'handed', None)")
        source.line("if handed: results = less(results, gradients, handed)")
    count = len(partition.gradients)
    texts = [f"results[{k}]" if k < count else "None" for k in range(len(_entering(joint, partition)))]
    source.line(f"return {', '.join(texts)}")
    return _emitted(source, "backward(ctx, gate)")
