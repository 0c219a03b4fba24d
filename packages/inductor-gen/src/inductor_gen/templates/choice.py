"""What is run in a kernel's or an operator's stead: by measurement where that is asked for, else only what is sure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inductor_gen.codegen.renderer import KernelSource
from inductor_gen.extern.cuda import misaligned
from inductor_gen.kernel.ir import Call, Kernel, Step
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import product as volume
from inductor_gen.templates.contest import Shortage, decide
from inductor_gen.templates.matmul import Tile
from inductor_gen.templates.operators import find_operators
from inductor_gen.templates.precision import float32_precision
from inductor_gen.templates.problem import Candidate, Draft, Operator, Problem, numbers
from inductor_gen.templates.product import Product
from inductor_gen.templates.products import find_products
from inductor_gen.templates.tiles import fixed_tile, odd_tile, shallow_tile, spared
from inductor_gen.templates.tilings import find_tilings

__all__ = ["choose"]

#: Launches whose time a template of shallow products must spare in a call to be worth its second of compilation.
LEAST = 4.0


def choose(draft: Draft, steps: Sequence[Step]) -> tuple[list[Step], str | None]:
    """The steps, some of them replaced by faster ones that do the same, and the precision of the float32 products that
    templates compute (None where there are none)."""
    if draft.options.batch_invariant:
        return _in_fixed_tiles(draft, steps)
    return _autotuned(draft, steps) if draft.options.max_autotune else (_with_sure_products(draft, steps), None)


def _in_fixed_tiles(draft: Draft, steps: Sequence[Step]) -> tuple[list[Step], str | None]:
    """Every product that a template can compute is one in tiles that its rows have no say in; the library's kernels
    are chosen by them."""
    precision = float32_precision()

    def tiles(p: Product) -> tuple[Sequence[Tile], bool]:
        device = draft.rendering.devices(p.node.device)  # type: ignore[arg-type]
        n, k = numbers(draft.hint, (p.n, p.k))
        return (fixed_tile(n, k, p.node.dtype, precision, device),), True  # type: ignore[arg-type]

    problems = find_products(draft, steps, precision, tiles)
    for p in problems:
        node = steps[p.positions[0]].node  # type: ignore[union-attr]
        draft.report.policy("batch_invariant", node.op, "an own kernel with one order of its sums", node.source)
    made = _replaced(draft, steps, problems, [p.candidates[1] for p in problems])
    computes_float32 = any(isinstance(step, Kernel) and _computes_float32(draft, step) for step in made)
    return made, precision if computes_float32 else None


def _autotuned(draft: Draft, steps: Sequence[Step]) -> tuple[list[Step], str | None]:
    precision = float32_precision()
    shortage = Shortage()
    steps = _contest(draft, steps, find_products(draft, steps, precision), shortage)
    computes_float32 = any(isinstance(step, Kernel) and _computes_float32(draft, step) for step in steps)
    steps = _contest(draft, steps, find_tilings(draft, steps), shortage)
    steps = _contest(draft, steps, find_operators(draft, steps), shortage)
    shortage.tell(draft.report)
    return steps, precision if computes_float32 else None


def _with_sure_products(draft: Draft, steps: Sequence[Step]) -> list[Step]:
    """Templates in the place of products that they are sure to compute faster, without measuring.

    Those are products that the library does badly: a ``[4096, 768] @ [768, 50257]``, whose rows are misaligned, takes
    3.3 ms in cuBLAS on an H200, 0.54 as a template. (In cuBLAS with padded columns and a copy out of them it takes as
    long, and the memory of two results.) And shallow ones that a kernel reads, which spares a trip of the result
    through memory: ``[100352, 64] @ [64, 256]`` and what follows in a ResNet take 0.047 ms instead of 0.10.
    """

    gains: dict[Node, float] = {}

    def tiles(p: Product) -> tuple[Sequence[Tile], bool]:
        device = draft.rendering.devices(p.node.device)  # type: ignore[arg-type]
        if misaligned(p.node):
            return (odd_tile(device),), True
        m, n, k, count = numbers(draft.hint, (p.m, p.n, p.k, volume(p.batch)))
        tile = shallow_tile(m, n, k, p.node.dtype, device) if count == 1 else None  # type: ignore[arg-type]
        if tile is None:
            return (), False
        gains[p.node] = spared(m, n, k, tile, device) / device.launch_cost
        return (tile,), False

    problems = find_products(draft, steps, float32_precision(), tiles)
    return _replaced(draft, steps, problems, _worth_compiling(steps, problems, gains))


def _worth_compiling(steps: Sequence[Step], problems: list[Problem], gains: dict[Node, float]) -> list[Candidate]:
    """The templates, but those of shallow products only where one text serves enough of them; ``gains``: what each of
    these spares, in launches."""
    totals: dict[str, float] = {}
    shallow: dict[int, str] = {}
    for p in problems:
        gain = gains.get(steps[p.positions[0]].node)  # type: ignore[union-attr]
        if gain is not None:
            shallow[id(p)] = text = p.candidates[1].steps[-1].name
            totals[text] = totals.get(text, 0.0) + gain
    few = {at for at, text in shallow.items() if totals[text] < LEAST}
    return [p.candidates[0 if id(p) in few else 1] for p in problems]


def _computes_float32(draft: Draft, kernel: Kernel) -> bool:
    """Is it a template's product of float32 matrices?"""
    return not kernel.nests and any("input_precision=" in part.text for part in draft.rendering.of(kernel))


def _contest(draft: Draft, steps: Sequence[Step], problems: list[Problem], shortage: Shortage) -> list[Step]:
    """The steps with the winners of a contest in their places."""
    return _replaced(draft, steps, problems, decide(problems, draft, shortage)) if problems else list(steps)


def _replaced(draft: Draft, steps: Sequence[Step], problems: list[Problem], winners: list[Candidate]) -> list[Step]:
    """The steps with the winners in their places."""
    replaced: dict[int, list[Step]] = {}
    for problem, winner in zip(problems, winners, strict=True):
        if winner is not problem.candidates[0]:
            replaced.update((at, []) for at in problem.positions)
            replaced[problem.positions[-1]] = [_step_for(draft, [steps[at] for at in problem.positions], winner)]
    return [new for k, step in enumerate(steps) for new in replaced.get(k, [step])]


def _step_for(draft: Draft, usual: Sequence[Step], winner: Candidate) -> Step:
    """What runs in the place of some steps: an operator called otherwise, a kernel tiled otherwise, or a template's."""
    first = usual[0]
    if isinstance(first, Call) and isinstance(winner.steps[0], Operator):
        return replace(first, chosen=(winner.steps[0].name, winner.steps[0].function))
    sources = tuple(step for step in winner.steps if isinstance(step, KernelSource))
    kernel = first if isinstance(first, Kernel) else _template_kernel(usual, sources)
    draft.rendering.choose(kernel, sources)
    return kernel


def _template_kernel(usual: Sequence[Step], sources: Sequence[KernelSource]) -> Kernel:
    """A kernel that does what a product and the kernel after it did; it may not write the product itself."""
    made = {n for s in sources for n in s.buffers[: s.outputs]}
    writes = tuple(n for step in usual for n in step.writes if n in made)
    gone = {n for step in usual for n in step.writes}
    reads = dict.fromkeys(n for step in usual for n in step.reads if n not in gone)
    nodes = tuple(n for step in usual for n in (step.nodes if isinstance(step, Kernel) else (step.node,)))
    kernels = [step for step in usual if isinstance(step, Kernel)]
    return Kernel(
        nests=(), nodes=nodes, reads=tuple(reads), writes=writes, moved=sum(k.moved for k in kernels),
        work=sum(k.work for k in kernels),
    )  # fmt: skip
