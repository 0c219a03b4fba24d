"""Values of generated code as JSON, by a closed list of kinds: what an artefact may hold beside text and bytes.

Plain JSON values stand for themselves; everything else is ``{"kind": value}``. Nothing that a file names is imported.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import torch

from prims.artefact import NotPortable
from prims.errors import StoredGraphError

__all__ = ["decoded", "encoded", "tensor_decoded", "tensor_encoded"]

_MAX_DEPTH = 64


def encoded(value: Any) -> Any:
    """A value as JSON.

    Raises:
        NotPortable: it is of no kind that can be stored.
    """
    if value is None or type(value) in (bool, str, int):
        return value
    if type(value) is float:
        return {"float": value.hex()}
    if type(value) is complex:
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if type(value) in (tuple, torch.Size):
        return {"tuple": [encoded(item) for item in value]}
    if type(value) is list:
        return [encoded(item) for item in value]
    if type(value) is dict:
        return {"dict": [[encoded(k), encoded(v)] for k, v in value.items()]}
    if type(value) in (set, frozenset):
        return {type(value).__name__: sorted((encoded(item) for item in value), key=repr)}
    if isinstance(value, slice):
        return {"slice": [encoded(value.start), encoded(value.stop), encoded(value.step)]}
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, torch._ops.OpOverload):
        from prims.ir.names import storable_name

        return {"target": storable_name(value)}
    if value is Ellipsis:
        return {"ellipsis": None}
    raise NotPortable(f"a {type(value).__module__}.{type(value).__qualname__} in generated code cannot be stored")


def decoded(data: Any, depth: int = 0) -> Any:
    """The value of :func:`encoded`'s JSON.

    Raises:
        StoredGraphError: it is not such JSON.
    """
    if data is None or type(data) in (bool, str, int):
        return data
    if depth > _MAX_DEPTH:
        raise StoredGraphError("ART-C5", f"a value is nested more than {_MAX_DEPTH} deep")
    if isinstance(data, list):
        return [decoded(item, depth + 1) for item in data]
    if not isinstance(data, dict) or len(data) != 1:
        raise StoredGraphError("ART-C5", f"a value is {str(data)[:80]!r}")
    ((kind, content),) = data.items()
    if kind == "float":
        return float.fromhex(content)
    if kind == "complex":
        return complex(float.fromhex(content[0]), float.fromhex(content[1]))
    if kind in _CONTAINERS:
        return _CONTAINERS[kind](decoded(item, depth + 1) for item in content)
    if kind == "dict":
        return {decoded(k, depth + 1): decoded(v, depth + 1) for k, v in content}
    return _named(kind, content)


_CONTAINERS: dict[str, Any] = {
    "tuple": tuple, "set": set, "frozenset": frozenset, "slice": lambda items: slice(*items),
}  # fmt: skip


def _named(kind: str, content: Any) -> Any:
    from prims.ir.stored import callable_value, device_of, torch_value

    if kind == "torch":
        return torch_value(content)
    if kind == "device":
        return device_of(content)
    if kind == "target":
        return callable_value(content)
    if kind == "ellipsis":
        return Ellipsis
    raise StoredGraphError("ART-C5", f"a value is of the unknown kind {kind[:80]!r}")


def tensor_encoded(tensor: torch.Tensor) -> tuple[dict[str, Any], bytes]:
    """A tensor as its metadata and the bytes of the elements that it reaches, from its first one on.

    Raises:
        NotPortable: it is not a plain strided tensor.
    """
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        raise NotPortable(f"a constant is a {type(tensor).__name__} of layout {tensor.layout}")
    if tensor.is_conj() or tensor.is_neg():
        raise NotPortable("a constant is a lazily conjugated or negated view")
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    reach = 1 + sum((n - 1) * step for n, step in steps) if tensor.numel() else 0
    with torch.no_grad():
        flat = tensor.detach().as_strided((reach,), (1,)).cpu().contiguous()
    what = {
        "dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape),
        "strides": list(tensor.stride()), "device": str(tensor.device), "requires_grad": tensor.requires_grad,
    }  # fmt: skip
    return what, ctypes.string_at(flat.data_ptr(), reach * flat.itemsize) if reach else b""


def tensor_decoded(what: Mapping[str, Any], data: bytes) -> torch.Tensor:
    """The tensor of :func:`tensor_encoded`.

    Raises:
        StoredGraphError: the metadata is none, or the bytes are not as many as it reaches.
    """
    from prims.ir.stored import device_of, dtype_of, integer

    shape, strides = ([integer(n, 0) for n in what[key]] for key in ("shape", "strides"))
    dtype, empty = dtype_of(what["dtype"]), 0 in shape
    reach = 0 if empty else 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    if len(data) != reach * dtype.itemsize:
        raise StoredGraphError("ART-C5", f"a constant of {reach} elements has {len(data)} bytes")
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if reach else torch.empty(0, dtype=dtype, device="cpu")
    made = flat.to(device_of(what["device"])).as_strided(shape, strides)
    return made.requires_grad_() if what["requires_grad"] else made
