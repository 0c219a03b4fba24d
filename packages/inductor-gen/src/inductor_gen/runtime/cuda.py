"""The CUDA driver through ctypes: loading kernels, and what the launcher needs of it (``runtime/launch.py``).

The launcher gets the driver's functions by address, so that it needs no CUDA headers or libraries.
"""

from __future__ import annotations

import ctypes
import functools

import torch

from prims.errors import InternalError, Unsupported

__all__ = ["driver", "driver_words", "load_module"]

#: Words that one launch writes to a table: what fits into the parameters of any kernel, and into those of one of PTX
#: 8.1 on a driver of CUDA 12.1 (CUDA C++ Programming Guide, "Kernel parameters": 4,096 and 32,764 bytes).
_FEW, _MANY, _SINCE = 500, 4088, 12010


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


def driver_words(device: torch.device, table: int = 0) -> list[int]:
    """What a launcher needs to start kernels on a GPU: three functions of the driver and the device's context, and the
    function that writes tables (of at most ``table`` words) with the number of words that it takes."""
    lib = driver()
    with torch.cuda.device(device):
        context = _context()
    names = ("cuLaunchKernel", "cuCtxGetCurrent", "cuCtxSetCurrent")
    functions = [ctypes.cast(getattr(lib, name), ctypes.c_void_p).value or 0 for name in names]
    return [*functions, context, *(_table_writer(device, table > _FEW) if table else (0, 0))]


@functools.cache
def _table_writer(device: torch.device, many: bool) -> tuple[int, int]:
    """The kernel that writes its parameters, but for the last two, to the place that the one before the last names; the
    last is their number. Triton passes no arrays."""
    version = ctypes.c_int()
    driver().cuDriverGetVersion(ctypes.byref(version))
    room = _MANY if many and version.value >= _SINCE else _FEW
    text = f"""
.version {"8.1" if room > _FEW else "7.0"}
.target sm_80
.address_size 64
.visible .entry table(.param .align 8 .b8 words[{8 * room}], .param .u64 place, .param .u32 count) {{
    .reg .pred %p;
    .reg .b32 %i<5>;
    .reg .b64 %d<7>;
    mov.u32 %i0, %ctaid.x;
    mov.u32 %i1, %ntid.x;
    mov.u32 %i2, %tid.x;
    mad.lo.u32 %i3, %i0, %i1, %i2;
    ld.param.u32 %i4, [count];
    setp.ge.u32 %p, %i3, %i4;
    @%p ret;
    mul.wide.u32 %d0, %i3, 8;
    mov.b64 %d1, words;
    add.s64 %d2, %d1, %d0;
    ld.param.u64 %d3, [%d2];
    ld.param.u64 %d4, [place];
    cvta.to.global.u64 %d5, %d4;
    add.s64 %d6, %d5, %d0;
    st.global.u64 [%d6], %d3;
    ret;
}}
"""
    return load_module(text.encode() + b"\0", "table", 0, device), room
