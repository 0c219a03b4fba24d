"""Programs with gradients that a second process finds in the store: each gives a callable, and what uses it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import compile_api

CASES: dict[str, Any] = {}


def case(make: Any) -> Any:
    CASES[make.__name__] = make
    return make


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4))


def gradients(*owners: Any) -> list[torch.Tensor | None]:
    return [p.grad for owner in owners for p in (owner.parameters() if isinstance(owner, nn.Module) else [owner])]


@case
def a_step_outside() -> Any:
    model = layers()

    def use(fn: Any) -> Any:
        x, found = rows(3, 8), []
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = fn(x).square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss)
        return found, x.grad, gradients(model)

    return model, use


def whole_step(kind: type[torch.optim.Optimizer], **settings: Any) -> Any:
    model = layers()
    optimizer = kind(model.parameters(), lr=0.1, **settings)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, lambda fn: ([fn(rows(3, 8)) for _ in range(3)], list(model.parameters()))


@case
def a_whole_step() -> Any:
    return whole_step(torch.optim.AdamW)


@case
def a_whole_step_with_momentum() -> Any:
    return whole_step(torch.optim.SGD, momentum=0.9)


@case
def a_whole_step_of_radam() -> Any:
    return whole_step(torch.optim.RAdam)


@case
def one_of_several_results() -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())

    def run(x: torch.Tensor) -> Any:
        h = model(x)
        return h.sum(), h, h.sin().mean()

    def use(fn: Any) -> Any:
        x = rows(4, 8)
        total, hidden, mean = fn(x)
        total.backward(retain_graph=True)
        first = x.grad.clone()
        mean.backward()
        return total, hidden, mean, first, x.grad, gradients(model), list(model.buffers())

    return run, use


@case
def drawn_numbers() -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5) * x

    def use(fn: Any) -> Any:
        torch.manual_seed(3)
        x = rows(4, 8)
        y = fn(x)
        y.sum().backward()
        return [bool(((y == 0) == (x.grad == 0)).all())]

    return run, use


@case
def gradients_of_gradients() -> Any:
    weight = rows(8, 8, seed=1)

    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ weight).pow(2).sum()

    def use(fn: Any) -> Any:
        x = rows(4, 8)
        (first,) = torch.autograd.grad(fn(x), x, create_graph=True)
        first.pow(2).sum().backward()
        return first, gradients(x, weight)

    return run, use


@case
def results_that_are_views() -> Any:
    def run(x: torch.Tensor) -> Any:
        y = x * 2
        return y, y.view(-1)[2:], y.t()

    def use(fn: Any) -> Any:
        x, seen = rows(4, 8), []
        y, part, turned = fn(x)
        y.register_hook(lambda g: seen.append(g.sum()))
        (part.sum() * 3 + turned.sin().sum()).backward()
        return y, part, turned, x.grad, seen

    return run, use


@case
def results_made_of_results() -> Any:
    def run(x: torch.Tensor) -> Any:
        hidden = x.sin()
        return hidden, (hidden * hidden).sum()

    def use(fn: Any) -> Any:
        x = rows(4, 8)
        hidden, total = fn(x)
        hidden.retain_grad()
        total.backward()
        return hidden.grad, x.grad

    return run, use


@case
def writes_that_autograd_sees() -> Any:
    def run(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        z.mul_(x)
        return z.sum()

    def use(fn: Any) -> Any:
        x, z = rows(4, 8), rows(4, 8, seed=1).detach()
        total = fn(x, z)
        total.backward()
        return total, z, x.grad

    return run, use


@case
def writes_that_autograd_does_not_see() -> Any:
    seen = torch.zeros(8)

    def run(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        seen.add_(y.detach().sum(0))
        return y.mul_(2)

    def use(fn: Any) -> Any:
        x = rows(4, 8)
        y = fn(x)
        y.sum().backward()
        return y, seen, x.grad

    return run, use


@case
def two_regions() -> Any:
    model = layers()

    def run(x: torch.Tensor) -> torch.Tensor:
        y = model(x).relu()
        compile_api.graph_break()
        return (y * y).sum()

    def use(fn: Any) -> Any:
        x = rows(4, 8)
        fn(x).backward()
        return x.grad, gradients(model)

    return run, use


@case
def under_autocast() -> Any:
    model = layers()

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x).float().sum()

    def use(fn: Any) -> Any:
        x = rows(4, 8)
        total = fn(x)
        total.backward()
        return total, x.grad, gradients(model)

    return run, use


@case
def gradients_turned_on_inside() -> Any:
    model = layers()

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return model(x).relu()

    def use(fn: Any) -> Any:
        with torch.no_grad():
            y = fn(rows(4, 8).detach())
        y.sum().backward()
        return y, gradients(model)

    return run, use


@case
def what_is_refused() -> Any:
    """A graph that was freed, and a saved tensor that was written, are eager's errors."""

    def run(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return (x * by).tanh()

    def use(fn: Any) -> Any:
        x, by, said = rows(4, 8), rows(4, 8, seed=1).detach(), []
        y = fn(x, by)
        y.sum().backward()
        z = fn(x, by)
        by.add_(1)
        for each in (y, z):
            try:
                each.sum().backward()
            except RuntimeError as error:
                said.append(str(error)[:40])
        return said, x.grad

    return run, use


@case
def sizes() -> Any:
    model = layers()

    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(model(x).reshape(-1, 2) * x.shape[0], -1)

    def use(fn: Any) -> Any:
        found = []
        for n in (3, 5, 7):
            x = rows(n, 8)
            fn(x).square().sum().backward()
            found.append(x.grad)
        return found, gradients(model)

    return run, use
