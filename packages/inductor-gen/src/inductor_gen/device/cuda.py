"""NVIDIA GPUs: what the driver says about one, and what is published about those that are not there."""

from __future__ import annotations

import ctypes

import torch

from inductor_gen.device.record import Device
from prims.dtypes import REAL_FLOATS
from prims.errors import UserError

__all__ = ["ATOMIC", "FUSED_ATTENTION", "KNOWN", "LAUNCH", "ask", "claims"]

#: Seconds of the device that starting a kernel costs: an empty one after another, start, drain and gap together.
LAUNCH = 3.5e-6

#: Clocks in which a multiprocessor begins a program of four warps: 524,288 of them take an H200 320 us
#: (``benchmarks/device_constants.py begin``).
BEGIN = 146

_CLOCK, _MEMORY_CLOCK, _MEMORY_WIDTH = 13, 36, 37  # CUdevice_attribute: kHz, kHz, bits

#: Per compute capability: operations of dense 16-bit products (added up in float32 where that is not slower), and of
#: ordinary float32 ones, per multiprocessor and clock. From the architectures' white papers.
_PER_CLOCK = {
    (8, 0): (2048, 128), (8, 6): (1024, 256), (8, 7): (2048, 256), (8, 9): (1024, 256), (9, 0): (4096, 256),
    (10, 0): (8192, 256), (10, 3): (8192, 256), (12, 0): (1024, 256), (12, 1): (1024, 256),
}  # fmt: skip

_CLOCK_LIKE = 1.8e9  # hertz, where neither the driver nor a data sheet says


def _gpu(
    name: str, capability: tuple[int, int], multiprocessors: int, l2: int, bandwidth: float, flops16: float,
    flops32: float, threads: int = 2048, shared: int = 227 << 10, registers: int = 65536, warp: int = 32,
) -> Device:  # fmt: skip
    per_clock = _PER_CLOCK.get(capability)
    clock = flops16 / multiprocessors / per_clock[0] if per_clock else _CLOCK_LIKE
    return Device(
        "cuda", name, multiprocessors, threads, warp, shared, registers, l2, bandwidth, flops16, flops32, LAUNCH,
        BEGIN / clock, capability, 16, 256,
    )  # fmt: skip


_MIB = 1 << 20
KNOWN = {
    d.name: d
    for d in (
        _gpu("A100-80GB", (8, 0), 108, 40 * _MIB, 2.039e12, 312e12, 19.5e12, shared=163 << 10),
        _gpu("L4", (8, 9), 58, 48 * _MIB, 0.3e12, 121e12, 30.3e12, threads=1536, shared=99 << 10),
        _gpu("H100", (9, 0), 132, 50 * _MIB, 3.35e12, 989e12, 67e12),
        _gpu("H200", (9, 0), 132, 50 * _MIB, 4.8e12, 989e12, 67e12),
        _gpu("B200", (10, 0), 148, 126 * _MIB, 8.0e12, 2250e12, 75e12),
    )
}


#: How threads may combine what they write to one place in a single operation, and of which types. A maximum of floats
#: is one of their bits, which loses NaNs.
ATOMIC = {
    "add": frozenset({torch.int32, torch.int64, *REAL_FLOATS}),
    **dict.fromkeys(("max", "min"), frozenset({torch.int32, torch.int64})),
}


#: The fused attention kernels, forward and backward.
FUSED_ATTENTION = [
    f"aten._scaled_dot_product_{name}_attention{way}.default"
    for name in ("flash", "efficient", "cudnn") for way in ("", "_backward")
]  # fmt: skip

# Sums into places that indices give are atomic additions in generated kernels, in any order; eager sorts.
_IN_ORDER = """
index_put.default _unsafe_index_put.default index_add.default index_copy.default put.default scatter_add.default
embedding_dense_backward.default scatter.src scatter.reduce scatter_reduce.two
"""


def claims(deterministic: bool = False) -> list[str]:
    """Names of the operators that are called as they are on a GPU alone. Where everything is to be deterministic, by
    the option or by ``torch.use_deterministic_algorithms``, its own kernels add up what is scattered."""
    in_order = _IN_ORDER.split() if deterministic or torch.are_deterministic_algorithms_enabled() else ()
    return [*FUSED_ATTENTION, *(f"aten.{name}" for name in in_order)]


def ask(device: torch.device) -> Device:
    """The record of a GPU of this machine.

    Raises:
        UserError: there is none.
    """
    if not torch.cuda.is_available():
        raise UserError(f"{device} was asked for, but torch sees no usable GPU; known() has records of absent ones")
    p = torch.cuda.get_device_properties(device)
    capability = (p.major, p.minor)
    count = p.multi_processor_count
    clock = 1e3 * (getattr(p, "clock_rate", 0) or _attribute(device, _CLOCK))
    memory = 1e3 * (getattr(p, "memory_clock_rate", 0) or _attribute(device, _MEMORY_CLOCK))
    width = getattr(p, "memory_bus_width", 0) or _attribute(device, _MEMORY_WIDTH)
    like = _like(p.name, capability)
    share = count / like.multiprocessors
    halves, singles = (rate * count * clock for rate in _PER_CLOCK.get(capability, (0, 0)))
    return _gpu(
        p.name, capability, count, int(p.L2_cache_size) or like.l2_bytes,
        2 * memory * width / 8 or like.bandwidth * share,  # twice per clock
        halves or like.flops16 * share, singles or like.flops32 * share, p.max_threads_per_multi_processor,
        getattr(p, "shared_memory_per_block_optin", 0) or like.shared_memory,
        getattr(p, "regs_per_multiprocessor", like.registers), p.warp_size,
    )  # fmt: skip


def _attribute(gpu: torch.device, which: int) -> int:
    """An attribute of a device by the driver; 0 where it does not say."""
    try:
        lib = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    device, value = ctypes.c_int(), ctypes.c_int()
    if lib.cuDeviceGet(ctypes.byref(device), gpu.index):
        return 0
    return 0 if lib.cuDeviceGetAttribute(ctypes.byref(value), which, device) else value.value


def _like(name: str, capability: tuple[int, int]) -> Device:
    """The published device of that name, or one of the capability, or of the latest before it."""
    older = [d for d in KNOWN.values() if d.capability is not None and d.capability <= capability]
    return max(older or KNOWN.values(), key=lambda d: (d.name in name, d.capability or (0, 0)))
