"""Samples of distributions through which gradients flow: with eager's random numbers, eager's values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import distributions

import compile_api

SAMPLES = {
    "gamma": lambda x: distributions.Gamma(x.exp(), 1.0 + x * x),
    "dirichlet": lambda x: distributions.Dirichlet(x.exp()),
    "beta": lambda x: distributions.Beta(x.exp(), x.exp() + 1),
    "chi-squared": lambda x: distributions.Chi2(x.exp()),
    "Student's t": lambda x: distributions.StudentT(x.exp() + 2),
    "normal": lambda x: distributions.Normal(x, x.exp()),
    "laplace": lambda x: distributions.Laplace(x, x.exp()),
    "gumbel": lambda x: distributions.Gumbel(x, x.exp()),
    "exponential": lambda x: distributions.Exponential(x.exp()),
    "inverse gamma": lambda x: distributions.InverseGamma(x.exp() + 1, x.exp()),
    "log-normal": lambda x: distributions.LogNormal(x, x.exp()),
    "relaxed": lambda x: distributions.RelaxedBernoulli(torch.tensor(0.5), logits=x),
    "squashed": lambda x: distributions.TransformedDistribution(
        distributions.Normal(x, x.exp()), [distributions.transforms.TanhTransform(cache_size=1)]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_and_their_gradients(name):
    def fn(x):
        drawn = SAMPLES[name](x).rsample()
        return drawn.pow(2).sum(), drawn

    compiled = compile_api.compile(fn, options={"fallback_random": True})
    for rows in (2, 3, 4):
        found = []
        for run in (fn, compiled):
            torch.manual_seed(rows)
            x = torch.linspace(-1, 1, 3 * rows).view(rows, 3).requires_grad_()
            loss, drawn = run(x)
            loss.backward()
            found.append((drawn.detach(), x.grad, torch.get_rng_state()))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    report = compiled.report()
    assert report.verdict == "compiled", str(report)
