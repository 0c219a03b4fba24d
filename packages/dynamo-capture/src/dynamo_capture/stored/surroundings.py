"""What every capture rests on without a guard: torch as it is installed, which a program may have changed.

Most of a graph's calls are functions and methods of torch that are traced, not captured: what these call in turn was
not looked at. So the names of torch's modules and of the class of tensors are looked at as a whole. What is torch's own
is known by torch's version; what is somebody else's, or stands under another's name, is told apart.
"""

from __future__ import annotations

import hashlib
import os
import sys
import types
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional

from dynamo_capture.rules import is_library_class, is_library_file, is_library_name
from dynamo_capture.stored.facts import C_KINDS, fact_of, instance_fact
from prims.artefact import NotPortable

__all__ = ["hash_probe", "hashes_differ", "of_torch", "settings"]

_OWNERS: dict[str, Mapping[str, Any]] = {
    "torch": vars(torch), "torch.nn.functional": vars(torch.nn.functional), "torch.functional": vars(torch.functional),
    "torch.Tensor": vars(torch.Tensor), "torch._C.TensorBase": vars(torch._C.TensorBase),
    **{f"torch.{name}": vars(getattr(torch, name)) for name in ("linalg", "fft", "special", "_tensor")},
    "torch._C._nn": vars(torch._C._nn),
}  # fmt: skip
#: Classes, whose every name counts.
_CLASSES = ("torch.Tensor", "torch._C.TensorBase")
_seen: tuple[tuple[tuple[int, ...], ...], list[Any], str] | None = None


def of_torch() -> str:
    """A digest of what is not torch's own, or not in its place, among torch's functions and methods.

    Raises:
        NotPortable: something is there of which nothing is known that holds in another process.
    """
    global _seen
    now = tuple(tuple(map(id, names.values())) for names in _OWNERS.values())
    known = _seen
    if known is None or known[0] != now:
        alive = [list(names.values()) for names in _OWNERS.values()]  # so that no identity is given away
        said = [
            [place, name, note]
            for place, names in _OWNERS.items()
            for name, obj in list(names.items())
            if (note := _strange(place, name, obj)) is not None
        ]
        known = _seen = (now, alive, hashlib.sha256(repr(sorted(said, key=repr)).encode()).hexdigest())
    return known[2]


def _strange(place: str, name: str, obj: Any) -> Any:
    """What is said of an object under a name of torch's; None where it is torch's own and in its place."""
    cls = type(obj)
    if isinstance(obj, C_KINDS) and obj.__name__ == name:
        return None
    if place not in _CLASSES and (not callable(obj) or name.startswith("__")):
        return None  # what is read of a module is noted where it is read; here it is about what functions call
    if cls is types.FunctionType and obj.__name__ == name and is_library_file(obj.__code__.co_filename):
        return None
    if isinstance(obj, C_KINDS):
        return ["named", obj.__name__]
    if isinstance(obj, types.ModuleType):
        return None if is_library_name(obj.__name__) and not place.endswith(("Tensor", "TensorBase")) else obj.__name__
    if isinstance(obj, type) and is_library_class(obj):
        own = obj.__name__ == name or name == "Storage"  # which torch sets with the default dtype
        return None if own else ["named", obj.__module__, obj.__qualname__]
    try:
        return fact_of(obj, deep=True)
    except NotPortable:
        if cls.__module__ == "typing_extensions":
            return [*instance_fact(obj), repr(obj)]
        if is_library_class(cls) and not cls.__module__.startswith("unittest"):
            return instance_fact(obj)
        raise NotPortable(f"{place}.{name} is {obj!r:.80}, of which nothing is known that holds elsewhere") from None


def settings() -> tuple[Any, ...]:
    """What compilers ask of torch's settings, by which they choose among implementations of an operator."""
    c: Any = torch._C
    return (
        c._get_flash_sdp_enabled(), c._get_mem_efficient_sdp_enabled(), c._get_math_sdp_enabled(),
        c._get_cudnn_sdp_enabled(), c._get_mkldnn_enabled(), c._get_cudnn_enabled(), c._get_cudnn_deterministic(),
        *(_answer(c._get_fp32_precision_getter, *of) for of in _PRECISIONS), os.environ.get("TRITON_INTERPRET"),
    )  # fmt: skip


_PRECISIONS = (("generic", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("mkldnn", "matmul"), ("mkldnn", "conv"))


def _answer(ask: Any, *of: str) -> str | None:
    """What torch says; None where it refuses to, both of its interfaces to a setting having been used."""
    try:
        return str(ask(*of))
    except RuntimeError:
        return None


def hashes_differ() -> bool:
    """Whether Python chooses anew in each process how texts hash."""
    return bool(sys.flags.hash_randomization) and os.environ.get("PYTHONHASHSEED", "random") == "random"


def hash_probe() -> int:
    """Another number in each process in which texts hash, and sets of them are ordered, in another way."""
    return hash("how texts hash")
