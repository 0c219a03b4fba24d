"""Regions of whose results some are not computed from all inputs: several autograd nodes for a call."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any
from weakref import ref

import pytest
import torch
import torch.fx

from aot_autograd import aot_function, run_eagerly
from prims.options import Options

Tensors = tuple[torch.Tensor, ...]


def program(u: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> Tensors:
    return (u * w).exp(), v.sin() * w, (u * v).tanh()


def compiled(function: Callable[..., Any], example: Any, backward: Any = None) -> Any:
    graph = torch.fx.Graph()
    names = [f"x{k}" for k in range(len(example))]
    graph.output(graph.call_function(function, tuple(map(graph.placeholder, names))))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    options = Options(strict=True)
    return aot_function(module, example, fw_compiler=run_eagerly, bw_compiler=backward, options=options)


def inputs(log: list[Any] | None = None) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Leaves, and what is computed from the first two of them."""
    leaves = [torch.linspace(0.1, 1, 4).add(k).requires_grad_() for k in range(3)]
    made = [leaves[0] * 2, leaves[1].cos() * 3, leaves[2]]
    if log is not None:
        for k, x in enumerate(made):
            x.register_hook(lambda gradient, k=k: log.append((k, gradient.tolist())))
    return leaves, made


def same(ours: Any, eager: Any) -> None:
    torch.testing.assert_close(ours, eager)


@pytest.fixture
def run() -> Any:
    return compiled(program, inputs()[1])


def nodes(results: Tensors) -> list[Any]:
    """The nodes of results, and the gates that they lead to, in the order of their making."""
    parts = list({result.grad_fn: None for result in results})
    gates = {gate for part in parts for gate, _ in part.next_functions}
    return [*parts, *sorted(gates, key=lambda gate: gate._sequence_nr())]


def test_nodes_are_as_many_as_there_are_ways(run: Any) -> None:
    results = run(*inputs()[1])
    assert len({result.grad_fn for result in results}) == 3
    assert [len(result.grad_fn.next_functions) for result in results] == [2, 2, 2]
    leaves = [x.detach().requires_grad_() for x in inputs()[1]]
    assert len({result.grad_fn for result in run(*leaves)}) == 3


@pytest.mark.parametrize("late", range(3))
@pytest.mark.parametrize("create", [False, True])
def test_a_gate_that_has_its_turn_before_a_part(run: Any, late: int, create: bool) -> None:
    """As when the gradient of a result is computed on another device."""
    found = []
    for function in (program, run):
        log: list[Any] = []
        leaves, made = inputs(log)
        results = function(*made)
        if function is run:
            kinds = nodes(results)
            for gate in kinds[3:]:
                gate._set_sequence_nr(2**40)  # before anything that could be
            kinds[late]._set_sequence_nr(0)
        loss = sum((result * (k + 1)).sum() for k, result in enumerate(results))
        gradients = torch.autograd.grad(loss, leaves, retain_graph=True, create_graph=create)  # type: ignore[arg-type]
        if create:
            gradients = (*gradients, *torch.autograd.grad(sum(g.cos().sum() for g in gradients), leaves))  # type: ignore[arg-type]
        else:
            loss.backward()  # type: ignore[union-attr]
            with pytest.raises(RuntimeError, match="second time"):
                loss.backward()  # type: ignore[union-attr]
        found.append((gradients, [leaf.grad for leaf in leaves], [k for k, _ in log]))
    same(found[1][0], found[0][0])
    same(found[1][1], found[0][1])
    assert sorted(found[1][2]) == sorted(found[0][2])


def test_the_backward_graph_runs_once() -> None:
    ran: list[int] = []

    def backward(env: Any, report: Any) -> Any:
        return lambda *args: (ran.append(len(args)), env.module()(*args))[1]

    run = compiled(program, inputs()[1], backward)
    leaves, made = inputs()
    sum(result.sum() for result in run(*made)).backward()  # type: ignore[union-attr]
    assert len(ran) == 1 and all(leaf.grad is not None for leaf in leaves)


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_saved_is_freed(run: Any, fails: bool) -> None:
    """When the backward pass has run, as well as when it has failed and the results are gone."""
    leaves, made = inputs()
    first, second, third = run(*made)
    shared = ref(first.grad_fn.call)
    if fails:
        made[0].register_hook(lambda gradient: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            (first.sum() + second.sum()).backward()
        del made, leaves
    else:
        (first.sum() + second.sum()).backward()
        with pytest.raises(RuntimeError, match="second time"):
            third.sum().backward()
        assert third.grad_fn.call is not None
    gc.disable()
    try:
        del first, second, third
        assert shared() is None
    finally:
        gc.enable()


def test_writes_before_the_backward_pass(run: Any) -> None:
    """An error for the gradients that come to what eager has saved, and for no others."""
    for used in range(3):
        for written in range(3):
            found = []
            for function in (program, run):
                leaves, made = inputs()
                results = function(*made)
                loss = results[used].sum()
                with torch.no_grad():
                    results[written].mul_(2)
                try:
                    loss.backward()
                    found.append([leaf.grad for leaf in leaves])
                except RuntimeError as error:
                    assert "modified by an inplace operation" in str(error)
                    found.append(None)  # type: ignore[arg-type]
            same(found[1], found[0])


def test_a_result_that_is_gone_is_differentiated(run: Any) -> None:
    """Its gradient's gradient comes by what was saved of it."""
    found = []
    for function in (program, run):
        leaves, made = inputs()
        results = list(function(*made))
        loss = (results[0] * 2).sum() + (results[2] * 3).sum()
        results.clear()
        gradients = torch.autograd.grad(loss, made, create_graph=True)
        sum((gradient**2).sum() for gradient in gradients).backward()  # type: ignore[union-attr]
        found.append([leaf.grad for leaf in leaves])
    same(found[1], found[0])


def test_passes_in_several_threads(run: Any) -> None:
    leaves, made = inputs()
    results = run(*made)
    wanted = [torch.autograd.grad(program(*made)[k].sum(), leaves, retain_graph=True, allow_unused=True) for k in range(3)]
    found: dict[int, Any] = {}

    def take(n: int) -> None:
        for _ in range(20):
            found[n] = torch.autograd.grad(results[n % 3].sum(), leaves, retain_graph=True, allow_unused=True)

    threads = [threading.Thread(target=take, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, gradients in found.items():
        same(gradients, wanted[n % 3])


def test_packed_tensors(run: Any) -> None:
    """Hooks for saved tensors see what a call saves, once."""
    packed: list[torch.Tensor] = []

    def pack(x: torch.Tensor) -> Any:
        packed.append(x)
        return x.detach().clone()

    leaves, made = inputs()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        results = run(*made)
    sum(result.sum() for result in results).backward()  # type: ignore[union-attr]
    other, again = inputs()
    sum(result.sum() for result in program(*again)).backward()  # type: ignore[union-attr]
    same([leaf.grad for leaf in leaves], [leaf.grad for leaf in other])
    assert packed and len({x.data_ptr() for x in packed}) == len(packed)


def test_part_of_a_result_written_with_a_history() -> None:
    def products(u: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> Tensors:
        return u * w, v.sin() * w, u * v

    found = []
    for function in (products, compiled(products, inputs()[1])):
        leaves, made = inputs()
        results = function(*made)
        results[0][1:] = made[1][1:]
        results[1].mul_(made[0])
        (results[0].sum() + results[1].sum() * 2).backward()
        found.append([leaf.grad for leaf in leaves])
    same(found[1], found[0])
