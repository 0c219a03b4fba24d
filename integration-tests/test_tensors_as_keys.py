"""Dicts whose keys are tensors: what a compiled function reads of them it finds by the place of the entry, so that the
entries of another model serve as well, and models are freed."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import compile_api

OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, 0.1),
    "Adam, foreach": lambda parameters: torch.optim.Adam(parameters, 0.1, foreach=True),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, 0.01),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, 0.1),
}


def model():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def step(net, optimizer, x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    return loss


def trained(run, net, optimizer, steps=3):
    torch.manual_seed(1)
    for _ in range(steps):
        run(net, optimizer, torch.randn(5, 6), torch.randint(0, 3, (5,)))
    return [parameter.detach().clone() for parameter in net.parameters()]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_step_serves_many_models(name):
    """K folds, or the trials of a search: no recompilation beyond the first step's, and no model kept."""
    compiled, gone = compile_api.compile(step), []
    for seed in range(12):
        torch.manual_seed(seed)
        net = model()
        other = copy.deepcopy(net)
        got = trained(compiled, net, OPTIMIZERS[name](net.parameters()))
        wanted = trained(step, other, OPTIMIZERS[name](other.parameters()))
        torch.testing.assert_close(got, wanted)
        gone.append(weakref.ref(net[0].weight))
        del net, other
    gc.collect()
    assert compiled.report().verdict == "compiled"
    assert len(compiled.report().recompiles) <= 2
    assert not any(each() is not None for each in gone)


def test_the_order_of_the_entries_is_guarded():
    compiled = compile_api.compile(step)
    for reverse in (False, True, False, True):
        torch.manual_seed(0)
        net = model()
        other = copy.deepcopy(net)
        found = []
        for run, each in ((compiled, net), (step, other)):
            optimizer = torch.optim.Adam(each.parameters(), 0.1)
            trained(step, each, optimizer, 2)
            if reverse:  # as a state that was loaded from elsewhere may lie
                state = dict(reversed(optimizer.state.items()))
                optimizer.state.clear()
                optimizer.state.update(state)
            found.append(trained(run, each, optimizer))
        torch.testing.assert_close(found[0], found[1])
    assert compiled.report().verdict == "compiled" and len(compiled.report().recompiles) == 1


def average(net, shadow):
    for parameter in net.parameters():
        shadow[parameter].mul_(0.9).add_(parameter.detach(), alpha=0.1)


@pytest.mark.parametrize("change", ["none", "taken out", "taken out and put back", "another first", "a new dict"])
def test_dicts_that_change(change):
    """What was taken out leaves a gap in the dict's table; what is put back comes last."""
    torch.manual_seed(0)
    compiled, found = compile_api.compile(average), []
    for run in (average, compiled):
        torch.manual_seed(0)
        net, extra = model(), torch.zeros(2, requires_grad=True)
        first, *rest = net.parameters()
        shadow = {each: torch.zeros_like(each) for each in (extra, first, *rest)}
        run(net, shadow)
        if change == "taken out":
            del shadow[extra]
        elif change == "taken out and put back":
            shadow[first] = shadow.pop(first)
        elif change == "another first":
            shadow = {each: shadow[each] for each in reversed(shadow)}
        elif change == "a new dict":
            shadow = {each: value.clone() for each, value in shadow.items()}
        run(net, shadow)
        found.append([shadow[each] for each in net.parameters()])
    torch.testing.assert_close(found[1], found[0])
    assert compiled.report().verdict == "compiled"


def test_a_tensor_that_is_no_key_is_missed():
    def read(table, x):
        return table[x] + x if x in table else x - 1

    compiled = compile_api.compile(read)
    x, y = torch.ones(2), torch.ones(2)
    for table, key in (({x: x}, x), ({x: x}, y), ({}, x), ({y: x * 3}, y), ({x: x, y: y * 2}, y), ({x: x}, y)):
        torch.testing.assert_close(compiled(table, key), read(table, key))
    assert compiled.report().verdict == "compiled"
