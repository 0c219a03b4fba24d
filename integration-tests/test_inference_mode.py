"""``torch.inference_mode`` inside compiled programs: kernels in one graph, inference tensors out of it."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import compile_api


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 8)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x):
        y = F.gelu(self.a(x))
        return F.layer_norm(self.b(y) + x, (8,)), y[:, 1:]

    @torch.inference_mode()
    def predict(self, x):
        logging.getLogger("model").debug("predicts %s", x.shape)
        return self(x)

    def counting(self, x):
        with torch.inference_mode():
            self.seen.add_(x.sum(0))
            out, _ = self(x)
            return out.softmax(-1)

    def goes_on(self, x):
        with torch.inference_mode():
            target = self(x)[0]
        return target * 2, target.clone()

    def counting_in_a_mode(self, x):
        self.seen.add_(x.sum(0))
        return self(x)[0] * 2


@pytest.mark.parametrize("method", ["predict", "counting", "goes_on", "counting_in_a_mode"])
def test_as_eager(method):
    torch.manual_seed(0)
    model, twin = Model(), Model()
    twin.load_state_dict(model.state_dict())
    compiled = compile_api.compile(getattr(model, method))
    for _ in range(3):
        x = torch.randn(5, 8)
        with torch.inference_mode(method == "counting_in_a_mode"):
            ours, theirs = compiled(x), getattr(twin, method)(x)
        for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (ours, theirs)), strict=True):
            assert (a.is_inference(), a.requires_grad, a.stride()) == (b.is_inference(), b.requires_grad, b.stride())
            torch.testing.assert_close(a.clone(), b.clone())
        torch.testing.assert_close(model.seen, twin.seen)
        assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    report = compiled.report()
    assert not report.fallbacks and report.kernels, str(report)
    assert len(report.breaks) == (method == "goes_on")
