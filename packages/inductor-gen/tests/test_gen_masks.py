"""Attention masks that are constants: left out, or turned into the causal flag, before anything runs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from gen_support import build, laid_out

import inductor_gen
from inductor_gen.loops.graph import build_graph
from inductor_gen.pipeline import size_hint
from inductor_gen.rewrite import masks
from inductor_gen.rewrite.masks import plan_masks

CUDNN = torch.ops.aten._scaled_dot_product_cudnn_attention.default
EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention.default
LOWEST = torch.finfo(torch.bfloat16).min


@pytest.fixture(autouse=True)
def _short_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short masks are not worth a question on the CPU, but as good for tests."""
    monkeypatch.setattr(masks, "LONG", 0)


def triangle(p: Any, size: int, hidden: float, ahead: int = 0) -> Any:
    """``[1, 1, size, size]``: 0 where a column is at most ``ahead`` columns after its row, else ``hidden``."""
    device = torch.device("cpu")
    place = p.iota(size, 0, 1, torch.int64, device)
    rows, columns = (p.broadcast(place, (1, 1, size, size), (d,)) for d in (2, 3))
    seen = p.le(columns, p.add(rows, ahead))
    dtype = torch.bfloat16
    return p.where(seen, p.full((1, 1, size, size), 0.0, dtype, device), p.full((1, 1, size, size), hidden, dtype, device))


def prepared_args(mask_of: Any, op: Any = CUDNN) -> tuple[Any, ...]:
    """The operator's arguments after preparation, where ``mask_of(p, x)`` makes the mask."""
    q = torch.randn(2, 3, 16, 8).bfloat16()
    x = torch.randn(1, 1, 16, 16).bfloat16()

    def fn(p: Any, a: Any, given: Any) -> Any:
        mask = p.broadcast(mask_of(p, given), (2, 3, 16, 16), (0, 1, 2, 3))
        return p.aten(op, a, a, a, mask, False)[0]

    env = build(fn, [q, x], claims=inductor_gen.claims("cuda"))
    prepared = laid_out(env, plan_masks(build_graph(env), env, size_hint(env)).constant)
    (node,) = [n for n in prepared.graph.nodes if n.kind == "extern"]
    return prepared.externs[node][0]


@pytest.mark.parametrize("op", [CUDNN, EFFICIENT])
@pytest.mark.parametrize("hidden", [float("-inf"), LOWEST, -65536.0])
def test_a_triangle_is_the_causal_flag(op: Any, hidden: float) -> None:
    args = prepared_args(lambda p, x: triangle(p, 16, hidden), op)
    assert args[3] is None and args[5] == 0.0 and args[6] is True


def test_a_mask_that_hides_nothing_is_left_out() -> None:
    args = prepared_args(lambda p, x: triangle(p, 16, float("-inf"), ahead=16))
    assert args[3] is None and args[6] is False


@pytest.mark.parametrize(
    "mask",
    [
        lambda p, x: triangle(p, 16, float("-inf"), ahead=1),
        lambda p, x: triangle(p, 16, float("-inf"), ahead=-1),
        lambda p, x: triangle(p, 16, -5.0),
        lambda p, x: triangle(p, 16, -65280.0),
        lambda p, x: p.add(triangle(p, 16, float("-inf")), 1.0),
        lambda p, x: p.add(triangle(p, 16, float("-inf")), x),
        lambda p, x: x,
    ],
)
def test_other_masks_stay(mask: Any) -> None:
    args = prepared_args(mask)
    assert args[3] is not None and (len(args) < 7 or args[6] is False)


# ---- masks that depend on inputs ------------------------------------------------------------------------


def plan_of(mask_of: Any, inputs: list[torch.Tensor], kinds: tuple[str, ...] = ()) -> Any:
    """What is planned for an attention whose mask ``mask_of(p, *inputs)`` makes; ``[2, 1, 16, 16]`` or like it."""
    q = torch.randn(2, 3, 16, 8).bfloat16()

    def fn(p: Any, a: Any, *given: Any) -> Any:
        made = mask_of(p, *given)
        mask = p.broadcast(made, (2, 3, 16, 16), tuple(range(4 - made.ndim, 4)))
        return p.aten(CUDNN, a, a, a, mask, False)[0]

    env = build(fn, [q, *inputs], claims=inductor_gen.claims("cuda"))
    descs = [env.inputs[0], *(dataclasses.replace(d, kind=k) for d, k in zip(env.inputs[1:], kinds, strict=False))]
    env = env.replace(inputs=(*descs, *env.inputs[len(descs) :]))
    return plan_masks(build_graph(env), env, size_hint(env))


def additive(p: Any, seen: Any) -> Any:
    """0 where truth values are true, else -inf."""
    return p.where(seen, p.full(tuple(seen.shape), 0.0, torch.bfloat16, torch.device("cpu")), float("-inf"))


def padding(p: Any, given: Any, causal: bool) -> Any:
    """``[2, 1, 16, 16]``: hidden where ``given`` ``[2, 16]`` is zero, and later columns too if ``causal``."""
    seen = p.broadcast(p.convert(given, torch.bool), (2, 1, 16, 16), (0, 3))
    if not causal:
        return additive(p, seen)
    place = p.iota(16, 0, 1, torch.int64, torch.device("cpu"))
    rows, columns = (p.broadcast(place, (2, 1, 16, 16), (d,)) for d in (2, 3))
    return additive(p, p.logical_and(seen, p.le(columns, rows)))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
@pytest.mark.parametrize("causal", [False, True])
def test_padding_that_hides_nothing_gives_a_verdict(dtype: torch.dtype, causal: bool) -> None:
    given = torch.ones(2, 16).to(dtype)
    plan = plan_of(lambda p, x: padding(p, x, causal), [given])
    assert not plan.constant and list(plan.assumed.values()) == ["causal" if causal else "free"]
    (condition,) = plan.question.conditions
    assert condition.pattern == "ones" and condition.inputs == (1,)
    for contents, good in ((given, True), (given * 3, True), (given.index_fill(1, torch.tensor(4), 0), False)):
        value = condition.value([None, contents.to(dtype)])
        assert value.shape == (2, 16) and bool((value == 1).all()) is good


def test_ones_are_asked_for_where_other_numbers_give_another_mask() -> None:
    def mask(p: Any, x: Any) -> Any:
        lowest = p.mul(p.sub(p.convert(x, torch.bfloat16), 1.0), 1e30)
        return p.broadcast(lowest, (2, 1, 16, 16), (0, 3))

    plan = plan_of(mask, [torch.ones(2, 16, dtype=torch.int64)])
    (condition,) = plan.question.conditions
    assert list(plan.assumed.values()) == ["free"] and not condition.steps and condition.pattern == "ones"


@pytest.mark.parametrize(
    ("mask", "given", "verdict", "pattern"),
    [
        (lambda p, x: x, torch.zeros(2, 1, 16, 16).bfloat16(), "free", "zeros"),
        (lambda p, x: x, torch.zeros(16, 16).bfloat16(), "free", "zeros"),
        (lambda p, x: additive(p, x), torch.zeros(16, 16, dtype=torch.bool), "free", "ones"),
        (lambda p, x: additive(p, p.logical_not(x)), torch.zeros(16, 16, dtype=torch.bool), "free", "zeros"),
    ],
)
def test_masks_that_are_inputs(mask: Any, given: torch.Tensor, verdict: str, pattern: str) -> None:
    plan = plan_of(mask, [given])
    assert list(plan.assumed.values()) == [verdict]
    assert [c.pattern for c in plan.question.conditions] == [pattern]


def test_a_triangle_with_padding_asks_for_both() -> None:
    def mask(p: Any, triangle: Any, pad: Any) -> Any:
        wide = p.broadcast(triangle, (2, 1, 16, 16), (2, 3))
        hidden = p.broadcast(pad, (2, 1, 16, 16), (0, 3))
        return p.where(hidden, float("-inf"), wide)

    given = [torch.zeros(16, 16).bfloat16(), torch.zeros(2, 16, dtype=torch.bool)]
    plan = plan_of(mask, given)
    assert list(plan.assumed.values()) == ["free"]  # nothing hidden comes first
    assert {c.pattern for c in plan.question.conditions} == {"zeros"}


@pytest.mark.parametrize("kind", ["parameter", "saved", "tangent"])
def test_masks_of_parameters_and_in_backward_graphs_ask_nothing(kind: str) -> None:
    plan = plan_of(lambda p, x: padding(p, x, True), [torch.ones(2, 16)], (kind,))
    assert plan.question is None and not plan.assumed and not plan.constant


def test_a_learned_bias_asks_nothing() -> None:
    def mask(p: Any, x: Any, bias: Any) -> Any:
        return p.add(padding(p, x, True), p.broadcast(bias, (2, 1, 16, 16), (2, 3)))

    plan = plan_of(mask, [torch.ones(2, 16), torch.randn(16, 16).bfloat16()], ("input", "parameter"))
    assert plan.question is None


def test_a_mask_that_is_never_plain_asks_nothing() -> None:
    plan = plan_of(lambda p, x: p.add(padding(p, x, True), 1.0), [torch.ones(2, 16, dtype=torch.bool)])
    assert plan.question is None


def test_short_masks_on_the_cpu_are_not_worth_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [torch.ones(2, 16, dtype=torch.int64)]
    for least, asks in ((16, True), (17, False)):
        monkeypatch.setattr(masks, "LONG", least)
        assert (plan_of(lambda p, x: padding(p, x, True), given).question is not None) is asks


# ---- masks in other layouts -----------------------------------------------------------------------------


def layers(p: Any, q: Any, given: Any) -> Any:
    """Two attentions under one mask, spread over heads, and the gradients of the second."""
    mask = p.broadcast(given, (2, 3, 16, 16), (0, 1, 2, 3))
    first = p.aten(CUDNN, q, q, q, mask, True)
    out, sums, *_, seed, offset, _ = p.aten(CUDNN, first[0], q, q, mask, True)
    backward = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default
    operands = (out, first[0], q, q, out, sums, seed, offset, mask, None, None, 16, 16, 0.0, False)
    return (out, *p.aten(backward, *operands)[:3])


@pytest.mark.parametrize(
    "mask, copies",
    [
        (torch.zeros(2, 1, 16, 16, dtype=torch.bfloat16), 0),
        (torch.zeros(2, 1, 16, 32, dtype=torch.bfloat16)[..., :16], 0),
        (torch.zeros(2, 1, 16, 32, dtype=torch.bfloat16)[..., ::2], 1),
        (torch.zeros(2, 1, 16, 16, dtype=torch.bfloat16).mT, 1),
        (torch.zeros(2, 1, 16, 1, dtype=torch.bfloat16).expand(2, 1, 16, 16), 1),
    ],
)
def test_rows_of_masks_are_dense(mask: torch.Tensor, copies: int) -> None:
    """cuDNN's kernels read any mask as if its rows were: it is laid out anew once, as large as it was."""
    env = build(layers, [torch.randn(2, 3, 16, 8).bfloat16(), mask], claims=inductor_gen.claims("cuda"))
    prepared = laid_out(env)
    attentions = [n for n in prepared.graph.nodes if "attention" in n.op]
    assert len(attentions) == 3
    masks = [prepared.externs[n][0][8 if "backward" in n.op else 3] for n in attentions]
    assert all(m.strides[-1].value == 1 and m.strides[1].value == 0 for m in masks)
    made = {m.base for m in masks}
    assert len(made) == 1 and [n.op for n in made if n.kind != "input"] == ["copy"] * copies
    assert [e.value for e in made.pop().shape] == [2, 1, 16, 16]
