"""What is scattered into a tensor, of parts of it, beside writes to that tensor: each order and each way, against eager."""

from __future__ import annotations

import pytest
import torch

import compile_api

#: What is scattered into x, of a part of x.
SCATTERS = {
    "diagonal_scatter": lambda x: x.diagonal_scatter(x.diagonal()),
    "diagonal_scatter, aside": lambda x: x.diagonal_scatter(x.diagonal(1)[:3], 1),
    "select_scatter": lambda x: x.select_scatter(x.select(1, 0), 1, 2),
    "slice_scatter": lambda x: x.slice_scatter(x[:, 1:3], 1, 0, 2),
    "slice_scatter, by two": lambda x: x.slice_scatter(x[:, 1::2], 1, 0, 4, 2),
    "as_strided_scatter": lambda x: x.contiguous().as_strided_scatter(x[0, :3], (3,), (2,)),
    "index_put": lambda x: x.index_put((torch.tensor([0, 2]),), x[1:3]),
    "index_put, added": lambda x: x.index_put((torch.tensor([0, 0]),), x[1:3], accumulate=True),
    "index_copy": lambda x: x.index_copy(1, torch.tensor([3, 0]), x[:, 1:3]),
    "scatter": lambda x: x.scatter(1, torch.tensor([[1, 0], [3, 2]]), x[1:]),
    "scatter_add": lambda x: x.scatter_add(1, torch.tensor([[1, 1], [3, 2]]), x[1:]),
    "masked_scatter": lambda x: x.masked_scatter(x > 0, x.t()),
    "masked_fill": lambda x: x.masked_fill(x > 0, x[0, 0]),
}

#: A write to x or to a part of it.
WRITES = {
    "all": lambda x: x.sigmoid_(),
    "every second": lambda x: x[..., ::2].sigmoid_(),
    "every second row": lambda x: x[1::2].sigmoid_(),
    "a diagonal": lambda x: x.diagonal().sigmoid_(),
    "transposed": lambda x: x.t()[:3].mul_(2),
    "itself turned": lambda x: x.copy_(x.flip(1)),
}


def after(scatter, write, x):
    result = scatter(x)
    write(x)
    return result, x.sum(1)


def before(scatter, write, x):
    write(x)
    return scatter(x), x * 2


def between(scatter, write, x):
    first = scatter(x)
    write(x)
    return first, scatter(x), first.sum(0)


def of_a_view(scatter, write, x):
    result = scatter(x[:, 1:])
    write(x)
    return result


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("scatter", SCATTERS)
def test_a_scatter_has_what_was_there_when_it_was_made(scatter: str, write: str) -> None:
    torch.manual_seed(0)
    for order in (after, before, between, of_a_view):
        given = torch.randn(3, 6 if order is of_a_view else 5)
        eager, ours = given.clone(), given.clone()
        expected = order(SCATTERS[scatter], WRITES[write], eager)
        compiled = compile_api.compile(lambda x, o=order: o(SCATTERS[scatter], WRITES[write], x))
        torch.testing.assert_close(compiled(ours), expected, msg=lambda m, o=order: f"{o.__name__}: {m}")
        torch.testing.assert_close(ours, eager)
