"""The CUDA driver through ctypes: loading kernels, and what the launcher needs of it (``runtime/launch.py``).

The launcher gets the driver's functions by address, so that it needs no CUDA headers or libraries.
"""

from __future__ import annotations

import ctypes
import functools

import torch

from prims.errors import InternalError, Unsupported

__all__ = ["driver", "driver_words", "load_module"]


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


def driver_words(device: torch.device) -> list[int]:
    """What a launcher needs to start kernels on a GPU: three functions of the driver and the device's context."""
    lib = driver()
    with torch.cuda.device(device):
        context = _context()
    names = ("cuLaunchKernel", "cuCtxGetCurrent", "cuCtxSetCurrent")
    return [*(ctypes.cast(getattr(lib, name), ctypes.c_void_p).value or 0 for name in names), context]
