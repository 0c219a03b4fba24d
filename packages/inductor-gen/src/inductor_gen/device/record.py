"""The record of a device: the figures that decisions about kernels are formulas of.

A kernel's blocks, whether two kernels become one, whether a template replaces a library's call: each depends on how
many programs a device runs at once, how fast its memory is and what a launch costs. Those figures are asked of the
device (:func:`device_of`), or stand in data sheets (:func:`known`) for devices that code is generated for without
having them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from inductor_gen.device.backends import backend
from prims.errors import UserError
from prims.records import record
from prims.spec.tensorspec import as_device

__all__ = ["Asked", "Device", "device_of", "known"]


@record
class Device:
    """What a device can do.

    Attributes:
        kind: ``"cpu"`` or ``"cuda"``.
        name: as its maker calls it.
        multiprocessors: units that run programs on their own: a GPU's multiprocessors, the cores that the process may
            use.
        threads: threads resident on one of them.
        warp: threads that run in step.
        shared_memory: bytes that a program may take of a multiprocessor's own memory (of a core: the last cache that
            it has for itself).
        registers: 32-bit registers of a multiprocessor; 0 for a CPU.
        l2_bytes: bytes of the last cache before main memory that multiprocessors share.
        bandwidth: bytes of main memory per second.
        flops16: dense 16-bit products and sums per second.
        flops32: the same in float32, on the ordinary units.
        launch_cost: seconds that the start of a kernel costs the device, with the gap before it.
        begin_cost: seconds in which one multiprocessor begins a program of four warps.
        capability: the compute capability, None for a CPU.
        vector_bytes: the widest load of one thread.
        alignment: bytes; buffers begin at a multiple of them, as what the device's allocator gives does.
        first_cache: of a core's first cache for data: after how many bytes memory takes the same places in it again,
            and how many lines have room in one place.
    """

    kind: str
    name: str
    multiprocessors: int
    threads: int
    warp: int
    shared_memory: int
    registers: int
    l2_bytes: int
    bandwidth: float
    flops16: float
    flops32: float
    launch_cost: float
    begin_cost: float
    capability: tuple[int, int] | None
    vector_bytes: int
    alignment: int
    first_cache: tuple[int, int] = (4096, 8)

    @property
    def launch_bytes(self) -> float:
        """Bytes of main memory that could be moved while a kernel is being started."""
        return self.launch_cost * self.bandwidth

    def slots(self, threads: int) -> int:
        """Programs of that many threads that are resident at once."""
        return self.multiprocessors * max(self.threads // threads, 1)

    def __str__(self) -> str:
        version = "" if self.capability is None else f", compute capability {'.'.join(map(str, self.capability))}"
        return (
            f"{self.name} ({self.kind}{version}): {self.multiprocessors} multiprocessors of {self.threads} threads, "
            f"{self.shared_memory >> 10} KiB shared, {self.l2_bytes >> 20} MiB L2, {self.bandwidth / 1e9:.0f} GB/s, "
            f"{self.flops16 / 1e12:.1f} and {self.flops32 / 1e12:.1f} TFLOP/s in 16 and 32 bits"
        )


#: How stages ask for the record of a device that values live on.
Asked = Callable[[torch.device], Device]


def device_of(device: torch.device) -> Device:
    """The record of a device of this machine, asked once per process; ``cuda`` is the current one.

    Raises:
        Unsupported: it is of a kind that no kernels are generated for.
        UserError: it is not there.
    """
    return _asked(as_device(device))


@functools.cache
def _asked(device: torch.device) -> Device:
    return backend(device.type)["ask"](device)  # type: ignore[no-any-return]


def known(name: str) -> Device:
    """The record of a GPU by its product name, from its maker's publications.

    ==========  =====================================================================================================
    A100-80GB   NVIDIA A100 Tensor Core GPU Architecture (white paper), A100 data sheet (SXM)
    L4          NVIDIA Ada GPU Architecture (white paper), L4 data sheet (16-bit figure without sparsity: half of it)
    H100, H200  NVIDIA H100 Tensor Core GPU Architecture (white paper), H100 and H200 data sheets (SXM, dense)
    B200        NVIDIA Blackwell Architecture technical brief, HGX B200 data sheet (dense)
    ==========  =====================================================================================================

    Threads, registers and shared memory are those of the compute capability (CUDA C++ Programming Guide, technical
    specifications).

    Raises:
        UserError: the name is not one of them.
    """
    from inductor_gen.device.cuda import KNOWN

    if name not in KNOWN:
        raise UserError(f"nothing is known about a device {name!r}; known are {', '.join(KNOWN)}")
    return KNOWN[name]
