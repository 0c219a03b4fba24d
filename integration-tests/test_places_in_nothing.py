"""Dimensions of size 0: positions in them are refused where eager refuses them, and what turns out empty has a plan of
memory that holds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

import compile_api

SHAPES = [(0,), (0, 0), (0, 3), (3, 0), (2, 0, 3), (1,), (2, 3)]
POSITIONS = [[0], 0, [], [0, 0]]


def along(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return i.reshape([-1] + [1] * (x.dim() - 1))


CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "index_fill": lambda x, i: x.index_fill(0, i, 2),
    "index_fill, last": lambda x, i: x.index_fill(-1, i, 2),
    "index_fill of a tensor": lambda x, i: x.index_fill(0, i, torch.tensor(2.0)),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:1]),
    "index_add": lambda x, i: x.index_add(0, i, x[:1]),
    "index_select": lambda x, i: x.index_select(0, i),
    "index_select, last": lambda x, i: x.index_select(-1, i),
    "index_put": lambda x, i: x.index_put((i,), torch.tensor(1.0)),
    "index": lambda x, i: x[i],
    "index, last": lambda x, i: x[..., i],
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
    "take": lambda x, i: x.take(i),
    "gather": lambda x, i: x.gather(0, along(x, i)),
    "scatter": lambda x, i: x.scatter(0, along(x, i), 1.0),
}


@pytest.mark.parametrize("name", CALLS)
def test_positions(name: str) -> None:
    for shape, at in itertools.product(SHAPES, POSITIONS):
        compile_api.reset()
        program = lambda x, i: CALLS[name](x * 2, i)
        compiled = compile_api.compile(program)
        given = torch.ones(shape), torch.tensor(at, dtype=torch.int64)
        try:
            expected = program(*given)
        except (IndexError, RuntimeError):
            with pytest.raises((IndexError, RuntimeError)):
                compiled(*given)
            continue
        found = compiled(*given)
        assert (found.shape, found.stride()) == (expected.shape, expected.stride()), (shape, at)
        assert torch.equal(found, expected), (shape, at)
        assert not any("Error" in left.reason for left in compiled.report().fallbacks), (shape, at)


EMPTIED: dict[str, Callable[[torch.Tensor], object]] = {
    "diagonal above": lambda x: x.sum(1).diagonal(1),
    "diagonal below": lambda x: (x.sum(1) * 2).diagonal(-1),
    "rows behind the third": lambda x: (x.sum(1)[3:] + 1, x * 2),
    "columns behind the fifth": lambda x: x.sum(1)[:, 5:].t().contiguous(),
    "rows and columns": lambda x: x.sum(1)[2:][:, 2:],
}
SIZES = [(5, 4, 4), (2, 1, 1), (3, 7, 7), (0, 2, 2), (4, 3, 1)]


@pytest.mark.parametrize("name", EMPTIED)
def test_what_turns_out_empty_is_planned_for(name: str) -> None:
    for order in itertools.permutations(SIZES, 3):
        compile_api.reset()
        compiled = compile_api.compile(EMPTIED[name], options={"verify": "every_pass", "strict": True})
        for shape in order:
            x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
            torch.testing.assert_close(compiled(x), EMPTIED[name](x), rtol=0, atol=0)
        assert not compiled.report().fallbacks
