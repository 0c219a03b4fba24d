"""``requires_grad_(False)`` on what exists outside, while a region runs: one graph, with eager's gradients and flags."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn


def flags(module, flag):
    for p in module.parameters():
        p.requires_grad_(flag)


class Adversaries:
    """The step of a GAN: the discriminator is frozen while the generator learns."""

    def __init__(self):
        torch.manual_seed(0)
        self.g, self.d = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.og, self.od = torch.optim.SGD(self.g.parameters(), 0.1), torch.optim.Adam(self.d.parameters(), 0.1)

    def step(self, z, real):
        flags(self.d, False)
        self.og.zero_grad()
        first = F.softplus(-self.d(self.g(z))).mean()
        first.backward()
        self.og.step()
        flags(self.d, True)
        self.od.zero_grad()
        second = F.softplus(-self.d(real)).mean() + F.softplus(self.d(self.g(z).detach())).mean()
        second.backward()
        self.od.step()
        return first.detach(), second.detach()


def test_a_gan(capture):
    ours, theirs = Adversaries(), Adversaries()
    compiled = capture(ours.step)
    for at in range(4):
        torch.manual_seed(at)
        z, real = torch.randn(5, 3), torch.randn(5, 4)
        torch.testing.assert_close(compiled(z, real), theirs.step(z, real))
        pairs = zip([*ours.g.parameters(), *ours.d.parameters()], [*theirs.g.parameters(), *theirs.d.parameters()],
                    strict=True)  # fmt: skip
        for a, b in pairs:
            torch.testing.assert_close((a, a.grad), (b, b.grad))
            assert a.requires_grad
    assert compiled.report.breaks == [] and len(compiled.report.graphs) <= 3


def frozen_for_a_call(m, x):
    flags(m[0], False)
    y = m(x)
    flags(m[0], True)
    return y.sum() + m[0](x).sum() * 2


def left_frozen(m, x):
    m[0].requires_grad_(False)
    return m(x).sum()


def by_attribute(m, x):
    m[1].weight.requires_grad = False
    y = m(x)
    m[1].weight.requires_grad = True
    return y.sum()


def twice(m, x):
    for _ in range(2):
        m.requires_grad_(False)
        y = m(x).sum()
        m.requires_grad_(True)
    return y + m(x).sum()


def written(m, x):
    flags(m, False)
    m[0].weight.mul_(0.5)
    m[1].bias += 1
    y = m(x).sum()
    flags(m, True)
    return y + m(x).sum()


def asked(m, x):
    w = m[0].weight
    w.requires_grad_(False)
    y = (w * 2).requires_grad, w.is_leaf, w.grad_fn is None, w is m[0].weight, w.requires_grad
    return m(x).sum() * sum(y)


def given(m, x):
    m[0].weight.requires_grad_(False)
    return m(x).sum(), m[0].weight, m[0].weight.view(-1)


PROGRAMS = (frozen_for_a_call, left_frozen, by_attribute, twice, written, asked, given)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_frozen(capture, program, dtype):
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).to(dtype)
    theirs, x = copy.deepcopy(ours), torch.randn(3, 4, dtype=dtype)
    compiled, graphs = capture(program), 2 if program in (left_frozen, asked, given) else 1
    for _ in range(3):
        found, wanted = compiled(ours, x), program(theirs, x)
        if program is given:
            assert found[1] is ours[0].weight and found[2].data_ptr() == found[1].data_ptr()
            found, wanted = found[0], wanted[0]
        torch.testing.assert_close(found, wanted)
        if wanted.requires_grad:
            found.backward()
            wanted.backward()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert a.requires_grad == b.requires_grad
            torch.testing.assert_close((a, a.grad), (b, b.grad))
    assert compiled.report.breaks == [] and len(compiled.report.graphs) == graphs


def test_one_that_was_frozen_before(capture):
    ours = nn.Linear(3, 3).requires_grad_(False)

    def fn(x):
        ours.requires_grad_(True)
        return ours(x).sum()

    compiled = capture(fn)
    compiled(torch.ones(2, 3)).backward()
    assert ours.weight.grad is not None and compiled.report.breaks
