"""Gradients that a compiled region hands over bucket by bucket, as it does under DistributedDataParallel.

One process: what a region asks DDP is which module's forward runs and how large its buckets are.
"""

from __future__ import annotations

import contextlib
import copy
import types

import pytest
import torch
from judge import assert_as_good
from reports import assert_all_generated
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import compile_api


@contextlib.contextmanager
def buckets_of(size: int):
    """As in the forward of a DDP module with buckets of so many bytes."""
    config = types.SimpleNamespace(per_bucket_bytes_caps=(), first_bucket_bytes_cap=size, bucket_bytes_cap=size)
    DDP._active_ddp_module = types.SimpleNamespace(_bucket_config=config)
    try:
        yield
    finally:
        DDP._active_ddp_module = None


class Layers(nn.Module):
    """Layers of different kinds, with a parameter that is used twice and a result that a loss may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.norm = nn.LayerNorm(16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.head = nn.Linear(16, 20)
        self.aside = nn.Linear(16, 3)

    def forward(self, tokens: torch.Tensor, shift: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embed(tokens) + shift
        for layer in self.layers:
            x = x + torch.tanh(layer(self.norm(x)))
        return self.head(x), self.aside(x)


class Images(nn.Module):
    """Convolutions, whose backward gives several gradients at once, and normalisations."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1),
            nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def inputs(batch: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 20, (batch, 5)), torch.randn(batch, 5, 16, requires_grad=True)


def both(module: nn.Module):
    """A module compiled, and a copy of it."""
    return compile_api.compile(module), copy.deepcopy(module)


def parts(report) -> list[str]:
    """The names of the parts of backward graphs that were compiled, in their order."""
    return [graph.name for graph in report.graphs if graph.name.startswith("backward, part")]


def gradients(*holders) -> list[torch.Tensor]:
    found = []
    for holder in holders:
        for x in holder.parameters() if isinstance(holder, nn.Module) else (holder,):
            found.append(torch.zeros(()) if x.grad is None else x.grad)
    return found


def exact(module: nn.Module, loss, args) -> list[torch.Tensor]:
    """The same gradients in float64."""
    precise = copy.deepcopy(module).double()
    precise.zero_grad()
    given = [x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x for x in args]
    loss(precise, given).backward()
    return gradients(precise, *(x for x in given if x.requires_grad))


def compare(module: nn.Module, args, loss, size: int, least: int) -> list[str]:
    """Assert that gradients by buckets are as good as eager's; the names of the backward graph's parts."""
    compiled, eager = both(module)
    others = [x.detach().clone().requires_grad_(x.requires_grad) for x in args]
    reference = exact(eager, loss, args)
    with buckets_of(size):
        result = loss(compiled, args)
    result.backward()
    loss(eager, others).backward()
    ours = gradients(compiled, *(x for x in args if x.requires_grad))
    theirs = gradients(eager, *(x for x in others if x.requires_grad))
    assert_as_good(ours, theirs, reference)
    assert [p.grad is None for p in compiled.parameters()] == [p.grad is None for p in eager.parameters()]
    assert_all_generated(compiled.report(), graphs=1)
    names = parts(compiled.report())
    assert len(names) >= least
    assert names == [f"backward, part {k + 1} of {len(names)}" for k in range(len(names))]
    return names


def whole(model, args):
    one, two = model(*args)
    return one.square().mean() + two.sum()


@pytest.mark.parametrize("size", [1, 700, 2500])
def test_gradients_are_eagers(size):
    names = compare(Layers(), inputs(), whole, size, least=2)
    assert size > 1 or len(names) == 15  # a bucket for each parameter


def test_a_result_that_the_loss_leaves_out():
    compare(Layers(), inputs(), lambda model, args: model(*args)[0].square().mean(), 700, least=2)


@pytest.mark.parametrize("size", [1, 400])
def test_images(size):
    compare(
        Images().train(), (torch.randn(4, 3, 8, 8, requires_grad=True),), lambda m, a: m(*a).square().mean(), size, 2
    )


def test_a_small_memory_budget():
    module = Layers()
    compiled = compile_api.compile(module, options={"memory_budget": 0.3})
    eager = copy.deepcopy(module)
    args = inputs()
    with buckets_of(700):
        loss = whole(compiled, args)
    loss.backward()
    whole(eager, [args[0], args[1].detach()]).backward()
    torch.testing.assert_close(gradients(compiled), gradients(eager), rtol=1e-4, atol=1e-5)
    assert len(parts(compiled.report())) > 2


def test_outside_of_ddp_nothing_is_cut():
    compiled, _ = both(Layers())
    whole(compiled, inputs()).backward()
    assert not parts(compiled.report())
    assert any(graph.name == "backward" for graph in compiled.report().graphs)


def test_a_bucket_is_there_before_the_next_section_runs():
    compiled, _ = both(Layers())
    done: dict[str, int] = {}
    for name, p in compiled.named_parameters():

        def note(p: torch.Tensor, name: str = name) -> None:
            done[name] = len(parts(compiled.report()))

        p.register_post_accumulate_grad_hook(note)
    with buckets_of(1200):
        loss = whole(compiled, inputs())
    loss.backward()
    count = len(parts(compiled.report()))
    assert done["head.weight"] == 1 < done["layers.2.weight"] < done["embed.weight"] == count, done


def test_gradients_of_some_inputs_run_no_more_than_their_sections():
    compiled, eager = both(Layers())
    args = inputs()
    with buckets_of(1):
        loss = whole(compiled, args)
    (ours,) = torch.autograd.grad(loss, [compiled.head.weight], retain_graph=True)
    first = len(parts(compiled.report()))
    (theirs,) = torch.autograd.grad(whole(eager, args), [eager.head.weight])
    torch.testing.assert_close(ours, theirs)
    loss.backward(inputs=[compiled.embed.weight])
    assert first < len(parts(compiled.report())) == 15
    assert compiled.head.weight.grad is None
    whole(eager, args).backward(inputs=[eager.embed.weight])
    torch.testing.assert_close(compiled.embed.weight.grad, eager.embed.weight.grad)


def test_a_retained_graph_runs_again_and_a_freed_one_does_not():
    compiled, eager = both(Layers())
    args = inputs()
    with buckets_of(700):
        loss = whole(compiled, args)
    loss.backward(retain_graph=True)
    loss.backward()
    for _ in range(2):
        whole(eager, [args[0], args[1].detach()]).backward()
    torch.testing.assert_close(gradients(compiled), gradients(eager), rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_an_optimizer_in_the_backward_pass():
    """Who gets a parameter's gradient may write the parameter: what reads it has run before."""
    compiled, eager = both(Layers())
    for module in (compiled, eager):
        for p in module.parameters():

            def step(p: torch.Tensor) -> None:
                with torch.no_grad():
                    p.sub_(0.01 * p.grad)
                p.grad = None

            p.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        args = inputs()
        with buckets_of(1):
            loss = whole(compiled, args)
        loss.backward()
        whole(eager, [args[0], args[1].detach()]).backward()
        for ours, theirs in zip(compiled.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert len(parts(compiled.report())) == 15


def test_gradients_of_gradients():
    compiled, eager = both(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)))
    x = torch.randn(3, 4)
    found = []
    for model in (compiled, eager):
        with buckets_of(1) if model is compiled else contextlib.nullcontext():
            loss = model(x).square().sum()
        grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        sum(g.square().sum() for g in grads).backward()
        found.append([*grads, *gradients(model)])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_sizes_that_change():
    compiled, eager = both(Layers())
    for batch in (4, 7, 9, 12):
        args = inputs(batch)
        with buckets_of(700):
            loss = whole(compiled, args)
        compiled.zero_grad(), eager.zero_grad()
        loss.backward()
        whole(eager, [args[0], args[1].detach()]).backward()
        torch.testing.assert_close(gradients(compiled), gradients(eager), rtol=1e-4, atol=1e-5)
    assert len([graph for graph in compiled.report().graphs if graph.dialect == "torch"]) == 2
    assert not compiled.report().fallbacks


def test_a_hook_on_a_parameter_and_on_an_input():
    compiled, eager = both(Layers())
    args = inputs()
    others = [args[0], args[1].detach().clone().requires_grad_()]
    for module, given in ((compiled, args), (eager, others)):
        module.layers[1].weight.register_hook(lambda g: 2 * g)
        given[1].register_hook(lambda g: g - 1)
    with buckets_of(1):
        loss = whole(compiled, args)
    loss.backward()
    whole(eager, others).backward()
    torch.testing.assert_close(gradients(compiled, args[1]), gradients(eager, others[1]), rtol=1e-4, atol=1e-5)


def test_the_judge_sees_a_gradient_of_another_bucket():
    """Two parameters of one shape with their gradients exchanged."""
    compiled, eager = both(Layers())
    args = inputs()
    with buckets_of(1):
        loss = whole(compiled, args)
    loss.backward()
    reference = exact(eager, whole, [args[0], args[1].detach()])
    whole(eager, [args[0], args[1].detach()]).backward()
    one, two = compiled.layers[0].weight, compiled.layers[2].weight
    one.grad, two.grad = two.grad, one.grad
    with pytest.raises(AssertionError):
        assert_as_good(gradients(compiled), gradients(eager), reference)
