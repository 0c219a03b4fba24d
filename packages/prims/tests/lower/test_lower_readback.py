"""What is read back as it was written, and what is written again, without the detours; a layout's readers keep theirs."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from aten_programs import aten, envelope, lowered

from prims.lower.readback import read_back

select, select_scatter = aten.select.int, aten.select_scatter.default
slice_, slice_scatter = aten.slice.Tensor, aten.slice_scatter.default


def left(program: Any, *inputs: torch.Tensor) -> list[str]:
    """The operators of the graph without detours, once it was found to mean the same."""
    lowered(program, *inputs)
    env = read_back(envelope(program, *inputs)[0], frozenset())
    return [str(n.target).removeprefix("aten.") for n in env.graph.nodes if n.op == "call_function"]


def test_what_is_written_twice_is_written_once() -> None:
    def program(call: Any, x: Any) -> Any:
        first = call(slice_scatter, x, call(aten.mul.Tensor, call(slice_, x, 0, 1, 5, 3), 2.0), 0, 1, 5, 3)
        return call(slice_scatter, first, call(aten.exp.default, call(slice_, first, 0, 1, 5, 3)), 0, 1, 5, 3)

    assert left(program, torch.randn(7, 2)) == ["slice.Tensor", "mul.Tensor", "exp.default", "slice_scatter.default"]


def test_parts_of_parts() -> None:
    def write(call: Any, x: Any, change: Any) -> Any:
        rows = call(slice_, x, 0, 1, 5)
        cell = call(select, rows, 1, 2)
        return call(slice_scatter, x, call(select_scatter, rows, call(change, cell), 1, 2), 0, 1, 5)

    def program(call: Any, x: Any) -> Any:
        return write(call, write(call, x, aten.exp.default), aten.neg.default)

    operators = left(program, torch.randn(7, 4))
    assert operators.count("slice_scatter.default") == operators.count("select_scatter.default") == 1


def test_other_places_stay() -> None:
    def program(call: Any, x: Any) -> Any:
        first = call(slice_scatter, x, call(slice_, x, 0, 2, 4), 0, 1, 3)
        return call(slice_scatter, first, call(slice_, first, 0, 0, 2), 0, 2, 4)

    assert left(program, torch.randn(7, 2)).count("slice_scatter.default") == 2


def test_a_layouts_readers_keep_theirs() -> None:
    def program(call: Any, x: Any, y: Any) -> Any:
        first = call(slice_scatter, x, call(aten.exp.default, call(aten.t.default, y)), 0, 0, 2)
        part = call(slice_, first, 0, 0, 2)  # its elements lie in another order than what was written
        return call(aten.as_strided.default, part, [3], [2], 0), call(aten.neg.default, part)

    operators = left(program, torch.randn(4, 5), torch.randn(5, 2))
    assert operators.count("slice.Tensor") == 1 and "slice_scatter.default" in operators


def test_results_keep_their_own_node() -> None:
    def program(call: Any, x: Any) -> Any:
        first = call(slice_scatter, x, call(aten.exp.default, call(slice_, x, 1, 0, 2)), 1, 0, 2)
        return call(slice_, first, 1, 0, 2), call(aten.sum.default, first)

    assert left(program, torch.randn(4, 5)).count("slice.Tensor") == 2


def test_views_that_lead_back() -> None:
    def program(call: Any, x: Any, y: Any) -> Any:
        blocks = lambda v: call(aten.transpose.int, call(aten.view.default, v, [2, 3, 4]), 0, 1)
        back = lambda v: call(aten.view.default, call(aten.clone.default, call(aten.transpose.int, v, 0, 1)), [6, 4])
        first = call(select_scatter, blocks(x), y, 0, 1)
        again = call(aten.transpose.int, call(aten.transpose.int, first, 1, 2), 1, 2)
        second = call(slice_scatter, again, call(aten.neg.default, call(slice_, again, 1, 0, 1)), 1, 0, 1)
        return back(second)

    assert left(program, torch.randn(6, 4), torch.randn(2, 4)).count("transpose.int") == 2


def test_views_of_other_elements_stay() -> None:
    """Of as many elements, in other places."""

    def program(call: Any, x: Any) -> Any:
        first = call(select_scatter, x, call(aten.exp.default, call(select, x, 0, 1)), 0, 1)
        turned = call(aten.t.default, first)
        return call(aten.neg.default, call(aten.t.default, call(aten.clone.default, turned))), call(aten.exp.default, turned)

    assert left(program, torch.randn(4, 4)).count("t.default") == 2


def test_what_was_written_lies_elsewhere() -> None:
    """A view of a part is not what was written there seen back: that has another memory, in another order."""

    def program(call: Any, x: Any, y: Any) -> Any:
        first = call(slice_scatter, x, call(aten.t.default, y), 0, 0, 2)
        return call(aten.neg.default, call(aten.view.default, call(slice_, first, 0, 0, 2), [6, 2]))

    lowered(program, torch.randn(4, 6), torch.randn(6, 2))


def test_results_of_several() -> None:
    """``getitem`` is no operator."""

    def program(call: Any, x: Any) -> Any:
        first = call(select_scatter, x, call(aten.exp.default, call(select, x, 0, 1)), 0, 1)
        both = call(aten.sort.default, call(select, first, 0, 1))
        return call.item(both, 0), call(aten.sum.default, first)

    assert "sort.default" in left(program, torch.randn(4, 5))


@pytest.mark.parametrize("seed", range(30))
def test_random_writes(seed: int) -> None:
    draw = random.Random(seed)

    def program(call: Any, x: Any) -> Any:
        held = [x]
        for _ in range(draw.randint(2, 6)):
            whole = held[-1]
            low, high = sorted(draw.sample(range(6), 2))
            by = draw.choice((1, 1, 2))
            place = draw.choice(((0, low, high, by), (1, low, high, by), (0, 1, 5, 3)))
            part = call(draw.choice((aten.exp.default, aten.neg.default)), call(slice_, whole, *place))
            held.append(call(slice_scatter, whole, part, *place))
            if draw.random() < 0.4:
                held.append(call(aten.add.Tensor, held[-1], held[draw.randrange(len(held))]))
        return held[-1], call(aten.sum.default, held[-2])

    lowered(program, torch.randn(6, 6, dtype=torch.float64).clamp(-1, 1))
