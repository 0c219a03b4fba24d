"""Inputs with a history that a region writes, and whose new values its results are computed from: whoever watches one sees
all of its gradient, as in eager, or is told that it cannot be had; nobody sees a part of it."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from aot_autograd import aot_function, default_partition, min_cut_partition, run_eagerly
from prims.options import Options
from prims.report import Report


def written(y, w):
    y.mul_(3)
    return y + w


def twice_written(y, w):
    y.mul_(3)
    z = y + w
    w.add_(z)
    return z, z.sin()


def one(found):
    return found[1] if isinstance(found, tuple) else found


def unwatched(function, x):
    y, w = x.sin(), x.cos()
    (one(function(y, w)) * y).sum().backward()
    return x.grad


def hooked(function, x):
    y, w = x.sin(), x.cos()
    z = function(y, w)
    y.register_hook(lambda grad: grad * 5)
    (one(z) * y).sum().backward()
    return x.grad


def hooked_and_gone(function, x):
    y, w = x.sin(), x.cos()
    z = function(y, w)
    y.register_hook(lambda grad: grad * 5)
    out = (one(z) + y.sin()).sum()
    del y, w, z
    out.backward()
    return x.grad


def hooked_before_and_after(function, x):
    y, w = x.sin(), x.cos()
    y.register_hook(lambda grad: grad * 2)
    z = function(y, w)
    y.register_hook(lambda grad: grad * 5)
    (one(z) * y).sum().backward()
    return x.grad


def seen(function, x):
    y, w, found = x.sin(), x.cos(), []
    z = function(y, w)
    y.register_hook(found.append)
    (one(z) * y).sum().backward()
    return x.grad, found


def retained(function, x):
    y, w = x.sin(), x.cos()
    z = function(y, w)
    y.retain_grad()
    (one(z) * y).sum().backward()
    return x.grad, y.grad


def asked_for(function, x):
    y, w = x.sin(), x.cos()
    return torch.autograd.grad((one(function(y, w)) * y).sum(), y)


def of_the_leaf(function, x):
    y, w = x.sin(), x.cos()
    return torch.autograd.grad((one(function(y, w)) * y).sum(), x)


def written_again(function, x):
    y, w = x.sin(), x.cos()
    z = one(function(y, w))
    y.add_(z.detach())
    (z * 2 + y).sum().backward()
    return x.grad


def passed_on(function, x):
    y, w = x.sin(), x.cos()
    first = one(function(y, w))
    (first + one(function(y, w))).sum().backward()
    return x.grad


REFUSED = (hooked, hooked_and_gone, hooked_before_and_after, seen, retained, asked_for)
USES = (*REFUSED, unwatched, of_the_leaf, written_again, passed_on)


def compiled(region, partition, report):
    graph = torch.fx.Graph()
    given = [graph.placeholder(name) for name in ("y", "w")]
    x = torch.ones(3, requires_grad=True)
    if region is written:
        graph.call_method("mul_", (given[0], 3))
        graph.output(graph.call_method("add", tuple(given)))
    else:
        graph.call_method("mul_", (given[0], 3))
        z = graph.call_method("add", tuple(given))
        graph.call_method("add_", (given[1], z))
        graph.output((z, graph.call_method("sin", (z,))))
    return aot_function(
        torch.fx.GraphModule(torch.nn.Module(), graph), [x.sin(), x.cos()], fw_compiler=run_eagerly,
        bw_compiler=run_eagerly, partition_fn=partition, options=Options(), report=report,
    )  # fmt: skip


@pytest.mark.parametrize("partition", [default_partition, min_cut_partition])
@pytest.mark.parametrize("region", [written, twice_written])
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_all_of_a_gradient_or_none(use, region, partition):
    function, found = compiled(region, partition, report := Report()), []
    for run in (function, region):
        x = torch.linspace(0.5, 1, 3).requires_grad_()
        try:
            found.append(use(run, x))
        except RuntimeError as error:
            found.append(str(error))
    if use in REFUSED and isinstance(found[0], str) and not isinstance(found[1], str):
        assert "not possible: it writes to its inputs" in found[0]
    elif isinstance(found[1], str):
        assert isinstance(found[0], str)
    else:
        torch.testing.assert_close(*found)
    assert not report.fallbacks


def test_what_is_written_again_is_not_kept():
    function = compiled(written, min_cut_partition, Report())
    x = torch.ones(3, requires_grad=True)
    y, w = x.sin(), x.cos()
    z = function(y, w)
    y.mul_(z)
    kept = weakref.ref(z)
    out = y.sum()
    del y, w, z, out
    gc.collect()
    assert kept() is None


def beside_its_view(x):
    first = x.narrow(0, 0, 1)
    return first, first.softmax(1)


def nobody(view, log):
    pass


def by_a_hook(view, log):
    view.register_hook(lambda gradient: log.append(gradient.tolist()))


def by_a_hook_that_changes(view, log):
    view.register_hook(lambda gradient: gradient * 2)


def by_its_node(view, log):
    view.grad_fn.register_hook(lambda _, gradients: log.append(gradients[0].tolist()))


def by_its_gradient(view, log):
    view.retain_grad()


@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.parametrize("is_gone", [True, False])
@pytest.mark.parametrize("is_written", [True, False])
@pytest.mark.parametrize("watch", [nobody, by_a_hook, by_a_hook_that_changes, by_its_node, by_its_gradient])
def test_a_view_of_an_input_is_watched_or_not_whoever_writes_there(watch, is_written, is_gone, is_leaf):
    """A write behind autograd moves the view's version, but not its history: nobody watches it for that. Whoever does
    needs a second run, and so what the input was: calls keep that from then on."""
    graph = torch.fx.Graph()
    first = graph.call_method("narrow", (graph.placeholder("x"), 0, 0, 1))
    graph.output((first, graph.call_method("softmax", (first, 1))))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    function = aot_function(module, [torch.ones(1, 3, requires_grad=True)], fw_compiler=run_eagerly, options=Options())
    found = []
    for run in (function, function, beside_its_view):
        leaf, log = torch.linspace(0, 1, 3).view(1, 3).requires_grad_(), []
        x = leaf if is_leaf else leaf * 2
        view, result = run(x)
        watch(view, log)
        if is_gone:
            view = None
        if is_written:
            x.detach().mul_(2)
        try:
            (result * torch.arange(3.0)).sum().backward()
            retained = view.grad if watch is by_its_gradient and view is not None else None
            found.append((leaf.grad, log, retained))
        except RuntimeError as error:
            found.append(str(error))
    is_watched = watch is not nobody and not (watch is by_its_gradient and is_gone)
    if is_watched and is_written:
        assert "an input of it was modified since (calls from now on will keep what it was)" in found.pop(0)
    for each in found:
        torch.testing.assert_close(each, found[-1])
