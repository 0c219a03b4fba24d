"""Hooks of inputs, where only some results get a gradient: called as in eager, and never with None."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx

from aot_autograd import aot_function, run_eagerly
from prims.options import Options


def region(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x * 2, w.exp() * v, (x * w).sin()


def used_twice(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b, c = region(x, w, v)
    return a, b + w, c * a


def numbers(gradient: torch.Tensor) -> list[float]:
    return [round(n, 3) for n in gradient.tolist()]


def calls_of_hooks(run: Callable[..., Any], kinds: tuple[str, ...], used: tuple[int, ...], beside: bool) -> Any:
    """What the hooks of the inputs get in two backward passes, and the gradients."""
    log: list[Any] = []

    def note(name: str) -> Callable[..., Any]:
        def hook(gradient: torch.Tensor) -> torch.Tensor:
            log.append((name, numbers(gradient)))
            return gradient * 2

        return hook

    leaves, inputs = [], []
    for at, kind in enumerate(kinds):
        leaf = torch.linspace(0.1, 1, 3).add(at).requires_grad_()
        value = leaf * 3 if "activation" in kind else leaf
        if "hooked" in kind:
            leaf.register_hook(note(f"leaf {at}"))
            if value is not leaf:
                value.register_hook(note(f"activation {at}"))
        if "watched" in kind:
            leaf.register_post_accumulate_grad_hook(lambda leaf, at=at: log.append((str(at), numbers(leaf.grad))))
        leaves.append(leaf)
        inputs.append(value)
    results = run(*inputs)
    for _ in range(2):
        loss = sum(results[k].sum() for k in used)
        if beside:  # a gradient comes on another way
            loss = loss + (inputs[1] * 5).sum()
        loss.backward(retain_graph=True)
        log.append("end")
    hooks = [len(leaf._backward_hooks or ()) for leaf in leaves]
    return sorted(log, key=str), [None if leaf.grad is None else numbers(leaf.grad) for leaf in leaves], hooks


KINDS = ("leaf", "hooked leaf", "watched leaf", "hooked and watched leaf", "hooked activation", "activation of a watched leaf")


@pytest.mark.parametrize("program", [region, used_twice])
@pytest.mark.parametrize("kinds", [(a, b, "hooked leaf") for a in KINDS[:2] for b in KINDS])
def test_hooks_are_called_as_in_eager(kinds: tuple[str, ...], program: Callable[..., Any]) -> None:
    graph = torch.fx.Graph()
    graph.output(graph.call_function(program, tuple(graph.placeholder(name) for name in "xwv")))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    example = [torch.ones(3, requires_grad=True) * (3 if "activation" in kind else 1) for kind in kinds]
    run = aot_function(module, example, fw_compiler=run_eagerly, options=Options(strict=True))
    for used in [used for n in (1, 2, 3) for used in itertools.combinations(range(3), n)]:
        for beside in (False, True):
            ours, eager = (calls_of_hooks(f, kinds, used, beside) for f in (run, program))
            assert ours == eager, (used, beside)


#: Regions whose gradient for ``x`` is computed from ``w`` alone.
LINEAR = {
    "product": lambda x, w: x * w,
    "in place": lambda x, w: (x * 1).mul_(w),
    "sum": lambda x, w: x * w.exp() + w.sin(),
}


@pytest.mark.parametrize("name", LINEAR)
def test_hooks_in_a_second_backward_pass(name: str) -> None:
    program = LINEAR[name]
    graph = torch.fx.Graph()
    graph.output(graph.call_function(program, tuple(graph.placeholder(name) for name in "xw")))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    example = [torch.ones(3, requires_grad=True) * 2, torch.ones(3, requires_grad=True)]
    run = aot_function(module, example, fw_compiler=run_eagerly, options=Options(strict=True))
    found = []
    for function in (program, run):
        leaf, w = torch.ones(3, requires_grad=True), torch.linspace(1, 2, 3, requires_grad=True)
        log: list[Any] = []
        x = leaf * 2
        for name, tensor in (("x", x), ("leaf", leaf), ("w", w)):
            tensor.register_hook(lambda gradient, name=name: log.append((name, numbers(gradient))))
        (gradient,) = torch.autograd.grad(function(x, w).sum(), x, create_graph=True)
        log.append(torch.autograd.grad(gradient.sin().sum(), leaf, allow_unused=True, retain_graph=True))
        gradient.sin().sum().backward()
        found.append((log, leaf.grad, numbers(w.grad)))
    assert found[0] == found[1]


class Same(torch.autograd.Function):
    """A node that makes zeros of a gradient that does not come."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def test_a_gradient_leads_to_no_more_inputs_than_in_eager() -> None:
    """That of a linear layer's input is computed from the weight, though that of the weight is from the input."""
    graph = torch.fx.Graph()
    graph.output(graph.call_function(torch.addmm, tuple(graph.placeholder(name) for name in "bxw")))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    b, w = torch.ones(3, requires_grad=True), torch.ones(3, 3, requires_grad=True)
    run = aot_function(module, [b, torch.ones(2, 3, requires_grad=True) * 2, w], fw_compiler=run_eagerly)
    found = []
    for function in (torch.addmm, run):
        x = torch.ones(2, 3, requires_grad=True)
        log: list[Any] = []
        entered = Same.apply(x)
        entered.register_hook(lambda gradient: log.append(gradient is None))
        result = function(b, entered, w)
        (gradient,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        found.append((log, torch.autograd.grad(gradient.sin().sum(), x, allow_unused=True)))
    assert found[0] == found[1] == ([False], (None,))


# --- what comes before an input is run by a backward pass alone -------------------------------------------------------


def test_what_an_inputs_history_has_saved_is_not_unpacked():
    unpacked = []

    def unpack(saved):
        unpacked.append(1)
        return saved

    graph = torch.fx.Graph()
    graph.output(graph.call_method("sum", (graph.placeholder("x"),)))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    makers = (torch.tan, torch.cosh, lambda x: x * x, torch.nn.functional.softplus, lambda x: torch.igamma(x.detach(), x))
    for make in makers:
        x = torch.rand(3, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, unpack):
            made = make(x)
        compiled = aot_function(module, [made], fw_compiler=run_eagerly, bw_compiler=run_eagerly, options=Options())
        out = compiled(made)
        assert unpacked == []
        out.backward()
        torch.testing.assert_close(x.grad, torch.autograd.grad(make(x).sum(), x)[0])
        assert unpacked
        unpacked.clear()


@pytest.mark.parametrize(
    "make",
    [torch.igamma, torch.igammac, torch.special.zeta, lambda x, y: x.unique()],
    ids=["igamma", "igammac", "zeta", "unique"],
)
def test_a_history_without_a_derivative_raises_where_a_gradient_comes(make):
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.output((graph.call_method("sin", (x,)), graph.call_method("cos", (y,))))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    found = []
    for compile_ in (True, False):
        a, b = (torch.linspace(start, 2, 3).requires_grad_() for start in (0.5, 1))
        given = make(a, b.detach() + 2), b * 1
        run = module
        if compile_:
            run = aot_function(module, [*given], fw_compiler=run_eagerly, bw_compiler=run_eagerly, options=Options())
        for at in (1, 0):
            out = run(*given)[at].sum()
            try:
                out.backward()
                found.append((a.grad, b.grad))
            except NotImplementedError as error:
                found.append(str(error))
    assert found[1] == found[3] and isinstance(found[1], str)
    torch.testing.assert_close(found[0][1], found[2][1])
