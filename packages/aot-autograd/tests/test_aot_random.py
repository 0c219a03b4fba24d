"""Random numbers from seeds: distribution, agreement of forward and backward, reproducibility."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from test_aot_training import checkpointed_dropout, function_graph, leaf, module_graph
from torch import nn

from aot_autograd import (
    aot_function,
    default_partition,
    inference_graph,
    joint_graph,
    min_cut_partition,
    run_eagerly,
    saved_bytes,
)
from prims.options import Options

STRICT = Options(strict=True, verify="every_pass")


def compiled(function, inputs, partition=min_cut_partition, options=STRICT):
    return aot_function(
        function_graph(function, len(inputs)), inputs, fw_compiler=run_eagerly, partition_fn=partition, options=options
    )


@pytest.mark.parametrize("partition", [default_partition, min_cut_partition])
def test_dropout_agrees_in_forward_and_backward(partition):
    x = torch.ones(2000).requires_grad_()
    drop = compiled(lambda x: F.dropout(x, 0.3), [x], partition)
    result = drop(x)
    result.sum().backward()
    assert set(result.tolist()) <= {0.0, torch.tensor(1.0).div(0.7).item()}
    torch.testing.assert_close(x.grad, result.detach())
    assert abs(float((result == 0).float().mean()) - 0.3) < 0.05


def test_calls_differ_and_a_seed_repeats_them():
    x = torch.ones(100)
    drop = compiled(lambda x: F.dropout(x, 0.5), [x])
    torch.manual_seed(3)
    first, second = drop(x), drop(x)
    torch.manual_seed(3)
    assert torch.equal(first, drop(x)) and torch.equal(second, drop(x))
    assert not torch.equal(first, second)


def test_draws_of_one_call_are_independent():
    x = torch.ones(5000)
    two = compiled(lambda x: (torch.rand_like(x), torch.rand_like(x), torch.rand(5000), torch.randn(5000)), [x])
    with torch.no_grad():
        draws = torch.stack(two(x))
    correlation = torch.corrcoef(draws) - torch.eye(4)
    assert float(correlation.abs().max()) < 0.07


@pytest.mark.parametrize(
    "draw, mean, deviation",
    [
        (lambda x: torch.rand_like(x), 0.5, 12**-0.5),
        (lambda x: torch.randn_like(x), 0.0, 1.0),
        (lambda x: torch.empty_like(x).uniform_(-2, 4), 1.0, 6 * 12**-0.5),
        (lambda x: torch.empty_like(x).normal_(3, 2), 3.0, 2.0),
        (lambda x: torch.bernoulli(x * 0.25), 0.25, (0.25 * 0.75) ** 0.5),
        (lambda x: torch.empty_like(x).bernoulli_(0.1), 0.1, 0.3),
        (lambda x: torch.native_dropout(x, 0.5, True)[0], 1.0, 1.0),
    ],
    ids=["rand_like", "randn_like", "uniform_", "normal_", "bernoulli", "bernoulli_", "native_dropout"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_distributions(draw, mean, deviation, dtype):
    x = torch.ones(100, 200, dtype=dtype)
    graph = inference_graph(function_graph(draw), [x])
    assert [desc.kind for desc in graph.inputs] == ["input", "rng_seed"]
    torch.manual_seed(0)
    values = compiled(draw, [x])(x)
    assert values.dtype == dtype and values.shape == x.shape
    assert abs(float(values.double().mean()) - mean) < 0.05 * max(deviation, 0.3)
    assert abs(float(values.double().std()) - deviation) < 0.05 * deviation


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("low, high", [(0, 1), (1000, 1001), (-5, 3), (2, 2)])
def test_the_high_end_is_not_drawn(low, high, dtype):
    """Of what is rounded to it comes the other end, in eager and here; none of many is 1 of `rand`."""
    x = torch.empty(200_000, dtype=dtype)
    values = compiled(lambda x: torch.empty_like(x).uniform_(low, high), [x])(x)
    eager = torch.empty_like(x).uniform_(low, high)
    assert values.dtype == dtype and values.min() >= low and ((values.double() < high).all() or low == high)
    assert abs(float(values.double().mean() - eager.double().mean())) <= 0.02 * (high - low)
    assert (compiled(torch.rand_like, [x])(x) < 1).all()


def test_layout_is_eagers():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert compiled(torch.rand_like, [x])(x).stride() == torch.rand_like(x).stride()


def test_masks_are_not_saved():
    module = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8))
    joint = joint_graph(module_graph(module), [leaf(4, 8)])
    assert saved_bytes(joint, min_cut_partition(joint, Options())) == 4 * 8 * 4


def test_checkpointed_dropout():
    x, y = leaf(50, 50), leaf(50, 50)
    torch.manual_seed(0)
    ours = compiled(checkpointed_dropout, [x, y])
    result = ours(x, y)
    result.sum().backward()
    # The gradient is zero where both masks of the second dropout dropped the element, and only there.
    kept = result.detach() != 0
    assert torch.equal(y.grad != 0, kept & (y.grad != 0)) and 0.6 < float(kept.float().mean()) < 0.8


def test_other_random_operators_stay_eagers():
    x = torch.full((50,), 2.0)
    ours = compiled(lambda x: (torch.poisson(x), torch.randperm(10)), [x])
    torch.manual_seed(5)
    first = ours(x)
    torch.manual_seed(5)
    for mine, theirs in zip(first, (torch.poisson(x), torch.randperm(10)), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("fill", ["bernoulli_", "uniform_", "normal_", "dropout"])
def test_eagers_numbers_in_the_order_of_memory(fill):
    """A tensor that is not row-major is filled as it lies in memory."""

    def function(x):
        y = x.sin().transpose(1, 2)
        return F.dropout(y, 0.4) if fill == "dropout" else getattr(torch.empty_like(y), fill)() + y

    x = leaf(2, 5, 3)
    compiled = aot_function(
        function_graph(function), [x], fw_compiler=run_eagerly, options=Options(fallback_random=True, strict=True)
    )
    results = []
    for one in (compiled, function):
        torch.manual_seed(3)
        result = one(x)
        results.append((result, *torch.autograd.grad(result.sum(), x)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("training", [False, True])
def test_a_leaky_slope_drawn_gives_a_row_major_result(training):
    """Whatever the order of its operand in memory: what the functional form of the operator gives keeps that."""
    for x in (torch.randn(3, 4).t(), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(4, 6)[::2]):
        rrelu = compiled(lambda x: F.rrelu(x, 0.25, 0.25, training), [x])
        want = F.rrelu(x, 0.25, 0.25, training)
        with torch.no_grad():
            got = rrelu(x)
        assert got.stride() == want.stride() and torch.equal(got, want)
