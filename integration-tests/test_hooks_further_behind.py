"""Hooks anywhere behind a region's inputs, in backward passes that reach some of its results only: a generated table.

Eager's autograd graph has no way from a result to what it is not computed from, so that nothing there is run. Each
program is run in eager and compiled, and everything that its hooks see is compared: how often, in which order, with what.
"""

from __future__ import annotations

import itertools

import pytest
import torch

import compile_api


def apart(u, v, w):
    return u * 2, w.exp() * v, (u * v).sin() * w


def computed_from_others(u, v, w):
    first = u.sin() * w
    return first, first * v, v.cos()


def views(u, v, w):
    whole = torch.stack([v * w, v.sin()])
    return u * w, whole[0], whole[1] * u


def written(u, v, w):
    made = u * 1
    made[1:] = v[1:] * w[1:]
    return made, u.exp(), v * 3


def masked(u, v, w):
    return torch.where(w > 0.5, u, 0.0), torch.where(w > 0.5, v, u), w * v


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.linspace(0.5, 2, 3))

    def forward(self, u, v, w):
        return u * self.scale, v * w, self.scale.sin()


REGIONS = {f.__name__: lambda f=f: f for f in (apart, computed_from_others, views, written, masked)} | {"module": Scaled}


def numbers(value):
    if isinstance(value, (tuple, list)):
        return [numbers(v) for v in value]
    return None if value is None else [round(n, 3) for n in value.detach().flatten().tolist()]


class Doubles(torch.autograd.Function):
    """A backward that is run with zeros where a node is come to without a gradient."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        LOG.append(("function", numbers(gradient)))
        return gradient * 2


LOG = []


def note(name, given=None):
    def hook(*values):
        LOG.append((name, *map(numbers, values)))
        return values[0] * 2 if given == "doubles" else None

    return hook


def post_accumulate(name):
    return lambda leaf: LOG.append((name, numbers(leaf.grad)))


def watch(kind, name, tensor, retained):
    """Put a hook of some kind on a tensor."""
    accumulates = tensor.is_leaf
    node = torch.autograd.graph.get_gradient_edge(tensor).node
    match kind:
        case "tensor":
            tensor.register_hook(note(name))
        case "tensor that changes":
            tensor.register_hook(note(name, "doubles"))
        case "node":
            node.register_hook(note(name))
        case "node before":
            node.register_prehook(note(name))
        case "retain" if not accumulates:
            tensor.retain_grad()
            retained.append(tensor)
        case "accumulated" if accumulates:
            tensor.register_post_accumulate_grad_hook(post_accumulate(name))
    return node


KINDS = ("tensor", "tensor that changes", "node", "node before", "retain", "accumulated")
#: How an input comes of its leaf: the steps, after each of which something can be watched.
WAYS = {
    "leaf": [],
    "one step": [lambda x: x * 3],
    "two steps": [lambda x: x * 3, torch.sin],
    "function": [lambda x: x * 3, Doubles.apply],
    "function first": [Doubles.apply, lambda x: x[:, None].squeeze(1), torch.tanh],
}


def run_once(call, ways, kind, used, how):
    LOG.clear()
    leaves, inputs, retained, nodes = [], [], [], []
    for at, way in enumerate(ways):
        x = leaf = torch.linspace(0.2, 1, 3).add(at).requires_grad_()
        nodes.append(watch(kind, f"leaf {at}", x, retained))
        for depth, step in enumerate(WAYS[way]):
            x = step(x)
            nodes.append(watch(kind, f"{at}, step {depth}", x, retained))
        leaves.append(leaf)
        inputs.append(x)
    results = call(*inputs, torch.linspace(0, 1, 3).requires_grad_())
    loss = sum((results[k] * (k + 1)).sum() for k in used)
    match how:
        case "backward":
            loss.backward()
        case "twice":
            loss.backward(retain_graph=True)
            LOG.append("again")
            loss.backward()
        case "of leaves":
            LOG.append(numbers(torch.autograd.grad(loss, leaves, allow_unused=True)))
        case "of an input":
            LOG.append(numbers(torch.autograd.grad(loss, inputs[0], allow_unused=True)))
        case "backward of a leaf":
            loss.backward(inputs=leaves[1:])
        case "second":
            found = [g for g in torch.autograd.grad(loss, inputs, allow_unused=True, create_graph=True) if g is not None]
            LOG.append(numbers(found))
            found = [g.cos().sum() for g in found if g.requires_grad]
            if found:
                LOG.append(("second", None))
                sum(found).backward()
        case "each":
            for k in used:
                results[k].sum().backward(retain_graph=True)
                LOG.append("next")
    kept = [None if x.grad is None else numbers(x.grad) for x in (*leaves, *retained)]
    return [*LOG], kept


HOWS = ("backward", "twice", "of leaves", "of an input", "backward of a leaf", "second", "each")
SUBSETS = [used for n in (1, 2, 3) for used in itertools.combinations(range(3), n)]
PAIRS = [("one step", "one step"), ("two steps", "function"), ("function first", "leaf"), ("leaf", "two steps"), ("leaf", "leaf")]


def in_order(log):
    """A log with the calls at leaves apart: these come when their gradients are whole, in any order."""
    parts, leaves = [], []
    for entry in log:
        if isinstance(entry, tuple) and str(entry[0]).startswith("leaf"):
            leaves.append(entry)
        else:
            parts.append(entry)
    return parts, sorted(leaves, key=str)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("region", REGIONS)
def test_hooks_are_called_where_a_gradient_comes_in_eager(region, kind, how):
    call = REGIONS[region]()
    compiled = compile_api.compile(call, fullgraph=True)
    for ways in PAIRS:
        for used in SUBSETS:
            try:
                eager = run_once(call, ways, kind, used, how)
            except RuntimeError as error:  # nothing to differentiate, or no derivative
                with pytest.raises(RuntimeError, match=str(error)[:20]):
                    run_once(compiled, ways, kind, used, how)
                continue
            ours = run_once(compiled, ways, kind, used, how)
            assert in_order(ours[0]) == in_order(eager[0]), (ways, used)
            assert ours[1] == eager[1], (ways, used)
    assert compiled.report().kernels and not compiled.report().fallbacks


def loss_of(call, used, log):
    leaves = [torch.linspace(0.2, 1, 3).add(at).requires_grad_() for at in range(2)]
    behind = [leaf * 3 for leaf in leaves]
    for at, x in enumerate(behind):
        x.register_hook(lambda gradient, at=at: log.append((at, numbers(gradient))))
    results = call(*(x.sin() for x in behind), torch.linspace(0, 1, 3).requires_grad_())
    return sum(results[k].sum() for k in used), leaves


@pytest.mark.parametrize("used", SUBSETS)
def test_a_stored_program(used, tmp_path):
    options = {"program_cache": True, "cache_dir": str(tmp_path)}
    found = []
    for call in (Scaled(), *(compile_api.compile(Scaled(), options=options) for _ in range(2))):
        log = []
        loss, leaves = loss_of(call, used, log)
        loss.backward()
        found.append((log, [None if leaf.grad is None else numbers(leaf.grad) for leaf in leaves]))
    assert found[0] == found[1] == found[2]
    assert [record.status for record in call.report().programs] == ["loaded"]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("used", SUBSETS)
def test_inside_a_checkpoint(used, reentrant):
    found = []
    for region in (apart, compile_api.compile(apart, fullgraph=True)):

        def call(*args, region=region):
            return torch.utils.checkpoint.checkpoint(region, *args, use_reentrant=reentrant)

        log = []
        loss, leaves = loss_of(call, used, log)
        loss.backward()
        found.append((log, [None if leaf.grad is None else numbers(leaf.grad) for leaf in leaves]))
    assert found[0] == found[1]


def test_behind_a_graph_break():
    def program(a, b, w):
        c, d = a.sin(), b * 2
        assert str(c.tolist())  # a graph break
        return c * w, d.cos() * b, d * c

    compiled = compile_api.compile(program)
    for used in SUBSETS:
        found = []
        for call in (program, compiled):
            log = []
            loss, leaves = loss_of(call, used, log)
            loss.backward()
            found.append((log, [None if leaf.grad is None else numbers(leaf.grad) for leaf in leaves]))
        assert found[0] == found[1], used
    assert compiled.report().breaks and compiled.report().kernels
