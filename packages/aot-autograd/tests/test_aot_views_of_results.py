"""Results that are views, and with which the region goes on computing: gradients with respect to them are eager's.

A table: what the views are of × the views × what is computed × which of it is returned; asked for in every way.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx

from aot_autograd import aot_function, default_partition, min_cut_partition, run_eagerly
from prims.options import Options
from prims.report import Report

BASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "activation": lambda x: x * 1.5,
    "activation that is saved": lambda x: x.exp(),
    "input": lambda x: x,
    "view": lambda x: (x * 2).t(),
}
VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "chunk": lambda z: z.chunk(2),
    "columns": lambda z: z.chunk(2, 1),
    "split": lambda z: z.split([1, 3]),
    "unbind": lambda z: z.unbind(0)[:2],
    "overlapping": lambda z: (z[:3], z[1:]),
    "transposed": lambda z: (z.t(), z.transpose(0, 1)),
    "view_as": lambda z: (z.view_as(z), z.unflatten(0, (2, 2)).flatten(0, 1)),
    "expanded": lambda z: (z[None].expand(2, 4, 4), z[None]),
    "view of a view": lambda z: ((a := z[:2]), a[0]),
    "transposed twice": lambda z: ((a := z.t()), a[1:].t()),
    "diagonal": lambda z: (z.diagonal(), z.unsqueeze(0)),
}
COMPUTED: list[Callable[..., torch.Tensor]] = [
    lambda z, a, b: (a.sum(0) * b.sum()).sin() + a.flatten()[0],
    lambda z, a, b: (a * a).sin(),
    lambda z, a, b: z.tanh().sum() * a.sin().sum() * b.exp().mean(),
]
RETURNED: list[Callable[..., tuple[torch.Tensor, ...]]] = [
    lambda z, a, b, r: (a, b, r),
    lambda z, a, b, r: (r, b, a),
    lambda z, a, b, r: (z, a, r),
    lambda z, a, b, r: (a, r, r.sum() * 3),
]


def leaf() -> torch.Tensor:
    return torch.linspace(-0.8, 0.9, 16, dtype=torch.float64).view(4, 4).clone().requires_grad_()


def compiled(region: Callable[..., Any], make: Callable[[], torch.Tensor], partition: Any) -> Callable[..., Any]:
    graph = torch.fx.Graph()
    graph.output(graph.call_function(region, (graph.placeholder("x"),)))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    options = Options(strict=True)
    return aot_function(module, [make()], fw_compiler=run_eagerly, partition_fn=partition, options=options, report=Report())


def weighed(r: torch.Tensor) -> torch.Tensor:
    return (r * torch.arange(1.0, r.numel() + 1).view(r.shape) / 5).sum()


def answers(region: Callable[..., Any], make: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    """What ``torch.autograd`` gives in every way of asking."""

    held: list[torch.Tensor] = []

    def call() -> Any:
        x = leaf()
        held[:] = [make(x)]
        return x, region(*held)

    def grad(outputs: Any, inputs: Any, **kwargs: Any) -> Any:
        return torch.autograd.grad(outputs, inputs, allow_unused=True, **kwargs)

    def hooked(places: Any, scale: float) -> Any:
        x, results = call()
        seen: list[Any] = []

        def hook(at: int, gradient: torch.Tensor | None) -> torch.Tensor | None:
            if gradient is None:  # eager tells all results of a split
                return None
            seen.append((at, gradient.clone()))
            return gradient * scale

        for at in places:
            results[at].register_hook(lambda gradient, at=at: hook(at, gradient))
        sum(map(weighed, results)).backward()  # type: ignore[union-attr]
        return sorted(seen, key=lambda one: one[0]), x.grad

    def second(i: int, j: int | None, k: int) -> Any:
        x, results = call()
        (gradient,) = grad(weighed(results[i]), x if j is None else results[j], create_graph=True)
        if gradient is None or not gradient.requires_grad:
            return gradient
        return gradient, grad(weighed(gradient * gradient), [x, results[k]])

    def retained() -> Any:
        x, results = call()
        for result in results:
            result.retain_grad()
        sum(map(weighed, results)).backward()  # type: ignore[union-attr]
        return [result.grad for result in results], x.grad

    _, results = call()
    found: dict[str, Any] = {"values": [r.detach() for r in results], "retained": retained()}
    count = range(len(results))
    for i, j in itertools.permutations(count, 2):
        x, results = call()
        found[f"{j} of {i}"] = grad(weighed(results[i]), results[j])
        x, results = call()
        found[f"{j} and input of {i}"] = grad(weighed(results[i]), (results[j], x))
        found[f"second, {i} by {j}"] = second(i, j, j)
        found[f"second, {i} by input, {j}"] = second(i, None, j)
    for j in count:
        found[f"scaled {j}"] = hooked([j], 2.0)
    found["hooks"] = hooked(count, 1.0)
    return found


def equal(ours: Any, eager: Any) -> bool:
    if isinstance(eager, torch.Tensor):
        return isinstance(ours, torch.Tensor) and ours.shape == eager.shape and torch.allclose(ours, eager)
    if isinstance(eager, (tuple, list)):
        return isinstance(ours, (tuple, list)) and len(ours) == len(eager) and all(map(equal, ours, eager))
    return type(ours) is type(eager) and ours == eager


@pytest.mark.parametrize("views", VIEWS)
@pytest.mark.parametrize("base", BASES)
def test_gradients_of_views(base: str, views: str) -> None:
    turn = list(BASES).index(base) * len(VIEWS) + list(VIEWS).index(views)
    for k in (turn, turn + 7):

        def region(x: torch.Tensor, k: int = k) -> Any:
            z = BASES[base](x)
            a, b = VIEWS[views](z)
            return RETURNED[k % 4](z, a, b, COMPUTED[k % 3](z, a, b))

        make = (lambda x: x) if k % 2 else (lambda x: x * 1.1)
        run = compiled(region, lambda make=make: make(leaf()), min_cut_partition if k % 5 < 2 else default_partition)
        eager = answers(region, make)
        for name, ours in answers(run, make).items():
            assert equal(ours, eager[name]), (name, eager[name], ours)


def test_views_of_views_without_anything_computed() -> None:
    """No gradient flows through the graph: the views are the caller's own."""

    def region(x: torch.Tensor) -> Any:
        return (a := x[:2])[0], a, a[1]

    eager, ours = (answers(run, lambda x: x * 2) for run in (region, compiled(region, leaf, default_partition)))
    assert equal(list(ours.values()), list(eager.values()))


@pytest.mark.parametrize("of", ["activation", "input"])
def test_a_region_that_cannot_be_run_again(of: str) -> None:
    """Who asks for a view's gradient gets an error, nobody else."""

    def region(x: torch.Tensor, scale: torch.Tensor) -> Any:
        a, b = BASES[of](x).split([1, 3])
        return a, b, (a.sum() * b * scale.sum()).sin()

    graph = torch.fx.Graph()
    inputs = [graph.placeholder(name) for name in ("x", "scale")]
    graph.output(graph.call_function(region, tuple(inputs)))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)

    def compiled() -> Callable[..., Any]:
        return aot_function(module, [leaf(), torch.ones(3)], fw_compiler=run_eagerly, options=Options(strict=True))

    held: list[torch.Tensor] = []

    def call(function: Callable[..., Any]) -> Any:
        x, scale = leaf(), torch.ones(3)
        results = function(x, scale)
        scale.add_(0)  # which eager's backward pass does not need
        held[:] = [scale]
        return x, results

    for asked in (lambda x, r: r[0], lambda x, r: (r[1], x)):
        x, results = call(run := compiled())
        with pytest.raises(RuntimeError, match="modified since"):
            sum(g.sum() for g in torch.autograd.grad(results[2].sum(), asked(x, results))) * 1
    found, run = [], compiled()
    for function in (region, run):
        x, results = call(function)
        loss = results[2].sum() + 3 * results[0].sum()
        found.append(torch.autograd.grad(loss, x, retain_graph=True))
        loss.backward()
        found.append(x.grad)
    assert equal(found[2:], found[:2])
