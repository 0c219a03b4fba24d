"""Views, mutations and aliasing against eager, with and without gradients."""

from __future__ import annotations

import pytest
import torch
from aot_checks import check, nonleaf

import aot_autograd
from prims.report import Report


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


# Each program takes x (4, 6) and y (4, 6).
PROGRAMS = {
    "add_": lambda x, y: x.mul(2).add_(y),
    "mul_ of an input": lambda x, y: x.mul_(y),
    "input written, other result": lambda x, y: (x.add_(1), x * y)[1],
    "two writes": lambda x, y: (x.add_(y), x.mul_(3), x.sin())[2],
    "both inputs written": lambda x, y: (x.add_(y), y.mul_(x), x - y)[2],
    "lists written": lambda x, y: (torch._foreach_mul_([x, y[1:]], 0.5), torch._foreach_sqrt_([y[0]]), x * y)[2],
    "parts written as a list": lambda x, y: (torch._foreach_mul_([x[2:], x[:2]], 0.5), x * y)[1],
    "copy_": lambda x, y: x.copy_(y.sin()),
    "copy_ broadcasting": lambda x, y: x.copy_(y[0].sin()),
    "fill_": lambda x, y: (x.mul(y).fill_(3.0), y * 2),
    "zero_ of a row": lambda x, y: (x[1].zero_(), x * y)[1],
    "select write": lambda x, y: _on(x * 1, lambda z: z[1].mul_(2)),
    "slice write": lambda x, y: _on(x * 1, lambda z: z[1:3].add_(y[1:3])),
    "step slice write": lambda x, y: _on(x * 1, lambda z: z[:, ::2].mul_(3)),
    "transpose write": lambda x, y: _on(x * 1, lambda z: z.t().mul_(y.t())),
    "permute write": lambda x, y: _on(x * 1, lambda z: z.view(2, 2, 6).permute(2, 0, 1).add_(1)),
    "view write": lambda x, y: _on(x * 1, lambda z: z.view(-1)[3:9].add_(1)),
    "diagonal write": lambda x, y: _on(x * 1, lambda z: z.diagonal().mul_(2)),
    "unsqueeze write": lambda x, y: _on(x * 1, lambda z: z.unsqueeze(1).add_(y.unsqueeze(1))),
    "squeeze write": lambda x, y: _on(x * 1, lambda z: z[:1].squeeze(0).add_(1)),
    "chain write": lambda x, y: _on(x * 1, lambda z: z.t()[1:4].view(3, 2, 2)[:, 0].mul_(2)),
    "split write": lambda x, y: _on(x.detach() * 1, lambda z: z.split(2, 1)[1].mul_(2)),
    "chunk": lambda x, y: x.chunk(3, dim=1)[1] * y[:, :2],
    "unbind": lambda x, y: torch.stack(x.unbind(0)[::-1]) * y,
    "setitem": lambda x, y: _on(x * 1, lambda z: z.__setitem__((slice(None), 1), y[:, 0])),
    "view of input written": lambda x, y: (x[1].mul_(2), x + 1)[1],
    "view of input, seen by other view": lambda x, y: _two_views(x, y),
    "result is input": lambda x, y: x,
    "results are both inputs": lambda x, y: (y, x, y),
    "result is view of input": lambda x, y: x.t(),
    "result is slice of input": lambda x, y: (x[1:3, 2:], y + 1),
    "result is written input": lambda x, y: x.add_(1),
    "result is view of written input": lambda x, y: x.add_(1)[2],
    "same result twice": lambda x, y: _twice(x * y),
    "result and its view": lambda x, y: _with_view(x * y),
    "two views of one base": lambda x, y: _views_only(x * y),
    "view and detach": lambda x, y: _with_detach(x * y),
    "detach of input": lambda x, y: (x.detach(), x * y),
    "detached write": lambda x, y: (x.detach().mul_(2), y * 3)[1],
    "result of expand": lambda x, y: (x * y)[:1].expand(4, 6),
    "view of intermediate": lambda x, y: (x * y).t(),
    "slice of intermediate": lambda x, y: (x * y)[1:, 2:4],
    "as_strided": lambda x, y: (x * y).as_strided((3, 2), (6, 2), 1),
    "as_strided write": lambda x, y: _on(x * 1, lambda z: z.as_strided((3, 2), (6, 2), 1).mul_(2)),
    "out=": lambda x, y: torch.add(x.detach(), y.detach(), out=torch.empty(4, 6)),
    "list result": lambda x, y: [x * 2, (y * 3, None), {"a": x + y, "b": 5}],
    "literals": lambda x, y: (x * torch.tensor(2.0), torch.tensor([1.0, 2.0])),
    "literal written": lambda x, y: torch.zeros(3).add_(torch.tensor([1.0, 2.0, 3.0])) + x[0, :3],
    "where self": lambda x, y: x.masked_fill_(y > 0, 0.5),
    "relu_": lambda x, y: (x * y).relu_(),
    "write then read old view": lambda x, y: _stale(x * 1),
    "index_put_": lambda x, y: _on(x * 1, lambda z: z.index_put_((torch.tensor([0, 2]),), y[:2])),
    "t_": lambda x, y: (x * y).t_() * 2,
    "unsqueeze_ of a result": lambda x, y: (x * y).unsqueeze_(1),
    "write after unsqueeze_": lambda x, y: _on(x * y, lambda z: z.unsqueeze_(1).add_(1)),
    "channels last pool": lambda x, y: _pool(x * y),
    "no results": lambda x, y: (x.add_(y), None)[1],
}


def _on(z, write):
    write(z)
    return z


def _two_views(x, y):
    a, b = x[0], x.view(-1)
    a.mul_(3)
    return b * y.view(-1)


def _twice(z):
    return z, z


def _with_view(z):
    return z.view(-1), z


def _views_only(z):
    return z[0], z[1:].t()


def _with_detach(z):
    return z, z.detach(), z.view(-1).detach()


def _pool(z):
    z = z.view(1, 4, 2, 3).contiguous(memory_format=torch.channels_last)
    return torch.nn.functional.adaptive_avg_pool2d(z, 1) * 2


def _stale(z):
    v = z[1]
    w = v.view(2, 3)
    z.add_(1)
    v.mul_(2)
    return w + 1, z.sum()


@pytest.mark.parametrize("name", PROGRAMS)
def test_without_gradients(name):
    with torch.no_grad():
        check(PROGRAMS[name], lambda: [randn(4, 6), randn(4, 6)])


@pytest.mark.parametrize("name", PROGRAMS)
def test_with_gradients(name):
    check(PROGRAMS[name], lambda: [nonleaf(randn(4, 6)), nonleaf(randn(4, 6))])


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradient_of_one_input(name):
    check(PROGRAMS[name], lambda: [randn(4, 6), nonleaf(randn(4, 6))])


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x[1:].copy_(x[:-1]),
        lambda x: x.copy_(x.t()),
        lambda x: x.add_(x.t()),
        lambda x: x.view(-1)[2:].mul_(x.view(-1)[:-2]),
        lambda x: torch.add(x[1:], 1, out=x[:-1]),
    ],
)
def test_a_write_that_overlaps_its_operand_raises_as_in_eager(program):
    x = torch.arange(9.0).reshape(3, 3)
    with pytest.raises(RuntimeError) as expected:
        program(x.clone())
    report = Report()
    compiled = aot_autograd.aot_function(
        torch.fx.symbolic_trace(program), [x.clone()], fw_compiler=lambda env, report=None: env.module().forward,
        report=report,
    )  # fmt: skip
    with pytest.raises(RuntimeError) as error:
        compiled(x.clone())
    assert str(error.value) == str(expected.value)
    assert len(report.fallbacks) == 1 and "shares part" in report.fallbacks[0].reason


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.sum(x, 0, out=x[0]),
        lambda x: torch.sum(x[:, ::2], 0, out=x[0, ::2]),
        lambda x: x[:, :2].add_(x[:, :1]),
        lambda x: x[:, :2].copy_(x[:, 1:]),
        lambda x: torch._foreach_add_([x[0], x[1]], [x[1], x[0]]),
    ],
)
def test_a_write_whose_operand_changes_with_it_is_left_to_eager(program):
    x, y = torch.arange(9.0).reshape(3, 3), torch.arange(9.0).reshape(3, 3)
    report = Report()
    compiled = aot_autograd.aot_function(
        torch.fx.symbolic_trace(program), [x.clone()], fw_compiler=lambda env, report=None: env.module().forward,
        report=report,
    )  # fmt: skip
    compiled(x)
    program(y)
    assert torch.equal(x, y)
    assert len(report.fallbacks) == 1 and "shares part" in report.fallbacks[0].reason


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x[1:].copy_(x[:1]),
        lambda x: x.add_(x),
        lambda x: x[0].mul_(x[2]),
        lambda x: x[:, 0].add_(x[:, 1]),
        lambda x: x[:, :1].mul_(x[:, 1:2]),
        lambda x: x[::2, :2].mul_(x[::2, :2]),
        lambda x: x.view(-1)[:8:2].add_(x.view(-1)[1:8:2]),
        lambda x: torch._foreach_add_([x[0], x[1]], [x[2], x[1]]),
    ],
)
def test_a_write_beside_its_operand_is_compiled(program):
    x, y = torch.arange(9.0).reshape(3, 3), torch.arange(9.0).reshape(3, 3)
    report = Report()
    compiled = aot_autograd.aot_function(
        torch.fx.symbolic_trace(program), [x.clone()], fw_compiler=lambda env, report=None: env.module().forward,
        report=report,
    )  # fmt: skip
    compiled(x)
    program(y)
    assert torch.equal(x, y) and not report.fallbacks


@pytest.mark.parametrize("inputs", [False, True], ids=["own", "input"])
@pytest.mark.parametrize("views", [lambda t: t.unbind(0)[0], lambda t: t.split(2)[1], lambda t: t.chunk(2, 1)[0]])
def test_one_of_several_views_whose_memory_was_written_may_not_be_used(views, inputs):
    """As a result it is as unusable as eager's."""

    def program(x):
        t = x if inputs else x * 3
        part = views(t)
        t.mul_(2)
        return t, part

    x = torch.ones(4, 6, requires_grad=True)
    report = Report()
    compiled = aot_autograd.aot_function(
        torch.fx.symbolic_trace(program), [x * 1], fw_compiler=lambda env, report=None: env.module().forward,
        report=report,
    )  # fmt: skip
    for run in (program, compiled):
        part = run(x * 1)[1]
        with pytest.raises(RuntimeError, match="modified inplace"):
            part.sum()
    assert ["may not be used" in record.reason for record in report.fallbacks] == [True]
