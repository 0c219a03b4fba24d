"""Which tiles are tried for a product of given sizes."""

from __future__ import annotations

import torch

from inductor_gen.device.record import Device
from inductor_gen.loops.cost import LIBRARY, TEMPLATE, product_seconds
from inductor_gen.templates.matmul import Tile
from prims.dtypes import HALVES

__all__ = ["fixed_tile", "odd_tile", "shallow_tile", "spared", "tiles_for"]

_LASTING = Tile(128, 256, 64, 8, 3, 32, lasting=True)

#: For 16-bit operands; float32 takes half the depth. Large tiles first: of equally fast ones the first stays.
_FOR_HALVES = (
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

def _power(n: int) -> int:
    return max(16, 1 << max(n - 1, 0).bit_length())


def _fits(tile: Tile, itemsize: int, device: Device) -> bool:
    """Does the device have the shared memory that a tile takes? That of its operands; where the tiles last, also half
    of a result, which is on its way out while the next operands arrive; and some for what the programs agree by."""
    out = tile.m * tile.n * itemsize // 2 if tile.lasting else 0
    operands = tile.stages * tile.k * (tile.m + tile.n) * itemsize
    return operands + out + (1 << 10) <= device.shared_memory


def tiles_for(
    m: int, n: int, k: int, batch: int, dtype: torch.dtype, precision: str, device: Device
) -> list[Tile]:  # fmt: skip
    """The tiles worth trying for ``batch`` products of ``[m, k]`` and ``[k, n]`` on a device, at most a dozen.

    Tiles larger than the result are left out, as are those so small that a large result would need very many programs,
    and so large that a result that could occupy the device would not.
    """
    if dtype == torch.float32:
        pool = (
            _EXACT
            if precision == "ieee"
            else tuple(Tile(t.m, t.n, max(t.k // 2, 16), t.warps, t.stages) for t in _FOR_HALVES)
        )
    else:
        pool = _FOR_HALVES
    rows = list(_ROWS) if m <= 2 else []
    fits = [t for t in pool if t.m <= _power(m) and t.n <= _power(n)]
    fits = [t for t in fits if _fits(t, dtype.itemsize, device)]
    deep = [t for t in fits if t.k <= _power(k)]

    def programs(t: Tile) -> int:
        return batch * -(-m // t.m) * -(-n // t.n)

    processors = device.multiprocessors
    halves = dtype != torch.float32 and _fits(_LASTING, dtype.itemsize, device)
    lasting = [_LASTING] if halves and programs(_LASTING) >= 2 * processors else []

    busy = [t for t in deep or fits if programs(t) <= 24 * processors] or (deep or fits)[:3]
    most = max((programs(t) for t in busy), default=0)
    wanted = min(most, processors) // 4
    chosen = [t for t in busy if programs(t) >= wanted] or busy[-1:] or [min(pool, key=lambda t: (t.m * t.n, t))]
    return rows + lasting + chosen[: 12 - len(rows) - len(lasting)]


def fixed_tile(n: int, k: int, dtype: torch.dtype, precision: str, device: Device) -> Tile:
    """The tile of all products with a right factor of ``[k, n]``, however many rows the left one has and products there
    are: the order in which a result is added up hangs on it. For few rows and for many there are faster ones."""
    if dtype == torch.float32 and precision == "ieee":
        ways: tuple[Tile, ...] = (Tile(64, 64, 16, 4, 3), Tile(32, 32, 16, 4, 2), Tile(16, 16, 16, 2, 2))
    else:
        deep = 32 if dtype == torch.float32 else 64
        ways = (Tile(64, 128, deep, 4, 4), Tile(64, 64, deep, 4, 4), Tile(32, 32, deep, 4, 4), Tile(16, 16, 16, 2, 2))
    fits = (t for t in ways if t.n <= _power(n) and t.k <= _power(k) and _fits(t, dtype.itemsize, device))
    return next(fits, ways[-1])


def odd_tile(device: Device) -> Tile:
    """What serves large products with rows that are no multiple of 16 bytes."""
    ways = (_LASTING, Tile(128, 128, 64, 8, 3), Tile(128, 128, 32, 8, 3))
    return next((t for t in ways if _fits(t, 2, device)), ways[-1])


def shallow_tile(m: int, n: int, k: int, dtype: torch.dtype, device: Device) -> Tile | None:
    """The tile for a product so shallow that its result's way through memory, to a kernel that reads it, costs more
    than a template loses against the library.

    None for others: deeper ones, and those of so few rows or tiles that the library computes each in several parts.
    """
    if dtype not in HALVES or k % 64 or (n % 128 and n != 64) or m < 1024:
        return None
    tile = Tile(128, 64, 64, 4, 4) if n == 64 else Tile(128, 128, 64, 4, 3)
    if k > 16 * tile.k or _tiles(m, n, tile) < device.multiprocessors // 5 or not _fits(tile, 2, device):
        return None
    return tile if spared(m, n, k, tile, device) > 0 else None


def _tiles(m: int, n: int, tile: Tile) -> int:
    return -(-m // tile.m) * -(-n // tile.n)


def spared(m: int, n: int, k: int, tile: Tile, device: Device) -> float:
    """Seconds that a template of a 16-bit product with the kernel that reads it spares, against the library's product
    and that kernel.

    The result is not written and read, and one kernel less is started. The product itself takes longer: turns of the
    multiprocessors, each a tile, at the pace of a template instead of the library's. On an H200 that comes to nothing
    at a depth of 700 for results of 25 million, of 1,050 for 3 million. Within it lie the products of a ResNet-50 (32
    images), which gained from 10% to half of what they and the kernel took; [8192, 768] @ [768, 3072], outside of it,
    gained 7%.
    """
    work = product_seconds(m, n, k, (tile.m, tile.n), device)
    return 2 * 2 * m * n / device.bandwidth + device.launch_cost - work * (1 / TEMPLATE - 1 / LIBRARY)
