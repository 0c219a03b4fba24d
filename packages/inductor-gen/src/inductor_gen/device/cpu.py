"""The CPU: what the operating system says about it."""

from __future__ import annotations

import functools
import os
import platform
import re
from pathlib import Path

import torch

from inductor_gen.device.record import Device

__all__ = ["ask", "claims", "facts", "processor"]

#: Seconds to start and end a parallel loop.
LAUNCH = 5e-6

#: Bytes per second of main memory that one core moves, and all of a socket together. No unprivileged question gives
#: them; they are those of servers with eight or more channels of DDR4 and DDR5.
_PER_CORE, _TOGETHER = 12e9, 250e9

_HERTZ = 2.5e9  # where the processor's name does not say


_CLAIMED = """
_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices
"""


def claims(deterministic: bool = False) -> list[str]:
    """Names of the operators that are called as they are on the CPU alone."""
    return [f"aten.{name}.default" for name in _CLAIMED.split()]


def ask(device: torch.device) -> Device:
    """The record of this machine's CPU, with the cores that the process may use."""
    said = facts()
    flags = said.get("flags", said.get("Features", "")).split()
    vector = 64 if "avx512f" in flags else 32 if "avx2" in flags else 16
    name = said.get("model name", platform.machine())
    rate = re.search(r"([\d.]+) ?GHz", name)
    return processor(
        name, len(os.sched_getaffinity(0)), vector, *_caches(), hertz=float(rate.group(1)) * 1e9 if rate else _HERTZ,
        halves="avx512_bf16" in flags or "amx_bf16" in flags, first=_first_cache(),
    )  # fmt: skip


def processor(
    name: str, cores: int, vector: int, own: int, last: int, hertz: float = _HERTZ, halves: bool = False,
    first: tuple[int, int] = (4096, 8),
) -> Device:  # fmt: skip
    """The record of a CPU, this machine's or another.

    Args:
        vector: bytes of its widest vectors.
        own: bytes of the last cache that a core has for itself.
        last: bytes of the last cache of all.
        halves: does it multiply 16-bit numbers faster than float32?
        first: what :attr:`Device.first_cache` is.
    """
    flops = cores * hertz * (vector // 4) * 2 * 2  # two units, each a product and a sum
    return Device(
        "cpu", name, cores, 1, 1, own, 0, last, min(cores * _PER_CORE, _TOGETHER), flops * (1 + halves), flops,
        LAUNCH, 0.0, None, vector, 64, first,
    )  # fmt: skip


@functools.cache
def facts() -> dict[str, str]:
    """The first processor's lines of ``/proc/cpuinfo``."""
    try:
        text = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    return {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in text.splitlines())}


_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def _first_cache() -> tuple[int, int]:
    """Bytes of a way of a core's first cache for data, and its ways; those of most processors where the system does not
    say: addresses within a page find their place in it."""
    for place in _CACHES.glob("index*"):
        try:
            kind, level = ((place / part).read_text().strip() for part in ("type", "level"))
            if kind != "Instruction" and level == "1":
                ways, sets, line = (
                    int((place / part).read_text())
                    for part in ("ways_of_associativity", "number_of_sets", "coherency_line_size")
                )
                if min(ways, sets, line) > 0:
                    return sets * line, ways
        except (OSError, ValueError):
            continue
    return 4096, 8


def _caches() -> tuple[int, int]:
    """Bytes of a core's second cache, the last of its own, and of the last of all; those of a server where the system
    does not say."""
    found: dict[int, int] = {}
    for place in _CACHES.glob("index*"):
        try:
            kind, level, size = ((place / part).read_text().strip() for part in ("type", "level", "size"))
            if kind != "Instruction":
                found[int(level)] = int(size.rstrip("KM")) << (20 if size.endswith("M") else 10)
        except (OSError, ValueError):
            continue
    own = found.get(2, 1 << 20)
    return own, found[max(found)] if found else own
