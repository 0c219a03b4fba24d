"""A graph that takes its own derivatives: what is computed again keeps apart from what it repeats, and comes late."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gen_support import build, check, laid_out

from inductor_gen.device.record import device_of
from inductor_gen.fuse.check import CONSTRAINTS, verify
from inductor_gen.fuse.cluster import Fusion
from inductor_gen.fuse.legality import merger
from inductor_gen.fuse.stages import fuse
from inductor_gen.loops.graph import Node
from inductor_gen.pipeline import planned, size_hint
from prims.errors import VerifierError
from prims.ir import Envelope, InputDesc, Mutation, OutputDesc
from prims.options import Options

mm = torch.ops.aten.mm.default
SIZE = (64, 64)


def activated(p: Any, x: Any) -> Any:
    return p.mul(x, p.sigmoid(x))


def two_layers(p: Any, x: Any, w: Any, v: Any, marked: bool = True) -> Any:
    """Two layers of a product and an activation, the gradient of the second weight, and of the first one."""
    first = p.aten(mm, x, w)
    second = p.aten(mm, activated(p, first), v)
    loss = p.sum(activated(p, second), (0, 1))
    p.late = "gradient" if marked else None
    gradient = p.mul(p.sigmoid(second), 2.0)
    back = p.aten(mm, gradient, p.permute(v, (1, 0)))
    p.late = "again" if marked else None
    again = p.permute(activated(p, first), (1, 0))
    p.late = "gradient" if marked else None
    other = p.aten(mm, p.permute(x, (1, 0)), p.mul(back, p.sigmoid(first)))
    return loss, p.aten(mm, again, gradient), other


def fused(fn: Any, shapes: Any, **renewed: Any) -> Fusion:
    env = build(fn, [torch.randn(s) for s in shapes])
    prepared = laid_out(env)
    return fuse(prepared.graph, size_hint(env), device_of, prepared.kept(), **renewed)


def names(nodes: Any) -> list[str]:
    return [node.op for node in nodes]


def test_what_is_computed_again_has_kernels_of_its_own() -> None:
    fusion = fused(two_layers, [SIZE] * 3)
    verify(fusion)
    made = [sorted(names(c.nodes)) for c in fusion.clusters.values() if c.loops and "mul" in names(c.nodes)]
    assert made.count(["mul", "sigmoid"]) >= 2  # the first activation, made and made again
    assert all(len({node.is_late for node in c.nodes}) == 1 for c in fusion.clusters.values())
    early = next(c for c in fusion.clusters.values() if c.loops and not c.late)
    late = next(c for c in fusion.clusters.values() if c.loops and c.late)
    assert merger(fusion, late, early, late.homes[late.nodes[0]], early.homes[early.nodes[0]]) is None


def test_results_are_those_of_the_graph_without_marks() -> None:
    inputs = [torch.randn(SIZE) / 16 for _ in range(3)]
    check(two_layers, inputs)
    check(lambda p, *x: two_layers(p, *x, marked=False), inputs)


def test_a_late_node_does_not_join_the_kernel_that_makes_what_it_reads() -> None:
    def fn(p: Any, x: Any, w: Any) -> Any:
        kept = p.sin(x)
        y = p.aten(mm, kept, w)
        p.late = "gradient"
        return y, p.mul(kept, 2.0)  # in the kernel of the sine it would be there before it is asked for

    fusion = fused(fn, [SIZE, SIZE])
    verify(fusion)
    assert [names(c.nodes) for c in fusion.in_line() if c.loops] == [["sin"], ["mul"]]


def mixed(fusion: Fusion) -> None:
    cluster = next(c for c in fusion.clusters.values() if c.loops and len(c.nodes) > 1)
    cluster.nodes[-1].late = None if cluster.late else "again"


def inlined(fusion: Fusion) -> None:
    """What is early is computed within a late kernel."""
    first = next(c for c in fusion.clusters.values() if c.loops and not c.late)
    late = next(c for c in fusion.clusters.values() if c.loops and c.late)
    early = next(node for node in first.nodes if node not in fusion.kept)
    fusion.inlined.add(early)
    late.nodes[0].ins = [early]


@pytest.mark.parametrize("damage", [mixed, inlined])
def test_fuse_c9_early_and_late_are_kept_apart(damage: Any) -> None:
    fusion = fused(two_layers, [SIZE] * 3)
    verify(fusion)
    damage(fusion)
    with pytest.raises(VerifierError) as caught:
        verify(fusion)
    assert caught.value.label == "FUSE-C9" in CONSTRAINTS


def test_a_value_read_by_late_kernels_is_not_made_within_them() -> None:
    """Sliced, an early product is cheaper to make again than to load; for a late reader its operands would be kept."""

    def fn(p: Any, x: Any, late: bool) -> Any:
        y = p.mul(p.sin(x), 2.0)
        p.late = "gradient" if late else None
        return p.exp(p.slice(y, (0, 3), SIZE, (1, 1)))

    apart, together = (fused(lambda p, x, late=late: fn(p, x, late), [SIZE]) for late in (True, False))
    assert len(apart.clusters) == 2 and not apart.inlined
    assert len(together.clusters) == 1 and together.inlined


def steps_of(env: Envelope, in_place: bool = False) -> list[Any]:
    """A graph's steps in the order in which they run."""
    return planned(env, Options(verify="every_pass"), in_place=in_place)[1]


def nodes_of(step: Any) -> tuple[Node, ...]:
    return step.nodes if hasattr(step, "nodes") else (step.node,)


def test_what_is_computed_again_runs_just_before_its_reader() -> None:
    def fn(p: Any, *x: Any) -> Any:
        values, kept = [x[0]], []
        for w in x[1:]:
            values.append(p.aten(mm, p.sin(values[-1]), w))
        gradient = values[-1]
        p.late = "again"
        again = [p.permute(p.sin(value), (1, 0)) for value in values[-2::-1]]  # all of them before the first reader
        p.late = "gradient"
        for value, w in zip(again, x[:0:-1], strict=True):
            kept.append(p.aten(mm, value, gradient))
            gradient = p.mul(p.aten(mm, gradient, p.permute(w, (1, 0))), 2.0)
        return tuple(kept)

    steps = steps_of(build(fn, [torch.randn(SIZE) for _ in range(5)]))
    again = [k for k, step in enumerate(steps) if all(node.late == "again" for node in nodes_of(step))]
    assert len(again) == 4
    for k in again:
        reader = min(j for j, step in enumerate(steps) if set(step.reads) & set(steps[k].writes))
        between = steps[k + 1 : reader]
        assert all(node.late == "again" for step in between for node in nodes_of(step)), (k, reader)


def with_update(rows: int) -> Envelope:
    """A bias whose gradient is a sum over many rows, the step that it takes, and an operator behind."""

    def fn(p: Any, x: Any, w: Any, bias: Any) -> Any:
        y = p.aten(mm, x, w)
        p.late = "gradient"
        gradient = p.mul(y, 2.0)
        new = p.sub(bias, p.mul(p.sum(gradient, (0,)), 0.1))
        return p.aten(mm, p.permute(x, (1, 0)), gradient), new

    env = build(fn, [torch.randn(rows, 64), torch.randn(SIZE), torch.randn(64)])
    inputs = (*env.inputs[:2], InputDesc("bias", "parameter", env.inputs[2].spec))
    outputs = (env.outputs[0], OutputDesc("mutation", env.outputs[1].spec))
    return env.replace(inputs=inputs, outputs=outputs, mutations=(Mutation(2, 1),))


def test_a_sum_of_gradients_does_not_wait_for_the_update_that_it_is_for() -> None:
    """An input is written when nothing can fail any more: the gradient of many rows would be in memory until then."""
    steps = steps_of(with_update(512), in_place=True)
    (update,) = [k for k, step in enumerate(steps) if "sub" in names(nodes_of(step))]
    assert update == len(steps) - 1 and "sum" not in names(nodes_of(steps[update]))
    assert sum("sum" in names(nodes_of(step)) for step in steps) == 1
