"""From a traced program to envelopes: outputs, aliases, mutations, and the joint graph's gradients.

An output that shares storage with an input or with another output is not computed by the graph a second time: the
runtime replays its views on the base, so that users see eager's aliasing and autograd its ordinary view nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import torch
import torch.fx

import aot_autograd
from aot_autograd.autocast import differentiate, differentiating
from aot_autograd.structure import flatten
from aot_autograd.trace.opinfo import op_info, runs_once
from aot_autograd.trace.program import INPUT_NODE, Program, trace_forward
from aot_autograd.trace.saves import Place, names_of_saved, nodes_behind, read_late, saved_by_eager
from aot_autograd.trace.tracer import Tracer, state_of
from aot_autograd.trace.unused import check_unused, tie
from aot_autograd.trace.views import Storage, ViewStep, is_dense, same_strides
from prims.errors import Unsupported
from prims.ir import Alias, Envelope, InputDesc, Mutation, OutputDesc, SymbolTable
from prims.ir.symbols import made_symbols, symbols_of
from prims.options import Options
from prims.records import record
from prims.spec import Sym, TensorSpec, abstract_from_spec, from_torch
from prims.spec.sym import formulas
from prims.spec.unbacked import making_symbols, with_symbols

__all__ = ["Joint", "Leaf", "Outcome", "finish_inference", "finish_joint", "trace"]

aten = torch.ops.aten

ATEN_VERSION = (1, 0)


@record
class Leaf:
    """How the runtime makes one leaf of the user's result.

    Attributes:
        kind: ``"output"`` (graph output ``index``), ``"input"`` (input ``index``), ``"size"`` (``value`` is a ``Sym``)
            or ``"literal"`` (``value`` itself), ``"same"`` (the very tensor of leaf ``index``).
        steps: views to replay on it; empty for the very tensor.
        of: a leaf that is such a view itself, to which autograd knows this one to be a view: ``steps`` begin there.
        requires_grad: whether eager's result requires a gradient (it is detached otherwise).
        made: of a view that eager lets nobody write where gradients are needed, how autograd says that it was made:
            as one of several, or without gradients.
    """

    kind: str
    index: int = -1
    value: Any = None
    steps: tuple[ViewStep, ...] = ()
    of: int | None = None
    requires_grad: bool = False
    made: str | None = None


@record(frozen=False)
class Outcome:
    """What a traced program returns and writes, before its graph is closed.

    Attributes:
        leaves: the user's result, flat, with its ``structure`` (nested containers of leaf positions).
        nodes, specs, tensors: the graph's outputs; ``tensors`` are the abstract ones that autograd knows.
        user_outputs: how many of them are not mutations; some may serve only as bases of aliases.
        mutations: ``(input index, output index, differentiable)``.
        views: the abstract tensors of the leaves that are views with a history.
        uncounted: inputs written through ``.data`` alone, of which no version counter is to know.
    """

    program: Program
    leaves: list[Leaf] = field(default_factory=list)
    structure: Any = None
    nodes: list[torch.fx.Node] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    aliases: list[Alias] = field(default_factory=list)
    user_outputs: int = 0
    mutations: list[tuple[int, int, bool]] = field(default_factory=list)
    views: dict[int, torch.Tensor] = field(default_factory=dict)
    uncounted: set[int] = field(default_factory=set)

    def target(self, index: int) -> str:
        """The expression of a written input in a function that takes ``args``."""
        return f"args[{index}].data" if index in self.uncounted else f"args[{index}]"

    @property
    def differentiable(self) -> list[int]:
        """The graph outputs through which gradients flow."""
        tracked = {output for _, output, through in self.mutations if through}
        return [
            i
            for i, tensor in enumerate(self.tensors)
            if (tensor.requires_grad if i < self.user_outputs else i in tracked)
        ]

    @property
    def leads_nowhere(self) -> bool:
        """Whether gradients flow through results, but to leaves alone that the program itself makes."""
        reached = any(desc.requires_grad for desc in self.program.tracer.inputs)
        return bool(self.differentiable) and not reached and not any(through for _, _, through in self.mutations)


@record(frozen=False)
class Joint:
    """A joint forward and backward graph.

    Attributes:
        envelope: inputs are the forward's, then one tangent per differentiable output; outputs are the forward's,
            then one gradient per input that needs one (None where there is none). Nodes of the backward pass
            have ``meta["backward"]``.
        outcome: how results are handed to the user.
        tangents: the differentiable outputs, in tangent order.
        gradients: the inputs that the gradients belong to, in order.
        saved_by_eager: the inputs and results of whose memory eager's own nodes save something, and the tangents (by
            position) that lead there: ``tanh``'s derivative needs its result, that of ``index_copy`` only the sizes of
            the source that it keeps. After a write to them these tangents' backward pass is an error.
        under: for each tangent's output, the tangents (by position) of those that it is computed from, all of them; and
            behind the positions of the tangents those of ``views``.
        views: leaves of the result that are views, and of which a tangent's output is computed.
        reached: by tangent, the inputs to which eager's autograd graph leads from its output.
        sharing: by tangent, those in whose backward pass eager frees something that its own needs.
        late: the inputs that custom backwards keep themselves, and read as they are when they run.
        still: what tells in a backward pass whether all is as it was that the custom backwards in the graph rest on.
    """

    envelope: Envelope
    outcome: Outcome
    tangents: list[int]
    gradients: list[int]
    saved_by_eager: Mapping[Place, frozenset[int]] = field(default_factory=dict)
    under: tuple[tuple[int, ...], ...] = ()
    views: tuple[int, ...] = ()
    reached: tuple[frozenset[int], ...] = ()
    sharing: tuple[frozenset[int], ...] = ()
    late: frozenset[int] = frozenset()
    still: tuple[Callable[[], bool], ...] = ()

    @property
    def tangent_specs(self) -> list[TensorSpec]:
        """The tangents' metadata."""
        return [desc.spec for desc in self.envelope.inputs if desc.kind == "tangent"]  # type: ignore[misc]


def trace(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: Options) -> Outcome:
    """Trace the forward program and settle what it returns and writes.

    Raises:
        Unsupported: the program cannot be traced.
    """
    fast = options.numerics == "fast"
    program = trace_forward(gm, example_inputs, not options.eager_random, _written(gm, options), fast)
    outcome = Outcome(program)
    tensors: list[Any] = []
    outcome.structure = flatten(program.result, tensors)
    _settle(outcome, tensors)
    return outcome


def _written(gm: torch.fx.GraphModule, options: Options) -> dict[torch.fx.Node, Any]:
    """What the program writes out of which there is a better form: attentions are looked for where there is a softmax,
    losses of logits where there is a cross-entropy."""
    called = {getattr(node.target, "__name__", node.target) for node in gm.graph.nodes}
    found: dict[torch.fx.Node, Any] = {}
    if "softmax" in called:
        from aot_autograd.trace.written import find_written

        found.update(find_written(gm, options))
    if not called.isdisjoint(("cross_entropy", "nll_loss")):
        from aot_autograd.trace.losses import find_losses

        found.update(find_losses(gm, options))
    return found


def _settle(outcome: Outcome, values: list[Any]) -> None:
    """Decide for each leaf what it is, in the order of the user's result."""
    tracer = outcome.program.tracer
    groups: dict[int, list[torch.Tensor]] = {}
    for value in values:
        if isinstance(value, torch.Tensor):
            members = groups.setdefault(id(state_of(_known(tracer, value)).storage), [])
            if not any(member is value for member in members):
                members.append(value)
    bases: dict[int, int] = {}
    pending: list[tuple[int, Storage]] = []
    first: dict[int, int] = {}
    for position, value in enumerate(values):
        if isinstance(value, torch.Tensor) and first.setdefault(id(value), position) != position:
            outcome.leaves.append(Leaf("same", first[id(value)]))
        else:
            outcome.leaves.append(_leaf(outcome, value, groups, bases, pending, position))
    for position, storage in pending:
        # Views whose common base is no result itself: the base becomes a hidden output.
        if id(storage) not in bases:
            if storage.base is None:
                raise Unsupported("results are views of a tensor whose shape was changed in place")
            bases[id(storage)] = _add_output(outcome, storage.base)
            if not any(member.requires_grad for member in groups[id(storage)]):
                # Nobody goes back through it, and where the program has done so itself, nobody can.
                outcome.tensors[-1] = _without_history(storage.base)
        _alias_of_output(outcome, position, values[position], bases[id(storage)])
    _alias_repeats(outcome)
    _nest_views(outcome, values)
    outcome.user_outputs = len(outcome.nodes)
    _settle_mutations(outcome)


def _known(tracer: Tracer, value: torch.Tensor) -> torch.Tensor:
    plain = tracer.plain(value)
    assert isinstance(plain, torch.Tensor)
    return plain


def _leaf(
    outcome: Outcome,
    value: Any,
    groups: dict[int, list[torch.Tensor]],
    bases: dict[int, int],
    pending: list[tuple[int, Storage]],
    position: int,
) -> Leaf:
    if not isinstance(value, torch.Tensor):
        plain = from_torch(value) if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else value
        return Leaf("literal" if plain is value or isinstance(plain, (int, float, bool)) else "size", value=plain)
    tracer = outcome.program.tracer
    tensor = _known(tracer, value)
    state = state_of(tensor)
    storage = state.storage
    if storage.input_index is not None:
        index = storage.input_index
        base = tracer.input_tensors[index]
        same = tensor is base
        _check_history(tensor, base)
        outcome.aliases.append(Alias(position, "input", index, None if same else state.spec))
        steps = () if same else state.chain
        return Leaf("input", index, steps=steps, requires_grad=tensor.requires_grad, made=_made(tensor))
    members = groups[id(storage)]
    if len(members) > 1 and tensor is not storage.base:
        pending.append((position, storage))
        return Leaf("output")
    index = _add_output(outcome, tensor)
    if tensor is storage.base:
        bases[id(storage)] = index
    return Leaf("output", index, requires_grad=tensor.requires_grad)


def _alias_repeats(outcome: Outcome) -> None:
    """Describe the second and later places of one tensor in the result as aliases of what the first one is."""
    by_position = {alias.output_index: alias for alias in outcome.aliases}
    for position, leaf in enumerate(outcome.leaves):
        if leaf.kind != "same":
            continue
        known = by_position.get(leaf.index)
        if known is None:
            outcome.aliases.append(Alias(position, "output", outcome.leaves[leaf.index].index, None))
        else:
            outcome.aliases.append(dataclasses.replace(known, output_index=position))


def _nest_views(outcome: Outcome, values: list[Any]) -> None:
    """Find the results that are views with a history, and those of them that autograd knows to be views of others."""
    leaves = outcome.leaves
    found = [at for at, leaf in enumerate(leaves) if leaf.steps and leaf.requires_grad]
    outcome.views = {at: _known(outcome.program.tracer, values[at]) for at in found}
    chains = {at: leaves[at].steps for at in outcome.views}
    for at, chain in chains.items():
        nearest = 0
        for other, start in chains.items():
            count = len(start)
            if nearest < count < len(chain) and all(a is b for a, b in zip(start, chain, strict=False)):
                if _leads_to(outcome.views[at], outcome.views[other], len(chain) - count):
                    nearest = count
                    leaves[at] = dataclasses.replace(leaves[at], steps=chain[count:], of=other)


def _leads_to(view: torch.Tensor, source: torch.Tensor, steps: int) -> bool:
    """Whether autograd comes from a view to ``source`` in so many steps."""
    wanted = (source.grad_fn, source.output_nr)
    node: Any = view.grad_fn
    for _ in range(steps):
        edges: Any = node.next_functions if node is not None else ()
        if len(edges) != 1:
            return False
        if edges[0] == wanted:
            return True
        node = edges[0][0]
    return False


def _check_history(tensor: torch.Tensor, base: torch.Tensor | None) -> None:
    """A result that needs a gradient must get its history from its base, by replaying the views.

    Raises:
        Unsupported: it is detached; or eager lets nobody use it, being one view of several, of memory written since.
    """
    try:
        _ = tensor.grad_fn
    except RuntimeError as error:
        raise Unsupported(f"a result may not be used: {error}".partition(". ")[0]) from error
    detached = any(step.func is aten.detach.default for step in state_of(tensor).chain)
    if tensor.requires_grad and (detached or base is None or not base.requires_grad):
        raise Unsupported("a detached view was written with values that need a gradient, and is a result")


def _without_history(tensor: torch.Tensor) -> torch.Tensor:
    plain = abstract_from_spec(state_of(tensor).spec)
    plain._aot_state = state_of(tensor)  # type: ignore[attr-defined]
    return plain


def _alias_of_output(outcome: Outcome, position: int, tensor: torch.Tensor, base: int) -> None:
    state = state_of(tensor)
    _check_history(tensor, outcome.tensors[base])
    outcome.aliases.append(Alias(position, "output", base, state.spec))
    needs = tensor.requires_grad
    outcome.leaves[position] = Leaf("output", base, steps=state.chain, requires_grad=needs, made=_made(tensor))


def _made(tensor: torch.Tensor) -> str | None:
    """See :class:`Leaf`."""
    name = torch._C._autograd._get_creation_meta(tensor).name if tensor._is_view() else "DEFAULT"
    return name if name in ("MULTI_OUTPUT_NODE", "NO_GRAD_MODE") else None


def _add_output(outcome: Outcome, tensor: torch.Tensor) -> int:
    """Make a tensor's value an output of the graph, in memory of its own; returns its index."""
    tracer = outcome.program.tracer
    state = state_of(tensor)
    if tensor.requires_grad and tensor.grad_fn is None:
        raise Unsupported("the graph makes a new leaf that needs a gradient (requires_grad_ on a result)")
    node = tracer.read(tensor)
    spec = node.meta["spec"]
    if not same_strides(spec, state.spec):
        node, spec = tracer.relayout(node, spec, state.spec)
    elif node.op == "placeholder" or any(node is other for other in outcome.nodes):
        node, spec = tracer.emit(aten.clone.default, (node,), {})
    outcome.nodes.append(node)
    outcome.tensors.append(tensor)
    return len(outcome.nodes) - 1


def _settle_mutations(outcome: Outcome) -> None:
    program = outcome.program
    tracer = program.tracer
    for index, tensor in enumerate(tracer.input_tensors):
        if tensor is None:
            continue
        storage = state_of(tensor).storage
        if storage.generation == 0:
            continue
        node = storage.node
        if node.op == "placeholder" or any(node is other for other in outcome.nodes):
            node, _ = tracer.emit(aten.clone.default, (node,), {})
        through = bool(tensor.requires_grad and tensor.grad_fn is not program.grad_fns.get(index))
        if not tensor.is_inference() and tensor._version == 0:
            outcome.uncounted.add(index)
        outcome.mutations.append((index, len(outcome.nodes), through))
        outcome.nodes.append(node)
        outcome.tensors.append(tensor)


# -- closing the graph -------------------------------------------------------------------------------------------


def _output_descs(outcome: Outcome) -> list[OutputDesc]:
    written = {output: index for index, output, _ in outcome.mutations}
    inputs = outcome.program.tracer.inputs
    return [
        OutputDesc("mutation", node.meta["spec"], inputs[written[i]].name)
        if i in written
        else OutputDesc("output", node.meta["spec"])
        for i, node in enumerate(outcome.nodes)
    ]


def remove_dead(
    graph: torch.fx.Graph, check: Callable[[torch.fx.Node], bool] | None = None, names: Iterable[str] = ()
) -> list[torch.fx.Node]:
    """Remove nodes that nothing uses, except those with an effect and those that draw random numbers.

    Args:
        check: called with each that would be removed; those for which it is true stay.
        names: unbacked symbols that are used elsewhere.

    Returns:
        The nodes that ``check`` has kept.
    """
    kept = []
    makers = made_symbols(graph)
    used = set(names)

    def serves(node: torch.fx.Node) -> bool:
        """Does something use the node's value, or a symbol that it makes?"""
        served = bool(node.users) or any(one.name in used for one in makers.get(node, ()))
        if makers and (served or node.op == "output"):
            used.update(symbols_of((node.args, dict(node.kwargs), node.meta.get("spec"))))
        return served

    for node in reversed(graph.nodes):
        if serves(node) or node.op != "call_function":
            continue
        if isinstance(node.target, torch._ops.OpOverload):
            if op_info(node.target).effect or runs_once(node.target, node.args, node.kwargs):
                used.update(symbols_of(node.args))
                continue
        if check is not None and check(node):
            kept.append(node)
        else:
            graph.erase_node(node)
    return kept


def _envelope(outcome: Outcome, results: list[Any], descs: list[OutputDesc]) -> Envelope:
    tracer = outcome.program.tracer
    graph = tracer.graph
    graph.output(tuple(results))
    if kept := remove_dead(graph, check_unused, symbols_of_results(outcome)):
        tie(graph, outcome.nodes, kept)
    inputs = tuple(tracer.inputs)
    return Envelope(
        dialect="aten",
        version=ATEN_VERSION,
        producer="aot_autograd",
        producer_version=aot_autograd.__version__,
        graph=graph,
        inputs=inputs,
        outputs=tuple(descs),
        symbols=SymbolTable.from_inputs(inputs, outcome.program.context, graph),
        mutations=tuple(Mutation(index, output) for index, output, _ in outcome.mutations),
        aliases=tuple(_graph_aliases(outcome)),
        default_dtype=torch.get_default_dtype(),
    )


def symbols_of_results(outcome: Outcome) -> frozenset[str]:
    """The symbols that the results' sizes and replayed views need."""
    sizes = [leaf.value for leaf in outcome.leaves if leaf.kind == "size"]
    return symbols_of([*sizes, *((step.args, step.kwargs) for leaf in outcome.leaves for step in leaf.steps)])


def _graph_aliases(outcome: Outcome) -> list[Alias]:
    """The alias table in terms of the user's result leaves and the graph's outputs."""
    return list(outcome.aliases)


def unbacked_of_results(outcome: Outcome) -> list[Sym]:
    """Those of them that no input tells; the graph returns their values behind its outputs."""
    context = outcome.program.context
    names = () if context is None else sorted(symbols_of_results(outcome))
    return [context.symbol(name) for name in names if context.is_unbacked(name)]  # type: ignore[union-attr]


def finish_inference(outcome: Outcome) -> Envelope:
    """Close the forward graph."""
    sizes = unbacked_of_results(outcome)
    descs = [*_output_descs(outcome), *(OutputDesc("output", size) for size in sizes)]
    return _envelope(outcome, [*outcome.nodes, *sizes], descs)


def _differentiated(
    results: list[torch.Tensor], inputs: list[torch.Tensor], cotangents: list[torch.Tensor]
) -> list[torch.Tensor | None]:
    """The gradients of a program's results, of which there are none where it writes over what they need.

    Raises:
        Unsupported: it does. Eager says so when it is asked for the gradient, if ever.
    """
    try:
        return list(differentiate(results, inputs, cotangents))
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        raise Unsupported(f"a result has no gradient: {error}".partition(" Hint: ")[0]) from error


def _watch_custom_backwards(tracer: Tracer, results: list[torch.Tensor]) -> None:
    """Have the tracer mark what the backwards of custom functions compute with the tangents that call each of them.

    It matters where only some results get a gradient: what a custom backward computes need not be linear in it.

    Args:
        results: the differentiable ones, in tangent order.

    Raises:
        Unsupported: one of them tells absent gradients from zeros, and gets some of its own for some results only.
    """
    roots = [result.grad_fn for result in results]
    if len(roots) < 2 or not any(_is_custom(node) for node in nodes_behind(roots)):
        return
    found: dict[Any, set[int]] = {}
    for position, root in enumerate(roots):
        for node in nodes_behind([root]):
            if _is_custom(node):
                found.setdefault(node, set()).add(position)

    for node in found:
        if getattr(node, "tells_absent", False) and len({_of_node(node, result) for result in results} - {()}) > 1:
            raise Unsupported(
                f"the backward of {type(node).__name__.removesuffix('Backward')} tells absent gradients from zeros "
                "(set_materialize_grads(False)), and which are absent depends on the results that are differentiated"
            )

    def watch(node: Any, called_by: frozenset[int]) -> None:
        def enter(gradients: Any) -> None:
            tracer.called_by = called_by

        def leave(given: Any, coming: Any) -> tuple[Any, ...]:
            # A gradient that was there before, such as a saved tensor, becomes one that this backward gives.
            made = tuple(
                tracer.pure(torch.ops.aten.clone.default, (gradient,), {})
                if gradient is not None and tracer.read(gradient).meta.get("called_by") is not called_by else gradient
                for gradient in given
            )  # fmt: skip
            tracer.called_by = None
            return made

        # Not by the current autograd node: that is still this one while its gradients are added to others.
        node.register_prehook(enter)
        node.register_hook(leave)

    for node, positions in found.items():
        watch(node, frozenset(positions))


def _of_node(node: Any, result: torch.Tensor) -> tuple[int, ...]:
    """Which results of an autograd node the gradients of a tensor come to."""
    root = result.grad_fn
    if root is node:
        return (result.output_nr,)
    seen, waiting, found = {root}, [root], set()
    while waiting:
        for behind, result in waiting.pop().next_functions:
            if behind is node:
                found.add(result)
            if behind is not None and behind not in seen:
                seen.add(behind)
                waiting.append(behind)
    return tuple(sorted(found))


def _mark_constants(
    tracer: Tracer, tangents: list[torch.Tensor], gradients: list[torch.Tensor | None], roots: list[Any]
) -> None:
    """Mark gradients that are computed from no tangent with the tangents whose backward pass comes to them.

    A comparison in place passes on zeros, whatever comes back; where nothing does, it passes on nothing.

    Args:
        tangents: the gradients of the differentiable results.
        gradients: the inputs'.
        roots: the autograd nodes of the differentiable results, in tangent order.
    """
    if len(roots) < 2:
        tracer.made_by.clear()
        tracer.beside_zeros.clear()
        return
    dependent = {tracer.read(tangent) for tangent in tangents}
    passed_on = [tracer.read(gradient) for gradient in gradients if gradient is not None]
    for node in tracer.graph.nodes:
        if "called_by" in node.meta or "backward" in node.meta and not dependent.isdisjoint(node.all_input_nodes):
            dependent.add(node)
            if node.target is aten.add.Tensor:  # of what arrives on two ways
                passed_on += node.all_input_nodes
    constant = {node for node in passed_on if node in tracer.made_by} - dependent
    marks = [(node, "called_by", tracer.made_by[node]) for node in constant]
    marks += [(node, "beside_zeros", made_by) for node, made_by in tracer.beside_zeros.items()]
    reached = [nodes_behind([root]) for root in roots] if marks else []
    for node, name, made_by in marks:
        node.meta[name] = frozenset(k for k, nodes in enumerate(reached) if made_by in nodes)
    tracer.made_by.clear()  # they hold what they have saved
    tracer.beside_zeros.clear()


def _is_custom(node: Any) -> bool:
    return isinstance(node, torch.autograd.function.BackwardCFunction) and not isinstance(node, INPUT_NODE)


def finish_joint(outcome: Outcome) -> Joint:
    """Trace the backward pass through autograd and close the joint graph.

    Raises:
        Unsupported: the backward pass cannot be traced.
    """
    program = outcome.program
    tracer = program.tracer
    tangents = outcome.differentiable
    cotangents = []
    for output in tangents:
        spec = outcome.nodes[output].meta["spec"]
        # The gradient of a result with gaps or shared elements is an ordinary dense tensor.
        spec = TensorSpec(spec.shape, spec.dtype, spec.device, spec.strides if is_dense(spec) else None)
        tensor = abstract_from_spec(spec)
        tracer.add_input(InputDesc(f"tangent_{output}", "tangent", spec), tensor)
        cotangents.append(tensor)
    wanted = list(program.leaves)
    before = len(tracer.inputs)
    saves = saved_by_eager(outcome, tangents)
    under, views = _dependences(outcome, tangents)
    reached, sharing = _reached(outcome, tangents), _sharing(outcome, tangents)
    _watch_custom_backwards(tracer, [outcome.tensors[i] for i in tangents])
    custom = [n for n in nodes_behind([outcome.tensors[i].grad_fn for i in tangents]) if _is_custom(n)]
    tracer.backward = True
    with (
        making_symbols(with_symbols(program.context)), torch.inference_mode(False),
        differentiating(), formulas(), tracer,
    ):  # fmt: skip
        late = read_late(tracer, custom)
        gradients = _differentiated(
            [outcome.tensors[i] for i in tangents], [program.leaves[i] for i in wanted], cotangents
        )
    _mark_constants(tracer, cotangents, gradients, [outcome.tensors[i].grad_fn for i in tangents])
    tracer.inputs_last(before - len(tangents), before)
    results: list[Any] = list(outcome.nodes)
    descs = _output_descs(outcome)
    for index, gradient in zip(wanted, gradients, strict=True):
        name = tracer.inputs[index].name
        if gradient is None:
            results.append(None)
            descs.append(OutputDesc("gradient", None, name))
            continue
        node = tracer.read(gradient)
        results.append(node)
        descs.append(OutputDesc("gradient", node.meta["spec"], name))
    envelope, still = _envelope(outcome, results, descs), _rests_on(custom)
    return Joint(envelope, outcome, tangents, wanted, saves, under, views, reached, sharing, late, still)


def _reached(outcome: Outcome, tangents: list[int]) -> tuple[frozenset[int], ...]:
    """``Joint.reached``."""
    places = {id(leaf): index for index, leaf in outcome.program.leaves.items()}
    found = []
    for i in tangents:
        ends = (getattr(node, "variable", None) for node in nodes_behind([outcome.tensors[i].grad_fn]))
        found.append(frozenset(places[id(end)] for end in ends if id(end) in places))
    return tuple(found)


def _sharing(outcome: Outcome, tangents: list[int]) -> tuple[frozenset[int], ...]:
    """``Joint.sharing``; empty where there is one result, which is always the same's."""
    if len(tangents) < 2:
        return ()
    by_node: dict[Any, set[int]] = {}
    for k, i in enumerate(tangents):
        for node in nodes_behind([outcome.tensors[i].grad_fn]):
            kind: Any = type(node)
            if names_of_saved(kind) or _is_custom(node):
                by_node.setdefault(node, set()).add(k)
    groups = set(map(frozenset, by_node.values()))
    return tuple(frozenset().union(*(group for group in groups if k in group)) for k in range(len(tangents)))


def _rests_on(nodes: list[Any]) -> tuple[Callable[[], bool], ...]:
    """``Joint.still``: a front end that has captured a custom backward leaves it at the autograd node."""
    found = (getattr(node, "still_holds", None) for node in nodes)
    return tuple({id(still): still for still in found if still is not None}.values())


def _dependences(outcome: Outcome, tangents: list[int]) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """``Joint.under`` and ``Joint.views``."""
    through = {index for index, _, through in outcome.mutations if through}
    leaves = outcome.leaves
    views = [at for at in outcome.views if leaves[at].kind == "output" or leaves[at].index not in through]
    count = len(tangents)
    results = [outcome.tensors[i] for i in tangents] + [outcome.views[at] for at in views]
    if len(results) < 2:
        return ((),) * count, ()
    edges = {(result.grad_fn, result.output_nr): k for k, result in enumerate(results)}
    found = []
    for k, result in enumerate(results[:count]):
        seen = nodes_behind([result.grad_fn])
        passed = {edges.get(edge) for node in seen for edge in node.next_functions}
        found.append([j for j in passed if j is not None and j != k])
    used = sorted({j for row in found for j in row if j >= count})
    places = {j: count + n for n, j in enumerate(used)}
    under = tuple(tuple(sorted(places.get(j, j) for j in row)) for row in found)
    return under, tuple(views[j - count] for j in used)
