"""Memory budgets on random networks: fewer bytes with less budget, right gradients, and nothing run twice that must not be."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from aot_checks import check
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_aot_training import function_graph

from aot_autograd import (
    aot_function,
    default_partition,
    joint_graph,
    min_cut_partition,
    partition_joint,
    run_eagerly,
    saved_bytes,
)
from aot_autograd.partition.peak import estimated_peak
from aot_autograd.partition.split import is_backward
from prims.errors import CompileWarning
from prims.ir import SourceLoc
from prims.options import Options
from prims.report import Report

BUDGETS = (1.0, 0.75, 0.5, 0.25, 0.0)

#: Steps from ``[2, 4, 8]`` to ``[2, 4, 8]``, with a weight of ``[8, 8]``.
STEPS = {
    "linear": lambda x, w: F.linear(x, w),
    "matmul": lambda x, w: x @ w,
    # The tanh keeps two of them in a row from cubing the values twice: no two orders of summation agree after that.
    "bmm": lambda x, w: torch.bmm(torch.bmm(x, x.transpose(1, 2)).tanh(), x) * 0.1,
    "conv": lambda x, w: F.conv1d(x.transpose(1, 2), w.unsqueeze(-1)).transpose(1, 2).contiguous(),
    "attention": lambda x, w: (
        F.scaled_dot_product_attention(*([x.view(2, 4, 2, 4).transpose(1, 2)] * 3)).transpose(1, 2).reshape(2, 4, 8)
    ),
    "dropout": lambda x, w: F.dropout(x, 0.4),
    "norm": lambda x, w: F.layer_norm(x, (8,), w[0], w[1]),
    "softmax": lambda x, w: x.softmax(-1),
    "gelu": lambda x, w: F.gelu(x),
    "tanh": lambda x, w: x.tanh(),
    "sine": lambda x, w: torch.sin(x) * x,
    "gate": lambda x, w: torch.sigmoid(F.linear(x, w)) * x,
    "sum": lambda x, w: x - x.mean(1, keepdim=True),
}
NETWORK = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.booleans()), min_size=1, max_size=8)

#: Parts of the names of operators that are never run again at full budget, or (random ones) ever.
HEAVY = ("mm", "convolution", "attention", "matmul", "linear")
RANDOM = ("bernoulli", "dropout", "rand", "normal_")


def network(steps):
    """The function of these steps, some with a residual connection around them."""

    def run(x, w):
        for name, residual in steps:
            y = STEPS[name](x, w)
            x = x + y if residual else y
        return x

    return run


def make():
    return [torch.randn(2, 4, 8).double().requires_grad_(), torch.randn(8, 8).double().requires_grad_()]


def counted(nodes, parts) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in nodes:
        name = str(node.target)
        if name.startswith("aten.") and any(part in name for part in parts):
            found[name] = found.get(name, 0) + 1
    return found


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=NETWORK)
def test_less_budget_saves_no_more(steps):
    options = Options(strict=True, fallback_random=True)
    joint = joint_graph(function_graph(network(steps), 2), make(), options)
    sizes = [saved_bytes(joint, default_partition(joint, options))]
    sizes += [saved_bytes(joint, min_cut_partition(joint, options.replace(memory_budget=b))) for b in BUDGETS]
    assert sizes == sorted(sizes, reverse=True)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=NETWORK)
def test_what_must_not_run_twice_does_not(steps):
    options = Options(strict=True, fallback_random=True)
    joint = joint_graph(function_graph(network(steps), 2), make(), options)
    nodes = [node for node in joint.envelope.graph.nodes if node.op == "call_function"]
    for budget in BUDGETS:
        split = partition_joint(joint, min_cut_partition, options.replace(memory_budget=budget))
        again = [*split.forward.op_nodes, *split.backward.op_nodes]
        assert counted(again, RANDOM) == counted(nodes, RANDOM)
        if budget == 1.0:
            own = [node for node in nodes if is_backward(node)]
            assert counted(split.backward.op_nodes, HEAVY) == counted(own, HEAVY)


@pytest.mark.parametrize("budget", BUDGETS)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=NETWORK)
def test_gradients_at_every_budget(budget, steps):
    def partition(joint, options):
        return min_cut_partition(joint, options.replace(memory_budget=budget))

    check(function_graph(network(steps), 2), make, calls=1, partition=partition)


@pytest.mark.parametrize("name", ["linear", "bmm", "conv", "attention"])
def test_the_check_sees_heavy_operators(name):
    """At budget 0 they do run again, and the counts above differ: the test can fail."""
    options = Options(strict=True, memory_budget=0.0)
    steps = [(name, False), ("tanh", False), (name, False), ("sine", False)]
    joint = joint_graph(function_graph(network(steps), 2), make(), options)
    split = partition_joint(joint, min_cut_partition, options)
    own = [node for node in joint.envelope.graph.nodes if is_backward(node)]
    assert counted(split.backward.op_nodes, HEAVY) != counted(own, HEAVY)


def stack(depth):
    """Layers whose products are not run twice unless the budget asks for it."""

    def run(x, w):
        for _ in range(depth):
            x = torch.tanh(x @ w)
        return x

    return run


@pytest.mark.parametrize("fraction", [1.0, 0.8, 0.65])
def test_a_budget_in_bytes_fits_the_estimated_peak(fraction):
    """With the fewest values saved that it takes, and not one operator run again where nothing has to be."""
    inputs = [torch.randn(256, 16).double().requires_grad_(), torch.randn(16, 16).double().requires_grad_()]
    options = Options(strict=True)
    joint = joint_graph(function_graph(stack(12), 2), inputs, options)
    usual = min_cut_partition(joint, options)
    most = estimated_peak(joint, usual)
    limited = options.replace(memory_budget=f"{int(most * fraction)}B")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = min_cut_partition(joint, limited)
    assert estimated_peak(joint, chosen) <= most * fraction
    assert (chosen == usual) == (fraction == 1.0)


def test_a_budget_in_bytes_that_cannot_be_kept_is_told():
    inputs = [torch.randn(256, 16).double().requires_grad_(), torch.randn(16, 16).double().requires_grad_()]
    options = Options(strict=True)
    joint = joint_graph(function_graph(stack(12), 2), inputs, options)
    with pytest.warns(CompileWarning, match="memory_budget is 2000 bytes, but a training step takes"):
        chosen = min_cut_partition(joint, options.replace(memory_budget="2KB"))
    assert estimated_peak(joint, chosen) < estimated_peak(joint, min_cut_partition(joint, options))


def test_the_estimate_counts_what_is_alive():
    """Twelve saved results of 256 x 16 doubles and the last one's gradients, beside the inputs."""
    inputs = [torch.randn(256, 16).double().requires_grad_(), torch.randn(16, 16).double().requires_grad_()]
    joint = joint_graph(function_graph(stack(12), 2), inputs, Options(strict=True))
    one, given = 256 * 16 * 8, (256 + 16) * 16 * 8
    assert given + 12 * one <= estimated_peak(joint, min_cut_partition(joint, Options())) <= given + 16 * one


def test_the_report_says_what_is_saved():
    def layer(x, w):
        return torch.tanh(x @ w).sum()

    report = Report()
    inputs = [torch.randn(256, 16).requires_grad_(), torch.randn(16, 16).requires_grad_()]
    gm = function_graph(layer, 2)
    for node in gm.graph.nodes:
        node.meta["source"] = SourceLoc("model.py", 7, "layer")
    aot_function(gm, inputs, fw_compiler=run_eagerly, partition_fn=min_cut_partition, report=report)
    (saved,) = report.saved
    assert (saved.bytes, saved.count) == (256 * 16 * 4, 1)
    ((size, what, where),) = saved.largest
    assert size == saved.bytes and what.endswith("float32 [256, 16]") and where == "model.py:7 in layer"
    assert "saved for the backward pass: 16384 bytes in 1 value" in str(report) and "model.py:7" in str(report)
    assert '"saved"' in report.to_json()
