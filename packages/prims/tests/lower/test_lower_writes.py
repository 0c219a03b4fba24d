"""Writes to one part after another, and reads between them: what is left of them, and that it means the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from aten_programs import aten, lowered

select, select_scatter = aten.select.int, aten.select_scatter.default
slice_, slice_scatter = aten.slice.Tensor, aten.slice_scatter.default


def prims_of(env: Any) -> list[str]:
    return [getattr(n.target, "name", str(n.target)) for n in env.graph.nodes if n.op == "call_function"]


def filled(steps: int) -> Callable[..., Any]:
    """Each step writes what the one before has written, doubled."""

    def program(call: Any, x: Any) -> Any:
        whole = call(aten.empty_like.default, x)
        now = call(aten.exp.default, call(select, x, 1, 0))
        for t in range(steps):
            whole = call(select_scatter, whole, now, 1, t)
            now = call(aten.mul.Tensor, call(select, call(aten.clone.default, whole), 1, t), 2.0)
        return whole

    return program


@pytest.mark.parametrize("steps", [2, 5, 40])
def test_what_is_filled_step_by_step_is_a_concatenation(steps: int) -> None:
    env, _ = lowered(filled(steps), torch.randn(2, steps, 3))
    left = prims_of(env)
    assert left.count("concat") == 1 and not {"where", "eq", "iota"} & set(left)
    assert left.count("mul") == steps - 1 and len(left) <= 4 * steps + 4, left


def test_later_writes_hide_earlier_ones() -> None:
    def program(call: Any, x: Any, y: Any) -> Any:
        x = call(slice_scatter, x, y, 0, 1, 4)
        x = call(slice_scatter, x, call(aten.neg.default, y), 0, 2, 5)
        x = call(select_scatter, x, call(select, y, 0, -1), 0, -3)
        return call(slice_scatter, x, call(aten.exp.default, y), 0, 4, 100)

    env, _ = lowered(program, torch.randn(7, 2), torch.randn(3, 2))
    (whole,) = (n for n in env.graph.nodes if getattr(n.target, "name", "") == "concat")
    assert [n.meta["spec"].shape[0] for n in whole.args[0]] == [1, 1, 2, 3]


def test_reads_that_no_write_answers_are_of_the_whole() -> None:
    def program(call: Any, x: Any, y: Any) -> Any:
        x = call(slice_scatter, x, y, 0, 1, 3)
        x = call(slice_scatter, x, y, 0, 3, 5)
        return call(slice_, x, 0, 2, 6), call(slice_, x, 0, 0, 7, 2), call(select, x, 1, 0), call(select, x, 0, 6)

    lowered(program, torch.randn(7, 2), torch.randn(2, 2))


def test_types_and_repeats_are_those_of_what_is_written_to() -> None:
    def program(call: Any, x: Any, y: Any) -> Any:
        for t in range(3):
            x = call(select_scatter, x, call(aten.expand.default, call(select, y, 0, t), [4]), 0, t)
        return x, call(select, x, 0, 1)

    lowered(program, torch.randn(5, 4, dtype=torch.float16), torch.randn(3, 1, dtype=torch.float16))


select_backward, slice_backward = aten.select_backward.default, aten.slice_backward.default


@pytest.mark.parametrize("steps", [2, 5, 40])
def test_the_gradient_of_what_is_taken_apart_is_a_concatenation(steps: int) -> None:
    def program(call: Any, g: Any) -> Any:
        parts = [call(aten.exp.default, call(select, g, 1, t)) for t in range(steps)]
        total = call(select_backward, parts[0], [2, steps + 1, 3], 1, 0)
        for t in range(1, steps):
            total = call(aten.add.Tensor, total, call(select_backward, parts[t], [2, steps + 1, 3], 1, t))
        return total

    env, _ = lowered(program, torch.randn(2, steps, 3))
    left = prims_of(env)
    assert left.count("concat") == left.count("full") == 1 and "pad" not in left and len(left) <= 5 * steps + 2, left


def test_sums_of_parts_over_one_another_are_in_eagers_order() -> None:
    def program(call: Any, x: Any, y: Any) -> Any:
        total = x
        for low, value in ((1, y), (2, y), (0, call(aten.exp.default, y)), (4, y), (1, y)):
            total = call(aten.add.Tensor, call(slice_backward, value, [7, 2], 0, low, low + 3, 1), total)
        return total, call(slice_, total, 0, 5, 7)

    x, y = torch.randn(7, 2) * 1e4, torch.randn(3, 2)
    env, _ = lowered(program, x, y)
    want = x
    for low, value in ((1, y), (2, y), (0, y.exp()), (4, y), (1, y)):
        want = slice_backward(value, [7, 2], 0, low, low + 3, 1) + want
    assert torch.equal(env.module()(x, y)[0], want) and "pad" not in prims_of(env)


def test_zeros_of_sums_are_eagers() -> None:
    """Beside what is added there are zeros added, which leave no -0.0; what is written later stays as it is."""

    def program(call: Any, x: Any) -> Any:
        one, two = (call(select_backward, call(select, x, 0, t), [4, 2], 0, t) for t in (0, 1))
        total = call(aten.add.Tensor, one, two)
        more = call(aten.add.Tensor, x, total)
        written = call(select_scatter, more, call(select, x, 0, 2), 0, 2)
        twice = call(aten.add.Tensor, x, one)
        return total, more, written, call(select, twice, 0, 0), call(aten.add.Tensor, twice, two)

    x = torch.full((4, 2), -0.0)
    env, _ = lowered(program, x)
    two = torch.zeros(4, 2)
    two[1] = -0.0
    one = two.roll(-1, 0)
    total, twice = one + two, x + one
    want = [total, x + total, (x + total).select_scatter(x[2], 0, 2), twice[0], twice + two]
    for got, expected in zip(env.module()(x), want, strict=True):
        assert torch.equal(torch.signbit(got), torch.signbit(expected))


@pytest.mark.parametrize("seed", range(80))
def test_random_writes_and_reads(seed: int) -> None:
    r = random.Random(seed)

    def program(call: Any, x: Any) -> Any:
        versions, seen = [x], [x]
        for _ in range(r.randrange(2, 16)):
            now = versions[-1] if r.random() < 0.9 else r.choice(versions)
            dim = 0 if r.random() < 0.8 else 1
            at = r.randrange(-5, 5)
            low = r.randrange(5)
            high = r.randrange(low, 6)
            step = 1 if r.random() < 0.9 else 2
            if r.random() < 0.1:
                now = call(aten.clone.default, now)
            one = r.random() < 0.5
            part = call(select, now, dim, at) if one else call(slice_, now, dim, low, high, step)
            if r.random() < 0.3 and step == 1 and (one or low < high):
                sizes = [5, 5]
                way = (select_backward, dim, at) if one else (slice_backward, dim, low, high, step)
                around = call(way[0], call(aten.mul.Tensor, part, 3.0), sizes, *way[1:])
                terms = [now if r.random() < 0.8 else r.choice(versions), around]
                versions.append(call(aten.add.Tensor, *(terms if r.random() < 0.5 else terms[::-1])))
                if r.random() < 0.2:
                    versions.append(around)
            elif r.random() < 0.7:
                part = call(aten.mul.Tensor, part, 2.0)
                where = (dim, at) if one else (dim, low, high, step)
                versions.append(call(select_scatter if one else slice_scatter, now, part, *where))
            else:
                seen.append(part)
        return [*seen, r.choice(versions), versions[-1]]

    lowered(program, torch.randn(5, 5))
