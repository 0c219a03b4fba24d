"""Plain values as JSON: numbers to the last bit, texts, and the containers of them, told apart by type."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["NotPlain", "packed", "unpacked"]

_MAX_DEPTH = 40


class NotPlain(Exception):
    """A value is none of those that are written down as they are."""


def packed(value: Any, other: Callable[[Any], Any] | None = None, depth: int = 0, whole: bool = True) -> Any:
    """A value as JSON.

    Args:
        other: gives the JSON (a dict) of what is no plain value.
        whole: lists and dicts are written with what they hold; else they are ``other``'s, as objects of their own.

    Raises:
        NotPlain: it is, or holds, something else, or holds itself.
    """
    cls = type(value)
    if value is None or cls is bool or cls is int:
        return value
    if cls is str:
        return {"s": value.encode("utf-8", "surrogatepass").hex()} if _odd(value) else value
    if depth > _MAX_DEPTH:
        raise NotPlain
    if cls is float:
        return {"f": value.hex() if value == value else f"nan{_bits(value)}"}
    if cls is complex:
        return {"c": [packed(value.real), packed(value.imag)]}
    if cls is bytes:
        return {"b": base64.b64encode(value).decode()}
    name = _NAMES.get(cls)
    if name is not None and (whole or cls is not list):
        return {name: [packed(item, other, depth + 1, whole) for item in value]}
    if cls is frozenset:
        return {"fs": sorted((packed(item, None, depth + 1) for item in value), key=repr)}
    if cls is dict and whole:
        return {"d": [[packed(k, other, depth + 1), packed(v, other, depth + 1)] for k, v in value.items()]}
    if cls in (slice, range):
        return {cls.__name__: [packed(x, other, depth + 1) for x in (value.start, value.stop, value.step)]}
    if value is Ellipsis or value is NotImplemented:
        return {"of": "Ellipsis" if value is Ellipsis else "NotImplemented"}
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return {"torch": str(value).removeprefix("torch.")}
    if cls is torch.device:
        return {"device": str(value)}
    if cls.__module__ == "numpy" and cls.__name__ in _NUMPY and isinstance(getattr(value, "nbytes", None), int):
        return {"np": [value.dtype.str, value.tobytes().hex()]}
    if other is not None:
        return other(value)
    raise NotPlain


#: Scalars of NumPy, by the names of their classes.
_NUMPY = frozenset(
    ("bool", "bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
     "float64", "complex64", "complex128")
)  # fmt: skip
_NAMES: dict[type, str] = {tuple: "t", list: "l", torch.Size: "size"}


def _odd(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _bits(value: float) -> str:
    import struct

    return struct.pack("<d", value).hex()


def unpacked(data: Any, other: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """The value of :func:`packed`'s JSON.

    Raises:
        NotPlain: it is not such JSON.
    """
    if data is None or type(data) in (bool, int, str):
        return data
    if not isinstance(data, dict) or len(data) != 1:
        raise NotPlain
    ((kind, content),) = data.items()
    if kind in _MADE:
        return _MADE[kind]([unpacked(item, other) for item in content])
    if kind == "d":
        return {unpacked(k, other): unpacked(v, other) for k, v in content}
    if kind in _READ:
        return _READ[kind](content)
    if other is not None:
        return other(data)
    raise NotPlain


def _float(text: str) -> float:
    import struct

    return struct.unpack("<d", bytes.fromhex(text[3:]))[0] if text.startswith("nan") else float.fromhex(text)  # type: ignore[no-any-return]


def _of_numpy(content: Any) -> Any:
    try:
        import numpy as np
    except ImportError:
        raise NotPlain from None

    kind, data = content
    dtype = np.dtype(kind)
    if dtype.type.__name__ not in _NUMPY:
        raise NotPlain
    return np.frombuffer(bytes.fromhex(data), dtype)[0]


def _of_torch(name: str) -> Any:
    value = getattr(torch, name, None)
    if not isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        raise NotPlain
    return value


_MADE: dict[str, Callable[[list[Any]], Any]] = {
    "t": tuple, "l": list, "size": torch.Size, "fs": frozenset, "slice": lambda x: slice(*x),
    "range": lambda x: range(*x), "c": lambda x: complex(*x),
}  # fmt: skip
_READ: dict[str, Callable[[Any], Any]] = {
    "f": _float,
    "s": lambda text: bytes.fromhex(text).decode("utf-8", "surrogatepass"),
    "b": base64.b64decode,
    "of": {"Ellipsis": Ellipsis, "NotImplemented": NotImplemented}.__getitem__,
    "torch": _of_torch,
    "device": torch.device,
    "np": _of_numpy,
}
