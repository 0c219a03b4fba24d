"""Kernels for a GPU as machine code: in this process, and in the kernel cache.

A kernel is known by its key in the cache, which stands for its text, the compute capability and Triton's version, and
by its *entry*: the JSON text of its function's name, its threads per program and its bytes of shared memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from prims.disk.cache import KernelCache, open_cache
from prims.disk.folders import read_private
from prims.errors import InternalError
from prims.options import Options
from prims.records import record

__all__ = ["Cubin", "Loaded", "cache_of", "contents", "cubin_at", "find", "forget_loaded", "take_in"]


@record
class Loaded:
    """A kernel ready to launch: its function's handle, threads per program and bytes of shared memory."""

    function: int
    threads: int
    shared: int


@record
class Cubin:
    """Where the machine code of a loaded kernel is: in the cache's file, or here.

    Attributes:
        key: in the kernel cache.
        entry: what the cache says beside it.
        digest: the SHA-256 of the code.
    """

    key: str
    entry: str
    digest: str
    place: Path | None
    data: bytes | None


_LOADED: dict[str, Loaded] = {}  # by key and device
_AT: dict[int, Cubin] = {}  # by the function's handle


def cache_of(options: Options) -> KernelCache | None:
    """The cache of kernels for NVIDIA's GPUs."""
    if not options.cache:
        return None
    return open_cache(options.cache_dir, "cuda", options.cache_size_limit, ".cubin")


def find(key: str, cache: KernelCache | None, device: torch.device) -> Loaded | None:
    """A kernel that this process has loaded, or that the cache has; None where it is in neither."""
    loaded = _LOADED.get(_place(key, device))
    if loaded is None and cache is not None:
        loaded = _from_disk(cache, key, device)
    return loaded


def take_in(cubin: bytes, key: str, entry: str, cache: KernelCache | None, device: torch.device) -> Loaded:
    """Keep a compiled kernel, and load it.

    Raises:
        InternalError: the driver refused it.
    """
    place = None
    if cache is not None:
        with contextlib.suppress(OSError):  # a cache that cannot be written is no reason to fail
            place = cache.add(cubin, {key: entry})
    return _known(key, entry, cubin, place, device)


def load(cubin: bytes, entry: dict[str, Any], device: torch.device) -> Loaded:
    """The kernel of machine code."""
    from inductor_gen.runtime.cuda import load_module

    return Loaded(load_module(cubin, entry["name"], entry["shared"], device), entry["threads"], entry["shared"])


def cubin_at(function: int) -> Cubin | None:
    """The machine code of a function's handle."""
    return _AT.get(function)


def contents(cubin: Cubin) -> bytes | None:
    """The bytes of machine code; None where they are no longer in the cache."""
    data = cubin.data
    if data is None and cubin.place is not None:
        with contextlib.suppress(OSError):
            data = read_private(cubin.place)
    return data if data is not None and hashlib.sha256(data).hexdigest() == cubin.digest else None


def forget_loaded() -> None:
    """Forget the kernels loaded in this process, so that the disk is asked again (for tests)."""
    _LOADED.clear()


def _place(key: str, device: torch.device) -> str:
    return f"{key}:{device.index}"


def _known(key: str, entry: str, cubin: bytes, place: Path | None, device: torch.device) -> Loaded:
    read = json.loads(entry)
    sizes = all(type(read[name]) is int and 0 <= read[name] < 1 << 20 for name in ("shared", "threads"))
    if not sizes or not isinstance(read["name"], str) or not read["name"].isidentifier():
        raise ValueError("an entry of machine code names no function")
    loaded = _LOADED[_place(key, device)] = load(cubin, read, device)
    digest = hashlib.sha256(cubin).hexdigest()
    _AT[loaded.function] = Cubin(key, entry, digest, place, cubin if place is None else None)
    return loaded


def _from_disk(cache: KernelCache, key: str, device: torch.device) -> Loaded | None:
    place = cache.find(key)
    cubin = None if place is None else cache.contents(place[0])
    if place is None or cubin is None:
        return None
    try:
        return _known(key, place[1], cubin, place[0], device)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, InternalError):
        return None
