"""What is said about masks of any size, against their elements at some size."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from gen_support import build

import inductor_gen
from inductor_gen.loops.graph import build_graph
from inductor_gen.pipeline import size_hint
from inductor_gen.rewrite import masks
from inductor_gen.rewrite.maskproof import Place, Same, described, diagonal
from inductor_gen.rewrite.masks import plan_masks
from prims.spec import expr as ex

CPU = torch.device("cpu")
CUDNN = torch.ops.aten._scaled_dot_product_cudnn_attention.default
ROWS, COLUMNS = 5, 7


@pytest.fixture(autouse=True)
def _short_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short masks are not worth a question on the CPU, but as good for tests."""
    monkeypatch.setattr(masks, "LONG", 0)


def elements(form: Any, shape: tuple[int, ...]) -> torch.Tensor:
    """The tensor that a description means."""
    if isinstance(form, Same):
        return torch.full(shape, float(form.value), dtype=torch.float64)
    index = form.at if isinstance(form, Place) else form.test
    places = itertools.product(*map(range, shape))
    found = torch.tensor([int(index.evaluate({f"i{d}": i for d, i in enumerate(at)})) for at in places]).view(shape)
    return found.double() if isinstance(form, Place) else torch.where(found >= 0, form.inside, form.outside).double()


def random_mask(p: Any, pick: random.Random) -> Any:
    """A value of ``[ROWS, COLUMNS]`` made in a random way of places, numbers and comparisons."""
    rows = p.iota(ROWS, pick.choice([0, 2]), 1, torch.int64, CPU)
    columns = p.iota(COLUMNS + 1, 0, pick.choice([1, 1, 2]), torch.int64, CPU)
    columns = p.slice(columns, (pick.choice([0, 1]),), (COLUMNS + 1,), (1,)) if pick.random() < 0.5 else columns
    columns = p.slice(columns, (0,), (COLUMNS,), (1,))
    whole = (ROWS, COLUMNS)
    rows, columns = p.broadcast(rows, whole, (0,)), p.broadcast(columns, whole, (1,))
    if pick.random() < 0.3:
        rows = p.permute(p.broadcast(p.slice(rows, (0, 0), (ROWS, 1), (1, 1)), (ROWS, 1), (0, 1)), (0, 1))
        rows = p.broadcast(p.reshape(rows, (ROWS,)), whole, (0,))
    compare = [p.le, p.lt, p.ge, p.gt]
    shifted = p.add(rows, pick.choice([-2, 0, 1, 3]))
    pair = (columns, shifted) if pick.random() < 0.5 else (shifted, columns)
    seen = pick.choice(compare)(*pair)
    always = p.full(whole, pick.random() < 0.8, torch.bool, CPU)
    for _ in range(pick.randrange(3)):
        other = pick.choice([seen, always, p.le(p.full(whole, 2, torch.int64, CPU), pick.choice([1, 2, 3]))])
        seen = pick.choice([p.logical_and, p.logical_or, p.bitwise_and, p.logical_xor])(seen, other)
        seen = p.logical_not(seen) if pick.random() < 0.3 else seen
    number = p.full(whole, pick.choice([0.0, 1.5]), torch.float32, CPU)
    value = p.where(seen, number, pick.choice([float("-inf"), -3.0, 0.0]))
    if pick.random() < 0.3:
        value = p.mul(p.convert(seen, torch.float32), -2.5)
    if pick.random() < 0.2:
        value = p.index(value, (p.broadcast(p.iota(ROWS, 0, 1, torch.int64, CPU), whole, (0,)), columns), (0, 1))
    return value


@pytest.mark.parametrize("seed", range(150))
def test_descriptions_are_what_the_elements_are(seed: int) -> None:
    env = build(lambda p, x: random_mask(p, random.Random(seed)), [torch.zeros(1)])
    graph = build_graph(env)
    (value,) = graph.outputs
    values: dict[Any, torch.Tensor] = {}

    def filled(args: Any) -> Any:
        if isinstance(args, tuple):
            return tuple(map(filled, args))
        return values.get(args, args) if not isinstance(args, (list, dict)) else args

    for node in graph.nodes:
        if node.kind == "input":
            continue
        try:
            values[node] = node.target(*filled(node.args))
        except (IndexError, RuntimeError):
            return  # an index out of range
        form = described(node, {})
        if form is not None:
            wanted = elements(form, tuple(values[node].shape))
            assert torch.equal(values[node].double(), wanted), (node, form)
    assert value in values


def test_most_are_described() -> None:
    found = 0
    for seed in range(60):
        env = build(lambda p, x: random_mask(p, random.Random(seed)), [torch.zeros(1)])  # noqa: B023
        found += described(build_graph(env).outputs[0], {}) is not None
    assert found >= 25


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_padding_of_any_length(dtype: torch.dtype, causal: bool) -> None:
    def fn(p: Any, q: Any, given: Any) -> Any:
        b, _, s, _ = q.shape
        seen = p.broadcast(p.convert(given, torch.bool), (b, 1, s, s), (0, 3))
        place = p.iota(s, 0, 1, torch.int64, CPU)
        rows, columns = (p.broadcast(place, (b, 1, s, s), (d,)) for d in (2, 3))
        seen = p.logical_and(seen, p.le(columns, rows)) if causal else seen
        mask = p.where(seen, p.full((b, 1, s, s), 0.0, torch.bfloat16, CPU), -65536.0)
        return p.aten(CUDNN, q, q, q, p.broadcast(mask, (b, 3, s, s), (0, 1, 2, 3)), False)[0]

    q, given = torch.randn(2, 3, 16, 8).bfloat16(), torch.ones(2, 16, dtype=dtype)
    env = build(fn, [q, given], dynamic={0: (2,), 1: (1,)}, claims=inductor_gen.claims("cuda"))
    plan = plan_masks(build_graph(env), env, size_hint(env))
    assert list(plan.assumed.values()) == ["causal" if causal else "free"]
    (condition,) = plan.question.conditions
    for length in (16, 9):
        assert bool(condition.value([None, torch.ones(2, length, dtype=dtype)]).all())


def test_a_diagonal_elsewhere_is_not_causal() -> None:
    for ahead, name in ((0, "causal"), (1, None), (-1, None)):
        def fn(p: Any, q: Any) -> Any:
            b, _, s, _ = q.shape
            place = p.iota(s, 0, 1, torch.int64, CPU)
            rows, columns = (p.broadcast(place, (b, 3, s, s), (d,)) for d in (2, 3))
            seen = p.le(columns, p.add(rows, ahead))  # noqa: B023
            mask = p.where(seen, p.full((b, 3, s, s), 0.0, torch.bfloat16, CPU), float("-inf"))
            return p.aten(CUDNN, q, q, q, mask, False)[0]

        env = build(fn, [torch.randn(2, 3, 16, 8).bfloat16()], dynamic={0: (2,)}, claims=inductor_gen.claims("cuda"))
        assert list(plan_masks(build_graph(env), env, size_hint(env)).constant.values()) == ([name] if name else [])


def test_sides_are_kept_apart() -> None:
    assert elements(diagonal((ex.const(3), ex.const(3)), 1, 0), (3, 3)).equal(torch.ones(3, 3).tril().double())


@pytest.mark.parametrize("seed", range(40))
def test_proofs_and_evaluations_agree(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random masks of a square of numbers: the verdict is the same whichever way it is found."""
    monkeypatch.setitem(globals(), "COLUMNS", ROWS)
    pick = random.Random(seed)

    def fn(p: Any, q: Any) -> Any:
        mask = p.broadcast(random_mask(p, pick), (2, 3, ROWS, ROWS), (2, 3))
        op = torch.ops.aten._scaled_dot_product_efficient_attention.default
        return p.aten(op, q, q, q, mask, False)[0]

    env = build(fn, [torch.randn(2, 3, ROWS, 8)], claims=inductor_gen.claims("cuda"))
    both = []
    for proved in (True, False):
        if not proved:
            monkeypatch.setattr(masks, "_proved", lambda *_: None)
        try:
            both.append(dict(plan_masks(build_graph(env), env, size_hint(env)).constant))
        except (IndexError, RuntimeError):
            return  # an index out of range
    assert both[0] == both[1]
