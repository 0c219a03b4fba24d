"""The way from a prim-dialect envelope to kernels in order: one list of named steps, each a function of what is before.

    rewrite   the graph, rewritten by a table of rows                            rewrite.table
    layout    the graph with copies where values must be laid out anew           layout.prepare
    fuse      clusters of nodes that share loops                                 fuse
    kernels   an immutable record for each kernel and each operator's call       kernel
    order     which runs first, and who writes parts of concatenations           plan.order, plan.parts
    choose    templates, other blocks, other operators in a kernel's stead       templates
    render    launches, and the text of each kernel                              plan.launches, codegen
    memory    which buffers share memory                                         plan.memory

``emit``, the function that runs them, is :mod:`inductor_gen.runtime.wrapper`'s.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from inductor_gen.codegen.edited import edited, write_sources
from inductor_gen.codegen.lowered import Lowered, Rendered
from inductor_gen.codegen.renderer import KernelSource
from inductor_gen.codegen.rendering import Rendering
from inductor_gen.device.record import Asked, device_of, known
from inductor_gen.extern.calls import function_of
from inductor_gen.extern.cuda import is_half_product
from inductor_gen.extern.policies import note_policies
from inductor_gen.fuse.check import text, verify
from inductor_gen.fuse.stages import fuse
from inductor_gen.kernel import ir
from inductor_gen.kernel.build import Builder
from inductor_gen.kernel.ir import Call, Kernel, Step, nbytes
from inductor_gen.layout.prepare import prepare
from inductor_gen.layout.record import Layout, Prepared, ViewRef, extent, strides_of
from inductor_gen.loops.graph import Graph, Node, build_graph, is_training, waits_on_host
from inductor_gen.loops.index import ZERO, Hint
from inductor_gen.plan.launches import launches
from inductor_gen.plan.memory import MemoryPlan, Sharing, plan_memory
from inductor_gen.plan.memory import text as memory_text
from inductor_gen.plan.memory import verify as verify_memory
from inductor_gen.plan.order import ordered
from inductor_gen.plan.parts import in_parts
from inductor_gen.plan.peak import Footprint, footprint, largest_at_peak
from inductor_gen.rewrite.row import Context
from inductor_gen.rewrite.table import Rewritten, rewrite
from prims.control import control_of
from prims.debug import keep
from prims.ir import Envelope, Fuel
from prims.options import Options
from prims.report import Report
from prims.spec import SymbolContext
from prims.spec import expr as ex
from prims.spec.context import likely
from prims.spec.expr import Expr

__all__ = ["lower_graph", "planned", "rewritten_graph", "size_hint"]

SMALL = 1 << 15  # bytes of a buffer that shares an allocation with others on a GPU
KEPT = 1 << 20  # bytes of the largest piece of memory that is kept there for a later buffer

#: Kinds of outputs that the program does not get: another graph or the runtime does.
_BETWEEN_GRAPHS = ("saved", "mutation")


def planned(
    env: Envelope, options: Options, report: Report | None = None, masks: Mapping[int, str] | None = None,
    devices: Asked = device_of, in_place: bool | str = False, graph: Graph | None = None,
) -> tuple[Builder, list[Step]]:  # fmt: skip
    """The steps up to the order of kernels, with the arguments of :func:`lower_graph`, and what made the kernels.

    Raises:
        Unsupported: something in the graph has neither kernel nor operator.
        VerifierError: a step broke a constraint (``Options.verify="every_pass"``).
    """
    report = Report() if report is None else report
    hint = size_hint(env)
    fuel = Fuel(options.fuel)  # the rows' changes count first, then fusions
    with report.phase("inductor.rewrite"):
        rewritten = rewritten_graph(env, options, masks or {}, devices, fuel, graph)
    keep(options, report, "rewritten", lambda: str(rewritten), log="schedule")
    with report.phase("inductor.layout"):
        prepared = prepare(rewritten.graph, env, hint, options.numerics, in_place)
    with report.phase("inductor.fuse"):
        written = prepared.updates(), prepared.renewed, prepared.renewing
        fusion = fuse(prepared.graph, hint, devices, prepared.kept(), fuel, *written)
    keep(options, report, "fused", lambda: text(fusion), log="schedule")
    with report.phase("inductor.kernels"):
        builder = Builder(prepared, fusion, hint, options.numerics != "fast", options.batch_invariant)
        made = list(builder.steps())
    with report.phase("inductor.order"):
        steps = ordered(made, prepared, hint)
        if not options.max_autotune:  # where kernels are measured and compared whole
            steps = in_parts(steps, builder, hint)
    if options.verify == "every_pass":
        verify(fusion)
        _verify(steps, prepared, builder.layouts)
    keep(options, report, "kernels", lambda: ir.text(steps), log="schedule")
    return builder, steps


def rewritten_graph(
    env: Envelope, options: Options, masks: Mapping[int, str] | None = None, devices: Asked = device_of,
    fuel: Fuel | None = None, graph: Graph | None = None,
) -> Rewritten:  # fmt: skip
    """The graph of an envelope after the rows that the options allow; ``graph`` is what :func:`build_graph` has made of
    the envelope for other numerics than ``"eager_exact"``, if it is there, and is changed."""
    own_strides = options.numerics == "eager_exact"
    graph = build_graph(env, own_strides) if graph is None or own_strides else graph
    context = Context(
        size_hint(env), devices, options.numerics, masks or {}, is_training(env), deterministic=options.deterministic
    )
    fuel = fuel or Fuel(options.fuel)
    return rewrite(graph, context, fuel, check=options.verify in ("every_pass", "reference"))


def lower_graph(
    env: Envelope, options: Options, report: Report | None = None, triton: bool = False,
    rendered: Callable[[KernelSource], None] | None = None, masks: Mapping[int, str] | None = None,
    devices: Asked | None = None, in_place: bool | str = False, graph: Graph | None = None,
) -> Lowered:  # fmt: skip
    """Run the steps; ``triton`` asks for Triton kernels also where values live on the CPU, and ``rendered`` is told of
    each kernel as soon as it is there. ``masks``: verdicts about attention masks that hold whenever the graph runs.
    ``devices``: what is known about devices, where that is not to be asked of this machine's; Triton's interpreter runs
    what would run on an H100. ``in_place``: inputs that the graph's mutations name may be written; ``"again"``: so that
    it may run twice on the same. ``graph``: as :func:`rewritten_graph` takes it.

    Raises:
        Unsupported: something in the graph has neither kernel nor operator.
        VerifierError: a step broke a constraint (``Options.verify="every_pass"``).
    """
    report = Report() if report is None else report
    if devices is None:
        devices = (lambda _: known("H100")) if triton else device_of
    builder, steps = planned(env, options, report, masks, devices, in_place, graph)
    hint, prepared = builder.hint, builder.prepared
    edit = functools.partial(edited, options=options, report=report) if options.sources else None
    rendering = Rendering(options, hint, builder.layouts, devices, triton, rendered, edit)
    precision = None
    attends = any(isinstance(step, Call) and control_of(step.node.target) is not None for step in steps)
    if attends or _has_choices(options, steps):
        from inductor_gen.templates.attention import in_kernels
        from inductor_gen.templates.choice import choose
        from inductor_gen.templates.problem import Draft

        with report.phase("inductor.choose"):
            draft = Draft(options, hint, prepared, builder, rendering, report)
            if attends:
                steps = in_kernels(draft, steps, lambda body: planned(body, options, devices=devices))
            if _has_choices(options, steps):
                steps, precision = choose(draft, steps)
    for step in steps if options.policies else ():
        if isinstance(step, Call):
            name = step.chosen[0] if step.chosen else function_of(step.node, *prepared.call_of(step.node), options)[0]
            note_policies(step.node, name, options, report)
    with report.phase("inductor.render"):
        alone = lambda kernel: kernel.nodes[0] in prepared.renewing  # it may turn out to move nothing
        together = launches(
            steps, lambda kernel: not alone(kernel) and rendering.starts_slowly(kernel),
            lambda kernel: None if alone(kernel) else _kind(kernel, rendering, prepared),
        )  # fmt: skip
        calls = tuple(c if isinstance(c, Call) else Rendered(c, rendering.launch(c)) for c in together)
    with report.phase("inductor.memory"):
        footprints = [c.footprint() if isinstance(c, Rendered) else footprint(c) for c in calls]
        memory = _memory(env, calls, footprints, prepared, builder.layouts, rendering, options)
        size = lambda node: 0 if node in memory.renewed else nbytes(node, hint)
        held = largest_at_peak(footprints, memory.dies, size)
        named = [(size, f"{node.op}, {_shape(node)}", node.source) for size, node in held]
        report.planned_memory(memory.peak, memory.bound, len(memory.pieces), memory.note, named)
        calls = tuple(
            replace(c, sources=()) if isinstance(c, Rendered) and c.moves_nothing(memory.renewed) else c for c in calls
        )
    keep(options, report, "memory", lambda: memory_text(memory), log="schedule")
    lowered = Lowered(env, options, hint, prepared, builder.layouts, calls, memory, precision)
    write_sources(lowered.sources(), options, report)
    _bound(env, lowered.sources())
    return lowered


def _has_choices(options: Options, steps: Iterable[Step]) -> bool:
    """May a template or another operator be taken for some step? Where bits are to be eager's, none may."""
    products = any(isinstance(step, Call) and is_half_product(step.node) for step in steps)
    asked = options.max_autotune or options.batch_invariant
    return options.numerics != "eager_exact" and (asked or products)


def _verify(steps: Iterable[Step], prepared: Prepared, layouts: Mapping[Node, Layout]) -> None:
    given = [n for n in prepared.graph.nodes if n.kind in ("input", "constant", "size")]
    ir.verify(list(steps), given, prepared.returned(), layouts)


def _kind(kernel: Kernel, rendering: Rendering, prepared: Prepared) -> tuple[Hashable, bool] | None:
    """What kernels are alike to do the same on many tensors, where that keeps no more memory alive: they take only
    inputs and little else, and may then run anywhere, or they give inputs new values in place, or make little."""
    if not rendering.in_triton(kernel):
        return None
    in_place = all(n in prepared.renewed for n in kernel.writes) and all(n.kind == "input" for n in kernel.updates)
    given = all(n.kind in ("input", "constant", "size") or nbytes(n, rendering.hint) <= SMALL for n in kernel.reads)
    little = all(nbytes(n, rendering.hint) <= SMALL for n in kernel.writes)
    row = rendering.row(kernel) if in_place or given or little else None
    return None if row is None else (row.key(), given)


def _shape(node: Node) -> str:
    """A value's type and shape, for people."""
    return f"{str(node.dtype).removeprefix('torch.')} [{', '.join(map(str, node.shape))}]"


def _memory(
    env: Envelope, calls: Sequence[Rendered | Call], footprints: Sequence[Footprint], prepared: Prepared,
    layouts: Mapping[Node, Layout], rendering: Rendering, options: Options,
) -> MemoryPlan:  # fmt: skip
    """Which buffers share memory. On a GPU only small pieces are kept for later: large ones go back to PyTorch's
    allocator, which gives their memory to operators too."""

    def size(node: Node) -> Expr:  # of a node with several results, none: those are nodes too
        single = node.dtype is not None and node.shape is not None and not waits_on_host(node)
        return extent(node.shape, strides_of(layouts, node), node.dtype) if single else ZERO  # type: ignore[arg-type]

    kernels = [k for call in calls if isinstance(call, Rendered) for k in call.launch.kernels]
    in_triton = any(map(rendering.in_triton, kernels))
    outputs = zip(env.outputs, prepared.outputs, strict=True)
    given = {prepared.storage(o.base) for d, o in outputs if isinstance(o, ViewRef) and d.kind not in _BETWEEN_GRAPHS}
    returned = prepared.returned()
    sharing = Sharing(
        size, max((rendering.device(k).alignment for k in kernels), default=1), SMALL if in_triton else 0,
        KEPT if in_triton else None, frozenset(returned) - given,
    )  # fmt: skip
    plan = plan_memory(footprints, returned, prepared.freed, rendering.hint, sharing)
    if options.verify == "every_pass":
        verify_memory(plan, footprints, prepared.freed, rendering.hint, sharing)
    return plan


def _bound(env: Envelope, sources: Iterable[KernelSource]) -> None:
    """Guard the sizes that 32-bit positions rely on, so that larger ones are compiled anew, with 64-bit positions.

    Kernels check them when they run too: guards that come after the program was captured are not looked at.
    """
    context = env.symbols.context
    bounds = dict.fromkeys(b for source in sources for b in getattr(source, "bounds", ()))
    if context is None or not bounds:
        return
    from inductor_gen.codegen.triton import POSITIONS

    for count in sorted(bounds, key=lambda e: (-len(e.symbols), str(e))):
        if context.hint(count) is not None and not any(_implied(count, larger, context) for larger in bounds):
            context.evaluate(ex.lt(count, ex.const(POSITIONS)), "positions in generated kernels are 32-bit")


def _implied(count: Expr, other: Expr, context: SymbolContext) -> bool:
    """Is a product of sizes at most another one?"""
    if count is other or len(count.terms) != 1 or len(other.terms) != 1:
        return False
    (mono, coefficient), (larger, factor) = count.terms[0], other.terms[0]
    powers = dict(larger)
    return (
        coefficient <= factor
        and all(power <= powers.get(atom, 0) for atom, power in mono)
        and all(context.bounds(atom)[0] >= 1 for atom in powers)
    )


def size_hint(env: Envelope) -> Hint:
    """A number for any size expression: the first values seen, likely ones where none was."""
    hints: dict[str, Any] = {e.name: e.hint or likely(e.min or 0, e.max) for e in env.symbols}

    def hint(e: Expr) -> int:
        if e.kind == "const":
            return int(e.args[0])
        values = {s.name: hints[s.name] if s.name in hints else likely(1, None) for s in e.symbols}
        return int(e.evaluate(values))

    return hint
