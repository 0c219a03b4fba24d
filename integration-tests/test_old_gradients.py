"""Gradients of the step before: a compiled step that drops them first has their memory while it runs, and a step that
raises leaves what eager would."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

import compile_api

pytestmark = pytest.mark.filterwarnings("ignore")


def made():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(4, 8), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model, optimizer


class Seen:
    """A back end that notes, whenever a graph runs, which of the tensors that it was told of are alive."""

    def __init__(self):
        self.watched, self.alive = [], []

    def __call__(self, gm, inputs):
        def run(*args):
            self.alive.append([ref() is not None for ref in self.watched])
            return gm.forward(*args)

        return run

    def watch(self, tensors):
        self.watched = [weakref.ref(each) for each in tensors]


def first(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).square().sum()
    loss.backward()
    optimizer.step()
    return loss.detach()


def behind_the_model(model, optimizer, x):
    loss = model(x).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def read_before(model, optimizer, x):
    size = sum(p.grad.square().sum() for p in model.parameters() if p.grad is not None)
    optimizer.zero_grad()
    loss = model(x).square().sum() + size
    loss.backward()
    optimizer.step()
    return loss.detach()


def read_behind(model, optimizer, x):
    old = [p.grad for p in model.parameters()]
    for p in model.parameters():
        p.grad = None
    loss = model(x).square().sum() + sum(each.sum() for each in old if each is not None)
    loss.backward()
    optimizer.step()
    return loss.detach()


def handed_out(model, optimizer, x):
    old = [p.grad for p in model.parameters()]
    return first(model, optimizer, x), old


def by_hand(model, optimizer, x):
    for p in model.parameters():
        p.grad = None
    loss = model(x).square().sum()
    loss.backward()
    optimizer.step()
    return loss.detach()


def must_be_there(model, optimizer, x):
    for p in model.parameters():
        if optimizer.state and p.grad is None:
            raise ValueError("no gradient")
    return first(model, optimizer, x)


def read_by_a_clause(model, optimizer, x):
    old = [p.grad for p in model.parameters()]
    optimizer.zero_grad()
    try:
        loss = model(x).square().sum()
    except IndexError:
        return sum(each.sum() for each in old if each is not None)
    loss.backward()
    optimizer.step()
    return loss.detach()


DROPPING = [first, by_hand]
PROGRAMS = [*DROPPING, behind_the_model, read_before, read_behind, handed_out, must_be_there, read_by_a_clause]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_old_gradients_are_free_while_the_graph_runs_where_the_program_dropped_them_first(program):
    model, optimizer = made()
    seen = Seen()
    step = compile_api.compile(program, backend=seen)
    for k in range(5):
        result = step(model, optimizer, torch.tensor([0, 1, 3]))
        del result
        seen.watch([p.grad for p in model.parameters()])
        if k < 4:
            seen.alive.clear()
    assert seen.alive and all(each == [program not in DROPPING] * 3 for each in seen.alive)


def state(model, optimizer):
    moments = [v for p in model.parameters() for v in optimizer.state[p].values()]
    grads = [p.grad for p in model.parameters()]
    return [None if t is None else t.detach().clone() for t in (*model.parameters(), *grads, *moments)]


def run(program, compiled, batches):
    model, optimizer = made()
    step = compile_api.compile(program, **compiled) if compiled is not None else program
    found = []
    for batch in batches:
        try:
            found.append(step(model, optimizer, torch.tensor(batch)))
        except Exception as error:
            found.append(type(error).__name__)
        found.append(state(model, optimizer))
        if isinstance(found[-2], str):
            for p in model.parameters():
                p.grad = torch.ones_like(p)
    return found, step


@pytest.mark.parametrize("backend", ["inductor", "aot_eager", "eager"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_a_step_that_raises_leaves_what_eager_does(program, backend):
    """A row that does not exist is refused while the graph runs; the frame then runs again, eagerly."""
    batches = [[0, 1, 3], [1, 2, 2], [0, 9, 1], [3, 3, 0], [7, 1, 1], [2, 0, 1]]
    expected, _ = run(program, None, batches)
    caught = program is read_by_a_clause
    assert [each for each in expected if isinstance(each, str)] == ([] if caught else ["IndexError", "IndexError"])
    got, step = run(program, {"backend": backend}, batches)
    assert step.report().graphs
    for a, b in zip(got, expected, strict=True):
        if isinstance(b, str):
            assert a == b
        else:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_gradients_that_somebody_else_holds_are_as_they_were():
    model, optimizer = made()
    step = compile_api.compile(first)
    x = torch.tensor([0, 1, 3])
    for _ in range(2):
        step(model, optimizer, x)
    held = [p.grad for p in model.parameters()]
    before = [each.clone() for each in held]
    step(model, optimizer, x)
    assert all(p.grad is not old for p, old in zip(model.parameters(), held, strict=True))
    torch.testing.assert_close(held, before, rtol=0, atol=0)


def test_two_models_that_share_parameters():
    """One parameter known by two names has one gradient to drop."""
    torch.manual_seed(0)
    one, two = nn.Linear(4, 4), nn.Linear(4, 4)
    two.weight = one.weight

    def step(x):
        for p in (*one.parameters(), *two.parameters()):
            p.grad = None
        loss = two(one(x)).square().sum()
        loss.backward()
        return loss.detach()

    x = torch.randn(3, 4)
    compiled = compile_api.compile(step)
    for _ in range(3):
        expected = step(x), [p.grad.clone() for p in (*one.parameters(), *two.parameters())]
        got = compiled(x), [p.grad.clone() for p in (*one.parameters(), *two.parameters())]
        torch.testing.assert_close(got, expected)
