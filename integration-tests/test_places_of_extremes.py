"""The positions of the largest and smallest elements: the first of equal ones and of NaNs, at lengths around those at
which the generated search changes."""

from __future__ import annotations

import itertools

import pytest
import torch

import compile_api

LENGTHS = (1, 2, 7, 8, 9, 16, 31, 32, 33, 63, 64, 65, 511, 512, 513, 1025)
TYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8,
)  # fmt: skip


def rows(length, dtype):
    """Ties, extremes at either end, infinities, and of floats NaNs in one and in several places."""
    pick = torch.Generator().manual_seed(length)
    made = [torch.randint(0, 5, (length,), generator=pick) for _ in range(4)]
    made += [torch.randint(0, 120, (length,), generator=pick) for _ in range(4)]
    made += [torch.zeros(length), torch.arange(length).clamp(max=100), torch.arange(length).flip(0).clamp(max=100)]
    x = torch.stack([each.to(torch.float64) for each in made])
    if not dtype.is_floating_point:
        return x.to(dtype)
    special = x[:6].clone()
    special[0, length // 2] = float("nan")
    special[1, :: max(length // 3, 1)] = float("nan")
    special[2] = float("nan")
    special[3] = -float("inf")
    special[4] = float("inf")
    special[5, -1] = float("inf")
    signed = torch.zeros(2, length, dtype=torch.float64)
    signed[0, ::2] = -0.0
    signed[1, 1:] = -0.0
    return torch.cat([x, special, signed]).to(dtype)


PROGRAMS = {
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1),
    "max": lambda x: x.max(-1),
    "min": lambda x: x.min(-1),
    "of a column": lambda x: x.t().contiguous().argmax(0),
    "of all": lambda x: (x.argmax(), x.argmin()),
    "computed": lambda x: (x * 2 + 1).argmax(-1),
    "of two dimensions": lambda x: x[:4].reshape(2, -1).argmin(-1),
}


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("name", PROGRAMS)
def test_positions(name, dtype):
    fn = PROGRAMS[name]
    for dynamic in (False, True):
        compiled = compile_api.compile(fn, dynamic=dynamic, options={"recompile_limit": 64})
        for length in LENGTHS if dynamic else LENGTHS[::3]:
            x = rows(length, dtype)
            for found, wanted in zip(*map(torch.utils._pytree.tree_leaves, (compiled(x), fn(x))), strict=True):
                assert torch.equal(found, wanted) or torch.equal(found.isnan(), wanted.isnan()), (length, dynamic)
                if found.dtype.is_floating_point:
                    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
        assert compiled.report().verdict == "compiled", str(compiled.report())


def test_every_position_is_found():
    """An extreme alone at each place of a row, and twice at each pair of places of a short one."""
    compiled = compile_api.compile(lambda x: (x.argmax(-1), x.argmin(-1)))
    for length in (8, 33, 520):
        x = torch.zeros(length, length)
        x.fill_diagonal_(1)
        found = compiled(x)
        assert torch.equal(found[0], torch.arange(length))
        assert torch.equal(compiled(-x)[1], torch.arange(length))
    pairs = list(itertools.combinations(range(12), 2))
    x = torch.zeros(len(pairs), 12)
    for row, (a, b) in enumerate(pairs):
        x[row, [a, b]] = 1
    assert torch.equal(compiled(x)[0], torch.tensor([a for a, _ in pairs]))
