"""Comparing a compiled function with eager: values, metadata, aliasing, mutations, gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree

from aot_autograd import aot_function, default_partition, run_eagerly
from prims.options import Options
from prims.report import Report


def twins(make: Callable[[], Sequence[Any]]) -> tuple[list[Any], list[Any]]:
    """The same inputs twice, made with one seed."""
    torch.manual_seed(0)
    first = list(make())
    torch.manual_seed(0)
    return first, list(make())


def sharing(values: Sequence[Any]) -> list[int]:
    """For each tensor, the position of the first tensor of the list with its storage."""
    first: dict[int, int] = {}
    return [
        first.setdefault(value.untyped_storage()._cdata, i)
        for i, value in enumerate(values)
        if isinstance(value, torch.Tensor)
    ]


def identities(values: Sequence[Any]) -> list[int]:
    """For each tensor, the position of the first tensor that is the very same object."""
    first: dict[int, int] = {}
    return [first.setdefault(id(value), i) for i, value in enumerate(values) if isinstance(value, torch.Tensor)]


def assert_same(ours: Any, theirs: Any, *, strides: bool = True, rtol: float = 1e-5, atol: float = 1e-5) -> None:
    """Equal values and metadata."""
    if not isinstance(theirs, torch.Tensor):
        assert type(ours) is type(theirs) and ours == theirs
        return
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    if strides and theirs.numel() > 1:
        kept = [d for d in range(theirs.dim()) if theirs.shape[d] > 1]
        assert [ours.stride(d) for d in kept] == [theirs.stride(d) for d in kept]
    assert ours.requires_grad == theirs.requires_grad
    torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=rtol, atol=atol, equal_nan=True)


def check(
    function: Callable[..., Any],
    make: Callable[[], Sequence[Any]],
    *,
    calls: int = 2,
    partition: Any = default_partition,
    report: Report | None = None,
    rtol: float = 1e-5,
    atol: float = 1e-5,
) -> Any:
    """Compile ``function`` (by symbolic tracing) and compare it with eager on inputs from ``make``.

    Every differentiable result contributes to a loss; gradients of all leaves are compared, None included.
    """
    report = report if report is not None else Report()
    gm = function if isinstance(function, torch.fx.GraphModule) else torch.fx.symbolic_trace(function)
    example, _ = twins(make)
    # Eager's random operators, so that a seed gives the same numbers on both sides.
    options = Options(strict=True, verify="every_pass", fallback_random=True)
    with torch.random.fork_rng():
        compiled = aot_function(
            gm, example, fw_compiler=run_eagerly, partition_fn=partition, options=options, report=report
        )
    assert not report.fallbacks
    reference = copy.deepcopy(gm)
    for _ in range(calls):
        mine, theirs = twins(make)
        torch.manual_seed(1)
        ours = compiled(*mine)
        torch.manual_seed(1)
        expected = reference(*theirs)
        compare_results(ours, expected, mine, theirs, rtol=rtol, atol=atol)
        compare_gradients(gm, reference, ours, expected, mine, theirs, rtol=rtol, atol=atol)
    assert not report.fallbacks, report.fallbacks
    return compiled


def compare_results(ours: Any, expected: Any, mine: Any, theirs: Any, *, rtol: float, atol: float) -> None:
    """Results' structure, values, metadata and aliasing; the inputs after the call."""
    flat_ours, structure = pytree.tree_flatten(ours)
    flat_expected, expected_structure = pytree.tree_flatten(expected)
    assert structure == expected_structure
    for one, other in zip(flat_ours, flat_expected, strict=True):
        assert_same(one, other, rtol=rtol, atol=atol)
    for one, other in zip(mine, theirs, strict=True):
        assert_same(one, other, rtol=rtol, atol=atol)
        if isinstance(one, torch.Tensor):
            assert one.is_leaf == other.is_leaf
    assert sharing([*mine, *flat_ours]) == sharing([*theirs, *flat_expected])
    assert identities([*mine, *flat_ours]) == identities([*theirs, *flat_expected])


def leaves_of(values: Sequence[Any]) -> list[torch.Tensor]:
    """The leaf tensors that need a gradient, found through ``_leaf`` marks for non-leaf inputs."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            leaf = getattr(value, "_leaf", value)
            if leaf.is_leaf and leaf.requires_grad:
                found.append(leaf)
    return found


def compare_gradients(
    gm: Any, reference: Any, ours: Any, expected: Any, mine: Any, theirs: Any, *, rtol: float, atol: float
) -> None:
    """Gradients of a loss over every differentiable result and input."""

    def loss(values: Sequence[Any]) -> torch.Tensor | None:
        total: torch.Tensor | None = None
        for k, value in enumerate(values):
            if isinstance(value, torch.Tensor) and value.requires_grad and not value.is_leaf:
                real = torch.view_as_real(value) if value.is_complex() else value
                term = (real * torch.linspace(0.5, 1.5 + k, max(real.numel(), 1))[: real.numel()].view(real.shape)).sum()
                total = term if total is None else total + term
        return total

    mine_loss = loss([*pytree.tree_leaves(ours), *mine])
    their_loss = loss([*pytree.tree_leaves(expected), *theirs])
    assert (mine_loss is None) == (their_loss is None)
    if mine_loss is None or their_loss is None:
        return
    gm.zero_grad(), reference.zero_grad()
    mine_loss.backward()
    their_loss.backward()
    pairs = list(zip(leaves_of(mine), leaves_of(theirs), strict=True))
    pairs += list(zip(gm.parameters(), reference.parameters(), strict=True))
    for one, other in pairs:
        assert (one.grad is None) == (other.grad is None)
        if other.grad is not None:
            assert_same(one.grad, other.grad, strides=False, rtol=rtol, atol=atol)


def nonleaf(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with a history; its leaf is remembered for gradient checks."""
    leaf = tensor.requires_grad_()
    value = leaf * 1.0
    value._leaf = leaf  # type: ignore[attr-defined]
    return value
