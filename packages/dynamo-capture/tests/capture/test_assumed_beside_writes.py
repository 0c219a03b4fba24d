"""``raise`` by a tensor's value beside writes into what exists outside: one graph, which writes all or nothing."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical, Normal

import prims.undo
from prims.undo import NotPutBackError, undoing

GOOD = [[1.0, 2.0, 3.0], [0.5, -1.0, 2.0]]
BAD = [[1.0, float("nan"), 3.0], [0.5, -1.0, 2.0]]


class Training:
    """A model, its optimizer, and buffers that are written in each step."""

    def __init__(self, make):
        torch.manual_seed(0)
        self.model = nn.Linear(3, 2)
        self.optimizer = make(self.model.parameters())
        self.norm = nn.BatchNorm1d(3)
        self.steps = torch.zeros(())
        self.seen = []

    def state(self):
        held = [self.model.state_dict(), self.norm.state_dict(), self.steps, self.optimizer.state_dict()["state"]]
        return copy.deepcopy([*held, [p.grad for p in self.model.parameters()], self.seen])

    def checked(self, x):
        self.steps.add_(1)
        loss = self.model(self.norm(x)).square().mean()
        self.seen.append(x.shape[0])
        self.optimizer.zero_grad()
        loss.backward()
        if torch.isnan(loss):
            raise ValueError("the loss is not a number")
        self.optimizer.step()
        return loss

    def policy(self, x):
        chosen = Categorical(logits=self.model(x))
        action = chosen.sample()
        loss = -(chosen.log_prob(action) * x.sum(1)).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach(), action

    def autoencoder(self, x):
        mean, spread = self.model(x).chunk(2, -1)
        drawn = Normal(mean, spread.exp())
        loss = drawn.rsample().square().sum() - drawn.entropy().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def same(mine, eager):
    if isinstance(eager, torch.Tensor):
        torch.testing.assert_close(mine, eager, equal_nan=True)
    elif isinstance(eager, dict):
        assert mine.keys() == eager.keys()
        same(list(mine.values()), list(eager.values()))
    elif isinstance(eager, (list, tuple)):
        assert len(mine) == len(eager)
        for a, b in zip(mine, eager, strict=True):
            same(a, b)
    else:
        assert mine == eager


def outcome(step, x):
    torch.manual_seed(1)
    try:
        return step(x)
    except ValueError as error:
        return str(error).partition("\n")[0]


OPTIMIZERS = [
    lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    lambda parameters: torch.optim.AdamW(parameters, 0.1),
    lambda parameters: torch.optim.Adam(parameters, 0.1, fused=True),
]


@pytest.mark.parametrize("name", ["checked", "policy", "autoencoder"])
@pytest.mark.parametrize("make", OPTIMIZERS)
def test_a_step_that_raises_leaves_what_eager_leaves(capture, name, make):
    mine, eager = Training(make), Training(make)
    compiled, step = capture(getattr(mine, name)), getattr(eager, name)
    for values in (GOOD, GOOD, BAD, GOOD):
        x = torch.tensor(values)
        wanted = outcome(step, x)
        found = outcome(compiled, x)
        same(found, wanted)
        same(mine.state(), eager.state())
    assert not compiled.report.breaks
    assert len(compiled.graphs) == 2  # the first step makes the state


def test_statistics_of_a_normalisation_are_written_once(capture):
    means = [torch.zeros(3), torch.zeros(3)]

    def fn(x, mean):
        y = F.batch_norm(x, mean, None if mean is None else torch.ones(3), training=True)
        assert bool((x < 100).all()), "too large"
        return y

    compiled = capture(fn)
    for values in (GOOD, [[1000.0, 0.0, 1.0], [0.0, 1.0, 2.0]]):
        for function, mean in ((fn, means[0]), (compiled, means[1])):
            if values is GOOD:
                function(torch.tensor(values), mean)
            else:
                with pytest.raises(AssertionError, match="too large"):
                    function(torch.tensor(values), mean)
        assert torch.equal(*means)


def test_a_backward_pass_that_comes_later_is_not_disturbed(capture):
    """It needs what the graph would write back: the graph ends before the ``raise`` there."""
    counts, weight = torch.zeros(3), torch.ones(3, requires_grad=True)

    def fn(x):
        counts.add_(1)
        y = x * weight * counts
        if x.isnan().any():
            raise ValueError("not a number")
        return y

    compiled = capture(fn)
    for round_ in (1, 2):
        x = torch.ones(3)
        compiled(x).sum().backward()
        assert counts.tolist() == [round_] * 3
    assert weight.grad.tolist() == [3.0] * 3
    with pytest.raises(ValueError, match="not a number"):
        compiled(torch.full((3,), float("nan")))
    assert counts.tolist() == [3.0] * 3


MEMORIES = {
    "plain": lambda: torch.arange(8.0),
    "with gaps": lambda: torch.arange(8.0)[::2],
    "expanded": lambda: torch.ones(1).expand(4),
    "windows": lambda: torch.arange(8.0).unfold(0, 3, 1),
    "rows of one": lambda: torch.arange(3.0).expand(4, 3),
}


@pytest.mark.parametrize("least", [-1.0, 1e6], ids=["holds", "raises"])
@pytest.mark.parametrize("name", MEMORIES)
def test_a_part_of_a_tensor_whose_elements_share_memory_is_written(capture, name, least):
    """Such a tensor cannot be given all its values back: the graph ends before the ``raise`` there."""

    def fn(x):
        x[0] += 1
        if (x < least).any():
            raise ValueError("too small")
        return x * 2

    found = []
    for function in (fn, capture(fn)):
        x = MEMORIES[name]()
        found.append((outcome(function, x), x.clone()))
    same(*found)


@pytest.mark.parametrize("name", MEMORIES)
def test_what_a_graph_wrote_before_it_raised_is_put_back(name):
    tensor = MEMORIES[name]()
    memory, version = tensor.untyped_storage().tolist(), tensor._version

    def run(x):
        x[0].mul_(3).add_(1)
        x[1:2].add_(1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        undoing(run, [0])(tensor)
    assert tensor.untyped_storage().tolist() == memory and tensor._version == version


def test_nobody_goes_on_from_what_could_not_be_put_back(monkeypatch):
    def run(x):
        x.add_(1)
        monkeypatch.setattr(prims.undo, "_memory", lambda tensor: 1 // 0)
        raise ValueError("no")

    with pytest.raises(NotPutBackError, match="half written after ValueError"):
        undoing(run, [0])(torch.ones(3))
    assert not issubclass(NotPutBackError, Exception)  # which handlers that run eagerly take
