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


OF_MASKS = {
    "numbers": lambda x: (x.to(torch.int32), x.float() * 2, x.sum(), x.sum(0), x.cumsum(0)),
    "logic": lambda x: (x & ~x.flip(0), x ^ x.flip(0), x == x.flip(0), x.logical_not(), x.any(), x.all()),
    "choices": lambda x: (torch.where(x, 1, 0), torch.arange(x.numel()).masked_fill(x, -1), x.float().masked_fill(x, 2.0)),
    "as indices": lambda x: (torch.tensor([5, 7])[x.int()], torch.tensor([5, 7]).gather(0, x.long())),
    "moved": lambda x: (x.flip(0).int(), torch.cat([x, x]).int(), x.roll(1).int(), x.clone().int(), x.repeat(2).int()),
    "extremes": lambda x: (x.int().amax(), x.max(), x.int().argmax(), torch.maximum(x, x.flip(0)).int()),
    "viewed again": lambda x: (x.view(torch.uint8) + 1, x.view(torch.int16) * 2),
}


@pytest.mark.parametrize("name", OF_MASKS)
def test_any_byte_but_zero_is_true(name):
    program = OF_MASKS[name]
    for mask in ([2, 0, 3, 1, 255, 0], [255, 0] * 40, [0, 0, 128, 0]):
        x = torch.tensor(mask, dtype=torch.uint8).view(torch.bool)
        compiled = compile_api.compile(program)
        for ours, eager in zip(compiled(x), program(x), strict=True):
            assert torch.equal(ours, eager), (mask, ours, eager)
        assert compiled.report().kernels


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_writes_to_the_bytes_of_bools_are_eagers(dtype):
    def change(x):
        bits = x.view(dtype)
        bits += 1
        return bits * 1, x

    compiled = compile_api.compile(change)
    x, y = (torch.tensor([1, 0, 0, 1, 1, 1, 0, 0], dtype=torch.bool) for _ in range(2))
    for ours, eager in zip(compiled(x), change(y), strict=True):
        assert same_bits(ours, eager)
    assert "bytes of bools" in str(compiled.report())


def test_writes_of_bools_into_bytes_leave_the_others():
    def change(x):
        x.view(torch.bool)[1] = True
        return x + 0

    compiled = compile_api.compile(change)
    x, y = (torch.tensor([2, 0, 3, 1], dtype=torch.uint8) for _ in range(2))
    assert torch.equal(compiled(x), change(y)) and torch.equal(x, y)
