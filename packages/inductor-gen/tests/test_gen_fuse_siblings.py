"""Which kernels that share values become one, for C and for Triton, and what is recorded and checked of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gen_support import OPTIONS, build, check, laid_out, of_server
from test_gen_fusion import keep, layer_norm, softmax

from inductor_gen.codegen.lowered import Lowered, Rendered
from inductor_gen.device.record import known
from inductor_gen.fuse.check import CONSTRAINTS, text, verify
from inductor_gen.fuse.cluster import Fusion, substituted
from inductor_gen.fuse.order import Move
from inductor_gen.fuse.stages import fuse
from inductor_gen.kernel.ir import Kernel
from inductor_gen.pipeline import lower_graph, size_hint
from prims.errors import VerifierError
from prims.ir import Fuel
from prims.options import Options
from prims.spec import expr as ex

mm = torch.ops.aten.mm.default


def batch_norm_backward(p: Any, g: Any, x: Any, mean: Any, scale: Any) -> Any:
    """The sums over a batch and its images that the gradients of a batch norm take, and the input's gradient."""
    dims = (0, 2, 3)

    def spread(v: Any) -> Any:
        return p.broadcast(v, x.shape, (1,))

    centred = p.sub(x, spread(mean))
    total, product = p.sum(g, dims), p.sum(p.mul(g, centred), dims)
    count = float(x.shape[0] * x.shape[2] * x.shape[3])
    part = p.add(spread(p.div(total, count)), p.mul(centred, spread(p.div(product, count))))
    return p.mul(p.sub(g, part), spread(scale)), total, product


def layer_norm_backward(p: Any, g: Any, x: Any, w: Any) -> Any:
    """The gradients of a layer norm's operands: one row at a time, and sums over all rows."""
    last = (len(x.shape) - 1,)
    rows = tuple(range(len(x.shape) - 1))
    mean = p.div(p.sum(x, last), float(x.shape[-1]))
    d = p.sub(x, keep(p, mean, x, last))
    scale = p.rsqrt(p.add(p.div(p.sum(p.mul(d, d), last), float(x.shape[-1])), 1e-5))
    y = p.mul(d, keep(p, scale, x, last))
    gw = p.mul(g, p.broadcast(w, x.shape, last))
    a = keep(p, p.div(p.sum(gw, last), float(x.shape[-1])), x, last)
    b = keep(p, p.div(p.sum(p.mul(gw, y), last), float(x.shape[-1])), x, last)
    gx = p.mul(p.sub(p.sub(gw, a), p.mul(y, b)), keep(p, scale, x, last))
    return gx, p.sum(p.mul(g, y), rows), p.sum(g, rows)


def scaled(p: Any, x: Any, by: Any) -> Any:
    return p.mul(x, p.broadcast(by, x.shape, (1,)))


def every_second(p: Any, x: Any, rows: int, columns: int) -> Any:
    """x with every second column replaced by its sine, as a slice is written back: the columns of pairs are asked which."""
    pairs = (columns + 1) // 2
    part = p.sin(p.slice(x, (0, 0), (rows, columns), (1, 2)))
    wide = p.reshape(p.pad(x, 0.0, (0, 0), (0, 2 * pairs - columns)), (rows, pairs, 2))
    at = p.broadcast(p.iota(2, 0, 1, torch.int64, torch.device("cpu")), wide.shape, (2,))
    both = p.where(p.eq(at, 0), p.broadcast(part, wide.shape, (0, 1)), wide)
    return p.slice(p.reshape(both, (rows, 2 * pairs)), (0, 0), (rows, columns), (1, 1))


def places(p: Any, x: Any) -> Any:
    return p.iota(x.shape[0], 0, 1, torch.int64, torch.device("cpu"))


MATRIX, IMAGES = (64, 96), (4, 8, 12, 10)

#: What is computed, of operands of these shapes, in how many kernels. Reductions over different dimensions, and
#: values that are read in another order, have no loops in common.
TABLE: dict[str, tuple[Any, list[tuple[int, ...]], int]] = {
    "two functions": (lambda p, x: (p.sin(x), p.cos(x)), [MATRIX], 1),
    "two reductions": (lambda p, x: (p.sum(x, (1,)), p.amax(x, (1,))), [MATRIX], 1),
    "a reduction and a function": (lambda p, x: (p.sum(x, (1,)), p.exp(x)), [MATRIX], 1),
    "a reduction of columns and a function": (lambda p, x: (p.exp(x), p.sum(x, (0,))), [MATRIX], 1),
    "a reduction of all and a function": (lambda p, x: (p.sum(x, (0, 1)), p.exp(x)), [MATRIX], 1),
    "four of one operand": (
        lambda p, x: (p.amin(x, (1,)), p.sum(p.mul(x, x), (1,)), p.tanh(x), softmax(p, x)), [MATRIX], 1,
    ),
    "a chain of pairs": (
        lambda p, x, y, z: (p.add(x, y), p.mul(y, z), p.sub(z, x)), [MATRIX, MATRIX, MATRIX], 1,
    ),
    "through a permutation of both": (
        lambda p, x: (p.sum(p.permute(x, (1, 0)), (0,)), p.exp(x)), [MATRIX], 1,
    ),
    "through a reshape": (lambda p, x: (p.exp(p.reshape(x, (4, 16, 96))), p.sum(x, (1,))), [MATRIX], 1),
    "rows and columns": (lambda p, x: (p.sum(x, (0,)), p.sum(x, (1,))), [MATRIX], 2),
    "a scan and a function": (lambda p, x: (p.cumsum(x, 1), p.exp(x)), [MATRIX], 2),
    "different sizes": (
        lambda p, x: (p.exp(x), p.sin(p.slice(x, (0, 0), (64, 48), (1, 1)))), [MATRIX], 2,
    ),
    "a small value alone": (lambda p, x, y, b: (scaled(p, x, b), scaled(p, y, b)), [MATRIX, (32, 96), (96,)], 2),
    "through another kernel": (
        lambda p, x, w: (p.add(p.aten(mm, p.sin(x), w), x), p.cos(x)), [(96, 96), (96, 96)], 2,
    ),
    "a batch norm's backward": (batch_norm_backward, [IMAGES, IMAGES, (8,), (8,)], 1),
    "a layer norm's backward": (layer_norm_backward, [MATRIX, MATRIX, (96,)], 2),
}  # fmt: skip


def operands(shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape) for shape in shapes]


@pytest.mark.parametrize("what", TABLE)
def test_kernels_that_share_what_they_read_in_c(what: str) -> None:
    fn, shapes, kernels = TABLE[what]
    case = check(fn, operands(shapes), tol=2e-4, options=Options(verify="every_pass"))
    assert case.kernels == kernels


@pytest.mark.parametrize("shape", [(3, 5), (64, 95), (4, 6)], ids=str)
@pytest.mark.parametrize(
    "fn",
    [
        lambda p, x: (p.exp(x), p.neg(every_second(p, x, *x.shape))),
        lambda p, x: (y := p.exp(x), p.neg(every_second(p, y, *x.shape))),
        lambda p, x: (p.index_put(x, (places(p, x),), (0,), p.sin(x), False), every_second(p, x, *x.shape)),
        lambda p, x: (p.exp(x), p.neg(p.flip(every_second(p, x, *x.shape), (1,)))),
    ],
    ids=["of what is read", "of what is made", "a copy", "backwards"],
)
def test_a_value_read_at_every_second_place_is_made_at_every_place(fn: Any, shape: tuple[int, ...]) -> None:
    """``2*(i//2)``, where a slice is written back, begins at the first element and may end at the last one."""
    check(fn, operands([shape]), tol=2e-4, options=Options(verify="every_pass"))


@pytest.mark.parametrize("device", ["A100-80GB", "L4", "B200"])
@pytest.mark.parametrize("what", TABLE)
def test_kernels_that_share_what_they_read_in_triton(what: str, device: str) -> None:
    fn, shapes, kernels = TABLE[what]
    lowered = lower_graph(build(fn, operands(shapes)), OPTIONS, triton=True, devices=lambda _: known(device))
    assert len(kernels_of(lowered)) == kernels


def kernels_of(lowered: Lowered) -> list[Kernel]:
    """The kernels, those that one launch starts side by side each on its own."""
    return [kernel for call in lowered.calls if isinstance(call, Rendered) for kernel in call.launch.kernels]


@pytest.mark.parametrize(
    "what, bytes_of_bound",
    [
        ("two functions", lambda n: 3 * n),
        ("a reduction and a function", lambda n: 2 * n + 64 * 4),
        ("a batch norm's backward", lambda n: 3 * n + 4 * 8 * 4),
        # Rows and columns cannot share loops: both operands are read in both, and what each row has in common.
        ("a layer norm's backward", lambda n: 5 * n + 4 * 64 * 4 + 3 * 96 * 4),
    ],
)
def test_no_more_bytes_than_have_to_be_moved(what: str, bytes_of_bound: Any) -> None:
    fn, shapes, _ = TABLE[what]
    lowered = lower_graph(build(fn, operands(shapes)), OPTIONS)
    size = operands(shapes)[0].numel() * 4
    assert 0.99 * bytes_of_bound(size) <= sum(k.moved for k in kernels_of(lowered)) <= 1.1 * bytes_of_bound(size)


def fused(fn: Any, shapes: list[tuple[int, ...]], fuel: int | None = None) -> Fusion:
    env = build(fn, operands(shapes))
    prepared = laid_out(env)
    return fuse(prepared.graph, size_hint(env), of_server, prepared.kept(), Fuel(fuel))


def test_results_that_are_used_up_in_turn_do_not_stand_side_by_side() -> None:
    """One kernel for all would have all its results in memory at once."""

    def fn(p: Any, x: Any, w: Any) -> Any:
        total = None
        for k in range(6):
            part = p.aten(mm, p.mul(x, float(k + 2)), w)
            total = part if total is None else p.aten(mm, p.add(total, part), w)
        return total

    large = fused(fn, [(2048, 1024), (1024, 1024)])
    assert not any(f.stage == "sibling" for c in large.clusters.values() for f in c.fused)


def test_scans_do_not_slow_down_what_runs_side_by_side() -> None:
    def fn(p: Any, x: Any, y: Any, z: Any) -> Any:
        return p.cumsum(p.add(p.add(x, y), z), 1)

    assert len(fused(fn, [(512, 40)] * 3).clusters) == 1
    env = build(fn, operands([(2, 40_000)] * 3))
    prepared = laid_out(env)
    on_gpu = fuse(prepared.graph, size_hint(env), lambda _: known("B200"), prepared.kept())
    assert len(on_gpu.clusters) == 2  # two programs would read all three


def test_more_than_registers_hold_is_not_put_together() -> None:
    def fn(p: Any, *xs: Any) -> Any:
        return tuple(p.sum(p.mul(xs[0], x), (1,)) for x in xs)

    env = build(fn, operands([(64, 8192)] * 24))
    prepared = laid_out(env)
    fusion = fuse(prepared.graph, size_hint(env), lambda _: known("A100-80GB"), prepared.kept())
    buffers = [len({b for n in c.nodes for b in fusion.bases(n)} - set(c.nodes)) for c in fusion.clusters.values()]
    assert 2 < len(buffers) < 24 and max(buffers) <= 8


def test_fuel_counts_every_stage_and_any_of_it_is_right() -> None:
    fn, shapes, _ = TABLE["four of one operand"]
    full = fused(fn, shapes)
    made = sum(len(c.fused) for c in full.clusters.values())
    counts = []
    for fuel in range(made + 1):
        fusion = fused(fn, shapes, fuel)
        verify(fusion)
        assert sum(len(c.fused) for c in fusion.clusters.values()) == fuel
        counts.append(len(fusion.clusters))
    assert counts[0] > counts[-1] == len(full.clusters) == 1
    for fuel in (0, made // 2, made - 1):
        check(fn, operands(shapes), tol=2e-4, options=Options(verify="every_pass", fuel=fuel))


def test_the_text_says_what_is_together_and_why() -> None:
    def fn(p: Any, x: Any, w: Any) -> Any:
        y = p.aten(mm, p.exp(x), w)
        return p.sum(y, (1,)), p.sin(y)

    made = text(fused(fn, [(8, 16), (16, 16)]))
    assert made == text(fused(fn, [(8, 16), (16, 16)]))
    assert made.splitlines() == [
        "kernel 0 [p0: 8, p1: 16]",
        "  %2:exp [p0, p1] reads %0:x0 kept",
        "operator 1: %3:aten.mm.default",
        "kernel 2 [p0: 8, r1: 16]; sibling 1 (512 bytes saved)",
        "  %4:sum [p0] reads %3:aten.mm.default kept",
        "  %5:sin [p0, r1] reads %3:aten.mm.default kept",
    ]


def test_inlined_nodes_are_recorded_where_they_are_computed() -> None:
    def fn(p: Any, x: Any) -> Any:
        return p.exp(p.slice(p.mul(x, 2.0), (0, 3), (64, 96), (1, 1)))

    fusion = fused(fn, [MATRIX])
    (cluster,) = fusion.clusters.values()
    assert [f.stage for f in cluster.fused] == ["inline"] and cluster.fused[0].saved == 2 * 64 * 96 * 4
    assert "inlined: %1:mul" in text(fusion)


# ---- the verifier ---------------------------------------------------------------------------------------


def program(p: Any, x: Any, w: Any, b: Any) -> Any:
    y = p.aten(mm, layer_norm(p, x, b, b), w)
    return p.sin(p.slice(p.mul(y, 2.0), (0, 0), (8, 8), (1, 1))), p.add(softmax(p, y), p.sum(y, (0, 1)) if False else y)


def two_lost(fusion: Fusion) -> None:
    cluster = next(c for c in fusion.clusters.values() if c.loops and len(c.nodes) > 2)
    del fusion.of[cluster.nodes.pop()]


def in_two(fusion: Fusion) -> None:
    one, other = [c for c in fusion.clusters.values() if c.loops][:2]
    other.nodes.append(one.nodes[0])
    other.homes[one.nodes[0]], other.operands[one.nodes[0]] = one.homes[one.nodes[0]], one.operands[one.nodes[0]]


def kept_inlined(fusion: Fusion) -> None:
    fusion.kept.update(fusion.inlined)


def elsewhere(fusion: Fusion) -> None:
    """Read a value one element beside its home."""
    cluster = next(c for c in fusion.clusters.values() if c.inner)
    node = next(n for n in cluster.nodes if len(cluster.homes[n]) == 2)
    cluster.homes[node] = cluster.operands[node] = cluster.homes[node][::-1]


def backwards(fusion: Fusion) -> None:
    first, last = [c.id for c in fusion.clusters.values() if c.loops][:2]
    fusion.order._remove(first)
    fusion.order._insert([first], last)


def reduced_partly(fusion: Fusion) -> None:
    cluster = next(c for c in fusion.clusters.values() if c.inner)
    extent = next(iter(cluster.space.values()))
    cluster.space.update(dict.fromkeys(fusion.variables(cluster, extent), extent))


def second_left_out(fusion: Fusion) -> None:
    """Compute what a slice by two would be written back to, in a kernel whose nodes agree about where they are."""
    cluster = next(c for c in fusion.clusters.values() if c.inner)
    v = next(iter(cluster.space))
    left_out = {v: ex.mul(ex.const(2), ex.floordiv(v, ex.const(2)))}
    cluster.homes, cluster.operands = (substituted(x, left_out) for x in (cluster.homes, cluster.operands))


def half_as_often(fusion: Fusion) -> None:
    cluster = next(c for c in fusion.clusters.values() if c.inner)
    v = next(iter(cluster.space))
    cluster.space[v] = ex.floordiv(cluster.space[v], ex.const(2))


@pytest.mark.parametrize(
    "label, damage",
    [
        ("FUSE-C10", second_left_out), ("FUSE-C10", half_as_often), ("FUSE-C1", two_lost), ("FUSE-C1", in_two), ("FUSE-C2", kept_inlined), ("FUSE-C3", elsewhere),
        ("FUSE-C4", backwards), ("FUSE-C5", reduced_partly),
    ],
)  # fmt: skip
def test_what_is_broken_is_found(label: str, damage: Any) -> None:
    fusion = fused(program, [(8, 16), (16, 16), (16,)])
    verify(fusion)
    damage(fusion)
    with pytest.raises(VerifierError) as caught:
        verify(fusion)
    assert caught.value.label == label in CONSTRAINTS


def test_fuse_c6_random_numbers_are_drawn_in_the_order_of_the_graph() -> None:
    def fn(p: Any, x: Any) -> Any:
        draw = torch.ops.aten.bernoulli.p
        return p.aten(draw, x, 0.5), p.aten(draw, x, 0.25)

    fusion = fused(fn, [(8, 8)])
    assert len(fusion.random) == 2
    verify(fusion)
    fusion.random.reverse()
    with pytest.raises(VerifierError) as caught:
        verify(fusion)
    assert caught.value.label == "FUSE-C6"


def test_a_move_that_is_not_legal_is_not_offered() -> None:
    fusion = fused(lambda p, x, w: p.aten(mm, p.aten(mm, p.exp(x), w), w), [(16, 16), (16, 16)])
    first, second, third = sorted(fusion.clusters)
    assert fusion.order.together(first, third) is None and fusion.order.together(first, second) == Move()
    assert [fusion.order.sources(c) for c in (first, second, third)] == [[], [first], [second]]
