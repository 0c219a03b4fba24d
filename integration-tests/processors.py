"""Records of CPUs other than this machine's, so that what is decided for them is compiled and run wherever tests run.

Decisions (which operations share a kernel, what is computed again, what waits for what) are formulas of a record:
another number of cores, or vectors half as wide, is another program.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from inductor_gen.device import record
from inductor_gen.device.cpu import processor
from inductor_gen.device.record import Device

__all__ = ["PROCESSORS", "SERVER", "pretended"]

_FIGURES = {
    "small": (2, 16, 128 << 10, 1 << 20),
    "one core, AVX2": (1, 32, 512 << 10, 32 << 20),
    "two cores, AVX2": (2, 32, 512 << 10, 32 << 20),
    "64 cores, AVX2": (64, 32, 512 << 10, 256 << 20),
    "one core, AVX-512": (1, 64, 256 << 10, 2 << 20),
    "two cores, AVX-512": (2, 64, 2 << 20, 105 << 20),
    "64 cores, AVX-512": (64, 64, 2 << 20, 256 << 20),
}

#: By name; cores, bytes of a vector, of a core's own cache and of the last one.
PROCESSORS = {name: processor(name, *figures) for name, figures in _FIGURES.items()}

#: The one that numbers of kernels are stated for.
SERVER = PROCESSORS["two cores, AVX-512"]


@contextmanager
def pretended(device: Device) -> Iterator[None]:
    """Have this process's graphs for the CPU compiled by a record."""
    asked = record._asked
    record._asked = lambda which: device if which.type == "cpu" else asked(which)  # type: ignore[assignment]
    try:
        yield
    finally:
        record._asked = asked
