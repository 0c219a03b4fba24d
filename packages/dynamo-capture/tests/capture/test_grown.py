"""Lists and deques that exist outside: added to in every call, their length is no reason to capture anew."""

from __future__ import annotations

import collections
import copy

import pytest
import torch


class Named(list):
    """A list of the program's own class."""


class Counted(list):
    """One that says itself how long it is."""

    def __len__(self):
        return 3


@pytest.mark.parametrize("make", [list, Named, Counted, collections.deque, lambda: collections.deque([1, 2], 3)])
def test_a_history_is_added_to_by_one_capture(capture, make):
    history, wanted = make(), make()

    def record(into, x):
        into.append(x * 2)
        into.extend([x.shape[0], "end"])
        into += (None,)
        return x + 1

    compiled = capture(lambda x: record(history, x))
    for _ in range(12):
        x = torch.randn(3)
        record(wanted, x)
        assert torch.equal(compiled(x), x + 1)
        assert list.__len__(history) == len(wanted) if type(make()) is list else len(history) == len(wanted)
    assert len(compiled.graphs) == 1 and not compiled.report.recompiles
    for mine, eager in zip(history, wanted, strict=True):
        assert torch.equal(mine, eager) if isinstance(eager, torch.Tensor) else mine == eager


def test_what_asks_for_the_items_is_guarded(capture):
    history = [torch.ones(2)]

    def fn(x):
        history.append(x)
        last = history[-2]
        history.append(last)
        return x + len(history) + last.sum()

    compiled = capture(fn)
    wanted = copy.copy(history)
    for round_ in range(3):
        x = torch.full((2,), float(round_))
        wanted.append(x)
        wanted.append(wanted[-2])
        assert torch.equal(compiled(x), x + len(wanted) + wanted[-1].sum())
        assert all(map(torch.equal, history, wanted)) and len(history) == len(wanted)


@pytest.mark.parametrize(
    "change",
    [
        lambda into: into.extend(into),
        lambda into: into.insert(0, 5),
        lambda into: into.reverse(),
        lambda into: into.clear(),
        lambda into: into.pop(),
        lambda into: into.__setitem__(0, 7),
        lambda into: into.extend(i for i in range(2)),
    ],
)
@pytest.mark.parametrize("kind", [list, collections.deque])
def test_added_to_and_changed_in_other_ways(capture, change, kind):
    history, wanted = kind([1]), kind([1])

    def step(into, x):
        into.append(2)
        change(into)
        into.append(3)
        return x + 1

    compiled = capture(lambda x: step(history, x))
    for _ in range(2):
        step(wanted, torch.ones(1))
        compiled(torch.ones(1))
        assert history == wanted and type(history) is kind


def test_two_names_of_one_list(capture):
    one = []
    holder = {"log": one}

    def fn(x):
        one.append(1)
        holder["log"].append(2)
        return x + len(one)

    compiled = capture(fn)
    assert compiled(torch.zeros(1)).item() == 2 and one == [1, 2]
    assert compiled(torch.zeros(1)).item() == 4
    holder["log"] = other = []
    assert compiled(torch.zeros(1)).item() == 5 and other == [2] and one == [1, 2, 1, 2, 1]


def test_existing_and_new_lists_go_together(capture):
    outside = [1, 2]

    def fn(x):
        inside = [1, 2]
        return x + 1, outside + inside, inside + outside, outside == inside, inside < outside, [*outside, *inside]

    compiled = capture(fn)
    for _ in range(2):
        result = compiled(torch.zeros(1))
        assert result[1:] == fn(torch.zeros(1))[1:]
        outside.append(3)
    assert not compiled.report.breaks
