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


@pytest.mark.parametrize("seed", range(40))
def test_random_writes_and_reads(seed: int) -> None:
    r = random.Random(seed)

    def program(call: Any, x: Any) -> Any:
        versions, seen = [x], [x]
        for _ in range(r.randrange(2, 12)):
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
            if r.random() < 0.7:
                part = call(aten.mul.Tensor, part, 2.0)
                where = (dim, at) if one else (dim, low, high, step)
                versions.append(call(select_scatter if one else slice_scatter, now, part, *where))
            else:
                seen.append(part)
        return [*seen, r.choice(versions), versions[-1]]

    lowered(program, torch.randn(5, 5))
