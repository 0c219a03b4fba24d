"""What two ranks do with sharded tensors (``DTensor``) in compiled functions and eagerly; for test_sharded_tensors.py."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from reports import captured
from tensor_parallel_cases import WIDTH, Mlps, assert_same, rows, shard_mlps, tp_mesh
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.utils.checkpoint import checkpoint

import compile_api


def numbers(*sizes: int, seed: int = 0, grad: bool = True) -> torch.Tensor:
    """The same in both processes."""
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).requires_grad_(grad)


def sharded(mesh: Any, placement: Any, *sizes: int, seed: int = 0) -> Any:
    """A leaf."""
    whole = numbers(*sizes, seed=seed, grad=False)
    return distribute_tensor(whole, mesh, [placement]).detach().requires_grad_()


def compare(fn: Callable[..., Any], make: Callable[[], list[Any]], calls: int = 1) -> Any:
    """Call ``fn`` compiled and eager on what ``make`` gives, backward too, and assert that all is the same; the report."""
    compiled = compile_api.compile(fn)
    for _ in range(calls):
        ours, theirs = make(), make()
        mine, other = compiled(*ours), fn(*theirs)
        assert_same(mine, other, 2e-6, "the result")
        if other.requires_grad:
            for result in (mine, other):
                (result.full_tensor() if isinstance(result, DTensor) else result).square().sum().backward()
            for at, (a, b) in enumerate(zip(ours, theirs, strict=True)):
                if b.grad is not None:
                    assert_same(a.grad, b.grad, 2e-5, f"the gradient of argument {at}")
                else:
                    assert a.grad is None, at
    return compiled.report()


def breaks(report: Any) -> list[str]:
    """Why graphs end."""
    return [each.reason for each in report.breaks]


def taken_and_given(rank: int) -> list[Any]:
    mesh = tp_mesh()

    def fn(x: Any, w: Any) -> Any:
        return torch.relu(x @ w).sum(1, keepdim=True) * 2

    makes = {
        "columns": lambda: [sharded(mesh, Replicate(), 4, 8), sharded(mesh, Shard(1), 8, 6)],
        "rows": lambda: [sharded(mesh, Shard(1), 4, 8), sharded(mesh, Shard(0), 8, 6)],
        "batch": lambda: [sharded(mesh, Shard(0), 4, 8), sharded(mesh, Replicate(), 8, 6)],
        "uneven": lambda: [sharded(mesh, Shard(0), 5, 8), sharded(mesh, Replicate(), 8, 6)],
    }
    found = []
    for make in makes.values():
        report = compare(fn, make)
        found.append([len(captured(report)), breaks(report)])
    return found


def another_placement(rank: int) -> list[Any]:
    """Each placement has a graph of its own."""
    mesh = tp_mesh()
    placements = iter([Shard(0), Shard(0), Shard(1), Shard(1), Replicate(), Replicate()])

    def fn(x: Any) -> Any:
        return (x * 3).sum(0)

    report = compare(fn, lambda: [sharded(mesh, next(placements), 4, 8)], calls=3)
    return [len(captured(report)), breaks(report)]


def redistributed_inside(rank: int) -> list[Any]:
    mesh = tp_mesh()

    def fn(x: torch.Tensor, w: Any) -> torch.Tensor:
        shards = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
        y = (shards @ w).redistribute(placements=[Shard(0)])
        assert isinstance(y, DTensor) and y.placements == (Shard(0),) and y.shape == (4, 6)
        return y.sigmoid().full_tensor() + x.sum()

    report = compare(fn, lambda: [numbers(4, 8), sharded(mesh, Shard(1), 8, 6)])
    return [len(captured(report)), breaks(report)]


def without_gradients(rank: int) -> list[Any]:
    net = shard_mlps(Mlps())
    compiled = compile_api.compile(net)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            for step in range(2):
                assert_same(compiled(rows(step)), net(rows(step)), 2e-6, context.__name__)
    return [len(captured(compiled.report())), breaks(compiled.report())]


def frozen(rank: int) -> list[Any]:
    nets = [shard_mlps(Mlps()), None]
    nets[1] = copy.deepcopy(nets[0])
    compiled = compile_api.compile(nets[0])
    for net in nets:
        for name, p in net.named_parameters():
            p.requires_grad_("up" not in name)
    for model in (compiled, nets[1]):
        model(rows(0)).square().mean().backward()
    for (name, p), q in zip(compiled.named_parameters(), nets[1].named_parameters(), strict=True):
        assert (p.grad is None) == (q[1].grad is None) == ("up" in name), name
        if p.grad is not None:
            assert_same(p.grad, q[1].grad, 2e-6, name)
    return [len(captured(compiled.report())), breaks(compiled.report())]


def other_batches(rank: int) -> list[Any]:
    """Sizes that vary: each call gives eager's numbers."""
    net = shard_mlps(Mlps())
    theirs = copy.deepcopy(net)
    compiled = compile_api.compile(net)
    for n in (4, 6, 8, 10):
        for model in (compiled, theirs):
            model.zero_grad()
            model(numbers(n, WIDTH, seed=n, grad=False)).square().mean().backward()
        for (name, p), q in zip(compiled.named_parameters(), theirs.parameters(), strict=True):
            assert_same(p.grad, q.grad, 2e-6, name)
    return [len(captured(compiled.report())), sorted(set(breaks(compiled.report())))]


def checkpointed(rank: int) -> list[Any]:
    """Activations are computed again in the backward pass, collectives included."""
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = shard_mlps(Mlps())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

    net = Net()
    theirs = copy.deepcopy(net)
    compiled = compile_api.compile(net)
    for model in (compiled, theirs):
        model(rows(0).requires_grad_()).square().mean().backward()
    for (name, p), q in zip(compiled.named_parameters(), theirs.parameters(), strict=True):
        assert_same(p.grad, q.grad, 2e-6, name)
    return [len(captured(compiled.report())), breaks(compiled.report())]


def written(rank: int) -> list[Any]:
    mesh = tp_mesh()

    def fn(x: Any) -> Any:
        y = x * 2
        y.add_(1)
        return y.sin()

    report = compare(fn, lambda: [sharded(mesh, Shard(0), 4, 8)])
    return [len(captured(report)), breaks(report)]


def drawn(rank: int) -> list[Any]:
    mesh = tp_mesh()
    compiled = compile_api.compile(lambda x: nn.functional.dropout(x * 2, 0.5) + 1)
    x = sharded(mesh, Replicate(), 64, 8)
    y = compiled(x).to_local()
    kept = (y != 1).float().mean()
    assert 0.3 < kept < 0.7
    torch.testing.assert_close(torch.where(y == 1, 1 + 4 * x.to_local(), y), 1 + 4 * x.to_local())
    return [len(captured(compiled.report())), breaks(compiled.report())]


def made_inside(rank: int) -> list[Any]:
    mesh = tp_mesh()

    def fn(x: torch.Tensor) -> torch.Tensor:
        return distribute_tensor(x, mesh, [Shard(0)]).to_local() * 2

    report = compare(fn, lambda: [numbers(4, 8, grad=False)])
    return [len(captured(report)), breaks(report)]


def loss_parallel_inside(rank: int) -> list[Any]:
    """The context is entered by what is compiled: there the graph ends, and the loss is eager's."""
    mesh = tp_mesh()
    wanted = torch.arange(4) % 6

    def fn(x: torch.Tensor, w: Any) -> torch.Tensor:
        logits = DTensor.from_local(x, mesh, [Replicate()], run_check=False) @ w
        with loss_parallel():
            return nn.functional.cross_entropy(logits, wanted).to_local()

    compiled = compile_api.compile(fn)
    found = []
    for call in (compiled, fn):
        x, w = numbers(4, 8), sharded(mesh, Shard(1), 8, 6)
        loss = call(x, w)
        with loss_parallel():
            loss.backward()
        found.append((loss, x.grad, w.grad))
    for mine, other in zip(*found, strict=True):
        assert_same(mine, other, 2e-6, "loss_parallel")
    return [len(captured(compiled.report())), breaks(compiled.report())]


def optimizer(rank: int) -> list[Any]:
    """A compiled step writes sharded parameters, which is left to eager."""
    net = shard_mlps(Mlps())
    theirs = copy.deepcopy(net)
    steps = []
    for model in (net, theirs):
        one = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        steps.append(one.step)
    steps[0] = compile_api.compile(steps[0])
    for step in range(2):
        for model, take in zip((net, theirs), steps, strict=True):
            model.zero_grad()
            model(rows(step)).square().mean().backward()
            take()
    for (name, p), q in zip(net.named_parameters(), theirs.parameters(), strict=True):
        assert_same(p, q, 2e-6, name)
    return [steps[0].report().verdict]


CASES = [
    taken_and_given, another_placement, redistributed_inside, without_gradients, frozen, other_batches, checkpointed,
    written, drawn, made_inside, loss_parallel_inside, optimizer,
]  # fmt: skip
