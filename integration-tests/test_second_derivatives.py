"""Gradients of gradients through compiled programs: random numbers, statistics, graph breaks."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import compile_api
from aot_autograd.runtime.again import RunAgain


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("dropped", [0.0, 0.4])
def test_dropout_and_batch_norm_in_training(dropped, dynamic):
    """Against differences of the program's own gradients, for the numbers that a seed gives it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(dropped), nn.Linear(4, 2)).double()
    compiled = compile_api.compile(model, dynamic=dynamic)

    def step(x):
        torch.manual_seed(1)
        return compiled(x)

    x = torch.randn(5, 3, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(step, x)
    assert torch.autograd.gradgradcheck(step, x)
    assert not compiled.report().fallbacks and not compiled.report().breaks


def test_statistics_are_counted_once():
    model = nn.BatchNorm1d(4)
    twin = nn.BatchNorm1d(4)
    compiled = compile_api.compile(model)
    for module, function in ((model, compiled), (twin, twin)):
        torch.manual_seed(0)
        for _ in range(3):
            x = torch.randn(6, 4, requires_grad=True)
            (gradient,) = torch.autograd.grad(function(x).sin().sum(), x, create_graph=True)
            gradient.square().sum().backward()
            module.last = x.grad
    assert model.num_batches_tracked == 3
    torch.testing.assert_close(dict(model.named_buffers()), dict(twin.named_buffers()))
    torch.testing.assert_close(model.last, twin.last, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.weight.grad, twin.weight.grad, rtol=1e-4, atol=1e-5)


def masked_and_unused(x, y):
    picked = x[y > 0]
    picked * 2
    return x.sin()


def masked_and_used(x, y):
    return x[y > 0].sin() * 2


def masked_in_the_middle(x, y):
    v = x.min()
    torch.ldexp(x[y > 0], torch.tensor([0, -1, 0]))
    return torch.addcmul(v, v, v, value=0.5)


def parts(x, y):
    first, second = (x * y).sin().split(2, 0)
    return first.sum() * second.exp().sum()


def broken_in_the_middle(x, y):
    h = x * x
    compile_api.graph_break()
    return (h.exp() * y.detach()).sum()


PROGRAMS = [masked_and_unused, masked_and_used, masked_in_the_middle, parts, broken_in_the_middle]


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_every_call_has_a_second_derivative(program, dynamic):
    compiled = compile_api.compile(program, dynamic=dynamic)
    for _ in range(4):
        found = []
        for function in (program, compiled):
            x = torch.tensor([1.5, 2.0, 0.3, 0.4]).requires_grad_()
            y = torch.tensor([1.0, 2.0, -1.0, 3.0]).requires_grad_()
            (first,) = torch.autograd.grad(function(x, y).sum(), x, create_graph=True)
            found.append((first.detach(), torch.autograd.grad(first.square().sum(), x, allow_unused=True)[0]))
        torch.testing.assert_close(found[1], found[0])
        assert found[1][1] is not None


class Averaging(nn.Module):
    """Its results depend on buffers that it writes, before and after."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, width))
        self.register_buffer("average", torch.zeros(width))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen.add_(1)
        h = (x * self.weight + self.seen) * self.average.cos()
        self.average.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return h.tanh()


def penalty(function, module, x):
    (first,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
    first.square().sum().backward()
    return [first.detach(), x.grad, *(p.grad.clone() for p in module.parameters()), *(b.clone() for b in module.buffers())]


@pytest.mark.parametrize("dynamic", [None, True])
def test_what_is_written_is_kept_as_it_was(dynamic):
    module, twin = Averaging(8), Averaging(8)
    compiled = compile_api.compile(module, dynamic=dynamic)
    for rows in (3, 4, 3, 5):
        x = torch.randn(rows, 8)
        ours = penalty(compiled, module, x.clone().requires_grad_())
        torch.testing.assert_close(ours, penalty(twin, twin, x.clone().requires_grad_()))
    assert not compiled.report().fallbacks and compiled.report().kernels


def written_and_read(x, y):
    y.add_(1)
    return F.softplus(x) * y


@pytest.mark.parametrize("size", [30, 3000])
def test_what_costs_a_copy_is_kept_once_it_has_been_missed(size):
    """Not None, and not zero: an error where eager has a second derivative, in the first call that asks for one."""
    compiled = compile_api.compile(written_and_read)
    for call in range(3):
        start = torch.randn(size)
        found = []
        for function in (written_and_read, compiled):
            x, y = start.clone().requires_grad_(), torch.ones(size)
            (first,) = torch.autograd.grad(function(x, y).sum(), x, create_graph=True)
            if function is compiled and size > 1024 and call == 0:
                with pytest.raises(RuntimeError, match="from now on will keep what those were"):
                    torch.autograd.grad(first.sum(), x, allow_unused=True)
            else:
                found.append([y, *torch.autograd.grad(first.sum(), x)])
        torch.testing.assert_close(found[1:], found[: len(found) - 1])


def test_what_cannot_be_had_is_said():
    def program(x, y):
        with torch.no_grad():
            y.mul_(2)
        return F.softplus(x) * y

    compiled = compile_api.compile(program)
    for _ in range(2):
        x, y = torch.randn(3, requires_grad=True), torch.ones(3, requires_grad=True)
        (first,) = torch.autograd.grad(compiled(x, y).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="writes and that have gradients"):
            torch.autograd.grad(first.sum(), x, allow_unused=True)


def doubled(h):
    h.register_hook(lambda gradient: gradient * 2)


def removed(h):
    h.register_hook(lambda gradient: gradient * 2).remove()


def second(function, watch, late):
    x = torch.linspace(-1, 1, 6).requires_grad_()
    h = function(x)
    if not late:
        watch(h)
    (first,) = torch.autograd.grad((h * h).sum(), x, create_graph=True)
    if late:
        watch(h)
    (found,) = torch.autograd.grad(first.sin().sum(), x)
    return found, h.grad if h.retains_grad else None


@pytest.mark.parametrize("late", [False, True], ids=["before", "between"])
@pytest.mark.parametrize("watch", [doubled, removed, torch.Tensor.retain_grad], ids=lambda f: f.__name__)
@pytest.mark.parametrize("function", ["sin", "tanh"])
def test_what_is_watched_between(function, watch, late):
    """Tanh's derivative is computed from its result, so that eager's second gradients pass that result's hooks; sine's
    is not."""
    program = lambda x: getattr(x * 0.5, function)()
    compiled = compile_api.compile(program)
    for _ in range(2):
        torch.testing.assert_close(second(compiled, watch, late), second(program, watch, late))
    assert compiled.report().kernels


@pytest.mark.parametrize("broken", [False, True], ids=["one graph", "behind a break"])
def test_a_hook_inside_a_program_is_right_or_said(broken):
    def program(x):
        h = x.tanh()
        if broken:
            compile_api.graph_break()
        h.register_hook(lambda gradient: gradient * 2)
        return h + 0

    def run(function):
        x = torch.linspace(-1, 1, 6).requires_grad_()
        (first,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.sin().sum(), x)

    compiled = compile_api.compile(program)
    reason = "is no longer there" if broken else "puts a hook on what it computes"  # what is behind the break, once
    with pytest.raises(RuntimeError, match=reason):
        run(compiled)
    if broken:
        for _ in range(2):
            torch.testing.assert_close(run(compiled), run(program))
        assert compiled.report().breaks
        return
    x, y = (torch.linspace(-1, 1, 6).requires_grad_() for _ in range(2))
    compiled(x).square().sum().backward()
    program(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert not compiled.report().breaks and compiled.report().kernels


def test_hooks_are_set_where_nothing_is_generated():
    """Tanh's derivative is computed from the hooked tensor, so that gradients of gradients pass its hooks too."""

    def program(x):
        h = x.tanh()
        h.register_hook(lambda gradient: gradient * gradient * 2)
        return h.exp()

    def run(function):
        x = torch.linspace(-1, 1, 6).requires_grad_()
        (first,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.sin().sum(), x)

    compiled = compile_api.compile(program, backend="eager")
    torch.testing.assert_close(run(compiled), run(program))
    assert not compiled.report().breaks


def counted(x, y):
    with torch.no_grad():
        y.add_(1)
    h = (x * y).tanh()
    return h, (h * x).sin()


@pytest.mark.parametrize("again", [True, False], ids=["runs again", "cannot"])
@pytest.mark.parametrize("watch", ["hook", "retain", "alone", "both", "neither"])
def test_a_result_that_another_is_computed_from_is_right_or_said(watch, again):
    """Where the region cannot be run again: what nobody looks at is right, what somebody does is an error."""
    compiled = compile_api.compile(counted)
    for _ in range(2):
        found = []
        for function in (counted, compiled):
            x = torch.linspace(-1, 1, 6).requires_grad_()
            h, r = function(x, torch.ones(6, requires_grad=not again))
            if watch == "hook":
                h.register_hook(lambda gradient: gradient * 2)
            if watch == "retain":
                h.retain_grad()
            loss = r.sum() + h.exp().sum()
            watched = {"alone": [h], "both": [x, h]}.get(watch, [x])
            if function is compiled and watch != "neither" and not again:
                with pytest.raises(RuntimeError, match="writes and that have gradients"):
                    if watch in ("alone", "both"):
                        print(torch.autograd.grad(loss, watched))
                    else:
                        loss.backward()
            elif again or watch == "neither":
                found += torch.autograd.grad(loss, watched, retain_graph=True)
                loss.backward()
                found += [x.grad, h.grad] if watch == "retain" else [x.grad]
        half = len(found) // 2
        torch.testing.assert_close(found[half:], found[:half])
    assert compiled.report().kernels


def test_only_watched_results_take_a_second_run(monkeypatch):
    runs = []
    second_run = RunAgain._second_run
    monkeypatch.setattr(RunAgain, "_second_run", lambda *args: (runs.append(1), second_run(*args))[1])
    compiled = compile_api.compile(lambda x: (lambda h: (h, h.sin()))(x.tanh()))
    for _ in range(2):
        x = torch.linspace(-1, 1, 6).requires_grad_()
        h, r = compiled(x)
        (h.sum() + r.sum()).backward(retain_graph=True)
        assert not runs
        h.retain_grad()
        r.sum().backward()
        assert len(runs) == 1
        torch.testing.assert_close(h.grad, h.cos())
        runs.clear()


def test_memory_is_freed_with_the_last_result():
    """Without the cyclic collector, and what is behind a result not before it."""
    compiled = compile_api.compile(lambda x: (lambda h: (h, h.sin()))(x.tanh()))
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            x = torch.linspace(-1, 1, 6).requires_grad_()
            h, r = compiled(x)
            (first,) = torch.autograd.grad((h * r).sum(), x, create_graph=True)
            torch.autograd.grad(first.sum(), (x, h), retain_graph=True)
            watch = [weakref.ref(t) for t in (x, h, r, first)]
            del x, h, r, first
            assert [w() for w in watch] == [None] * 4
    finally:
        gc.enable()


def test_a_history_inside_another_region():
    inner = compile_api.compile(lambda x: (lambda h: (h, h.sin()))((x * 0.5).tanh()))

    def penalty(function, x):
        h, r = function(x)
        (first,) = torch.autograd.grad((h * h).sum() + r.sum(), x, create_graph=True)
        return first.sin() * h, r

    def run(step):
        x = torch.linspace(-1, 1, 6, dtype=torch.double).requires_grad_()
        results = step(x)
        return *results, *torch.autograd.grad(sum(t.sum() for t in results), x)

    wanted = run(lambda x: penalty(lambda x: (lambda h: (h, h.sin()))((x * 0.5).tanh()), x))
    outer = compile_api.compile(lambda x: penalty(inner, x))
    for _ in range(3):
        torch.testing.assert_close(run(outer), wanted)
    assert outer.report().kernels
