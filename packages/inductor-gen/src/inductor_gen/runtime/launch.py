"""Running a list of kernels in one call from Python.

A launcher, itself a C function, walks a table ``count, (function, pointers, first size, slots...)...`` so that
consecutive kernels cost one foreign call, whatever their number.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from inductor_gen.runtime.compiler import Unit, load_kernels
from prims.options import Options

__all__ = ["LAUNCHER", "Launcher", "program"]

LAUNCHER = Unit(
    name="quintet_launch",
    text="""\
void KERNEL(const int64_t* program, void* const* slots, const int64_t* sizes) {
    int64_t count = *program++;
    while (count--) {
        void (*kernel)(void* const*, const int64_t*) = (void (*)(void* const*, const int64_t*))(intptr_t)program[0];
        const int64_t pointers = program[1], first = program[2];
        void* p[pointers > 0 ? pointers : 1];
        for (int64_t k = 0; k < pointers; k++) p[k] = slots[program[3 + k]];
        kernel(p, sizes + first);
        program += 3 + pointers;
    }
}
""",
)

Launcher = Callable[[Any, Any, Any], None]


def launcher(options: Options) -> Launcher:
    """The launcher as a Python callable of three ctypes arrays."""
    addresses, _ = load_kernels([LAUNCHER], options)
    return as_launcher(addresses[LAUNCHER.name])


def as_launcher(address: int) -> Launcher:
    """The launcher at an address."""
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    return kind(address)


def program(calls: Sequence[tuple[int, int, Sequence[int]]]) -> Any:
    """The table for ``(function address, first size, slots)`` of each kernel, as a ctypes array."""
    table = [len(calls)]
    for address, first, slots in calls:
        table += [address, len(slots), first, *slots]
    return (ctypes.c_int64 * len(table))(*table)


__all__ += ["as_launcher", "launcher"]
