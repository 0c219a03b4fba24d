"""``batch_invariant`` and ``deterministic`` on a GPU: the bits of rows, and of runs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from invariant_models import MODELS, batch_of

import compile_api

ROWS = 64


def differing(run, whole, batch):
    return [
        (rows, at)
        for rows in (1, 2, 7, 32) for at in (0, 3, ROWS - rows)
        if not torch.equal(run(batch[at : at + rows]), whole[at : at + rows])
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_rows_of_a_perceptron(dynamic, dtype):
    torch.manual_seed(0)
    model, batch = MODELS["perceptron"]().eval().cuda().to(dtype), batch_of("perceptron", ROWS).cuda().to(dtype)
    made = compile_api.compile(model, dynamic=dynamic, options={"batch_invariant": True, "strict": True})
    with torch.no_grad():
        assert differing(made, made(batch), batch) == []
    assert all(p.held for p in made.report().policies)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_attention_as_written(dtype):
    """Products, a softmax over columns, a norm: PyTorch's fused attention is named instead."""
    torch.manual_seed(0)
    weight = torch.randn(96, 96, device="cuda", dtype=dtype) * 0.1

    def program(x):
        q, k, v = (y.unflatten(-1, (4, 24)).transpose(1, 2) for y in (x @ weight, x @ weight.t(), x))
        scores = torch.softmax(q @ k.transpose(-1, -2) * 0.2, -1)
        return F.layer_norm((scores @ v).transpose(1, 2).flatten(2), (96,))

    batch = torch.randn(ROWS, 40, 96, device="cuda", dtype=dtype)
    made = compile_api.compile(program, options={"batch_invariant": True, "strict": True})
    whole = made(batch)
    assert differing(made, whole, batch) == []
    torch.testing.assert_close(whole, program(batch), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("name", "op"), [("gpt2", "attention"), ("resnet", "convolution")])
def test_what_the_library_computes_is_named(name, op):
    model, batch = MODELS[name]().eval().cuda(), batch_of(name, 4).cuda()
    made = compile_api.compile(model, options={"batch_invariant": True})
    with torch.no_grad():
        torch.testing.assert_close(made(batch), model(batch), rtol=1e-3, atol=1e-3)
    assert any(op in p.op for p in made.report().policies if not p.held)


def test_runs_of_scattered_sums():
    torch.manual_seed(0)
    at = torch.randint(0, 50, (100_000,), device="cuda")
    values = torch.randn(100_000, 8, device="cuda")

    def program(at, values):
        return torch.zeros(50, 8, device="cuda").index_add(0, at, values.sin())

    made = compile_api.compile(program, options={"deterministic": True})
    results = [made(at, values) for _ in range(20)]
    assert all(torch.equal(x, results[0]) for x in results)
    assert not any("atomic" in kernel.source for kernel in made.report().kernels)
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_profiler_sees_kernels_with_lines():
    made = compile_api.compile(lambda x: torch.softmax(x.sin(), -1))
    x = torch.randn(64, 64, device="cuda")
    made(x)
    with torch.autograd.profiler.profile() as profiled:
        made(x)
    (kernel,) = made.report().kernels
    assert any(e.key.startswith(kernel.name) and "test_gpu_policies.py" in e.key for e in profiled.key_averages())
