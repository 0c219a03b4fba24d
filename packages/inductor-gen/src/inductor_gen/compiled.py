"""``compile_graph``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from inductor_gen.codegen.lowered import Lowered, Rendered
from inductor_gen.codegen.renderer import KernelSource
from inductor_gen.device.backends import backend
from inductor_gen.device.record import Asked
from inductor_gen.extern.control import with_bodies
from inductor_gen.kernel.ir import Call
from inductor_gen.kernel.traffic import Traffic
from inductor_gen.loops.graph import Graph, build_graph
from inductor_gen.pipeline import lower_graph, size_hint
from inductor_gen.rewrite.masks import MaskPlan, has_masks, plan_masks
from inductor_gen.runtime.compiler import load_kernels
from inductor_gen.runtime.graph import CompiledGraph, Kernel, Made, tell
from inductor_gen.runtime.heap import keep_heap
from inductor_gen.runtime.launch import as_launcher, launcher_for
from inductor_gen.runtime.libraries import FLAGS
from inductor_gen.runtime.wrapper import Wrapper
from inductor_gen.unit import Unit
from prims.artefact import NotPortable
from prims.forking import compiling
from prims.ir import Envelope
from prims.ir.reference import draws
from prims.options import Options
from prims.report import Report
from prims.spec import TensorSpec

__all__ = ["CompiledGraph", "Kernel", "compile_general", "compile_graph", "free_memory", "get_ready"]


@compiling()
def compile_graph(
    env_prim: Envelope, *, options: Options | None = None, report: Report | None = None, triton: bool = False,
    devices: Asked | None = None, in_place: bool = False,
) -> CompiledGraph:  # fmt: skip
    """Compile a prim-dialect envelope.

    Inputs must arrive with the sizes and strides of their descriptors; outputs have those of theirs. Mutations are
    not applied: the caller copies. With ``in_place`` the graph may apply some of them itself, where nobody needs what
    the input held before: the output is then the very input, and the caller has nothing to copy.

    ``report`` receives a record per kernel launch and extern call. Values on the CPU are computed by C kernels, those
    on a GPU by Triton's; with ``triton`` the CPU's are Triton's too, which needs its interpreter
    (``TRITON_INTERPRET=1``). ``devices`` gives the records that choices are made by instead of this machine's.

    Raises:
        UserError: there is no C compiler.
        Unsupported: the graph holds something that neither a kernel nor an operator can compute.
    """
    options = options if options is not None else Options.from_environment()
    report = Report() if report is None else report
    plan, graph = _masks(env_prim, options, report)
    if plan.question is None:
        return _compiled(env_prim, options, report, triton, plan.constant, devices, in_place, graph)
    from inductor_gen.runtime.masked import Choice, General

    again = "again" if in_place else False
    usual = _compiled(env_prim, options, report, triton, {**plan.constant, **plan.assumed}, devices, again, graph)
    general = General(
        lambda: _compiled(env_prim, options, report, triton, plan.constant, devices, again), lambda: _told(env_prim)
    )
    repeatable = all(map(_repeatable, env_prim.op_nodes))
    return Choice(plan.question, any(map(draws, env_prim.op_nodes)), repeatable, in_place, usual, general).graph()


def compile_general(
    env_prim: Envelope, *, options: Options, report: Report, in_place: bool
) -> CompiledGraph:  # fmt: skip
    """The graph that :func:`compile_graph` compiles for all attention masks, where it has another for usual ones."""
    plan, graph = _masks(env_prim, options, report)
    return _compiled(env_prim, options, report, False, plan.constant, None, "again" if in_place else False, graph)


def _told(env: Envelope) -> tuple[bytes, Mapping[str, torch.Tensor]]:
    """A graph of primitives for another process.

    Raises:
        NotPortable: that process may not know what it calls.
    """
    strange = next((node for node in env.op_nodes if not _repeatable(node)), None)
    if strange is not None:
        raise NotPortable(f"a compiled graph cannot be stored: for some attention masks it calls {strange.target}")
    from prims.ir import to_json

    return to_json(env, indent=None).encode(), env.constants


def _masks(env: Envelope, options: Options, report: Report) -> tuple[MaskPlan, Graph | None]:
    """What the graph may count on about attention masks; nothing where every rounding is to be as in eager, or the same
    on every run: which graph runs depends on earlier batches. And the graph, where one was looked at."""
    if options.numerics != "fast" or options.deterministic or not has_masks(env):
        return MaskPlan(), None
    with report.phase("inductor.masks"):
        graph = build_graph(env)
        return plan_masks(graph, env, size_hint(env)), graph


def _repeatable(node: torch.fx.Node) -> bool:
    """May it run twice for one call? Operators that somebody else has written may do anything."""
    return not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace in ("aten", "prims")


def _compiled(
    env_prim: Envelope, options: Options, report: Report, triton: bool, masks: Mapping[int, str],
    devices: Asked | None, in_place: bool | str, graph: Graph | None = None,
) -> CompiledGraph:  # fmt: skip
    """The graph compiled for calls in which these verdicts about attention masks hold; ``graph`` is the envelope's, if
    it is there already and nobody else's."""
    begun = _begin(env_prim, options)
    add = begun.add if begun is not None else None
    lowered = lower_graph(env_prim, options, report, triton, add, masks, devices, in_place, graph)

    def body(env: Envelope) -> Callable[[list[Any]], list[Any]]:
        return compile_graph(env, options=options, report=report, triton=triton, devices=devices).boxed

    found = {c: with_bodies(c.node, body) for c in lowered.calls if isinstance(c, Call)}
    calls = tuple(replace(c, chosen=found[c]) if isinstance(c, Call) and found[c] else c for c in lowered.calls)
    lowered = replace(lowered, calls=calls)
    with report.phase("inductor.compile"):
        wrapper, compiled = _load(lowered, options, report, begun)
    call = wrapper.build()
    made = _made(lowered, wrapper, options, any(found.values()))
    if options.cudagraphs:
        from inductor_gen.runtime.cuda_graphs import replayed

        once, call = call, replayed(call, env_prim, report)
        made = made if call is once else "it is recorded and replayed as a CUDA graph"
    if lowered.precision is not None:
        from inductor_gen.templates.precision import while_precision

        untuned = options.replace(max_autotune=False)

        def otherwise() -> Callable[[Any], list[Any]]:
            return _compiled(env_prim, untuned, report, triton, masks, devices, in_place).boxed

        call = while_precision(lowered.precision, call, otherwise)
    kernels = [
        _kernel(step, moved) for step, moved in zip(lowered.calls, wrapper.moved, strict=True)
        if isinstance(step, Rendered) and step.sources
    ]  # fmt: skip
    compiled_graph = CompiledGraph(
        call, wrapper.source, kernels, wrapper.externs, compiled, len(env_prim.inputs), made, wrapper.steps,
        lowered.least(wrapper.moved),
    )  # fmt: skip
    tell(compiled_graph, options, report, len({source.name for source in lowered.sources()}) + 1)  # and the launcher
    return compiled_graph


def _made(lowered: Lowered, wrapper: Wrapper, options: Options, bodies: bool) -> Made | str:
    """What a graph's function is made of, or what keeps that from being stored."""
    gpu = getattr(wrapper, "device", None)
    if gpu is not None and gpu.type != "cuda":
        return "its kernels run in Triton's interpreter"
    if lowered.precision is not None:
        return "it was chosen by measurement for one precision of float32 products"
    if bodies:
        return "it runs the bodies of a branch or a loop"
    if any(source.language == "c" and _loader(source) is not None for source in lowered.sources()):
        return "its kernels were compiled and loaded by a function of the program's"
    rounds = options.numerics, *options.policies
    launcher = wrapper.addresses[launcher_for(gpu is not None).name]
    return Made(wrapper.values(), wrapper.programs, launcher, FLAGS, rounds, gpu)


def free_memory() -> None:
    """Give back the memory that compiled graphs hold between calls: that of CUDA-graph recordings."""
    graphs = sys.modules.get("inductor_gen.runtime.cuda_graphs")
    if graphs is not None:
        graphs.forget_recordings()


def get_ready(options: Options) -> None:
    """Start what compiling for a GPU will need, where the program uses one: a process that imports Triton meanwhile."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        with compiling():
            from inductor_gen.runtime import triton_build

        triton_build.get_ready(None, options)


def _begin(env: Envelope, options: Options) -> Any:
    """What compiles kernels while the graph is still being lowered, for the first device that has such a thing."""
    specs = [*(d.spec for d in env.inputs), *(d.spec for d in env.outputs)]
    devices = {s.device.type: s.device for s in reversed(specs) if isinstance(s, TensorSpec)}
    return next(filter(None, (backend(kind)["begin"](device, options) for kind, device in devices.items())), None)


def _load(lowered: Lowered, options: Options, report: Report, begun: Any = None) -> tuple[Wrapper, int]:
    """The wrapper of a lowered graph with its kernels loaded, and how many of them had to be compiled."""
    sources = {s.name: s for s in lowered.sources()}
    in_c = [s for s in sources.values() if s.language == "c"]
    in_triton: list[Any] = [s for s in sources.values() if s.language == "triton"]
    keep_heap()
    launcher = launcher_for(bool(in_triton))
    addresses, compiled = _load_c(in_c, launcher, options, report)
    launch = as_launcher(addresses[launcher.name])
    if not in_triton:
        return Wrapper(lowered, addresses, launch), compiled
    from inductor_gen.runtime.triton_wrapper import triton_wrapper

    wrapper, more = triton_wrapper(lowered, addresses, launch, in_triton, options, begun, report)
    return wrapper, compiled + more


def _load_c(
    sources: Sequence[KernelSource], launcher: Unit, options: Options, report: Report
) -> tuple[dict[str, int], int]:
    """The addresses of C kernels and of the launcher by name, and how many had to be compiled: each kind of device's
    kernels by what its row names, those that it does by ours in one go with the launcher."""
    ours: list[Unit] = [launcher]
    others: dict[Callable[..., Any], list[KernelSource]] = {}
    for source in sources:
        if (load := _loader(source)) is None:
            ours.append(source)
        else:
            others.setdefault(load, []).append(source)
    addresses, compiled = load_kernels(ours, options, report)
    for load, some in others.items():
        found, count = load(some, options)
        addresses, compiled = {**addresses, **found}, compiled + count
    return addresses, compiled


def _loader(source: KernelSource) -> Callable[..., Any] | None:
    """What compiles and loads a C kernel for its device, unless that is what does so for the CPU."""
    load = backend(source.buffers[0].device.type)["load"]  # type: ignore[union-attr]
    return None if load is load_kernels else load


def _kernel(call: Rendered, moved: Sequence[Traffic]) -> Kernel:
    parts = {p.name: p for p in call.sources}
    text = "\n".join(p.named() for p in parts.values())
    pasted = 1 + sum(max(len(getattr(p, "joined", ())) - 1, 0) for p in call.sources)  # stages of one are no paste
    lines = tuple(dict.fromkeys(str(n.source) for k in call.launch.kernels for n in k.nodes if n.source is not None))
    loops = sum(p.loops for p in call.sources)
    read, written = sum(one.read for one in moved), sum(one.written for one in moved)
    launches = tuple(p.name for p in call.sources)
    return Kernel(call.sources[0].name, call.sources[0].ops, text, loops, pasted, lines, read, written, launches)
