"""Hooks on a region's results, in backward passes that reach some of its results only: a generated table.

In eager a result that is computed by itself has an autograd node of its own, which is not run for another's gradient.
Each program is run in eager and compiled, and everything that hooks see is compared: how often, in which order, with what.
Of a node's hook behind its run that is what came to the node: what went on from it is another matter in a region.
"""

from __future__ import annotations

import contextlib
import itertools
import types

import pytest
import torch
from test_hooks_further_behind import (
    KINDS,
    LOG,
    apart,
    computed_from_others,
    in_order,
    note,
    numbers,
    views,
    watch,
    written,
)  # fmt: skip
from torch.nn.parallel import DistributedDataParallel as DDP

import compile_api


def saved_results(u, v, w):
    return u.exp(), v.tanh(), (w * u).sigmoid()


def of_all(u, v, w):
    return (u * v * w).sin(), (u + v + w).exp(), u / v / (w + 2)


def an_input_too(u, v, w):
    return u, u * v, w.sigmoid()


def one_twice(u, v, w):
    made = u.exp() * w
    return made, made, v.exp()


def parameters_alone(u, v, w):
    return w.exp(), w.sin(), w * 3


class Layers(torch.nn.Module):
    """Parameters lead to some of its results only."""

    def __init__(self):
        super().__init__()
        self.one = torch.nn.Parameter(torch.linspace(0.5, 2, 3))
        self.two = torch.nn.Parameter(torch.linspace(1, 2, 3))

    def forward(self, u, v, w):
        return u * self.one, (v * self.two).exp(), (w * self.one).tanh() * self.two


FUNCTIONS = (
    apart, saved_results, of_all, computed_from_others, views, written, an_input_too, one_twice, parameters_alone
)  # fmt: skip
REGIONS = {f.__name__: lambda f=f: f for f in FUNCTIONS} | {"module": Layers}


def behind_a_node(name):
    return lambda given, came: LOG.append((name, numbers(came)))


def name_of(result):
    return result if isinstance(result, str) else f"result {result}"


def together(mode):
    def hook(*gradients):
        LOG.append((mode, *map(numbers, gradients)))

    return hook


#: What is put on results; the number is that of a result.
ON_RESULTS = {
    "tensor": lambda results: [x.register_hook(note(name_of(k))) for k, x in results],
    "tensor that changes": lambda results: [x.register_hook(note(name_of(k), "doubles")) for k, x in results],
    "node": lambda results: [x.grad_fn.register_hook(behind_a_node(name_of(k))) for k, x in results if x.grad_fn],
    "node before": lambda results: [x.grad_fn.register_prehook(note(name_of(k))) for k, x in results if x.grad_fn],
    "retain": lambda results: [x.retain_grad() for _, x in results],
    "several": lambda results: torch.autograd.graph.register_multi_grad_hook([x for _, x in results], together("all")),
    "the first of several": lambda results: torch.autograd.graph.register_multi_grad_hook(
        [x for _, x in results], together("any"), mode="any"
    ),
}  # fmt: skip
INPUTS = {
    "leaves": (lambda x: x, lambda x: x),
    "computed": (lambda x: x * 3, lambda x: x.sin()),
    "one of each": (lambda x: x, lambda x: x * 3),
}
HOWS = ("backward", "twice", "of leaves", "second", "each", "a result", "forgotten")
SUBSETS = [used for n in (1, 2, 3) for used in itertools.combinations(range(3), n)]


def run_once(call, inputs, on_results, on_inputs, used, how):
    LOG.clear()
    leaves, given, retained = [], [], []
    for at, step in enumerate(INPUTS[inputs]):
        leaf = torch.linspace(0.2, 1, 3).add(at).requires_grad_()
        watch(on_inputs, f"leaf {at}", leaf, retained)
        x = step(leaf)
        if x is not leaf:
            watch(on_inputs, f"{at}, computed", x, retained)
        leaves.append(leaf)
        given.append(x)
    results = list(call(*given, torch.linspace(0, 1, 3).requires_grad_()))
    on_all = [(f"leaf {k}" if x.is_leaf else k, x) for k, x in enumerate(results) if x.requires_grad]
    ON_RESULTS[on_results](on_all)
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
        case "second":
            found = torch.autograd.grad(loss, leaves, allow_unused=True, create_graph=True)
            LOG.append(numbers(found))
            found = [g.cos().sum() for g in found if g is not None and g.requires_grad]
            if found:
                LOG.append(("second", None))
                sum(found).backward()
        case "each":
            for k in used:
                results[k].sum().backward(retain_graph=True)
                LOG.append("next")
        case "a result":
            LOG.append(numbers(torch.autograd.grad(loss, results[0], allow_unused=True)))
        case "forgotten":
            del results, on_all
            loss.backward()
            return [*LOG], [None if x.grad is None else numbers(x.grad) for x in leaves]
    kept = [x.grad if x.is_leaf or x.retains_grad else None for x in (*leaves, *retained, *results)]
    return [*LOG], [None if g is None else numbers(g) for g in kept]


def compare(call, compiled, inputs, on_results, on_inputs, used, how):
    try:
        eager = run_once(call, inputs, on_results, on_inputs, used, how)
    except RuntimeError as error:  # nothing to differentiate, or no derivative
        with pytest.raises(RuntimeError, match=str(error)[:20]):
            run_once(compiled, inputs, on_results, on_inputs, used, how)
        return
    ours = run_once(compiled, inputs, on_results, on_inputs, used, how)
    assert in_order(ours[0]) == in_order(eager[0]), (inputs, on_results, on_inputs, used, how)
    assert ours[1] == eager[1], (inputs, on_results, on_inputs, used, how)


@pytest.mark.parametrize("region", REGIONS)
def test_hooks_are_called_where_a_gradient_comes_in_eager(region):
    call = REGIONS[region]()
    compiled = compile_api.compile(call, fullgraph=True)
    for inputs, used, on_results, how in itertools.product(INPUTS, SUBSETS, ON_RESULTS, HOWS):
        compare(call, compiled, inputs, on_results, "none", used, how)
    assert compiled.report().kernels and not compiled.report().fallbacks


@pytest.mark.parametrize("region", ["apart", "saved_results", "module"])
def test_hooks_on_inputs_beside_those_on_results(region):
    call = REGIONS[region]()
    compiled = compile_api.compile(call, fullgraph=True)
    for inputs, used, on_inputs in itertools.product(INPUTS, SUBSETS, KINDS):
        for on_results in ("tensor", "node before", "several"):
            compare(call, compiled, inputs, on_results, on_inputs, used, "backward")


def of_one_node(u, v, w):
    return torch.var_mean(u * v * w, 0)


def of_one_function(u, v, w):
    return Two.apply(u * v * w)


class Two(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        return first * 2 + second * 3


@pytest.mark.parametrize("on_results", ["tensor", "node before", "retain", "several"])
@pytest.mark.parametrize("call", [of_one_node, of_one_function], ids=lambda f: f.__name__)
def test_results_of_one_node_of_eagers(call, on_results):
    """There a hook is called with None in eager, too."""
    compiled = compile_api.compile(call, fullgraph=True)
    for used in ((0,), (1,), (0, 1)):
        compare(call, compiled, "leaves", on_results, "none", used, "backward")


@pytest.mark.parametrize("region", ["apart", "saved_results", "computed_from_others", "of_all", "module"])
def test_under_buckets(region):
    """As under DistributedDataParallel: its reducer has the gradients handed over by buckets."""
    call = REGIONS[region]()
    compiled = compile_api.compile(call, fullgraph=True)

    def within(*args):
        config = types.SimpleNamespace(per_bucket_bytes_caps=(), first_bucket_bytes_cap=1, bucket_bytes_cap=1)
        DDP._active_ddp_module = types.SimpleNamespace(_bucket_config=config)
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, DDP, "_active_ddp_module", None)
            return compiled(*args)

    on_inputs = ("none", "tensor", "node before", "accumulated")
    on_results = ("tensor", "node before", "several")
    for one, inputs, other, used in itertools.product(on_inputs, INPUTS, on_results, SUBSETS):
        compare(call, within, inputs, other, one, used, "backward")


def test_a_stored_program(tmp_path):
    options = {"program_cache": True, "cache_dir": str(tmp_path)}
    call = Layers()
    for status in ("stored", "loaded"):
        compiled = compile_api.compile(Layers(), options=options)
        for used in SUBSETS:
            compare(call, compiled, "computed", "node before", "tensor", used, "backward")
        assert compiled.report().programs[-1].status == status
        compile_api.reset()


def test_a_result_is_still_nobodys_view():
    u, v, w = (torch.ones(3, requires_grad=True) for _ in range(3))
    for one, other in zip(compile_api.compile(apart)(u, v, w), apart(u, v, w), strict=True):
        assert one._is_view() is other._is_view() is False and one._base is None and one._version == other._version
        one.mul_(2)
        one.sum().backward(retain_graph=True)
    torch.testing.assert_close(u.grad, 4 + 2 * torch.ones(3).cos())
