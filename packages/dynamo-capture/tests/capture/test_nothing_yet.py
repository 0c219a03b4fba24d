"""Functions, and the rests of functions behind a break, that have nothing to compute in their first calls."""

from __future__ import annotations

import pytest
import torch

import dynamo_capture

X = torch.linspace(-1, 1, 5)


class Average(torch.nn.Module):
    """Updated every fifth step."""

    def __init__(self):
        super().__init__()
        self.step = 0
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, x):
        self.step += 1
        if self.step % 5:
            return
        self.mean.lerp_(x, 0.5)


class Annealed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.alpha = 1.0

    def forward(self, x):
        self.alpha *= 0.9
        return x if self.alpha > 0.5 else x.sin() * 2


def by_step(x, step):
    return x if step < 4 else x.sin() * 2


def by_text(x, step):
    return x.sin() if step == 6 else None


def by_entries(x, step):
    return [each.sin() for each in ([x] if step > 5 else [])]


def behind_a_break(x, step):
    y = x.sin()
    dynamo_capture.graph_break()
    if step < 4:
        return y
    return y.tanh() + 1


def in_a_loop(x, step):
    for _ in range(2):
        x = x + 1
        dynamo_capture.graph_break()
        if step > 5:
            x = x.cos() * 3
    return x


@pytest.mark.parametrize("fn", [by_step, by_text, by_entries, behind_a_break, in_a_loop])
def test_functions(fn, capture):
    compiled = capture(fn, strict=False)
    for step in range(12):
        torch.testing.assert_close(compiled(X, step), fn(X, step))
    before = len(compiled.graphs)
    for step in range(6, 30):
        compiled(X, 6 if fn is by_text else step)
    assert len(compiled.graphs) == before
    last = {behind_a_break: "tanh", in_a_loop: "cos"}.get(fn, "sin")
    assert any(gm.graph.find_nodes(op="call_method", target=last) for gm in compiled.graphs)


@pytest.mark.parametrize("cls", [Average, Annealed])
def test_modules(cls, capture):
    mine, eager = cls(), cls()
    compiled = capture(mine, strict=False)
    for _ in range(25):
        torch.testing.assert_close(compiled(X), eager(X))
    torch.testing.assert_close(mine.state_dict(), eager.state_dict())
    assert len(compiled.graphs) == 1 and len(compiled.report.recompiles) <= 4


def test_calls_that_do_nothing_are_no_compiled_calls(capture):
    compiled = capture(by_step, strict=False)
    for _ in range(20):
        assert compiled(X, 0) is X
    assert compiled.report.verdict.startswith("eager: there is no tensor operation") and not compiled.graphs
    assert not compiled.report.recompiles


def test_what_changes_in_each_call_comes_to_an_end(capture, recwarn):
    """There is nothing to warn of where nothing was ever compiled; the report tells."""

    def fn(x, command):
        return x.sin() if command == "go" else None

    for limit in (4, 8):
        compiled = capture(fn, strict=False, recompile_limit=limit, fullgraph=limit == 8)
        for number in range(limit + 4):
            assert compiled(X, str(number)) is None
        torch.testing.assert_close(compiled(X, "go"), X.sin())
        assert f"limit of {limit}" in str([status.reason for status in compiled.report.statuses])
    assert not recwarn.list
