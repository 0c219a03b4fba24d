"""The way from a prim-dialect envelope to a callable: one list of named steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from inductor_gen.codegen.c import CRenderer
from inductor_gen.codegen.renderer import KernelSource, Renderer
from inductor_gen.device.record import Asked, device_of, known
from inductor_gen.fuse.cluster import Cluster, Fusion
from inductor_gen.fuse.seams import cut
from inductor_gen.fuse.stages import fuse
from inductor_gen.loops.body import Body, split_request, trace, trace_scatter
from inductor_gen.loops.graph import Node
from inductor_gen.schedule.loopnest import Hint, arrange
from inductor_gen.schedule.plan import Plan, kept_nodes, plan
from inductor_gen.schedule.prepare import Prepared, prepare
from prims.dtypes import HALVES
from prims.ir import Envelope
from prims.options import Options
from prims.report import Report
from prims.spec import SymbolContext
from prims.spec import expr as ex
from prims.spec.expr import Expr

__all__ = ["STEPS", "Unit", "lower_graph"]



@dataclass(frozen=True)
class KernelCall:
    """A generated kernel to run: usually one loop nest, several where a loop was cut."""

    parts: tuple[KernelSource, ...]

    def written(self) -> list[Node]:
        """The buffers that it writes, each once."""
        return list(dict.fromkeys(n for p in self.parts for n in p.buffers[: p.outputs]))

    def buffers(self) -> list[Node]:
        """All buffers that it touches, each once."""
        return list(dict.fromkeys(n for p in self.parts for n in p.buffers))


@dataclass(frozen=True)
class ExternCall:
    """An operator to run through its own kernel."""

    node: Node


@dataclass
class Unit:
    """What the steps work on, and hand from one to the next.

    ``functions`` holds the operators, by name and callable, that were chosen otherwise than usual; ``precision`` is
    that of the float32 products that generated kernels compute; ``masks`` is what it may count on about attention
    masks; ``devices`` gives the record of a device that values live on.
    """

    env: Envelope
    options: Options
    hint: Hint
    triton: bool = False
    rendered: Callable[[KernelSource], None] | None = None
    report: Report | None = None
    prepared: Prepared | None = None
    fusion: Fusion | None = None
    plan: Plan | None = None
    functions: dict[Node, tuple[str, Callable[..., Any]]] = field(default_factory=dict)
    precision: str | None = None
    masks: Mapping[int, str] = field(default_factory=dict)
    devices: Asked = device_of
    calls: list[KernelCall | ExternCall] = field(default_factory=list)


def _prepare(unit: Unit) -> None:
    unit.prepared = prepare(unit.env, unit.hint, unit.masks, unit.options.numerics)


def _fuse(unit: Unit) -> None:
    assert unit.prepared is not None
    unit.fusion = fuse(unit.prepared.graph, unit.hint, kept_nodes(unit.prepared), unit.options.fuel)


def _plan(unit: Unit) -> None:
    assert unit.fusion is not None and unit.prepared is not None
    unit.plan = plan(unit.fusion, unit.prepared, unit.hint)


def body_of(unit: Unit, cluster: Cluster) -> Body:
    """The body of a kernel cluster; variables are split where that removes divisions from its indices."""
    assert unit.fusion is not None and unit.prepared is not None and unit.plan is not None
    rounding = unit.options.numerics != "fast"
    for _ in range(8):
        if cluster.loops:
            body = trace(unit.fusion, cluster, unit.plan.stored[cluster.id], unit.prepared.layouts, rounding)
        else:
            body = trace_scatter(unit.fusion, cluster, cluster.nodes[0], unit.prepared.layouts, rounding)
        request = split_request(body.indices(), body.space)
        if request is None or not unit.fusion.split(cluster, *request):
            return body
    return body


def _renderer(unit: Unit, cluster: Cluster, tiling: Any) -> Renderer:
    """Triton for values on a GPU (or where asked for), C for those on the CPU."""
    device = cluster.nodes[-1].device
    if unit.triton or (device is not None and device.type == "cuda"):
        from inductor_gen.codegen.triton import TritonRenderer

        assert unit.prepared is not None
        record = unit.devices(device or torch.device("cpu"))
        return TritonRenderer(unit.hint, unit.prepared.layouts, record, tiling, unit.options.numerics == "fast")
    return CRenderer(unit.hint, unit.options.threads)


def kernels_of(unit: Unit, cluster: Cluster, tiling: Any = None) -> Iterator[KernelSource]:
    """The kernels of a cluster, one after the other as they are rendered; ``tiling`` is Triton's."""
    assert unit.fusion is not None
    renderer = _renderer(unit, cluster, tiling)
    pieces = cut(unit.fusion, cluster) if cluster.loops else [cluster]
    if len(pieces) == 1:
        yield from renderer.render(arrange(body_of(unit, pieces[0]), unit.hint))
    else:
        yield from renderer.together([renderer.render(arrange(body_of(unit, p), unit.hint)) for p in pieces])


def _render(unit: Unit) -> None:
    assert unit.plan is not None
    pairs = _rendered(unit)
    order: list[Cluster] = []
    for call, cluster in pairs if unit.options.max_autotune else _together(unit, pairs):
        unit.calls.append(call)
        order.append(cluster)  # type: ignore[arg-type]
        if isinstance(call, KernelCall) and not unit.options.max_autotune:  # which may choose others
            _announce(unit, call.parts)
    unit.plan.order = order


def _rendered(unit: Unit) -> Iterator[tuple[KernelCall | ExternCall, Cluster]]:
    """The calls, each with its cluster, as they are rendered."""
    assert unit.plan is not None
    for cluster in unit.plan.order:
        if cluster.loops or cluster.nodes[0].kind == "scatter":
            yield KernelCall(tuple(kernels_of(unit, cluster))), cluster
        else:
            yield ExternCall(cluster.nodes[0]), cluster


def _together(unit: Unit, pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """The calls with their clusters, small independent kernels for a GPU in one launch."""
    assert unit.prepared is not None
    nodes = unit.prepared.graph.nodes
    if not unit.triton and not any(n.device is not None and n.device.type == "cuda" for n in nodes):
        return iter(pairs)
    from inductor_gen.schedule.launches import launched_together

    scattered = unit.prepared.scattered
    return launched_together(pairs, unit.hint, lambda node: scattered.get(node, node), unit.devices)


def _announce(unit: Unit, sources: Iterable[KernelSource]) -> None:
    if unit.rendered is not None:
        for source in sources:
            unit.rendered(source)


def _is_half_product(node: Node) -> bool:
    """Is it a product of 16-bit matrices on a GPU?"""
    on_gpu = node.device is not None and node.device.type == "cuda"
    return on_gpu and node.op in ("aten.mm.default", "aten.addmm.default") and node.dtype in HALVES


def _autotune(unit: Unit) -> None:
    """Put the fastest of several kernels or operators in the place of what was rendered, where that is asked for; else
    templates only where they are sure to be faster."""
    if unit.options.numerics == "eager_exact":
        return  # each operator is eager's own, or a kernel that gives the same bits however it is tiled
    if unit.options.max_autotune:
        from inductor_gen.templates import autotune

        autotune(unit)
        unit.calls = [call for call, _ in _together(unit, ((call, None) for call in unit.calls))]
    elif any(isinstance(call, ExternCall) and _is_half_product(call.node) for call in unit.calls):
        from inductor_gen.templates import settle_products

        settle_products(unit)
    else:
        return
    for call in unit.calls:
        if isinstance(call, KernelCall):
            _announce(unit, call.parts)


def _bound(unit: Unit) -> None:
    """Guard the sizes that 32-bit positions rely on, so that larger ones are compiled anew, with 64-bit positions.

    Kernels check them when they run too: guards that come after the program was captured are not looked at.
    """
    context = unit.env.symbols.context
    bounds: dict[Expr, None] = {}
    for call in unit.calls:
        for source in call.parts if isinstance(call, KernelCall) else ():
            bounds.update(dict.fromkeys(getattr(source, "bounds", ())))
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


#: Each step reads and completes the unit, in this order.
STEPS = (
    ("prepare", _prepare),
    ("fuse", _fuse),
    ("plan", _plan),
    ("render", _render),
    ("autotune", _autotune),
    ("bound", _bound),
)


def size_hint(env: Envelope) -> Hint:
    """A number for any size expression: the first values seen, 64 where none was."""
    hints: dict[str, Any] = {entry.name: entry.hint for entry in env.symbols}

    def hint(e: Expr) -> int:
        if e.kind == "const":
            return int(e.args[0])
        values = {s.name: hints.get(s.name) or 64 for s in e.symbols}
        return int(e.evaluate(values))

    return hint


def lower_graph(
    env: Envelope, options: Options, report: Report | None = None, triton: bool = False,
    rendered: Callable[[KernelSource], None] | None = None, masks: Mapping[int, str] | None = None,
    devices: Asked | None = None,
) -> Unit:  # fmt: skip
    """Run the steps; ``triton`` asks for Triton kernels also where values live on the CPU, and ``rendered`` is told of
    each kernel as soon as it is there. ``masks``: verdicts about attention masks that hold whenever the graph runs.
    ``devices``: what is known about devices, where that is not to be asked of this machine's; Triton's interpreter runs
    what would run on an H100.

    Raises:
        Unsupported: something in the graph has neither kernel nor operator.
    """
    if devices is None:
        devices = (lambda _: known("H100")) if triton else device_of
    unit = Unit(env, options, size_hint(env), triton, rendered, report, masks=masks or {}, devices=devices)
    for name, step in STEPS:
        if report is None:
            step(unit)
        else:
            with report.phase(f"inductor.{name}"):
                step(unit)
    return unit


__all__ += ["ExternCall", "KernelCall", "body_of", "kernels_of", "size_hint"]
