"""``torch.utils.checkpoint`` inside a captured region is one node of its graph."""

from __future__ import annotations

import contextlib
import copy
import functools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from dynamo_capture import optimize, supports_dynamic_shapes
from prims.report import Report


class Net(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)) for _ in range(3))
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        x = x * 1
        for block in self.blocks:
            x = self.call(self, block, x)
        return x


def of_tuple(net, block, x):
    y, nothing, z = checkpoint(lambda h, factor: (block(h) * factor, None, h.detach()), x, 2.0, use_reentrant=False)
    assert nothing is None
    return y + z


def of_dict(net, block, x):
    def named(h):
        y = block(h)
        return {"y": y, "same": y, "more": (y.sin(), [h.cos(), None]), "count": 2}

    found = checkpoint(named, x, use_reentrant=False)
    (sine, (cosine, nothing)) = found["more"]
    assert nothing is None and found["same"] is found["y"] and list(found) == ["y", "same", "more", "count"]
    return found["y"] * found["count"] + sine * cosine


KEPT = {}


def of_a_dict_from_outside(net, block, x):
    found = checkpoint(lambda h: (block(h), KEPT), x, use_reentrant=False)
    assert found[1] is KEPT
    return found[0]


WHOLE = {
    "dict": of_dict,
    "module": lambda net, block, x: checkpoint(block, x, use_reentrant=False),
    "reentrant": lambda net, block, x: checkpoint(block, x, use_reentrant=True),
    "partial": lambda net, block, x: functools.partial(checkpoint, use_reentrant=False)(block.__call__, x),
    "tuple": of_tuple,
    "keyword": lambda net, block, x: checkpoint(
        lambda h, by=1.0: block(h) * by, x, use_reentrant=False, preserve_rng_state=False, by=3.0
    ),
    "nested": lambda net, block, x: checkpoint(
        lambda h: checkpoint(block, h, use_reentrant=False).sin(), x, use_reentrant=False
    ),
    "sequential": lambda net, block, x: checkpoint_sequential(block, 2, x, use_reentrant=False),
    "contexts": lambda net, block, x: checkpoint(
        block, x, use_reentrant=False, context_fn=lambda: (torch.enable_grad(), torch.enable_grad())
    ),
}


class Entered(contextlib.AbstractContextManager):
    times = 0

    def __exit__(self, *error):
        Entered.times += 1


BROKEN = {
    "outside": (of_a_dict_from_outside, "other than tensors"),
    "batch_norm": (lambda net, block, x: checkpoint(net.norm, x, use_reentrant=False), "side effects"),
    "context": (
        lambda net, block, x: checkpoint(block, x, use_reentrant=False, context_fn=lambda: (Entered(), Entered())),
        "context_fn sees the class",
    ),
}


def trained(net, run, x):
    for _ in range(2):
        run(x).square().sum().backward()
    return [p.grad for p in net.parameters()], list(net.buffers())


def check(call):
    torch.manual_seed(0)
    ours, x = Net(call), torch.randn(4, 8, requires_grad=True)
    theirs, report, graphs = copy.deepcopy(ours), Report(), []

    @supports_dynamic_shapes
    def backend(gm, inputs):
        graphs.append(gm)
        return gm.forward

    got = trained(ours, optimize(ours, backend, report=report), x)
    torch.testing.assert_close(got, trained(theirs, theirs, x))
    return report, graphs


@pytest.mark.parametrize("name", WHOLE)
def test_one_graph(name):
    report, graphs = check(WHOLE[name])
    assert len(graphs) == 1 and not report.breaks and not report.fallbacks
    regions = [node for node in graphs[0].graph.nodes if str(node.target) == "checkpoint"]
    assert len(regions) == 3
    assert all(len(list(node.target.graph.graph.nodes)) > 4 for node in regions)


@pytest.mark.parametrize("name", BROKEN)
def test_breaks_with_a_reason(name):
    call, reason = BROKEN[name]
    report, _ = check(call)
    assert any(reason in item.reason for item in report.breaks), report.breaks
