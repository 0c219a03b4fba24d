"""Data of tensors that are computed of constants, or of a module's integers: known, and guarded where they may change."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn


def truth(x):
    t = torch.tensor([1.0, 2.0])
    return x + 1 if (t > 0).all() else x - 1


def items(x):
    t = torch.arange(4) * 2
    return x * t[2].item() + float(t.sum()) + int(t[1]) + t.tolist()[3] + t.sum().float().item()


def functions(x):
    a, b = torch.tensor([10.0, 1e-7]), torch.tensor([10.0, 1e-8])
    return x + torch.allclose(a, b) + torch.equal(a, a.clone()) + a.allclose(b, atol=1e-3), torch.is_nonzero(a[0]), 10.0 in a


def shapes(x):
    t = torch.tensor([[0, 3], [5, 0]])
    return torch.nonzero(t) + x.shape[0], t[t > 0], torch.unique(t), torch.nonzero(torch.zeros(3)), x + len(torch.unique(t))


def as_sizes(x):
    n = torch.tensor(2)
    return F.pad(x, (n, n + 1)), x.reshape(-1, n), torch.zeros(n * 2) + x[n], x[: n + 1]


def in_integers(x):
    n = torch.ceil((torch.tensor(7) - 3 + 1) / torch.tensor(2) + 1).to(torch.int64) - 1
    return F.pad(x, (0, max(0, n)))


ONE_GRAPH = [truth, items, functions, shapes, as_sizes, in_integers]


def same(a, b):
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride() and torch.equal(a, b)
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("fn", ONE_GRAPH)
def test_constants(fn, capture):
    compiled = capture(fn, fullgraph=True)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(4)
        assert same(compiled(x), fn(x))
    assert len(compiled.graphs) == 1


def written(x):
    t = torch.zeros(3)
    t[0] = x[0]
    return x + 1 if (t > 0).any() else x - 1


def written_through_a_view(x):
    t = torch.zeros(3)
    t[1:].copy_(x[:2])
    return x + 1 if t.sum() > 0 else x - 1


def random(x):
    return x + 1 if torch.rand(1) > 0.5 else x - 1


def of_an_input(x):
    return x + 1 if (torch.ones(4) * x).sum() > 0 else x - 1


def undefined(x):
    t = torch.empty(2).fill_(x[0].item())
    return x + (t > 0).all().item()


@pytest.mark.parametrize("fn", [written, written_through_a_view, random, of_an_input, undefined])
def test_what_is_not_known(fn, capture):
    compiled = capture(fn, strict=False)
    for seed in range(4):
        x = torch.randn(4, generator=torch.Generator().manual_seed(seed))
        torch.manual_seed(seed)
        got = compiled(x)
        torch.manual_seed(seed)
        assert same(got, fn(x))
    assert compiled.report.breaks


def test_history_is_kept(capture):
    def fn(x):
        t = torch.ones(3, requires_grad=True)
        return t[t > 0] * x, t.sum().item()

    compiled = capture(fn, strict=False)
    for _ in range(2):
        assert compiled(torch.ones(3))[0].requires_grad


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("stride", torch.tensor(2), persistent=False)
        self.register_buffer("size", torch.tensor(5), persistent=False)

    def forward(self, x):
        frames = torch.ceil((x.shape[-1] - self.size) / self.stride + 1).to(torch.int64) - 1
        extra = frames * self.stride + self.size - x.shape[-1]
        if x.shape[-1] <= max(0, extra):
            x = x + 1
        return F.pad(x, (self.stride, extra))


def test_numbers_of_a_module(capture):
    module = Padded()
    compiled = capture(module, fullgraph=True)
    x = torch.randn(2, 8)
    for change in (None, lambda: module.stride.fill_(3), lambda: module.size.add_(1), None,
                   lambda: setattr(module, "stride", torch.tensor(4))):  # fmt: skip
        if change is not None:
            change()
        try:
            wanted = module(x)
        except RuntimeError:
            continue
        assert same(compiled(x), wanted)
    assert len(compiled.graphs) <= 6


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        return x + 1 if self.calls > 2 else x - 1


def test_a_number_that_others_change(capture):
    """It is not captured anew for each."""
    module = Counting()
    compiled = capture(module, strict=False)
    for n in range(12):
        module.calls.fill_(n)
        assert same(compiled(torch.ones(2)), module(torch.ones(2)))
    assert len(compiled.graphs) <= 6
    assert not any("recompile limit" in f.reason for f in compiled.report.fallbacks)


def test_inside_a_graph_within(capture):
    """There nothing is known; it breaks as before."""
    from torch.utils.checkpoint import checkpoint

    def fn(x):
        return checkpoint(lambda y: y + 1 if y.sum() > 0 else y - 1, x, use_reentrant=False)

    compiled = capture(fn)
    for x in (torch.ones(2), -torch.ones(2)):
        assert same(compiled(x), fn(x))
    assert compiled.report.breaks
