"""Philox: published vectors, bit-equal references, layout, distribution."""

import math

import pytest
import torch

import prims.ops as ops
from prims.handlers import Array, NumpyHandler
from prims.ops.rng import _philox, counters

CPU = "cpu"


@pytest.mark.parametrize(
    ("counter", "key", "want"),
    [
        (0, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (-1, (0xFFFFFFFF, 0xFFFFFFFF), None),
    ],
)
def test_known_answers(counter, key, want):
    """Random123's kat_vectors for philox4x32-10 (whose second one has all counter words set)."""
    if want is None:
        words = [torch.tensor(0xFFFFFFFF)] * 4
        got = _from_words(words, key)
        want = (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    else:
        got = tuple(int(w) for w in _philox(torch.tensor(counter), key))
    assert got == want


def _from_words(words, key):
    """The same rounds from any four counter words, written out once more."""
    w = [int(x) for x in words]
    k0, k1 = key
    for _ in range(10):
        p, q = 0xD2511F53 * w[0], 0xCD9E8D57 * w[2]
        w = [(q >> 32) ^ w[1] ^ k0, q & 0xFFFFFFFF, (p >> 32) ^ w[3] ^ k1, p & 0xFFFFFFFF]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return tuple(w)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**62 + 12345])
@pytest.mark.parametrize("offset", [0, 5, 2**32 - 2, 2**40])
def test_layout_word_by_word(seed, offset):
    """Element i is word i % 4 of counter offset + i // 4."""
    got = ops.random_bits((11,), torch.tensor(seed), offset, torch.int32, CPU)
    unsigned = seed % 2**64
    key = (unsigned & 0xFFFFFFFF, unsigned >> 32)
    for i, value in enumerate(got.tolist()):
        counter = offset + i // 4
        words = _from_words((counter & 0xFFFFFFFF, counter >> 32, 0, 0), key)
        assert value % 2**32 == words[i % 4]


@pytest.mark.parametrize("name", ["random_bits", "random_uniform", "random_normal"])
def test_references_are_bit_equal(name):
    op = ops.lookup(name)
    handler = NumpyHandler()
    for dtype in op.dtypes:
        for shape in ((1000,), (3, 7), (), (0,)):
            seed = torch.tensor(99)
            want = op(shape, seed, 3, dtype, CPU)
            got = handler.prim(op, shape, Array.from_torch(seed), 3, dtype, CPU).to_torch()
            if name == "random_normal" and dtype == torch.float64:
                torch.testing.assert_close(got, want, rtol=1e-14, atol=1e-15)
            else:
                assert torch.equal(got, want), (dtype, shape)


def test_draws_far_enough_apart_are_a_partition():
    """Two draws at offsets `counters` apart are one long draw."""
    seed = torch.tensor(5)
    for dtype in (torch.float32, torch.float64):
        step = counters(8, dtype)
        whole = ops.random_uniform((16,), seed, 0, dtype, CPU)
        parts = [ops.random_uniform((8,), seed, offset, dtype, CPU) for offset in (0, step)]
        assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_distribution(dtype):
    n = 200_000
    uniform = ops.random_uniform((n,), torch.tensor(3), 0, dtype, CPU)
    assert uniform.min() >= 0 and uniform.max() < 1
    spacing = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}.get(dtype, 0.0)
    wide = uniform.double()
    assert abs(wide.mean() - (0.5 - spacing / 2)) < 5 / math.sqrt(12 * n)
    assert abs(wide.var() - 1 / 12) < 0.002
    normal = ops.random_normal((n,), torch.tensor(4), 0, dtype, CPU).double()
    assert abs(normal.mean()) < 5 / math.sqrt(n)
    assert abs(normal.var() - 1) < 0.02
    assert abs((normal.abs() < 1).double().mean() - 0.6827) < 0.006
    pairs = normal.reshape(-1, 2)
    assert abs((pairs[:, 0] * pairs[:, 1]).mean()) < 5 / math.sqrt(n / 2)
