"""Assertions on data inside compiled functions: one graph, and the program's own error where they do not hold."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import compile_api


class Checked(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        h = self.first(x).relu()
        if not torch.isfinite(h).all():
            raise FloatingPointError("not finite")
        y = self.second(h)
        torch._check_tensor_all(y.abs() < 100, lambda: "large")
        return y


def run(model, compiled, x):
    model.zero_grad()
    try:
        y = compiled(x)
        y.square().sum().backward()
        return y.detach(), model.first.weight.grad.clone()
    except (FloatingPointError, RuntimeError) as error:
        return type(error), str(error).splitlines()[0]


@pytest.mark.parametrize("stored", [False, True])
def test_a_model(stored, tmp_path):
    options = {"cache_dir": str(tmp_path)} if stored else {}
    torch.manual_seed(0)
    model = Checked()
    inputs = [torch.randn(3, 4), torch.full((3, 4), float("inf")), torch.randn(3, 4) * 1e6, torch.randn(3, 4)]
    for _ in range(1 + stored):
        compiled = compile_api.compile(model, fullgraph=True, options=options)
        for x in inputs:
            ours, theirs = run(model, compiled, x), run(model, model, x)
            if isinstance(theirs[0], type):
                assert ours == theirs
            else:
                torch.testing.assert_close(ours, theirs)
        report = compiled.report()
        assert not report.breaks and sum(g.dialect == "torch" for g in report.graphs) == 1
        compile_api.reset()


def test_in_inference_the_generator_is_where_eager_has_it():
    def fn(x):
        a = torch.rand(4)
        if (x < 0).any():
            raise ValueError("negative")
        return a + x

    compiled = compile_api.compile(fn, fullgraph=True, options={"fallback_random": True})
    for run in (fn, compiled):
        torch.manual_seed(3)
        seen = [run(torch.ones(4))]
        with pytest.raises(ValueError):
            run(-torch.ones(4))
        seen += [run(torch.ones(4)), torch.rand(2)]
        if run is fn:
            wanted = seen
    for a, b in zip(seen, wanted, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("message", [(), ("too large",)])
def test_asynchronous_assertions(message):
    """On a CPU the operator raises at once: what is before it has happened then, and nothing behind it."""

    def run(x, log):
        log.append(1)
        torch._assert_async((x < 100).all(), *message)
        x.add_(1)
        return x * 2

    compiled = compile_api.compile(run)
    for number in (1.0, 2.0):
        found = [(each(x := torch.full((3,), number), log := []), x, log) for each in (run, compiled)]
        torch.testing.assert_close(found[1], found[0])
    assert compiled.report().verdict == "compiled"
    for each in (run, compiled):
        x, log = torch.full((3,), 500.0), []
        with pytest.raises(RuntimeError, match=message[0] if message else "Expected Tensor with single nonzero value"):
            each(x, log)
        assert log == [1] and x[0] == 500
