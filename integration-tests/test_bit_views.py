"""``view(dtype)`` to another width: generated kernels take integers apart and put them together."""

from __future__ import annotations

import itertools

import pytest
import torch

import compile_api

DTYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
          torch.float64]  # fmt: skip
PAIRS = [(a, b) for a, b in itertools.product(DTYPES, DTYPES) if a.itemsize != b.itemsize]


def same_bits(x, y):
    return x.dtype == y.dtype and torch.equal(x.contiguous().view(torch.uint8), y.contiguous().view(torch.uint8))


def viewed(x, dtype):
    return torch.cat([x, x.flip(0)]).view(dtype).clone()


@pytest.mark.parametrize(("source", "to"), PAIRS, ids=[f"{str(a)[6:]} as {str(b)[6:]}" for a, b in PAIRS])
def test_bits(source, to):
    compiled = compile_api.compile(viewed, options={"strict": True})
    for shape in ((3, 4), (5, 4), (0, 4)):
        x = torch.randint(-(2**62), 2**62, shape).view(source)  # NaN and infinities among them
        assert same_bits(compiled(x, to), viewed(x, to))
    report = compiled.report()
    assert report.kernels and not report.externs and not report.fallbacks


def test_writes_through_a_view():
    def change(x):
        bits = x.view(torch.uint8)
        bits[..., ::2] ^= 3
        return x.sum(), bits.view(torch.int16)

    compiled, x, y = compile_api.compile(change), *(torch.arange(12, dtype=torch.int32).view(3, 4) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(compiled(x), change(y), strict=True)) and torch.equal(x, y)
    assert not compiled.report().externs


def test_a_size_that_is_no_multiple_is_eagers_error():
    compiled, x = compile_api.compile(lambda x: x.view(torch.int32)), torch.arange(6, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="must be divisible by 4"):
        compiled(x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves_that_are_moved_keep_their_bits(dtype):
    """Every half there is, NaN of every payload among them, through copies, choices and edges."""

    def program(x, y):
        joined = torch.cat([x, y.flip(0)])
        chosen = torch.where(x.view(torch.int16) % 2 == 0, x, y)
        padded = torch.nn.functional.pad(x.view(256, 256), (1, 2), value=-0.0)
        return joined, chosen, padded.t().contiguous(), x.roll(3), torch.where(y > 0, y, 1.5)

    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    compiled = compile_api.compile(program, options={"strict": True})
    for ours, eager in zip(compiled(every, every.flip(0)), program(every, every.flip(0)), strict=True):
        assert same_bits(ours, eager)
    report = compiled.report()
    assert report.kernels and not report.externs and not report.fallbacks
