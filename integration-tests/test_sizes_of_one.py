"""Sizes that are one by what the program asks, in calls where they have been more: results are eager's.

Whether a dimension is one is asked of its expression by whoever broadcasts it. Each program finds out about the sizes of
``y`` in another way, and broadcasts ``y``; calls before have made the sizes symbols.
"""

from __future__ import annotations

import pytest
import torch

import compile_api

ASKED = {
    "reshaped": lambda y: y.reshape(1) is not None,
    "number of elements": lambda y: y.numel() == 1,
    "at most": lambda y: y.numel() <= 1,
    "product": lambda y: y.shape[0] * y.shape[1] == 1,
    "product below": lambda y: y.shape[0] * y.shape[1] < 2,
    "each": lambda y: y.shape[0] == 1 and y.shape[1] == 1,
    "each, below": lambda y: y.shape[0] < 2 and not y.shape[1] > 1,
    "sum": lambda y: y.shape[0] + y.shape[1] == 2,
    "weighted sum": lambda y: y.shape[0] + 2 * y.shape[1] == 3,
    "three": lambda y: y.numel() == 3,
    "two": lambda y: torch.cat([y, y]).numel() == 2,
    "flat": lambda y: y.flatten().shape[0] == 1,
    "flat of two": lambda y: torch.stack([y, y]).flatten().shape[0] == 2,
    "largest": lambda y: max(y.shape) == 1,
    "square": lambda y: y.shape[0] ** 2 == 1 and y.shape == (1, 1),
    "halves": lambda y: y.shape[0] // 2 == 0 and y.shape[1] % 2 == 1,
    "a product of zero": lambda y: (y.shape[0] - 1) * (y.shape[1] + 1) == 0,
    "equal, and one": lambda y: y.shape[0] == y.shape[1] and y.shape[0] * 2 == 2,
    "an item": lambda y: y.numel() == 1 and y.item() < 100,
}
SHAPES = [(3, 3), (2, 2), (1, 3), (1, 1), (3, 1), (1, 1)]


def broadcast(x, y, z):
    return x / (z + 1) + y


@pytest.mark.parametrize("before", [False, True], ids=["asked first", "computed first"])
@pytest.mark.parametrize("asked", ASKED)
def test_sizes_of_one(asked, before):
    ask = ASKED[asked]

    def program(x, y):
        if before:
            z = y.abs()
            return broadcast(x, y, z) if ask(y) else x * 2
        return broadcast(x, y, y.abs()) if ask(y) else x * 2

    compiled = compile_api.compile(program)
    x, compared = torch.randn(3, 3), 0
    for shape in SHAPES:
        y = torch.randn(shape)
        try:
            want = program(x, y)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                compiled(x, y)
            continue
        torch.testing.assert_close(compiled(x, y), want)
        compared += 1
    assert compared and compiled.report().kernels
