"""Gradients of some results only, through custom functions whose backward is anything but linear in what it gets."""

from __future__ import annotations

import itertools

import pytest
import torch

import compile_api


class Saved(torch.autograd.Function):
    """Its gradient is a tensor that it saved, whatever comes back."""

    @staticmethod
    def forward(ctx, x, gradient):
        ctx.save_for_backward(gradient)
        return x * 2

    @staticmethod
    def backward(ctx, coming):
        return ctx.saved_tensors[0], None


class Passes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, coming):
        return coming


def program(x, w, gradient):
    y = x * w
    return Saved.apply(y, gradient) * 3, y * 5, Passes.apply(y).sin(), Passes.apply(Saved.apply(w, gradient))


@pytest.mark.parametrize("used", [u for u in itertools.product((False, True), repeat=4) if any(u)])
def test_gradients_of_some_results(used):
    found = []
    for call in (program, compile_api.compile(program, fullgraph=True)):
        torch.manual_seed(0)
        x, w = (torch.randn(3, requires_grad=True) for _ in range(2))
        results = call(x, w, torch.full((3,), 7.0))
        sum(result.sum() for result, u in zip(results, used, strict=True) if u).backward()
        found.append([x.grad, w.grad])
    for theirs, ours in zip(*found, strict=True):
        assert (theirs is None) == (ours is None)
        if theirs is not None:
            torch.testing.assert_close(ours, theirs)
