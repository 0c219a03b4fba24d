"""Counter-based random numbers: Philox 4x32-10.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

Layout. The key is the seed's low and high 32 bits. The counter is a 64-bit number in its two low words, the
two high words are 0. A result has its elements numbered row-major. Element i of a dtype of at most 32 bits uses
word ``i % 4`` of counter ``offset + i // 4``; of a 64-bit dtype the words ``2 * (i % 2)`` (low half) and
``2 * (i % 2) + 1`` (high half) of counter ``offset + i // 2``. So n elements use `counters(n, dtype)` counters,
and independent draws under one seed need offsets at least that far apart.

uniform keeps the top 24 (float32), 53 (float64), 11 (float16) or 8 (bfloat16) bits, so it never rounds up to 1.
normal is Box-Muller on pairs: with a, b the words (float32: 24 top bits; float64: 53 top bits of the halves of one
counter), ``r = sqrt(-2 log((a + 1) / 2**24))`` and ``t = 2 pi b / 2**24`` give ``r cos t``, then ``r sin t``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from prims.dtypes import ROWS
from prims.ops.check import FLOATS, INTS, array_spec, is_spec, require
from prims.ops.lazy import np
from prims.ops.row import Sample, define

__all__ = ["counters"]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF


def counters(numel: Any, dtype: torch.dtype) -> Any:
    """How many Philox counters a random primitive of `numel` elements uses."""
    per = 2 if dtype.itemsize == 8 else 4
    return (numel + per - 1) // per


def _philox(counter: Any, key: tuple[Any, Any]) -> list[Any]:
    """The four 32-bit words of each counter, in 64-bit integers (torch's int64 or NumPy's uint64)."""
    words = [counter & _LOW, (counter >> 32) & _LOW, counter * 0, counter * 0]
    low, high = key
    for _ in range(10):
        # The product of two 32-bit numbers: its 64 bits are right even where int64 wraps.
        first, second = words[0] * _MULTIPLIERS[0], words[2] * _MULTIPLIERS[1]
        words = [
            ((second >> 32) & _LOW) ^ words[1] ^ low,
            second & _LOW,
            ((first >> 32) & _LOW) ^ words[3] ^ high,
            first & _LOW,
        ]
        low, high = (low + _WEYL[0]) & _LOW, (high + _WEYL[1]) & _LOW
    return words


def _torch_words(numel: int, seed: torch.Tensor, offset: int, dtype: torch.dtype) -> torch.Tensor:
    """Words as int64, one row of four per counter."""
    count = counters(numel, dtype)
    counter = torch.arange(count, dtype=torch.int64, device=seed.device) + offset
    key = (seed & _LOW, (seed >> 32) & _LOW)
    return torch.stack(_philox(counter, key), dim=1)


def _numpy_words(numel: int, seed: Any, offset: int, dtype: torch.dtype) -> Any:
    """Words as uint64, one row of four per counter."""
    count = counters(numel, dtype)
    counter = (np.arange(count, dtype=np.int64) + offset).astype(np.uint64)
    bits = np.asarray(seed, np.int64).astype(np.uint64)
    return np.stack(_philox(counter, (bits & np.uint64(_LOW), bits >> np.uint64(32))), axis=1)


def _torch_bits(shape: Any, seed: Any, offset: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
    numel = math.prod(shape)
    words = _torch_words(numel, seed, offset, dtype)
    if dtype.itemsize == 8:
        flat = (words[:, 0::2] | (words[:, 1::2] << 32)).reshape(-1)
    else:
        flat = words.reshape(-1)
    return flat[:numel].reshape(shape).to(dtype)


def _numpy_bits(shape: Any, seed: Any, offset: Any, dtype: torch.dtype, device: Any) -> Any:
    numel = math.prod(shape)
    words = _numpy_words(numel, seed, offset, dtype)
    if dtype.itemsize == 8:
        flat = (words[:, 0::2] | (words[:, 1::2] << np.uint64(32))).reshape(-1)
    else:
        flat = words.reshape(-1)
    return flat[:numel].reshape(shape).astype(getattr(np, str(dtype).removeprefix("torch.")))


def _torch_uniform(shape: Any, seed: Any, offset: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
    keep = ROWS[dtype].bits
    numel = math.prod(shape)
    words = _torch_words(numel, seed, offset, dtype)
    if dtype == torch.float64:
        flat = ((words[:, 1::2] << 21) | (words[:, 0::2] >> 11)).reshape(-1)
    else:
        flat = words.reshape(-1) >> (32 - keep)
    return (flat[:numel].reshape(shape).to(torch.float64) * 2.0**-keep).to(dtype)


def _numpy_uniform(shape: Any, seed: Any, offset: Any, dtype: torch.dtype, device: Any) -> Any:
    keep = ROWS[dtype].bits
    numel = math.prod(shape)
    words = _numpy_words(numel, seed, offset, dtype)
    if dtype == torch.float64:
        flat = ((words[:, 1::2] << np.uint64(21)) | (words[:, 0::2] >> np.uint64(11))).reshape(-1)
    else:
        flat = words.reshape(-1) >> np.uint64(32 - keep)
    values = flat[:numel].reshape(shape).astype(np.float64) * 2.0**-keep
    return values if dtype == torch.float64 else values.astype(np.float32)


def _torch_normal(shape: Any, seed: Any, offset: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
    numel = math.prod(shape)
    words = _torch_words(numel, seed, offset, dtype)
    if dtype == torch.float64:
        pairs, bits = (words[:, 1::2] << 21) | (words[:, 0::2] >> 11), 53
    else:
        pairs, bits = words.reshape(-1, 2) >> 8, 24
    radius = torch.sqrt(-2 * torch.log((pairs[:, 0] + 1).to(torch.float64) * 2.0**-bits))
    angle = pairs[:, 1].to(torch.float64) * 2.0**-bits * (2 * math.pi)
    flat = torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1).reshape(-1)
    values = flat[:numel].reshape(shape)
    return values if dtype == torch.float64 else values.to(torch.float32).to(dtype)


def _numpy_normal(shape: Any, seed: Any, offset: Any, dtype: torch.dtype, device: Any) -> Any:
    numel = math.prod(shape)
    words = _numpy_words(numel, seed, offset, dtype)
    if dtype == torch.float64:
        pairs, bits = (words[:, 1::2] << np.uint64(21)) | (words[:, 0::2] >> np.uint64(11)), 53
    else:
        pairs, bits = words.reshape(-1, 2) >> np.uint64(8), 24
    radius = np.sqrt(-2 * np.log((pairs[:, 0] + np.uint64(1)).astype(np.float64) * 2.0**-bits))
    angle = pairs[:, 1].astype(np.float64) * 2.0**-bits * (2 * np.pi)
    flat = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)
    values = flat[:numel].reshape(shape)
    return values if dtype == torch.float64 else values.astype(np.float32)


def _random_meta(
    name: str, dtypes: Sequence[torch.dtype], shape: Any, seed: Any, offset: Any, dtype: Any, device: Any
) -> Any:
    up = name.upper()
    scalar = is_spec(seed) and seed.dtype == torch.int64 and seed.ndim == 0
    require(scalar, f"{up}-C1", "the seed is a 0-dim int64 tensor")
    require(dtype in dtypes, f"{up}-C2", f"{name} is not defined for {dtype}")
    for size in shape:
        require(size >= 0, f"{up}-C3", f"size {size} is negative")
    require(offset >= 0, f"{up}-C4", f"offset {offset} is negative")
    return array_spec(shape, dtype, device)


def _random_samples(dtype: torch.dtype) -> Iterator[Sample]:
    for seed in (0, 1, 123456789012345, -1):
        yield Sample(((3, 5), torch.tensor(seed), 0, dtype, "cpu"), f"seed {seed}")
    yield Sample(((1000,), torch.tensor(7), 2**32 - 100, dtype, "cpu"), "the counter's low word wraps")
    yield Sample(((), torch.tensor(7), 1, dtype, "cpu"), "zero-dim")
    yield Sample(((0, 2), torch.tensor(7), 1, dtype, "cpu"), "empty")


for _name, _doc, _dtypes, _torch, _numpy in (
    ("random_bits", "uniform random bits", INTS, _torch_bits, _numpy_bits),
    ("random_uniform", "uniform in [0, 1)", FLOATS, _torch_uniform, _numpy_uniform),
    ("random_normal", "standard normal", FLOATS, _torch_normal, _numpy_normal),
):
    define(
        _name, "shape: Ss, seed: T, offset: S, dtype: dtype, device: device", "random", dtype_rule="attr",
        doc=f"{_doc}, a function of seed and offset alone (Philox 4x32-10; see prims.ops.rng for the layout)",
        meta=functools.partial(_random_meta, _name, _dtypes), torch_ref=_torch, numpy_ref=_numpy,
        samples=_random_samples, dtypes=_dtypes,
        constraints={
            f"{_name.upper()}-C1": "the seed is a 0-dim int64 tensor",
            f"{_name.upper()}-C2": "the dtype is one the primitive is defined for",
            f"{_name.upper()}-C3": "sizes are not negative",
            f"{_name.upper()}-C4": "the offset is not negative",
        },
    )  # fmt: skip
