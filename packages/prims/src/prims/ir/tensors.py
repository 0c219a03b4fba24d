"""Files of tensors: safetensors, never pickle."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from prims.errors import StoredGraphError, UserError
from prims.forking import compiling
from prims.ir.stored import MAX_CONSTANTS, read_file

__all__ = ["read_tensors", "write_tensors"]


def write_tensors(tensors: Mapping[str, torch.Tensor], path: str | os.PathLike[str]) -> None:
    """Write tensors by name, each row-major and with memory of its own.

    Raises:
        UserError: one of them is sparse; the file cannot be written.
    """
    with compiling():
        from safetensors.torch import save_file

    if sparse := [name for name, x in tensors.items() if x.layout is not torch.strided]:
        raise UserError(f"the tensor {sparse[0]} is sparse, which a file of tensors cannot hold")
    rows = {name: x.detach().to("cpu", copy=True).contiguous() for name, x in tensors.items()}
    try:
        save_file(rows, os.fspath(path))
    except Exception as error:
        raise UserError(f"{os.fspath(path)!r} cannot be written: {error}") from error


def read_tensors(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """The tensors of a file by name, on the CPU.

    Raises:
        StoredGraphError: there is no such file, or it is none of tensors.
    """
    with compiling():
        from safetensors.torch import load

    name = os.fspath(path)
    data = read_file(name, MAX_CONSTANTS)
    try:
        return load(data)
    except Exception as error:
        raise StoredGraphError("FILE-C4", f"{name!r} is no safetensors file: {error}") from error
