"""Which tiles are tried for a product of given sizes."""

from __future__ import annotations

import torch

from inductor_gen.templates.matmul import Tile

__all__ = ["odd_tile", "shallow_tile", "tiles_for"]

_LASTING = Tile(128, 256, 64, 8, 3, 32, lasting=True)
_LASTING_SHARED = 180 << 10  # bytes of shared memory that it takes: operands, and a result on its way out

#: For 16-bit operands; float32 takes half the depth. Large tiles first: of equally fast ones the first stays.
_HALVES = (
    Tile(128, 256, 64, 8, 3),
    Tile(256, 128, 64, 8, 3),
    Tile(128, 128, 64, 8, 3),
    Tile(128, 128, 64, 4, 3),
    Tile(128, 128, 32, 8, 4),
    Tile(128, 64, 64, 4, 4),
    Tile(64, 128, 64, 4, 4),
    Tile(64, 256, 64, 4, 3),
    Tile(64, 64, 64, 4, 4),
    Tile(64, 32, 128, 4, 4),
    Tile(32, 64, 128, 4, 4),
    Tile(32, 32, 128, 4, 4),
    Tile(16, 128, 128, 4, 4),
    Tile(16, 64, 128, 4, 5),
    Tile(16, 32, 256, 4, 4),
    Tile(16, 16, 512, 4, 3),
)
#: Single rows, whose products are sums on the ordinary units: bound by reading the right factor once.
_ROWS = (
    Tile(1, 8, 512, 4, 3),
    Tile(1, 4, 1024, 4, 3),
    Tile(1, 16, 256, 4, 3),
    Tile(1, 32, 64, 4, 3),
)
#: For float32 without TF32, which runs on the ordinary arithmetic units.
_EXACT = (
    Tile(64, 64, 16, 4, 3),
    Tile(128, 64, 16, 8, 3),
    Tile(32, 32, 32, 4, 2),
    Tile(16, 16, 32, 2, 2),
)
_SHARED = 220 << 10  # bytes of shared memory that a program may take
_PROCESSORS = 132


def _power(n: int) -> int:
    return max(16, 1 << max(n - 1, 0).bit_length())


def tiles_for(m: int, n: int, k: int, batch: int, dtype: torch.dtype, precision: str) -> list[Tile]:
    """The tiles worth trying for ``batch`` products of ``[m, k]`` and ``[k, n]``, at most a dozen.

    Tiles larger than the result are left out, as are those so small that a large result would need very many programs,
    and so large that a result that could occupy the device would not.
    """
    if dtype == torch.float32:
        pool = (
            _EXACT
            if precision == "ieee"
            else tuple(Tile(t.m, t.n, max(t.k // 2, 16), t.warps, t.stages) for t in _HALVES)
        )
    else:
        pool = _HALVES
    rows = list(_ROWS) if m <= 2 else []
    fits = [t for t in pool if t.m <= _power(m) and t.n <= _power(n)]
    fits = [t for t in fits if t.stages * t.k * (t.m + t.n) * dtype.itemsize <= _SHARED]
    deep = [t for t in fits if t.k <= _power(k)]

    def programs(t: Tile) -> int:
        return batch * -(-m // t.m) * -(-n // t.n)

    lasting = [_LASTING] if dtype != torch.float32 and programs(_LASTING) >= 2 * _PROCESSORS else []

    busy = [t for t in deep or fits if programs(t) <= 24 * _PROCESSORS] or (deep or fits)[:3]
    most = max((programs(t) for t in busy), default=0)
    wanted = min(most, _PROCESSORS) // 4
    chosen = [t for t in busy if programs(t) >= wanted] or busy[-1:] or [min(pool, key=lambda t: (t.m * t.n, t))]
    return rows + lasting + chosen[: 12 - len(rows) - len(lasting)]


def odd_tile(device: torch.device | None) -> Tile:
    """What serves large products with rows that are no multiple of 16 bytes."""
    large = device is not None and device.type == "cuda" and _shared_memory(device) >= _LASTING_SHARED
    return _LASTING if large else Tile(128, 128, 64, 8, 3)


def _shared_memory(device: torch.device) -> int:
    """Bytes that a program may have on a device."""
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0))


def shallow_tile(m: int, n: int, k: int, dtype: torch.dtype) -> Tile | None:
    """The tile for a product so shallow that its result's way through memory, to a kernel that reads it, costs more
    than a template loses against the library; None for deeper ones.

    Within these bounds lie all such products of a ResNet-50 (32 images), which on an H200 gained from 10% to half of
    what they and the kernel took. Depth 768 and 25 million results (BERT, ViT) still gain 7%, which is not worth the
    time to compile a template, more than half a second.
    """
    if dtype not in (torch.float16, torch.bfloat16) or k % 64 or (n % 128 and n != 64) or m < 1024 or m * n < 1 << 19:
        return None
    if k > 1024 or (k > 512 and m * n > 1 << 22):
        return None
    return Tile(128, 64, 64, 4, 4) if n == 64 else Tile(128, 128, 64, 4, 3)
