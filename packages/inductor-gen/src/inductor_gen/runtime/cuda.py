"""The CUDA driver through ctypes, and a launcher that starts many kernels in one call from Python.

The launcher is a C function compiled by the system compiler and kept in the kernel cache like any kernel. It gets a
table of kernels, an array of pointers, an array of sizes and the stream; addresses of driver functions stand in the
table, so that it needs no CUDA headers or libraries.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor_gen.runtime.compiler import Unit, load_kernels
from prims.errors import InternalError, Unsupported
from prims.options import Options

__all__ = ["CUDA_LAUNCHER", "UNALIGNED", "cuda_launcher", "cuda_program", "load_module"]

UNALIGNED = -2

CUDA_LAUNCHER = Unit(
    name="quintet_cuda_launch",
    text="""\
int64_t KERNEL(const int64_t* program, void* const* slots, const int64_t* sizes, void* stream) {
    int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**) =
        (void*)(intptr_t)program[0];
    int (*current)(void**) = (void*)(intptr_t)program[1];
    int (*enter)(void*) = (void*)(intptr_t)program[2];
    void* context = 0;
    current(&context);
    if (!context) enter((void*)(intptr_t)program[3]);
    const int64_t used = program[4];
    int64_t count = program[5];
    for (int64_t k = 0; k < used; k++) if ((intptr_t)slots[k] & 15) return -2;
    program += 6;
    while (count--) {
        /* function, threads, shared bytes, pointers, sizes, first size, slots...; the grid follows the sizes */
        const int64_t pointers = program[3], numbers = program[4];
        const int64_t* n = sizes + program[5];
        void* nothing = 0;
        void* p[pointers > 0 ? pointers : 1];
        void* args[pointers + numbers + 2];
        for (int64_t k = 0; k < pointers; k++) { p[k] = slots[program[6 + k]]; args[k] = &p[k]; }
        for (int64_t k = 0; k < numbers; k++) args[pointers + k] = (void*)(n + k);
        args[pointers + numbers] = args[pointers + numbers + 1] = &nothing;
        if (n[numbers] > 0 && n[numbers + 1] > 0) {
            const int code = launch((void*)(intptr_t)program[0], (unsigned)n[numbers], (unsigned)n[numbers + 1], 1,
                                    (unsigned)program[1], 1, 1, (unsigned)program[2], stream, args, 0);
            if (code) return code;
        }
        program += 6 + pointers;
    }
    return 0;
}
""",
)

Launcher = Callable[[Any, Any, Any, Any], int]


@functools.lru_cache(maxsize=1)
def driver() -> ctypes.CDLL:
    """The CUDA driver library.

    Raises:
        Unsupported: there is none.
    """
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Unsupported(f"no CUDA driver library: {error}") from None


def _check(code: int, what: str) -> None:
    if code:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(code, ctypes.byref(text))
        raise InternalError(f"CUDA driver: {what} failed with {code} ({(text.value or b'').decode()})")


def load_module(cubin: bytes, name: str, shared: int, device: torch.device) -> int:
    """The handle of a kernel's function on a device.

    Raises:
        InternalError: the driver refused it.
    """
    lib = driver()
    with torch.cuda.device(device):
        context = _context()
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        assert context
        _check(lib.cuModuleLoadData(ctypes.byref(module), cubin), f"loading {name}")
        _check(lib.cuModuleGetFunction(ctypes.byref(function), module, name.encode()), f"finding {name}")
        if shared > 48 << 10:
            dynamic_shared_size = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _check(lib.cuFuncSetAttribute(function, dynamic_shared_size, shared), f"shared memory of {name}")
    return function.value or 0


def _context() -> int:
    """The current context; the runtime's is made current where there is none in this thread."""
    lib = driver()
    context = ctypes.c_void_p()
    lib.cuCtxGetCurrent(ctypes.byref(context))
    if not context.value:
        torch.cuda.init()
        torch.cuda.current_stream().synchronize()
        torch.empty(1, device="cuda")
        lib.cuCtxGetCurrent(ctypes.byref(context))
    if not context.value:
        _check(lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), torch.cuda.current_device()), "the context")
        _check(lib.cuCtxSetCurrent(context), "the context")
    return context.value or 0


def cuda_launcher(options: Options) -> Launcher:
    """The launcher as a Python callable of three ctypes arrays and a stream; it returns 0, an error of the driver, or
    ``UNALIGNED`` before anything ran."""
    addresses, _ = load_kernels([CUDA_LAUNCHER], options)
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    return kind(addresses[CUDA_LAUNCHER.name])


def cuda_program(
    calls: Sequence[tuple[int, int, int, Sequence[int], int, int]], used: int, device: torch.device
) -> Any:
    """The table for ``(function, threads, shared, slots, sizes, first size)`` of each kernel, as a ctypes array."""
    lib = driver()
    with torch.cuda.device(device):
        context = _context()

    def address(name: str) -> int:
        return ctypes.cast(getattr(lib, name), ctypes.c_void_p).value or 0

    entries = [address(name) for name in ("cuLaunchKernel", "cuCtxGetCurrent", "cuCtxSetCurrent")]
    table = [*entries, context, used, len(calls)]
    for function, threads, shared, slots, sizes, first in calls:
        table += [function, threads, shared, len(slots), sizes, first, *slots]
    return (ctypes.c_int64 * len(table))(*table)
