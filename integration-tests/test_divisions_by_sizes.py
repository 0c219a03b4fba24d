"""Derivatives that divide by sizes which become zero: infinities and NaN of PyTorch's formulas, no errors; a program's
own division by zero is an error, as in eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import compile_api

FUNCTIONS = {
    "std": lambda x: x.std(0).sum(),
    "var": lambda x: x.var(0).sum(),
    "var of everything": lambda x: x.var(),
    "std_mean": lambda x: sum(t.sum() for t in torch.std_mean(x, 0)),
    "correction": lambda x: torch.var(x, 0, correction=2).sum(),
    "mean": lambda x: x.mean(0).sum(),
    "nanmean": lambda x: x.nanmean(0).sum(),
    "norm": lambda x: x.norm(dim=0).sum(),
    "mse_loss": lambda x: F.mse_loss(x, x * 2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_sizes_that_come_to_one_and_none(name):
    compiled = compile_api.compile(FUNCTIONS[name])
    for rows in (2, 1, 3, 2, 1, 4, 1, 0):
        found = []
        for function in (compiled, FUNCTIONS[name]):
            x = torch.linspace(1, 2, rows * 2).view(rows, 2).requires_grad_()
            loss = function(x)
            loss.backward()
            found.append((loss.detach(), x.grad))
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, equal_nan=True)
    assert compiled.report().kernels and not compiled.report().fallbacks


@pytest.mark.parametrize("by", [lambda x, a: x * (1.0 / a), lambda x, a: x / (1.0 / (x.shape[0] - a))])
def test_a_programs_own_division_by_zero(by):
    compiled = compile_api.compile(by)
    for rows, a in ((3, 2.0), (4, 3.0), (5, 2.5)):
        torch.testing.assert_close(compiled(torch.ones(rows), a), by(torch.ones(rows), a))
    for rows, a in ((3, 0.0), (3, 3.0)):
        try:
            by(torch.ones(rows), a)
        except ZeroDivisionError:
            with pytest.raises(ZeroDivisionError):
                compiled(torch.ones(rows), a)
