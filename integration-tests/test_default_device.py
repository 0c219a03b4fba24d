"""Compiled programs under a default device that is not theirs: kernels, backwards and random numbers go by the graph's."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import compile_api

CPU = torch.device("cpu")


def plain(w, x):
    return (F.relu(x @ w) + torch.arange(4, device=CPU)).sum()


def with_dropout(w, x):
    return F.dropout(x @ w, 0.5).square().sum()


def writes(w, x):
    x = x.clone()
    x[:, 0] = 2.0
    return (x @ w).softmax(-1)[:, 1].sum()


def with_views(w, x):
    return (w.t()[1:].reshape(-1)[::2] * 3).sum() + x.sum()


def checkpointed(w, x):
    return checkpoint(lambda y: (y @ w).sin().cos(), x, use_reentrant=False).sum()


def on_the_default(w, x):
    return (x @ w).sum() * torch.ones((), device=CPU) + torch.ones(3).shape[0]


PROGRAMS = [plain, with_dropout, writes, with_views, checkpointed, on_the_default]


@contextlib.contextmanager
def default_device(device):
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("around", ["set", "with", "neither"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
def test_training(program, around):
    torch._C._set_grad_enabled(True)
    w = torch.randn(4, 4, requires_grad=True)
    x = torch.randn(5, 4)
    compiled = compile_api.compile(program)
    modes = {"set": lambda: default_device("meta"), "with": lambda: torch.device("meta")}
    with modes.get(around, contextlib.nullcontext)():
        for _ in range(2):
            results = []
            for fn in (compiled, program):
                torch.manual_seed(3)
                w.grad = None
                loss = fn(w, x)
                loss.backward()
                results.append((loss.detach(), w.grad))
            if program is with_dropout:  # other random numbers than eager's
                assert all(map(torch.isfinite, (results[0][0], results[0][1].sum())))
            else:
                torch.testing.assert_close(results[0], results[1])
    report = compiled.report()
    assert not report.fallbacks, str(report)
    assert report.verdict == "compiled"
    assert not report.recompiles
