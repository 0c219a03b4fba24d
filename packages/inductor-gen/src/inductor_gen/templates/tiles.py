"""Which tiles are tried for a product of given sizes."""

from __future__ import annotations

import torch

from inductor_gen.templates.matmul import Tile

__all__ = ["tiles_for"]

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

    busy = [t for t in deep or fits if programs(t) <= 24 * _PROCESSORS] or (deep or fits)[:3]
    most = max((programs(t) for t in busy), default=0)
    wanted = min(most, _PROCESSORS) // 4
    chosen = [t for t in busy if programs(t) >= wanted] or busy[-1:] or [min(pool, key=lambda t: (t.m * t.n, t))]
    return rows + chosen[: 12 - len(rows)]
