"""Hooks on what compiled regions compute and write: eager's gradients, or an error that says why not; through all stages."""

from __future__ import annotations

import pytest
import torch

import compile_api


def of_a_tensor_written_later(x, t):
    y = x.sin()
    factor = t * 2
    y.register_hook(lambda grad: grad * factor)
    factor.add_(5)
    return y.sum()


def of_an_argument(x, t):
    y = x.sin()
    y.register_hook(lambda grad: grad * t)
    return y.sum()


def of_a_view_of_an_argument(x, t):
    y = x.sin()
    part = t.detach().view(-1)
    y.register_hook(lambda grad: grad * part)
    return y.sum()


def of_what_is_given_back(x, t):
    y = x.sin()
    factor = t * 2
    y.register_hook(lambda grad: grad * factor)
    return y.sum(), factor


def of_a_view_that_is_given_back(x, t):
    y = x.sin()
    factor = t * 2
    y.register_hook(lambda grad: grad * factor)
    return y.sum(), factor.view(-1)


def of_what_stays_inside(x, t):
    y = x.sin()
    factor = t * 2
    y.register_hook(lambda grad: grad * factor)
    return y.sum()


def of_another_type(x, t):
    y = x.sin()
    y.register_hook(lambda grad: grad.double())
    return y.sum()


def of_another_shape(x, t):
    y = x.sin()
    y.register_hook(lambda grad: grad.sum())
    return y.sum()


PROGRAMS = (of_a_tensor_written_later, of_an_argument, of_a_view_of_an_argument, of_what_is_given_back,
            of_a_view_that_is_given_back, of_what_stays_inside, of_another_type, of_another_shape)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
def test_what_a_hook_reads_is_as_it_is_in_the_backward_pass(program):
    compiled, found = compile_api.compile(program), []
    for run in (compiled, program, compiled):
        x, t = torch.linspace(0.5, 1, 3).requires_grad_(), torch.ones(3)
        out = run(x, t)
        t.mul_(3)
        if isinstance(out, tuple):
            out, given = out
            given.mul_(7)
        try:
            out.backward()
            found.append(x.grad)
        except RuntimeError as error:
            found.append(str(error))
    for ours in (found[0], found[2]):
        assert type(ours) is type(found[1])
        torch.testing.assert_close(ours, found[1]) if torch.is_tensor(ours) else None
        assert torch.is_tensor(ours) or ours.split("(")[0] == found[1].split("(")[0]


def after_a_write(x):
    y = x * 1
    y.register_hook(lambda grad: grad * 2)
    y.mul_(3)
    z = y + 1
    y.register_hook(lambda grad: grad * 5)
    return (z * y).sum()


def test_a_hook_behind_a_write_sees_all_or_the_reason_is_told():
    compiled, x = compile_api.compile(after_a_write), torch.ones(3, requires_grad=True)
    wanted = torch.autograd.grad(after_a_write(x), x)
    try:
        found = torch.autograd.grad(compiled(x), x)
    except RuntimeError as error:
        assert "it writes to its inputs" in str(error)
    else:
        torch.testing.assert_close(found, wanted)
