"""Graphs in which constraints of stages meet odd layouts and constants: verified after each step, none left to eager."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import compile_api

X = torch.arange(1.0, 25.0).reshape(4, 6)


def windows(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).as_strided((3, 3), (1, 2), 1)


def squares(x: torch.Tensor) -> torch.Tensor:
    return (x + 1).flatten().as_strided((2, 3, 4), (0, 1, 1))


def unfolded(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).unfold(1, 3, 1)


def expanded(x: torch.Tensor) -> torch.Tensor:
    return x.sum(1, keepdim=True).expand(4, 5)


def twice_summed(x: torch.Tensor) -> torch.Tensor:
    return x.sum().sum()


def averaged(x: torch.Tensor) -> torch.Tensor:
    return x.mean(0).sum()


def constants_that_divide(x: torch.Tensor) -> torch.Tensor:
    weights = torch.arange(6) * 7 % 11 // 2
    x[0] = 0
    return weights


def constants_that_divide_by_constants(x: torch.Tensor) -> torch.Tensor:
    weights = torch.arange(6) // (torch.arange(6) + 1) % (torch.arange(6) - 7)
    x[0] = 0
    return weights.to(x.dtype)


def a_division_that_nobody_reads(x: torch.Tensor) -> None:
    torch.arange(6).to(x.dtype).long() % 11
    torch.arange(6) // (x[0] != 0).long()
    x[0] = 0


PROGRAMS = [windows, squares, unfolded, expanded, twice_summed, averaged, constants_that_divide,
            constants_that_divide_by_constants, a_division_that_nobody_reads]  # fmt: skip
LAYOUTS = {
    "whole": lambda: X.clone(),
    "further behind": lambda: torch.cat([torch.zeros(1), X.flatten()])[1:].view(4, 6),
    "transposed": lambda: X.t().contiguous().t(),
    "of fewer rows": lambda: X.clone()[1:],
}


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_every_step_holds(program: Any, layout: str, dynamic: bool, gradient: bool) -> None:
    compiled = compile_api.compile(program, fullgraph=True, dynamic=dynamic, options={"verify": "every_pass"})
    seen = []
    for fn in (program, compiled):
        x = LAYOUTS[layout]()
        writes = program.__name__.startswith(("constants", "a_division"))
        if x.shape[0] == 3 and program is expanded:
            x = X.clone()
        leaf = x.requires_grad_() if gradient and not writes else x
        with warnings.catch_warnings():
            warnings.simplefilter("error", compile_api.CompileWarning)
            result = fn(leaf)
            if leaf.requires_grad:
                (result * torch.linspace(0.5, 2, result.numel()).view(result.shape)).sum().backward()
        strides = None if result is None else result.stride()
        seen.append((result, strides, leaf.detach(), leaf.grad))
    for ours, eagers in zip(seen[1], seen[0], strict=True):
        assert torch.allclose(ours, eagers) if isinstance(eagers, torch.Tensor) else ours == eagers
    report = compiled.report()
    assert not report.fallbacks and report.kernels


@pytest.mark.parametrize("rows", [0, 1])
def test_empty_and_single(rows: int) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sum() + x.expand(3, rows, 2).sum().sum()

    compiled = compile_api.compile(program, fullgraph=True, options={"verify": "every_pass"})
    ours, eagers = (torch.ones(rows, 2).requires_grad_() for _ in range(2))
    assert torch.equal(compiled(ours), program(eagers))
    compiled(ours).backward()
    program(eagers).backward()
    assert torch.equal(ours.grad, eagers.grad) and not compiled.report().fallbacks


@pytest.mark.parametrize("sizes", [((1, 2, 1), (7, 1, 1), (1, 2, 5)), ((3, 3, 2), (1, 4, 2), (4, 1, 1), (1, 1, 1))], ids=str)
def test_sizes_that_become_one(sizes: tuple[tuple[int, ...], ...]) -> None:
    """When it became known decides strides along one element, which nobody may ask for."""

    def program(x: torch.Tensor) -> torch.Tensor:
        x.diagonal().add_(1)
        return x.mean(0).clamp(0.9)

    compiled = compile_api.compile(program, fullgraph=True, options={"verify": "every_pass"})
    for shape in sizes:
        ours, eagers = (torch.arange(float(torch.Size(shape).numel())).view(shape) for _ in range(2))
        torch.testing.assert_close(compiled(ours), program(eagers))
        assert torch.equal(ours, eagers)
    assert not compiled.report().fallbacks
